"""A coreset as a data frame and as the file of a table, and its proxy as JSON."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from jaxcoreset.data.messages import html_table, require
from jaxcoreset.data.sources.base import Codes
from jaxcoreset.data.utils import write_whole
from jaxcoreset.likelihood.expansion import Proxy

if TYPE_CHECKING:
    import pandas as pd


class AsTable:
    """The methods of a `Coreset` that make a table of it."""

    indices: np.ndarray
    weights: np.ndarray
    proxy: Proxy | None
    arguments: Any
    report: Any
    grouping: Any
    # Pickles of earlier versions do not have them.
    columns: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    codes: Mapping[str, Codes] = MappingProxyType({})

    def __len__(self) -> int:
        return self.indices.size

    def _repr_html_(self) -> str:
        run = "MCMC(NUTS(coreset.model), ...).run(key, *coreset.args, **coreset.kwargs)"
        proxy = [] if self.proxy is None else [("proxy of all rows", str(self.report.proxy))]
        rows = [*proxy, ("verdict", self.report.verdict), ("to sample it", run)]
        return html_table(repr(self)[1:-1], rows)

    def to_frame(
        self,
        table: "pd.DataFrame | None" = None,
        *,
        weight: str = "weight",
        row: str = "row",
        proxy: str | os.PathLike | None = None,
        numbers: Int[np.ndarray, " n"] | None = None,
    ) -> "pd.DataFrame":
        """The coreset as a table, with one line for each of its rows.

        Args:
            table: the data frame of n rows that the model's arguments were made from. If left out,
                the columns are those arguments themselves.
            weight: the name of the column of weights.
            row: the name of the column of row numbers, which count from 0.
            proxy: the JSON file to write the proxy to, if the coreset has one: the arrays of
                `Proxy.to_dict` as lists.
            numbers: shape (n,), the numbers that you know the rows of `table` by, such as those in
                a file some of whose rows were left out; by default 0 to n - 1.

        Returns:
            A data frame of m rows: the row numbers, the weights, and either the columns of the
            table at these rows, with the index of the table, or the model's data by argument name:
            an array of one axis as ``y``, other arrays as ``X[0]``, ``X[1]``, ....

        Raises:
            ValueError: if the coreset is one of groups; if it has a proxy, without which its rows
                mean nothing, and there is no file for it; if the table does not have n rows, or has
                a column with the name of the weights or of the row numbers.
            TypeError: if `table` is not a data frame.
            ModuleNotFoundError: if pandas is not installed; the extra ``tables`` brings it.
        """
        if self.grouping is not None:
            raise ValueError(
                "the coreset is one of groups, whose rows have no weights of their own; expected a "
                "coreset of rows. Its args and kwargs hold the rows of its groups."
            )
        write_proxy(self.proxy, proxy)
        require("pandas")
        import pandas as pd

        if table is None:
            rows = [leaf[: len(self)] for leaf in self.arguments.data]  # without any, there is one
            data = dict(zip(self.arguments.data_names, rows, strict=True))
            frame = pd.DataFrame(_columns(data))
        elif not isinstance(table, pd.DataFrame):
            raise TypeError(f"table is a {type(table).__name__}; expected a pandas DataFrame.")
        elif len(table) != self.report.num_data:
            raise ValueError(
                f"table has {len(table):,} rows; expected the {self.report.num_data:,} rows that "
                "the coreset was built from, in the same order."
            )
        else:
            frame = table.iloc[self.indices].copy()
        for option, name in (("row", row), ("weight", weight)):
            if name in frame.columns or row == weight:
                raise ValueError(
                    f"{option} is {name!r}, and there is another column of that name; choose a new "
                    f"name, for instance {option}='coreset_{name}'."
                )
        frame.insert(0, row, self.indices if numbers is None else numbers[self.indices])
        frame.insert(1, weight, self.weights)
        return frame

    def to_csv(
        self,
        path: str | os.PathLike,
        table: "pd.DataFrame | None" = None,
        *,
        escape_formulas: bool = True,
        **names: Any,
    ) -> Path:
        """Write `to_frame` as CSV with a header and without the index, atomically.

        Args:
            path: the file.
            table: see `to_frame`.
            escape_formulas: whether text and names that begin with ``=``, ``+``, ``-`` or ``@`` and
                are no numbers get an apostrophe before them: a spreadsheet would run them.
            **names: `weight`, `row`, `proxy` and `numbers`, see `to_frame`.

        Returns:
            The path written.
        """
        frame = self.to_frame(table, **names)
        frame = without_formulas(frame) if escape_formulas else frame
        return write_whole(path, lambda file: frame.to_csv(file, index=False, encoding="utf-8"))

    def to_parquet(
        self, path: str | os.PathLike, table: "pd.DataFrame | None" = None, **names: Any
    ) -> Path:
        """Write `to_frame` as Parquet without the index, atomically.

        Args:
            path: the file.
            table: see `to_frame`.
            **names: `weight`, `row`, `proxy` and `numbers`, see `to_frame`.

        Returns:
            The path written.

        Raises:
            ModuleNotFoundError: if pandas or pyarrow is not installed; the extra ``tables`` brings
                them.
        """
        frame = self.to_frame(table, **names)
        require("pyarrow")
        return write_whole(path, lambda file: frame.to_parquet(file, engine="pyarrow", index=False))


def write_proxy(proxy: Proxy | None, path: str | os.PathLike | None) -> None:
    """Write a proxy as JSON, if there is one: the arrays of `Proxy.to_dict` as lists.

    Raises:
        ValueError: if there is a proxy and no path, since weighted rows cannot be used without it.
    """
    if proxy is None:
        return
    if path is None:
        raise ValueError(
            "the coreset's rows only correct its proxy, so a table of them is not a coreset; "
            'expected proxy="proxy.json", a file for the proxy, or a coreset that was built with '
            "proxy=None."
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
            cells = [as_text_cell(value) for value in column]
            # pandas would make floats of whole numbers of which one is missing.
            column = pd.Series(cells, column.index, dtype=object, name=column.name)
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
