"""Rows by themselves held to what they are among others: they are to have the same values.

Each row's log-likelihood may depend on that row and the parameters alone. What a model takes from
all its rows, such as their mean, their range or which groups there are, is seen where others are
dropped.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from jaxcoreset.data.dtypes import in_float64
from jaxcoreset.likelihood.arguments import ModelError
from jaxcoreset.likelihood.checks import refuse_changed_datum, refuse_changed_prior

# Where float64 cannot tell a change from rounding, it is to be so many times what float32 allows.
_PLAIN = 10
# The unit of rounding in float64 where parts of a model may be in float32, as its data are.
_MIXED_EPS = 1e-9


@dataclass(frozen=True, eq=False)
class Few:
    """What the checks of the model leave for later ones.

    Attributes:
        evaluate: `ModelLikelihood._by_site`, compiled for a chunk of rows and for a few of them.
        count: how many those few are.
        others: a chunk of rows, where reading one again takes long; else None.
    """

    evaluate: Callable
    count: int
    others: tuple | None


class RowsApart:
    """A chunk of rows at one point, and what is left of their values where others are dropped."""

    def __init__(self, few: Few, params: Mapping, chunk: tuple):
        self.params, self.chunk = params, chunk
        self._evaluate = few.evaluate
        self._before = self._evaluate(params, chunk)

    def refuse_change(
        self,
        places: Int[np.ndarray, " m"],
        rows: tuple,
        kept: slice = slice(None),
        among: Int[np.ndarray, " l"] | None = None,
        *,
        is_fine: bool = False,
    ) -> None:
        """Evaluate rows alone, and want the values that they have in the chunk.

        Args:
            places: their places in it.
            rows: the rows that are evaluated.
            kept: those of them that are in the chunk.
            among: places of the rows whose log-likelihoods say what rounding is; by default these.
            is_fine: whether to look in float64 only, and for what float32 would call rounding.

        Raises:
            ModelError: a value has changed, in float32 and in float64, where that can be had.
        """
        if is_fine:
            if (exact := self._exact(rows)) is not None:
                self._compare(exact[0], exact[1], places, kept, among, _MIXED_EPS)
            return
        after = self._evaluate(self.params, rows)
        is_mixed = self._values_dtype == np.float64 and any(
            jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype != np.float64
            for leaf in self.chunk
        )
        try:
            eps = _MIXED_EPS if is_mixed else None
            self._compare(self._before, after, places, kept, among, eps)
        except ModelError:
            if self._values_dtype == np.float64:
                raise
            # Rounded sums of large terms differ as well, as with counts in the thousands.
            eps = float(np.finfo(np.float32).eps)
            if (exact := self._exact(rows)) is None:
                self._compare(self._before, after, places, kept, among, _PLAIN * eps)
            else:
                self._compare(exact[0], exact[1], places, kept, among, eps)

    @property
    def _values_dtype(self) -> np.dtype:
        return np.asarray(next(iter(self._before[0].values()))).dtype

    def _exact(self, rows: tuple) -> tuple | None:
        """Both evaluations in float64, or None where the model has types of its own."""
        try:
            before, after = (
                in_float64(self._evaluate, self.params, some) for some in (self.chunk, rows)
            )
        except Exception:
            return None
        kinds = {np.asarray(leaf).dtype for leaf in before[0].values()}
        return (before, after) if kinds == {np.dtype(np.float64)} else None

    def _compare(
        self,
        before: tuple,
        after: tuple,
        places: Int[np.ndarray, " m"],
        kept: slice,
        among: Int[np.ndarray, " l"] | None,
        eps: float | None = None,
    ) -> None:
        num_before, num_after = self.chunk[0].shape[0], next(iter(after[0].values())).shape[0]
        for name, value in before[1].items():
            refuse_changed_prior(name, value, after[1][name], num_before, num_after, eps)
        for name, values in before[0].items():
            values = np.asarray(values)
            largest = None
            if among is not None:
                largest = float(
                    np.max(abs(values[among]), initial=0, where=np.isfinite(values[among]))
                )
            alone = np.asarray(after[0][name])[kept]
            refuse_changed_datum(name, values[places], alone, largest, eps)
