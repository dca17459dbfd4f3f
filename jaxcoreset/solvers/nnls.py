"""Non-negative least squares for many small systems at once, on the device.

    min ‖y − Σ_i w_i a_i‖²   subject to   w ≥ 0

by the active-set method of Lawson and Hanson, "Solving Least Squares Problems" (1974), chapter 23:
one atom enters the passive set, and the weights move towards the least-squares solution on that
set. Where a weight would become negative, the move stops, its atom leaves, and the move continues.
Two things differ from the book. The atom that enters is the one with the largest correlation after
all atoms have been scaled to norm one. And a step that does not lower the objective in the given
precision is undone, and its atom is not tried again until another atom has entered. So every step
lowers the objective, nothing cycles, and a singular system ends like any other.

The passive set is represented by a matrix T, `ActiveSet.basis`: the rows of T A are orthonormal and
span the passive atoms. An atom enters by Gram–Schmidt, done twice, and leaves by a reflection. TᵀT
is the inverse of the Gram matrix, but the error of T grows with the condition number of A, while
that of an inverse or a Cholesky factor of the Gram matrix grows with its square. Two measures make
float32 enough: every step computes the residual from the weights, and projects out its part within
the span of the passive atoms, which is only the rounding of the weights, before atoms are
correlated with it.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Bool, Float, Int

from jaxcoreset.solvers.arguments import as_float
from jaxcoreset.solvers.numerics import (
    any_in_batch,
    divide,
    pick_largest,
    product,
    resolution,
    rounding,
    tree_where,
)

# An atom may enter if its distance from the span of the passive atoms is more than this many units
# of rounding of its norm: T A is orthonormal up to one unit of rounding over that distance.
_INDEPENDENT = 100


class NNLSResult(eqx.Module):
    """The result of `nnls`; under ``vmap``, the arrays have the leading axes of the batch.

    Attributes:
        weights: shape (m,), not negative, 0 for atoms that are masked out.
        objective: ‖target − Σ w_i atoms_i‖².
        num_pivots: the number of atoms that entered or were tried, without those of a warm start.
        converged: whether it stopped because no atom would lower the objective by more than
            rounding, or at `tol`, rather than at the limit on pivots.
    """

    weights: Float[Array, "*b m"]
    objective: Float[Array, "*b"]
    num_pivots: Int[Array, "*b"]
    converged: Bool[Array, "*b"]


class ActiveSet(eqx.Module):
    """A feasible point: non-negative weights on the passive ones among m atoms.

    Attributes:
        weights: 0 outside the passive set.
        passive: the atoms that take part in the least-squares problem.
        basis: T, zero in the rows and columns of atoms that are not passive.
    """

    weights: Float[Array, " m"]
    passive: Bool[Array, " m"]
    basis: Float[Array, "m m"]


def empty_set(num_atoms: int, dtype: DTypeLike) -> ActiveSet:
    """The point zero, without passive atoms."""
    return ActiveSet(
        jnp.zeros(num_atoms, dtype),
        jnp.zeros(num_atoms, bool),
        jnp.zeros((num_atoms, num_atoms), dtype),
    )


def _orthogonalise(
    atoms: Float[Array, "m s"], basis: Float[Array, "m m"], atom: Float[Array, " s"]
) -> tuple[Array, Array, Array, Array]:
    """Split a unit atom into its projection onto the passive atoms and a remainder.

    Gram–Schmidt is done twice, and again for as long as the remainder keeps shrinking.

    Returns:
        The projection's coefficients, the remainder, its norm, and whether that is large enough for
        the atom to count as independent of the passive atoms.
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
        lambda carry: any_in_batch(carry[-1]),
        subtract,
        (jnp.zeros(basis.shape[0], atom.dtype), atom, one, true, true),
    )
    return coefficients, rest, norm, norm > smallest


def _add(
    active: ActiveSet, slot: Int[Array, ""], coefficients: Array, norm: Array, enters: Array
) -> ActiveSet:
    """Make an atom passive at weight zero if `enters`; its remainder becomes a row of the basis."""
    here = jnp.arange(active.passive.shape[0]) == slot
    scale = 1 / jnp.where(enters, norm, 1)
    row = jnp.where(enters, scale * (here - coefficients), active.basis[slot])
    return ActiveSet(
        active.weights, active.passive | (here & enters), active.basis.at[slot].set(row)
    )


