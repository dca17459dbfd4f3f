"""Pytrees of arrays: their number of rows, and how they are saved as JSON beside the arrays."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree


def leading(tree: PyTree, name: str = "data") -> int:
    """The common length of the leading axes; a ValueError, with `name`, where there is none."""
    lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(tree)}
    if len(lengths) != 1 or () in lengths:
        found = sorted(length[0] if length else 0 for length in lengths)
        raise ValueError(
            f"the arrays of {name} have leading axes {found or 'none'}; wanted one common length."
        )
    return lengths.pop()[0]


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
        array, is_jax = np.asarray(value), isinstance(value, jax.Array)
        arrays[name] = storable(array)
        if arrays[name] is array:
            return {"array": name, "jax": is_jax}
        # Under a key of its own, so that versions that know nothing of it do not read integers.
        return {"bits": name, "type": type_name(array.dtype), "jax": is_jax}
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
    if "bits" in value:
        array = restored(arrays[value["bits"]], np.dtype(value["type"]))
        return jax.numpy.asarray(array) if value["jax"] else array
    if "dict" in value:
        return {key: decode(item, arrays) for key, item in value["dict"].items()}
    kind = tuple if "tuple" in value else list
    return kind(decode(item, arrays) for item in value[kind.__name__])


def storable(array: np.ndarray) -> np.ndarray:
    """An array that NumPy can store: of bfloat16 and the like, the bits as unsigned integers."""
    return array.view(f"u{array.dtype.itemsize}") if _is_foreign(array.dtype) else array


def restored(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The array of a type that `storable` was given."""
    return array.view(dtype) if _is_foreign(dtype) else array


def type_name(dtype: np.dtype) -> str:
    """What a type is called in a file: `np.dtype` of it is the type."""
    return dtype.name if _is_foreign(dtype) else dtype.str


def _is_foreign(dtype: np.dtype) -> bool:
    """Whether a type is another package's, as ml_dtypes', and not NumPy's own."""
    return dtype.isbuiltin == 2
