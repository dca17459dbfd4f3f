"""The smallest size on a solver's path that meets a tolerance, and an honest estimate of its error.

The smallest of many estimates on the same draws is too low, because it was selected for being low.
So a size is selected by the "selection" draws, and the estimate that is reported comes from the
"confirmation" draws, which had no part in the selection. If there is only one size, nothing was
selected, and its estimate on the "selection" draws is as good. Where the "confirmation" draws do
not confirm a size, they join the "selection" draws, and new ones are drawn for the next selection.
They have to meet the tolerance too, so estimates that come within two standard errors of it are low
by about half a standard error; a standard error is at most a tenth of the tolerance.
"""

import dataclasses
from dataclasses import dataclass

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int

from jaxcoreset.selection.draws import DrawPool
from jaxcoreset.selection.estimate import KLEstimate, errors_on, estimate_at, estimate_on
from jaxcoreset.selection.parts import Approach, Use
from jaxcoreset.solvers.solution import Solution
from jaxcoreset.weighting.base import FEWEST

# The maximum standard error of the estimate, relative to the tolerance, if there are enough draws.
PRECISION = 0.1
# The maximum number of held-out draws of each use, relative to their first number.
_MOST_HELD_OUT = 16
_MOST_CONFIRMATIONS = 6


def largest_shift(tol: float) -> float:
    """The largest shift of a posterior mean that a tolerance in nats accepts, in its sd.

    It is half of the square root, 0.05 for 0.01 nats; the divergence alone allows up to the root.
    """
    return 0.5 * tol**0.5


@dataclass(frozen=True)
class Limit:
    """What a size has to meet, with two standard errors.

    Attributes:
        tol: the largest divergence, in nats.
        max_shift: the largest shift of a posterior mean, in standard deviations.
        num_held_out: the number of draws that confirm a selection at first.
    """

    tol: float
    max_shift: float = np.inf
    num_held_out: int = 0

    def first_within(self, curve: dict[str, np.ndarray], first: int = 0) -> int | None:
        """The first entry that meets it, from one on."""
        upper = curve["kl"] + 2 * curve["kl_standard_error"]
        shift = curve["mean_shift"] + 2 * curve["mean_shift_standard_error"]
        is_within = (upper <= self.tol) & (shift <= self.max_shift)
        within = first + np.flatnonzero(is_within[first:])
        return int(within[0]) if within.size else None

    def may_be_within(self, curve: dict[str, np.ndarray], first: int) -> bool:
        """True if an entry would meet it, if more draws made its standard error small enough."""
        is_near = (curve["kl"] <= self.tol) & (curve["mean_shift"] <= self.max_shift)
        return bool(is_near[first:].any())

    def is_precise(self, estimate: KLEstimate) -> bool:
        """True if the standard error of an estimate is as small as is aimed at."""
        return estimate.standard_error <= PRECISION * self.tol

    def may_be_confirmed(self, estimate: KLEstimate) -> bool:
        """True if more draws may well confirm a choice, or make the estimate of one more precise.

        With the standard error that is aimed at, an estimate is within if it is below 0.8 `tol`.
        Where that is more than a standard error away, another row costs less than many draws.
        """
        return estimate.kl - estimate.standard_error <= (1 - 2 * PRECISION) * self.tol


@dataclass(frozen=True)
class Selection:
    """One entry of a solver's path, and how good it is.

    Attributes:
        path: the solutions of all sizes.
        sizes: the sizes.
        at: the entry.
        estimate: its error, on draws that had no part in the selection.
        curve: the errors along the path, on the draws that had.
        is_within: whether the tolerance is met; True if there is none.
        approach: what stands for all rows.
        candidates: the row numbers of the candidates that the path is about; None for all rows.
        rows_needed: how many rows the tolerance would take, by the trend of the sizes that were
            tried; None if it is met or the trend is not known.
    """

    path: Solution
    sizes: np.ndarray
    at: int
    estimate: KLEstimate
    curve: dict[str, np.ndarray]
    is_within: bool = True
    approach: Approach = "rows"
    candidates: Int[np.ndarray, " m"] | None = None
    rows_needed: int | None = None

    def among(self, candidates: Int[np.ndarray, " c"] | None) -> "Selection":
        """The same selection, whose positions are those among more candidates."""
        if self.candidates is None or candidates is None or candidates is self.candidates:
            return self
        moved = np.searchsorted(candidates, self.candidates).astype(np.int32)
        found = moved[np.asarray(self.path.indices)]
        path = eqx.tree_at(lambda one: one.indices, self.path, found)
        return dataclasses.replace(self, path=path, candidates=candidates)

    @property
    def num_rows(self) -> int:
        """The number of selected rows."""
        return int(np.count_nonzero(np.asarray(self.path.weights[self.at]) > 0))

    @property
    def positions(self) -> Int[np.ndarray, " k"]:
        """The positions of the selected rows among the candidates, in increasing order."""
        is_used = np.asarray(self.path.weights[self.at]) > 0
        return np.asarray(self.path.indices[self.at], np.int64)[is_used]

    @property
    def weights(self) -> Float[np.ndarray, " k"]:
        """Their weights, all positive."""
        weights = np.asarray(self.path.weights[self.at])
        return weights[weights > 0]


