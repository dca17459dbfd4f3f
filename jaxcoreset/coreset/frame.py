"""A coreset as a data frame."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxcoreset.data.messages import require

if TYPE_CHECKING:
    import pandas as pd


def as_frame(
    indices: np.ndarray,
    weights: np.ndarray,
    data: Mapping[str, Any],
    num_data: int,
    table: "pd.DataFrame | None",
    weight: str,
    row: str,
) -> "pd.DataFrame":
    """The rows and weights of a coreset, beside its data or the rows of a table; see `to_frame`."""
    require("pandas")
    import pandas as pd

    if table is None:
        frame = pd.DataFrame(_columns(data))
    elif not isinstance(table, pd.DataFrame):
        raise TypeError(f"table is a {type(table).__name__}; expected a pandas DataFrame.")
    elif len(table) != num_data:
        raise ValueError(
            f"table has {len(table):,} rows; expected the {num_data:,} rows that the coreset was "
            "built from, in the same order."
        )
    else:
        frame = table.iloc[indices].copy()
    for option, name in (("row", row), ("weight", weight)):
        if name in frame.columns or row == weight:
            raise ValueError(
                f"{option} is {name!r}, and there is another column of that name; choose a new "
                f"name, for instance {option}='coreset_{name}'."
            )
    frame.insert(0, row, indices)
    frame.insert(1, weight, weights)
    return frame


def _columns(data: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """One-dimensional columns by name: y, X[0], X[1], ...."""
    columns: dict[str, np.ndarray] = {}
    for name, leaf in data.items():
        values = np.asarray(leaf)
        for index in np.ndindex(values.shape[1:]):
            suffix = f"[{','.join(map(str, index))}]" if index else ""
            columns[name + suffix] = values[(slice(None), *index)]
    return columns
