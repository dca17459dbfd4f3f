"""Stand-in until the sources are merged."""

import jax
import numpy as np


def is_streamed(leaf):
    return isinstance(leaf, np.memmap)


def take_rows(leaves, rows):
    return tuple(
        leaf[rows] if isinstance(leaf, jax.Array) else np.asarray(leaf[rows]) for leaf in leaves
    )


def read_chunks(leaves, size, first=0, *, prefetch=2):
    n = leaves[0].shape[0]
    for at in range(first, n, size):
        yield at, tuple(np.asarray(leaf[at : at + size]) for leaf in leaves)


def fingerprint(leaves):
    import hashlib

    h = hashlib.sha256()
    for leaf in leaves:
        h.update(np.asarray(leaf).tobytes())
    return h.hexdigest()[:16]
