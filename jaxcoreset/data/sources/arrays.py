"""Arrays of other libraries that are read by slices, such as HDF5 datasets and Zarr arrays."""

import os
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxcoreset.data.fingerprint import Hash, file_state
from jaxcoreset.data.sources.base import (
    BATCH_BYTES,
    RawBatch,
    RowSource,
    SourceError,
    changed,
    row_bytes,
)

_SAMPLE_ROWS = 64
# Rows that lie nearer than this many bytes are read in one go.
_NEAR_BYTES = 1 << 16
# A chunk with more bytes than this number of batches is read in parts, though that costs time.
_LARGE_CHUNK = 8


def array(dataset: Any = None, /, *, allow_nonfinite: bool = False, **datasets: Any) -> RowSource:
    """A source of the rows of one or more arrays that are read by slices of the first axis.

    Args:
        dataset: an array, or a pytree of arrays with the same number of rows. An array is anything
            with a shape, a type and slices, such as `h5py.Dataset` and `zarr.Array`. Keep its file
            open while you use the source.
        allow_nonfinite: whether the data may contain NaN and infinities.
        **datasets: several arrays by name, instead of `dataset`.

    Returns:
        A source whose batches have the structure of `dataset`, or are dictionaries by name.

    Raises:
        SourceError: if something else is passed, or the arrays have different numbers of rows.
    """
    if (dataset is None) == (not datasets):
        found = "one array and named ones" if datasets else "no array"
        raise SourceError(f"array was given {found}; expected one array, or several by name.")
    leaves, tree = jax.tree.flatten(
        datasets if dataset is None else dataset, is_leaf=lambda x: hasattr(x, "dtype")
    )
    if not leaves:
        raise SourceError("array was given a structure without arrays; expected at least one.")
    for leaf in leaves:
        if not all(hasattr(leaf, name) for name in ("shape", "dtype", "__getitem__")):
            raise SourceError(
                f"array was given a {type(leaf).__name__}; expected arrays with a shape, a type "
                "and slices, such as h5py.Dataset or zarr.Array. Pass the arrays of a group by "
                "name."
            )
        if not leaf.shape:
            raise SourceError("array was given a single number; expected one row per datum.")
    if len({leaf.shape[0] for leaf in leaves}) > 1:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves)
        raise SourceError(
            f"array was given the shapes {shapes}; expected the same number of rows in each."
        )
    return _ArraySource(tree, tuple(leaves), allow_nonfinite)


class _ArraySource(RowSource):
    random_access = True

    def __init__(self, tree: Any, datasets: tuple[Any, ...], allow_nonfinite: bool) -> None:
        self._files = sorted({name for name in map(_file_of, datasets) if name})
        super().__init__(
            ", ".join(self._files) or "array",
            int(datasets[0].shape[0]),
            tree,
            [tuple(dataset.shape[1:]) for dataset in datasets],
            [dataset.dtype for dataset in datasets],
            allow_nonfinite=allow_nonfinite,
        )
        self._datasets = datasets
        self._state = tuple(map(file_state, self._files))
        # A chunk is decompressed as a whole, so whole chunks of the widest rows are what to read.
        fits = max(1, BATCH_BYTES // max(self.row_bytes, 1))
        chunk = _chunk_rows(max(datasets, key=lambda dataset: row_bytes([dataset])))
        self._chunk = chunk if chunk <= _LARGE_CHUNK * fits else 1
        self._size = max(fits - fits % self._chunk, self._chunk)

    def fingerprint(self) -> str:
        mark = Hash("array", [(x.shape, np.dtype(x.dtype).name) for x in self.leaves])
        mark.add(self._state)
        last = max(self.num_rows - _SAMPLE_ROWS, 0)
        for start in sorted({0, last // 2, last}):
            for part in self._slice(start, min(start + _SAMPLE_ROWS, self.num_rows)):
                mark.array(part)
        return mark.hex()

    def _read(self, first: int) -> Iterator[RawBatch]:
        self._check_unchanged()
        for start in range(first - first % self._size, self.num_rows, self._size):
            stop = min(start + self._size, self.num_rows)
            yield RawBatch(f"batch {start // self._size}", start, self._slice(start, stop))
        self._check_unchanged()

    def _read_holding(self, rows: np.ndarray) -> Iterator[RawBatch]:
        self._check_unchanged()
        near = self._chunk if self._chunk > 1 else max(1, _NEAR_BYTES // max(self.row_bytes, 1))
        begins = np.flatnonzero(np.diff(rows // near, prepend=-1))
        for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True):
            start, stop = int(rows[begin]), int(rows[end - 1]) + 1
            yield RawBatch(f"batch {start // self._size}", start, self._slice(start, stop))

    def _slice(self, start: int, stop: int) -> tuple[np.ndarray, ...]:
        try:
            parts = (dataset[start:stop] for dataset in self._datasets)
            return tuple(part if np.ma.isMaskedArray(part) else np.asarray(part) for part in parts)
        except Exception as error:  # each library has errors of its own
            self._check_unchanged()
            raise self.error(
                f"batch {start // self._size}",
                start,
                stop - start,
                f"cannot be read: {type(error).__name__}: {error}. Keep the file open while it is "
                "used; if it is damaged, write it again.",
            ) from error

    def _check_unchanged(self) -> None:
        for file, state in zip(self._files, self._state, strict=True):
            if not os.path.exists(file) or file_state(file) != state:
                raise changed(file)


def _chunk_rows(dataset: Any) -> int:
    """The number of rows of a chunk; 1 if the rows are not in chunks."""
    chunks = getattr(dataset, "chunks", None)
    if isinstance(chunks, tuple) and chunks and isinstance(chunks[0], int):
        return max(chunks[0], 1)
    return 1


def _file_of(dataset: Any) -> str | None:
    """The file of an HDF5 dataset or a mapped array."""
    name = getattr(getattr(dataset, "file", None), "filename", getattr(dataset, "filename", None))
    return str(name) if name is not None and os.path.isfile(name) else None
