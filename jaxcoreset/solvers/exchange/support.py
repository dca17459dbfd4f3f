"""The atoms in use, the candidates, and the move from one support to the next.

With unit atoms a_i, and P the atoms in use, T holds the coefficients of an orthonormal basis
Q = T A_P, so that TᵀT is the inverse of the Gram matrix, and V = Q Aᵀ holds the coordinates of all
candidates in it. V gives, for any atom i, its squared distance from the span, ρ_i = 1 − ‖V_i‖², and
its least-squares coefficients TᵀV_i. An atom leaves by a reflection of Q, T and V, and enters by
Gram–Schmidt, done twice, so that nothing is divided by a small pivot. Its row of V comes from a
pass over the candidates or, if there are few enough of them, from their Gram matrix and the other
rows of V.

Weights, residual r and the correlations c_i = ⟨a_i, r⟩ are updated from one support to the next by
T, Q and V. If a solution's predicted objective is the best of its size, its residual is computed
from its weights, and they are refined if the residual is longer than predicted. Every few moves
the weights are refined in any case, and the correlations are computed by a pass over the
candidates.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxcoreset.solvers.exchange.schedule import Move
from jaxcoreset.solvers.exchange.slot_matrix import SlotMatrix
from jaxcoreset.solvers.numerics import any_in_batch, first_true, product, resolution

# An atom may enter if its distance from the span is more than this many units of rounding.
_INDEPENDENT = 100
# If an atom is nearer to the span than this, its products with all candidates are computed again.
_FAR = 0.05


class Support(eqx.Module):
    """The atoms in use, by slot; rows and columns of free slots are zero.

    Attributes:
        positions: positions among the candidates; their number for an atom that is not among them.
        indices: row numbers among all atoms.
        active: the slots in use.
        size: their number; updated, since counting them would be one more kernel in every move.
        weights: a feasible point, from which Lawson and Hanson's line search starts.
        lstsq_weights: the least-squares weights, of any sign.
        residual: the residual of the least-squares weights, orthogonal to the span.
        atoms, basis, coefficients: A_P, Q and T, with T A_P = Q.
    """

    positions: Int[Array, " p"]
    indices: Int[Array, " p"]
    active: Bool[Array, " p"]
    size: Int[Array, ""]
    weights: Float[Array, " p"]
    lstsq_weights: Float[Array, " p"]
    residual: Float[Array, " s"]
    atoms: SlotMatrix
    basis: SlotMatrix
    coefficients: SlotMatrix


class Candidates(eqx.Module):
    """The atoms that may enter, and their coordinates with respect to the support.

    Attributes:
        indices: row numbers among all atoms.
        atoms: scaled to norm one, or zero.
        gram: their products with one another, or None if there are too many of them.
        usable: false for atoms of norm zero.
        used: whether the atom is in the support.
        refused: whether the atom entered and had to leave at once; cleared with the next progress.
        coordinates: V, in the basis of the support.
        distances: ρ, the squared distance from the span of the support.
        correlations: c, with the residual of the least-squares weights.
    """

    indices: Int[Array, " m"]
    atoms: Float[Array, "m s"]
    gram: Float[Array, "m m"] | None
    usable: Bool[Array, " m"]
    used: Bool[Array, " m"]
    refused: Bool[Array, " m"]
    coordinates: SlotMatrix
    distances: Float[Array, " m"]
    correlations: Float[Array, " m"]


class LeavingAtom(eqx.Module):
    """An atom in use that may leave, or several of them, with a leading axis.

    Attributes:
        slot: its slot j.
        inverse_gram: B_jj, with B = TᵀT.
        column: its column of T.
        shares: its least-squares coefficient in each candidate, the row j of Z = TᵀV.
    """

    slot: Int[Array, "*q"]
    inverse_gram: Float[Array, "*q"]
    column: Float[Array, "*q p"]
    shares: Float[Array, "*q m"]


class _Refinement(eqx.Module):
    """The state of `refine`.

    Attributes:
        weights, residual: the least-squares weights and their residual.
        objective: the best known value of the objective.
        replaces: whether the objective is replaced by that of the computed residual.
        is_first: whether the weights may still be refined.
        continues: whether to compute the residual (again), in any batch element.
    """

    weights: Float[Array, " p"]
    residual: Float[Array, " s"]
    objective: Float[Array, ""]
    replaces: Bool[Array, ""]
    is_first: Bool[Array, ""]
    continues: Bool[Array, ""]


def compute_residual(target: Float[Array, " s"], support: Support) -> Float[Array, " s"]:
    """The residual of the least-squares weights, computed from the atoms."""
    return target - support.atoms.combine(support.lstsq_weights, support.active)


def refinement_step(support: Support, residual: Float[Array, " s"]) -> Support:
    """Apply one step of iterative refinement to weights and residual.

    The residual's part in the span is removed from both, each by its own matrix: if rounding left
    such a part, atoms near the span would seem to lower the objective much.

    Args:
        support: the atoms in use.
        residual: the residual of the least-squares weights, from `compute_residual`.
    """
    ahead = support.basis.dot(residual, support.active)
    return dataclasses.replace(
        support,
        lstsq_weights=support.lstsq_weights + support.coefficients.combine(ahead, support.active),
        residual=residual - support.basis.combine(ahead, support.active),
    )


def refine(
    support: Support, target: Float[Array, " s"], known: Float[Array, ""], due: Bool[Array, ""]
) -> tuple[Support, Array]:
    """Recompute the residual, and refine the weights if their objective was underestimated.

    This is done if the predicted objective is below `known`, or if `due` is set; otherwise the
    support does not change and the objective is the predicted one.

    Args:
        support: the atoms in use.
        target: of norm one.
        known: an objective; if the predicted one is lower, it is checked by the residual.
        due: whether to refine the weights in any case.

    Returns:
        The support, with refined weights if that was necessary or due, and their objective.
    """
    predicted = jnp.sum(support.residual**2)
    promising = predicted < known

    # The first time the weights may be refined, and if they are, the residual is computed a second
    # time: with nearly dependent atoms T A_P is not exactly Q, and the refinement may have gained
    # less than predicted.
    def check(state: _Refinement) -> _Refinement:
        current = dataclasses.replace(support, lstsq_weights=state.weights, residual=state.residual)
        residual = compute_residual(target, current)
        objective = jnp.sum(residual**2)
        underestimated = objective > (1 + resolution(predicted.dtype)) * predicted
        refines = state.is_first & (due | (promising & underestimated))

        def better() -> tuple[Array, Array]:
            new = refinement_step(current, residual)
            return (
                jnp.where(refines, new.lstsq_weights, state.weights),
                jnp.where(refines, new.residual, state.residual),
            )

        weights, residual = jax.lax.cond(
            any_in_batch(refines), better, lambda: (state.weights, state.residual)
        )
        return _Refinement(
            weights=weights,
            residual=residual,
            objective=jnp.where(state.replaces, objective, state.objective),
            replaces=refines,
            is_first=jnp.zeros_like(state.is_first),
            continues=any_in_batch(refines),
        )

    first = _Refinement(
        weights=support.lstsq_weights,
        residual=support.residual,
        objective=predicted,
        replaces=promising,
        is_first=jnp.ones((), bool),
        continues=any_in_batch(promising | due),
    )
    last = jax.lax.while_loop(lambda state: state.continues, check, first)
    new = dataclasses.replace(support, lstsq_weights=last.weights, residual=last.residual)
    return new, last.objective


def recorrelate(candidates: Candidates, residual: Float[Array, " s"], due: Array) -> Candidates:
    """Compute the candidates' correlations by a pass over their atoms if `due` is set."""
    correlations = jax.lax.cond(
        any_in_batch(due),
        lambda: jnp.where(due, product(candidates.atoms, residual), candidates.correlations),
        lambda: candidates.correlations,
    )
    return dataclasses.replace(candidates, correlations=correlations)


