"""Equal rows that are evaluated once, by passes that only add rows up."""

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int, PyTree

from jaxcoreset.data.blocks import row_bytes

# Equal rows are evaluated once where the distinct ones are at most this part of all, and a copy of
# them takes at most these bytes.
_LARGEST_PART, _MOST_BYTES = 0.25, 1 << 28
# A pass over distinct rows returns this many numbers to the host at a time, for each piece of it.
_MOST_NUMBERS = 1 << 20


@dataclass(eq=False)
class Folding:
    """The distinct ones of all rows.

    Attributes:
        all_rows: the rows.
        first: shape (m,), the lowest number of each distinct row, in increasing order.
        counts: shape (m,), how often each occurs.
    """

    all_rows: Any
    first: Int[np.ndarray, " m"]
    counts: Float[np.ndarray, " m"]

    def context(self, context: Any, width: int) -> Any:
        """The `PassContext` of a pass that returns `width` numbers of each distinct row."""
        return replace(context, batch_size=max(1, _MOST_NUMBERS // width)) if width else context

    @functools.cached_property
    def data(self) -> PyTree:
        """The distinct rows."""
        return self.all_rows.take(self.first)


def folding_of(all_rows: Any, distinct: Any) -> Folding | None:
    """The distinct rows, if a pass over these saves work; None if not, or on several processes.

    Args:
        all_rows: the `Rows`.
        distinct: their `DistinctRows`; None if these are not known.
    """
    if distinct is None or not all_rows.is_local:
        return None
    num = distinct.first.size
    if num > _LARGEST_PART * all_rows.num_rows or num * row_bytes(all_rows.data) > _MOST_BYTES:
        return None
    return Folding(all_rows, distinct.first, distinct.counts.astype(np.float64))
