"""What a source of rows is: its shape, its batches in order, and the checks that each batch passes.

Each kind of source implements how batches are read (`RowSource._read`). This module checks the
batches, in the same way for all kinds. An error names the source, the batch and its rows; the first
row is row 0.
"""

import abc
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from jaxcoreset.data.dtypes import cast, handed_on, is_float, is_number
from jaxcoreset.data.messages import DataError

# For each column of an array its name, and the values that its numbers stand for, or None.
Codes = tuple[tuple[str, np.ndarray | None], ...]

# If a source can choose, a batch has about this number of bytes.
BATCH_BYTES = 1 << 24


class SourceError(DataError):
    """A source does not match its description; the message says where, and what to do."""


@dataclass(frozen=True, eq=False)
class RawBatch:
    """Rows as they were read, before any check.

    Attributes:
        label: the name of the batch in messages: its number, or its file in a folder, or nothing.
        start: the row number of the first row.
        leaves: arrays with a common leading axis; they may be masked arrays if no entry is masked.
    """

    label: str
    start: int
    leaves: tuple[np.ndarray, ...]

    @property
    def place(self) -> tuple[str, int, int]:
        """The label, the first row and the number of rows, for `RowSource.error`."""
        return self.label, self.start, self.leaves[0].shape[0] if self.leaves[0].ndim else 0