def apply_move(
    support: Support,
    candidates: Candidates,
    leaving: LeavingAtom,
    *,
    move: Move,
    weights: Float[Array, " p"],
    position: Int[Array, ""],
    stays: Bool[Array, ""],
) -> tuple[Support, Candidates, Array]:
    """Remove one atom, insert one, do both, or remove all atoms, as `move` says.

    A reflection turns the basis so that only the row of the freed slot depends on the atom that
    leaves. That row is then available for the atom that enters.

    Args:
        support: the atoms in use.
        candidates: the atoms that may enter.
        leaving: the atom that may leave.
        move: what to do.
        weights: shape (p,), a feasible point.
        position: position among the candidates of the atom that enters.
        stays: whether nothing changes.

    Returns:
        The new support and candidates, and the index of the atom that entered, −1 if none did.
    """
    removes, inserts, restarts = move.removes, move.inserts, move.restarts
    # The slots that are freed and filled.
    slots = jnp.arange(support.active.shape[0])
    slot_out = leaving.slot
    slot_in = jnp.where(removes, slot_out, first_true(~support.active))
    freed_slot, filled_slot = (slots == slot_out) & removes, slots == slot_in

    # The direction that leaves the span: its coordinates in the basis, and those of the candidates.
    per_length = jnp.where(removes, 1 / jnp.sqrt(leaving.inverse_gram), 0)
    lost = per_length * leaving.column
    lost_coordinates = per_length * leaving.shares
    sign = jnp.where(removes, jnp.where(lost[slot_out] < 0, -1, 1), 0)
    # The normal of the reflection, and 2 over its square, since `lost` has length one.
    normal = lost + sign * freed_slot
    factor = jnp.where(removes, 1 / (1 + jnp.abs(lost[slot_out])), 0)

    # The direction that joins the span: Gram–Schmidt on the atom that enters, done twice.
    atom = candidates.atoms[position]
    first = candidates.coordinates.columns(position) - lost_coordinates[position] * lost
    first = jnp.where(inserts, first, 0)
    spanned = support.basis.combine(jnp.stack([lost, first]), support.active)
    rest = atom - spanned[1]
    second = support.basis.dot(rest, support.active)
    second = second - jnp.sum(lost * second) * lost
    rest = rest - support.basis.combine(second, support.active)
    norm = jnp.sqrt(jnp.sum(rest**2))
    enters = inserts & (norm > _INDEPENDENT * jnp.finfo(norm.dtype).eps)
    scale = 1 / jnp.where(enters, norm, 1)
    direction = rest * scale

    # The least-squares weights without the one atom and with the other.
    keep = ~freed_slot & ~restarts
    new = filled_slot & enters
    within = first + second
    new_coordinates = _coordinates_along(
        support, candidates, position, within, direction, scale, enters
    )
    mixed = support.coefficients.combine(jnp.stack([lost, within]), support.active)
    row = scale * (filled_slot - mixed[1])
    freed = per_length * support.lstsq_weights[slot_out]
    correlation = candidates.correlations[position] + freed * lost_coordinates[position]
    ahead = jnp.where(enters, correlation * scale, 0)
    lstsq_weights = support.lstsq_weights - freed * mixed[0] + ahead * row

    # Reflect the three matrices, write the new row, and clear the columns of freed slots.
    steps = factor * normal
    touched = support.active | new
    anything = any_in_batch(removes | enters | restarts)

    def reflect(matrix: SlotMatrix, lost_row: Array, row: Array, columns: Any = True) -> SlotMatrix:
        across = lost_row + sign * matrix.row(slot_out)

        def reflect_part(part: Array, step: Array, keeps: Array, is_new: Array) -> Array:
            reflected = jnp.where(keeps[:, None], part - step[:, None] * across, 0)
            return jnp.where(columns, jnp.where(is_new[:, None], row, reflected), 0)

        return matrix.map_parts(reflect_part, (steps, keep, new), touched, anything)

    basis = reflect(support.basis, spanned[0], direction)
    coefficients = reflect(support.coefficients, mixed[0], row, columns=keep | new)
    coordinates = reflect(candidates.coordinates, lost_coordinates, new_coordinates)

    active = (support.active & keep) | new
    lstsq_weights = jnp.where(stays, support.lstsq_weights, jnp.where(active, lstsq_weights, 0))
    # An exchange was chosen to keep all weights positive; any other new atom has weight zero.
    feasible = jnp.where(new | ~keep, 0, weights)
    feasible = jnp.where(removes & enters, jnp.maximum(lstsq_weights, 0), feasible)

    indices = jnp.arange(candidates.indices.shape[0])
    left = (indices == support.positions[slot_out]) & removes
    is_position = indices == position
    distances = candidates.distances + lost_coordinates**2
    distances = distances - jnp.where(enters, new_coordinates**2, 0)
    correlations = candidates.correlations + freed * lost_coordinates - ahead * new_coordinates
    return (
        Support(
            positions=jnp.where(new, position, support.positions),
            indices=jnp.where(new, candidates.indices[position], support.indices),
            active=active,
            size=jnp.where(restarts, 0, support.size - removes + enters),
            weights=jnp.where(stays, support.weights, feasible),
            lstsq_weights=lstsq_weights,
            residual=support.residual + freed * spanned[0] - ahead * direction,
            atoms=support.atoms.put(slot_in, atom, enters),
            basis=basis,
            coefficients=coefficients,
        ),
        dataclasses.replace(
            candidates,
            used=((candidates.used & ~left) | (is_position & enters)) & ~restarts,
            refused=(candidates.refused | (is_position & inserts & ~enters)) & ~restarts,
            coordinates=coordinates,
            distances=jnp.where(restarts, 1, distances),
            correlations=correlations,
        ),
        jnp.where(enters, candidates.indices[position], -1).astype(jnp.int32),
    )


