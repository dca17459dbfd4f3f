"""Which atom leaves, and which enters in its place.

With the names of `jaxcoreset.solvers.exchange.support`, what the objective falls by when an atom i
takes the place of j is a closed form: with B = TᵀT, Z = TᵀV and c_i = ⟨a_i, r⟩,

    (c_i + w_j Z_ji / B_jj)² / (ρ_i + Z_ji² / B_jj) − w_j² / B_jj

which is evaluated for all i and for the few j with the least to lose.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxcoreset.solvers.exchange.support import Candidates, Leaving, Support
from jaxcoreset.solvers.exchange.tree_reductions import any_of, first_of, largest_of
from jaxcoreset.solvers.nnls import any_lane, resolution, rounding

# So many atoms, those with the least to lose, are tried for an exchange; more bring nothing.
_NUM_LEAVING = 8


class Choice(eqx.Module):
    """The best exchange.

    Attributes:
        place: index among the candidates of the atom that enters.
        which: of a few atoms that may leave, the one that does.
        worth: whether it gains enough.
    """

    place: Int[Array, ""]
    which: Int[Array, ""]
    worth: Bool[Array, ""]


class _Few(eqx.Module):
    """A few atoms in use that matter least: for each what `Leaving` holds, and what it is worth.

    Attributes:
        falls: what the objective falls by without each of them: −w_j²/B_jj, as it rises.
    """

    slots: Int[Array, " q"]
    falls: Float[Array, " q"]
    squares: Float[Array, " q"]
    columns: Float[Array, "q p"]
    along: Float[Array, "q m"]


def least_losses(support: Support) -> tuple[Array, Array, Array]:
    """The few atoms whose leaving would raise the objective least.

    Returns:
        B_jj for every slot, the slots of the few, and what the objective falls by without each of
        them: −w_j²/B_jj, and −∞ for a slot that is free.
    """
    squares = support.coefficients.squares(support.active)
    squares = jnp.where(support.active, squares, 1)
    falls = jnp.where(support.active, -(support.aim**2) / squares, -jnp.inf)
    most, slots = jax.lax.top_k(falls, min(_NUM_LEAVING, falls.shape[0]))
    return squares, slots, most


def leaving(
    support: Support,
    candidates: Candidates,
    *,
    first: Int[Array, ""],
    is_set: Bool[Array, ""],
    may_leave: Bool[Array, ""],
    may_exchange: Bool[Array, ""],
    eligible: Bool[Array, " m"],
    objective: Float[Array, ""],
    min_gain: float,
) -> tuple[Leaving, Choice]:
    """The atom to leave: the other half of the best exchange, or else the one that matters least.

    Args:
        support: the atoms in use.
        candidates: the atoms that may enter.
        first: a slot that is to be taken for the least, if `is_set`.
        is_set: whether there is such a slot.
        may_leave: whether any will; zeros are returned where none may in any lane.
        may_exchange: whether one may enter in its place.
        eligible: which may.
        objective: of the atoms in use.
        min_gain: an exchange must lower it by this fraction.
    """
    nothing = Choice(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), jnp.zeros((), bool))

    def found() -> tuple[Leaving, Choice]:
        squares, slots, falls = least_losses(support)
        # Not by an index: where the result of `top_k` is sliced, the compiler sorts all instead.
        set_here = is_set & (jnp.arange(slots.shape[0]) == 0)
        slots = jnp.where(set_here, first.astype(slots.dtype), slots)
        columns = support.coefficients.columns(slots).T
        along = candidates.coordinates.combine(columns, support.active)
        few = _Few(slots, falls, squares[slots], columns, along)
        choice = jax.lax.cond(
            any_lane(may_exchange),
            lambda: _best_exchange(support, candidates, few, eligible, objective, min_gain),
            lambda: nothing,
        )
        which = jnp.where(may_exchange & choice.worth, choice.which, 0)
        one = Leaving(slots[which], few.squares[which], columns[which], along[which])
        return one, choice

    def not_found() -> tuple[Leaving, Choice]:
        some = jnp.zeros_like(support.aim)
        return Leaving(nothing.place, some[0], some, jnp.zeros_like(candidates.rest)), nothing

    return jax.lax.cond(any_lane(may_leave), found, not_found)


def beyond_rounding(
    correlations: Float[Array, "*b m"], objective: Float[Array, ""], num_draws: int
) -> Bool[Array, "*b m"]:
    """Whether correlations with the residual are positive, and more than rounding."""
    # As squares, for which the root of the objective need not be taken and kept.
    floor, _ = rounding(jnp.ones((), objective.dtype), num_draws)
    return (correlations > 0) & (correlations**2 > floor**2 * objective)


def _best_exchange(
    support: Support,
    candidates: Candidates,
    few: _Few,
    eligible: Bool[Array, " m"],
    objective: Float[Array, ""],
    min_gain: float,
) -> Choice:
    """The exchange that gains most among those that leave every weight positive.

    For each of a few atoms that may leave, the best that may enter in its place; of these pairs the
    best, if it lowers the objective by more than the fraction `min_gain`.
    """
    scale, solved = 1 / few.squares, support.aim
    weights = solved[few.slots]
    moved = candidates.correlations + (weights * scale)[:, None] * few.along
    left = distances(candidates) + scale[:, None] * few.along**2
    counts = eligible & beyond_rounding(moved, objective, support.residual.shape[0])
    gains = jnp.where(counts, moved**2 / left, 0) + few.falls[:, None]
    gain = largest_of(gains)
    places = first_of(gains >= gain[:, None])

    def at_places(values: Array) -> Array:
        in_rows = places[:, None]
        return jnp.take_along_axis(values, in_rows, axis=1, mode="promise_in_bounds")[:, 0]

    weight = at_places(moved) / at_places(left)
    shift = (weights - weight * at_places(few.along))[:, None] * (scale[:, None] * few.columns)
    shift = shift + weight[:, None] * candidates.coordinates.columns(places).T
    after = solved - support.coefficients.combine(shift, support.active)
    stays = support.active & (jnp.arange(solved.shape[0]) != few.slots[:, None])
    gains = jnp.where(any_of(stays & ~(after > 0)), -jnp.inf, gain)
    best = jnp.argmax(gains)
    worth = gains[best] > min_gain * objective
    return Choice(places[best].astype(jnp.int32), best.astype(jnp.int32), worth)


def distances(candidates: Candidates) -> Float[Array, " m"]:
    """Squared distances from the span to divide by."""
    return jnp.maximum(candidates.rest, resolution(candidates.rest.dtype))
