"""Non-negative least squares for many small systems at once, on the device.

    min ‖y − Σ_i w_i a_i‖²   subject to   w ≥ 0

by the active-set method of Lawson and Hanson, "Solving Least Squares Problems" (1974), chapter 23:
let one atom enter the passive set, go towards the least-squares solution on that set, and where a
weight would become negative stop there, take its atom out, and go on. Two things differ from the
book. The atom that enters is the one with the largest correlation after all have been scaled to
norm one. And a step that does not lower the objective in the arithmetic at hand is undone and its
atom not tried again until another has entered, so the objective falls with every step, nothing
cycles, and a singular system ends like any other.

The passive set is carried as a matrix T, `ActiveSet.basis`, for which the rows of T A are
orthonormal and span the passive atoms. An atom enters by Gram–Schmidt, done twice, and leaves by a
reflection. Then TᵀT is the inverse of the Gram matrix, but the error of T grows with the condition
of A, where that of an inverse or a Cholesky factor of the Gram matrix grows with its square. Two
habits make float32 enough: the residual is formed anew from the weights in every step, and its part
within the span of the passive atoms, which is only the rounding of the weights, is projected out
before anything is correlated with it.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Bool, Float, Int

from jaxcoreset.solvers.problem import HIGHEST

# An atom may enter if its distance from the span of the passive ones is more than this many
# roundings of its norm: T A is orthonormal up to one rounding over that distance.
_INDEPENDENT = 100


class NNLSResult(eqx.Module):
    """What `nnls` found; under ``vmap``, arrays with the leading axes of the batch.

    Attributes:
        weights: shape (m,), not negative, 0 for atoms that are masked out.
        objective: ‖target − Σ w_i atoms_i‖².
        num_pivots: how many atoms were let in or tried, those of a warm start not counted.
        converged: whether it stopped because no atom is left that would lower the objective beyond
            rounding, or at `tol`, rather than by the limit on pivots.
    """

    weights: Float[Array, "*b m"]
    objective: Float[Array, "*b"]
    num_pivots: Int[Array, "*b"]
    converged: Bool[Array, "*b"]


class ActiveSet(eqx.Module):
    """A feasible point: non-negative weights on those of m atoms that are passive.

    Attributes:
        weights: 0 outside the passive set.
        passive: which atoms take part in the least-squares problem.
        basis: T, zero in the rows and columns of atoms that are not passive.
    """

    weights: Float[Array, " m"]
    passive: Bool[Array, " m"]
    basis: Float[Array, "m m"]


def empty_set(num_atoms: int, dtype: DTypeLike) -> ActiveSet:
    """No atom passive: the point zero."""
    return ActiveSet(
        jnp.zeros(num_atoms, dtype),
        jnp.zeros(num_atoms, bool),
        jnp.zeros((num_atoms, num_atoms), dtype),
    )


@jax.custom_batching.custom_vmap
def any_lane(flag: Bool[Array, ""]) -> Bool[Array, ""]:
    """The flag itself; under ``vmap``, whether it is set in any lane.

    As the condition of a ``while_loop`` it keeps ``vmap`` from copying the state of every lane in
    every iteration. The body of the loop must then leave a lane that has stopped as it is.
    """
    return flag


@any_lane.def_vmap
def _any_lane_batched(axis_size: int, in_batched: list[bool], flag: Array) -> tuple[Array, bool]:
    del axis_size
    return any_lane(jnp.any(flag) if in_batched[0] else flag), False


def product(left: Array, right: Array) -> Array:
    """Matrix or inner product at full precision on every device."""
    return jnp.matmul(left, right, precision=HIGHEST)


def pick(
    scores: Float[Array, " n"], floor: Float[Array, ""], slack: Float[Array, ""]
) -> tuple[Int[Array, ""], Bool[Array, ""]]:
    """The largest score, and the lowest index among equals.

    Args:
        scores: −inf where an atom may not be picked.
        floor: a score that is not above this is rounding.
        slack: scores this near to the largest are equal but for rounding.

    Returns:
        Its index, and whether there is any above the floor.
    """
    largest = jnp.max(scores)
    candidates = scores >= jnp.maximum(largest - slack, floor)
    return jnp.argmax(candidates).astype(jnp.int32), largest > floor


def rounding(residual_norm: Float[Array, ""], num_draws: int) -> tuple[Array, Array]:
    """The `floor` and the `slack` of `pick`, for correlations of unit atoms with a residual."""
    unit = jnp.finfo(residual_norm.dtype).eps * residual_norm
    return 0.2 * unit / num_draws**0.5, 8 * unit


def resolution(dtype: DTypeLike) -> float:
    """The relative error at which to stop, and the relative fall of the objective to call a step.

    At 64 roundings, 8e-6 in float32, the residual is as much rounding as it is residual.
    """
    return 64 * float(jnp.finfo(dtype).eps)


def _orthogonalise(
    atoms: Float[Array, "m s"], basis: Float[Array, "m m"], atom: Float[Array, " s"]
) -> tuple[Array, Array, Array, Array]:
    """Split a unit atom into its projection onto the passive atoms and the rest.

    Gram–Schmidt twice, and again for as long as the rest keeps shrinking.

    Returns:
        The projection's coefficients, the rest, the norm of the rest, and whether that is large
        enough for the atom to count as independent of the others.
    """
    smallest = _INDEPENDENT * jnp.finfo(atom.dtype).eps

    def subtract(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        coefficients, rest, norm, first, going = carry
        change = product(product(basis, product(atoms, rest)), basis)
        change = jnp.where(going, change, 0)
        rest = rest - product(change, atoms)
        new_norm = jnp.linalg.norm(rest)
        going = going & (new_norm > smallest) & (first | (new_norm < 0.5 * norm))
        return coefficients + change, rest, new_norm, ~going & first, going

    true, one = jnp.ones((), bool), jnp.ones((), atom.dtype)
    coefficients, rest, norm, _, _ = jax.lax.while_loop(
        lambda carry: any_lane(carry[-1]),
        subtract,
        (jnp.zeros(basis.shape[0], atom.dtype), atom, one, true, true),
    )
    return coefficients, rest, norm, norm > smallest


def _let_in(
    active: ActiveSet, slot: Int[Array, ""], coefficients: Array, norm: Array, enters: Array
) -> ActiveSet:
    """Make an atom passive at weight zero, if `enters`: its rest becomes a row of the basis."""
    here = jnp.arange(active.passive.shape[0]) == slot
    scale = 1 / jnp.where(enters, norm, 1)
    row = jnp.where(enters, scale * (here - coefficients), active.basis[slot])
    return ActiveSet(
        active.weights, active.passive | (here & enters), active.basis.at[slot].set(row)
    )


def _let_out(
    active: ActiveSet, slot: Int[Array, ""], ahead: Float[Array, " m"], leaves: Bool[Array, ""]
) -> tuple[ActiveSet, Array]:
    """Take an atom out of the passive set, if `leaves`.

    A reflection turns the basis so that only its row `slot` needs the atom; then that row goes.
    `ahead` are the residual's coordinates in the basis and turn with it.
    """
    here = jnp.arange(active.passive.shape[0]) == slot
    column = active.basis[:, slot]
    norm = jnp.linalg.norm(column)
    normal = column + here * jnp.where(column[slot] < 0, -norm, norm)
    squared = jnp.vdot(normal, normal)
    factor = jnp.where(leaves, 2, 0) / jnp.where(squared > 0, squared, 1)
    turned = active.basis - (factor * normal)[:, None] * product(normal, active.basis)
    keep = ~(here & leaves)
    kept = ActiveSet(
        jnp.where(keep, active.weights, 0),
        active.passive & keep,
        jnp.where(keep[:, None] & keep, turned, 0),
    )
    return kept, jnp.where(keep, ahead - factor * jnp.vdot(normal, ahead) * normal, 0)


def _descend(active: ActiveSet, ahead: Float[Array, " m"]) -> ActiveSet:
    """Go to the least-squares solution on the passive set, losing the atoms that block the way.

    Args:
        active: a feasible point.
        ahead: its residual's coordinates in the basis.
    """

    def blocking(active: ActiveSet, direction: Array) -> Array:
        return active.passive & (active.weights + direction <= 0)

    def advance(carry: tuple[ActiveSet, Array, Array]) -> tuple[ActiveSet, Array, Array]:
        active, ahead, direction = carry
        blocked = blocking(active, direction)
        tiny = jnp.finfo(direction.dtype).tiny
        fractions = jnp.where(blocked, active.weights / jnp.maximum(-direction, tiny), jnp.inf)
        slot = jnp.argmin(fractions)
        leaves = blocked[slot]
        fraction = jnp.where(leaves, jnp.minimum(fractions[slot], 1), 0)
        weights = jnp.maximum(active.weights + fraction * direction, 0)
        moved = ActiveSet(weights, active.passive, active.basis)
        active, ahead = _let_out(moved, slot, (1 - fraction) * ahead, leaves)
        return active, ahead, product(ahead, active.basis)

    active, _, direction = jax.lax.while_loop(
        lambda carry: any_lane(blocking(carry[0], carry[2]).any()),
        advance,
        (active, ahead, product(ahead, active.basis)),
    )
    weights = jnp.maximum(active.weights + direction, 0)
    return ActiveSet(weights, active.passive, active.basis)


def enter(
    atoms: Float[Array, "m s"],
    active: ActiveSet,
    slot: Int[Array, ""],
    residual: Float[Array, " s"],
) -> tuple[ActiveSet, Bool[Array, ""]]:
    """Let one atom into the passive set and go to the least-squares solution on it.

    Lawson and Hanson's steps 5 to 11. Four products with the atoms, and a few with an m × m matrix
    for each atom that leaves on the way.

    Args:
        atoms: rows of norm one; a row that is not passive may hold anything finite.
        active: the point before, a least-squares solution on its passive set.
        slot: the row that enters; not passive.
        residual: of the point before, as `settle` returns it.

    Returns:
        The point after, and whether the atom was independent enough of the others to enter.
    """
    coefficients, rest, norm, independent = _orthogonalise(atoms, active.basis, atoms[slot])
    active = _let_in(active, slot, coefficients, norm, independent)
    here = jnp.arange(active.passive.shape[0]) == slot
    ahead = here * jnp.vdot(rest, residual) / jnp.where(independent, norm, 1)
    return _descend(active, ahead), independent


def settle(
    atoms: Float[Array, "m s"], active: ActiveSet, target: Float[Array, " s"]
) -> tuple[ActiveSet, Float[Array, " s"], Float[Array, ""]]:
    """Mend the rounding of a least-squares solution by one step of iterative refinement.

    Args:
        atoms: rows of norm one.
        active: a least-squares solution on its passive set, but for rounding.
        target: the vector to be matched.

    Returns:
        The point with better weights; the residual of the exact solution, orthogonal to the passive
        atoms; and the objective of the weights as they were.
    """
    residual = target - product(active.weights, atoms)
    change = product(product(active.basis, product(atoms, residual)), active.basis)
    better = ActiveSet(jnp.maximum(active.weights + change, 0), active.passive, active.basis)
    return better, residual - product(change, atoms), jnp.vdot(residual, residual)


class _State(eqx.Module):
    active: ActiveSet
    residual: Float[Array, " s"]
    weights: Float[Array, " m"]
    objective: Float[Array, ""]
    refused: Bool[Array, " m"]
    num_pivots: Int[Array, ""]
    stopped: Bool[Array, ""]
    converged: Bool[Array, ""]


def nnls(
    atoms: ArrayLike,
    target: ArrayLike,
    *,
    warm_start: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    count: ArrayLike | None = None,
    max_pivots: int | None = None,
    tol: float | None = None,
) -> NNLSResult:
    """Non-negative weights whose sum of atoms is nearest to a target.

    Works under ``jit`` and ``vmap``; m is static, and `mask` or `count` say which of the m atoms
    there are. Atoms may repeat, be zero, or outnumber their entries. In float32 the objective is
    within 1e-3 of its smallest value wherever ‖target − Σ w_i atoms_i‖ is above 3e-5 ‖target‖, and
    within one or two per cent where atoms of no exact dependence are dependent to float32.

    Args:
        atoms: shape (m, S), one row per atom.
        target: shape (S,).
        warm_start: shape (m,), weights near the solution. Its positive entries are let in at once
            and without being asked for; the solution is the same, but for rounding.
        mask: shape (m,), the atoms that may be used; all by default.
        count: only the first so many atoms may be used; all by default.
        max_pivots: try at most so many atoms; 3 m + 10 by default.
        tol: the relative error ‖target − Σ w_i atoms_i‖ / ‖target‖ that is good enough to stop at;
            by default 64 roundings, which is 8e-6 in float32.

    Returns:
        An `NNLSResult`.

    Raises:
        ValueError: if a shape does not fit.
    """
    atoms, target = _checked(atoms, target)
    num_atoms, num_draws = atoms.shape
    dtype = atoms.dtype
    eligible = jnp.ones(num_atoms, bool)
    if mask is not None:
        eligible = eligible & _of_shape("mask", mask, (num_atoms,)).astype(bool)
    if count is not None:
        eligible = eligible & (jnp.arange(num_atoms) < _of_shape("count", count, ()))
    limit = 3 * num_atoms + 10 if max_pivots is None else max_pivots
    small = resolution(dtype) if tol is None else tol

    # In units in which atoms and target have norm one, any scale is as good as any other.
    norms, target_norm = _norms(atoms), _norms(target[None])[0]
    eligible = eligible & (norms > 0)
    atoms = atoms / jnp.where(norms > 0, norms, 1)[:, None]
    target = target / jnp.where(target_norm > 0, target_norm, 1)

    active = empty_set(num_atoms, dtype)
    if warm_start is not None:
        warm = _of_shape("warm_start", warm_start, (num_atoms,)).astype(dtype)
        warm = warm * norms / jnp.where(target_norm > 0, target_norm, 1)
        active = _warm(atoms, target, jnp.where(eligible & (warm > 0), warm, 0))
    settled, residual, objective = settle(atoms, active, target)
    state = _State(
        active=settled,
        residual=residual,
        weights=active.weights,
        objective=objective,
        refused=jnp.zeros(num_atoms, bool),
        num_pivots=jnp.zeros((), jnp.int32),
        stopped=jnp.zeros((), bool),
        converged=jnp.zeros((), bool),
    )

    def pivot(state: _State) -> _State:
        squared = jnp.vdot(state.residual, state.residual)
        floor, slack = rounding(jnp.sqrt(squared), num_draws)
        scores = jnp.where(
            eligible & ~state.active.passive & ~state.refused,
            product(atoms, state.residual),
            -jnp.inf,
        )
        slot, any_left = pick(scores, floor, slack)
        exhausted = ~any_left | (squared <= small**2)
        stopped = state.stopped | exhausted | (state.num_pivots >= limit)

        after, independent = enter(atoms, state.active, slot, state.residual)
        settled, residual, objective = settle(atoms, after, target)
        accepted = (
            ~stopped
            & independent
            & (jnp.vdot(residual, residual) < (1 - resolution(dtype)) * squared)
        )
        new = (settled, residual, after.weights, objective)
        old = (state.active, state.residual, state.weights, state.objective)
        active, residual, weights, objective = jax.tree.map(
            lambda new, old: jnp.where(accepted, new, old), new, old
        )
        return _State(
            active=active,
            residual=residual,
            weights=weights,
            objective=objective,
            refused=~accepted & (state.refused | (jnp.arange(num_atoms) == slot)),
            num_pivots=state.num_pivots + ~stopped,
            stopped=stopped,
            converged=jnp.where(state.stopped, state.converged, exhausted),
        )

    state = jax.lax.while_loop(lambda s: any_lane(~s.stopped), pivot, state)
    weights = state.weights * target_norm / jnp.where(norms > 0, norms, 1)
    return NNLSResult(weights, state.objective * target_norm**2, state.num_pivots, state.converged)


def _warm(
    atoms: Float[Array, "m s"], target: Float[Array, " s"], weights: Float[Array, " m"]
) -> ActiveSet:
    """The least-squares solution on the atoms with a weight, or on fewer if some would go below."""

    def add(carry: tuple[ActiveSet, Array]) -> tuple[ActiveSet, Array]:
        active, pending = carry
        slot = jnp.argmax(pending)
        coefficients, _, norm, independent = _orthogonalise(atoms, active.basis, atoms[slot])
        active = _let_in(active, slot, coefficients, norm, independent & pending[slot])
        return active, pending & (jnp.arange(pending.shape[0]) != slot)

    active, _ = jax.lax.while_loop(
        lambda carry: any_lane(carry[1].any()),
        add,
        (empty_set(weights.shape[0], weights.dtype), weights > 0),
    )
    weights = jnp.where(active.passive, weights, 0)
    ahead = product(active.basis, product(atoms, target - product(weights, atoms)))
    return _descend(ActiveSet(weights, active.passive, active.basis), ahead)


def _norms(rows: Float[Array, "m s"]) -> Float[Array, " m"]:
    """Norms that neither overflow nor underflow on the way."""
    largest = jnp.max(jnp.abs(rows), axis=1)
    scaled = rows / jnp.where(largest > 0, largest, 1)[:, None]
    return largest * jnp.linalg.norm(scaled, axis=1)


def _checked(atoms: ArrayLike, target: ArrayLike) -> tuple[Array, Array]:
    atoms = jnp.asarray(atoms)
    if not jnp.issubdtype(atoms.dtype, jnp.floating):
        atoms = atoms.astype(float)
    if atoms.ndim != 2 or 0 in atoms.shape:
        raise ValueError(
            f"atoms has shape {atoms.shape}; wanted (m, S), one row per atom and at least one of "
            "each. For a batch of systems use jax.vmap(nnls)."
        )
    return atoms, _of_shape("target", target, atoms.shape[1:]).astype(atoms.dtype)


def _of_shape(name: str, value: ArrayLike, shape: tuple[int, ...]) -> Array:
    array = jnp.asarray(value)
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}; wanted {shape}, to go with atoms.")
    return array
