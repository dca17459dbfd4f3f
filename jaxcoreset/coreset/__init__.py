"""What a user keeps: weighted rows, their model, and the report of how they were chosen."""

from jaxcoreset.coreset.coreset import Coreset as Coreset
from jaxcoreset.coreset.coreset import load as load
from jaxcoreset.coreset.report import Report as Report
from jaxcoreset.coreset.warm_start import WarmStart as WarmStart
