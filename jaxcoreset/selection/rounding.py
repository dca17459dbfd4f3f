"""The best of several selections, among those whose density float32 can hold.

Beside an expansion a row only corrects what the expansion misses, so its weight may be a million.
The log-density of a row is rounded to about 1e-7 nats in float32, and the rounding is multiplied by
the weight. The last rows of a path then improve an error that is negligible, and make a coreset on
which NUTS in float32 does not mix. The maximum number of rows is only a maximum, so a smaller size
of the path is chosen there.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from jaxcoreset.likelihood.precision import (
    MAX_ENERGY_ERROR,
    MAX_NOISE,
    energy_errors,
    samples_in_float64,
)
from jaxcoreset.selection.draws import DrawPool
from jaxcoreset.selection.estimate import estimate_on
from jaxcoreset.selection.tolerance import Selection

# In nats. The first limit that a size can be within is used, since NUTS takes fewer steps if the
# rounding is far below the second one.
_LIMITS = (MAX_ENERGY_ERROR / 5, MAX_ENERGY_ERROR)


def best_of(pool: DrawPool, found: Sequence[Selection]) -> Selection:
    """The selection with the smallest error, or one nearly as good that is rounded less.

    If the rounding of the best selection is too large for NUTS in float32, the largest size of its
    path is taken whose rounding is not, and whose error is larger by at most `MAX_NOISE`, which is
    as much as rounding may add to an error elsewhere. If there is none, the other selections are
    tried, and then the best one is returned.

    Args:
        pool: the draws and candidates.
        found: selections without a tolerance, one for each approach.
    """
    ranked = sorted(found, key=lambda one: one.estimate.kl)
    best = ranked[0].among(pool.indices)
    if samples_in_float64(pool.likelihood) or not best.num_rows:
        return best
    if _rounding(pool, best, np.array([best.at]))[0] <= MAX_ENERGY_ERROR:
        return best
    most = best.estimate.kl + MAX_NOISE
    precise = (_precise(pool, one.among(pool.indices), most) for one in ranked)
    return next((one for one in precise if one is not None), best)


def _precise(pool: DrawPool, selection: Selection, most: float) -> Selection | None:
    """The largest size with a small rounding and an error of at most `most`; None without one."""
    entries = np.flatnonzero(selection.curve["kl"] <= most)
    rounding = _rounding(pool, selection, entries)
    for limit in _LIMITS:
        within = entries[rounding <= limit]
        if within.size:
            at = int(within[-1])
            estimate = estimate_on(selection.curve, at)
            return dataclasses.replace(selection, at=at, estimate=estimate)
    return None


def _rounding(
    pool: DrawPool, selection: Selection, entries: Int[np.ndarray, " c"]
) -> Float[np.ndarray, " c"]:
    """The rounding of some entries of a path, in nats, by the first process for all of them."""
    weights = np.asarray(selection.path.weights, np.float64)[entries]
    indices = np.asarray(selection.path.indices, np.int64)[entries]
    is_used = weights > 0
    # The rows of all entries are evaluated once.
    rows, places = np.unique(indices[is_used], return_inverse=True)
    of_rows = np.zeros((len(entries), rows.size))
    of_rows[np.nonzero(is_used)[0], places] = weights[is_used]
    draws = pool.parts("solver")[0].draws
    found = energy_errors(pool.likelihood, draws, pool.data_of(rows), of_rows)
    return pool.likelihood.rows.context.processes.first({"rounding": found})["rounding"]