class RowSource(abc.ABC):
    """Rows that are read in order, in batches, as often as needed.

    Args:
        name: the name of the source in messages.
        num_rows: the number of rows, n.
        tree: the structure of a batch.
        shapes: for each leaf, the shape of one row.
        dtypes: for each leaf, the type that is read. Batches may have any type that can be cast to
            it without loss. The source returns the type that JAX makes of it.
        allow_nonfinite: whether the data may contain NaN and infinities.

    Attributes:
        name: the name of the source in messages.
        num_rows: the number of rows, n.
        tree: the structure of a batch.
        leaves: the shape (n, ...) and the type of each leaf that the source returns.
        random_access: whether `take` reads only the rows that you ask for, and not all rows.

    Raises:
        SourceError: if there are no rows or no leaves, or a type is not a real number.
    """

    random_access: bool = False

    def __init__(
        self,
        name: str,
        num_rows: int,
        tree: Any,
        shapes: Sequence[tuple[int, ...]],
        dtypes: Sequence[Any],
        *,
        allow_nonfinite: bool = False,
    ) -> None:
        self.name = name
        self.num_rows = num_rows
        self.tree = tree
        if not shapes:
            raise SourceError(f"{name} has no arrays; expected at least one.")
        if num_rows < 1:
            raise SourceError(f"{name} has {num_rows} rows; expected at least one.")
        self._names = _leaf_names(tree)
        self._read_types = tuple(np.dtype(dtype) for dtype in dtypes)
        for leaf, dtype in zip(self._names, self._read_types, strict=True):
            if not is_number(dtype):
                raise SourceError(
                    f"{name}: {leaf} is of type {dtype}; expected real numbers, integers or "
                    "booleans. Encode text, dates and categories as numbers first."
                )
        self.leaves: tuple[jax.ShapeDtypeStruct, ...] = tuple(
            jax.ShapeDtypeStruct((num_rows, *shape), handed_on(dtype))
            for shape, dtype in zip(shapes, self._read_types, strict=True)
        )
        self._allow_nonfinite = allow_nonfinite

    @property
    def arrays(self) -> "PyTree[SourceArray]":
        """The arrays to pass as a model's arguments: one for each leaf, not yet read."""
        return jax.tree.unflatten(
            self.tree, [SourceArray(self, i) for i in range(len(self.leaves))]
        )

    def categories_of(self, leaf: int) -> np.ndarray | None:
        """The values that the numbers of a leaf stand for; None if they stand for themselves."""
        return None

    def codes_of(self, leaf: int) -> Codes | None:
        """For each column of a leaf, its name and the values of its numbers; None if not known."""
        return None

    @property
    def row_bytes(self) -> int:
        """The number of bytes of one row that the source returns."""
        return row_bytes(self.leaves)

    def __repr__(self) -> str:
        shapes = ", ".join(
            f"{name} {x.shape} {x.dtype}" for name, x in zip(self._names, self.leaves, strict=True)
        )
        return f"{type(self).__name__}({self.name!r}, {self.num_rows:,} rows: {shapes})"

    def batches(self, first: int = 0) -> Iterator[tuple[int, tuple[np.ndarray, ...]]]:
        """The rows in order, from the batch that contains row `first`.

        Args:
            first: a row; the rows before it may be left out.

        Yields:
            The number of a batch's first row, and its leaves.

        Raises:
            SourceError: if the rows do not match the description of the source.
        """
        if not 0 <= first <= self.num_rows:
            raise IndexError(
                f"first is {first}; expected a row of {self.name}, 0 to {self.num_rows}."
            )
        if first == self.num_rows:
            return
        done = first
        for batch in self._read(first):
            leaves = self._checked(batch)
            if len(leaves[0]):
                done = batch.start + len(leaves[0])
                yield batch.start, leaves
        if done < self.num_rows:
            raise SourceError(
                f"{self.name} ended after {done:,} rows; expected {self.num_rows:,} in every pass. "
                "Pass the correct number of rows, and give the same rows in every pass."
            )

    def take(self, rows: Any) -> tuple[np.ndarray, ...]:
        """Some rows of each leaf.

        Args:
            rows: row numbers of shape (m,), in any order, with repeats.

        Returns:
            Arrays of shape (m, ...), in the order of `rows`.

        Raises:
            IndexError: if a row number is out of range.
            SourceError: if the rows do not match the description of the source.
        """
        rows = checked_rows(rows, self.num_rows, self.name)
        taken = tuple(np.empty((len(rows), *x.shape[1:]), x.dtype) for x in self.leaves)
        if not len(rows):
            return taken
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        done = 0
        for batch in self._read_holding(ordered):
            _, start, count = batch.place
            upto = int(np.searchsorted(ordered, start + count))
            if upto > done:
                at = ordered[done:upto] - start
                for to, leaf in zip(taken, self._checked(batch), strict=True):
                    to[order[done:upto]] = leaf[at]
                done = upto
            if done == len(rows):
                return taken
        raise SourceError(
            f"{self.name} ended before row {ordered[done]:,}; expected {self.num_rows:,} rows in "
            "every pass. Pass the correct number of rows."
        )

    @abc.abstractmethod
    def fingerprint(self) -> str:
        """A short hash that changes with the data. It reads only a part of them."""

    @abc.abstractmethod
    def _read(self, first: int) -> Iterator[RawBatch]:
        """The batches in order without gaps, from the one that contains row `first`."""

    def _read_holding(self, rows: np.ndarray) -> Iterator[RawBatch]:
        """Batches in order that contain all of the given rows, which are sorted and not empty."""
        return self._read(int(rows[0]))

    def _place(self, leaf: int, inner: tuple[int, ...]) -> str:
        """The name of one number of a row, for messages."""
        return self._names[leaf] + (f"[row, {', '.join(map(str, inner))}]" if inner else "")

    def error(self, label: str, start: int, count: int, what: str) -> SourceError:
        """An error about a batch that names the source, the batch and its rows."""
        rows = f"row {start:,}" if count == 1 else f"rows {start:,} to {start + count - 1:,}"
        return SourceError(f"{', '.join(filter(None, (self.name, label, rows)))}: {what}")

    def _checked(self, batch: RawBatch) -> tuple[np.ndarray, ...]:
        label, start, count = batch.place
        lengths = [leaf.shape[0] if leaf.ndim else None for leaf in batch.leaves]
        if set(lengths) != {count}:
            shapes = zip(self._names, batch.leaves, strict=True)
            found = ", ".join(f"{name} {leaf.shape}" for name, leaf in shapes)
            raise self.error(
                label,
                start,
                max(1, *(length or 0 for length in lengths)),
                f"the arrays have the shapes {found}; expected the same number of rows in each.",
            )
        if start + count > self.num_rows:
            raise self.error(
                *batch.place,
                f"there are more than the expected {self.num_rows:,} rows. Pass the correct number "
                "of rows.",
            )
        return tuple(self._checked_leaf(batch, i, leaf) for i, leaf in enumerate(batch.leaves))

    def _checked_leaf(self, batch: RawBatch, i: int, leaf: np.ndarray) -> np.ndarray:
        name, like, first = self._names[i], self.leaves[i], self._read_types[i]
        if leaf.shape[1:] != like.shape[1:]:
            raise self.error(
                *batch.place,
                f"rows of {name} have the shape {leaf.shape[1:]}; expected {like.shape[1:]} in "
                "every batch.",
            )
        if leaf.dtype != first and not (
            is_number(leaf.dtype) and np.can_cast(leaf.dtype, first, "safe")
        ):
            raise self.error(
                *batch.place,
                f"{name} is of type {leaf.dtype}, but was of type {first} at first, which cannot "
                f"hold all its values; expected {first} in every batch.",
            )
        if isinstance(leaf, np.ma.MaskedArray):
            masked = np.ma.getmaskarray(leaf)
            if masked.any():  # what stands under a mask is no number of the data
                place, row = self._first(batch, i, masked)
                raise self.error(
                    *batch.place,
                    f"{name} has {np.count_nonzero(masked):,} masked entries, the first {place} in "
                    f"row {row}; expected none. Fill in or drop such rows.",
                )
            leaf = leaf.data
        result, bad = cast(leaf, np.dtype(like.dtype))
        if bad is not None:
            place, row = self._first(batch, i, np.arange(leaf.size).reshape(leaf.shape) == bad)
            raise self.error(
                *batch.place,
                f"{place} is {leaf.flat[bad]} in row {row}, which {result.dtype} cannot hold; "
                "expected smaller numbers. Scale them, or switch on JAX's x64 before making the "
                "source.",
            )
        if is_float(result.dtype) and not self._allow_nonfinite:
            bad = ~np.isfinite(result)
            if bad.any():
                place, row = self._first(batch, i, bad)
                more = int(np.count_nonzero(bad)) - 1
                others = f" and {more:,} more values are not finite" if more else ""
                raise self.error(
                    *batch.place,
                    f"{place} is {result[bad][0]} in row {row}{others}; expected finite numbers. "
                    "Fill in or drop such rows, or pass allow_nonfinite=True if the model knows "
                    "what they mean.",
                )
        return result

    def _first(self, batch: RawBatch, i: int, bad: np.ndarray) -> tuple[str, str]:
        """The name of the first bad number of a leaf, and its row, for messages."""
        row, *inner = (int(at) for at in np.unravel_index(int(np.argmax(bad)), bad.shape))
        return self._place(i, tuple(inner)), f"{batch.start + row:,}"