def _remove(
    active: ActiveSet, slot: Int[Array, ""], ahead: Float[Array, " m"], leaves: Bool[Array, ""]
) -> tuple[ActiveSet, Array]:
    """Remove an atom from the passive set if `leaves`.

    A reflection turns the basis so that only its row `slot` depends on the atom; that row is then
    deleted. `ahead`, the residual's coordinates in the basis, turns with it.
    """
    here = jnp.arange(active.passive.shape[0]) == slot
    column = active.basis[:, slot]
    norm = jnp.linalg.norm(column)
    normal = column + here * jnp.where(column[slot] < 0, -norm, norm)
    factor = divide(jnp.where(leaves, 2, 0), jnp.vdot(normal, normal))
    turned = active.basis - (factor * normal)[:, None] * product(normal, active.basis)
    keep = ~(here & leaves)
    kept = ActiveSet(
        jnp.where(keep, active.weights, 0),
        active.passive & keep,
        jnp.where(keep[:, None] & keep, turned, 0),
    )
    return kept, jnp.where(keep, ahead - factor * jnp.vdot(normal, ahead) * normal, 0)


def _descend(active: ActiveSet, ahead: Float[Array, " m"]) -> ActiveSet:
    """Move to the least-squares solution on the passive set, and remove the atoms that block it.

    Args:
        active: a feasible point.
        ahead: its residual's coordinates in the basis.
    """

    def blocking(active: ActiveSet, direction: Array) -> Array:
        return active.passive & (active.weights <= -direction)

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
        active, ahead = _remove(moved, slot, (1 - fraction) * ahead, leaves)
        return active, ahead, product(ahead, active.basis)

    active, _, direction = jax.lax.while_loop(
        lambda carry: any_in_batch(blocking(carry[0], carry[2]).any()),
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
    """Add one atom to the passive set and move to the least-squares solution on it.

    Lawson and Hanson's steps 5 to 11. It takes four products with the atoms, and a few with an
    m × m matrix for each atom that leaves.

    Args:
        atoms: rows of norm one; a row that is not passive may hold anything finite.
        active: the point before, a least-squares solution on its passive set.
        slot: the row that enters; not passive.
        residual: the residual of the point before, as `refine_weights` returns it.

    Returns:
        The point after, and whether the atom was independent enough of the passive atoms to enter.
    """
    coefficients, rest, norm, independent = _orthogonalise(atoms, active.basis, atoms[slot])
    active = _add(active, slot, coefficients, norm, independent)
    here = jnp.arange(active.passive.shape[0]) == slot
    ahead = here * jnp.vdot(rest, residual) / jnp.where(independent, norm, 1)
    return _descend(active, ahead), independent


def refine_weights(
    atoms: Float[Array, "m s"], active: ActiveSet, target: Float[Array, " s"]
) -> tuple[ActiveSet, Float[Array, " s"], Float[Array, ""]]:
    """Correct the rounding of a least-squares solution by one step of iterative refinement.

    Args:
        atoms: rows of norm one.
        active: a least-squares solution on its passive set, up to rounding.
        target: the vector to match.

    Returns:
        The point with refined weights; the residual of the exact solution, orthogonal to the
        passive atoms; and the objective of the weights before the refinement.
    """
    residual = target - product(active.weights, atoms)
    change = product(product(active.basis, product(atoms, residual)), active.basis)
    better = ActiveSet(jnp.maximum(active.weights + change, 0), active.passive, active.basis)
    return better, residual - product(change, atoms), jnp.vdot(residual, residual)


class _PivotState(eqx.Module):
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
    """Find the non-negative weights whose weighted sum of atoms is nearest to a target.

    Works under ``jit`` and ``vmap``; m is static, and `mask` or `count` select among the m atoms.
    Atoms may repeat, be zero, or outnumber their entries. In float32 the objective is within a
    factor 1 + 1e-3 of the minimum wherever ‖target − Σ w_i atoms_i‖ is above 3e-5 ‖target‖, and
    within one or two per cent where atoms are linearly dependent in float32 only.

    Args:
        atoms: shape (m, S), one row per atom.
        target: shape (S,).
        warm_start: shape (m,), weights near the solution. Atoms with a positive entry enter at
            once, before any correlation is computed; the solution is the same up to rounding.
            Weights whose objective is above that of zero weights are ignored.
        mask: shape (m,), the atoms that may be used; all by default.
        count: the number of atoms that may be used, from the first on; all by default.
        max_pivots: the maximum number of atoms tried; 3 m + 10 by default.
        tol: the relative error ‖target − Σ w_i atoms_i‖ / ‖target‖ at which to stop; by default 64
            units of rounding, 8e-6 in float32.

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

    # Scale atoms and target to norm one, so that the units of the data do not matter.
    norms, target_norm = _norms(atoms), _norms(target[None])[0]
    eligible = eligible & (norms > 0)
    atoms = divide(atoms, norms[:, None])
    target = divide(target, target_norm)

    active = empty_set(num_atoms, dtype)
    if warm_start is not None:
        warm = _of_shape("warm_start", warm_start, (num_atoms,)).astype(dtype)
        warm = divide(warm * norms, target_norm)
        active = _warm(atoms, target, jnp.where(eligible & (warm > 0), warm, 0))
        # Large weights that nearly cancel leave their rounding in the solution.
        active, _, _ = refine_weights(atoms, active, target)
    refined, residual, objective = refine_weights(atoms, active, target)
    state = _PivotState(
        active=refined,
        residual=residual,
        weights=active.weights,
        objective=objective,
        refused=jnp.zeros(num_atoms, bool),
        num_pivots=jnp.zeros((), jnp.int32),
        stopped=jnp.zeros((), bool),
        converged=jnp.zeros((), bool),
    )

    def pivot(state: _PivotState) -> _PivotState:
        # Choose the atom that enters.
        squared = jnp.vdot(state.residual, state.residual)
        floor, slack = rounding(jnp.sqrt(squared), num_draws)
        scores = jnp.where(
            eligible & ~state.active.passive & ~state.refused,
            product(atoms, state.residual),
            -jnp.inf,
        )
        slot, any_left = pick_largest(scores, floor, slack)
        exhausted = ~any_left | (squared <= small**2)
        stopped = state.stopped | exhausted | (state.num_pivots >= limit)

        # Let it enter, and keep the result only if the objective decreases.
        after, independent = enter(atoms, state.active, slot, state.residual)
        refined, residual, objective = refine_weights(atoms, after, target)
        accepted = (
            ~stopped
            & independent
            & (jnp.vdot(residual, residual) < (1 - resolution(dtype)) * squared)
        )
        new = (refined, residual, after.weights, objective)
        old = (state.active, state.residual, state.weights, state.objective)
        active, residual, weights, objective = tree_where(accepted, new, old)
        return _PivotState(
            active=active,
            residual=residual,
            weights=weights,
            objective=objective,
            refused=~accepted & (state.refused | (jnp.arange(num_atoms) == slot)),
            num_pivots=state.num_pivots + ~stopped,
            stopped=stopped,
            converged=jnp.where(state.stopped, state.converged, exhausted),
        )

    state = jax.lax.while_loop(lambda s: any_in_batch(~s.stopped), pivot, state)
    weights = divide(state.weights * target_norm, norms)
    return NNLSResult(weights, state.objective * target_norm**2, state.num_pivots, state.converged)


def _warm(
    atoms: Float[Array, "m s"], target: Float[Array, " s"], weights: Float[Array, " m"]
) -> ActiveSet:
    """The least-squares solution on the atoms with a weight, without those that turn negative.

    The point zero if the weights are worse than none: their rounding would stay in the solution.
    """

    def add(carry: tuple[ActiveSet, Array]) -> tuple[ActiveSet, Array]:
        active, pending = carry
        slot = jnp.argmax(pending)
        coefficients, _, norm, independent = _orthogonalise(atoms, active.basis, atoms[slot])
        active = _add(active, slot, coefficients, norm, independent & pending[slot])
        return active, pending & (jnp.arange(pending.shape[0]) != slot)

    active, _ = jax.lax.while_loop(
        lambda carry: any_in_batch(carry[1].any()),
        add,
        (empty_set(weights.shape[0], weights.dtype), weights > 0),
    )
    weights = jnp.where(active.passive, weights, 0)
    residual = target - product(weights, atoms)
    # False also where the weights or their squares are not finite.
    is_near = jnp.vdot(residual, residual) <= jnp.vdot(target, target)
    start = ActiveSet(weights, active.passive, active.basis)
    start = jax.tree.map(lambda x: jnp.where(is_near, x, 0).astype(x.dtype), start)
    return _descend(start, product(start.basis, product(atoms, jnp.where(is_near, residual, 0))))


def _norms(rows: Float[Array, "m s"]) -> Float[Array, " m"]:
    """Norms of the rows, computed without overflow or underflow."""
    largest = jnp.max(jnp.abs(rows), axis=1)
    scaled = divide(rows, largest[:, None])
    return largest * jnp.linalg.norm(scaled, axis=1)


def _checked(atoms: ArrayLike, target: ArrayLike) -> tuple[Array, Array]:
    atoms = as_float(atoms)
    if atoms.ndim != 2 or 0 in atoms.shape:
        raise ValueError(
            f"atoms has shape {atoms.shape}; expected (m, S), one row per atom and at least one of "
            "each. For a batch of systems use jax.vmap(nnls)."
        )
    return atoms, _of_shape("target", target, atoms.shape[1:]).astype(atoms.dtype)


def _of_shape(name: str, value: ArrayLike, shape: tuple[int, ...]) -> Array:
    array = jnp.asarray(value)
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}; expected {shape}, to match atoms.")
    return array
