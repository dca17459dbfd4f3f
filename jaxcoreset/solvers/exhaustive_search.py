"""The global optimum by trying every support, where there are few enough of them.

Non-negative weights that are best on a support are positive on a part of it, and there they solve
the least-squares problem without bounds. So the optimum over at most k rows is the best among all
supports of at most k rows whose unbounded least-squares weights are positive: nothing but small
symmetric systems, all solved in one batch.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxcoreset.nnls import nnls, product
from jaxcoreset.problem import HIGHEST, CoresetProblem
from jaxcoreset.solution import Solution, make_solution
from jaxcoreset.solvers.base import PathSolver

# Every support with at most five of 25 rows.
MAX_SUPPORTS = 68_405


def few_supports(n: int, max_k: int) -> bool:
    """Whether there are few enough supports of at most `max_k` of n rows to try them all."""
    total = 0
    for size in range(1, max_k + 1):
        total += math.comb(n, size)
        if total > MAX_SUPPORTS:
            return False
    return True


class ExhaustiveSearch(PathSolver):
    """Tries every support of at most k rows: exact, where there are few.

    The default solver where it can be used, and the judge of the others. Supports are compared by
    the normal equations in the problem's precision; the best one's weights come from
    `jaxcoreset.nnls`. One run holds the solutions for every k.

    Raises:
        ValueError: if there are more than 68,405 supports, those with up to five of 25 rows.
    """

    def run_path(
        self,
        problem: CoresetProblem,
        ks: Int[Array, " m"],
        max_k: int,
        key: PRNGKeyArray | None = None,
    ) -> Solution:
        """The best for each of `ks` from one search; see `Solver.run_path`."""
        found = _objectives(problem, max_k)
        return jax.vmap(lambda k: self._at(problem, *found, k, max_k))(ks)

    def _at(
        self,
        problem: CoresetProblem,
        supports: Int[Array, "m k"],
        objectives: Float[Array, " m"],
        k: Int[Array, ""],
        max_k: int,
    ) -> Solution:
        n = problem.num_data
        sizes = jnp.sum(supports < n, axis=1)
        support = supports[jnp.argmin(jnp.where(sizes <= k, objectives, jnp.inf))]
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
            solver=type(self).__name__,
        )


def _objectives(
    problem: CoresetProblem, max_k: int
) -> tuple[Int[Array, "m k"], Float[Array, " m"]]:
    """Every support, padded with n, and its smallest objective over ‖y‖², infinite if not feasible.

    The empty support is among them, in case no atom points the target's way.
    """
    n = problem.num_data
    if not few_supports(n, max_k):
        raise ValueError(
            f"there are more than {MAX_SUPPORTS:,} supports with at most {max_k} of {n} rows; "
            "ExhaustiveSearch wants a smaller problem."
        )
    supports = np.array(
        [
            (*some, *(n,) * (max_k - size))
            for size in range(max_k + 1)
            for some in itertools.combinations(range(n), size)
        ],
        np.int32,
    )
    scale = problem.scales()
    target_norm = jnp.linalg.norm(problem.target)
    atoms = problem.gather(jnp.arange(n)) * scale[:, None]
    target = problem.target / jnp.where(target_norm > 0, target_norm, 1)
    # A row and column more, for the slots that are not used.
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
    return jnp.asarray(supports), jnp.where(feasible & usable, objectives, jnp.inf)
