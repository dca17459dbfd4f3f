"""Select rows from draws and log-likelihoods: candidates, sizes, tolerances and rounds."""

from jaxcoreset.selection.plan import Plan as Plan
from jaxcoreset.selection.rounds import Round as Round
