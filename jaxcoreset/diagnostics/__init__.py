"""Compare a coreset's posterior with that of all rows, and use its draws for all rows."""

from jaxcoreset.diagnostics.correction import CorrectionError as CorrectionError
from jaxcoreset.diagnostics.gaussian import Divergence as Divergence
from jaxcoreset.diagnostics.gaussian import RelativeErrors as RelativeErrors
from jaxcoreset.diagnostics.gaussian import divergence as divergence
from jaxcoreset.diagnostics.gaussian import fisher_distance as fisher_distance
from jaxcoreset.diagnostics.gaussian import gaussian_fisher_distance as gaussian_fisher_distance
from jaxcoreset.diagnostics.gaussian import gaussian_kl as gaussian_kl
from jaxcoreset.diagnostics.gaussian import laplace_divergence as laplace_divergence
from jaxcoreset.diagnostics.gaussian import map_distance as map_distance
from jaxcoreset.diagnostics.gaussian import moments as moments
from jaxcoreset.diagnostics.gaussian import relative_error as relative_error
from jaxcoreset.diagnostics.gaussian import relative_errors as relative_errors
from jaxcoreset.diagnostics.predict import Prediction as Prediction
from jaxcoreset.diagnostics.predictive_check import PredictiveCheck as PredictiveCheck
