"""Tables of any package, recognised by their methods: data frames and Arrow tables."""

from typing import Any

import numpy as np

from jaxcoreset.data.messages import DataError


def is_table(leaf: Any) -> bool:
    """True if a leaf has named columns in memory, as a data frame or an Arrow table has."""
    is_read = hasattr(leaf, "to_numpy") or hasattr(leaf, "column_names")
    return not isinstance(leaf, np.ndarray) and is_read and hasattr(leaf, "columns")


def table_names(table: Any) -> list[str]:
    """The names of a table's columns, in their order; nothing is read."""
    return [str(key) for key in getattr(table, "column_names", table.columns)]


def table_columns(table: Any, name: str) -> dict[str, np.ndarray]:
    """The columns of a table by name, which are of any type.

    Raises:
        DataError: if there are none, or two of one name; the message calls the table `name`.
    """
    if hasattr(table, "column_names"):  # an Arrow table, whose columns are in a list
        columns = {str(key): table.column(key) for key in table.column_names}
    else:
        columns = {str(key): table[key] for key in table.columns}
    if not columns:
        raise DataError(f"{name} is a table without columns; expected at least one.")
    if len(columns) != len(table.columns):
        raise DataError(f"{name} has several columns of one name; rename them, or pass an array.")
    return {key: column_values(column) for key, column in columns.items()}


def column_values(column: Any) -> np.ndarray:
    """A column as an array; Arrow's arrays copy only on request."""
    if hasattr(column, "type") and not hasattr(column, "num_chunks"):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    return np.asarray(column.to_numpy())
