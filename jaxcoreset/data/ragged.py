"""Rows that are lists of different lengths, such as groups of data, stored in a few shapes.

A list becomes a row of a fixed number of places, some of which are empty. If every row had as many
places as the longest list, a single long list would multiply the memory and the work. So the lists
are padded to one of a few lengths, chosen such that few places are empty, and sorted by it. Each
length is evaluated by itself, with its own compiled program. The arrays are padded as they are
read.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, PyTree

# A build compiles half a dozen programs for each length, which takes as long as to evaluate
# this number of places in all passes: about 30 s and 90 µs for a place, on one core.
_PLACES_OF_LENGTH = 330_000
# Places that are evaluated without further ado, in a program that chains run for each gradient.
_FEW_PLACES_OFTEN = 1 << 12
_MOST_LENGTHS = 8
# The lengths that are tried grow by this factor.
_GROWTH = 1.2


class Ragged:
    """An array of lists, (G, L, …) with L places for each: those of the longest list.

    Indexing by a slice or by numbers returns an array of the lists with as few places as the chosen
    lengths allow. Empty places repeat an entry of the list; of a mask, they are False.

    Args:
        values: shape (n, …), the entries of all lists, in memory or read from files as a
            `jaxcoreset.data.grouped.GroupedColumn`; None for a mask of the places.
        starts: shape (G,), the position of each list's first entry.
        sizes: shape (G,), the number of its entries.
        lengths: the numbers of places to choose from, in increasing order.
    """

    def __init__(
        self,
        values: Any,
        starts: Int[np.ndarray, " g"],
        sizes: Int[np.ndarray, " g"],
        lengths: Sequence[int],
    ):
        self.values, self.starts, self.sizes = values, starts, sizes
        self.lengths = tuple(lengths)
        rest = () if values is None else values.shape[1:]
        self.shape = (sizes.size, self.lengths[-1], *rest)
        self.dtype = np.dtype(bool) if values is None else values.dtype
        self.ndim = len(self.shape)

    @property
    def is_streamed(self) -> bool:
        """True if the entries are not in memory."""
        return self.values is not None and not isinstance(self.values, np.ndarray)

    @property
    def classes(self) -> Int[np.ndarray, " g"]:
        """Which of the lengths each list has."""
        return np.searchsorted(self.lengths, self.sizes)

    def __len__(self) -> int:
        return self.sizes.size

    def __getitem__(self, at: Any) -> np.ndarray:
        starts, sizes = self.starts[at], self.sizes[at]
        places = np.arange(length_of(self.lengths, int(sizes.max(initial=1))))
        if self.values is None:
            return places < sizes[..., None]
        inside = np.minimum(places, np.maximum(sizes[..., None] - 1, 0))
        return self.values[np.minimum(starts[..., None] + inside, len(self.values) - 1)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)

    def select(self, indices: Int[np.ndarray, " m"]) -> "Ragged":
        """Some of the lists, which stay ragged."""
        return Ragged(self.values, self.starts[indices], self.sizes[indices], self.lengths)

    def shortened(self, num: int) -> "Ragged":
        """The first entries of each list, at most this number."""
        sizes = np.minimum(self.sizes, num)
        return Ragged(self.values, self.starts, sizes, (min(num, self.lengths[-1]),))

    def part(self, run: slice) -> "Ragged":
        """Lists that follow one another and have one length, with all its places."""
        sizes = self.sizes[run]
        length = length_of(self.lengths, int(sizes.max(initial=1)))
        return Ragged(self.values, self.starts[run], sizes, (length,))

    def joined(self, other: "Ragged") -> "Ragged":
        """These lists and after them other ones, all in memory."""
        first, values = 0, None
        if self.values is not None:
            first, values = len(self.values), np.concatenate([self.values, other.values])
        starts = np.concatenate([self.starts, first + other.starts])
        return Ragged(values, starts, np.concatenate([self.sizes, other.sizes]), self.lengths)

    def in_float64(self) -> "Ragged":
        """The same lists with floating-point entries as float64."""
        if self.values is None or not jnp.issubdtype(self.dtype, jnp.floating):
            return self
        return Ragged(self.values.astype(np.float64), self.starts, self.sizes, self.lengths)


def lists_of(tree: PyTree) -> list[Ragged]:
    """The arrays that are ragged."""
    return [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, Ragged)]


def entries_of(
    starts: Int[np.ndarray, " g"], sizes: Int[np.ndarray, " g"]
) -> Int[np.ndarray, " n"]:
    """The positions of the entries of lists, one list after the other."""
    before = np.cumsum(sizes) - sizes
    return np.repeat(starts - before, sizes) + np.arange(int(sizes.sum()))


def has_lengths(tree: PyTree) -> bool:
    """True if some of the arrays are ragged, with lists of more than one length."""
    return any(len(leaf.lengths) > 1 for leaf in lists_of(tree))


def order_by_length(tree: PyTree) -> Int[np.ndarray, " g"] | None:
    """The order in which lists of one length follow one another; None if all have one."""
    lists = lists_of(tree)
    own = lists[0].classes if lists else np.zeros(1)
    return np.argsort(own, kind="stable") if (own != own[:1]).any() else None


def of_one_length(tree: PyTree, at: Int[np.ndarray, " m"]) -> list[Int[np.ndarray, " _"]]:
    """Row numbers, divided by the length of the rows' lists; all together if no array is ragged."""
    lists = lists_of(tree)
    own = lists[0].classes[at] if lists else np.zeros(len(at))
    return [at[own == one] for one in np.unique(own)]


