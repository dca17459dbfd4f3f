"""Short hashes of what data look like, to tell whether a file or an array is still the same."""

import hashlib
import os
from typing import Any

import numpy as np


class Hash:
    """A hash of things that are added one by one.

    Args:
        *parts: the first things, hashed by what they print as.
    """

    def __init__(self, *parts: Any) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.add(*parts)

    def add(self, *parts: Any) -> None:
        """Add things by what they print as."""
        for part in parts:
            self._hash.update(repr(part).encode() + b"\0")

    def array(self, array: np.ndarray) -> None:
        """Add an array: type, shape and bytes."""
        self.add(array.dtype.name, array.shape)
        if array.size:
            self._hash.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def hex(self) -> str:
        """The hash as 32 hexadecimal digits."""
        return self._hash.hexdigest()


def file_state(path: str | os.PathLike) -> tuple[int, int]:
    """Size in bytes, and the time of the last change in nanoseconds, of a file."""
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns
