"""Checks of arguments: each error says which argument, what was found and what is expected."""

import operator
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array


def is_concrete(*values: object) -> bool:
    """Return whether none of the arrays is being traced, so that values can be inspected."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(values))


def as_float(value: ArrayLike) -> Array:
    """An array of floats; other numbers get the default type."""
    array = jnp.asarray(value)
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float)


def as_integer(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """An argument as an int.

    Args:
        name: the argument's name, for errors.
        value: what was passed.
        least: the smallest value allowed.
        most: the largest value allowed; only with `least`.

    Raises:
        TypeError: if it is not an integer.
        ValueError: if it is out of range.
    """
    try:
        integer = operator.index(value)
    except TypeError:
        integer = None
    if integer is None or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; expected an integer.")
    if least is not None and (integer < least or (most is not None and integer > most)):
        expected = f"at least {least}" if most is None else f"{least} ≤ {name} ≤ {most}"
        raise ValueError(f"{name} is {integer}; expected {expected}.")
    return integer


def check_that(holds: ArrayLike, name: str, value: Any, expected: str) -> None:
    """Raise a ValueError about an argument, unless a condition on its value holds."""
    if not holds:
        raise ValueError(f"{name} is {value}; expected {expected}.")


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise a ValueError about an argument, unless its value is allowed."""
    names = ", ".join(f'"{one}"' for one in allowed)
    check_that(value in allowed, name, repr(value), f"one of {names}")


def check_finite(name: str, array: Array) -> None:
    """Raise a ValueError about an array if an entry is not finite, unless it is being traced."""
    if is_concrete(array) and not jnp.isfinite(array).all():
        raise ValueError(f"{name} has entries that are not finite.")
