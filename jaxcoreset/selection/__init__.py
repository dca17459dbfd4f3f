"""From draws and log-likelihoods to chosen rows: candidates, sizes, tolerances and rounds."""

from jaxcoreset.selection.plan import Plan as Plan
from jaxcoreset.selection.rounds import Round as Round
