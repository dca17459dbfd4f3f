"""Pytrees of arrays with one leading axis."""

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
