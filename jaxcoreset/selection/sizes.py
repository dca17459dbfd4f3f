"""The selection of one build: at a given size, or at the smallest size that meets a tolerance.

With a tolerance the largest size of a path is doubled until one of its sizes meets it. The search
ends early if more rows do not help, or if far more rows would be needed than are allowed.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import PRNGKeyArray

from jaxcoreset.likelihood.quadratic import num_features
from jaxcoreset.selection.construction import DRAWS_PER_ROW, LARGEST_FIRST_SIZE, Construction
from jaxcoreset.selection.draws import EXACT, DrawPool
from jaxcoreset.selection.parts import Approach
from jaxcoreset.selection.rounding import best_of
from jaxcoreset.selection.solving import select_none
from jaxcoreset.selection.tolerance import Selection

# With a tolerance, more rows do not help if the error on the solver's draws is below this fraction
# of it and the error on other draws is not, for this number of consecutive sizes: few of the draws
# then make up the error.
_FITTED, _MAX_STALLED = 0.01, 2
# The solver gets more draws for a row where its error at others is this many times that at its own,
# up to a number for a row, and one in all.
_OVERFITTED, _MOST_DRAWS_PER_ROW, _MOST_DRAWS = 4.0, 16, 8192
# Rows alone are not tried again if their error was this many times that of rows beside an
# expansion, and the size is below this fraction of the coefficients of a quadratic: they must match
# that first.
_FAR_WORSE, _FAR_FEWER = 10.0, 0.25
# The search ends if the last sizes suggest that more rows would be needed than may be taken: this
# many times as many, times the root of what the size may still grow by, since the trend may change.
# Each of these sizes is twice the one before; with fewer the trend is not known.
_HOPELESS, _SIZES_OF_TREND = 1.5, 3
# An error that falls more slowly than this power of the number of rows does not reach a tolerance.
_SLOWEST = 0.1


def select_rows(
    construction: Construction, pool: DrawPool, key: PRNGKeyArray, *, is_final: bool = True
) -> Selection | None:
    """Select the coreset under the pool's draws; draws are added to the pool.

    Args:
        construction: how coresets of this run are built.
        pool: draws and log-likelihoods.
        key: a JAX random key, for solvers that need one.
        is_final: whether the tolerance matters; if not, only sizes that are quick are tried.

    Returns:
        The selection, or None if only all the rows meet the tolerance.
    """
    if construction.size is None:
        return _within_tolerance(construction, pool, key, is_final)
    construction.embed(pool)
    construction.regress(pool)
    found = [select_none(pool, construction.clock)] if pool.expansion is not None else []
    if not found or found[0].estimate.kl > EXACT:
        for approach in construction.approaches(pool):
            found.append(construction.select(pool, construction.size, key, approach))
    return best_of(pool, found)


def _within_tolerance(
    construction: Construction, pool: DrawPool, key: PRNGKeyArray, is_final: bool
) -> Selection | None:
    """The smallest size that meets `tol`, on paths whose largest size is doubled."""
    assert construction.tol is not None
    n, largest = construction.num_choices, min(construction.max_size, construction.num_choices)
    begins_low, num_stalled, draws_per_row = pool.expansion is not None, 0, DRAWS_PER_ROW
    size = construction.first_size if begins_low else construction.exact_size
    above: dict[Approach, int] = {}
    found: list[Selection] = []
    if pool.expansion is not None:
        construction.embed(pool, size, confirms=False)
        construction.regress(pool)
        alone = select_none(pool, construction.clock, construction.limit)
        if alone.is_within:
            return alone
        found.append(alone)
    while True:
        construction.embed(pool, size, max(DRAWS_PER_ROW, min(draws_per_row, _MOST_DRAWS // size)))
        if not construction.approaches(pool):
            return found[-1]
        enough = max(1, pool.count("solver") // DRAWS_PER_ROW)
        if enough < size and pool.is_exhausted:
            size = enough
        tried = _tried(construction, pool, size, key, above, found)
        above |= {one.approach: int(one.sizes[-1]) for one in tried}
        within = [one for one in tried if one.is_within]
        if within:
            return min(within, key=lambda one: one.num_rows).among(pool.indices)
        found += tried
        of_all = found if pool.expansion is not None else tried[-1:]
        best = min(of_all, key=lambda one: one.estimate.upper).among(pool.indices)
        if pool.indices is not None:  # larger sizes have other candidates, and these rows too
            construction.joined.append(pool.indices[best.positions])
        if size == n and "rows" in construction.approaches(pool):
            return None
        best = dataclasses.replace(best, rows_needed=_rows_needed(construction, found))
        no_draws_for_more = pool.is_exhausted and size == enough
        if size == largest or no_draws_for_more:
            return best
        is_fitted = min(float(one.path.objective[-1]) for one in tried) < _FITTED * construction.tol
        num_stalled = num_stalled + 1 if is_fitted else 0
        if num_stalled == _MAX_STALLED:
            return best
        if size >= LARGEST_FIRST_SIZE and is_hopeless(construction, best):
            return best
        if not is_final and 2 * size > LARGEST_FIRST_SIZE:
            return best
        closest = min(tried, key=lambda one: one.estimate.kl)
        if closest.estimate.kl > _OVERFITTED * float(closest.path.objective[-1]):
            draws_per_row = min(2 * draws_per_row, _MOST_DRAWS_PER_ROW)
        size = min(2 * size, largest)


def is_hopeless(construction: Construction, selection: Selection) -> bool:
    """Return whether the tolerance would need far more rows than are allowed."""
    if selection.rows_needed is None:
        return False
    largest = min(construction.max_size, construction.num_choices)
    growth = largest / min(largest, int(selection.sizes[-1]))
    return selection.rows_needed > _HOPELESS * math.sqrt(growth) * largest


def _tried(
    construction: Construction,
    pool: DrawPool,
    size: int,
    key: PRNGKeyArray,
    above: dict[Approach, int],
    before: list[Selection],
) -> list[Selection]:
    """Selections up to a maximum number of rows; the first is likely to have the fewest."""
    tried, longest = [], size
    for approach in construction.approaches(pool):
        if approach == "rows" and pool.expansion is not None:
            # Rows alone only matter if they are fewer; fewer than parameters never do.
            size = min([size, *(one.num_rows - 1 for one in tried if one.is_within)])
            if size < construction.num_params or _are_far_worse(construction, size, before):
                continue
        known = above.get(approach, 0)
        tried.append(construction.select(pool, size, key, approach, above=known, longest=longest))
    return tried


def _are_far_worse(construction: Construction, size: int, before: list[Selection]) -> bool:
    """Return whether rows alone were far worse than rows with an expansion, and will stay so."""
    if size >= _FAR_FEWER * num_features(construction.num_params):
        return False
    errors = {one.approach: one.estimate.kl for one in before}  # the last of each
    return errors.get("rows", 0.0) > _FAR_WORSE * errors.get("proxy and rows", np.inf)


def _rows_needed(construction: Construction, found: list[Selection]) -> int | None:
    """How many rows the tolerance would need if the error kept falling at the same rate.

    None if that is not known: too few sizes were tried, only a mean is still off, or rows alone
    have not matched the log-posterior's second derivatives yet, after which their error falls
    faster.
    """
    assert construction.tol is not None
    approach = min(found, key=lambda one: one.estimate.upper).approach
    errors = {int(one.sizes[-1]): one.estimate.kl for one in found if one.approach == approach}
    last = sorted(errors)[-_SIZES_OF_TREND:]
    is_quadratic = approach == "rows" and last[-1] < num_features(construction.num_params)
    if approach == "proxy" or is_quadratic or len(last) < _SIZES_OF_TREND:
        return None
    needed = extrapolate(last, [errors[size] for size in last], construction.tol)
    return None if needed is None else int(min(needed, construction.num_choices))


def extrapolate(sizes: Sequence[int], errors: Sequence[float], tol: float) -> float | None:
    """The size that meets a tolerance if the error keeps falling as the same power of the size.

    The power is that of the steepest step, since the error of a well-filled coreset falls faster.

    Args:
        sizes: sizes in increasing order.
        errors: their errors, in nats.
        tol: the tolerance, in nats.

    Returns:
        The size, infinite if the error hardly falls; None if the last error is within the
        tolerance, or an error is not a positive number.
    """
    if not (np.isfinite(errors).all() and min(errors) > 0 and errors[-1] > tol):
        return None
    power = float(np.max(-np.diff(np.log(errors)) / np.diff(np.log(sizes))))
    if power < _SLOWEST:
        return math.inf
    return sizes[-1] * (errors[-1] / tol) ** (1 / power)
