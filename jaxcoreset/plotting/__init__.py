"""Figures of a coreset with matplotlib. Each function draws into axes and returns them.

The colours are those of Okabe and Ito, which colour-blind readers can tell apart; lines differ in
their dashes as well, for printing in black and white.
"""

from jaxcoreset.plotting.errors import plot_comparison as plot_comparison
from jaxcoreset.plotting.errors import plot_convergence as plot_convergence
from jaxcoreset.plotting.errors import plot_error as plot_error
from jaxcoreset.plotting.errors import plot_kl as plot_kl
from jaxcoreset.plotting.posteriors import plot_contours as plot_contours
from jaxcoreset.plotting.posteriors import plot_marginals as plot_marginals
from jaxcoreset.plotting.posteriors import plot_pairs as plot_pairs
from jaxcoreset.plotting.rows import plot_rows as plot_rows
from jaxcoreset.plotting.rows import plot_surface as plot_surface
from jaxcoreset.plotting.rows import plot_weights as plot_weights
from jaxcoreset.plotting.style import CORESET as CORESET
from jaxcoreset.plotting.style import EXTRA as EXTRA
from jaxcoreset.plotting.style import FULL as FULL
