"""Exchange pursuit for large sizes: many atoms enter and leave in one move.

A move of a single atom reads every matrix of the support once, so that a path to a thousand rows
reads them thousands of times. Here a move

- adds a block of atoms, chosen one by one among the candidates with the largest correlations by
  orthogonal least squares, which needs the candidates' Gram matrix outside the span only;
- solves for all weights by a Cholesky factor of the support's Gram matrix;
- removes the least important atoms one by one, by the inverse Gram matrix of a few of them
  (backward elimination), until the size is the one that is due;
- solves again without the atoms whose weights are negative, until there are none.

As with single atoms, the size first grows beyond k and then shrinks again, and a move at one size
is repeated, with a block half as large, while it lowers the objective. Sizes are visited in steps
of six per cent. The weights of a recorded solution are the least-squares weights on its support,
and all positive.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxcoreset.solvers.exchange.path import Path, RunResult
from jaxcoreset.solvers.exchange.schedule import improves
from jaxcoreset.solvers.numerics import divide, product, resolution, rounding
from jaxcoreset.solvers.problem import CoresetProblem

# The atoms that enter in a move: a fraction of the size, but half of it up to the first number of
# atoms, and the second number in any case.
_BLOCK, _HALF, _MIN_BLOCK = 0.2, 64, 8
# The number of candidates, and of atoms that may leave, for each atom of the largest block.
_CANDIDATES, _LEAVING = 4, 2
# On the way down, the relative step from one size to the next, and the maximum number of moves at
# one size.
_STEP, _MAX_ROUNDS = 0.06, 3
# Growth ends at the first move that lowers the objective by less than this fraction.
_MIN_GROWTH_GAIN = 1e-3
_MAX_MOVES = 400
# The number of steps of iterative refinement of the weights.
_REFINEMENTS = 2
# A candidate may enter if its squared distance from the span is more than this many units of
# rounding, which is more than the diagonal of the Gram matrix is raised by.
_INDEPENDENT = 1000


class _State(eqx.Module):
    """The state of a run; an atom is in use if its weight is positive.

    Attributes:
        indices, weights, atoms: by slot; the atoms have norm one.
        gram: the products of the atoms by slot.
        inverse: T, where TᵀT is the inverse Gram matrix of the atoms in use; zero in free slots.
        objective: that of the weights.
        path: the best solution of each size.
        growing: whether the size has not passed the top yet.
        goal: the size that is due on the way down.
        num_rounds: the number of moves at this size.
        num_moves: the number of moves.
        stopped: whether the run has ended.
    """

    indices: Int[Array, " p"]
    weights: Float[Array, " p"]
    atoms: Float[Array, "p s"]
    gram: Float[Array, "p p"]
    inverse: Float[Array, "p p"]
    objective: Float[Array, ""]
    path: Path
    growing: Bool[Array, ""]
    goal: Int[Array, ""]
    num_rounds: Int[Array, ""]
    num_moves: Int[Array, ""]
    stopped: Bool[Array, ""]


def pursue_in_blocks(
    problem: CoresetProblem,
    k: Int[Array, ""],
    bottom: Int[Array, ""],
    top: Int[Array, ""],
    *,
    max_k: int,
    max_top: int,
    min_gain: float,
    exchanges: bool,
) -> RunResult:
    """Grow to `top` atoms and shrink to `bottom`; do nothing if that is above k.

    Args:
        problem: the problem.
        k: the largest size whose solution is needed.
        bottom: the smallest.
        top: the size to grow to.
        max_k: a static bound of `k`.
        max_top: a static bound of `top`.
        min_gain: a move at one size is repeated while it lowers the objective by this fraction.
        exchanges: whether atoms enter on the way down.
    """
    n, dtype = problem.num_data, problem.target.dtype
    block = min(n, int(max(_BLOCK * max_top, min(max(max_top // 2, _MIN_BLOCK), _HALF))))
    num_slots = max_top + block
    target_norm, scale = jnp.linalg.norm(problem.target), problem.scales()
    target = divide(problem.target, target_norm)
    zero = jnp.zeros((), jnp.int32)
    state = _State(
        indices=jnp.zeros(num_slots, jnp.int32),
        weights=jnp.zeros(num_slots, dtype),
        atoms=jnp.zeros((num_slots, problem.num_draws), dtype),
        gram=jnp.zeros((num_slots, num_slots), dtype),
        inverse=jnp.zeros((num_slots, num_slots), dtype),
        objective=jnp.ones((), dtype),
        path=Path.empty(max_k, num_slots, dtype),
        growing=jnp.ones((), bool),
        goal=top,
        num_rounds=zero,
        num_moves=zero,
        stopped=(target_norm == 0) | (bottom > k),
    )

    def move(state: _State) -> _State:
        growing, size = state.growing, _count(state.weights > 0)
        base = jnp.where(growing, size, state.goal)
        # Each further move at a size adds half as many atoms: a small block finds other exchanges.
        num_added = _block_size(base).astype(jnp.int32) >> state.num_rounds
        num_added = jnp.where(growing, jnp.minimum(num_added, top - size), num_added)
        num_added = jnp.minimum(num_added, block) * (growing | exchanges)
        # If the atoms nearly span the space of the draws, rounding decides their weights.
        num_added = jnp.minimum(num_added, jnp.maximum(problem.num_draws - size + 1, 0) // 2)

        # Add a block of atoms, remove the least important ones, and solve for all weights.
        residual = target - product(state.weights, state.atoms)
        indices, atoms, gram, active = _add(problem, scale, state, residual, num_added, block)
        correlations = product(atoms, target)
        active = _remove(gram, correlations, active, state.goal, _LEAVING * block)
        weights, inverse, objective = _solve(atoms, gram, target, correlations, active)

        # Keep the result if it is better, or the first one of a smaller size.
        gained = objective < (1 - _MIN_GROWTH_GAIN) * state.objective
        first = ~growing & (state.num_rounds == 0)
        accepted = first | jnp.where(growing, gained, improves(objective, state.objective))
        weights = jnp.where(accepted, weights, state.weights)
        size = _count(weights > 0)
        eligible = accepted & (size <= k) & (size > 0)
        path = state.path.record(size, indices, weights, objective, eligible)

        # Choose the next size.
        grows = growing & accepted & (size < top) & (objective > resolution(dtype) ** 2)
        num_rounds = jnp.where(growing, 0, state.num_rounds + 1)
        better = first | (objective < (1 - min_gain) * state.objective)
        repeats = ~growing & accepted & better & exchanges & (num_rounds < _MAX_ROUNDS)
        current = jnp.where(growing, size, jnp.minimum(size, state.goal))
        smaller = jnp.minimum(((1 - _STEP) * current).astype(jnp.int32), current - 1)
        smaller = jnp.maximum(smaller, jnp.where(current > k, k, bottom))
        num_moves = state.num_moves + 1
        return _State(
            indices=jnp.where(accepted, indices, state.indices),
            weights=weights,
            atoms=atoms,
            gram=gram,
            inverse=jnp.where(accepted, inverse, state.inverse),
            objective=jnp.where(accepted, objective, state.objective),
            path=path,
            growing=grows,
            goal=jnp.where(grows | repeats, state.goal, smaller),
            num_rounds=jnp.where(repeats, num_rounds, 0),
            num_moves=num_moves,
            stopped=(~grows & ~repeats & (current <= bottom)) | (num_moves >= _MAX_MOVES),
        )

    state = jax.lax.while_loop(lambda state: ~state.stopped, move, state)
    return RunResult(state.path, scale, state.num_moves, state.num_moves < _MAX_MOVES)


def _block_size(size: Int[Array, ""]) -> Array:
    """The number of atoms that enter at a size."""
    return jnp.maximum(_BLOCK * size, jnp.clip(size // 2, _MIN_BLOCK, _HALF))


def _count(flags: Bool[Array, " p"]) -> Int[Array, ""]:
    return jnp.sum(flags, dtype=jnp.int32)


def _factor(gram: Float[Array, "p p"], active: Bool[Array, " p"]) -> Float[Array, "p p"]:
    """A Cholesky factor of the Gram matrix of the atoms in use, with ones for free slots.

    The diagonal is raised by some units of rounding, and by more if that is not enough.
    """
    both = active & active[:, None]
    masked = jnp.where(both, gram, jnp.eye(len(active), dtype=gram.dtype))

    def factor(added: Array) -> Array:
        return jnp.linalg.cholesky(masked + jnp.diag(added * active), symmetrize_input=False)

    def again(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        return factor(10 * carry[1]), 10 * carry[1]

    def failed(carry: tuple[Array, Array]) -> Array:
        return ~jnp.isfinite(carry[0]).all() & (carry[1] < 1)

    added = jnp.asarray(resolution(gram.dtype), gram.dtype)
    return jax.lax.while_loop(failed, again, (factor(added), added))[0]


def _inverse_factor(gram: Float[Array, "p p"], active: Bool[Array, " p"]) -> Float[Array, "p p"]:
    """T with TᵀT the inverse Gram matrix of the atoms in use, and zeros for free slots."""
    identity = jnp.diag(active.astype(gram.dtype))
    return jax.scipy.linalg.solve_triangular(_factor(gram, active), identity, lower=True)


def _add(
    problem: CoresetProblem,
    scale: Float[Array, " n"],
    state: _State,
    residual: Float[Array, " s"],
    num_added: Int[Array, ""],
    block: int,
) -> tuple[Array, Array, Array, Array]:
    """Put up to `num_added` atoms into free slots.

    Returns:
        Indices, atoms and Gram matrix by slot, and the slots in use.
    """
    n, active = problem.num_data, state.weights > 0
    scores = problem.correlate(residual) * scale
    scores = scores.at[jnp.where(active, state.indices, n)].set(-jnp.inf, mode="drop")
    scores, candidates = jax.lax.top_k(scores, min(n, _CANDIDATES * block))
    new_atoms = problem.gather(candidates) * scale[candidates, None]
    within = product(state.inverse, product(state.atoms, new_atoms.T))
    outside = product(new_atoms, new_atoms.T) - product(within.T, within)
    floor, _ = rounding(jnp.linalg.norm(residual), problem.num_draws)
    chosen, is_new = _pursue(outside, scores, candidates, num_added, block, floor)

    slots = jax.lax.top_k(jnp.where(active, 0.0, 1.0), block)[1]
    new_atoms = new_atoms[chosen]
    atoms = state.atoms.at[slots].set(new_atoms)
    products = product(new_atoms, atoms.T)
    gram = state.gram.at[slots].set(products).at[:, slots].set(products.T)
    indices = state.indices.at[slots].set(candidates[chosen].astype(jnp.int32))
    return indices, atoms, gram, active.at[slots].set(is_new)


def _pursue(
    gram: Float[Array, "m m"],
    correlations: Float[Array, " m"],
    candidates: Int[Array, " m"],
    num: Int[Array, ""],
    most: int,
    floor: Float[Array, ""],
) -> tuple[Int[Array, " b"], Bool[Array, " b"]]:
    """Choose `num` candidates by orthogonal least squares, given their products outside the span.

    Returns:
        Positions of `most` candidates, and which of these were chosen.
    """
    independent = _INDEPENDENT * float(jnp.finfo(gram.dtype).eps)

    def step(carry: tuple) -> tuple:
        i, correlations, distances, rows, chosen, free, _ = carry
        useful = free & (correlations > floor) & (distances > independent)
        gains = jnp.where(useful, correlations**2 / jnp.where(useful, distances, 1), 0)
        largest = jnp.max(gains)
        is_best = gains >= (1 - resolution(gains.dtype)) * largest
        best = jnp.argmin(jnp.where(is_best, candidates, jnp.iinfo(jnp.int32).max))
        best = best.astype(jnp.int32)
        row = (gram[best] - product(rows[:, best], rows)) * jax.lax.rsqrt(
            jnp.maximum(distances[best], independent)
        )
        ahead = correlations[best] * jax.lax.rsqrt(jnp.maximum(distances[best], independent))
        return (
            i + 1,
            correlations - ahead * row,
            distances - row**2,
            rows.at[i].set(row),
            chosen.at[i].set(jnp.where(largest > 0, best, -1)),
            free.at[best].set(False),
            largest > 0,
        )

    start = (
        jnp.zeros((), jnp.int32),
        correlations,
        jnp.diagonal(gram),
        jnp.zeros((most, len(gram)), gram.dtype),
        jnp.full(most, -1, jnp.int32),
        jnp.ones(len(gram), bool),
        jnp.ones((), bool),
    )
    chosen = jax.lax.while_loop(lambda carry: (carry[0] < num) & carry[-1], step, start)[4]
    return jnp.maximum(chosen, 0), chosen >= 0


def _remove(
    gram: Float[Array, "p p"],
    correlations: Float[Array, " p"],
    active: Bool[Array, " p"],
    goal: Int[Array, ""],
    most: int,
) -> Bool[Array, " p"]:
    """The slots that stay in use if the least important atoms leave, one by one, down to a size.

    Atoms of negative weight leave first. The removal of atom j raises the objective by w_j²/B_jj,
    where B is the inverse Gram matrix, and changes weights and B by multiples of the column B_j.
    Only `most` atoms may leave.
    """
    inverse = _inverse_factor(gram, active)
    weights = product(product(inverse, correlations), inverse)
    costs = jnp.where(weights > 0, divide(weights**2, jnp.sum(inverse**2, axis=0)), -1)
    few = jax.lax.top_k(jnp.where(active, -costs, -jnp.inf), min(most, len(active)))[1]
    columns = inverse[:, few]

    def step(carry: tuple) -> tuple:
        num, weights, matrix, stays = carry
        variances = jnp.diagonal(matrix)
        costs = jnp.where(weights > 0, divide(weights**2, variances), -1)
        least = jnp.argmin(jnp.where(stays, costs, jnp.inf))
        column = divide(matrix[least], variances[least])
        return (
            num - 1,
            weights - weights[least] * column,
            matrix - column[:, None] * matrix[least],
            stays.at[least].set(False),
        )

    start = _count(active), weights[few], product(columns.T, columns), active[few]
    final = jax.lax.while_loop(lambda carry: (carry[0] > goal) & carry[3].any(), step, start)
    return active.at[few].set(final[3])


def _solve(
    atoms: Float[Array, "p s"],
    gram: Float[Array, "p p"],
    target: Float[Array, " s"],
    correlations: Float[Array, " p"],
    active: Bool[Array, " p"],
) -> tuple[Float[Array, " p"], Float[Array, "p p"], Float[Array, ""]]:
    """Least-squares weights without the atoms of negative weight, T for them, and the objective."""

    def solve(carry: tuple) -> tuple:
        active, weights, _ = carry
        active = active & (weights > 0)
        inverse = _inverse_factor(gram, active)
        weights = product(product(inverse, correlations), inverse)
        for _ in range(_REFINEMENTS):
            ahead = product(atoms, target - product(weights, atoms))
            weights = weights + product(product(inverse, ahead), inverse)
        return active, weights, inverse

    def has_negative(carry: tuple) -> Array:
        active, weights, _ = carry
        return (active & ~(weights > 0)).any()

    first = solve((active, jnp.ones_like(correlations), gram))
    _, weights, inverse = jax.lax.while_loop(has_negative, solve, first)
    return weights, inverse, jnp.sum((target - product(weights, atoms)) ** 2)
