"""Under `vmap`, on a CPU, no more lanes side by side than its cache holds.

A pursuit passes over all that it carries in every move. As long as that stays in the cache this is
fast, and as soon as the lanes of a batch together do not fit, every move waits for the memory; and
lanes side by side wait for the slowest of them besides. So large lanes take turns, a few at a time,
or one after the other, which is compiled as the program for one. A GPU wants them all at once.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

# Bytes that lanes side by side may carry between them; with twice and half as many it was slower.
_CACHE = 4_000_000
# Two or three side by side are no faster than one after the other (3 per cent either way), and a
# program for lanes takes a quarter longer to compile than one without.
_FEWEST = 4


def few_at_a_time(function: Callable[..., PyTree], num_bytes: int) -> Callable[..., PyTree]:
    """A function that does the same, and under `vmap` on a CPU takes few lanes at a time.

    It is the platform of JAX's default device that counts: a choice that is left to the compiler
    would have both ways traced, which takes as long as a quarter of the compilation.

    Args:
        function: of trees of arrays, to a tree of arrays.
        num_bytes: what a lane carries and passes over again and again.
    """
    # Traced once: what is traced for one lane serves for all of them.
    function = jax.jit(function)

    @jax.custom_batching.custom_vmap
    def call(*args: PyTree) -> PyTree:
        return function(*args)

    @call.def_vmap
    def _batched(axis_size: int, in_batched: list, *args: PyTree) -> tuple[PyTree, PyTree]:
        leaves, tree = jax.tree.flatten(args)
        has_axis = jax.tree.leaves(in_batched)
        ours = [leaf for leaf, has in zip(leaves, has_axis, strict=True) if has]
        shared = [leaf for leaf, has in zip(leaves, has_axis, strict=True) if not has]

        def one_lane(ours: PyTree, shared: PyTree) -> PyTree:
            own, other = iter(ours), iter(shared)
            given = [next(own) if has else next(other) for has in has_axis]
            return function(*jax.tree.unflatten(tree, given))

        side_by_side = jax.vmap(one_lane, in_axes=(0, None))
        lanes = _lanes(axis_size, max(1, _CACHE // num_bytes))
        if jax.default_backend() != "cpu":
            found = side_by_side(ours, shared)
        elif lanes == 1:
            # Under a vmap around this one, lanes of both take turns; whole batches, further down.
            alone = few_at_a_time(one_lane, num_bytes)
            found = jax.lax.map(lambda own: alone(own, shared), ours)
        elif lanes == axis_size:
            found = side_by_side(ours, shared)
        else:
            batch = few_at_a_time(side_by_side, lanes * num_bytes)
            found = jax.lax.map(lambda some: batch(some, shared), _in_batches(ours, lanes))
            found = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:axis_size], found)
        return found, jax.tree.map(lambda _: True, found)

    return call


def _lanes(num: int, most: int) -> int:
    """How many lanes of `num` go at a time: of `most` to half of them, what fills batches best.

    One, where `most` is too few for it to pay.
    """
    if num <= most:
        return num
    if most < _FEWEST:
        return 1
    least = max((most + 1) // 2, _FEWEST)
    return min(range(most, least - 1, -1), key=lambda lanes: -(-num // lanes) * lanes)


def _in_batches(arrays: list[Array], lanes: int) -> list[Array]:
    """So many lanes in each batch, the last lane as often as it takes to fill the last one."""

    def in_batches(array: Array) -> Array:
        more = jnp.broadcast_to(array[-1:], (-array.shape[0] % lanes, *array.shape[1:]))
        return jnp.concatenate([array, more]).reshape(-1, lanes, *array.shape[1:])

    return [in_batches(array) for array in arrays]
