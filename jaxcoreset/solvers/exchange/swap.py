"""The choice of the atom that leaves, and of the atom that replaces it.

In the notation of `jaxcoreset.solvers.exchange.support`, the decrease of the objective when atom i
replaces atom j has a closed form: with B = TᵀT, Z = TᵀV and c_i = ⟨a_i, r⟩, it is

    (c_i + w_j Z_ji / B_jj)² / (ρ_i + Z_ji² / B_jj) − w_j² / B_jj

and it is evaluated for all i and for the few j whose removal raises the objective least.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxcoreset.solvers.exchange.support import Candidates, LeavingAtom, Support
from jaxcoreset.solvers.numerics import any_in_batch, first_true, resolution, rounding

# The number of atoms that are tried for an exchange; more atoms do not improve the results.
_NUM_LEAVING = 8


class BestExchange(eqx.Module):
    """The best exchange.

    Attributes:
        position: position among the candidates of the atom that enters.
        which: which of the atoms that may leave does so.
        gains: whether the exchange lowers the objective by enough.
    """

    position: Int[Array, ""]
    which: Int[Array, ""]
    gains: Bool[Array, ""]


def least_important(support: Support) -> tuple[Array, Array, Array]:
    """Find the few atoms whose removal raises the objective least.

    Returns:
        B_jj for every slot, the slots of these atoms, and the decrease of the objective without
        each of them: −w_j²/B_jj, and −∞ for a free slot.
    """
    inverse_gram = support.coefficients.squares(support.active)
    inverse_gram = jnp.where(support.active, inverse_gram, 1)
    decreases = -(support.lstsq_weights**2) / inverse_gram
    decreases = jnp.where(support.active, decreases, -jnp.inf)
    largest, slots = jax.lax.top_k(decreases, min(_NUM_LEAVING, decreases.shape[0]))
    return inverse_gram, slots, largest


def choose_leaving(
    support: Support,
    candidates: Candidates,
    *,
    first: Int[Array, ""],
    is_set: Bool[Array, ""],
    can_remove: Bool[Array, ""],
    can_exchange: Bool[Array, ""],
    eligible: Bool[Array, " m"],
    objective: Float[Array, ""],
    min_gain: float,
) -> tuple[LeavingAtom, BestExchange]:
    """Choose the atom that leaves: in the best exchange, or else the least important one.

    Args:
        support: the atoms in use.
        candidates: the atoms that may enter.
        first: the slot to use in place of the least important one, if `is_set`.
        is_set: whether there is such a slot.
        can_remove: whether an atom may leave; returns zeros if none may in any batch element.
        can_exchange: whether another atom may enter in its place.
        eligible: the candidates that may enter.
        objective: the objective of the atoms in use.
        min_gain: an exchange must lower it by this fraction.
    """
    nothing = BestExchange(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), jnp.zeros((), bool))

    def best_exchange(few: LeavingAtom, decreases: Array) -> BestExchange:
        """The exchange with the largest gain among those that keep every weight positive.

        For each of a few atoms that may leave, the best candidate that may replace it is found; of
        these pairs the best one is taken, if it lowers the objective by more than `min_gain`.
        """
        # The best candidate for each leaving atom: correlations and distances without that atom.
        scale, solved = 1 / few.inverse_gram, support.lstsq_weights
        weights = solved[few.slot]
        correlations = candidates.correlations + (weights * scale)[:, None] * few.shares
        distances = clipped_distances(candidates) + scale[:, None] * few.shares**2
        counts = eligible & exceeds_rounding(correlations, objective, support.residual.shape[0])
        gains = jnp.where(counts, correlations**2 / distances, 0) + decreases[:, None]
        gain = jnp.max(gains, axis=-1)
        positions = first_true(gains >= gain[:, None])

        def at_positions(values: Array) -> Array:
            in_rows = positions[:, None]
            return jnp.take_along_axis(values, in_rows, axis=1, mode="promise_in_bounds")[:, 0]

        # The weights after each of these exchanges, all of which must stay positive.
        weight = at_positions(correlations) / at_positions(distances)
        lost = (weights - weight * at_positions(few.shares))[:, None]
        shift = lost * (scale[:, None] * few.column)
        shift = shift + weight[:, None] * candidates.coordinates.columns(positions).T
        after = solved - support.coefficients.combine(shift, support.active)
        stays = support.active & (jnp.arange(solved.shape[0]) != few.slot[:, None])
        gains = jnp.where(jnp.any(stays & ~(after > 0), axis=-1), -jnp.inf, gain)
        best = jnp.argmax(gains)
        enough = gains[best] > min_gain * objective
        return BestExchange(positions[best].astype(jnp.int32), best.astype(jnp.int32), enough)

    def choose() -> tuple[LeavingAtom, BestExchange]:
        inverse_gram, slots, decreases = least_important(support)
        # Not by an index: if the result of `top_k` is sliced, XLA sorts the whole array instead.
        set_here = is_set & (jnp.arange(slots.shape[0]) == 0)
        slots = jnp.where(set_here, first.astype(slots.dtype), slots)
        columns = support.coefficients.columns(slots).T
        shares = candidates.coordinates.combine(columns, support.active)
        few = LeavingAtom(slots, inverse_gram[slots], columns, shares)
        exchange = jax.lax.cond(
            any_in_batch(can_exchange), lambda: best_exchange(few, decreases), lambda: nothing
        )
        which = jnp.where(can_exchange & exchange.gains, exchange.which, 0)
        return jax.tree.map(lambda x: x[which], few), exchange

    def choose_none() -> tuple[LeavingAtom, BestExchange]:
        zeros = jnp.zeros_like(support.lstsq_weights)
        no_shares = jnp.zeros_like(candidates.distances)
        return LeavingAtom(nothing.position, zeros[0], zeros, no_shares), nothing

    return jax.lax.cond(any_in_batch(can_remove), choose, choose_none)


def exceeds_rounding(
    correlations: Float[Array, "*b m"], objective: Float[Array, ""], num_draws: int
) -> Bool[Array, "*b m"]:
    """Return whether correlations with the residual are positive by more than rounding."""
    # As squares, so that the square root of the objective is not needed.
    floor, _ = rounding(jnp.ones((), objective.dtype), num_draws)
    return (correlations > 0) & (correlations**2 > floor**2 * objective)


def clipped_distances(candidates: Candidates) -> Float[Array, " m"]:
    """The squared distances from the span, bounded from below so that one can divide by them."""
    return jnp.maximum(candidates.distances, resolution(candidates.distances.dtype))
