"""Check that data are conditionally independent given the parameters.

A row's log-likelihood must not change when other rows are dropped. It does in a model that takes
something from all its rows, such as their mean, their range or which groups there are.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from jaxcoreset.data.dtypes import in_float64
from jaxcoreset.likelihood.arguments import ModelError
from jaxcoreset.likelihood.checks import refuse_changed_datum, refuse_changed_prior

# A change is this many float32 roundings at least, where float64 cannot tell it from rounding.
_FLOAT32_ROUNDINGS = 10
# The unit of rounding in float64 where parts of a model may be in float32, as its data are.
_MIXED_EPS = 1e-9


@dataclass(frozen=True, eq=False)
class Reference:
    """What the first checks of a model compiled and read, for later checks to use again.

    Attributes:
        evaluate: `ModelLikelihood.by_site`, compiled for a chunk of rows and for a small subset.
        num_subset: the number of rows of that subset.
        other_rows: a chunk of rows, where reading one again takes long; else None.
    """

    evaluate: Callable
    num_subset: int
    other_rows: tuple | None


class IndependenceCheck:
    """The values of a chunk of rows at one point, to compare with those of some of the rows alone.

    `evaluate` is `ModelLikelihood.by_site`, compiled.
    """

    def __init__(self, evaluate: Callable, params: Mapping, chunk: tuple):
        self.params, self.chunk = params, chunk
        self._evaluate = evaluate
        self._before = evaluate(params, chunk)

    def refuse_change(
        self,
        positions: Int[np.ndarray, " m"],
        rows: tuple,
        kept: slice = slice(None),
        among: Int[np.ndarray, " l"] | None = None,
    ) -> None:
        """Evaluate rows alone, and raise an error if their values are not those in the chunk.

        Args:
            positions: the positions, in the chunk, of the rows that are compared.
            rows: the rows that are evaluated.
            kept: which of these are compared.
            among: positions of the rows that set the size of rounding; by default `positions`.

        Raises:
            ModelError: a value has changed, both in float32 and in float64 if the model runs in it.
        """
        after = self._evaluate(self.params, rows)
        is_mixed = self._values_dtype == np.float64 and any(
            jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype != np.float64
            for leaf in self.chunk
        )
        try:
            eps = _MIXED_EPS if is_mixed else None
            self._compare(self._before, after, positions, kept, among, eps)
        except ModelError:
            if self._values_dtype == np.float64:
                raise
            # Rounded sums of large terms differ as well, as with counts in the thousands.
            eps = float(np.finfo(np.float32).eps)
            if (exact := self._in_float64(rows)) is None:
                self._compare(self._before, after, positions, kept, among, _FLOAT32_ROUNDINGS * eps)
            else:
                self._compare(exact[0], exact[1], positions, kept, among, eps)

    def refuse_small_change(
        self, positions: Int[np.ndarray, " m"], rows: tuple, kept: slice
    ) -> None:
        """As `refuse_change`, for a change that float32 hides, if the model runs in float64."""
        if (exact := self._in_float64(rows)) is not None:
            self._compare(exact[0], exact[1], positions, kept, None, _MIXED_EPS)

    @property
    def _values_dtype(self) -> np.dtype:
        return np.asarray(next(iter(self._before[0].values()))).dtype

    def _in_float64(self, rows: tuple) -> tuple | None:
        """The chunk and the rows evaluated in float64, or None if the model fixes its own types."""
        try:
            before, after = (
                in_float64(self._evaluate, self.params, data) for data in (self.chunk, rows)
            )
        except Exception:
            return None
        dtypes = {np.asarray(leaf).dtype for leaf in before[0].values()}
        return (before, after) if dtypes == {np.dtype(np.float64)} else None

    def _compare(
        self, before: tuple, after: tuple, positions: Any, kept: slice, among: Any, eps: Any
    ) -> None:
        num_before, num_after = self.chunk[0].shape[0], next(iter(after[0].values())).shape[0]
        for name, value in before[1].items():
            refuse_changed_prior(name, value, after[1][name], num_before, num_after, eps)
        for name, values in before[0].items():
            values = np.asarray(values)
            largest = None
            if among is not None:
                sizes = abs(values[among])
                largest = float(np.max(sizes, initial=0, where=np.isfinite(sizes)))
            alone = np.asarray(after[0][name])[kept]
            refuse_changed_datum(name, values[positions], alone, largest, eps)
