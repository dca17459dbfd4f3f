"""Reductions of short arrays that are fast on a CPU: maximum, sum, any, and the first true entry.

XLA does not vectorise a maximum of floats along the last axis, because of how it treats NaN, nor an
argmax, and it splits any reduction in two. Combining one half of an array with the other half,
again and again, is a single vectorised program. Together these functions save about a tenth of the
exchange solver's compilation and an eighth of its time in a batch.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

# The lengths that are halved. Shorter arrays are reduced in one pass anyway; longer ones may be
# spread over devices, and each halving of them doubles the program.
_SHORTEST, _LONGEST = 33, 4096


def tree_max(values: Float[Array, "*b n"]) -> Float[Array, "*b"]:
    """The largest entry along the last axis."""
    return jnp.max(_halve(values, jnp.maximum), axis=-1)


def tree_sum(values: Float[Array, "*b n"]) -> Float[Array, "*b"]:
    """The sum along the last axis."""
    return jnp.sum(_halve(values, jnp.add), axis=-1)


def tree_any(flags: Bool[Array, "*b n"]) -> Bool[Array, "*b"]:
    """Return whether any entry along the last axis is true."""
    return jnp.any(_halve(flags, jnp.logical_or), axis=-1)


def first_true(flags: Bool[Array, "*b n"]) -> Int[Array, "*b"]:
    """The index of the first true entry along the last axis; the last index if there is none."""
    last = flags.shape[-1] - 1
    indices = jnp.where(flags, jnp.arange(last + 1, dtype=jnp.int32), last)
    return jnp.min(_halve(indices, jnp.minimum), axis=-1)


def _halve(
    values: Shaped[Array, "*b n"], combine: Callable[[Array, Array], Array]
) -> Shaped[Array, "*b m"]:
    """A few entries with the same reduction; `combine` reduces two entries to one."""
    while _SHORTEST <= (length := values.shape[-1]) <= _LONGEST:
        half = -(-length // 2)
        first = jax.lax.slice_in_dim(values, 0, half, axis=-1)
        second = jax.lax.slice_in_dim(values, length - half, length, axis=-1)
        if combine is jnp.add and length % 2:  # both halves hold the middle entry
            second = jnp.where(np.arange(half) > 0, second, 0)
        values = combine(first, second)
    return values
