"""Pytrees of arrays: their number of rows, and how they are saved without pickle.

An archive is an ``.npz`` file with arrays and JSON. Coresets and checkpoints are archives. Its zip
format has a checksum for each array, so damage is noticed.
"""

import contextlib
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import jax
import numpy as np
from jaxtyping import Float, PyTree

from jaxcoreset.data.dtypes import check_held
from jaxcoreset.data.utils import write_whole


def leading(tree: PyTree, name: str = "data") -> int:
    """The common length of the leading axes.

    Raises:
        ValueError: if there is none; the message calls the arrays `name`.
    """
    lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(tree)}
    if len(lengths) != 1 or () in lengths:
        found = sorted(length[0] if length else 0 for length in lengths)
        raise ValueError(
            f"the arrays of {name} have leading axes {found or 'none'}; expected one common length."
        )
    return lengths.pop()[0]


def power_of_two(num: int, fewest: int = 1) -> int:
    """The smallest power of two that is at least `num`, and at least `fewest`, one itself."""
    return max(fewest, 1 << max(num - 1, 0).bit_length())


def padded_rows(
    data: Sequence, weights: Float[np.ndarray, "*c m"], fewest: int = 8
) -> tuple[tuple, Float[np.ndarray, "*c k"]]:
    """Weighted rows, and copies of the first one with a weight of zero, up to a power of two.

    Coresets of many sizes then share a program.

    Args:
        data: arrays of m rows, at least one.
        weights: their weights; there may be several of each row.
        fewest: the least number of rows, a power of two.
    """
    num = weights.shape[-1]
    padded = power_of_two(num, fewest)
    at = np.where(np.arange(padded) < num, np.arange(padded), 0)
    spare = [(0, 0)] * (weights.ndim - 1) + [(0, padded - num)]
    return tuple(np.asarray(leaf)[at] for leaf in data), np.pad(weights, spare)


def save_archive(
    path: str | os.PathLike, header: Any, arrays: Mapping[str, np.ndarray], *, compress: bool = True
) -> Path:
    """Write JSON and arrays to one ``.npz`` file, whole or not at all.

    Args:
        path: the file.
        header: what becomes JSON; see `encode`.
        arrays: the arrays by name; none is called ``header``.
        compress: whether the arrays are compressed, which takes time.
    """
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    save = np.savez_compressed if compress else np.savez
    return write_whole(path, lambda file: save(file, allow_pickle=False, **arrays, header=text))


def load_archive(
    path: str | os.PathLike, kind: str, trouble: str
) -> tuple[Any, dict[str, np.ndarray]]:
    """The header and the arrays of a file that `save_archive` wrote.

    Args:
        path: the file.
        kind: a key that the header has if the file is of the expected kind.
        trouble: what the message says after the path if it is not.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is another file, or damaged.
    """
    arrays, at = {}, "the archive"
    with open(path, "rb") as file, usable(path, trouble, lambda: at):
        contents = np.load(file, allow_pickle=False)
        for at in contents.files:
            arrays[at] = contents[at]
        at = "header"
        header = json.loads(arrays.pop("header").tobytes())
        header[kind]
    return header, arrays


@contextlib.contextmanager
def usable(path: str | os.PathLike, trouble: str, entry: str | Callable[[], str]) -> Iterator[None]:
    """Turn any error about a part of a file into one that names the file and the part.

    Args:
        path: the file.
        trouble: what the message says after the path.
        entry: the part of the file, or a function that returns it.

    Raises:
        ValueError: if anything is raised within, such as an error of zip, NumPy, zlib or JSON.
    """
    try:
        yield
    except Exception as error:
        name = entry if isinstance(entry, str) else entry()
        raise ValueError(
            f"{os.fspath(path)!r} {trouble} The trouble is in {name}: {type(error).__name__}: "
            f"{str(error)[:300]}"
        ) from error


def require_type(value: Any, hint: Any, name: str) -> None:
    """Check a value that was read from JSON.

    Args:
        value: the value.
        hint: an annotation of plain types, unions of them, and lists and dictionaries; an int is
            also a float.
        name: what the message calls the value.

    Raises:
        ValueError: if the value is of another type.
    """
    if not _is_of(value, hint):
        expected = getattr(hint, "__name__", None) if isinstance(hint, type) else None
        raise ValueError(
            f"{name} is {str(value)[:60]!r}, of type {type(value).__name__}; expected "
            f"{expected or hint}."
        )


def _is_of(value: Any, hint: Any) -> bool:
    inner = get_args(hint)
    if hint is Any or isinstance(hint, str):
        return True
    if get_origin(hint) in (Union, UnionType):
        return any(_is_of(value, one) for one in inner)
    if get_origin(hint) is dict:
        return isinstance(value, dict) and all(
            _is_of(key, inner[0]) and _is_of(item, inner[1]) for key, item in value.items()
        )
    if get_origin(hint) is list:
        return isinstance(value, list) and all(_is_of(item, inner[0]) for item in value)
    if hint in (int, float):
        return isinstance(value, int | hint) and not isinstance(value, bool)
    kind = get_origin(hint) or hint
    return isinstance(value, kind) if isinstance(kind, type) else True


def encode(value: Any, arrays: dict[str, np.ndarray], name: str) -> Any:
    """Turn a value into JSON; its arrays go to `arrays` under names that the JSON refers to.

    Args:
        value: arrays, numbers, strings, None, and tuples, lists or dictionaries of those.
        arrays: the dictionary that arrays are added to.
        name: the prefix of their names.

    Raises:
        TypeError: if the value contains anything else.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array, is_jax = np.asarray(value), isinstance(value, jax.Array)
        if array.dtype.isbuiltin != 2:
            arrays[name] = array
            return {"array": name, "jax": is_jax}
        # NumPy cannot store the types of other packages, such as bfloat16: their bits become
        # integers, under a key of their own, so that older versions do not read them as such.
        arrays[name] = array.view(f"u{array.dtype.itemsize}")
        return {"bits": name, "type": array.dtype.name, "jax": is_jax}
    if type(value) in (list, tuple):
        items = [encode(item, arrays, f"{name}.{i}") for i, item in enumerate(value)]
        return {type(value).__name__: items}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        # JAX has the leaves of an OrderedDict in its own order, and those of a dict by their keys.
        kind = "ordered" if isinstance(value, OrderedDict) else "dict"
        return {kind: {key: encode(item, arrays, f"{name}.{key}") for key, item in value.items()}}
    raise TypeError(
        f"{name} holds a {type(value).__name__}, which cannot be saved without pickle; expected "
        "arrays, numbers, strings, None, and tuples, lists or dictionaries of those."
    )


def decode(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """The inverse of `encode`.

    Raises:
        ValueError: if JAX cannot hold the numbers of one of its arrays now.
    """
    if "value" in value:
        return value["value"]
    if "array" in value or "bits" in value:
        name = value["array"] if "array" in value else value["bits"]
        array = arrays[name]
        if "bits" in value:
            array = array.view(np.dtype(value["type"]))
        if not value["jax"]:
            return array
        check_held(array, name)  # it may have been saved with x64 on
        return jax.numpy.asarray(array)
    if "dict" in value or "ordered" in value:
        items = value["dict"] if "dict" in value else value["ordered"]
        found = {key: decode(item, arrays) for key, item in items.items()}
        return found if "dict" in value else OrderedDict(found)
    kind = tuple if "tuple" in value else list
    return kind(decode(item, arrays) for item in value[kind.__name__])
