"""Columns of categories in Parquet files: their values, and the codes that stand for them.

A code means nothing without its values. Two files may lack different values, so codes that each
file numbers by itself differ between them. Whoever reads the second one passes the values of the
first one.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxcoreset.data.messages import listed, no_column
from jaxcoreset.data.sources.base import SourceError
from jaxcoreset.data.sources.parquet_files import (
    File,
    check_key,
    number_of_text,
    numpy_type,
    plain,
    record_batches,
)

if TYPE_CHECKING:
    import pyarrow as pa

# Names of columns, or their values by name; the values are found where they are None.
Categories = str | Sequence[str] | Mapping[str, Any]

# The rows of a column of categories that are looked at together.
_CODED_ROWS = 1 << 16


def categories_of(files: Sequence[File], name: str, given: Any = None) -> np.ndarray:
    """The values of a column of categories, in the order of their codes.

    Args:
        files: the files.
        name: the name of the column.
        given: the values; if None, the different values of the files, in increasing order.

    Raises:
        SourceError: if the column is missing or holds anything else than text or numbers, or the
            values given are none, repeat, or are of several kinds.
    """
    for file in files:
        if name not in file.columns:
            raise SourceError(no_column(file.path, name, list(file.columns)))
        check_key(file, name)
    if given is not None:
        return _checked(name, given)
    found: set[Any] = set()
    for file in files:
        if name in file.keys:
            found.add(_value_of_key(file, name, is_number=name in file.plain))
            continue
        for _, batch in record_batches(file, range(file.starts.size - 1), [name], _CODED_ROWS):
            values = plain(batch.column(name)).unique()
            if not _is_text(values.type) and numpy_type(values.type) is None:
                raise SourceError(
                    f"{file.path}: column {name!r} is of type {values.type}; expected text or "
                    "numbers in a column of categories."
                )
            found.update(value for value in values.drop_null().to_pylist() if value == value)
    if any(isinstance(value, str) for value in found) != all(isinstance(x, str) for x in found):
        raise SourceError(f"{name!r} is text in some of the files and a number in others.")
    return np.array(sorted(found))


def _checked(name: str, given: Any) -> np.ndarray:
    """Values of categories that the user gives, as an array."""
    values = [] if isinstance(given, str) else list(given)
    array = np.array([value.item() if isinstance(value, np.generic) else value for value in values])
    is_text = [isinstance(value, str) for value in values]
    is_fitting = array.ndim == 1 and array.dtype.kind in "Uiufb" and any(is_text) == all(is_text)
    is_known = is_fitting and bool(np.all(array == array))  # NaN is a missing value
    if not values or not is_known or np.unique(array).size < array.size:
        raise SourceError(
            f"parquet: categories has {str(given)[:60]!r} for {name!r}; expected the different "
            "values of this column, all of them text or all of them numbers, each of them once."
        )
    return array


def code_of_key(file: File, name: str, known: np.ndarray) -> int:
    """The code of the category that stands in the name of a file's folder.

    Raises:
        SourceError: if it is not among the values.
    """
    is_number = known.dtype.kind != "U"
    try:
        value = _value_of_key(file, name, is_number=is_number)
    except ValueError:
        value = file.keys[name]
    found = [] if isinstance(value, str) == is_number else np.flatnonzero(known == value)
    if not len(found):
        raise SourceError(f"{file.path}: {unknown_category(name, value, known)}")
    return int(found[0])


def _value_of_key(file: File, name: str, *, is_number: bool) -> Any:
    text = file.keys[name] or ""
    return number_of_text(text) if is_number else text


def unknown_category(name: str, value: Any, known: np.ndarray) -> str:
    """What an error says about a value that is not among those of a column of categories."""
    return (
        f"column {name!r} has the value {value!r}, which is not among its {known.size:,} "
        f"categories, {listed(known.tolist())}; expected one of them. The model has no entry for "
        "another one: drop such rows, or add the value to categories and build a new coreset."
    )


def comparable_type(one: "pa.DataType", two: "pa.DataType") -> "pa.DataType":
    """The type in which the values of two columns are compared: the text, or numbers, of both."""
    import pyarrow as pa

    if _is_text(one) != _is_text(two):
        raise pa.ArrowInvalid("text is not compared with numbers.")
    if one == two or _is_text(one):
        return pa.large_string() if _is_text(one) else one
    are_whole = all(pa.types.is_integer(kind) or pa.types.is_boolean(kind) for kind in (one, two))
    return pa.int64() if are_whole else pa.float64()


def _is_text(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
