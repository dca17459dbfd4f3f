"""All the rows of the data, wherever they are: in memory, in files, on several machines.

A build takes a few rows by number, and makes passes over all rows that end in something small. A
pass is a map-reduce: a function is evaluated on blocks of rows on the devices, and its values are
added on the host, in float64 and in the order of the rows, so that neither chunks nor devices
change the result. Each process reduces its own rows, and the results are merged in the order of the
processes.
"""

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Int, PyTree

from jaxcoreset.data.arrays import leading
from jaxcoreset.data.blocks import block_rows, evaluate_blocks, row_bytes
from jaxcoreset.data.checkpoint import CheckpointFile
from jaxcoreset.data.processes import SINGLE_PROCESS, ProcessGroup
from jaxcoreset.data.ragged import Ragged, is_ragged, runs_of
from jaxcoreset.data.reading import is_streamed, read_chunks, take_rows
from jaxcoreset.data.sources.base import checked_rows

State = dict[str, np.ndarray]

_FEWEST_BLOCKS = 8
_SMALLEST_BLOCK = 256
# The maximum number of bad rows that an error names.
NUM_BAD_ROWS_SHOWN = 5


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
    """

    mesh: Mesh | None = None
    batch_size: int | None = None
    processes: ProcessGroup = SINGLE_PROCESS
    checkpoint: CheckpointFile | None = None
    in_float64: bool = False

    def precision(self) -> contextlib.AbstractContextManager:
        """A context in which rows are evaluated in the precision that these passes have."""
        return jax.enable_x64(True) if self.in_float64 else contextlib.nullcontext()


@dataclass(eq=False)
class Rows:
    """The rows of a pytree of arrays with a common leading axis.

    Args:
        data: the arrays of this process; NumPy arrays stay on the host, and leaves of a
            `RowSource` are read as they are needed. Of `Ragged` arrays, rows of one length follow
            one another.
        context: where the rows are read and evaluated.
        order: the numbers that a user knows the rows by, if these are not their places here.

    Attributes:
        num_rows: the number of rows of all processes, n.
        offset: the row number of this process's first row.
        passes: the number of passes over all rows, by their purpose.
    """

    data: PyTree
    context: PassContext = field(default_factory=PassContext)
    order: Int[np.ndarray, " n"] | None = None
    num_rows: int = field(init=False)
    offset: int = field(init=False)
    passes: dict[str, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.num_local = leading(self.data)
        counts = self.context.processes.gather({"rows": np.asarray(self.num_local)})
        self._counts = np.array([int(count["rows"]) for count in counts])
        self.num_rows = int(self._counts.sum())
        self.offset = int(self._counts[: self.context.processes.index].sum())
        self._kept: tuple[np.ndarray, tuple] = np.zeros(0, np.int64), ()

    @classmethod
    def of(cls, data: "PyTree | Rows", batch_size: int | None = None) -> "Rows":
        """The rows of arrays; `Rows` are returned as they are."""
        return data if isinstance(data, Rows) else cls(data, PassContext(batch_size=batch_size))

    @property
    def is_streamed(self) -> bool:
        """True if some of the arrays are read from files or batches."""
        return any(is_streamed(leaf) for leaf in jax.tree.leaves(self.data))

    @property
    def is_ragged(self) -> bool:
        """True if some of the arrays are lists of different lengths."""
        return is_ragged(self.data)

    @property
    def is_local(self) -> bool:
        """True if this process has all the rows."""
        return self.context.processes.count == 1

    @property
    def has_random_access(self) -> bool:
        """True if a few rows can be read without a pass over all of them."""
        sources = (getattr(leaf, "source", None) for leaf in jax.tree.leaves(self.data))
        return all(source is None or source.random_access for source in sources)

    def block(self, width: int, at: int = 0) -> int:
        """The number of rows of a block if each row becomes `width` numbers.

        Args:
            width: the number of numbers.
            at: a row; blocks of lists of another length are not alike.
        """
        if self.is_ragged:
            run = next(run for run in runs_of(self.data, self.num_local) if at < run.stop)
            num = run.stop - run.start
            most = block_rows(
                width,
                row_bytes([leaf[run.start : run.start + 1] for leaf in jax.tree.leaves(self.data)]),
            )
            return -(-num // -(-num // most))
        even = 1 << max(0, int(np.ceil(np.log2(self.num_rows / _FEWEST_BLOCKS))))
        return min(block_rows(width, row_bytes(self.data)), max(_SMALLEST_BLOCK, even))

    def select(self, indices: Int[np.ndarray, " m"]) -> PyTree:
        """As `take`, for rows that are evaluated by `Rows` of their own: ragged ones stay so."""
        if not self.is_ragged:
            return self.take(indices)
        return jax.tree.map(
            lambda leaf: leaf.select(indices) if isinstance(leaf, Ragged) else leaf[indices],
            self.data,
        )

    def chunks(self, size: int) -> Iterator[tuple[tuple, int]]:
        """Rows of this process in chunks of one size, with the index of each one's first row.

        The last chunk overlaps the one before, so that it has the same size.
        """
        for run in runs_of(self.data, self.num_local):
            num = min(size, run.stop - run.start)
            for start in range(run.start, run.stop, num):
                first = min(start, run.stop - num)
                yield tuple(leaf[first : first + num] for leaf in self.data), self.offset + first

    def numbers(self, indices: Int[np.ndarray, " m"]) -> Int[np.ndarray, " m"]:
        """The numbers that a user knows rows by, of rows by their place here."""
        return indices if self.order is None else self.order[indices]

    def places(self, numbers: Int[np.ndarray, " m"]) -> Int[np.ndarray, " m"]:
        """The inverse of `numbers`."""
        if self.order is None:
            return numbers
        places = np.empty_like(self.order)
        places[self.order] = np.arange(places.size)
        return places[numbers]

    def close_checkpoint(self) -> None:
        """Stop writing the results of passes to the checkpoint."""
        self.context = dataclasses.replace(self.context, checkpoint=None)

    def count_pass(self, what: str) -> None:
        """Count a pass over all rows."""
        self.passes[what] = self.passes.get(what, 0) + 1

    def take(self, indices: Int[np.ndarray, " m"]) -> PyTree:
        """The rows with the given numbers, on every process; NumPy leaves stay NumPy.

        Raises:
            IndexError: a row number is outside [0, n).
        """
        indices = checked_rows(indices, self.num_rows, "the data")
        if self.is_ragged:
            return jax.tree.map(lambda leaf: leaf[indices], self.data)
        known, kept = self._kept
        at = np.minimum(np.searchsorted(known, indices), known.size - 1)
        if known.size and np.array_equal(known[at], indices):
            return jax.tree.unflatten(self._tree, [leaf[at] for leaf in kept])
        return jax.tree.unflatten(self._tree, self._take(indices))

    def head(self, num: int) -> PyTree:
        """The first rows of this process."""
        if self.is_ragged:
            return jax.tree.map(lambda leaf: leaf[:num], self.data)
        leaves = tuple(jax.tree.leaves(self.data))
        _, parts = next(read_chunks(leaves, min(num, self.num_local), prefetch=0))
        return jax.tree.unflatten(self._tree, parts)

    def keep(self, indices: Int[np.ndarray, " m"]) -> None:
        """Read rows that are going to be taken, all at once, where each `take` would cost a pass.

        Of rows that can be had one by one, and are all here, nothing is read.
        """
        if self.is_local and self.has_random_access:
            return
        self.remember(indices := np.unique(indices), self._take(indices))

    def remember(self, indices: Int[np.ndarray, " m"], leaves: tuple) -> None:
        """Hold on to rows that were read: different ones, with their leaves, in any order."""
        known, kept = self._kept
        new = np.flatnonzero(~np.isin(indices, known))
        joined = np.concatenate([known, indices[new]])
        order = np.argsort(joined)
        self._kept = (
            joined[order],
            tuple(
                np.concatenate([before, leaf[new]])[order]
                if known.size
                else np.asarray(leaf[order])
                for before, leaf in zip(kept or leaves, leaves, strict=True)
            ),
        )

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

        Returns:
            The state of every process, in their order.
        """
        self.count_pass(what)
        context, state, first = self.context, start, 0
        with context.processes.all_or_none(what):
            checkpoint = context.checkpoint
            entry = None if checkpoint is None else checkpoint.open(what, _digest(args))
            if entry is not None and (entry.is_done or entry.progress[1]):
                entry.check_like(start, self.num_local, self.block(width))
                state, first = entry.progress
                first = self.num_local if entry.is_done else first
                on_rows(first)
            if first < self.num_local:
                groups = self.evaluate(fn, args, width, per_row, first=first)
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
    ) -> Iterator[tuple[int, int, PyTree]]:
        """Evaluate a function on all blocks of rows of this process, see `evaluate_blocks`.

        Args:
            fn: see `map_reduce`.
            args: see `map_reduce`.
            width: see `map_reduce`.
            per_row: see `map_reduce`.
            first: the row to begin at, the first of a block.
        """
        for run in runs_of(self.data, self.num_local):
            if first >= run.stop:
                continue
            data, per_run = self.data, tuple(per_row)
            if self.is_ragged:
                data = jax.tree.map(lambda leaf, run=run: leaf[run], data)
                per_run = tuple(np.asarray(leaf)[run] for leaf in per_row)
            groups = evaluate_blocks(
                fn,
                args,
                (data, per_run),
                self.block(width, run.start),
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
        processes = self.context.processes
        mine = indices - self.offset
        mine = mine[(mine >= 0) & (mine < self.num_local)]
        if processes.count == 1:
            return self._read(leaves, mine)
        with processes.all_or_none("candidates"):
            parts = tuple(np.asarray(leaf) for leaf in self._read(leaves, mine))
        ends = np.cumsum(self._counts)
        owner = np.searchsorted(ends, indices, side="right")
        most = max(int(np.bincount(owner, minlength=processes.count).max(initial=0)), 1)
        padded = {
            str(i): np.concatenate(
                [part, np.zeros((most - len(part), *part.shape[1:]), part.dtype)]
            )
            for i, part in enumerate(parts)
        }
        found = processes.gather(padded)
        # The m-th row of a process, in the order in which it was asked for.
        place = np.zeros(indices.size, np.int64)
        for process in range(processes.count):
            at = owner == process
            place[at] = np.arange(np.count_nonzero(at))
        return tuple(
            np.stack([state[str(i)] for state in found])[owner, place] for i in range(len(leaves))
        )

    def _read(self, leaves: tuple, rows: Int[np.ndarray, " m"]) -> tuple:
        checkpoint = self.context.checkpoint
        if checkpoint is None or self.has_random_access:
            return take_rows(leaves, rows)
        entry = checkpoint.open("candidates", _digest(rows))
        if entry.is_done:
            like = [(len(rows), *leaf.shape[1:]) for leaf in leaves]
            start = {str(i): np.empty(like[i], leaf.dtype) for i, leaf in enumerate(leaves)}
            entry.check_like(start, 0, 1)
        else:
            parts = take_rows(leaves, rows)
            entry.finish({str(i): np.asarray(part) for i, part in enumerate(parts)})
        return tuple(entry.state[str(i)] for i in range(len(leaves)))


class BadRows:
    """Counts rows whose values are not finite, in a fold's state, and names the first of them."""

    @staticmethod
    def start() -> State:
        """No bad rows."""
        return {"num_bad": np.zeros((), np.int64), "bad": np.full(NUM_BAD_ROWS_SHOWN, -1)}

    @staticmethod
    def add(state: State, bad: np.ndarray, first: int, num: int) -> State:
        """Note the bad ones of `num` rows from row `first` on."""
        rows = first + np.flatnonzero(bad.reshape(-1)[:num])
        count, shown = BadRows.merged([state])
        shown = [*shown, *rows[:NUM_BAD_ROWS_SHOWN], *BadRows.start()["bad"]][:NUM_BAD_ROWS_SHOWN]
        return {"num_bad": np.asarray(count + rows.size, np.int64), "bad": np.array(shown)}

    @staticmethod
    def merged(states: Sequence[State]) -> tuple[int, list[int]]:
        """How many there are, and the numbers of the first."""
        rows = np.concatenate([state["bad"] for state in states])
        count = sum(int(state["num_bad"]) for state in states)
        return count, rows[rows >= 0][:NUM_BAD_ROWS_SHOWN].tolist()


def _digest(args: PyTree) -> str:
    """A hash of the arrays among a function's arguments."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(args):
        if eqx.is_array_like(leaf):
            array = np.asarray(leaf)
            digest.update(f"{array.shape}{array.dtype}".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()