def largest_size(
    pool: DrawPool, path: Solution, sizes: np.ndarray, approach: Approach = "rows"
) -> Selection:
    """The largest size of a path, which is not selected by its error."""
    curve = _curve(pool, path, sizes, approach)
    at, estimate = len(sizes) - 1, estimate_on(curve, -1)
    return Selection(path, sizes, at, estimate, curve, True, approach, pool.indices)


def smallest_within(
    pool: DrawPool, path: Solution, sizes: np.ndarray, limit: Limit, approach: Approach = "rows"
) -> Selection:
    """The smallest size whose error plus two standard errors is at most `tol`.

    It also shifts no posterior mean by more than `max_shift`, two standard errors included.

    Draws are added while they are the limit: while an estimate is below `tol` but its upper end is
    not, and while its standard error is more than a tenth of `tol` and may make a difference.

    Args:
        pool: draws and log-likelihoods; draws are added to it.
        path: the solutions of all sizes.
        sizes: the sizes, in increasing order.
        limit: what it has to meet.
        approach: what stands for all rows.

    Returns:
        The selection; if no size meets the limit, the best one, with `is_within` false.
    """
    most, first = _MOST_HELD_OUT * limit.num_held_out, 0
    curve = _curve(pool, path, sizes, approach)

    def selected(at: int, estimate: KLEstimate, is_within: bool = True) -> Selection:
        return Selection(path, sizes, at, estimate, curve, is_within, approach, pool.indices)

    if len(sizes) == 1 and limit.first_within(curve) == 0:
        estimate = estimate_on(curve, 0)
        if limit.is_precise(estimate):
            return selected(0, estimate)
    for _ in range(_MOST_CONFIRMATIONS):
        at = limit.first_within(curve, first)
        while at is None and limit.may_be_within(curve, first) and _double(pool, "selection", most):
            curve = _curve(pool, path, sizes, approach)
            at = limit.first_within(curve, first)
        if at is None:
            break
        pool.ensure_draws(confirmation=limit.num_held_out)
        estimate = estimate_at(pool, path, at, "confirmation", approach)
        while (
            not limit.is_precise(estimate)
            and limit.may_be_confirmed(estimate)
            and _double(pool, "confirmation", most)
        ):
            estimate = estimate_at(pool, path, at, "confirmation", approach)
        if estimate.upper <= limit.tol and estimate.largest_shift <= limit.max_shift:
            return selected(at, estimate)
        if pool.remaining is not None and pool.remaining < max(FEWEST, limit.num_held_out // 4):
            # No draws are left, so the same ones confirm again, and only another size can pass.
            first = at + 1
        else:
            pool.move("confirmation", "selection")
            curve = _curve(pool, path, sizes, approach)
    at = int(np.argmin(curve["kl"] + 2 * curve["kl_standard_error"]))
    pool.ensure_draws(confirmation=limit.num_held_out)
    # Rare draws with large errors may be in either set; the set that has them tells more.
    found = estimate_on(curve, at), estimate_at(pool, path, at, "confirmation", approach)
    return selected(at, max(found, key=lambda one: one.upper), False)


def _curve(
    pool: DrawPool, path: Solution, sizes: np.ndarray, approach: Approach
) -> dict[str, np.ndarray]:
    return {"size": sizes, **errors_on(pool, path, "selection", approach)}


def _double(pool: DrawPool, use: Use, most: int) -> bool:
    """Double the draws of a use; return False if there are no more, or enough."""
    before = pool.count(use)
    if before >= most:
        return False
    pool.ensure_draws(**{use: 2 * before})
    return pool.count(use) > before
