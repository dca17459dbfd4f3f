"""A NumPyro model and its arguments as one log-likelihood per datum, and as a weighted model."""

from jaxcoreset.likelihood.arguments import ModelError as ModelError
from jaxcoreset.likelihood.embedding import embed as embed
from jaxcoreset.likelihood.fisher import fisher_features as fisher_features
from jaxcoreset.likelihood.from_model import model_likelihood as model_likelihood
from jaxcoreset.likelihood.likelihood import ModelLikelihood as ModelLikelihood
from jaxcoreset.likelihood.likelihood import Params as Params
from jaxcoreset.likelihood.weighted import WeightedModel as WeightedModel
from jaxcoreset.likelihood.weighted import weighted_model as weighted_model
