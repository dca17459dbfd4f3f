"""How groups become rows: an array with one row per datum, (n, …), becomes one of (G, L, …).

L is the number of rows of the longest group, and a mask says which places are rows; it takes the
place of the labels. All passes over rows then work on groups. Groups in memory are in the order of
a few lengths, see `jaxcoreset.data.ragged`. Groups that are read from files are so within each
window of the file, so that a pass reads the file once and in order.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from jaxcoreset.data.grouped import (
    GroupedColumn,
    GroupedRows,
    GroupScan,
    gather,
    row_bytes,
    window_bounds,
)
from jaxcoreset.data.processes import ProcessGroup
from jaxcoreset.data.ragged import Ragged, choose_lengths
from jaxcoreset.data.rows import PassContext, Rows
from jaxcoreset.data.sources.base import SourceArray
from jaxcoreset.data.sources.stretched import with_an_axis
from jaxcoreset.likelihood.arguments import Arguments, ModelError
from jaxcoreset.likelihood.group_arguments import GroupTable
from jaxcoreset.likelihood.group_names import GroupNames, as_labels, gathered, labels_of_all

# Groups that stand for all of them where a model is traced.
_TEMPLATE = 64


@dataclass(frozen=True)
class Gathering:
    """What it takes to have the rows of groups together.

    Attributes:
        num_rows: the number of rows of this process.
        row_bytes: the bytes of one of them.
        passes: the number of passes over them before the first one of the build, by their purpose.
    """

    num_rows: int
    row_bytes: int
    passes: dict[str, int]


@dataclass(frozen=True, eq=False)
class Layout:
    """Groups laid out as rows.

    Attributes:
        arguments: the model's arguments with groups as rows: (G, L, …) for what has rows, and a
            mask for the labels. They have some of the groups only.
        data: what has a leading axis of groups, with all of them; with labels, some are `Ragged`.
        order: the number of each group, where groups are in another order; else None.
        gathering: what it took to have each group's rows together.
        names: the labels of the groups, of all processes.
    """

    arguments: Arguments
    data: tuple
    order: Int[np.ndarray, " g"] | None
    gathering: Gathering
    names: GroupNames = GroupNames()  # noqa: RUF009 - frozen

    def rows(self, context: PassContext | None = None) -> Rows:
        """The groups as rows."""
        rows = Rows(self.data, context or PassContext(), self.order)
        for what, count in self.gathering.passes.items():
            rows.passes[what] = count
        return rows


def lay_out(table: GroupTable, context: PassContext | None = None) -> Layout:
    """The groups as rows.

    Args:
        table: the groups.
        context: with its `processes`, all of which have groups of their own.

    Raises:
        ModelError: if rows of one group are in several processes.
        DataError: if rows have to be gathered, and the disk has too little space.
    """
    context = context or PassContext()
    positions, leaves = table.positions, list(table.arguments.leaves)
    row_leaves = [leaves[i] for i in positions.rows]
    gathering = Gathering(row_leaves[0].shape[0], row_bytes(row_leaves), {})
    order = None
    if positions.labels is None:
        for i in positions.rows:
            leaves[i] = with_an_axis(leaves[i])
    else:
        sizes = table.sizes
        _check_processes(table, sizes, context.processes)
        lengths = choose_lengths(np.concatenate(gathered(sizes, context.processes)))
        values, starts, gathering = _values_and_starts(table, row_leaves, context.may_read)
        order = _order(np.searchsorted(lengths, sizes), starts, values)
        starts, sizes = starts[order], sizes[order]
        for i, one in zip(positions.rows, values, strict=True):
            leaves[i] = Ragged(one, starts, sizes, lengths)
        for i in positions.groups:
            leaf = leaves[i]
            leaves[i] = np.asarray(leaf[:] if isinstance(leaf, SourceArray) else leaf)[order]
        leaves[positions.labels] = Ragged(None, starts, sizes, lengths)
        order = None if np.array_equal(order, np.arange(order.size)) else order
    data = tuple(leaves[i] for i in positions.data_at)
    for i in positions.data_at:
        leaves[i] = leaves[i][:_TEMPLATE]
    arguments = dataclasses.replace(
        table.arguments, leaves=tuple(leaves), data_at=positions.data_at, counts_at=()
    )
    names = labels_of_all(_labels(table), table.num_groups, context.processes)
    return Layout(arguments, data, order, gathering, GroupNames(names))


def _labels(table: GroupTable) -> np.ndarray | None:
    """The labels of groups as a user knows them; None if they are the groups' numbers."""
    at, names = table.positions.labels, table.names
    leaf = None if at is None else table.arguments.leaves[at]
    values = leaf.source.categories_of(leaf.leaf) if isinstance(leaf, SourceArray) else None
    if names is None and values is not None and values.size == table.num_groups:
        names = values  # the source has numbered them
    return None if names is None else as_labels(names)


