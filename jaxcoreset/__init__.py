"""Bayesian coresets in JAX: a few weighted rows whose posterior is close to the full one."""

from importlib import import_module as _import_module
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from jaxcoreset.builders.builder import CoresetBuilder as CoresetBuilder
from jaxcoreset.builders.settings import Candidates as Candidates
from jaxcoreset.builders.settings import Checkpoint as Checkpoint
from jaxcoreset.builders.settings import Execution as Execution
from jaxcoreset.builders.settings import Processes as Processes
from jaxcoreset.builders.settings import Taylor as Taylor
from jaxcoreset.builders.settings import Tolerance as Tolerance
from jaxcoreset.coreset.coreset import Coreset as Coreset
from jaxcoreset.coreset.loading import load as load
from jaxcoreset.coreset.report import Report as Report
from jaxcoreset.data.processes import ProcessError as ProcessError
from jaxcoreset.data.processes import initialize_processes as initialize_processes
from jaxcoreset.likelihood.embedding import embed as embed
from jaxcoreset.likelihood.from_model import model_likelihood as model_likelihood
from jaxcoreset.likelihood.integration import AdaptiveQuadrature as AdaptiveQuadrature
from jaxcoreset.likelihood.integration import LaplaceIntegral as LaplaceIntegral
from jaxcoreset.likelihood.likelihood import ModelLikelihood as ModelLikelihood
from jaxcoreset.likelihood.weighted import weighted_model as weighted_model
from jaxcoreset.selection.comparison import Comparison as Comparison
from jaxcoreset.selection.comparison import compare as compare
from jaxcoreset.solvers import AIHT as AIHT
from jaxcoreset.solvers import AIHT2 as AIHT2
from jaxcoreset.solvers import GIGA as GIGA
from jaxcoreset.solvers import IHT as IHT
from jaxcoreset.solvers import ExchangePursuit as ExchangePursuit
from jaxcoreset.solvers import ExhaustiveSearch as ExhaustiveSearch
from jaxcoreset.solvers import FrankWolfe as FrankWolfe
from jaxcoreset.solvers import ImportanceSampling as ImportanceSampling
from jaxcoreset.solvers import MatchingPursuit as MatchingPursuit
from jaxcoreset.solvers import Recombination as Recombination
from jaxcoreset.solvers import Solver as Solver
from jaxcoreset.solvers import SubspacePursuit as SubspacePursuit
from jaxcoreset.solvers import UniformSampling as UniformSampling
from jaxcoreset.solvers.constraints import Constraint as Constraint
from jaxcoreset.solvers.constraints import GroupTopK as GroupTopK
from jaxcoreset.solvers.constraints import SimplexTopK as SimplexTopK
from jaxcoreset.solvers.constraints import StratifiedTopK as StratifiedTopK
from jaxcoreset.solvers.constraints import TopK as TopK
from jaxcoreset.solvers.nnls import nnls as nnls
from jaxcoreset.solvers.problem import CoresetProblem as CoresetProblem
from jaxcoreset.solvers.solution import Solution as Solution
from jaxcoreset.solvers.solve import solve as solve
from jaxcoreset.solvers.solve import sweep as sweep
from jaxcoreset.weighting import Draws as Draws
from jaxcoreset.weighting import Laplace as Laplace
from jaxcoreset.weighting.jit_chains import jit_chains as jit_chains
from jaxcoreset.weighting.laplace import LaplaceApproximation as LaplaceApproximation
from jaxcoreset.weighting.laplace import laplace_approximation as laplace_approximation

if _TYPE_CHECKING:
    from jaxcoreset import diagnostics as diagnostics
    from jaxcoreset import distributions as distributions
    from jaxcoreset import plotting as plotting
    from jaxcoreset import solvers as solvers
    from jaxcoreset import weighting as weighting
    from jaxcoreset.builders.coreset_mcmc import CoresetMCMC as CoresetMCMC
    from jaxcoreset.builders.quasi_newton import QuasiNewton as QuasiNewton
    from jaxcoreset.builders.sparse_vi import SparseVI as SparseVI
    from jaxcoreset.coreset.merge import merge as merge
    from jaxcoreset.data import sources as sources
    from jaxcoreset.diagnostics.certificate import Certificate as Certificate
    from jaxcoreset.diagnostics.correction import correct as correct
    from jaxcoreset.diagnostics.loo import loo as loo
    from jaxcoreset.diagnostics.measurement import certificate_cost as certificate_cost
    from jaxcoreset.diagnostics.measurement import certify as certify
    from jaxcoreset.diagnostics.predict import predict as predict
    from jaxcoreset.solvers import constraints as constraints
    from jaxcoreset.solvers.compression import CompressedProblem as CompressedProblem
    from jaxcoreset.solvers.compression import compress as compress
    from jaxcoreset.solvers.compression import project as project
    from jaxcoreset.solvers.kernel import kernel_problem as kernel_problem
    from jaxcoreset.solvers.kernel import select_prototypes as select_prototypes
    from jaxcoreset.solvers.thresholding.stochastic import SVRGIHT as SVRGIHT
    from jaxcoreset.solvers.thresholding.stochastic import ProjectedOptax as ProjectedOptax
    from jaxcoreset.solvers.thresholding.stochastic import StochasticAIHT as StochasticAIHT
    from jaxcoreset.weighting import Guide as Guide
    from jaxcoreset.weighting import Pathfinder as Pathfinder
    from jaxcoreset.weighting import SubsampleNUTS as SubsampleNUTS

# What brings optax with it, or is rarely needed, is imported when it is asked for.
_LATER = {
    name: f"jaxcoreset.{module}"
    for module, names in {
        "builders.coreset_mcmc": ["CoresetMCMC"],
        "builders.quasi_newton": ["QuasiNewton"],
        "builders.sparse_vi": ["SparseVI"],
        "coreset.merge": ["merge"],
        "diagnostics.certificate": ["Certificate"],
        "diagnostics.correction": ["correct"],
        "diagnostics.measurement": ["certificate_cost", "certify"],
        "diagnostics.loo": ["loo"],
        "diagnostics.predict": ["predict"],
        "solvers.compression": ["CompressedProblem", "compress", "project"],
        "solvers.kernel": ["kernel_problem", "select_prototypes"],
        "solvers.thresholding.stochastic": ["ProjectedOptax", "SVRGIHT", "StochasticAIHT"],
        "weighting": ["Guide", "Pathfinder", "SubsampleNUTS"],
    }.items()
    for name in names
}

# Modules that are public as a whole.
_PACKAGES = ("diagnostics", "distributions", "plotting", "solvers", "weighting")
_NAMESPACES = {
    "constraints": "jaxcoreset.solvers.constraints",
    "sources": "jaxcoreset.data.sources",
    **{name: f"jaxcoreset.{name}" for name in _PACKAGES},
}
_NOW = [x for x, it in globals().items() if x[0] != "_" and not isinstance(it, _ModuleType)]


def __getattr__(name: str) -> _Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("jaxcoreset")
    if name in _NAMESPACES:
        return _import_module(_NAMESPACES[name])
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted({*_NOW, *_LATER, *_NAMESPACES, "__version__"})
