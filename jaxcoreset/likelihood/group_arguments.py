"""Which arguments of a model hold rows, groups, labels and counts.

`jaxcoreset.likelihood.group_layout` lays groups out as the rows of other models are.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from jaxcoreset.data.grouped import GroupScan, scan_labels
from jaxcoreset.data.messages import did_you_mean, listed
from jaxcoreset.data.reading import is_streamed
from jaxcoreset.likelihood.arguments import Arguments, ModelError, is_array, is_integer

# Of so many arguments with the same number, some alone may count the groups.
_MOST_EQUAL = 4


@dataclass(frozen=True)
class GroupPositions:
    """The roles of a model's arguments, as positions among its flattened (args, kwargs).

    Attributes:
        labels: the argument that says to which group a row belongs; None if each row is a group.
        rows: those with one row per datum.
        groups: those with one row per group.
        row_counts: integers that count the rows.
        group_counts: integers that count the groups.
    """

    labels: int | None
    rows: tuple[int, ...]
    groups: tuple[int, ...] = ()
    row_counts: tuple[int, ...] = ()
    group_counts: tuple[int, ...] = ()

    @property
    def data_at(self) -> tuple[int, ...]:
        """The positions of all that has a leading axis of groups once groups are laid out."""
        labels = () if self.labels is None else (self.labels,)
        return tuple(sorted({*self.rows, *self.groups, *labels}))

    def to_dict(self) -> dict[str, Any]:
        """The positions as plain numbers and lists."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "GroupPositions":
        """The inverse of `to_dict`; a ValueError if it is damaged."""
        lists = {name: plain[name] for name in ("rows", "groups", "row_counts", "group_counts")}
        numbers = [x for values in lists.values() for x in values]
        labels = plain["labels"]
        numbers += [] if labels is None else [labels]
        if not all(isinstance(x, int) and x >= 0 for x in numbers):
            raise ValueError("the positions of arguments are not numbers")
        return cls(labels, **{name: tuple(values) for name, values in lists.items()})

    def call_with(self, leaves: Sequence, num_rows: int, num_groups: int, labels: Any) -> list:
        """The leaves of a call with these labels, whose counts are right."""
        filled = list(leaves)
        for position in self.row_counts:
            filled[position] = num_rows
        for position in self.group_counts:
            filled[position] = num_groups
        if self.labels is not None:
            filled[self.labels] = labels
        return filled


@dataclass(frozen=True, eq=False)
class GroupTable:
    """A model's arguments in which groups were found.

    Attributes:
        arguments: the arguments as given, with labels in memory numbered from 0.
        positions: their roles.
        num_groups: the number of groups, G.
        labels: shape (n,), the number of each row's group; None if each row is one, or rows are
            read from files.
        names: shape (G,), the group's own labels; None if they are its number.
        scan: the groups that a pass over files has found; None for rows in memory.
    """

    arguments: Arguments
    positions: GroupPositions
    num_groups: int
    labels: Int[np.ndarray, " n"] | None = None
    names: np.ndarray | None = None
    scan: GroupScan | None = None

    @property
    def numbers(self) -> Int[np.ndarray, " k"]:
        """The number of each group that the pass has found."""
        assert self.scan is not None
        found = self.scan.names
        return found.astype(np.int64) if self.names is None else np.arange(found.size)

    @property
    def sizes(self) -> Int[np.ndarray, " g"]:
        """The number of rows of each group."""
        if self.labels is not None:
            return np.bincount(self.labels, minlength=self.num_groups)
        if self.scan is None:
            return np.ones(self.num_groups, np.int64)
        sizes = np.zeros(self.num_groups, np.int64)
        sizes[self.numbers] = self.scan.sizes
        return sizes


@dataclass(frozen=True, eq=False)
class Labels:
    """The argument that names the groups.

    Attributes:
        position: its position.
        names: shape (k,), the different labels in increasing order.
        at: shape (n,), for each row its label as a position among `names`; None if rows are read
            from files.
        scan: what a pass over files has found; None for rows in memory.
    """

    position: int
    names: np.ndarray
    at: Int[np.ndarray, " n"] | None
    scan: GroupScan | None


def find_labels(arguments: Arguments, groups: str) -> Labels:
    """Find the argument with this name, and the labels in it.

    Raises:
        ModelError: if there is no such argument, or it is not one label for each row.
        DataError: if a label in a file is NaN.
    """
    if groups not in arguments.names:
        entries = [name for name in arguments.names if name.endswith(f"[{groups!r}]")]
        near = f"; did you mean {listed(entries)}?" if entries else None
        near = near or did_you_mean(groups, arguments.names)
        raise ModelError(
            f"groups is {groups!r}{near} Expected the argument that says to which group a row "
            f"belongs, one of {listed(arguments.names)}."
        )
    position = arguments.names.index(groups)
    leaf = arguments.leaves[position]
    if not hasattr(leaf, "shape") or len(leaf.shape) != 1 or not leaf.shape[0]:
        found = f"has shape {leaf.shape}" if hasattr(leaf, "shape") else f"is {leaf!r}"
        raise ModelError(
            f"argument {groups}, which groups names, {found}; expected an array with one label for "
            "each row."
        )
    if any(is_streamed(arguments.leaves[i]) for i in (position, *_with_rows(arguments, position))):
        scan = scan_labels(leaf)
        return Labels(position, scan.names, None, scan)
    values = np.asarray(leaf)
    names, numbers = np.unique(values, return_inverse=True)
    if values.dtype.kind == "f" and np.isnan(values).any():
        row = int(np.argmax(np.isnan(values)))
        raise ModelError(f"argument {groups} is NaN in row {row}; expected a label in every row.")
    return Labels(position, names, numbers.reshape(-1), None)


