"""Find, gather and read the rows of groups that are in files or batches, group by group.

One pass over the labels finds the groups, their sizes, and whether each group's rows follow one
another. If they do, each further pass reads the source once, in order. If not, the rows are
*gathered*: a second pass writes them to temporary files, where each *window* of some megabytes gets
the rows of its groups, and each window is then sorted by itself. So at most a window and a few
batches are in memory, and the disk is written in long pieces.
"""

import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from jaxcoreset.data.messages import DataError
from jaxcoreset.data.reading import read_chunks
from jaxcoreset.data.sources.base import BATCH_BYTES, row_bytes

# The bytes of a window, unless a single group has more.
_WINDOW_BYTES = 1 << 25


@dataclass(frozen=True, eq=False)
class GroupScan:
    """The groups that one pass over the labels finds.

    Attributes:
        names: shape (k,), the different labels in increasing order.
        sizes: shape (k,), the number of rows of each.
        starts: shape (k,), the first row of each.
        is_sorted: whether the rows of each group follow one another.
    """

    names: np.ndarray
    sizes: Int[np.ndarray, " k"]
    starts: Int[np.ndarray, " k"]
    is_sorted: bool


def scan_labels(labels: Any) -> GroupScan:
    """Find the groups, in one pass that holds one batch of rows and three numbers of each group.

    Args:
        labels: shape (n,), an array or a leaf of a source.

    Raises:
        DataError: if a label is NaN.
    """
    names = np.zeros(0, labels.dtype)
    sizes = starts = np.zeros(0, np.int64)
    num_runs, last = 0, None
    for first, (part,) in read_chunks((labels,), _chunk_rows((labels,))):
        part = np.asarray(part)
        if part.dtype.kind == "f" and np.isnan(part).any():
            row = first + int(np.argmax(np.isnan(part)))
            raise DataError(f"the label of row {row:,} is NaN; expected a label in every row.")
        begins = np.flatnonzero(np.concatenate([[True], part[1:] != part[:-1]]))
        num_runs += begins.size - int(last is not None and part[0] == last)
        last, own = part[-1], part[begins]
        joined = np.union1d(names, own)
        before, at = np.searchsorted(joined, names), np.searchsorted(joined, own)
        total, begin = np.zeros(joined.size, np.int64), np.full(joined.size, np.iinfo(np.int64).max)
        total[before], begin[before] = sizes, starts
        np.add.at(total, at, np.diff(begins, append=len(part)))
        np.minimum.at(begin, at, first + begins)
        names, sizes, starts = joined, total, begin
    return GroupScan(names, sizes, starts, num_runs == names.size)


def gather(
    leaves: Sequence[Any], labels: Any, scan: GroupScan
) -> tuple[tuple[np.ndarray, ...], GroupScan]:
    """Copy rows to temporary files, sorted by group and else in their order.

    The files are in Python's folder for them (``TMPDIR``). They have no name once they are written,
    so that they go when nothing reads them any more.

    Args:
        leaves: arrays with n rows each.
        labels: shape (n,).
        scan: the groups.

    Returns:
        The arrays as maps of the files, and the groups in them.

    Raises:
        DataError: if the disk has too little space.
    """
    num_rows, folder = int(scan.sizes.sum()), tempfile.gettempdir()
    ends = np.cumsum(scan.sizes)
    need, free = gathered_bytes(leaves), shutil.disk_usage(folder).free
    if need > free:
        raise DataError(
            f"gathering the rows of groups takes {need:,} bytes of temporary files, but {folder} "
            f"has {free:,} left; sort the rows by group, or set TMPDIR to a larger folder."
        )
    bounds = window_bounds(ends - scan.sizes, num_rows, row_bytes(leaves))
    window_of = np.searchsorted(bounds, ends - scan.sizes, side="right") - 1
    number = np.min_scalar_type(max(scan.names.size - 1, 1))
    types = [np.dtype(leaf.dtype) for leaf in leaves]
    shapes = [tuple(leaf.shape[1:]) for leaf in leaves]
    with tempfile.TemporaryDirectory(prefix="jaxcoreset-", ignore_cleanup_errors=True) as temporary:
        paths = [os.path.join(temporary, str(i)) for i in range(len(types) + 1)]
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(open(path, "w+b")) for path in paths]
            filled = bounds[:-1].copy()
            for _, parts in read_chunks((*leaves, labels), _chunk_rows((*leaves, labels))):
                group = np.searchsorted(scan.names, np.asarray(parts[-1]))
                order = np.argsort(window_of[group], kind="stable")
                windows, begins = np.unique(window_of[group][order], return_index=True)
                for window, at in zip(windows, np.split(order, begins[1:]), strict=True):
                    for file, part in zip(files, (*parts[:-1], group.astype(number)), strict=True):
                        _write(file, np.asarray(part)[at], filled[window])
                    filled[window] += len(at)
            for first, last in itertools.pairwise(bounds.tolist()):
                order = np.argsort(_read(files[-1], number, (), first, last), kind="stable")
                for file, dtype, shape in zip(files[:-1], types, shapes, strict=True):
                    _write(file, _read(file, dtype, shape, first, last)[order], first)
        maps = tuple(
            np.memmap(path, dtype, "r", shape=(num_rows, *shape))
            for path, dtype, shape in zip(paths[:-1], types, shapes, strict=True)
        )
    return maps, GroupScan(scan.names, scan.sizes, ends - scan.sizes, True)


