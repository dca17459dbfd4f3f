"""Arithmetic that the solvers share: exact products, safe division, tolerances, random keys."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

# Float32 products default to TF32 on a GPU and to bfloat16 on a TPU. Residuals, targets and Gram
# matrices need all digits, since the error of a good coreset is far smaller than such rounding.
HIGHEST = jax.lax.Precision.HIGHEST


def product(left: Array, right: Array) -> Array:
    """Matrix or inner product at full precision on every device."""
    return jnp.matmul(left, right, precision=HIGHEST)


def divide(numerator: ArrayLike, denominator: Array) -> Array:
    """The quotient, and 0 where the denominator is not positive."""
    positive = denominator > 0
    return jnp.where(positive, numerator / jnp.where(positive, denominator, 1), 0)


def unit_of(values: Float[Array, "n ..."]) -> Float[Array, "..."]:
    """A power of two that brings the largest entry of each column near to one.

    Multiplying by it is exact, and squares of the scaled values neither over- nor underflow.
    """
    exponent = jnp.frexp(jnp.max(jnp.abs(values), axis=0))[1]
    return jnp.ldexp(jnp.ones((), values.dtype), -jnp.clip(exponent, -100, 100))


def tree_where(chosen: Bool[Array, "..."], new: PyTree, old: PyTree) -> PyTree:
    """`jnp.where` for each pair of arrays of two trees."""
    return jax.tree.map(lambda a, b: jnp.where(chosen, a, b), new, old)


def pick_largest(
    scores: Float[Array, " n"], floor: Float[Array, ""], slack: Float[Array, ""]
) -> tuple[Int[Array, ""], Bool[Array, ""]]:
    """The largest score, and the lowest index among equal scores.

    Args:
        scores: −inf where an atom may not be picked.
        floor: scores that are not above this are rounding errors.
        slack: scores that are this close to the largest one count as equal to it.

    Returns:
        The index of the score, and whether any score is above the floor.
    """
    largest = jnp.max(scores)
    candidates = scores >= jnp.maximum(largest - slack, floor)
    return jnp.argmax(candidates).astype(jnp.int32), largest > floor


def random_order(
    key: PRNGKeyArray, allowed: Bool[Array, " n"], length: int
) -> Int[Array, " length"]:
    """The first `length` rows of a random order, in which rows that are not allowed come last."""
    # The smallest random numbers are first. As floats, for which top_k is fast, small ones keep all
    # their digits.
    lots = jax.random.bits(key, allowed.shape, jnp.uint32).astype(jnp.float32)
    return jax.lax.top_k(jnp.where(allowed, -lots, -jnp.inf), length)[1].astype(jnp.int32)


def first_true(flags: Bool[Array, "*b n"]) -> Int[Array, "*b"]:
    """The index of the first true entry along the last axis; the last index if there is none.

    A minimum of indices, since XLA does not vectorise an argmax on a CPU.
    """
    last = flags.shape[-1] - 1
    return jnp.min(jnp.where(flags, jnp.arange(last + 1, dtype=jnp.int32), last), axis=-1)


def rounding(residual_norm: Float[Array, ""], num_draws: int) -> tuple[Array, Array]:
    """The `floor` and `slack` of `pick_largest` for correlations of unit atoms with a residual."""
    unit = jnp.finfo(residual_norm.dtype).eps * residual_norm
    return 0.2 * unit / num_draws**0.5, 8 * unit


def resolution(dtype: DTypeLike) -> float:
    """The relative error at which to stop, and the smallest relative decrease that is progress.

    It is 64 units of rounding, 8e-6 in float32: below that, a residual consists of rounding errors
    as much as of anything else.
    """
    return 64 * float(jnp.finfo(dtype).eps)


def project_simplex(
    vector: Float[Array, " p"], allowed: Bool[Array, " p"], total: ArrayLike = 1
) -> Float[Array, " p"]:
    """The nearest vector that is non-negative, sums to a total, and is zero where not allowed.

    Args:
        vector: shape (p,).
        allowed: shape (p,), the entries that may differ from zero.
        total: the sum. The result is zero if it is not positive, or no entry is allowed.
    """
    # Imported here, since few programs need optax.
    from optax.projections import projection_simplex

    total = jnp.asarray(total, vector.dtype)
    # Adding a constant does not change the projection; small numbers keep most digits.
    masked = jnp.where(allowed, vector, -jnp.inf)
    projected = projection_simplex(masked - jnp.max(masked), jnp.where(total > 0, total, 1))
    return jnp.where(allowed & (total > 0), projected, 0)


@jax.custom_batching.custom_vmap
def any_in_batch(flag: Bool[Array, ""]) -> Bool[Array, ""]:
    """The flag itself; under ``vmap``, whether it is set in any element of the batch.

    Used as the condition of a ``while_loop``, it keeps ``vmap`` from copying the state of every
    batch element in every iteration. The loop's body must then leave an element that has stopped
    unchanged.
    """
    return flag


@any_in_batch.def_vmap
def _any_in_batch(axis_size: int, in_batched: list[bool], flag: Array) -> tuple[Array, bool]:
    del axis_size
    return any_in_batch(jnp.any(flag) if in_batched[0] else flag), False


def as_key(key: Any) -> PRNGKeyArray:
    """A JAX random key; an integer is the seed of one.

    Raises:
        TypeError: if it is something else, such as the data.
    """
    if isinstance(key, Tracer):
        return key  # pyright: ignore[reportReturnType]
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        return jax.random.key(int(key))
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        if key.ndim == 0:
            return key
    elif isinstance(key, jax.Array | np.ndarray) and key.dtype == np.uint32 and key.ndim == 1:
        return jnp.asarray(key)
    is_array = isinstance(key, jax.Array | np.ndarray)
    what = f"of shape {key.shape} and type {key.dtype}" if is_array else repr(key)
    raise TypeError(
        f"key is {what}; expected a random key, jax.random.key(0), or an integer as its seed. In "
        "run the key comes first, and then the model's arguments."
    )
