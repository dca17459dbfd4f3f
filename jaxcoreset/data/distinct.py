"""Rows that are equal in all data arguments, and how often each of them occurs.

Equal rows have equal log-likelihoods, so a row that occurs c times is one row of weight c. In a
table of categories or of small counts a few rows may stand for all of them without any error.

Rows are compared by value. A hash of each row's bytes only says which rows to compare, so that rows
with equal hashes that are not equal cost time and change nothing. −0.0 and 0.0 are equal.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Int, UInt

from jaxcoreset.data.chosen_groups import gather_rows
from jaxcoreset.data.reading import read_chunks
from jaxcoreset.data.rows import Rows

Words = UInt[np.ndarray, "m w"]
HashWords = Callable[[Words], UInt[np.ndarray, " m"]]

# Bytes of rows that are hashed or compared at a time: they fit a cache; where other processes send
# them, fewer exchanges matter more.
_CHUNK_BYTES, _SHARED_CHUNK_BYTES = 1 << 20, 1 << 24
# The maximum number of distinct rows that a process sends to the other processes.
_MOST_SHARED = 1 << 20
# A source is read for its distinct rows if at least this fraction of its first rows occurs again
# among them, and as long as the distinct rows take at most these bytes.
_HEAD_ROWS, _LEAST_REPEATED, _MOST_BYTES = 1 << 13, 0.1, 1 << 26
# The bytes of a source that are read at a time.
_READ_BYTES = 1 << 22
# Odd multipliers and shifts of the finaliser of SplitMix64 (Steele, Lea and Flood 2014).
_GAMMA, _MULTIPLIERS, _SHIFTS = (
    0x9E3779B97F4A7C15,
    (0xBF58476D1CE4E5B9, 0x94D049BB133111EB),
    (30, 27),
)


@dataclass(frozen=True)
class DistinctRows:
    """The distinct ones of n rows.

    Attributes:
        num: the number of distinct rows, m.
        first: shape (m,), the lowest number of each among all rows, in increasing order.
        counts: shape (m,), how often each occurs; they sum to n.
    """

    first: Int[np.ndarray, " m"]
    counts: Int[np.ndarray, " m"]

    @property
    def num(self) -> int:
        """The number of distinct rows, m."""
        return self.first.size

    @property
    def has_repeats(self) -> bool:
        """True if a row occurs more than once."""
        return bool((self.counts > 1).any())


def hash_words(words: Words) -> UInt[np.ndarray, " m"]:
    """A hash of each row: the sum over its words of the mixed word and its place."""
    places = np.arange(1, words.shape[1] + 1, dtype=np.uint64) * np.uint64(_GAMMA)
    return _mixed(words ^ _mixed(places)).sum(axis=1, dtype=np.uint64)


def find_distinct(
    rows: Rows, *, may_read: bool = True, hash_words: HashWords = hash_words
) -> DistinctRows | None:
    """The distinct rows; the same in every process.

    Args:
        rows: all the rows.
        may_read: whether rows that are not in memory may be read in a pass of their own. They are
            if at least a tenth of the first ones occurs again among these, and the distinct ones
            take at most 64 MB.
        hash_words: from rows as words of 64 bits, shape (m, w), to a hash of each, shape (m,).

    Returns:
        The distinct rows; None where they are not counted: of ragged rows, of rows that are not in
        memory as above, or of several processes one of which has more than 2²⁰ distinct rows or has
        to read them.
    """
    if rows.is_ragged:
        return None
    processes = rows.context.processes
    states = processes.gather({"streamed": np.asarray(rows.is_streamed)})
    leaves = jax.tree.leaves(rows.data)
    if any(state["streamed"] for state in states):
        return _of_source(rows, leaves, hash_words) if may_read and rows.is_local else None
    arrays = [np.asarray(leaf) for leaf in leaves]
    chunks = _chunks(rows.num_local, sum(array[:1].nbytes for array in arrays))
    hashes = np.concatenate([hash_words(_words(arrays, at)) for at in chunks])
    local = _of_hashes(hashes, lambda at: _words(arrays, at))
    return local if rows.is_local else _of_processes(rows, local, hashes[local.first])


def _of_hashes(hashes: UInt[np.ndarray, " n"], words_of: Callable[[Any], Words]) -> DistinctRows:
    """The distinct ones of rows in memory."""
    ordered = np.sort(hashes)
    if not (ordered[1:] == ordered[:-1]).any():
        return DistinctRows(np.arange(hashes.size), np.ones(hashes.size, np.int64))
    leaders = _leaders(hashes, words_of, _CHUNK_BYTES)
    return DistinctRows(*_counted(leaders))


def _leaders(
    hashes: UInt[np.ndarray, " n"], words_of: Callable[[Any], Words], chunk_bytes: int
) -> Int[np.ndarray, " n"]:
    """For each row the lowest position of a row that equals it."""
    leaders, left = np.arange(hashes.size), np.arange(hashes.size)
    while left.size:
        # The first row of each hash leads; rows of that hash that differ from it remain.
        own = hashes[left]
        order = np.argsort(own, kind="stable")
        is_start = np.diff(own[order], prepend=~own[order[:1]]) != 0
        start = np.maximum.accumulate(np.where(is_start, np.arange(left.size), 0))
        leaders[left[order]] = left[order[start]]
        followers = left[leaders[left] != left]
        differs = _differ(followers, leaders[followers], words_of, chunk_bytes)
        left = followers[differs]
    return leaders


def _differ(
    some: Int[np.ndarray, " m"],
    others: Int[np.ndarray, " m"],
    words_of: Callable[[Any], Words],
    chunk_bytes: int,
) -> Bool[np.ndarray, " m"]:
    """Which pairs of rows are not equal."""
    found = np.zeros(some.size, bool)
    if some.size:
        num_bytes = words_of(some[:1]).nbytes
        for at in _chunks(some.size, num_bytes, chunk_bytes):
            found[at] = (words_of(some[at]) != words_of(others[at])).any(axis=1)
    return found


def _of_processes(
    rows: Rows, local: DistinctRows, hashes: UInt[np.ndarray, " m"]
) -> DistinctRows | None:
    """The distinct rows of all processes, from those of each."""
    processes = rows.context.processes
    sizes = [int(state["num"]) for state in processes.gather({"num": np.asarray(local.num)})]
    if max(sizes) > _MOST_SHARED:
        return None
    parts = {"row": rows.offset + local.first, "hash": hashes, "count": local.counts}
    row, joined, count = gather_rows(processes, parts, sizes).values()

    def words_of(at: Any) -> Words:
        # Every process asks for the same rows.
        taken = jax.tree.leaves(rows.take(row[at]))
        return _words([np.asarray(leaf) for leaf in taken], slice(None))

    first, counts = _counted(_leaders(joined, words_of, _SHARED_CHUNK_BYTES), count)
    return DistinctRows(row[first], counts)


def _of_source(rows: Rows, leaves: Sequence, hash_words: HashWords) -> DistinctRows | None:
    """The distinct rows of a source, in one pass that holds the distinct rows that it has seen."""
    head = [np.asarray(leaf) for leaf in jax.tree.leaves(rows.head(_HEAD_ROWS))]
    words = _words(head, slice(None))
    found = _of_hashes(hash_words(words), lambda at: words[at])
    if found.num > (1 - _LEAST_REPEATED) * len(words):
        return None
    rows.count_pass("distinct rows")
    kept = words[:0]
    first = counts = np.zeros(0, np.int64)
    size = rows.context.batch_size or max(1, _READ_BYTES // max(words.shape[1] * 8, 1))
    with contextlib.closing(read_chunks(leaves, size)) as chunks:
        for start, parts in chunks:
            new = _words([np.asarray(part) for part in parts], slice(None))
            # Those of the chunk first, which are few, and then with those before.
            own = _of_hashes(hash_words(new), lambda at, new=new: new[at])
            joined = np.concatenate([kept, new[own.first]])
            leaders = _leaders(hash_words(joined), lambda at, all=joined: all[at], _CHUNK_BYTES)
            places, counts = _counted(leaders, np.concatenate([counts, own.counts]))
            first, kept = np.concatenate([first, start + own.first])[places], joined[places]
            if kept.nbytes > _MOST_BYTES:
                return None
    return DistinctRows(first, counts)


def _counted(
    leaders: Int[np.ndarray, " n"], counts: Int[np.ndarray, " n"] | None = None
) -> tuple[Int[np.ndarray, " m"], Int[np.ndarray, " m"]]:
    """The positions of the rows that lead, and how often they and those that equal them occur."""
    total = np.bincount(leaders, counts)
    places = np.flatnonzero(total)
    return places, total[places].astype(np.int64)


def _mixed(words: np.ndarray) -> np.ndarray:
    """Words of 64 bits whose bits depend on all the bits of the given ones, one to one."""
    for multiplier, shift in zip(_MULTIPLIERS, _SHIFTS, strict=True):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(multiplier)
    return words ^ (words >> np.uint64(31))


def _words(arrays: Sequence[np.ndarray], at: Any) -> Words:
    """The bytes of some rows of all arrays, as words of 64 bits that are equal for equal rows."""
    parts = []
    for array in arrays:
        part = array[at]
        part = part.reshape(len(part), int(np.prod(part.shape[1:])))
        if part.dtype.kind not in "iub":
            part = part + part.dtype.type(0)  # −0.0 becomes 0.0
        parts.append(np.ascontiguousarray(part).view(np.uint8))
    width = sum(part.shape[1] for part in parts)
    joined = np.zeros((len(parts[0]), -(-width // 8) * 8), np.uint8)
    np.concatenate(parts, axis=1, out=joined[:, :width])
    return joined.view(np.uint64)


def _chunks(num: int, row_bytes: int, chunk_bytes: int = _CHUNK_BYTES) -> list[slice]:
    """Slices of `num` rows of about equal bytes."""
    size = max(1, chunk_bytes // max(row_bytes, 1))
    return [slice(first, first + size) for first in range(0, num, size)]