def gathered_bytes(leaves: Sequence[Any]) -> int:
    """The bytes of temporary files that gathering takes."""
    return leaves[0].shape[0] * (row_bytes(leaves) + 4)


def _chunk_rows(leaves: Sequence[Any]) -> int:
    return max(1, BATCH_BYTES // max(row_bytes(leaves), 1))


def _write(file: Any, rows: np.ndarray, first: Any) -> None:
    rows = np.ascontiguousarray(rows)
    file.seek(int(first) * (rows.nbytes // len(rows)))
    file.write(rows.view(np.uint8).data if rows.size else b"")


def _read(file: Any, dtype: np.dtype, shape: tuple, first: int, last: int) -> np.ndarray:
    width = int(np.prod(shape)) * dtype.itemsize
    file.seek(first * width)
    return np.frombuffer(file.read((last - first) * width), dtype).reshape(-1, *shape)


def window_bounds(
    starts: Int[np.ndarray, " g"], num_rows: int, num_bytes: int
) -> Int[np.ndarray, " w"]:
    """Rows at which windows begin, and the number of rows; all are starts of groups.

    Args:
        starts: the first rows of groups whose rows follow one another.
        num_rows: the number of rows.
        num_bytes: the bytes of a row.
    """
    starts = np.unique(starts)
    size = max(1, _WINDOW_BYTES // max(num_bytes, 1))
    # The first group that begins in each stretch of this number of rows.
    return np.append(starts[np.unique(starts // size, return_index=True)[1]], num_rows)


class GroupedRows:
    """Arrays in which the rows of each group follow one another, read in windows and in order.

    Args:
        leaves: arrays with n rows each, some of which are read from sources.
        bounds: the rows at which windows begin, and n.
    """

    def __init__(self, leaves: Sequence[Any], bounds: Int[np.ndarray, " w"]):
        self.leaves, self.bounds = tuple(leaves), bounds
        self._chunks: Iterator | None = None
        self._next = -1
        self._rest: list[tuple] = []
        self._held: dict[int, tuple] = {}

    def between(self, first: int, last: int) -> tuple[int, tuple[np.ndarray, ...]]:
        """The rows of the windows with rows `first` to `last`, and the number of the first one."""
        begin = int(np.searchsorted(self.bounds, first, side="right")) - 1
        end = int(np.searchsorted(self.bounds, last, side="right"))
        for window in [window for window in self._held if window < begin]:
            del self._held[window]
        parts = [self._window(window) for window in range(begin, end)]
        if len(parts) > 1:
            parts = [tuple(np.concatenate(leaf) for leaf in zip(*parts, strict=True))]
        return int(self.bounds[begin]), parts[0]

    def _window(self, window: int) -> tuple[np.ndarray, ...]:
        if window not in self._held:
            if window != self._next or self._chunks is None:
                self._chunks = read_chunks(
                    self.leaves, _chunk_rows(self.leaves), int(self.bounds[window])
                )
                self._rest = []
            self._held[window] = self._take(int(self.bounds[window + 1] - self.bounds[window]))
            self._next = window + 1
        return self._held[window]

    def _take(self, num: int) -> tuple[np.ndarray, ...]:
        """The next rows."""
        assert self._chunks is not None
        parts, self._rest = self._rest, []
        found = sum(len(part[0]) for part in parts)
        while found < num:
            _, part = next(self._chunks)
            parts.append(tuple(map(np.asarray, part)))
            found += len(part[0])
        spare = found - num
        if spare:
            self._rest = [tuple(leaf[-spare:] for leaf in parts[-1])]
            parts[-1] = tuple(leaf[:-spare] for leaf in parts[-1])
        return tuple(np.concatenate(leaf) for leaf in zip(*parts, strict=True))


class GroupedColumn:
    """One array of `GroupedRows`."""

    def __init__(self, rows: GroupedRows, at: int):
        self.rows, self.at = rows, at
        self.shape = tuple(rows.leaves[at].shape)
        self.dtype = np.dtype(rows.leaves[at].dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """Rows that are near one another, by their numbers."""
        if not rows.size:
            return np.zeros((*rows.shape, *self.shape[1:]), self.dtype)
        first, parts = self.rows.between(int(rows.min()), int(rows.max()))
        return parts[self.at][rows - first]
