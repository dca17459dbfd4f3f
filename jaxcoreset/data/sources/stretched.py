"""A source whose rows are groups of one row: each array has a further axis, of length 1."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxcoreset.data.sources.base import RawBatch, RowSource, SourceArray


def with_an_axis(leaf: Any) -> Any:
    """An array of shape (n, …) as one of (n, 1, …), which is read as before."""
    if not isinstance(leaf, SourceArray):
        return leaf[:, None] if isinstance(leaf, np.ndarray) else np.asarray(leaf)[:, None]
    return SourceArray(_stretched(leaf.source), leaf.leaf)


def _stretched(source: RowSource) -> "_Stretched":
    # Arrays of one source are read together, so that they need one object.
    found = getattr(source, "_as_groups", None)
    if found is None:
        found = source._as_groups = _Stretched(source)  # type: ignore[attr-defined]
    return found


class _Stretched(RowSource):
    def __init__(self, source: RowSource):
        super().__init__(
            source.name,
            source.num_rows,
            source.tree,
            [(1, *leaf.shape[1:]) for leaf in source.leaves],
            [leaf.dtype for leaf in source.leaves],
            allow_nonfinite=True,
        )
        self._source, self.random_access = source, source.random_access

    def fingerprint(self) -> str:
        return self._source.fingerprint()

    def take(self, rows: Any) -> tuple[np.ndarray, ...]:
        return tuple(leaf[:, None] for leaf in self._source.take(rows))

    def _read(self, first: int) -> Iterator[RawBatch]:
        for start, leaves in self._source.batches(first):
            yield RawBatch("", start, tuple(leaf[:, None] for leaf in leaves))