def _coordinates_along(
    support: Support,
    candidates: Candidates,
    position: Int[Array, ""],
    within: Float[Array, " p"],
    direction: Float[Array, " s"],
    scale: Float[Array, ""],
    enters: Bool[Array, ""],
) -> Float[Array, " m"]:
    """The candidates' coordinates in a direction that joins the basis, or zeros if none does.

    Args:
        support: the atoms in use.
        candidates: the atoms that may enter.
        position: position of the candidate that gives the direction, without its part in the span.
        within: shape (p,), the coordinates of that part.
        direction: shape (S,), of norm one.
        scale: the reciprocal norm of the candidate's part outside the span.
        enters: whether the direction joins the basis.
    """

    def zeros() -> Array:
        return jnp.zeros_like(candidates.distances)

    def by_pass() -> Array:
        return product(candidates.atoms, direction)

    if candidates.gram is None:
        return jax.lax.cond(any_in_batch(enters), by_pass, zeros)
    gram = candidates.gram

    def by_gram() -> Array:
        spanned = candidates.coordinates.combine(within, support.active)
        return (gram[position] - spanned) * scale

    # Near the span, the difference of two products has lost its digits.
    is_near = any_in_batch(enters & (scale > 1 / _FAR))
    how = jnp.where(is_near, 2, any_in_batch(enters).astype(jnp.int32))
    return jax.lax.switch(how, [zeros, by_gram, by_pass])


