"""The coreset that a build returns: weighted rows, their model, and a report."""

from jaxcoreset.coreset.coreset import Coreset as Coreset
from jaxcoreset.coreset.loading import load as load
from jaxcoreset.coreset.report import Report as Report
from jaxcoreset.coreset.warm_start import WarmStart as WarmStart
