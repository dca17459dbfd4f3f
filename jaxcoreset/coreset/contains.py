"""Whether a coreset was built from some data, by the rows that it keeps of them."""

import dataclasses
from typing import Any

import numpy as np

from jaxcoreset.data.rows import Rows
from jaxcoreset.likelihood.arguments import Arguments, is_same


def check_contains(coreset: Any, arguments: Arguments, rows: Rows, *, is_own: bool = False) -> None:
    """Raise a ValueError if rows of the coreset, or what holds no rows, differ in these data.

    Rows that the coreset does not keep cannot be compared.

    Args:
        coreset: the coreset.
        arguments: the model's arguments with these data.
        rows: all rows of them.
        is_own: whether these are the arrays that the coreset was built from.
    """
    if not len(coreset):
        return
    found, own = arguments.with_data(rows.take(rows.places(coreset.indices))), coreset.arguments
    counts = set()
    if coreset.grouping is not None:
        positions = coreset.grouping.positions
        counts = {*positions.group_counts, *positions.row_counts}
        found = _without_filling(coreset.grouping.trimmed(found), positions)
        own = _without_filling(own, positions)
    pairs = enumerate(zip(found.leaves, own.leaves, strict=True))
    if not all(is_same(*pair) for at, pair in pairs if at not in counts):
        if is_own:
            raise ValueError(
                "the arrays that the coreset was built from were changed in place after the build, "
                "in the rows of the coreset at least. Pass the model's arguments with all rows as "
                "they were, or build a new coreset."
            )
        raise ValueError(
            "the data differ from those that the coreset was built from, in the rows of the "
            "coreset or in an argument that holds no rows. Pass the same data in the same order, "
            "and the same other arguments."
        )


def _without_filling(arguments: Arguments, positions: Any) -> Arguments:
    """Groups laid out, with zeros in the places that no row of theirs takes."""
    if positions.labels is None:
        return arguments
    leaves = list(arguments.leaves)
    is_row = np.asarray(leaves[positions.labels]) != 0
    for at in positions.rows:
        leaf = np.asarray(leaves[at])
        shape = (*is_row.shape, *[1] * (leaf.ndim - is_row.ndim))
        leaves[at] = np.where(is_row.reshape(shape), leaf, np.zeros((), leaf.dtype))
    return dataclasses.replace(arguments, leaves=tuple(leaves))