def _values_and_starts(
    table: GroupTable, leaves: Sequence, may_read: bool
) -> tuple[list, Int[np.ndarray, " g"], Gathering]:
    """The rows, those of a group together, the first row of each group, and what that took.

    Rows of sources that may not be read now are taken as if they were sorted, to try passes on.
    """
    num_rows, width = leaves[0].shape[0], row_bytes(leaves)
    sizes = table.sizes
    if table.scan is None:
        assert table.labels is not None
        ends = np.cumsum(sizes)
        is_sorted = bool((table.labels[1:] >= table.labels[:-1]).all())
        by_group = slice(None) if is_sorted else np.argsort(table.labels, kind="stable")
        values = [np.asarray(leaf)[by_group] for leaf in leaves]
        return values, ends - sizes, Gathering(num_rows, width, {})
    at = table.positions.labels
    assert at is not None
    scan, passes = table.scan, {"labels": 1}
    if not scan.is_sorted:
        passes["gathering"] = 1
        if may_read:
            leaves, scan = gather(leaves, table.arguments.leaves[at], scan)
        else:
            first = np.cumsum(scan.sizes) - scan.sizes
            scan = GroupScan(scan.names, scan.sizes, first, True)
    starts = np.full(sizes.size, num_rows - 1)  # groups without rows are read with the last one
    starts[table.numbers] = scan.starts
    reader = GroupedRows(leaves, window_bounds(scan.starts, num_rows, width))
    values = [GroupedColumn(reader, at) for at in range(len(leaves))]
    return values, starts, Gathering(num_rows, width, passes)


def _order(
    lengths: Int[np.ndarray, " g"], starts: Int[np.ndarray, " g"], values: Sequence
) -> Int[np.ndarray, " g"]:
    """The groups in the order in which they are evaluated, those of one length together."""
    column = values[0] if values else None
    if not isinstance(column, GroupedColumn):
        return np.argsort(lengths, kind="stable")
    window = np.searchsorted(column.rows.bounds, starts, side="right")
    return np.lexsort((starts, lengths, window))


def _check_processes(
    table: GroupTable, sizes: Int[np.ndarray, " g"], processes: ProcessGroup
) -> None:
    """Raise a ModelError if groups are shared by processes, as far as their labels tell."""
    if processes.count == 1:
        return
    with processes.all_or_none("groups"):
        if empty := int(np.sum(sizes == 0)):
            raise ModelError(
                f"{empty} of {sizes.size} groups have no rows in process {processes.index}; "
                "expected in each process the labels, the number and the predictors of its own "
                "groups only: number them by np.unique(labels, return_inverse=True)[1]."
            )
    names = np.arange(sizes.size) if table.names is None else table.names
    marks = np.array([_mark(name) for name in names.tolist()], np.uint64)
    found = processes.gather({"own": np.asarray(table.names is not None)})
    if not any(one["own"] for one in found):
        return  # all are numbered from 0 on
    parts = gathered(marks, processes)
    others = np.concatenate(parts[: processes.index] + parts[processes.index + 1 :])
    shared = np.flatnonzero(np.isin(marks, others))
    with processes.all_or_none("groups"):
        if shared.size:
            raise ModelError(
                f"group {names[shared[0]]!r} and {shared.size - 1} more groups have rows in "
                f"process {processes.index} and in another one; expected all rows of a group in "
                "one process: divide the table by groups."
            )


def _mark(name: Any) -> int:
    """A 64-bit number that identifies a label, the same in every process."""
    return int.from_bytes(hashlib.blake2b(repr(name).encode(), digest_size=8).digest(), "little")