def num_bytes(tree: PyTree, at: Int[np.ndarray, " m"]) -> int:
    """The size in bytes of some rows, if each list has as many places as its length."""
    total = 0
    for leaf in jax.tree.leaves(tree):
        places, rest = len(at), leaf.shape[1:]
        if isinstance(leaf, Ragged):
            places, rest = int(np.asarray(leaf.lengths)[leaf.classes[at]].sum()), leaf.shape[2:]
        total += places * math.prod(rest) * leaf.dtype.itemsize
    return total


def mean_length(tree: PyTree) -> float:
    """The mean number of entries of the lists; 1 if no array is ragged."""
    lists = lists_of(tree)
    return float(np.maximum(lists[0].sizes, 1).mean()) if lists else 1.0


class Runs:
    """Rows that follow one another and have one length; a single run if none is ragged.

    Attributes:
        slices: the rows of each run.
    """

    def __init__(self, tree: PyTree, num: int):
        lists = lists_of(tree)
        self.slices, self._lengths = [slice(0, num)], np.ones(1, np.int64)
        if lists and num:
            own = lists[0].classes
            starts = np.flatnonzero(np.diff(own, prepend=-1))
            ends = np.append(starts[1:], num)
            self.slices = [slice(int(a), int(b)) for a, b in zip(starts, ends, strict=True)]
            self._lengths = np.asarray(lists[0].lengths)[own[starts]]
        self._stops = np.array([run.stop for run in self.slices])

    def at(self, row: int) -> slice:
        """The run with a row; the last one if there is none."""
        return self.slices[self._number(row)]

    def length(self, run: slice) -> int:
        """The number of places of the rows of a run."""
        return int(self._lengths[self._number(run.start)])

    def typical(self, run: slice) -> int:
        """The mean number of rows of runs of one length, rounded up."""
        alike = self._lengths == self._lengths[self._number(run.start)]
        num = sum(self.slices[i].stop - self.slices[i].start for i in np.flatnonzero(alike))
        return -(-num // int(alike.sum()))

    def _number(self, row: int) -> int:
        return min(int(np.searchsorted(self._stops, row, side="right")), len(self.slices) - 1)


def padded_alike(one: tuple, other: tuple) -> tuple[tuple, tuple]:
    """Two batches of lists with as many places in each."""
    pairs = [_alike(np.asarray(a), np.asarray(b)) for a, b in zip(one, other, strict=True)]
    return tuple(a for a, _ in pairs), tuple(b for _, b in pairs)


def _alike(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if one.ndim < 2 or one.shape[1] == other.shape[1]:
        return one, other
    num = max(one.shape[1], other.shape[1])
    return _padded(one, num), _padded(other, num)


def _padded(values: np.ndarray, num: int) -> np.ndarray:
    width = [(0, 0), (0, num - values.shape[1]), *((0, 0) for _ in values.shape[2:])]
    if values.dtype == bool:  # a mask, or what a mask hides
        return np.pad(values, width)
    return np.pad(values, width, mode="edge")


def length_of(lengths: Sequence[int], size: int) -> int:
    """The smallest of the lengths that holds a list."""
    return lengths[min(int(np.searchsorted(lengths, size)), len(lengths) - 1)]


def choose_lengths(sizes: Int[np.ndarray, " g"]) -> tuple[int, ...]:
    """The numbers of places with which lists of these sizes take the least time.

    More lengths leave fewer places empty, and take more programs.
    """

    def cost(found: tuple[tuple[int, ...], int]) -> int:
        lengths, places = found
        return places + _PLACES_OF_LENGTH * len(lengths)

    return min(_best_lengths(sizes), key=cost)[0] if sizes.size else (1,)


def fewest_lengths(sizes: Int[np.ndarray, " g"]) -> tuple[int, ...]:
    """The fewest numbers of places that leave at most half of them empty, or few.

    They are for a program that holds all lists, and runs many times: each length makes it longer to
    compile.
    """
    enough = max(2 * int(np.maximum(sizes, 1).sum()), _FEW_PLACES_OFTEN)
    found = list(_best_lengths(sizes))
    return next((lengths for lengths, places in found if places <= enough), found[-1][0])


def _best_lengths(sizes: Int[np.ndarray, " g"]) -> Iterator[tuple[tuple[int, ...], int]]:
    """For one, two, … lengths, those that take the fewest places for these lists, and how many."""
    sizes = np.maximum(np.sort(sizes), 1)
    most = int(sizes[-1])
    # The sizes to choose from, and how many lists are at most as long as each.
    num = int(np.log(most / sizes[0]) / np.log(_GROWTH)) + 2
    grid = np.unique(np.geomspace(sizes[0], most, num).round().astype(int))
    grid[-1] = most
    counts = np.searchsorted(sizes, grid, side="right")
    # best[j]: the fewest places for the lists up to grid[j], the last of whose lengths is grid[j].
    best, chosen = counts * grid, [[j] for j in range(grid.size)]
    yield (most,), int(best[-1])
    for _ in range(_MOST_LENGTHS - 1):
        costs = best[:, None] + (counts[None, :] - counts[:, None]) * grid[None, :]
        costs = np.where(np.tri(grid.size, dtype=bool), np.iinfo(np.int64).max, costs)
        before = np.argmin(costs[:, 1:], axis=0)
        best = np.concatenate([best[:1], costs[before, np.arange(1, grid.size)]])
        chosen = [chosen[0], *([*chosen[b], j + 1] for j, b in enumerate(before))]
        yield tuple(int(grid[j]) for j in chosen[-1]), int(best[-1])
