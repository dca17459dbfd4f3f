"""The types of numbers that sources hand on, and casts that lose nothing but precision."""

from typing import Any

import jax.numpy as jnp
import numpy as np

# What JAX makes of types of eight bytes unless it is told to keep them.
_NARROW = {"float64": "float32", "int64": "int32", "uint64": "uint32"}


def is_float(dtype: Any) -> bool:
    """Whether a type is one of real numbers that can be NaN or infinite, bfloat16 among them."""
    return bool(jnp.issubdtype(dtype, np.floating))


def is_number(dtype: Any) -> bool:
    """Whether a type is boolean, integer or real."""
    return bool(dtype == np.dtype(bool) or is_float(dtype) or jnp.issubdtype(dtype, np.integer))


def default_float() -> np.dtype:
    """The type of real numbers that JAX makes unless told otherwise: float32, with x64 float64."""
    return np.dtype(jnp.zeros(()).dtype)


def handed_on(dtype: Any) -> np.dtype:
    """The type that JAX makes of another, in the machine's byte order."""
    dtype = np.dtype(dtype).newbyteorder("=")
    if default_float() == np.float64:
        return dtype
    return np.dtype(_NARROW.get(dtype.name, dtype))


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
