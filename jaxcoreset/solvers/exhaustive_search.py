"""The global optimum by trying every support, for problems with few supports.

The best non-negative weights on a support are positive on a part of it, and there they solve the
least-squares problem without bounds. So the optimum over at most k rows is the best among all
supports of at most k rows whose unbounded least-squares weights are positive. These are small
symmetric systems, and all of them are solved in one batch.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxcoreset.solvers.base import PathSolver
from jaxcoreset.solvers.nnls import nnls
from jaxcoreset.solvers.numerics import HIGHEST, divide, product
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solution import Solution, make_solution

# The number of supports with at most five of 25 rows.
MAX_SUPPORTS = 68_405
# The number of supports that are compared by their residuals, and the size of a batch of them.
_MOST_COMPARED, _AT_A_TIME = 1024, 128


def few_supports(n: int, max_k: int) -> bool:
    """Return whether n rows have few enough supports of at most `max_k` rows to try all of them."""
    total = 0
    for size in range(1, max_k + 1):
        total += math.comb(n, size)
        if total > MAX_SUPPORTS:
            return False
    return True


class ExhaustiveSearch(PathSolver):
    """Exhaustive search: try every support of at most k rows. It is exact, for small problems.

    It is the default solver where it can be used, and the reference for other solvers. Supports are
    compared by the normal equations in the problem's precision, which distinguishes objectives that
    differ by a few units of rounding of ‖y‖². The best thousand are then compared by their
    residuals. The weights on the best support come from `jaxcoreset.solvers.nnls`. One run holds
    the solutions for every k.

    Raises:
        ValueError: if there are more than 68,405 supports, the number of those with up to five of
            25 rows.
    """

    def run_path(
        self,
        problem: CoresetProblem,
        ks: Int[Array, " m"],
        max_k: int,
        key: PRNGKeyArray | None = None,
    ) -> Solution:
        """The best solution for each of `ks` from one search; see `Solver.run_path`."""
        supports = _all_supports(problem.num_data, max_k)
        sizes = np.sum(supports < problem.num_data, axis=1)
        objectives = _objectives(problem, supports)
        return jax.lax.map(
            lambda k: self._best(
                problem, jnp.asarray(supports), jnp.where(sizes <= k, objectives, jnp.inf)
            ),
            ks,
        )

    def _best(
        self, problem: CoresetProblem, supports: Int[Array, "m k"], objectives: Float[Array, " m"]
    ) -> Solution:
        n = problem.num_data
        # Full batches only: a smaller last batch would be compiled separately.
        num = min(_MOST_COMPARED, supports.shape[0])
        num -= num % _AT_A_TIME if num > _AT_A_TIME else 0
        best = jax.lax.top_k(-objectives, num)[1]
        compared = jax.lax.map(
            lambda at: _residual_objective(problem, supports[at]), best, batch_size=_AT_A_TIME
        )
        # Exclude supports that are too large or not feasible; a tie goes to the one ranked first.
        compared = jnp.where(jnp.isfinite(objectives[best]), compared, jnp.inf)
        support = supports[best[jnp.argmin(compared)]]
        used = support < n
        rows = jnp.where(used, support, 0)
        fit = nnls(problem.gather(rows), problem.target, mask=used)
        return make_solution(
            problem,
            rows,
            fit.weights,
            fit.objective,
            jnp.asarray(supports.shape[0]),
            fit.converged,
        )


def _all_supports(n: int, max_k: int) -> Int[np.ndarray, "m k"]:
    """Every support, padded with n; with the empty one, for targets that no atom points towards."""
    if not few_supports(n, max_k):
        raise ValueError(
            f"there are more than {MAX_SUPPORTS:,} supports with at most {max_k} of {n} rows; "
            "expected a smaller problem. Use ExchangePursuit()."
        )
    return np.array(
        [
            (*support, *(n,) * (max_k - size))
            for size in range(max_k + 1)
            for support in itertools.combinations(range(n), size)
        ],
        np.int32,
    )


def _objectives(problem: CoresetProblem, supports: Int[np.ndarray, "m k"]) -> Float[Array, " m"]:
    """The smallest objective on each support over ‖y‖², infinite if not feasible."""
    n, max_k = problem.num_data, supports.shape[1]
    scale = problem.scales()
    target_norm = jnp.linalg.norm(problem.target)
    atoms = problem.gather(jnp.arange(n)) * scale[:, None]
    target = divide(problem.target, target_norm)
    # One more row and column, for unused slots.
    gram = jnp.pad(product(atoms, atoms.T), (0, 1))
    correlations = jnp.pad(product(atoms, target), (0, 1))
    unused = supports == n
    eps = jnp.finfo(gram.dtype).eps
    grams = gram[supports[:, :, None], supports[:, None, :]]
    grams = grams + jnp.eye(max_k) * jnp.where(unused, 1, 8 * eps)[:, :, None]
    sums = correlations[supports]
    weights = jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(grams), True), sums[:, :, None])[
        :, :, 0
    ]
    feasible = jnp.all((weights > 0) | unused, axis=1)
    objectives = 1 - jnp.einsum("mk,mk->m", weights, sums, precision=HIGHEST)
    usable = jnp.pad(scale > 0, (0, 1), constant_values=True)[supports].all(axis=1)
    return jnp.where(feasible & usable, objectives, jnp.inf)


def _residual_objective(problem: CoresetProblem, support: Int[Array, " k"]) -> Float[Array, ""]:
    """The smallest objective on a support over ‖y‖², of the residual itself.

    The weights of the normal equations are refined twice from the residual, and clipped at zero.
    """
    used = support < problem.num_data
    rows = jnp.where(used, support, 0)
    target = divide(problem.target, jnp.linalg.norm(problem.target))
    atoms = jnp.where(used[:, None], problem.gather(rows), 0)
    atoms = divide(atoms, jnp.linalg.norm(atoms, axis=1, keepdims=True))
    gram = product(atoms, atoms.T)
    gram = gram + jnp.diag(jnp.where(used, 8 * jnp.finfo(gram.dtype).eps, 1))
    factor = jnp.linalg.cholesky(gram), True
    weights, residual = jnp.zeros(support.shape[0], target.dtype), target
    for _ in range(3):
        step = jax.scipy.linalg.cho_solve(factor, product(atoms, residual))
        weights = jnp.maximum(weights + step, 0)
        residual = target - product(weights, atoms)
    return jnp.vdot(residual, residual)
