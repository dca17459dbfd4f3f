"""A coreset as a data frame, and its proxy as JSON."""

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxcoreset.data.messages import require
from jaxcoreset.data.utils import write_whole
from jaxcoreset.likelihood.expansion import Proxy

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


def write_proxy(proxy: Proxy | None, path: str | os.PathLike | None) -> None:
    """Write a proxy as JSON, if there is one: the arrays of `Proxy.to_dict` as lists.

    Raises:
        ValueError: if there is a proxy and no path, since weighted rows are of no use without it.
    """
    if proxy is None:
        return
    if path is None:
        raise ValueError(
            "the coreset's rows only make up for what its proxy does not say, so a table of them "
            'is not a coreset; expected proxy="proxy.json", a file for the proxy, or a coreset '
            "that was built with proxy=None."
        )
    plain = {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in proxy.to_dict().items()
    }
    text = json.dumps(plain)
    write_whole(path, lambda file: file.write(text.encode()))


def without_formulas(frame: "pd.DataFrame") -> "pd.DataFrame":
    """The frame with an apostrophe before each text and name that a spreadsheet would run."""
    import pandas as pd

    columns = []
    for i, name in enumerate(frame.columns):
        column = frame.iloc[:, i]
        if column.dtype.kind == "O":
            column = column.astype(object).map(as_text_cell)
        columns.append(column.rename(as_text_cell(name)))
    return pd.concat(columns, axis=1)


def as_text_cell(value: Any) -> Any:
    """A value with an apostrophe before it if a spreadsheet would take it for a formula."""
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def _columns(data: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """One-dimensional columns by name: y, X[0], X[1], ...."""
    columns: dict[str, np.ndarray] = {}
    for name, leaf in data.items():
        values = np.asarray(leaf)
        for index in np.ndindex(values.shape[1:]):
            suffix = f"[{','.join(map(str, index))}]" if index else ""
            columns[name + suffix] = values[(slice(None), *index)]
    return columns
