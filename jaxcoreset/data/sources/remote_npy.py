"""An array in one of NumPy's own files on another file system: ranges of the file, in order."""

import io
import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxcoreset.data.fingerprint import Hash
from jaxcoreset.data.sources.base import BATCH_BYTES, RawBatch, RowSource, SourceError, changed

_SAMPLE_ROWS = 64
# A header of NumPy's first version is shorter than this number of bytes.
_HEADER_BYTES = 1 << 17


class RemoteFile:
    """A file of fsspec that is read by ranges.

    Args:
        url: a path with a protocol, such as ``s3://bucket/x.npy``.

    Attributes:
        state: what the file system says of the file's contents, such as the time of the change.

    Raises:
        SourceError: if there is no such file, or no package that reads it.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            from fsspec.core import url_to_fs

            self._filesystem, self._path = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise SourceError(
                f"{url} cannot be read: {error}. Install fsspec and its package for this kind of "
                "file system, or copy the file to this machine."
            ) from error
        self.state = self._current()
        if self.state is None:
            raise SourceError(f"there is no file {url}; expected one that numpy.save wrote.")

    @property
    def size(self) -> int:
        """The number of bytes."""
        return int(self._filesystem.info(self._path)["size"])

    def head(self) -> io.BytesIO:
        """The beginning of the file, with the header."""
        return io.BytesIO(self._filesystem.cat_file(self._path, start=0, end=_HEADER_BYTES))

    def range(self, start: int, stop: int) -> bytes:
        """The bytes from one place to another.

        Raises:
            SourceError: if they cannot be read.
        """
        try:
            found = self._filesystem.cat_file(self._path, start=start, end=stop)
        except Exception as error:  # each file system has errors of its own
            self.check_unchanged()
            raise SourceError(
                f"{self.url}: bytes {start:,} to {stop:,} cannot be read: {type(error).__name__}: "
                f"{error}. Check the connection, and start again."
            ) from error
        if len(found) != stop - start:
            raise changed(self.url)
        return found

    def check_unchanged(self) -> None:
        """Raise a SourceError if the file is another one than when it was opened."""
        if self._current() != self.state:
            raise changed(self.url)

    def _current(self) -> str | None:
        self._filesystem.invalidate_cache()
        try:
            is_file = self._filesystem.isfile(self._path)
            return str(self._filesystem.ukey(self._path)) if is_file else None
        except FileNotFoundError:
            return None


class RemoteNpy(RowSource):
    """The rows of an array in a remote file.

    Args:
        file: the file.
        shape: the shape (n, ...) of the array.
        dtype: its type.
        begin: the position of its first byte.
    """

    def __init__(self, file: RemoteFile, shape: tuple[int, ...], dtype: Any, begin: int) -> None:
        # As with mapped files, numbers that are not finite are the caller's business.
        tree = jax.tree.structure(0)
        super().__init__(file.url, shape[0], tree, [shape[1:]], [dtype], allow_nonfinite=True)
        self._file, self._dtype, self._begin = file, np.dtype(dtype), begin
        self._stride = math.prod(shape[1:]) * self._dtype.itemsize
        self._size = max(1, BATCH_BYTES // max(self._stride, 1))

    def fingerprint(self) -> str:
        """See `RowSource.fingerprint`."""
        mark = Hash("npy", self.leaves[0].shape, self._dtype.name, self._file.state)
        mark.array(self._rows(0, min(_SAMPLE_ROWS, self.num_rows)))
        return mark.hex()

    def _read(self, first: int) -> Iterator[RawBatch]:
        return self._batches(range(first // self._size, -(-self.num_rows // self._size)))

    def _read_holding(self, rows: np.ndarray) -> Iterator[RawBatch]:
        return self._batches(np.unique(rows // self._size).tolist())

    def _batches(self, numbers: Any) -> Iterator[RawBatch]:
        self._file.check_unchanged()
        for number in numbers:
            start = number * self._size
            rows = self._rows(start, min(start + self._size, self.num_rows))
            yield RawBatch(f"batch {number}", start, (rows,))
        self._file.check_unchanged()

    def _rows(self, start: int, stop: int) -> np.ndarray:
        place = self._begin + start * self._stride, self._begin + stop * self._stride
        shape = (stop - start, *self.leaves[0].shape[1:])
        return np.frombuffer(self._file.range(*place), self._dtype).reshape(shape)
