"""Checks of a predictive distribution by test statistics, added up over blocks of rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from jaxcoreset.data.blocks import pairwise_sum
from jaxcoreset.data.dtypes import is_float
from jaxcoreset.data.messages import listed
from jaxcoreset.diagnostics.simulation import Drawn

# Over the blocks of a group, and over groups; over the rows of a block by bin, and what stands for
# a row that does not count.
_REDUCE = {
    "mean": (np.sum, np.add, jax.ops.segment_sum, 0.0),
    "max": (np.max, np.maximum, jax.ops.segment_max, -np.inf),
    "min": (np.min, np.minimum, jax.ops.segment_min, np.inf),
}


@dataclass(frozen=True, eq=False)
class PredictiveCheck:
    """A test statistic of the data, and of replicated data sets from the posterior predictive.

    Attributes:
        observed: the statistic of the data, shape (bins, …), without bins a number or (j,).
        replicated: that of the replicated data sets, of shape (num_draws, …).
    """

    observed: np.ndarray
    replicated: np.ndarray

    @property
    def p_value(self) -> np.ndarray:
        """The share of replicated data sets whose statistic is larger than that of the data.

        Those with the same statistic count half (the mid-p-value). So a statistic that is the same
        in all of them, such as the maximum of zeros and ones, has the value 0.5. Values near 0 or 1
        show that the model does not reproduce the statistic. Where a statistic is NaN, as in a bin
        without rows, the value is NaN.
        """
        larger = np.mean(self.replicated > self.observed, axis=0)
        found = larger + np.mean(self.replicated == self.observed, axis=0) / 2
        is_missing = np.isnan(self.observed) | np.isnan(self.replicated).any(axis=0)
        return np.asarray(np.where(is_missing, np.nan, found))

    def __repr__(self) -> str:
        if np.ndim(self.observed):
            extreme = np.count_nonzero((self.p_value < 0.05) | (self.p_value > 0.95))
            size = np.count_nonzero(~np.isnan(self.p_value))
            return f"<PredictiveCheck: {extreme} of {size} values outside the 90 % interval>"
        low, high = np.quantile(self.replicated, [0.05, 0.95], axis=0)
        return (
            f"<PredictiveCheck: observed {self.observed:.4g}, replicated {low:.4g} to {high:.4g} "
            f"(90 %), p = {self.p_value:.3f}>"
        )


def check_statistic(
    blocks: Callable[..., Any],
    kept: Bool[np.ndarray, " n"],
    site: str,
    statistic: Callable[[Array], Array],
    reduce: str,
    of: Callable[[Array], Array] | None,
    bins: np.ndarray | None,
) -> PredictiveCheck:
    """See `Prediction.check`.

    Args:
        blocks: ``blocks(reduce, per_row)`` yields what ``reduce`` makes of every block.
        kept: the rows that count; no entry of them is masked.
        site: the observed site.
        statistic: see `Prediction.check`.
        reduce: see `Prediction.check`.
        of: see `Prediction.check`.
        bins: see `Prediction.check`.
    """
    if reduce not in _REDUCE:
        raise ValueError(f"reduce is {reduce!r}; expected one of {listed(list(_REDUCE))}.")
    num_rows = kept.size
    at = np.zeros(num_rows, np.int32) if bins is None else bins
    if at.shape != (num_rows,) or at.dtype.kind not in "iu" or at.min() < 0:
        raise ValueError(
            f"bins has shape {at.shape} and dtype {at.dtype}; expected {num_rows} whole numbers "
            "from 0 on."
        )
    if not kept.any():
        raise ValueError(
            f"the model masks entries of site {site!r} in all {num_rows} rows, so there is nothing "
            "to compare; expected rows that are observed."
        )
    at, num_bins = at.astype(np.int32), int(at.max()) + 1
    over, add, _, _ = _REDUCE[reduce]
    totals = None
    for _, _, parts in blocks(_Statistics(statistic, site, reduce, num_bins), (at, kept)):
        parts = [over(x, axis=0) for x in parts]
        totals = parts if totals is None else [*map(add, totals, parts)]
    assert totals is not None
    counts = np.bincount(at[kept], minlength=num_bins)
    divisors = np.where(counts > 0, counts if reduce == "mean" else 1, np.nan)
    totals = [x / divisors.reshape(1, -1, *[1] * (x.ndim - 2)) for x in totals]
    if of is not None:
        with jax.enable_x64(True):
            evaluate = jax.vmap(jax.vmap(of))
            totals = [np.asarray(evaluate(jnp.asarray(x))) for x in totals]
    replicated, observed = (x[:, 0] if bins is None else x for x in totals)
    return PredictiveCheck(np.asarray(observed[0]), replicated)


@dataclass(frozen=True, eq=False)
class _Statistics:
    """Statistics of a block's rows by bin, of every draw and of the observations."""

    statistic: Callable
    site: str
    reduce: str
    num_bins: int

    def __call__(self, drawn: Drawn, per_row: tuple, counted: Array) -> tuple:
        at, kept = per_row
        counted = counted & kept
        # The difference of two means of squares, such as a variance, loses most digits of float32.
        with jax.enable_x64(True):
            values, given = (_wide(x[self.site]) for x in (drawn.values, drawn.observed))
            replicated = jax.vmap(self._of_data, (1, None, None))(values, at, counted)
            return replicated, self._of_data(given, at, counted)[None]

    def _of_data(self, values: Array, at: Array, counted: Array) -> Array:
        found = jnp.asarray(self.statistic(values))
        if found.shape[:1] != at.shape:
            raise ValueError(
                f"statistic returned shape {found.shape} for {at.size} rows; expected one number "
                "for each row, (m,), or several, (m, j)."
            )
        found = found.astype(np.float64)
        counted = counted.reshape(-1, *[1] * (found.ndim - 1))
        _, _, reduce, nothing = _REDUCE[self.reduce]
        found = jnp.where(counted, found, nothing)
        if self.reduce == "mean" and self.num_bins == 1:
            return pairwise_sum(found)[None]
        return reduce(found, at, self.num_bins)


def _wide(values: Array) -> Array:
    """Numbers in float64 and int64, so that their squares are exact enough and do not overflow."""
    if is_float(values.dtype):
        return values.astype(np.float64)
    return values.astype(np.int64) if jnp.issubdtype(values.dtype, jnp.integer) else values
