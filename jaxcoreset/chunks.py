"""Rows in chunks of one shape, so that a pass over any amount of data compiles once.

The last chunk reaches back over rows that were done, and what goes through them counts only the new
ones: no row has to be made up.
"""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

# Entries of one chunk's matrix of log-likelihoods. A CPU is twice as fast where it fits its cache;
# an accelerator wants large ones, 32 MB in float32.
_CPU_CHUNK_ENTRIES, _CHUNK_ENTRIES = 1 << 20, 1 << 23


def chunk_rows(width: int) -> int:
    """Rows of a chunk whose evaluation is `width` numbers per row."""
    entries = _CPU_CHUNK_ENTRIES if jax.default_backend() == "cpu" else _CHUNK_ENTRIES
    return max(256, entries // max(width, 1))


def chunks(data: PyTree, batch_size: int) -> Iterator[tuple[PyTree, int, int]]:
    """The rows in chunks of one shape, as (chunk, its first row, its first row not seen before).

    The last is relative to the chunk: 0 but in the last chunk.
    """
    num_rows = leading(data)
    size = min(batch_size, num_rows)
    for start in range(0, num_rows, size):
        first = min(start, num_rows - size)
        yield jax.tree.map(lambda x, at=first: _rows(x, at, size), data), first, start - first


def _rows(array: Any, first: int, size: int) -> Any:
    if isinstance(array, jax.Array):  # with the first row as data, so that all chunks share a slice
        return jax.lax.dynamic_slice_in_dim(array, first, size)
    return array[first : first + size]


def leading(tree: PyTree, name: str = "data") -> int:
    """The common length of the leading axes; a ValueError, with `name`, where there is none."""
    lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(tree)}
    if len(lengths) != 1 or () in lengths:
        found = sorted(length[0] if length else 0 for length in lengths)
        raise ValueError(
            f"the arrays of {name} have leading axes {found or 'none'}; wanted one common length."
        )
    return lengths.pop()[0]
