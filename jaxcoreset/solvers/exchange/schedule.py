"""Where a run of `jaxcoreset.solvers.ExchangePursuit` is, and what it does next.

All of it is scalars, and without any of the atoms.
"""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from jaxcoreset.solvers.exchange.scalars import Scalars
from jaxcoreset.solvers.nnls import resolution

# After so many atoms in a row that brought nothing, the arithmetic has no more to give.
_MAX_IN_VAIN = 5
# After so many moves, and one more for each atom, in which the objective hardly fell, it will not.
_MAX_IDLE = 100
# Further starts go up to this size; beyond, the first atom is forgotten.
SHORT = 24
# In such starts candidates are chosen anew after so many changes of the size; in the first and in
# matching pursuit, after one.
_CHANGES_OF_A_START = 2


class Limits(eqx.Module):
    """What bounds a run.

    Attributes:
        top: the size to rise to, in the first start.
        bottom: the size to fall to.
        most: the largest size whose solution is wanted.
        num_starts: how many more starts there are.
        max_moves: after so many moves the run ends.
        exchanges_down: at most so many exchanges at each size.
        min_gain: by what fraction the objective falls, if it falls.
        chooses: whether there are more atoms than candidates.
    """

    top: Int[Array, ""]
    bottom: Int[Array, ""]
    most: Int[Array, ""]
    num_starts: Int[Array, ""]
    max_moves: Int[Array, ""]
    exchanges_down: int = eqx.field(static=True)
    min_gain: float = eqx.field(static=True)
    chooses: bool = eqx.field(static=True)


class Progress(eqx.Module):
    """Where a run is, and what it does in this move.

    Attributes:
        falling: whether it is past the top.
        exchanges: how many there were at this size; the last move was one, if there are any.
        in_vain: so many atoms in a row came in without bringing anything.
        lowest: the objective when it last fell by `min_gain`.
        idle: moves since then.
        renewed: the objective when the candidates last had no more to give.
        objective: of the last least-squares solution that was feasible.
        start: how many other starts have begun.
        moves: how many there were.
        changes: of the size, since the candidates were chosen.
        stopped: whether it is at its end.
        falls: whether this move starts from a solution that lowers the objective by `min_gain`.
        may_rise: whether an atom may come in, if any brings something.
        rises: whether one comes in.
        may_exchange: whether an atom may be exchanged for another, if that brings something.
        leaves: whether an atom goes: for another, or for none, or as its weight would be negative.
        enters: whether one comes in, in the place of another or of none.
        resets: whether all go, for the next start.
    """

    falling: Bool[Array, ""]
    exchanges: Int[Array, ""]
    in_vain: Int[Array, ""]
    lowest: Float[Array, ""]
    idle: Int[Array, ""]
    renewed: Float[Array, ""]
    objective: Float[Array, ""]
    start: Int[Array, ""]
    moves: Int[Array, ""]
    changes: Int[Array, ""]
    stopped: Bool[Array, ""]
    falls: Bool[Array, ""]
    may_rise: Bool[Array, ""]
    rises: Bool[Array, ""]
    may_exchange: Bool[Array, ""]
    leaves: Bool[Array, ""]
    enters: Bool[Array, ""]
    resets: Bool[Array, ""]

    @classmethod
    def at_start(cls, dtype: DTypeLike, stopped: Bool[Array, ""]) -> "Progress":
        """Before the first move; `stopped` where there is nothing to do."""
        zero, no = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
        endless = jnp.asarray(jnp.inf, dtype)
        return cls(
            falling=no,
            exchanges=zero,
            in_vain=zero,
            lowest=endless,
            idle=zero,
            renewed=endless,
            objective=endless,
            start=zero,
            moves=zero,
            changes=zero,
            stopped=stopped,
            falls=no,
            may_rise=no,
            rises=no,
            may_exchange=no,
            leaves=no,
            enters=no,
            resets=no,
        )


def improves(objective: Float[Array, ""], last: Float[Array, ""]) -> Bool[Array, ""]:
    """Whether an objective is below another by more than rounding."""
    return objective < (1 - resolution(objective.dtype)) * last


