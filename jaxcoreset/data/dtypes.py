"""The types of numbers that sources return, casts that only lose precision, and float64."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PyTree

from jaxcoreset.data.messages import DataError
from jaxcoreset.data.ragged import Ragged

T = TypeVar("T")


def is_float(dtype: Any) -> bool:
    """True if a type is one of real numbers that can be NaN or infinite, bfloat16 among them."""
    return bool(jnp.issubdtype(dtype, np.floating))


def is_number(dtype: Any) -> bool:
    """Return whether a type is boolean, integer or real."""
    return bool(dtype == np.dtype(bool) or is_float(dtype) or jnp.issubdtype(dtype, np.integer))


def default_float() -> np.dtype:
    """The default type of real numbers in JAX: float32, and float64 with x64."""
    return np.dtype(jax.dtypes.canonicalize_dtype(np.float64))


def handed_on(dtype: Any) -> np.dtype:
    """The type that JAX makes of another, in the machine's byte order."""
    return np.dtype(jax.dtypes.canonicalize_dtype(np.dtype(dtype).newbyteorder("=")))


def cast(values: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, int | None]:
    """Values in another type, and the flat position of the first that it cannot hold, if any.

    Real numbers may lose digits on their way to a shorter type, as everywhere in JAX. They may not
    become infinite, and integers and booleans must stay what they are.
    """
    if values.dtype == dtype:
        return values, None
    with np.errstate(over="ignore", invalid="ignore"):
        result = values.astype(dtype)
    if np.can_cast(values.dtype, dtype, "safe"):
        return result, None
    if is_float(dtype):
        kept = np.isfinite(result)
        if kept.all():
            return result, None
        kept |= ~np.isfinite(values)
    else:
        kept = result == values
    return result, None if kept.all() else int(np.argmin(kept))


def first_lost(values: np.ndarray, dtype: Any = None) -> int | None:
    """The flat position of the first number that another type cannot hold; None if there is none.

    Real numbers may lose digits, as everywhere in JAX, but may not become infinite, nor may all of
    them become zero. Nothing is copied unless there is such a number.

    Args:
        values: an array of any shape.
        dtype: the type; by default the one that JAX makes of the array's.
    """
    dtype = handed_on(values.dtype) if dtype is None else np.dtype(dtype)
    if not values.size or not is_number(values.dtype) or np.can_cast(values.dtype, dtype, "safe"):
        return None
    if is_float(values.dtype):  # of NaN and infinities both types know
        ends = (float(end.reduce(values, axis=None)) for end in (np.fmin, np.fmax))
        largest = max(map(abs, ends))
        if is_float(dtype) and (np.isnan(largest) or largest <= float(jnp.finfo(dtype).max)):
            is_zero = values.size > 1 and 0 < largest < float(jnp.finfo(dtype).tiny)
            return int(np.argmax(values != 0)) if is_zero else None
    elif not is_float(dtype):
        limits = jnp.iinfo(dtype) if dtype != np.dtype(bool) else None
        if limits and limits.min <= int(values.min()) and int(values.max()) <= limits.max:
            return None
    return cast(np.asarray(values), dtype)[1]


def check_held(values: Any, name: str, first_row: int = 0) -> None:
    """Check that JAX holds the numbers of an array; it shortens int64 and float64 without a word.

    Args:
        values: an array of NumPy or a number; all else is let through, also mapped files, which are
            checked as they are read.
        name: what the message calls it.
        first_row: what the message adds to the number of a row.

    Raises:
        DataError: if a number would become another one or infinite, or all of them zero.
    """
    is_mapped = isinstance(values, np.memmap)
    if is_mapped or not isinstance(values, np.ndarray | np.generic | int | float):
        return
    array = np.asarray(values)
    bad = first_lost(array)
    if bad is not None:
        dtype = handed_on(array.dtype)
        at = [int(i) for i in np.unravel_index(bad, array.shape)]
        index = ", ".join(map(str, [at[0] + first_row, *at[1:]] if at else []))
        raise DataError(
            f"{name}{f'[{index}]' if index else ''} is {array.flat[bad]}, which {held_by(dtype)}. "
            "Scale the numbers, or switch on JAX's x64: jax.config.update('jax_enable_x64', True)."
        )


def held_by(dtype: Any) -> str:
    """Part of a sentence: that a type cannot hold a number, and what it can hold."""
    dtype = np.dtype(dtype)
    if is_float(dtype):
        limits = jnp.finfo(dtype)
        return f"{dtype} cannot hold; expected sizes from {limits.tiny:.1g} to {limits.max:.1g}"
    if dtype == np.dtype(bool):
        return "bool cannot hold; expected 0 and 1"
    limits = jnp.iinfo(dtype)
    return f"{dtype} cannot hold; expected integers from {limits.min:,} to {limits.max:,}"


def in_float64(evaluate: Callable[..., T], *trees: PyTree) -> T:
    """Call a function with JAX's x64 on, and with all floating-point arrays as float64."""
    with jax.enable_x64(True):
        return evaluate(*jax.tree.map(_device_float64, trees))


def on_device(tree: PyTree) -> PyTree:
    """The arrays of a pytree as JAX's; lists of different lengths stay on the host."""
    return jax.tree.map(lambda x: x if isinstance(x, Ragged) else jax.device_put(x), tree)


def _device_float64(values: Any) -> Any:
    if isinstance(values, Ragged):
        return values.in_float64()
    return jax.device_put(as_float64(values))


def as_floats(values: ArrayLike) -> Array:
    """Numbers of the host as a JAX array of its default type, without a program for each shape."""
    return jax.device_put(np.asarray(values, default_float()))


def widened(values: Any) -> Any:
    """Real numbers as float64 and integers as int64 where JAX's x64 is on; else as they are.

    With x64, JAX still evaluates functions such as ``gammaln`` in float32 for an int32 argument.
    """
    if default_float() != np.float64:
        return values
    if jnp.issubdtype(values.dtype, jnp.integer):
        return values.astype(np.int64) if values.dtype.itemsize < 8 else values
    return values.astype(np.float64) if is_float(values.dtype) else values


def as_float64(values: PyTree) -> PyTree:
    """An array as it is, but for its type where that is floating-point."""
    values = np.asarray(values)
    return values.astype(np.float64) if jnp.issubdtype(values.dtype, jnp.floating) else values
