"""Bayesian coresets on accelerators: a few weighted rows whose posterior is the full posterior."""

from importlib.metadata import version as _version

from jaxcoreset.builder import CoresetBuilder as CoresetBuilder
from jaxcoreset.constraints import GroupTopK as GroupTopK
from jaxcoreset.constraints import SimplexTopK as SimplexTopK
from jaxcoreset.constraints import StratifiedTopK as StratifiedTopK
from jaxcoreset.constraints import TopK as TopK
from jaxcoreset.coreset import Coreset as Coreset
from jaxcoreset.coreset import load as load
from jaxcoreset.embedding import embed as embed
from jaxcoreset.laplace import LaplaceApproximation as LaplaceApproximation
from jaxcoreset.laplace import laplace_approximation as laplace_approximation
from jaxcoreset.likelihood import ModelLikelihood as ModelLikelihood
from jaxcoreset.likelihood import model_likelihood as model_likelihood
from jaxcoreset.likelihood import weighted_model as weighted_model
from jaxcoreset.nnls import nnls as nnls
from jaxcoreset.problem import CoresetProblem as CoresetProblem
from jaxcoreset.report import Report as Report
from jaxcoreset.solution import Solution as Solution
from jaxcoreset.solve import solve as solve
from jaxcoreset.solve import sweep as sweep
from jaxcoreset.solvers import AIHT as AIHT
from jaxcoreset.solvers import AIHT2 as AIHT2
from jaxcoreset.solvers import GIGA as GIGA
from jaxcoreset.solvers import IHT as IHT
from jaxcoreset.solvers import FrankWolfe as FrankWolfe
from jaxcoreset.solvers import ImportanceSampling as ImportanceSampling
from jaxcoreset.solvers import MatchingPursuit as MatchingPursuit
from jaxcoreset.solvers import UniformSampling as UniformSampling
from jaxcoreset.weighting import Draws as Draws
from jaxcoreset.weighting import Laplace as Laplace

__version__ = _version("jaxcoreset")
