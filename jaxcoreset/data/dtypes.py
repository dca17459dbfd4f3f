"""The types of numbers that sources hand on, casts that lose nothing but precision, and float64."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

T = TypeVar("T")


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


def in_float64(evaluate: Callable[..., T], *trees: PyTree) -> T:
    """Call a function with JAX's x64 on, and with all floating-point arrays as float64."""
    with jax.enable_x64(True):
        return evaluate(*jax.tree.map(lambda x: jnp.asarray(as_float64(x)), trees))


def as_float64(values: PyTree) -> PyTree:
    """An array as it is, but for its type where that is floating-point."""
    values = np.asarray(values)
    return values.astype(np.float64) if jnp.issubdtype(values.dtype, jnp.floating) else values