def row_bytes(leaves: Sequence[Any]) -> int:
    """The bytes of one row of some arrays."""
    return sum(math.prod(leaf.shape[1:]) * np.dtype(leaf.dtype).itemsize for leaf in leaves)


def changed(name: str) -> SourceError:
    """An error that a file has changed since its source was made."""
    return SourceError(
        f"{name} was changed after it was opened; expected the same rows in every pass. Open it "
        "again and make a new source."
    )


class SourceArray:
    """One leaf of a source: an array whose rows are read when you index it.

    Attributes:
        source: the source of the rows.
        leaf: the position of this leaf among the source's leaves.
        shape: (n, ...).
        dtype: the type of the numbers that it returns.
    """

    __hash__ = object.__hash__

    def __init__(self, source: RowSource, leaf: int) -> None:
        self.source = source
        self.leaf = leaf
        self.shape: tuple[int, ...] = tuple(source.leaves[leaf].shape)
        self.dtype = np.dtype(source.leaves[leaf].dtype)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of numbers."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes of the whole array."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        name = self.source._names[self.leaf]
        return f"SourceArray({name} of {self.source.name!r}, {self.shape}, {self.dtype})"

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Some rows: a slice with step 1, or integers of shape (m,).

        Raises:
            IndexError: if a row number is out of range.
            TypeError: if the index is anything else.
        """
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step == 1:
                return self._range(start, stop)
        elif not isinstance(rows, tuple):
            indices = np.asarray(rows)
            if indices.ndim == 1 and (indices.dtype.kind in "iu" or not indices.size):
                return self.source.take(indices)[self.leaf]
        raise TypeError(
            f"{self!r} was indexed with {rows!r}; only whole rows can be read: expected a slice "
            "with step 1 or a one-dimensional array of row numbers. Take rows first, then columns."
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise TypeError(
            f"{self!r} is read in batches and never whole ({self.nbytes:,} bytes), so it cannot be "
            "used as an array. Take some rows, array[:1000], or iterate over source.batches(). If "
            "everything fits in memory, read all of it with array[:]."
        )

    def _range(self, start: int, stop: int) -> np.ndarray:
        result = np.empty((max(stop - start, 0), *self.shape[1:]), self.dtype)
        if not len(result):
            return result
        for first, leaves in self.source.batches(start):
            leaf = leaves[self.leaf][max(start - first, 0) : stop - first]
            at = max(first, start) - start
            result[at : at + len(leaf)] = leaf
            if at + len(leaf) == len(result):
                break
        return result


def close(iterator: Iterator[Any]) -> None:
    """End a generator now, with the files that it holds open."""
    end = getattr(iterator, "close", None)
    if callable(end):
        end()


def checked_rows(rows: Any, num_rows: int, name: str) -> np.ndarray:
    """Row numbers as an array of int64 of shape (m,).

    Raises:
        IndexError: if a row number is out of range, or the numbers are not integers.
    """
    array = np.asarray(rows)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise IndexError(
            f"rows of {name} have the shape {array.shape} and type {array.dtype}; expected "
            "integers of shape (m,)."
        )
    array = array.astype(np.int64)
    if array.size and not (array.min() >= 0 and array.max() < num_rows):
        bad = array.min() if array.min() < 0 else array.max()
        raise IndexError(f"row {bad} was requested; {name} has the rows 0 to {num_rows - 1:,}.")
    return array


def _leaf_names(tree: Any) -> tuple[str, ...]:
    """The names of the leaves of a structure for messages, such as X, or 1 in a tuple."""
    numbered = jax.tree.unflatten(tree, range(tree.num_leaves))
    paths, _ = jax.tree_util.tree_flatten_with_path(numbered)
    return tuple(
        f"array {jax.tree_util.keystr(path, simple=True, separator='.')}" if path else "the array"
        for path, _ in paths
    )
