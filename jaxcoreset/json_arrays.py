"""Trees of arrays as JSON beside the arrays themselves, so that nothing has to be unpickled."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np


def encode(value: Any, arrays: dict[str, np.ndarray], name: str) -> Any:
    """A value as JSON; its arrays go to `arrays` under names that the JSON refers to.

    Args:
        value: arrays, numbers, strings, None, and tuples, lists or dictionaries of those.
        arrays: what is added to.
        name: what the names start with.

    Raises:
        TypeError: if there is anything else in it.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        arrays[name] = np.asarray(value)
        return {"array": name, "jax": isinstance(value, jax.Array)}
    if type(value) in (list, tuple):
        items = [encode(item, arrays, f"{name}.{i}") for i, item in enumerate(value)]
        return {type(value).__name__: items}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"dict": {key: encode(item, arrays, f"{name}.{key}") for key, item in value.items()}}
    raise TypeError(
        f"{name} holds a {type(value).__name__}, which cannot be saved without pickle; wanted "
        "arrays, numbers, strings, None, and tuples, lists or dictionaries of those."
    )


def decode(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """The value that `encode` made JSON and arrays of."""
    if "value" in value:
        return value["value"]
    if "array" in value:
        array = arrays[value["array"]]
        return jax.numpy.asarray(array) if value["jax"] else array
    if "dict" in value:
        return {key: decode(item, arrays) for key, item in value["dict"].items()}
    kind = tuple if "tuple" in value else list
    return kind(decode(item, arrays) for item in value[kind.__name__])
