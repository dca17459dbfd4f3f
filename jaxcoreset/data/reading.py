"""Rows of arrays in memory and of sources, by one set of functions.

The arrays are leaves of a model's arguments, each with the same n rows: `np.ndarray`, `jax.Array`,
`np.memmap` (NumPy's mapped files) and `SourceArray` in any mixture.
"""

import threading
from collections import deque
from collections.abc import Generator, Sequence
from sys import is_finalizing
from typing import Any

import jax
import numpy as np

from jaxcoreset.data.arrays import leading
from jaxcoreset.data.fingerprint import Hash, file_state
from jaxcoreset.data.sources.base import RowSource, SourceArray, checked_rows
from jaxcoreset.data.sources.npy import check_unchanged
from jaxcoreset.data.utils import check_int

_WHOLE_BYTES = 1 << 28
_SAMPLE_ROWS = 4096
# How long a consumer that stops half way waits for what is being read at that moment.
_FAREWELL_SECONDS = 5.0
_TURN_SECONDS = 0.5


def is_streamed(leaf: Any) -> bool:
    """Whether an array is read from where it is kept, rather than being in memory."""
    return isinstance(leaf, SourceArray | np.memmap)


def take_rows(leaves: Sequence[Any], rows: Any) -> tuple[Any, ...]:
    """Some rows of each array.

    Args:
        leaves: arrays with n rows each.
        rows: row numbers of shape (m,), in any order, with repeats.

    Returns:
        Arrays with m rows in the order of `rows`: JAX arrays of JAX arrays, NumPy arrays of all
        others. Arrays of one source are read together.

    Raises:
        IndexError: if there is no such row.
    """
    rows = checked_rows(rows, leading(list(leaves), "leaves"), "the arrays")
    taken = {id(source): source.take(rows) for source in _sources(leaves)}
    return tuple(
        taken[id(leaf.source)][leaf.leaf]
        if isinstance(leaf, SourceArray)
        else _in_memory(leaf, rows)
        for leaf in leaves
    )


def _in_memory(leaf: Any, rows: np.ndarray) -> Any:
    if isinstance(leaf, jax.Array):
        return leaf[rows]
    if not isinstance(leaf, np.memmap):
        return np.asarray(leaf)[rows]
    check_unchanged(leaf)
    taken = np.asarray(leaf)[rows]
    check_unchanged(leaf)
    return taken


