"""All the rows of the data, wherever they are: in memory, in files, on several machines.

A build takes a few rows by number, and makes passes over all rows whose results are small. A pass
is a map-reduce: a function is evaluated on blocks of rows on the devices, and its values are added
on the host, in float64 and in the order of the rows, so that neither chunks nor devices change the
result. Each process reduces its own rows, and the results are merged in the order of the processes.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxcoreset.data.arrays import leading
from jaxcoreset.data.blocks import block_rows, evaluate_blocks, row_bytes
from jaxcoreset.data.checkpoint import CheckpointFile, digest_of
from jaxcoreset.data.chosen_groups import exchange_groups, gather_rows, padded, read_groups
from jaxcoreset.data.folding import Folding
from jaxcoreset.data.processes import SINGLE_PROCESS, ProcessGroup
from jaxcoreset.data.ragged import Ragged, Runs, lists_of
from jaxcoreset.data.reading import is_streamed, read_chunks, take_rows
from jaxcoreset.data.sources.base import checked_rows

State = dict[str, np.ndarray]

_FEWEST_BLOCKS = 8
_SMALLEST_BLOCK = 256
# The bytes of candidates that are lists of any length, and not in memory as they are.
_HELD_BYTES = 1 << 28


@dataclass(frozen=True)
class PassContext:
    """Where rows are read and evaluated, and the file that keeps the results of passes.

    Attributes:
        mesh: the devices of this process that share the rows, as one axis; None for the default
            device.
        batch_size: how many rows are read and moved to the devices at a time; None for a default.
        processes: the processes, each of which has a part of the rows.
        checkpoint: the file with the results of passes, or None.
        in_float64: whether rows are evaluated in float64 although JAX's x64 is off by default.
        may_read: whether the rows of groups may be gathered, which reads all of them.
    """

    mesh: Mesh | None = None
    batch_size: int | None = None
    processes: ProcessGroup = SINGLE_PROCESS
    checkpoint: CheckpointFile | None = None
    in_float64: bool = False
    may_read: bool = True

    def precision(self) -> contextlib.AbstractContextManager:
        """A context in which rows are evaluated in the precision that these passes have."""
        return jax.enable_x64(True) if self.in_float64 else contextlib.nullcontext()


@dataclass(eq=False)
class Rows:
    """The rows of a pytree of arrays with a common leading axis.

    Args:
        data: the arrays of this process; NumPy arrays stay on the host, and leaves of a `RowSource`
            are read as they are needed. Of `Ragged` arrays, rows of one length follow one another.
        context: where the rows are read and evaluated.
        order: the numbers that a user knows the rows by, if these are not their places here.

    Attributes:
        num_rows: the number of rows of all processes, n.
        num_entries: the number of entries of these, where rows are lists; else n.
        offset: the row number of this process's first row.
        passes: the number of passes over all rows, by their purpose.
        folding: the distinct rows, where passes that only add rows up evaluate these.
    """

    data: PyTree
    context: PassContext = field(default_factory=PassContext)
    order: Int[np.ndarray, " n"] | None = None
    num_rows: int = field(init=False)
    num_entries: int = field(init=False)
    offset: int = field(init=False)
    passes: dict[str, int] = field(init=False, default_factory=dict)
    folding: Folding | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.num_local = leading(self.data)
        entries = sum(leaf.sizes.sum() for leaf in lists_of(self.data)[:1]) or self.num_local
        counts = self.context.processes.gather(
            {"rows": np.asarray(self.num_local), "entries": np.asarray(entries)}
        )
        self.num_entries = sum(int(count["entries"]) for count in counts)
        self._counts = np.array([int(count["rows"]) for count in counts])
        self.num_rows = int(self._counts.sum())
        self.offset = int(self._counts[: self.context.processes.index].sum())
        self._kept: tuple[np.ndarray, tuple] = np.zeros(0, np.int64), ()
        if self.is_ragged and not self.is_local:
            own = np.arange(self.num_local) if self.order is None else self.order
            self.order = self.gather({"order": self.offset + own.astype(np.int64)})["order"]

    @classmethod
    def of(cls, data: "PyTree | Rows", batch_size: int | None = None) -> "Rows":
        """The rows of arrays; `Rows` are returned as they are."""
        return data if isinstance(data, Rows) else cls(data, PassContext(batch_size=batch_size))

    @property
    def is_streamed(self) -> bool:
        """True if some of the arrays are read from files or batches."""
        return any(is_streamed(leaf) for leaf in self._sources)

    def folded(self, width: int = 0) -> "tuple[Rows, Float[np.ndarray, ' m']] | None":
        """The distinct rows and how often each occurs, for passes that only add rows up.

        `width` is how many numbers of each row such a pass returns.
        """
        if (folding := self.folding) is None:
            return None
        (rows := Rows(folding.data, folding.context(self.context, width))).passes = self.passes
        return rows, folding.counts

    @property
    def is_ragged(self) -> bool:
        """True if some of the arrays are lists of different lengths."""
        return bool(lists_of(self.data))

    @property
    def is_local(self) -> bool:
        """True if this process has all the rows."""
        return self.context.processes.count == 1

    @property
    def has_random_access(self) -> bool:
        """True if a few rows can be read without a pass over all of them."""
        sources = (getattr(leaf, "source", None) for leaf in self._sources)
        return all(source is None or source.random_access for source in sources)

    @property
    def _sources(self) -> list:
        """The arrays that rows are read from."""
        found = []
        for leaf in jax.tree.leaves(self.data):
            is_read = isinstance(leaf, Ragged) and leaf.is_streamed
            found += leaf.values.rows.leaves if is_read else [leaf]
        return found

    @property
    def most_held(self) -> int:
        """The number of rows of which 256 MB are had, if they are lists that have to be read."""
        if not (lists := lists_of(self.data)) or not (self.is_streamed or not self.is_local):
            return self.num_rows
        width = sum(row_bytes(leaf.values) for leaf in lists if leaf.values is not None)
        return int(_HELD_BYTES / max(width * lists[0].sizes.mean(), 1))

    @functools.cached_property
    def _runs(self) -> Runs:
        return Runs(self.data, self.num_local)

    @property
    def num_places(self) -> int:
        """The number of rows of this process; of lists, with what fills them up to their length."""
        return sum((run.stop - run.start) * self._runs.length(run) for run in self._runs.slices)

    def block(self, width: int, at: int = 0, typical: int | None = None) -> int:
        """The number of rows of a block if each row becomes `width` numbers.

        Args:
            width: the number of numbers.
            at: a row; blocks of lists of another length are not alike.
            typical: see `map_reduce`.
        """
        if self.is_ragged:
            run = self._runs.at(at)
            num, length = self._runs.typical(run), self._runs.length(run)
            leaves = [leaf.part(run) if isinstance(leaf, Ragged) else leaf for leaf in self.data]
            most = block_rows(width, row_bytes(leaves))
            # Several blocks, for devices to share, of as many entries as are evaluated at once.
            few = min(_FEWEST_BLOCKS, -(-num * length // _SMALLEST_BLOCK))
            return -(-num // max(-(-num // most), few))
        even = 1 << max(0, int(np.ceil(np.log2((typical or self.num_rows) / _FEWEST_BLOCKS))))
        return min(block_rows(width, row_bytes(self.data)), max(_SMALLEST_BLOCK, even))

    def select(self, indices: Int[np.ndarray, " m"]) -> PyTree:
        """As `take`, for rows that are evaluated by `Rows` of their own: ragged ones stay so."""
        indices = checked_rows(indices, self.num_rows, "the data")
        if (at := self._kept_at(indices)) is not None:
            leaves = tuple(_rows_of(leaf, at) for leaf in self._kept[1])
        else:
            leaves = self._select(indices) if self.is_ragged else self._take(indices)
        return jax.tree.unflatten(self._tree, leaves)

    def chunks(self, size: int) -> Iterator[tuple[tuple, int]]:
        """Rows of this process in chunks of one size, with the index of each one's first row.

        The last chunk overlaps the one before, so that it has the same size.
        """
        for run in self._runs.slices:
            num = min(size, run.stop - run.start)
            for start in range(run.start, run.stop, num):
                first = min(start, run.stop - num)
                yield tuple(leaf[first : first + num] for leaf in self.data), self.offset + first

    def numbers(self, indices: Int[np.ndarray, " m"]) -> Int[np.ndarray, " m"]:
        """The numbers that a user knows rows by, of rows by their place here."""
        return indices if self.order is None else self.order[indices]

    def places(self, numbers: Int[np.ndarray, " m"]) -> Int[np.ndarray, " m"]:
        """The inverse of `numbers`."""
        return numbers if self.order is None else np.argsort(self.order)[numbers]

    def gather(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Arrays with an entry for each row of this process, joined to those of all processes."""
        if self.is_local:
            return dict(values)
        return gather_rows(self.context.processes, values, self._counts.tolist())

    def close_checkpoint(self) -> None:
        """Stop writing the results of passes to the checkpoint."""
        self.context = dataclasses.replace(self.context, checkpoint=None)

    def count_pass(self, what: str) -> None:
        """Count a pass over all rows."""
        self.passes[what] = self.passes.get(what, 0) + 1

    def take(self, indices: Int[np.ndarray, " m"]) -> PyTree:
        """The rows with the given numbers, on every process; NumPy leaves stay NumPy."""
        found = self.select(indices)
        return tuple(leaf[:] for leaf in found) if self.is_ragged else found

    def _kept_at(self, indices: Int[np.ndarray, " m"]) -> Int[np.ndarray, " m"] | None:
        """The positions of rows among those that `keep` has read; None if one is not there."""
        known = self._kept[0]
        at = np.minimum(np.searchsorted(known, indices), known.size - 1)
        return at if known.size and np.array_equal(known[at], indices) else None

    def head(self, num: int) -> PyTree:
        """The first rows of this process."""
        if self.is_ragged:
            return jax.tree.map(lambda leaf: leaf[:num], self.data)
        leaves = tuple(jax.tree.leaves(self.data))
        _, parts = next(read_chunks(leaves, min(num, self.num_local), prefetch=0))
        return jax.tree.unflatten(self._tree, parts)

    def keep(self, indices: Int[np.ndarray, " m"]) -> None:
        """Read rows that are going to be taken, all at once, where each `take` would cost a pass.

        If the rows are all in this process and can be read one by one, nothing is read now.
        """
        if self.is_local and self.has_random_access:
            return
        indices = np.unique(indices)
        if not self.is_ragged:
            self.remember(indices, self._take(indices))
        elif (missing := np.setdiff1d(indices, self._kept[0])).size:
            self.remember(missing, self._select(missing))

    def remember(self, indices: Int[np.ndarray, " m"], leaves: tuple) -> None:
        """Hold on to rows that were read: different ones, with their leaves, in any order."""
        known, kept = self._kept
        new = np.flatnonzero(~np.isin(indices, known))
        joined = np.concatenate([known, indices[new]])
        order = np.argsort(joined)
        pairs = zip(kept or [None] * len(leaves), leaves, strict=True)
        self._kept = joined[order], tuple(_joined(*pair, new, order) for pair in pairs)

    def map_reduce(
        self,
        fn: Callable[[PyTree, PyTree, Bool[Array, " b"]], PyTree],
        args: PyTree,
        width: int,
        start: State,
        add: Callable[[State, PyTree, int, int], State],
        *,
        what: str,
        per_row: Sequence = (),
        on_rows: Callable[[int], Any] = lambda rows: None,
        typical: int | None = None,
    ) -> list[State]:
        """One pass: evaluate a function on all blocks of rows, and add its values up.

        Args:
            fn: see `evaluate_blocks`; its rows are ``(data, per_row)``.
            args: what does not depend on the rows.
            width: how many numbers a row becomes in `fn`, by which blocks are chosen.
            start: arrays to add to.
            add: ``add(state, values, first, num)`` with the values of some blocks, the number of
                their first row and how many rows they have; it returns the state after them.
            what: what the pass is for, in a word.
            per_row: further arrays of this process, one entry per row.
            on_rows: called with the number of rows done since the last call, for a progress bar.
            typical: the number of rows by which the shapes are chosen, by default n. Passes over
                other rows with the same number share a program. Lists have their own shapes.

        Returns:
            The state of every process, in their order.
        """
        self.count_pass(what)
        context, state, first = self.context, start, 0
        with context.processes.all_or_none(what):
            checkpoint = context.checkpoint
            entry = None if checkpoint is None else checkpoint.open(what, digest_of(args))
            if entry is not None and (entry.is_done or entry.progress[1]):
                state, first = entry.progress
                begin = self._runs.at(first).start
                block = self.block(width, begin, typical)
                entry.check_like(start, self.num_local, block, begin)
                first = self.num_local if entry.is_done else first
                on_rows(first)
            if first < self.num_local:
                groups = self.evaluate(fn, args, width, per_row, first=first, typical=typical)
                for at, num, values in groups:
                    state = add(state, jax.tree.map(np.asarray, values), self.offset + at, num)
                    on_rows(num)
                    if entry is not None:
                        entry.advance(state, at + num)
            if entry is not None and not entry.is_done:
                entry.finish(state)
        return context.processes.gather(state)

    def evaluate(
        self,
        fn: Callable[[PyTree, PyTree, Bool[Array, " b"]], PyTree],
        args: PyTree,
        width: int,
        per_row: Sequence = (),
        *,
        first: int = 0,
        typical: int | None = None,
    ) -> Iterator[tuple[int, int, PyTree]]:
        """Evaluate a function on all blocks of rows of this process, see `evaluate_blocks`.

        Args:
            fn: see `map_reduce`.
            args: see `map_reduce`.
            width: see `map_reduce`.
            per_row: see `map_reduce`.
            first: the row to begin at, the first of a block.
            typical: see `map_reduce`.
        """
        for run in self._runs.slices:
            if first >= run.stop:
                continue
            data, per_run = self.data, tuple(per_row)
            if self.is_ragged:
                data = tuple(
                    leaf.part(run) if isinstance(leaf, Ragged) else leaf[run] for leaf in data
                )
                per_run = tuple(np.asarray(leaf)[run] for leaf in per_row)
                typical = self._runs.typical(run)
            groups = evaluate_blocks(
                fn,
                args,
                (data, per_run),
                self.block(width, run.start, typical),
                typical=typical,
                first=max(first - run.start, 0),
                mesh=self.context.mesh,
                batch_size=self.context.batch_size,
            )
            for at, num, values in groups:
                yield run.start + at, num, values

    @property
    def _tree(self) -> Any:
        return jax.tree.structure(self.data)

    def _take(self, indices: Int[np.ndarray, " m"]) -> tuple:
        leaves = tuple(jax.tree.leaves(self.data))
        if not self.has_random_access:
            self.count_pass("candidates")
        processes, mine = self.context.processes, self._mine(indices)
        if processes.count == 1:
            return self._read(leaves, mine)
        with processes.all_or_none("candidates"):
            parts = tuple(np.asarray(leaf) for leaf in self._read(leaves, mine))
        owner, place = self._owners(indices)
        most = max(int(np.bincount(owner, minlength=processes.count).max(initial=0)), 1)
        found = processes.gather({str(i): padded(part, most) for i, part in enumerate(parts)})
        return tuple(
            np.stack([state[str(i)] for state in found])[owner, place] for i in range(len(leaves))
        )

    def _mine(self, indices: Int[np.ndarray, " m"]) -> Int[np.ndarray, " k"]:
        """The rows of this process, counted from its first one."""
        return (mine := indices - self.offset)[(mine >= 0) & (mine < self.num_local)]

    def _owners(self, indices: Int[np.ndarray, " m"]) -> tuple[np.ndarray, np.ndarray]:
        """The process of each row, and its position among those that are asked of this process."""
        owner = np.searchsorted(np.cumsum(self._counts), indices, side="right")
        place = np.zeros(indices.size, np.int64)
        for process in range(self._counts.size):
            at = owner == process
            place[at] = np.arange(np.count_nonzero(at))
        return owner, place

    def _select(self, indices: Int[np.ndarray, " m"]) -> tuple:
        """Lists of all processes, by row number."""
        if self.is_local and not self.is_streamed:
            return read_groups(self.data, indices)
        if not self.has_random_access:
            self.count_pass("candidates")
        processes = self.context.processes
        with processes.all_or_none("candidates"):
            own = read_groups(self.data, self._mine(indices), copy=True)
        return own if self.is_local else exchange_groups(own, processes, *self._owners(indices))

    def _read(self, leaves: tuple, rows: Int[np.ndarray, " m"]) -> tuple:
        checkpoint = self.context.checkpoint
        if checkpoint is None or self.has_random_access:
            return take_rows(leaves, rows)
        entry = checkpoint.open("candidates", digest_of(rows))
        if entry.is_done:
            like = [(len(rows), *leaf.shape[1:]) for leaf in leaves]
            start = {str(i): np.empty(like[i], leaf.dtype) for i, leaf in enumerate(leaves)}
            entry.check_like(start, 0, 1)
        else:
            parts = take_rows(leaves, rows)
            entry.finish({str(i): np.asarray(part) for i, part in enumerate(parts)})
        return tuple(entry.state[str(i)] for i in range(len(leaves)))


def _rows_of(leaf: Any, at: np.ndarray) -> Any:
    """Some rows of a leaf, in memory; lists stay ragged."""
    return leaf.select(at) if isinstance(leaf, Ragged) else np.asarray(leaf[at])


def _joined(before: Any, leaf: Any, new: np.ndarray, order: np.ndarray) -> Any:
    """The rows of a leaf that are kept and the new ones of others, in an order."""
    found = _rows_of(leaf, new)
    if before is not None:
        is_ragged = isinstance(leaf, Ragged)
        found = before.joined(found) if is_ragged else np.concatenate([before, found])
    return _rows_of(found, order)
