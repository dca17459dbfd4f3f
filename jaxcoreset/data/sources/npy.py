"""Arrays in NumPy's own files, mapped into memory: the operating system reads only what is used.

Files of another file system are read in order, see `remote_npy`.
"""

import math
import os
from collections.abc import Callable
from functools import partial
from mmap import mmap
from pathlib import Path
from typing import IO
from weakref import WeakKeyDictionary

import numpy as np

from jaxcoreset.data.dtypes import is_number
from jaxcoreset.data.fingerprint import file_state
from jaxcoreset.data.sources.base import SourceArray, SourceError, changed
from jaxcoreset.data.sources.remote_npy import RemoteFile, RemoteNpy

# Files as they were when they were opened, or first read, by what all slices of an array share.
_STATES: WeakKeyDictionary[mmap, tuple[int, int]] = WeakKeyDictionary()


def npy(path: str | os.PathLike) -> np.memmap | SourceArray:
    """Map an array in a file that `numpy.save` wrote, so that its rows are read when they are used.

    Args:
        path: a file that ends in ``.npy``, with an array of shape (n, ...). A URL, such as
            ``s3://bucket/x.npy``, is read by fsspec.

    Returns:
        The mapped, read-only array; of a URL the array of a source, which is read in order, in
        batches. You can pass both to the builder directly.

    Raises:
        SourceError: if the file is missing or incomplete, or its array has no rows, or does not
            contain numbers in this machine's byte order.
    """
    if "://" in os.fspath(path):
        remote = RemoteFile(os.fspath(path))
        shape, is_fortran, dtype, begin = _header(remote.head, remote.size, remote.url)
        if is_fortran and len(shape) > 1:
            raise SourceError(
                f"{path} holds an array that is stored column by column, whose rows cannot be read "
                "in parts; save numpy.ascontiguousarray of it."
            )
        return RemoteNpy(remote, shape, dtype, begin).arrays
    path = Path(path)
    if not path.is_file():
        raise SourceError(f"there is no file {path}; expected one that numpy.save wrote.")
    _header(partial(open, path, "rb"), path.stat().st_size, path)
    mapped = np.load(path, mmap_mode="r")
    assert isinstance(mapped, np.memmap)
    check_unchanged(mapped)
    return mapped


def _header(
    opened: Callable[[], IO[bytes]], size: int, path: object
) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """The shape of an array, whether it is in Fortran's order, its type and its first byte.

    Raises:
        SourceError: if it cannot be used, or the file has too few bytes.
    """
    try:
        with opened() as file:
            version = np.lib.format.read_magic(file)
            header = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, is_fortran, dtype = header(file)
            begin = file.tell()
    except Exception as error:  # also those of Python's tokenizer, which reads the header
        raise SourceError(
            f"{path} cannot be read: {error} Expected a file that numpy.save wrote; save each "
            "array of an .npz file to its own file."
        ) from error
    if not shape or not shape[0]:
        found = f"{shape[0]} rows" if shape else "no axes"
        raise SourceError(f"{path} holds an array with {found}; expected at least one row.")
    if not is_number(dtype) or not dtype.isnative:
        raise SourceError(
            f"{path} holds an array of type {dtype.str}; expected real numbers, integers or "
            "booleans in this machine's byte order. Convert it with astype and save it again."
        )
    expected = begin + math.prod(shape) * dtype.itemsize
    if size < expected:
        rows = (size - begin) * shape[0] // max(expected - begin, 1)
        raise SourceError(
            f"{path} is cut short: {size:,} bytes, about {max(rows, 0):,} rows; expected "
            f"{expected:,} for the shape {shape}. Write it again."
        )
    return shape, is_fortran, dtype, begin


def check_unchanged(mapped: np.memmap) -> None:
    """Check that a mapped file has not changed since the first call of this function.

    Only read-only maps are checked, because the owner of another map may write to it. A deleted
    file remains readable through its map.

    Raises:
        SourceError: if its size or its modification time has changed.
    """
    shared, path = getattr(mapped, "_mmap", None), mapped.filename
    if shared is None or path is None or mapped.mode not in ("r", "c"):
        return
    try:
        state = file_state(path)
    except FileNotFoundError:
        return
    if _STATES.setdefault(shared, state) != state:
        raise changed(str(path))
