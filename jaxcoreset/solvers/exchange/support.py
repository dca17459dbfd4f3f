"""The atoms in use, the candidates, and a move from one support to the next.

With unit atoms a_i, and P those in use, T holds the coefficients of an orthonormal
basis Q = T A_P, so that TᵀT is the inverse of the Gram matrix, and V = Q Aᵀ the coordinates of all
candidates in it. From V come, for any atom i, its squared distance from the span, ρ_i = 1 − ‖V_i‖²,
and its least-squares coefficients TᵀV_i. An atom leaves by a reflection of Q, T and V, and enters
by Gram–Schmidt, done twice, so that nothing is divided by a small pivot. Its row of V comes from a
pass over the candidates or, where there are few enough of them, from their Gram matrix and the rows
of V that are there.

Weights, residual r and the correlations c_i = ⟨a_i, r⟩ follow from one support to the next by T, Q
and V. Where a solution promises to be the best of its size, its residual is formed anew from its
weights, and they are refined if it is longer than was predicted. Every few moves they are refined
in any case, and the correlations formed anew by a pass over the candidates.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxcoreset.solvers.exchange.slot_matrix import SlotMatrix
from jaxcoreset.solvers.exchange.tree_reductions import first_of, sum_of
from jaxcoreset.solvers.nnls import any_lane, product, resolution

# An atom may enter if its distance from the span of those in use is more than this many roundings.
_INDEPENDENT = 100
# An atom that is nearer to the span than this has its products with all candidates formed anew.
_FAR = 0.05


class Support(eqx.Module):
    """The atoms in use, by slot; rows and columns of slots that are free are zero.

    Attributes:
        places: index among the candidates; their number where an atom in use is not one of them.
        rows: index among all atoms.
        active: which slots are in use.
        size: how many; carried along, as counting them would be a kernel more in every move.
        weights: a feasible point, where Lawson and Hanson's line starts.
        aim: the least-squares weights, of any sign.
        residual: what they leave of the target, with nothing of it in the span.
        atoms, basis, coefficients: A_P, Q and T, with T A_P = Q.
    """

    places: Int[Array, " p"]
    rows: Int[Array, " p"]
    active: Bool[Array, " p"]
    size: Int[Array, ""]
    weights: Float[Array, " p"]
    aim: Float[Array, " p"]
    residual: Float[Array, " s"]
    atoms: SlotMatrix
    basis: SlotMatrix
    coefficients: SlotMatrix


class Candidates(eqx.Module):
    """The atoms that may enter, and what is known of them with respect to the support.

    Attributes:
        rows: index among all atoms.
        atoms: scaled to norm one, zero if they can't be.
        gram: their products with one another, or None where there are too many of them.
        usable: false for atoms of norm zero.
        used: whether it is in the support.
        refused: whether it came in and had to go at once; cleared with the next progress.
        coordinates: V, in the basis of the support.
        rest: ρ, the squared distance from its span.
        correlations: c, with the residual of the least-squares weights.
    """

    rows: Int[Array, " m"]
    atoms: Float[Array, "m s"]
    gram: Float[Array, "m m"] | None
    usable: Bool[Array, " m"]
    used: Bool[Array, " m"]
    refused: Bool[Array, " m"]
    coordinates: SlotMatrix
    rest: Float[Array, " m"]
    correlations: Float[Array, " m"]


class Leaving(eqx.Module):
    """An atom in use that may leave.

    Attributes:
        slot: its slot j.
        square: B_jj, with B = TᵀT.
        column: its column of T.
        along: what each of the candidates has of it, the row j of Z = TᵀV.
    """

    slot: Int[Array, ""]
    square: Float[Array, ""]
    column: Float[Array, " p"]
    along: Float[Array, " m"]


class _Turn(eqx.Module):
    """Where `settle` is.

    Attributes:
        aim, residual: weights, and what they leave.
        objective: what is known of it.
        counts: whether what the weights really leave is their objective.
        is_first: whether they may still be refined.
        goes_on: whether they are to be held to what they leave, in any lane.
    """

    aim: Float[Array, " p"]
    residual: Float[Array, " s"]
    objective: Float[Array, ""]
    counts: Bool[Array, ""]
    is_first: Bool[Array, ""]
    goes_on: Bool[Array, ""]


def left_of(target: Float[Array, " s"], support: Support) -> Float[Array, " s"]:
    """What the weights really leave of the target."""
    return target - support.atoms.combine(support.aim, support.active)


def refined(support: Support, residual: Float[Array, " s"]) -> Support:
    """The same with weights and residual refined.

    What the residual has in the span is taken out of both, each by its own matrix: what rounding
    leaves of it there would have atoms near the span look as if they had much to give.

    Args:
        support: the atoms in use.
        residual: what `aim` leaves of the target, formed anew.
    """
    ahead = support.basis.dot(residual, support.active)
    return eqx.tree_at(
        lambda s: (s.aim, s.residual),
        support,
        (
            support.aim + support.coefficients.combine(ahead, support.active),
            residual - support.basis.combine(ahead, support.active),
        ),
    )


def settle(
    support: Support, target: Float[Array, " s"], known: Float[Array, ""], due: Bool[Array, ""]
) -> tuple[Support, Array]:
    """Hold the weights to what they leave of the target, if that promises something or is due.

    Args:
        support: the atoms in use.
        target: of norm one.
        known: an objective; weights that promise a smaller one are held to it.
        due: whether the weights are to be refined in any case.

    Returns:
        The support, its weights refined where that was due or they leave more than was predicted,
        and their objective.
    """
    predicted = sum_of(support.residual**2)
    promising = predicted < known

    # At first they may be refined, and if they are, they are held to what they leave once more:
    # where atoms are nearly dependent T A_P is not quite Q, and what the refinement should have
    # gained may not be there.
    def hold(turn: _Turn) -> _Turn:
        held = eqx.tree_at(lambda s: (s.aim, s.residual), support, (turn.aim, turn.residual))
        residual = left_of(target, held)
        objective = sum_of(residual**2)
        much = objective > (1 + resolution(predicted.dtype)) * predicted
        refines = turn.is_first & (due | (promising & much))

        def better() -> tuple[Array, Array]:
            new = refined(held, residual)
            return (
                jnp.where(refines, new.aim, turn.aim),
                jnp.where(refines, new.residual, turn.residual),
            )

        aim, residual = jax.lax.cond(any_lane(refines), better, lambda: (turn.aim, turn.residual))
        return _Turn(
            aim=aim,
            residual=residual,
            objective=jnp.where(turn.counts, objective, turn.objective),
            counts=refines,
            is_first=jnp.zeros_like(turn.is_first),
            goes_on=any_lane(refines),
        )

    first = _Turn(
        aim=support.aim,
        residual=support.residual,
        objective=predicted,
        counts=promising,
        is_first=jnp.ones((), bool),
        goes_on=any_lane(promising | due),
    )
    last = jax.lax.while_loop(lambda turn: turn.goes_on, hold, first)
    new = eqx.tree_at(lambda s: (s.aim, s.residual), support, (last.aim, last.residual))
    return new, last.objective


def correlated(candidates: Candidates, residual: Float[Array, " s"], due: Array) -> Candidates:
    """The same with the correlations formed anew, by a pass over the candidates, if that is due."""
    correlations = jax.lax.cond(
        any_lane(due),
        lambda: jnp.where(due, product(candidates.atoms, residual), candidates.correlations),
        lambda: candidates.correlations,
    )
    return eqx.tree_at(lambda c: c.correlations, candidates, correlations)


def change(
    support: Support,
    candidates: Candidates,
    out: Leaving,
    *,
    weights: Float[Array, " p"],
    leaves: Bool[Array, ""],
    place: Int[Array, ""],
    enters: Bool[Array, ""],
    resets: Bool[Array, ""],
    stays: Bool[Array, ""],
) -> tuple[Support, Candidates, Array]:
    """Let one atom leave, one enter, or both, or start from nothing, as the flags say.

    A reflection turns the basis so that only the row of the slot that is freed needs the atom that
    leaves; that row is then free for the atom that enters.

    Args:
        support: the atoms in use.
        candidates: the atoms that may enter.
        out: the atom that may leave.
        weights: shape (p,), a feasible point.
        leaves: whether it leaves.
        place: index among the candidates of the atom that enters.
        enters: whether one enters.
        resets: whether all atoms leave.
        stays: whether nothing at all is to change.

    Returns:
        The new support and candidates, and the row of the atom that entered, −1 if none did.
    """
    slots = jnp.arange(support.active.shape[0])
    slot_out = out.slot
    slot_in = jnp.where(leaves, slot_out, first_of(~support.active))
    freed_slot, into = (slots == slot_out) & leaves, slots == slot_in

    per_length = jnp.where(leaves, 1 / jnp.sqrt(out.square), 0)
    lost = per_length * out.column
    gone = per_length * out.along
    sign = jnp.where(leaves, jnp.where(lost[slot_out] < 0, -1, 1), 0)
    # The normal of the reflection, and 2 over its square, as what is lost has length one.
    normal = lost + sign * freed_slot
    factor = jnp.where(leaves, 1 / (1 + jnp.abs(lost[slot_out])), 0)

    atom = candidates.atoms[place]
    first = jnp.where(enters, candidates.coordinates.columns(place) - gone[place] * lost, 0)
    spanned = support.basis.combine(jnp.stack([lost, first]), support.active)
    rest = atom - spanned[1]
    second = support.basis.dot(rest, support.active)
    second = second - sum_of(lost * second) * lost
    rest = rest - support.basis.combine(second, support.active)
    norm = jnp.sqrt(sum_of(rest**2))
    enters_really = enters & (norm > _INDEPENDENT * jnp.finfo(norm.dtype).eps)
    scale = 1 / jnp.where(enters_really, norm, 1)
    direction = rest * scale
    freed = per_length * support.aim[slot_out]
    correlation = candidates.correlations[place] + freed * gone[place]
    ahead = jnp.where(enters_really, correlation * scale, 0)

    keep = ~freed_slot & ~resets
    new = into & enters_really

    along = _along(support, candidates, place, first + second, direction, scale, enters_really)
    mixed = support.coefficients.combine(jnp.stack([lost, first + second]), support.active)
    row = scale * (into - mixed[1])
    aim = support.aim - freed * mixed[0] + ahead * row

    steps = factor * normal
    touched = support.active | new
    anything = any_lane(leaves | enters_really | resets)

    def turned(matrix: SlotMatrix, lost_row: Array, row: Array, columns: Any = True) -> SlotMatrix:
        """Reflect what belongs to the basis, put a row in where there is one, and free columns."""
        across = lost_row + sign * matrix.row(slot_out)

        def turn(part: Array, step: Array, keeps: Array, is_new: Array) -> Array:
            reflected = jnp.where(keeps[:, None], part - step[:, None] * across, 0)
            return jnp.where(columns, jnp.where(is_new[:, None], row, reflected), 0)

        return matrix.changed(turn, (steps, keep, new), touched, anything)

    basis = turned(support.basis, spanned[0], direction)
    coefficients = turned(support.coefficients, mixed[0], row, columns=keep | new)
    coordinates = turned(candidates.coordinates, gone, along)
    active = (support.active & keep) | new
    aim = jnp.where(stays, support.aim, jnp.where(active, aim, 0))
    # An exchange was chosen for leaving all weights positive; whatever else enters has weight zero.
    both = leaves & enters_really
    feasible = jnp.where(both, jnp.maximum(aim, 0), jnp.where(new | ~keep, 0, weights))

    indices = jnp.arange(candidates.rows.shape[0])
    left = (indices == support.places[slot_out]) & leaves
    entered = (indices == place) & enters_really
    distance = candidates.rest + gone**2 - jnp.where(enters_really, along**2, 0)
    return (
        Support(
            places=jnp.where(new, place, support.places),
            rows=jnp.where(new, candidates.rows[place], support.rows),
            active=active,
            size=jnp.where(resets, 0, support.size - leaves + enters_really),
            weights=jnp.where(stays, support.weights, feasible),
            aim=aim,
            residual=support.residual + freed * spanned[0] - ahead * direction,
            atoms=support.atoms.put(slot_in, atom, enters_really),
            basis=basis,
            coefficients=coefficients,
        ),
        Candidates(
            rows=candidates.rows,
            atoms=candidates.atoms,
            gram=candidates.gram,
            usable=candidates.usable,
            used=((candidates.used & ~left) | entered) & ~resets,
            refused=(candidates.refused | ((indices == place) & enters & ~enters_really)) & ~resets,
            coordinates=coordinates,
            rest=jnp.where(resets, 1, distance),
            correlations=candidates.correlations + freed * gone - ahead * along,
        ),
        jnp.where(enters_really, candidates.rows[place], -1).astype(jnp.int32),
    )


def _along(
    support: Support,
    candidates: Candidates,
    place: Int[Array, ""],
    within: Float[Array, " p"],
    direction: Float[Array, " s"],
    scale: Float[Array, ""],
    wanted: Bool[Array, ""],
) -> Float[Array, " m"]:
    """The candidates' coordinates in a direction that is to join the basis, or zeros.

    Args:
        support: the atoms in use.
        candidates: the atoms that may enter.
        place: which of them has the direction, once its part in the span is taken out.
        within: shape (p,), the coordinates of that part.
        direction: shape (S,), of norm one.
        scale: the reciprocal norm of what was left of the atom.
        wanted: whether the direction is to join the basis.
    """

    def nothing() -> Array:
        return jnp.zeros_like(candidates.rest)

    def by_pass() -> Array:
        return product(candidates.atoms, direction)

    if candidates.gram is None:
        return jax.lax.cond(any_lane(wanted), by_pass, nothing)
    gram = candidates.gram

    def by_gram() -> Array:
        spanned = candidates.coordinates.combine(within, support.active)
        return (gram[place] - spanned) * scale

    # Near the span, little is left of a difference of two products.
    how = jnp.where(any_lane(wanted & (scale > 1 / _FAR)), 2, any_lane(wanted).astype(jnp.int32))
    return jax.lax.switch(how, [nothing, by_gram, by_pass])


def no_support(num_slots: int, target: Float[Array, " s"]) -> Support:
    """No atom in use."""
    num_draws, dtype = target.shape[0], target.dtype
    return Support(
        places=jnp.zeros(num_slots, jnp.int32),
        rows=jnp.zeros(num_slots, jnp.int32),
        active=jnp.zeros(num_slots, bool),
        size=jnp.zeros((), jnp.int32),
        weights=jnp.zeros(num_slots, dtype),
        aim=jnp.zeros(num_slots, dtype),
        residual=target,
        atoms=SlotMatrix.zeros(num_slots, num_draws, dtype),
        basis=SlotMatrix.zeros(num_slots, num_draws, dtype),
        coefficients=SlotMatrix.zeros(num_slots, num_slots, dtype),
    )


def compact(support: Support) -> Support:
    """The same atoms in the first slots."""
    order = jnp.argsort(~support.active, stable=True)

    def moved(matrix: SlotMatrix) -> SlotMatrix:
        return SlotMatrix.of(matrix.whole()[order])

    return Support(
        places=support.places[order],
        rows=support.rows[order],
        active=support.active[order],
        size=support.size,
        weights=support.weights[order],
        aim=support.aim[order],
        residual=support.residual,
        atoms=moved(support.atoms),
        basis=moved(support.basis),
        coefficients=SlotMatrix.of(support.coefficients.whole()[order][:, order]),
    )
