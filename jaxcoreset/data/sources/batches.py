"""Batches from your own program: a loader, a query, a list of arrays."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from jaxcoreset.data.columns import is_table, table_columns
from jaxcoreset.data.fingerprint import Hash
from jaxcoreset.data.messages import require
from jaxcoreset.data.sources.base import RawBatch, RowSource, SourceError, close
from jaxcoreset.data.utils import check_int

_AGAIN = (
    "It is read more than once: pass a list, an object whose __iter__ starts again, or a function "
    "without arguments that returns a new iterator, as batches(lambda: load(path), num_rows)."
)


@runtime_checkable
class CountedDataset(Protocol):
    """A data set of Arrow or its scanner, which each call of its methods reads anew."""

    def to_batches(self) -> Iterable[Any]:
        """The rows in order, in tables."""
        ...

    def count_rows(self) -> int:
        """The number of rows."""
        ...


def batches(
    iterable: Iterable[Any] | Callable[[], Iterable[Any]] | CountedDataset,
    num_rows: int | None = None,
    *,
    fingerprint: str | None = None,
    allow_nonfinite: bool = False,
) -> RowSource:
    """A source of the rows of anything that yields batches, the same ones in every pass.

    Args:
        iterable: a list, an object with ``__iter__``, or a function without arguments that returns
            an iterator. It yields pytrees of arrays with a common leading axis, whose length may
            differ from batch to batch; a data frame or an Arrow table is a dictionary of its
            columns. The function may also return an object with the Arrow C stream interface, such
            as a DuckDB relation. An object with `to_batches` and `count_rows`, such as
            `pyarrow.dataset.Dataset` or one of its scanners, is read by these methods. The first
            batch determines structure, shapes and types.
        num_rows: the total number of rows of all batches. You can omit it for an object that has
            `count_rows`.
        fingerprint: a value that changes with the data, such as a version or a date. A checkpoint
            compares it, and the first batch.
        allow_nonfinite: whether the data may contain NaN and infinities.

    Raises:
        SourceError: if it can be iterated over only once, has no batches, or yields no arrays.
        ValueError: if `num_rows` is not an integer of at least 1.
    """
    if isinstance(iterable, CountedDataset):
        num_rows = iterable.count_rows() if num_rows is None else num_rows
        iterable = iterable.to_batches
    elif num_rows is None:
        raise ValueError(
            "num_rows is missing; expected the total number of rows of all batches, which are not "
            "read to count them."
        )
    num_rows = check_int("num_rows", num_rows, 1)
    start = _starter(iterable)
    iterator = start()
    try:
        first = next(iterator, None)
    finally:
        close(iterator)
    if first is None:
        raise SourceError("batches yielded no batch; expected at least one.")
    leaves, tree = _flat(first)
    arrays = tuple(_as_array(leaf, 0, 0) for leaf in leaves)
    if any(not array.ndim for array in arrays):
        raise SourceError(
            "batches, batch 0: found a number; expected an array with one row per datum."
        )
    return _BatchSource(start, num_rows, tree, arrays, fingerprint, allow_nonfinite)


class _BatchSource(RowSource):
    def __init__(
        self,
        start: Callable[[], Iterator[Any]],
        num_rows: int,
        tree: Any,
        first: tuple[np.ndarray, ...],
        fingerprint: str | None,
        allow_nonfinite: bool,
    ) -> None:
        shapes = [array.shape[1:] for array in first]
        dtypes = [array.dtype for array in first]
        super().__init__("batches", num_rows, tree, shapes, dtypes, allow_nonfinite=allow_nonfinite)
        self._start = start
        mark = Hash("batches", num_rows, str(tree), fingerprint)
        for array in first:
            mark.array(array)
        self._mark = mark.hex()

    def fingerprint(self) -> str:
        return self._mark

    def _read(self, first: int) -> Iterator[RawBatch]:
        iterator, row, number = self._start(), 0, 0
        try:
            while True:
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
                except Exception as error:
                    error.add_note(f"This is from batch {number} of batches, at row {row:,}.")
                    raise
                leaves, tree = _flat(batch)
                if tree != self.tree:
                    raise SourceError(
                        f"batches, batch {number}, rows from {row:,}: the structure is {tree}; "
                        f"expected that of the first batch, {self.tree}."
                    )
                arrays = tuple(_as_array(leaf, number, row) for leaf in leaves)
                raw = RawBatch(f"batch {number}", row, arrays)
                _, _, count = raw.place
                if row + count > first or not count:
                    yield raw
                row, number = row + count, number + 1
        finally:
            close(iterator)


def _starter(source: Any) -> Callable[[], Iterator[Any]]:
    """What begins a pass.

    Raises:
        SourceError: if there can be but one.
    """
    if isinstance(source, np.ndarray | jax.Array):
        raise SourceError(
            f"batches was given an array of shape {source.shape}; expected batches of rows. Pass "
            "an array on as it is, or a list of parts of it."
        )
    if is_table(source):
        raise SourceError(
            f"batches was given a {type(source).__name__}, whose rows are in memory; expected "
            "batches of rows. Pass its columns to the builder as they are."
        )
    if hasattr(source, "__iter__"):
        if iter(source) is source:
            raise SourceError(
                f"batches was given a {type(source).__name__}, which can be read only "
                f"once. {_AGAIN}"
            )
        return lambda: iter(source)
    if not callable(source):
        raise SourceError(
            f"batches was given a {type(source).__name__}; expected an iterable of batches or a "
            f"function that returns one. {_AGAIN}"
        )

    def start() -> Iterator[Any]:
        made: Any = source()
        if not hasattr(made, "__next__") and hasattr(made, "__arrow_c_stream__"):
            require("pyarrow")
            import pyarrow as pa

            made = pa.RecordBatchReader.from_stream(made)
        if not hasattr(made, "__iter__"):
            raise SourceError(
                f"the function that batches was given returned a {type(made).__name__}; expected "
                f"an iterator over batches. {_AGAIN}"
            )
        return iter(made)

    one, two = start(), start()
    same = one is two
    close(one)
    close(two)
    if same:
        raise SourceError(
            "the function that batches was given returns the same iterator each time, which can "
            f"be read only once. {_AGAIN}"
        )
    return start


def _flat(batch: Any) -> tuple[list, Any]:
    """The leaves and the structure of a batch; tables in it are dictionaries of their columns."""
    arrays = jax.tree.map(
        lambda leaf: table_columns(leaf, "a batch") if is_table(leaf) else leaf, batch
    )
    return jax.tree.flatten(arrays)


def _as_array(leaf: Any, number: int, row: int) -> np.ndarray:
    if isinstance(leaf, jax.Array):
        return np.asarray(leaf)
    try:
        # A copy: loaders use one buffer for all their batches. A mask is kept, to be looked at.
        return np.ma.array(leaf, copy=True) if np.ma.isMaskedArray(leaf) else np.array(leaf)
    except (ValueError, TypeError) as error:
        raise SourceError(
            f"batches, batch {number}, rows from {row:,}: a {type(leaf).__name__} was found; "
            f"expected an array: {error}"
        ) from error
