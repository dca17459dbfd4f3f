"""Read rows of arrays in memory and of sources with the same functions.

The arrays are leaves of a model's arguments, each with n rows: `np.ndarray`, `jax.Array`,
`np.memmap` (NumPy's memory-mapped files) and `SourceArray`, in any combination.
"""

import contextlib
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcoreset.data.arrays import leading
from jaxcoreset.data.dtypes import check_held
from jaxcoreset.data.fingerprint import Hash, file_state
from jaxcoreset.data.sources.base import RowSource, SourceArray, checked_rows, close
from jaxcoreset.data.sources.npy import check_unchanged
from jaxcoreset.data.utils import check_int

_WHOLE_BYTES = 1 << 28
_SAMPLE_ROWS = 4096
# How long a consumer that stops early waits for what is being read at that moment.
_CLOSE_SECONDS = 5.0


def is_streamed(leaf: Any) -> bool:
    """Return whether an array is read from files or batches and is not in memory."""
    return isinstance(leaf, SourceArray | np.memmap)


def take_rows(leaves: Sequence[Any], rows: Any) -> tuple[Any, ...]:
    """Take some rows of each array.

    Args:
        leaves: arrays with n rows each.
        rows: row numbers of shape (m,), in any order, with repeats.

    Returns:
        Arrays with m rows in the order of `rows`: JAX arrays for JAX arrays, NumPy arrays for all
        other kinds. Arrays of one source are read together.

    Raises:
        IndexError: if a row number is out of range.
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
        if len(leaf.devices()) == 1 or not leaf.is_fully_addressable:
            return leaf[rows]
        # A few rows of an array on several devices: programs on one are faster, and their sums do
        # not depend on the number of devices.
        with jax.enable_x64(leaf.dtype.itemsize == 8):
            return jnp.asarray(np.asarray(leaf[rows]))
    if not isinstance(leaf, np.memmap):
        return np.asarray(leaf)[rows]
    check_unchanged(leaf)
    taken = np.asarray(leaf)[rows]
    check_unchanged(leaf)
    return taken


def fingerprint(leaves: Sequence[Any]) -> str:
    """A short hash that distinguishes the arrays from other ones, without reading everything.

    Arrays in memory are hashed as a whole up to 256 MB, and larger ones at evenly spaced rows. For
    mapped files and sources, the size and the modification time are included. A single number is
    also an array.
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
    """Iterate over the rows of all arrays in order, in chunks of one size.

    If an array has to be read, a thread reads ahead while the caller works on a chunk. The thread
    ends with the iterator, even if the caller stops early, and its errors are raised by the
    iterator. Arrays that are all in memory are sliced without a thread.

    Args:
        leaves: arrays with n rows each.
        size: the number of rows of a chunk; the last one may have fewer.
        first: the first row.
        prefetch: the maximum number of chunks that are read ahead; 0 starts no thread.

    Yields:
        The number of a chunk's first row, and the chunk of each array.

    Raises:
        ValueError: if the arrays have no common number of rows, or a setting is out of range.
        SourceError: during iteration, if the rows do not match the description of their source.
    """
    num_rows = leading(list(leaves), "leaves")
    size, first = check_int("size", size, 1), check_int("first", first, 0)
    prefetch = check_int("prefetch", prefetch, 0)
    leaves = tuple(leaves)
    if not any(map(is_streamed, leaves)):
        chunks = ((start, {}) for start in range(first, num_rows, size))
    else:
        chunks = _read_streamed(leaves, num_rows, size, first)
        chunks = _ahead(chunks, prefetch) if prefetch else chunks
    return _joined(leaves, chunks, size, num_rows)


def _slice(leaf: Any, start: int, size: int) -> Any:
    if isinstance(leaf, jax.Array):  # the start is an argument: one program for all chunks
        return jax.lax.dynamic_slice_in_dim(leaf, start, size)
    return leaf[start : start + size]


def _joined(
    leaves: Sequence[Any],
    streamed: Generator[tuple[int, dict[int, np.ndarray]], None, None],
    size: int,
    num_rows: int,
) -> Generator[tuple[int, tuple[Any, ...]], None, None]:
    """Chunks of all arrays, given those of the streamed ones."""
    try:
        for start, read in streamed:
            rows = min(size, num_rows - start)
            chunk = (
                read[i] if i in read else _slice(leaf, start, rows) for i, leaf in enumerate(leaves)
            )
            yield start, tuple(chunk)
    finally:
        streamed.close()


def _read_streamed(
    leaves: Sequence[Any], num_rows: int, size: int, first: int
) -> Generator[tuple[int, dict[int, np.ndarray]], None, None]:
    """Chunks of the streamed arrays, by position among `leaves`."""
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
                    check_held(chunk[i], str(leaf.filename), start)
            if start + size >= num_rows:
                for reader in readers:  # a source checks at its end that there are no further rows
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
    """Batches of a source, split and joined to one size."""
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
        close(batches)


def _concatenated(parts: list[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    if len(parts) == 1:
        return parts[0]
    return tuple(np.concatenate(leaf) for leaf in zip(*parts, strict=True))


def _sources(leaves: Sequence[Any]) -> list[RowSource]:
    """The distinct sources of the arrays."""
    found = {id(leaf.source): leaf.source for leaf in leaves if isinstance(leaf, SourceArray)}
    return list(found.values())


def _ahead(items: Generator[Any, None, None], prefetch: int) -> Generator[Any, None, None]:
    """The same items, made by a thread that is up to `prefetch` items ahead of the consumer."""
    end = object()
    pool = ThreadPoolExecutor(1, "read ahead")
    futures = deque(pool.submit(next, items, end) for _ in range(prefetch))
    try:
        while (item := futures.popleft().result()) is not end:
            futures.append(pool.submit(next, items, end))
            yield item
            del item
    finally:
        for future in futures:
            future.cancel()
        is_closed = False
        with contextlib.suppress(RuntimeError):  # the interpreter ends, and the thread has ended
            is_closed = not wait([pool.submit(items.close)], _CLOSE_SECONDS).not_done
        pool.shutdown(wait=is_closed)
