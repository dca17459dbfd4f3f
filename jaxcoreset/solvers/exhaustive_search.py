"""The global optimum by trying every support, for problems with few supports.

The best non-negative weights on a support are positive on a part of it, and there they solve the
least-squares problem without bounds. So the optimum over at most k rows is the best among all
supports of at most k rows whose unbounded least-squares weights are positive. These are small
least-squares problems, which are solved in batches.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxcoreset.solvers.base import PathSolver
from jaxcoreset.solvers.batching import map_batches
from jaxcoreset.solvers.nnls import nnls
from jaxcoreset.solvers.numerics import divide, product
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solution import Solution, make_solution

# The number of supports with at most five of 25 rows.
MAX_SUPPORTS = 68_405
# The maximum number of supports that are compared at a time, and of the entries of their atoms.
_MAX_BATCH, _BATCH_ENTRIES = 4096, 1_000_000
# An atom is in the span of others if its distance from it is at most this many units of rounding.
_INDEPENDENT = 8


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

    It is the default solver if there are few enough supports, and the reference for other solvers.
    It compares supports by their residuals, in the problem's precision, after orthogonalising their
    atoms. Residuals that differ by a few units of rounding of ‖y‖, or of the weighted atoms if
    these are longer, count as equal. The weights on the best support come from
    `jaxcoreset.solvers.nnls`. One run gives the solutions for every k.

    Raises:
        ValueError: if there are more than 68,405 supports, the number of those with up to five of
            25 rows.
    """

    def run_path(
        self, problem: CoresetProblem, ks: Int[Array, " m"], max_k: int, key: PRNGKeyArray | None
    ) -> Solution:
        """The best solution for each of `ks` from one search; see `Solver.run_path`."""
        supports = _all_supports(problem.num_data, max_k)
        sizes = jnp.asarray(np.sum(supports < problem.num_data, axis=1))
        rows, target = _short_rows(problem)
        usable = jnp.linalg.norm(rows, axis=1) > 0
        usable = usable.at[problem.num_data].set(True)
        supports = jnp.asarray(supports)
        size = min(len(sizes), max(1, min(_MAX_BATCH, _BATCH_ENTRIES // (max_k * rows.shape[1]))))
        objective_of = jax.vmap(lambda support: _objective(rows[support], target))
        objectives = map_batches(objective_of, supports, size)
        objectives = jnp.where(jnp.all(usable[supports], axis=1), objectives, jnp.inf)
        eps, count = float(jnp.finfo(objectives.dtype).eps), jnp.asarray(len(sizes))

        def solution(k: Array) -> Solution:
            # Of supports that rounding does not tell apart the first, which is among the smallest.
            allowed = jnp.where(sizes <= k, objectives, jnp.inf)
            best = jnp.min(allowed)
            support = supports[jnp.argmax(allowed <= best + eps * (best + eps))]
            used = support < problem.num_data
            rows = jnp.where(used, support, 0)
            # The usual `tol` is coarser than what the supports were compared by.
            fit = nnls(problem.gather(rows), problem.target, mask=used, tol=4 * eps)
            return make_solution(problem, rows, fit.weights, fit.objective, count, fit.converged)

        return jax.lax.map(solution, ks)


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


def _short_rows(problem: CoresetProblem) -> tuple[Float[Array, "m r"], Float[Array, " r"]]:
    """Atoms of norm one, with a row of zeros for unused slots, and the target of norm one.

    A rotation shortens them if they are longer than their number: no inner product changes.
    """
    n, num_draws = problem.num_data, problem.num_draws
    rows = jnp.concatenate([problem.gather(jnp.arange(n)), problem.target[None]])
    if num_draws > n + 1:
        with jax.default_matmul_precision("highest"):
            rows = jnp.linalg.qr(rows.T, mode="r").T
    rows = divide(rows, jnp.linalg.norm(rows, axis=1, keepdims=True))
    return rows.at[n].set(0), rows[n]


def _objective(atoms: Float[Array, "k r"], target: Float[Array, " r"]) -> Float[Array, ""]:
    """The objective of weights for a support: the smallest one if these are all positive.

    The atoms are orthogonalised, since normal equations lose half of the digits. Weights that
    would be negative are zero, and so are those of atoms in the span of the previous ones.
    """
    num = atoms.shape[0]
    eps = jnp.finfo(atoms.dtype).eps
    # The rows of `basis` @ atoms are orthonormal, as in `jaxcoreset.solvers.nnls`.
    basis, directions = jnp.zeros((num, num), atoms.dtype), jnp.zeros_like(atoms)
    for i in range(num):
        row, combination = atoms[i], jnp.zeros(num, atoms.dtype).at[i].set(1)
        for _ in range(2):
            along = product(directions, row)
            row, combination = row - product(along, directions), combination - product(along, basis)
        norm = jnp.linalg.norm(row)
        inverse = jnp.where(norm > _INDEPENDENT * eps, divide(1, norm), 0)
        directions = directions.at[i].set(inverse * row)
        basis = basis.at[i].set(inverse * combination)
    weights, residual = jnp.zeros(num, atoms.dtype), target
    for _ in range(2):
        weights = jnp.maximum(weights + product(product(directions, residual), basis), 0)
        residual = target - product(weights, atoms)
    return jnp.vdot(residual, residual)
