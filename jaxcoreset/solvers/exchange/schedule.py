"""The schedule of `jaxcoreset.solvers.ExchangePursuit`: the progress of a run, and its next move.

All of it is scalars; the atoms are not used here.
"""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from jaxcoreset.solvers.numerics import resolution

# The maximum number of atoms in a row that do not lower the objective: the precision is exhausted.
_MAX_USELESS = 5
# The maximum number of moves, plus one for each atom in use, without a decrease by `min_gain`.
_MAX_STALLED = 100
# The largest size of further starts; beyond it, the first atom has little influence.
MAX_START_SIZE = 24
# In further starts from other first atoms candidates are chosen again after this number of changes
# of the size; in the first start and in matching pursuit after one.
_CHANGES_PER_REFRESH = 2


class RunLimits(eqx.Module):
    """The limits of a run.

    Attributes:
        top: the size to grow to, in the first start.
        bottom: the size to shrink to.
        max_size: the largest size whose solution is needed.
        num_starts: the number of further starts.
        max_moves: the maximum number of moves.
        exchanges_down: the maximum number of exchanges at each size.
        min_gain: the smallest relative decrease of the objective that counts as progress.
        selects_candidates: whether the candidates are a subset of the atoms.
    """

    top: Int[Array, ""]
    bottom: Int[Array, ""]
    max_size: Int[Array, ""]
    num_starts: Int[Array, ""]
    max_moves: Int[Array, ""]
    exchanges_down: int = eqx.field(static=True)
    min_gain: float = eqx.field(static=True)
    selects_candidates: bool = eqx.field(static=True)


class Progress(eqx.Module):
    """The progress of a run.

    Attributes:
        shrinking: whether the size has passed the top.
        num_exchanges: exchanges at this size; the last move was one if this is positive.
        num_useless: atoms in a row that were added without lowering the objective.
        reference: the objective when it last decreased by `min_gain`.
        num_stalled: moves since then.
        refresh_objective: the objective when candidates were last chosen for lack of useful ones.
        objective: the objective of the last feasible least-squares solution.
        start: the number of further starts that have begun.
        num_moves: the number of moves.
        num_changes: changes of the size since the candidates were chosen.
        stopped: whether the run has ended.
    """

    shrinking: Bool[Array, ""]
    num_exchanges: Int[Array, ""]
    num_useless: Int[Array, ""]
    reference: Float[Array, ""]
    num_stalled: Int[Array, ""]
    refresh_objective: Float[Array, ""]
    objective: Float[Array, ""]
    start: Int[Array, ""]
    num_moves: Int[Array, ""]
    num_changes: Int[Array, ""]
    stopped: Bool[Array, ""]

    @classmethod
    def at_start(cls, dtype: DTypeLike, stopped: Bool[Array, ""]) -> "Progress":
        """The progress before the first move; `stopped` if there is nothing to do."""
        zero, infinity = jnp.zeros((), jnp.int32), jnp.asarray(jnp.inf, dtype)
        return cls(
            shrinking=jnp.zeros((), bool),
            num_exchanges=zero,
            num_useless=zero,
            reference=infinity,
            num_stalled=zero,
            refresh_objective=infinity,
            objective=infinity,
            start=zero,
            num_moves=zero,
            num_changes=zero,
            stopped=stopped,
        )


class Fit(eqx.Module):
    """The least-squares solution that a move starts from.

    Attributes:
        size: the number of atoms in use.
        objective: the objective of their least-squares weights.
        feasible: whether none of these is negative, and the run has not stopped.
        stopped: whether to do nothing.
    """

    size: Int[Array, ""]
    objective: Float[Array, ""]
    feasible: Bool[Array, ""]
    stopped: Bool[Array, ""]


class Allowed(eqx.Module):
    """Which moves are allowed.

    Attributes:
        growth: whether an atom may be added if it lowers the objective.
        adds: whether an atom is added.
        exchange: whether an atom may be exchanged if that lowers the objective.
    """

    growth: Bool[Array, ""]
    adds: Bool[Array, ""]
    exchange: Bool[Array, ""]


class Move(eqx.Module):
    """A move.

    Attributes:
        removes: whether an atom leaves: in an exchange, to shrink, or to keep its weight positive.
        inserts: whether an atom enters: in an exchange, or to grow.
        restarts: whether all atoms leave, for the next start.
    """

    removes: Bool[Array, ""]
    inserts: Bool[Array, ""]
    restarts: Bool[Array, ""]


def improves(objective: Float[Array, ""], last: Float[Array, ""]) -> Bool[Array, ""]:
    """Return whether an objective is lower than another one by more than rounding."""
    return objective < (1 - resolution(objective.dtype)) * last


