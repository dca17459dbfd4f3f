"""Rows in blocks of one shape: how they are cut, moved to the devices, and evaluated there.

A *block* is evaluated at once. Its number of rows depends only on the width of the evaluation, so
its values do not depend on how the rows are read and where they are evaluated. A *group* of blocks
is moved to the devices together: a compiled loop evaluates them one after the other, and several
devices share the blocks of a group.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, PyTree

from jaxcoreset.data.arrays import leading
from jaxcoreset.data.compiling import fast_jit, quick_jit
from jaxcoreset.data.dtypes import handed_on
from jaxcoreset.data.reading import read_chunks
from jaxcoreset.data.utils import available_memory

# Entries of one block's matrix of log-likelihoods. A CPU is twice as fast if the matrix fits its
# cache; an accelerator needs large blocks, 32 MB in float32.
_CPU_BLOCK_ENTRIES, _BLOCK_ENTRIES = 1 << 20, 1 << 23
_FEWEST_ROWS, _MOST_ROWS = 256, 1 << 15
# Bytes of a block's data, above which rows are wide and blocks shorter.
_BLOCK_BYTES = 1 << 24
_FEWEST_WIDE_ROWS = 8
# A group's data, in bytes and in blocks: enough that reading and calls cost little in comparison,
# and a small part of the available memory.
_CPU_GROUP_BYTES, _GROUP_BYTES = 1 << 24, 1 << 28
_GROUP_BLOCKS = 128
_PART_OF_MEMORY = 64
# Up to this number of blocks a pass takes less time than the compilation of its program. A row of
# this many bytes or more, such as a group, takes longer.
_FEW_BLOCKS, _WIDE = 16, 128
# The number of places in a program for few rows: for narrow rows, and for rows with this number of
# bytes or more, such as groups, which are expensive to evaluate.
_NARROW_PLACES, _WIDE_PLACES, _WIDE_ROW = 64, 8, 1 << 10
# The number of rows of a block where the number of rows changes, so that all share a program, and
# up to how many rows: each block is moved by itself.
_FEW_ROWS_BLOCK, _MOST_FEW_ROWS = 256, 1 << 14
# How many rows are added at a time, so that float32 loses at most about 1e-7 of a sum.
_FOLD = 8
# How many contiguous columns are added at a time, by one vector of partial sums.
_PART = 256


def block_rows(width: int, num_bytes: int = 1) -> int:
    """The number of rows of a block, a power of two.

    Args:
        width: the number of values per row.
        num_bytes: the size of a row's data, in bytes.
    """
    entries = _CPU_BLOCK_ENTRIES if jax.default_backend() == "cpu" else _BLOCK_ENTRIES
    rows = 1 << int(math.log2(max(entries // max(width, 1), 1)))
    rows = min(max(rows, _FEWEST_ROWS), _MOST_ROWS)
    wide = 1 << int(math.log2(max(_BLOCK_BYTES // num_bytes, _FEWEST_WIDE_ROWS)))
    return min(rows, wide)


def few_places(rows: PyTree) -> int:
    """The number of places in a program for few rows like these."""
    return _WIDE_PLACES if are_wide(rows) else _NARROW_PLACES


def few_rows_block(rows: PyTree) -> int | None:
    """The number of rows of a block if all numbers of rows are to share a program.

    None for many rows, for which the program takes longer than another one to compile, and for rows
    that are expensive to evaluate, since a block is filled up.
    """
    return None if are_wide(rows) or leading(rows) > _MOST_FEW_ROWS else _FEW_ROWS_BLOCK


def are_wide(rows: PyTree) -> bool:
    """True if rows like these, such as groups, are expensive to evaluate."""
    return row_bytes(rows) >= _WIDE_ROW


def group_bytes() -> int:
    """The size of a group's data in bytes, by the available memory."""
    if jax.default_backend() == "cpu":
        return min(_CPU_GROUP_BYTES, (available_memory() or 1 << 40) // _PART_OF_MEMORY)
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 1 << 40)
    return min(_GROUP_BYTES, int(limit) // _PART_OF_MEMORY)


def row_bytes(tree: PyTree) -> int:
    """The size in bytes of one row of the arrays on the device."""
    shapes = ((handed_on(x.dtype), x.shape[1:]) for x in jax.tree.leaves(tree))
    return max(sum(dtype.itemsize * math.prod(shape) for dtype, shape in shapes), 1)


def pairwise_sum(values: Array) -> Array:
    """The sum over the leading axis, by eights; for 2¹⁵ equal numbers the error is about 1e-6."""
    while values.shape[0] > _FOLD and values.shape[0] % _FOLD == 0:
        values = jnp.sum(values.reshape(-1, _FOLD, *values.shape[1:]), axis=1)
    return jnp.sum(values, axis=0)


def column_sums(values: Array) -> Array:
    """Sums along the last axis, of 256 entries each; its length is a power of two."""
    num = values.shape[-1]
    return jnp.sum(values.reshape(*values.shape[:-1], -1, math.gcd(num, _PART)), axis=-1)


def group_blocks(
    data: PyTree,
    block: int,
    num_devices: int,
    batch_size: int | None = None,
    num_rows: int | None = None,
) -> int:
    """The number of blocks that are moved to the devices at once, a multiple of the devices."""
    num_rows = leading(data) if num_rows is None else num_rows
    total = -(-num_rows // block)
    if batch_size is None:
        most = max(1, min(_GROUP_BLOCKS * num_devices, group_bytes() // (block * row_bytes(data))))
    else:
        most = -(-batch_size // block)
    most = -(-most // num_devices) * num_devices
    # Groups of one size, so that the last one has little to spare.
    even = -(-total // -(-total // most))
    return -(-even // num_devices) * num_devices


class Pieces(eqx.Module):
    """The arguments of several calls, with which a function is evaluated on each group of blocks.

    Those of the same shapes share a program.
    """

    calls: tuple


def evaluate_blocks(
    fn: Callable[[PyTree, PyTree, Bool[Array, " b"]], PyTree],
    args: PyTree,
    data: PyTree,
    block: int,
    *,
    first: int = 0,
    mesh: Mesh | None = None,
    batch_size: int | None = None,
    typical: int | None = None,
) -> Iterator[tuple[int, int, PyTree]]:
    """Evaluate a function of a block on all rows, in order.

    Args:
        fn: ``fn(args, rows, counted)``, where `rows` is a pytree like `data` with `block` rows, and
            `counted` is a mask that is false for rows that only fill the block up. It returns
            arrays of fixed shapes. It is compiled once per function and shapes.
        args: arguments that do not depend on the rows, or `Pieces`, for several calls.
        data: pytree of arrays with a leading axis of length n; some may be read from a source.
        block: the number of rows of a block.
        first: the row to begin at, a multiple of `block`.
        mesh: the devices that share the blocks, with one axis; the default device if left out.
        batch_size: the number of rows that are read and moved at once, rounded up to blocks.
        typical: the number of rows by which that of a group's blocks is chosen, by default n. Calls
            with the same number share programs.

    Yields:
        The group's first row, its number of rows, and the values of its blocks with a leading axis;
        for `Pieces` a list of them. These include blocks beyond the last row, which the caller must
        mask or ignore. Meanwhile the device works on the next group.
    """
    leaves, tree = jax.tree.flatten(data)
    num_devices = 1 if mesh is None else mesh.size
    size = group_blocks(data, block, num_devices, batch_size, typical)
    fn = _Tree(fn, tree)
    num_typical = leading(leaves) if typical is None else typical
    is_brief = num_typical * max(1, row_bytes(leaves) // _WIDE) <= _FEW_BLOCKS * block
    calls = args.calls if isinstance(args, Pieces) else (args,)
    evaluate = _evaluate_quickly if is_brief else _evaluate
    pending = None
    for at, num_rows, chunk in _groups(leaves, size * block, first):
        counted = np.arange(size * block) < num_rows
        stacked, mask = _place((chunk, counted), (size, block), mesh)
        found = [evaluate(fn, one, stacked, mask, mesh) for one in calls]
        values = found if isinstance(args, Pieces) else found[0]
        if pending is not None:
            yield pending
        pending = at, num_rows, values
    if pending is not None:
        yield pending


class _Tree(eqx.Module):
    """A function of a pytree of rows as one of its leaves."""

    fn: Callable
    tree: Any = eqx.field(static=True)

    def __call__(self, args: PyTree, leaves: tuple, counted: Array) -> PyTree:
        with jax.default_matmul_precision("highest"):
            return self.fn(args, jax.tree.unflatten(self.tree, leaves), counted)


def _blocks(fn: Callable, args: PyTree, chunk: tuple, counted: Array, mesh: Mesh | None) -> Any:
    arrays, static = eqx.partition(args, eqx.is_array)

    def one_after_the_other(arrays: PyTree, chunk: tuple, counted: Array) -> Any:
        joined = eqx.combine(arrays, static)
        return jax.lax.map(lambda block: fn(joined, *block), (chunk, counted))

    if mesh is None:
        return one_after_the_other(arrays, chunk, counted)
    axis = PartitionSpec(mesh.axis_names[0])
    return jax.shard_map(
        one_after_the_other,
        mesh=mesh,
        in_specs=(PartitionSpec(), axis, axis),
        out_specs=axis,
        check_vma=False,
    )(arrays, chunk, counted)


_evaluate_quickly = quick_jit(_blocks, jit=eqx.filter_jit)
_evaluate = fast_jit(_blocks, jit=eqx.filter_jit)


def _place(tree: PyTree, shape: tuple[int, int], mesh: Mesh | None) -> PyTree:
    """Arrays of a group on the devices, with blocks as their leading axis."""
    stacked = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), tree)
    axis = None if mesh is None else NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))
    return jax.device_put(stacked, axis)


def _groups(leaves: list, size: int, first: int) -> Iterator[tuple[int, int, tuple]]:
    """Groups of `size` rows, as (first row, how many rows there are, the leaves)."""
    num_rows = leading(leaves)
    # What is on a device is sliced there; what is not is read, ahead of the device where it may
    # take time.
    on_device = [isinstance(leaf, jax.Array) for leaf in leaves]
    host = tuple(leaf for leaf, there in zip(leaves, on_device, strict=True) if not there)
    starts = ((at, ()) for at in range(first, num_rows, size))
    chunks = read_chunks(host, size, first) if host else starts
    for at, parts in chunks:
        rest = iter(parts)
        chunk = tuple(
            _slice(leaf, at, size) if there else _filled(next(rest), size)
            for leaf, there in zip(leaves, on_device, strict=True)
        )
        yield at, min(size, num_rows - at), chunk


def _filled(rows: np.ndarray, size: int) -> np.ndarray:
    """Rows, and after them copies of the first one: values that the model can evaluate."""
    if len(rows) == size:
        return rows
    filler = np.broadcast_to(rows[:1], (size - len(rows), *rows.shape[1:]))
    return np.concatenate([rows, filler])


@eqx.filter_jit
def _device_slice(
    array: Array, first: Array | np.ndarray, shift: Array | np.ndarray, size: int
) -> Array:
    rows = jax.lax.dynamic_slice_in_dim(array, first, min(size, array.shape[0]))
    rows = jnp.roll(rows, -shift, axis=0)
    if array.shape[0] < size:
        filler = jnp.broadcast_to(rows[:1], (size - array.shape[0], *array.shape[1:]))
        rows = jnp.concatenate([rows, filler])
    return rows


def _slice(array: Array, first: int, size: int) -> Array:
    if array.shape[0] == size:
        return array
    # The first row is data, so that all groups share a program; the last one begins early and is
    # turned, which leaves other rows of the array where there are none.
    start = max(0, min(first, array.shape[0] - size))
    return _device_slice(array, np.asarray(start), np.asarray(first - start), size)
