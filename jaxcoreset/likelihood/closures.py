"""Float64 for a model that was run in float32 before.

A function may use a NumPy array that is not one of its arguments. JAX caches such an array in the
precision in which it saw it first. In the other precision the program of the function is then
wrong, and JAX says "Cannot lower jaxpr with verifier errors". Only `jax.clear_caches` removes the
array from the cache. It removes compiled programs too, so it is called only for models that use
such arrays.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from jaxcoreset.data.dtypes import default_float

# Functions within functions are followed this far.
_MAX_DEPTH = 6


@contextlib.contextmanager
def float64_for(model: Callable) -> Iterator[None]:
    """A context with JAX's x64 on, in which a model runs whatever its precision was before."""
    forgets = default_float() != np.float64 and uses_wide_arrays(model)
    if forgets:
        jax.clear_caches()
    try:
        with jax.enable_x64(True):
            yield
    finally:
        if forgets:
            jax.clear_caches()


def uses_wide_arrays(model: Callable) -> bool:
    """True if a function uses NumPy arrays of 64 bits that are not its arguments.

    Looked at are variables of enclosing functions and modules, default and partial arguments, and
    attributes of objects that are called, in the functions that it uses as well.
    """
    return _uses_wide(model, _MAX_DEPTH, set())


def _uses_wide(value: Any, depth: int, seen: set[int]) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.itemsize == 8 and value.dtype.kind in "fiu"
    if depth == 0 or id(value) in seen:
        return False
    seen.add(id(value))
    return any(_uses_wide(part, depth - 1, seen) for part in _parts(value))


def _parts(value: Any) -> Iterator[Any]:
    """What a value refers to."""
    if isinstance(value, tuple | list):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif not callable(value) or isinstance(value, type):
        return
    elif (code := getattr(value, "__code__", None)) is not None:
        yield getattr(value, "__self__", None)
        yield from value.__defaults__ or ()
        yield from (value.__kwdefaults__ or {}).values()
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                yield cell.cell_contents
        own = {name: value.__globals__.get(name) for name in code.co_names}
        yield from (one for one in own.values() if _is_users(one))
    elif _is_users(value):
        yield from vars(value).values()
        yield type(value).__call__


def _is_users(value: Any) -> bool:
    """True for an array, a function or an object, and not for a library's."""
    module = getattr(value, "__module__", None) or ""
    libraries = ("jax", "jaxlib", "numpy", "builtins")
    return isinstance(value, np.ndarray | list | tuple | dict) or (
        hasattr(value, "__dict__") and callable(value) and module.split(".")[0] not in libraries
    )
