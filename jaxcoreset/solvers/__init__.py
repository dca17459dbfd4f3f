"""Solvers of the coreset problem, one file a family.

Those of `stochastic` are imported when they are asked for, since they bring optax with them.
"""

from jaxcoreset.solvers.base import Solver as Solver
from jaxcoreset.solvers.exchange.pursuit import ExchangePursuit as ExchangePursuit
from jaxcoreset.solvers.exhaustive_search import ExhaustiveSearch as ExhaustiveSearch
from jaxcoreset.solvers.frank_wolfe import FrankWolfe as FrankWolfe
from jaxcoreset.solvers.giga import GIGA as GIGA
from jaxcoreset.solvers.matching_pursuit import MatchingPursuit as MatchingPursuit
from jaxcoreset.solvers.recombination import Recombination as Recombination
from jaxcoreset.solvers.sampling import ImportanceSampling as ImportanceSampling
from jaxcoreset.solvers.sampling import UniformSampling as UniformSampling
from jaxcoreset.solvers.subspace_pursuit import SubspacePursuit as SubspacePursuit
from jaxcoreset.solvers.thresholding.hard import AIHT as AIHT
from jaxcoreset.solvers.thresholding.hard import AIHT2 as AIHT2
from jaxcoreset.solvers.thresholding.hard import IHT as IHT
