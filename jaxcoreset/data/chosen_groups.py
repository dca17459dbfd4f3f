"""Some of the groups, as lists in memory, read from files or received from other processes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from jaxcoreset.data.processes import ProcessGroup
from jaxcoreset.data.ragged import Ragged, entries_of
from jaxcoreset.data.reading import take_rows


def read_groups(data: Sequence, indices: Int[np.ndarray, " m"], copy: bool = False) -> tuple:
    """Groups of this process; of arrays in memory they are views, unless a copy is asked for."""
    lists = [leaf for leaf in data if isinstance(leaf, Ragged)]
    starts, sizes = lists[0].starts[indices], lists[0].sizes[indices]
    is_streamed = any(leaf.is_streamed for leaf in lists)
    if not (is_streamed or copy):
        return tuple(
            leaf.select(indices) if isinstance(leaf, Ragged) else leaf[indices] for leaf in data
        )
    entries, taken = entries_of(starts, sizes), ()
    if is_streamed:  # the lists are columns of one object
        column = next(leaf.values for leaf in lists if leaf.values is not None)
        taken = take_rows(column.rows.leaves, entries)

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, Ragged):
            return np.asarray(leaf[indices])
        values = leaf.values
        if values is not None:
            values = np.asarray(taken[values.at]) if is_streamed else values[entries]
        return Ragged(values, np.cumsum(sizes) - sizes, sizes, leaf.lengths)

    return tuple(map(copied, data))


def exchange_groups(
    own: tuple, processes: ProcessGroup, owner: Int[np.ndarray, " m"], place: Int[np.ndarray, " m"]
) -> tuple:
    """The chosen groups of all processes, on each of them.

    Args:
        own: those of this process, as copies.
        processes: the processes.
        owner: the process that has each group.
        place: its position among those of this process.
    """
    sizes = next(leaf.sizes for leaf in own if isinstance(leaf, Ragged))
    counts = processes.gather({"groups": np.asarray(sizes.size), "rows": np.asarray(sizes.sum())})
    groups, rows = (max(1, *(int(one[name]) for one in counts)) for name in ("groups", "rows"))
    state = {"sizes": padded(sizes, groups)}
    for i, leaf in enumerate(own):
        if not isinstance(leaf, Ragged):
            state[str(i)] = padded(np.asarray(leaf), groups)
        elif leaf.values is not None:
            state[str(i)] = padded(leaf.values, rows)
    found = processes.gather(state)
    all_sizes = np.stack([one["sizes"] for one in found])
    starts = np.cumsum(all_sizes, axis=1) - all_sizes + rows * np.arange(len(found))[:, None]
    starts, sizes = starts[owner, place], all_sizes[owner, place]
    joined = []
    for i, leaf in enumerate(own):
        parts = [one[str(i)] for one in found if str(i) in one]
        if isinstance(leaf, Ragged):
            values = np.concatenate(parts) if parts else None
            joined.append(Ragged(values, starts, sizes, leaf.lengths))
        else:
            joined.append(np.stack(parts)[owner, place])
    return tuple(joined)


def gather_rows(
    processes: ProcessGroup, values: Mapping[str, np.ndarray], counts: Sequence[int]
) -> dict[str, np.ndarray]:
    """Arrays with rows of each process, as many as its count, joined to those of all processes."""
    most = max(counts)
    states = processes.gather({name: padded(x, most) for name, x in values.items()})
    return {
        name: np.concatenate([state[name][:num] for state, num in zip(states, counts, strict=True)])
        for name in values
    }


def padded(values: np.ndarray, num: int) -> np.ndarray:
    """An array with zeros after its rows, up to a number of rows."""
    return np.concatenate([values, np.zeros((num - len(values), *values.shape[1:]), values.dtype)])
