"""`vmap` in chunks: on a CPU, process only as many batch elements at once as its cache holds.

A pursuit reads all of its arrays in every move. This is fast as long as they stay in the cache. If
the arrays of a batch do not fit, every move waits for the memory; besides, the elements of a batch
wait for the slowest one. So large elements are processed in chunks, or one after another, which
compiles like the program for a single element. A GPU processes all of them at once.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.extend.backend import backends
from jaxtyping import Array, PyTree

# Bytes of the elements that are processed at once; twice and half this number were slower.
_CACHE = 4_000_000
# The smallest chunk. Two or three elements at once are no faster than one after another (within 3
# per cent), and a program for several takes a quarter longer to compile.
_MIN_CHUNK = 4


def chunked_vmap(
    function: Callable[..., PyTree], num_bytes: int, default: Callable[..., PyTree] | None = None
) -> Callable[..., PyTree]:
    """A function that does the same, and under `vmap` on a CPU processes the batch in chunks.

    The platform is that for which the program is lowered, so that arrays on a CPU beside a GPU get
    the CPU's program. Beside a GPU both programs are traced, and only one of them is compiled.

    Args:
        function: a function of trees of arrays, to a tree of arrays.
        num_bytes: the size of the arrays that `function` reads again and again.
        default: the same function for other platforms; by default `function`.
    """
    # Under jit it is traced once, for the single call as for all chunks and platforms.
    on_cpu = jax.jit(function)
    return _in_chunks(on_cpu, num_bytes, on_cpu if default is None else jax.jit(default))


def platforms() -> set[str]:
    """The platforms that this process has."""
    return set(backends())


def by_platform(
    cpu: Callable[..., PyTree], default: Callable[..., PyTree]
) -> Callable[..., PyTree]:
    """The function for the platform that a program is lowered for; only one is traced if it can."""
    if cpu is default or platforms() == {"cpu"}:
        return cpu
    return functools.partial(jax.lax.platform_dependent, cpu=cpu, default=default)


def _in_chunks(
    on_cpu: Callable[..., PyTree], num_bytes: int, elsewhere: Callable[..., PyTree] | None
) -> Callable[..., PyTree]:
    """See `chunked_vmap`; `elsewhere` is None inside a program for a CPU."""

    def choose(cpu: Callable[..., PyTree], default: Callable[..., PyTree]) -> Callable[..., PyTree]:
        return cpu if elsewhere is None else by_platform(cpu, default)

    @jax.custom_batching.custom_vmap
    def call(*args: PyTree) -> PyTree:
        return choose(on_cpu, elsewhere or on_cpu)(*args)

    @call.def_vmap
    def _batched(axis_size: int, in_batched: list, *args: PyTree) -> tuple[PyTree, PyTree]:
        leaves, tree = jax.tree.flatten(args)
        has_axis = jax.tree.leaves(in_batched)
        batched = [leaf for leaf, has in zip(leaves, has_axis, strict=True) if has]
        shared = [leaf for leaf, has in zip(leaves, has_axis, strict=True) if not has]

        def one_element(function: Callable[..., PyTree], batched: PyTree, shared: PyTree) -> PyTree:
            own, other = iter(batched), iter(shared)
            given = [next(own) if has else next(other) for has in has_axis]
            return function(*jax.tree.unflatten(tree, given))

        def all_at_once(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
            return jax.vmap(functools.partial(one_element, function), in_axes=(0, None))

        def one_by_one(batched: PyTree, shared: PyTree) -> PyTree:
            # Under another vmap the elements of both batches are processed one after another;
            # chunks, below, are divided further.
            alone = _in_chunks(functools.partial(one_element, on_cpu), num_bytes, None)
            return jax.lax.map(lambda own: alone(own, shared), batched)

        def in_chunks(batched: PyTree, shared: PyTree) -> PyTree:
            chunk = _in_chunks(all_at_once(on_cpu), size * num_bytes, None)
            return map_batches(lambda own: chunk(own, shared), batched, size)

        size = _chunk_size(axis_size, max(1, _CACHE // num_bytes))
        default = all_at_once(elsewhere or on_cpu)
        if size == 1:
            cpu = one_by_one
        elif size < axis_size:
            cpu = in_chunks
        else:
            cpu = default if elsewhere in (None, on_cpu) else all_at_once(on_cpu)
        found = choose(cpu, default)(batched, shared)
        return found, jax.tree.map(lambda _: True, found)

    return call


def _chunk_size(num: int, largest: int) -> int:
    """The number of elements at a time: between half of `largest` and `largest`, to fill chunks.

    It is one if `largest` is too small for chunks to pay.
    """
    if num <= largest:
        return num
    if largest < _MIN_CHUNK:
        return 1
    smallest = max((largest + 1) // 2, _MIN_CHUNK)
    return min(range(largest, smallest - 1, -1), key=lambda size: -(-num // size) * size)


def map_batches(function: Callable[[PyTree], PyTree], arrays: PyTree, size: int) -> PyTree:
    """Apply a function of a batch to arrays along their first axis, `size` elements at a time.

    The last element is repeated to fill the last batch, since a smaller one would be compiled
    separately.
    """

    def split(array: Array) -> Array:
        missing = jnp.broadcast_to(array[-1:], (-array.shape[0] % size, *array.shape[1:]))
        return jnp.concatenate([array, missing]).reshape(-1, size, *array.shape[1:])

    num = len(jax.tree.leaves(arrays)[0])
    found = jax.lax.map(function, jax.tree.map(split, arrays))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:num], found)
