"""Solvers of the coreset problem, one file or folder per family.

Names that need optax, or are rarely used, are imported only when they are used.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from jaxcoreset.solvers.base import PathSolver as PathSolver
from jaxcoreset.solvers.base import Solver as Solver
from jaxcoreset.solvers.exchange.pursuit import ExchangePursuit as ExchangePursuit
from jaxcoreset.solvers.exhaustive_search import ExhaustiveSearch as ExhaustiveSearch
from jaxcoreset.solvers.frank_wolfe import GIGA as GIGA
from jaxcoreset.solvers.frank_wolfe import FrankWolfe as FrankWolfe
from jaxcoreset.solvers.matching_pursuit import MatchingPursuit as MatchingPursuit
from jaxcoreset.solvers.nnls import NNLSResult as NNLSResult
from jaxcoreset.solvers.recombination import Recombination as Recombination
from jaxcoreset.solvers.sampling import ImportanceSampling as ImportanceSampling
from jaxcoreset.solvers.sampling import UniformSampling as UniformSampling
from jaxcoreset.solvers.solution import make_solution as make_solution
from jaxcoreset.solvers.solve import default_solver as default_solver
from jaxcoreset.solvers.subspace_pursuit import SubspacePursuit as SubspacePursuit
from jaxcoreset.solvers.thresholding.hard import AIHT as AIHT
from jaxcoreset.solvers.thresholding.hard import AIHT2 as AIHT2
from jaxcoreset.solvers.thresholding.hard import IHT as IHT
from jaxcoreset.solvers.thresholding.hard import HardThresholding as HardThresholding

if _TYPE_CHECKING:
    from jaxcoreset.solvers.compression import projection_size as projection_size
    from jaxcoreset.solvers.kernel import GaussianKernel as GaussianKernel
    from jaxcoreset.solvers.kernel import median_bandwidth as median_bandwidth
    from jaxcoreset.solvers.kernel import pivoted_cholesky as pivoted_cholesky
    from jaxcoreset.solvers.kernel import simplex_problem as simplex_problem
    from jaxcoreset.solvers.thresholding.epochs import Stochastic as Stochastic

_LATER = {
    "GaussianKernel": "kernel",
    "Stochastic": "thresholding.epochs",
    "median_bandwidth": "kernel",
    "pivoted_cholesky": "kernel",
    "projection_size": "compression",
    "simplex_problem": "kernel",
}


def __getattr__(name: str) -> _Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_import_module(f"{__name__}.{_LATER[name]}"), name)