def empty_support(num_slots: int, target: Float[Array, " s"], in_parts: bool) -> Support:
    """No atom in use; `in_parts` as in `SlotMatrix.of`."""
    num_draws, dtype = target.shape[0], target.dtype
    return Support(
        positions=jnp.zeros(num_slots, jnp.int32),
        indices=jnp.zeros(num_slots, jnp.int32),
        active=jnp.zeros(num_slots, bool),
        size=jnp.zeros((), jnp.int32),
        weights=jnp.zeros(num_slots, dtype),
        lstsq_weights=jnp.zeros(num_slots, dtype),
        residual=target,
        atoms=SlotMatrix.of(jnp.zeros((num_slots, num_draws), dtype), in_parts),
        basis=SlotMatrix.of(jnp.zeros((num_slots, num_draws), dtype), in_parts),
        coefficients=SlotMatrix.of(jnp.zeros((num_slots, num_slots), dtype), in_parts),
    )


def compact(support: Support) -> Support:
    """Move the atoms into the first slots."""
    order = jnp.argsort(~support.active, stable=True)
    coefficients = support.coefficients
    return dataclasses.replace(
        support,
        positions=support.positions[order],
        indices=support.indices[order],
        active=support.active[order],
        weights=support.weights[order],
        lstsq_weights=support.lstsq_weights[order],
        atoms=support.atoms.replace(support.atoms.whole()[order]),
        basis=support.basis.replace(support.basis.whole()[order]),
        coefficients=coefficients.replace(coefficients.whole()[order][:, order]),
    )
