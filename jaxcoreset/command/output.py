"""The output of ``jaxcoreset build`` as a table: the rows of the coreset with their weights.

The other columns have the values of the file. A data frame does not always hold these: it has
floats for whole numbers of which one is missing, and the number 7 for the code 007.
"""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from jaxcoreset.command.files import read_parquet
from jaxcoreset.command.tables import Table
from jaxcoreset.coreset.frame import without_formulas
from jaxcoreset.data.utils import write_whole

if TYPE_CHECKING:
    from jaxcoreset.coreset.coreset import Coreset

_INT64 = range(-(2**63), 2**63)


def write_csv(
    coreset: "Coreset",
    path: Path,
    table: Table,
    numeric: Collection[str],
    *,
    keep_formulas: bool,
    **names: Any,
) -> Path:
    """Write the rows as CSV, with the text of the file if that is text.

    Args:
        coreset: the coreset.
        path: the file to write.
        table: the table that it was built from.
        numeric: the columns that the model takes as numbers.
        keep_formulas: whether text that a spreadsheet would run is written as it is.
        **names: see `Coreset.to_frame`.
    """
    frame = coreset.to_frame(table.frame, **names).reset_index(drop=True)
    rows, added = coreset.indices, frame[[names["row"], names["weight"]]]
    if table.separator:
        frame = added.join(table.as_written(rows))
    elif _is_parquet(table):
        in_file = read_parquet(table.path, _in_file(table, rows), keep_integers=True)
        frame = added.join(in_file)
    for name in () if table.separator else numeric:
        if frame[name].dtype.kind == "f":  # the shortest text of a float32 is another float64
            frame[name] = frame[name].astype(np.float64)
    for name in frame.columns:
        if frame[name].dtype == "category":  # whose whole numbers are written as floats
            frame[name] = frame[name].astype(object)
    frame = frame if keep_formulas else without_formulas(frame)
    return write_whole(path, lambda file: frame.to_csv(file, index=False, encoding="utf-8"))


def write_parquet(
    coreset: "Coreset", path: Path, table: Table, used: Collection[str], **names: Any
) -> Path:
    """Write the rows as Parquet, with the columns of the file if that is Parquet.

    Args:
        coreset: the coreset.
        path: the file to write.
        table: the table that it was built from.
        used: the columns that the model uses. If the file is text, these have the type that the
            model got; any other column is text if the text of a number is not that of the file.
        **names: see `Coreset.to_frame`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    frame: Any = coreset.to_frame(table.frame, **names).reset_index(drop=True)
    if table.separator:
        texts: Any = table.as_written(coreset.indices)
        for name in set(table.columns) - set(used):
            frame[name] = _as_written(table, name, frame[name], texts[name])
    written = pa.Table.from_pandas(frame, preserve_index=False)
    if _is_parquet(table):
        source = pq.read_table(table.path).take(_in_file(table, coreset.indices))
        for name in set(table.columns) & set(source.column_names):
            at = written.column_names.index(name)
            written = written.set_column(at, source.field(name), source.column(name))
    return write_whole(path, lambda file: pq.write_table(written, file))


def _is_parquet(table: Table) -> bool:
    return table.path.suffix.lower() == ".parquet"


def _in_file(table: Table, rows: Int[np.ndarray, " m"]) -> Int[np.ndarray, " m"]:
    return rows if table.rows is None else table.rows[rows]


def _as_written(table: Table, name: str, values: Any, texts: Any) -> Any:
    """Some values of a column of a text file, as text where a number is written in another way.

    Args:
        table: the table of the column.
        name: the name of the column.
        values: shape (m,), the values as pandas reads them.
        texts: shape (m,), the same with the text of the file.
    """
    import pandas as pd

    kind, present = table.kind(name), values.notna().to_numpy()
    stripped = [text.strip() for text in texts[present]]
    if kind in ("truth", "date"):
        return values
    if kind == "text" and not all(isinstance(value, str) for value in values[present]):
        return values  # true, false and missing
    if kind == "whole number" and all(map(_is_integer, stripped)):
        return values
    if kind == "number":
        whole_column: Any = table.frame[name].dropna() % 1 == 0
        if whole_column.all() and all(
            _is_integer(text) and int(text) in _INT64 for text in stripped
        ):
            found = pd.Series(pd.NA, index=values.index, dtype="Int64")
            found[present] = [int(text) for text in stripped]
            return found
        if all(map(_is_float, stripped)):
            found = pd.Series(np.nan, index=values.index)
            found[present] = [float(text) for text in stripped]
            return found
    return texts.where(texts.str.strip() != "", None)


def _is_integer(text: str) -> bool:
    """True if a text is a whole number as Python writes it."""
    try:
        return text == str(int(text))
    except ValueError:
        return False


def _is_float(text: str) -> bool:
    """True if a text is a number as Python writes it, or a whole number that a float holds."""
    try:
        number = float(text)
    except ValueError:
        return False
    return text == str(number) or (_is_integer(text) and int(number) == int(text))