def is_stale(progress: Progress, size: Int[Array, ""], refresh: float) -> Bool[Array, ""]:
    """Return whether to choose candidates again: the size has changed by this fraction."""
    least = jnp.where(progress.start > 1, _CHANGES_PER_REFRESH, 1)
    return progress.num_changes >= jnp.maximum(least, (refresh * size).astype(jnp.int32))


def consider_move(
    before: Progress, limits: RunLimits, fit: Fit, any_useful: Bool[Array, ""]
) -> tuple[Progress, Allowed]:
    """Determine which moves are allowed: add an atom, or exchange one for another.

    Args:
        before: the progress before the move.
        limits: the limits of the run.
        fit: the solution that the move starts from.
        any_useful: whether there is an atom that would lower the objective.
    """
    size, objective, feasible = fit.size, fit.objective, fit.feasible
    better = feasible & improves(objective, before.objective)
    exchanged = before.num_exchanges > 0
    useless = feasible & ~better & ~exchanged & ~before.shrinking & (size > 0)
    num_useless = jnp.where(
        useless, before.num_useless + 1, jnp.where(better, 0, before.num_useless)
    )
    improved = feasible & (objective < (1 - limits.min_gain) * before.reference)
    num_stalled = jnp.where(improved, 0, before.num_stalled + 1)
    exact = objective <= resolution(objective.dtype) ** 2
    top_of_start = jnp.minimum(limits.max_size + 2 * (before.start % 4), MAX_START_SIZE)
    top = jnp.where(before.start > 0, top_of_start, limits.top)
    stalled = num_stalled > _MAX_STALLED + size
    growth = feasible & ~before.shrinking & (size < top) & ~exact & ~stalled
    adds = growth & any_useful & (num_useless <= _MAX_USELESS)
    missed = exchanged & (objective > (1 - limits.min_gain / 2) * before.objective)
    exchange = feasible & before.shrinking & (before.num_exchanges < limits.exchanges_down)
    progress = dataclasses.replace(
        before,
        num_useless=num_useless,
        num_stalled=num_stalled,
        reference=jnp.where(improved, objective, before.reference),
    )
    return progress, Allowed(growth, adds, exchange & ~missed & ~exact)


def decide_move(
    before: Progress, limits: RunLimits, fit: Fit, allowed: Allowed, gains: Bool[Array, ""]
) -> tuple[Progress, Move]:
    """Decide on the move, and update the progress for it.

    Args:
        before: the progress that `consider_move` returns.
        limits: the limits of the run.
        fit: the solution that the move starts from.
        allowed: the moves that `consider_move` allows.
        gains: whether there is an exchange that lowers the objective by enough.
    """
    objective, feasible, stopped = fit.objective, fit.feasible, fit.stopped
    adds, exchanges = allowed.adds, allowed.exchange & gains
    # If none of these candidates is useful, other atoms may be.
    refreshes = allowed.growth & ~adds & (before.num_changes > 0) & limits.selects_candidates
    refreshes = refreshes & (objective < (1 - limits.min_gain) * before.refresh_objective)
    turns = feasible & ~exchanges & ~adds & ~refreshes
    drops = turns & (fit.size > limits.bottom)
    ends = turns & ~drops
    restarts = ends & (before.start < limits.num_starts)
    out_of_moves = ~stopped & (before.num_moves >= limits.max_moves)
    num_exchanges = jnp.where(exchanges, before.num_exchanges + 1, 0)
    refresh_objective = jnp.where(refreshes, objective, before.refresh_objective)
    last = jnp.where(feasible, objective, before.objective)
    num_changes = before.num_changes + (adds | drops)
    progress = dataclasses.replace(
        before,
        shrinking=(before.shrinking | drops) & ~restarts,
        num_exchanges=jnp.where(feasible, num_exchanges, before.num_exchanges),
        num_useless=jnp.where(restarts | refreshes, 0, before.num_useless),
        reference=jnp.where(restarts, jnp.inf, before.reference),
        num_stalled=jnp.where(restarts | stopped, 0, before.num_stalled),
        refresh_objective=jnp.where(restarts, jnp.inf, refresh_objective),
        objective=jnp.where(restarts, jnp.inf, last),
        start=before.start + restarts,
        num_moves=before.num_moves + ~stopped,
        num_changes=jnp.where(restarts | refreshes, jnp.iinfo(jnp.int32).max, num_changes),
        stopped=before.stopped | (ends & ~restarts) | out_of_moves,
    )
    removes = (~feasible & ~stopped) | exchanges | drops
    return progress, Move(removes, exchanges | adds, restarts)
