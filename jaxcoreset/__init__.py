"""Bayesian coresets on accelerators: a few weighted rows whose posterior is the full posterior."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from jaxcoreset.builder import CoresetBuilder as CoresetBuilder
from jaxcoreset.constraints import Constraint as Constraint
from jaxcoreset.constraints import GroupTopK as GroupTopK
from jaxcoreset.constraints import SimplexTopK as SimplexTopK
from jaxcoreset.constraints import StratifiedTopK as StratifiedTopK
from jaxcoreset.constraints import TopK as TopK
from jaxcoreset.coreset import Coreset as Coreset
from jaxcoreset.coreset import load as load
from jaxcoreset.embedding import embed as embed
from jaxcoreset.laplace import LaplaceApproximation as LaplaceApproximation
from jaxcoreset.laplace import laplace_approximation as laplace_approximation
from jaxcoreset.launch import initialize_processes as initialize_processes
from jaxcoreset.likelihood import ModelLikelihood as ModelLikelihood
from jaxcoreset.likelihood import model_likelihood as model_likelihood
from jaxcoreset.likelihood import weighted_model as weighted_model
from jaxcoreset.nnls import nnls as nnls
from jaxcoreset.problem import CoresetProblem as CoresetProblem
from jaxcoreset.processes import ProcessError as ProcessError
from jaxcoreset.report import Report as Report
from jaxcoreset.solution import Solution as Solution
from jaxcoreset.solve import solve as solve
from jaxcoreset.solve import sweep as sweep
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
from jaxcoreset.weighting import Draws as Draws
from jaxcoreset.weighting import Laplace as Laplace

if _TYPE_CHECKING:
    from jaxcoreset.certificate import Certificate as Certificate
    from jaxcoreset.certificate import certificate_cost as certificate_cost
    from jaxcoreset.certificate import certify as certify
    from jaxcoreset.compression import CompressedProblem as CompressedProblem
    from jaxcoreset.compression import compress as compress
    from jaxcoreset.compression import project as project
    from jaxcoreset.correction import correct as correct
    from jaxcoreset.kernel import kernel_problem as kernel_problem
    from jaxcoreset.kernel import select_prototypes as select_prototypes
    from jaxcoreset.solvers.stochastic import SVRGIHT as SVRGIHT
    from jaxcoreset.solvers.stochastic import ProjectedOptax as ProjectedOptax
    from jaxcoreset.solvers.stochastic import StochasticAIHT as StochasticAIHT
    from jaxcoreset.sparse_vi import SparseVI as SparseVI
    from jaxcoreset.streaming import merge as merge
    from jaxcoreset.weighting import Guide as Guide
    from jaxcoreset.weighting import Pathfinder as Pathfinder
    from jaxcoreset.weighting import SubsampleNUTS as SubsampleNUTS

__version__ = "0.1.0"

# What brings optax with it, or is rarely wanted, is imported when it is asked for.
_LATER = {
    "Certificate": "jaxcoreset.certificate",
    "CompressedProblem": "jaxcoreset.compression",
    "Guide": "jaxcoreset.weighting",
    "Pathfinder": "jaxcoreset.weighting",
    "ProjectedOptax": "jaxcoreset.solvers.stochastic",
    "SVRGIHT": "jaxcoreset.solvers.stochastic",
    "SparseVI": "jaxcoreset.sparse_vi",
    "StochasticAIHT": "jaxcoreset.solvers.stochastic",
    "SubsampleNUTS": "jaxcoreset.weighting",
    "certificate_cost": "jaxcoreset.certificate",
    "certify": "jaxcoreset.certificate",
    "compress": "jaxcoreset.compression",
    "correct": "jaxcoreset.correction",
    "kernel_problem": "jaxcoreset.kernel",
    "merge": "jaxcoreset.streaming",
    "project": "jaxcoreset.compression",
    "select_prototypes": "jaxcoreset.kernel",
    "diagnostics": "jaxcoreset",
    "distributions": "jaxcoreset",
    "plotting": "jaxcoreset",
    "sources": "jaxcoreset",
}


def __getattr__(name: str) -> _Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _LATER[name] == __name__:
        return _import_module(f"{__name__}.{name}")
    return getattr(_import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