def fingerprint(leaves: Sequence[Any]) -> str:
    """A short hash that differs, as far as a look shows, where the arrays do.

    Arrays in memory are looked at whole up to 256 MB, and at rows far apart beyond; of mapped files
    and sources, size and time of change count too. A single number is an array as well.
    """
    mark = Hash("rows", len(leaves))
    of_source = {id(source): source.fingerprint() for source in _sources(leaves)}
    for leaf in leaves:
        if isinstance(leaf, SourceArray):
            mark.add(of_source[id(leaf.source)], leaf.leaf)
            continue
        mark.add(leaf.shape)
        if isinstance(leaf, np.memmap) and leaf.filename is not None:
            mark.add(file_state(leaf.filename))
        # A single number, as an array or NumPy's own, has no rows to choose among.
        is_mapped = isinstance(leaf, np.memmap)
        whole = leaf.ndim == 0 or (leaf.nbytes <= _WHOLE_BYTES and not is_mapped)
        mark.array(np.asarray(leaf if whole else leaf[:: max(1, len(leaf) // _SAMPLE_ROWS)]))
    return mark.hex()


def read_chunks(
    leaves: Sequence[Any], size: int, first: int = 0, *, prefetch: int = 2
) -> Generator[tuple[int, tuple[Any, ...]], None, None]:
    """The rows of all arrays in order, in chunks of one size.

    Where an array has to be read, a thread reads ahead while the caller works on a chunk; it ends
    with the iterator, also where that is left half way. What goes wrong in it is raised here.
    Arrays in memory alone are cut without a thread, NumPy's without a copy.

    Args:
        leaves: arrays with n rows each.
        size: rows of a chunk; the last may have fewer.
        first: the row to begin with.
        prefetch: chunks that are read ahead at most; with 0 there is no thread.

    Yields:
        The number of a chunk's first row, and the chunk of each array.

    Raises:
        ValueError: if the arrays have no common number of rows, or a setting is out of range.
        SourceError: while iterating, if the rows are not what their source was described as.
    """
    num_rows = leading(list(leaves), "leaves")
    size, first = check_int("size", size, 1), check_int("first", first, 0)
    prefetch = check_int("prefetch", prefetch, 0)
    leaves = tuple(leaves)
    if not any(map(is_streamed, leaves)):
        return _cut(leaves, num_rows, size, first)
    streamed = _read_streamed(leaves, num_rows, size, first)
    if prefetch:
        streamed = _ahead(streamed, prefetch)
    return _joined(leaves, streamed, size, num_rows)


def _cut(
    leaves: Sequence[Any], num_rows: int, size: int, first: int
) -> Generator[tuple[int, tuple[Any, ...]], None, None]:
    for start in range(first, num_rows, size):
        yield start, tuple(_slice(leaf, start, min(size, num_rows - start)) for leaf in leaves)


def _slice(leaf: Any, start: int, size: int) -> Any:
    if isinstance(leaf, jax.Array):  # with the start as data, so that all chunks share a program
        return jax.lax.dynamic_slice_in_dim(leaf, start, size)
    return leaf[start : start + size]


def _joined(
    leaves: Sequence[Any],
    streamed: Generator[tuple[int, dict[int, np.ndarray]], None, None],
    size: int,
    num_rows: int,
) -> Generator[tuple[int, tuple[Any, ...]], None, None]:
    """Chunks of all arrays, where those that are streamed come from elsewhere."""
    try:
        for start, read in streamed:
            rows = min(size, num_rows - start)
            yield (
                start,
                tuple(
                    read[i] if i in read else _slice(leaf, start, rows)
                    for i, leaf in enumerate(leaves)
                ),
            )
    finally:
        streamed.close()


def _read_streamed(
    leaves: Sequence[Any], num_rows: int, size: int, first: int
) -> Generator[tuple[int, dict[int, np.ndarray]], None, None]:
    """Chunks of the arrays that are streamed, by their positions."""
    sources = _sources(leaves)
    readers = [_resized(source, size, first) for source in sources]
    mapped = [leaf for leaf in leaves if isinstance(leaf, np.memmap)]
    try:
        for leaf in mapped:
            check_unchanged(leaf)
        for start in range(first, num_rows, size):
            parts = {
                id(source): next(reader) for source, reader in zip(sources, readers, strict=True)
            }
            chunk = {}
            for i, leaf in enumerate(leaves):
                if isinstance(leaf, SourceArray):
                    chunk[i] = parts[id(leaf.source)][leaf.leaf]
                elif isinstance(leaf, np.memmap):  # the copy is what reads the file
                    chunk[i] = np.array(leaf[start : start + size])
            if start + size >= num_rows:
                for reader in readers:  # to the end, where a source sees whether rows are left over
                    next(reader, None)
            for leaf in mapped:
                check_unchanged(leaf)
            yield start, chunk
    finally:
        for reader in readers:
            reader.close()


def _resized(
    source: RowSource, size: int, first: int
) -> Generator[tuple[np.ndarray, ...], None, None]:
    """Batches of a source, cut and joined to one size."""
    parts: list[tuple[np.ndarray, ...]] = []
    held = 0
    batches = source.batches(first)
    try:
        for start, leaves in batches:
            begin, rows = max(first - start, 0), len(leaves[0])
            while begin < rows:
                end = min(rows, begin + size - held)
                parts.append(tuple(leaf[begin:end] for leaf in leaves))
                held += end - begin
                begin = end
                if held == size:
                    yield _concatenated(parts)
                    parts, held = [], 0
        if parts:
            yield _concatenated(parts)
    finally:
        close = getattr(batches, "close", None)
        if callable(close):
            close()


def _concatenated(parts: list[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    if len(parts) == 1:
        return parts[0]
    return tuple(np.concatenate(leaf) for leaf in zip(*parts, strict=True))


def _sources(leaves: Sequence[Any]) -> list[RowSource]:
    """The sources of arrays, each once."""
    found = {id(leaf.source): leaf.source for leaf in leaves if isinstance(leaf, SourceArray)}
    return list(found.values())


class _Shelf:
    """Where a reader leaves chunks for the one who uses them; at most so many at a time."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[Any] = deque()
        self._change = threading.Condition()
        self._closed = False  # no one takes any more
        self._ended = False  # no more will come
        self._error: BaseException | None = None

    def fill(self, items: Generator[Any, None, None]) -> None:
        """Leave all items, until they end or no one wants them. For the reader's thread."""
        try:
            for item in items:
                if not self._put(item):
                    break
        except BaseException as error:  # the consumer raises it
            self._error = error
        finally:
            try:
                items.close()
            finally:
                with self._change:
                    self._ended = True
                    self._change.notify_all()

    def _put(self, item: Any) -> bool:
        with self._change:
            self._change.wait_for(lambda: self._closed or len(self._items) < self._limit)
            if not self._closed:
                self._items.append(item)
                self._change.notify_all()
            return not self._closed

    def take(self) -> tuple[Any, ...]:
        """The next item in a tuple, which is empty at the end; raises what the reader met."""
        with self._change:
            # By turns: a signal that comes just before a wait is seen only after it.
            while not self._change.wait_for(lambda: self._items or self._ended, _TURN_SECONDS):
                pass
            if self._items:
                item = self._items.popleft()
                self._change.notify_all()
                return (item,)
            error, self._error = self._error, None
        try:
            if error is not None:
                raise error
            return ()
        finally:
            del error  # its traceback holds this frame

    def close(self) -> None:
        """Send the reader home."""
        with self._change:
            self._closed = True
            self._items.clear()
            self._change.notify_all()


def _ahead(items: Generator[Any, None, None], prefetch: int) -> Generator[Any, None, None]:
    """The same items, made by a thread that is ahead of the consumer."""
    shelf = _Shelf(prefetch)
    # Nothing may wait for it when the interpreter ends with an iterator half way.
    reader = threading.Thread(target=shelf.fill, args=(items,), name="read ahead", daemon=True)
    reader.start()
    ending = is_finalizing  # the module's own names may be gone when it is asked
    try:
        while taken := shelf.take():
            yield taken[0]
            del taken
    finally:
        if not ending():  # threads have stopped by then, maybe inside the lock
            shelf.close()
            if reader is not threading.current_thread():  # the garbage collector may run in it
                reader.join(_FAREWELL_SECONDS)
