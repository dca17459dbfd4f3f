"""Sparse distributions on a lattice: few coordinates vary, and all other coordinates are zero.

Zhang, Khanna, Kyrillidis and Koyejo, "Learning sparse distributions using iterative hard
thresholding" (NeurIPS 2019). A distribution p on X = {0, …, m−1}ⁿ is a table of shape (m,)·n; entry
x is its probability. For a set S of coordinates, X_S holds the x with x_i = 0 for all i outside S,
and P_S the distributions supported on X_S. The paper's k-sparse distributions are
D_k = ∪_{|S| ≤ k} P_S (its Definition 1): each is given by mᵏ numbers instead of mⁿ. The problem is

    min F[q]   subject to   q ∈ D_k

for a convex F: `SquaredDistance`, `KLDivergence` or `ExpectationDistance`. `DistributionIHT` is the
paper's Algorithm 1, `sparse_projection` its Algorithm 2, `DistributionGreedy` its Algorithm 3;
`DistributionExchange` is not from the paper, and finds supports that the paper's algorithms miss.
Start with `learn_distribution`. `compress_distribution` keeps the expectations of given functions.

For sparsity of a distribution's own entries (the paper's appendix A), where the distribution is a
vector of weights on the simplex, see `jaxcoreset.solvers.kernel`.
"""

from jaxcoreset.distributions.learn import compress_distribution as compress_distribution
from jaxcoreset.distributions.learn import learn_distribution as learn_distribution
from jaxcoreset.distributions.learn import random_sparse_distribution as random_sparse_distribution
from jaxcoreset.distributions.learn import sparse_projection as sparse_projection
from jaxcoreset.distributions.objectives import DistributionObjective as DistributionObjective
from jaxcoreset.distributions.objectives import ExpectationDistance as ExpectationDistance
from jaxcoreset.distributions.objectives import KLDivergence as KLDivergence
from jaxcoreset.distributions.objectives import SquaredDistance as SquaredDistance
from jaxcoreset.distributions.solvers import DistributionExchange as DistributionExchange
from jaxcoreset.distributions.solvers import DistributionGreedy as DistributionGreedy
from jaxcoreset.distributions.solvers import DistributionSolution as DistributionSolution
from jaxcoreset.distributions.solvers import DistributionSolver as DistributionSolver
from jaxcoreset.distributions.thresholding import DistributionIHT as DistributionIHT
from jaxcoreset.distributions.thresholding import IHTState as IHTState
from jaxcoreset.solvers.numerics import project_simplex as project_simplex