def is_stale(progress: Scalars, size: Int[Array, ""], refresh: float) -> Bool[Array, ""]:
    """Whether candidates are to be chosen anew, after a change of the size by this fraction."""
    least = jnp.where(progress["start"] > 1, _CHANGES_OF_A_START, 1)
    return progress["changes"] >= jnp.maximum(least, (refresh * size).astype(jnp.int32))


def considered(
    before: Progress,
    limits: Limits,
    *,
    size: Int[Array, ""],
    objective: Float[Array, ""],
    feasible: Bool[Array, ""],
    brings: Bool[Array, ""],
) -> Progress:
    """What could be done: one atom in, or one exchanged for another.

    Args:
        before: where the run is.
        limits: what bounds it.
        size: how many atoms are in use.
        objective: of their least-squares weights.
        feasible: whether none of those is negative, and the run goes on.
        brings: whether there is an atom that would lower the objective.
    """
    better = feasible & improves(objective, before.objective)
    exchanged = before.exchanges > 0
    useless = feasible & ~better & ~exchanged & ~before.falling & (size > 0)
    in_vain = jnp.where(useless, before.in_vain + 1, jnp.where(better, 0, before.in_vain))
    falls = feasible & (objective < (1 - limits.min_gain) * before.lowest)
    idle = jnp.where(falls, 0, before.idle + 1)
    precise = objective <= resolution(objective.dtype) ** 2
    top_of_a_start = jnp.minimum(limits.most + 2 * (before.start % 4), SHORT)
    top = jnp.where(before.start > 0, top_of_a_start, limits.top)
    may_rise = feasible & ~before.falling & (size < top) & ~precise & (idle <= _MAX_IDLE + size)
    missed = exchanged & (objective > (1 - limits.min_gain / 2) * before.objective)
    may_exchange = feasible & before.falling & (before.exchanges < limits.exchanges_down)
    return dataclasses.replace(
        before,
        in_vain=in_vain,
        idle=idle,
        falls=falls,
        may_rise=may_rise,
        rises=may_rise & brings & (in_vain <= _MAX_IN_VAIN),
        may_exchange=may_exchange & ~missed & ~precise,
    )


def decided(
    before: Progress,
    limits: Limits,
    *,
    size: Int[Array, ""],
    objective: Float[Array, ""],
    feasible: Bool[Array, ""],
    stopped: Bool[Array, ""],
    worth: Bool[Array, ""],
) -> Progress:
    """What is done, and where the run is then.

    Args:
        before: as `considered`.
        limits: what bounds the run.
        size: how many atoms are in use.
        objective: of their least-squares weights.
        feasible: whether none of those is negative, and the run goes on.
        stopped: whether nothing is to be done.
        worth: whether there is an exchange that lowers the objective by enough.
    """
    rises = before.rises
    exchanges = before.may_exchange & worth
    # Where these candidates have no more to give, others may.
    renews = before.may_rise & ~rises & (before.changes > 0) & limits.chooses
    renews = renews & (objective < (1 - limits.min_gain) * before.renewed)
    turns = feasible & ~exchanges & ~rises & ~renews
    drops = turns & (size > limits.bottom)
    ends = turns & ~drops
    resets = ends & (before.start < limits.num_starts)
    out_of_moves = ~stopped & (before.moves >= limits.max_moves)
    so_far = jnp.where(exchanges, before.exchanges + 1, 0)
    lowest = jnp.where(before.falls, objective, before.lowest)
    renewed = jnp.where(renews, objective, before.renewed)
    last = jnp.where(feasible, objective, before.objective)
    changes = before.changes + (rises | drops)
    return dataclasses.replace(
        before,
        falling=(before.falling | drops) & ~resets,
        exchanges=jnp.where(feasible, so_far, before.exchanges),
        in_vain=jnp.where(resets | renews, 0, before.in_vain),
        lowest=jnp.where(resets, jnp.inf, lowest),
        idle=jnp.where(resets | stopped, 0, before.idle),
        renewed=jnp.where(resets, jnp.inf, renewed),
        objective=jnp.where(resets, jnp.inf, last),
        start=before.start + resets,
        moves=before.moves + ~stopped,
        changes=jnp.where(resets | renews, jnp.iinfo(jnp.int32).max, changes),
        stopped=before.stopped | (ends & ~resets) | out_of_moves,
        leaves=(~feasible & ~stopped) | exchanges | drops,
        enters=exchanges | rises,
        resets=resets,
    )
