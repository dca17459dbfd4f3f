"""Some of the groups, as lists in memory, read from files or received from other processes."""

from collections.abc import Sequence
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
    entries = entries_of(starts, sizes)
    columns = [leaf for leaf in lists if leaf.values is not None]
    if is_streamed:  # these are columns of one object
        taken = take_rows(columns[0].values.rows.leaves, entries)
        values = [np.asarray(taken[leaf.values.at]) for leaf in columns]
    else:
        values = [leaf.values[entries] for leaf in columns]
    return _as_lists(data, indices, values, np.cumsum(sizes) - sizes, sizes)


def _as_lists(
    data: Sequence, indices: Int[np.ndarray, " m"], values: list, starts: np.ndarray, sizes: Any
) -> tuple:
    rest, found = iter(values), []
    for leaf in data:
        if not isinstance(leaf, Ragged):
            found.append(np.asarray(leaf[indices]))
        else:
            own = None if leaf.values is None else next(rest)
            found.append(Ragged(own, starts, sizes, leaf.lengths))
    return tuple(found)


def exchange_groups(
    own: tuple,
    processes: ProcessGroup,
    owner: Int[np.ndarray, " m"],
    place: Int[np.ndarray, " m"],
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
    most = {name: max(1, *(int(one[name]) for one in counts)) for name in ("groups", "rows")}
    state = {"sizes": padded(sizes, most["groups"])}
    for i, leaf in enumerate(own):
        if not isinstance(leaf, Ragged):
            state[str(i)] = padded(np.asarray(leaf), most["groups"])
        elif leaf.values is not None:
            state[str(i)] = padded(leaf.values, most["rows"])
    found = processes.gather(state)
    starts = np.stack([np.cumsum(one["sizes"]) - one["sizes"] for one in found])
    starts += most["rows"] * np.arange(len(found))[:, None]
    starts, sizes = (x[owner, place] for x in (starts, np.stack([one["sizes"] for one in found])))
    joined = []
    for i, leaf in enumerate(own):
        parts = [one[str(i)] for one in found if str(i) in one]
        if isinstance(leaf, Ragged):
            values = np.concatenate(parts) if parts else None
            joined.append(Ragged(values, starts, sizes, leaf.lengths))
        else:
            joined.append(np.stack(parts)[owner, place])
    return tuple(joined)


def padded(values: np.ndarray, num: int) -> np.ndarray:
    """An array with zeros after its rows, up to a number of rows."""
    return np.concatenate([values, np.zeros((num - len(values), *values.shape[1:]), values.dtype)])