def _with_rows(arguments: Arguments, labels: int) -> tuple[int, ...]:
    """The positions of the arguments with as many rows as there are labels, but for the labels."""
    n = arguments.leaves[labels].shape[0]
    return tuple(
        i
        for i, leaf in enumerate(arguments.leaves)
        if i != labels and hasattr(leaf, "shape") and tuple(leaf.shape[:1]) == (n,)
    )


def possible_counts(
    arguments: Arguments, labels: int, names: np.ndarray
) -> list[tuple[int, GroupPositions, bool]]:
    """What may count the groups: numbers, with the roles that follow, the likeliest first.

    The number of another factor may be the same by chance, so that only some of the arguments count
    the groups. The last entry says whether labels are to be renumbered, which they are unless they
    are numbers below the count.
    """
    rows = _with_rows(arguments, labels)
    for i in rows:
        if not is_array(arguments.leaves[i]):
            raise ModelError(
                f"argument {arguments.names[i]} has as many rows as the data and dtype "
                f"{arguments.leaves[i].dtype}; numbers are expected: number its categories by "
                "np.unique(values, return_inverse=True)[1]."
            )
    others = [(i, leaf) for i, leaf in enumerate(arguments.leaves) if i not in (*rows, labels)]
    lengths = {i: leaf.shape[0] for i, leaf in others if is_array(leaf)}
    counts = {i: int(leaf) for i, leaf in others if is_integer(leaf) and leaf > 0}
    are_numbers = np.issubdtype(names.dtype, np.integer) and names[0] >= 0
    found, less_likely = [], []
    for count in sorted({*lengths.values(), *counts.values()}):
        is_number = bool(are_numbers and count > names[-1])
        if not (is_number or count == names.size):
            continue
        equal = [i for i, number in (lengths | counts).items() if number == count]
        for chosen in _subsets(equal):
            groups = tuple(i for i in chosen if i in lengths)
            counting = tuple(i for i in chosen if i in counts)
            positions = GroupPositions(labels, rows, groups, (), counting)
            likely = found if len(chosen) == len(equal) else less_likely
            likely.append((count, positions, not is_number))
    return [*found, *less_likely]


def _subsets(members: list[int]) -> Iterator[tuple[int, ...]]:
    """All of some members, then all but some of them where these are few."""
    yield tuple(members)
    if len(members) <= _MOST_EQUAL:
        for size in range(len(members) - 1, 0, -1):
            yield from itertools.combinations(members, size)


def flat_call(positions: GroupPositions, arguments: Arguments) -> tuple[tuple, dict]:
    """The (args, kwargs) as a user writes them, with the groups of a layout numbered from 0."""
    leaves = list(arguments.leaves)
    if positions.labels is None:
        num_rows = num_groups = leaves[positions.rows[0]].shape[0]
        labels = None
        for i in positions.rows:
            leaves[i] = leaves[i][:, 0]
    else:
        mask = np.asarray(leaves[positions.labels])
        num_rows, num_groups = int(mask.sum()), mask.shape[0]
        labels = np.repeat(np.arange(num_groups, dtype=np.int32), mask.sum(axis=1))
        for i in positions.rows:
            leaves[i] = np.asarray(leaves[i])[mask]
    return jax.tree.unflatten(
        arguments.tree, positions.call_with(leaves, num_rows, num_groups, labels)
    )


def one_group(
    positions: GroupPositions, leaves: Sequence, data: Sequence, labels: Any = None
) -> tuple[list, Any]:
    """The leaves of a call with a single group, and the mask of its rows, or None.

    Args:
        positions: the roles of the leaves.
        leaves: the leaves of a layout, for what is no data.
        data: for each of `GroupPositions.data_at` the entries of one group, without their axis.
        labels: the labels of the rows, all zero by default.
    """
    filled, num_rows, mask = list(leaves), 1, None
    for i, leaf in zip(positions.data_at, data, strict=True):
        if i == positions.labels:
            mask, num_rows = leaf, leaf.shape[0]
        elif i in positions.groups:
            filled[i] = leaf[None]
        else:
            filled[i], num_rows = leaf, leaf.shape[0]
    # NumPy's labels index both NumPy's arrays, as the user's may be, and traced ones.
    labels = np.zeros(num_rows, np.int32) if labels is None else labels
    return positions.call_with(filled, num_rows, 1, labels), mask


def rows_as_groups(arguments: Arguments, positions: GroupPositions) -> GroupTable:
    """Each row as a group."""
    return GroupTable(arguments, positions, arguments.leaves[positions.rows[0]].shape[0])
