"""The contents of files that hold a table: text with separators, Parquet and NPZ.

Lines of a text file are counted as an editor counts them: the header is line 1.
"""

import codecs
import csv
import io
import re
import warnings
import zipfile
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from jaxcoreset.data.messages import DataError, not_parquet, require

if TYPE_CHECKING:
    import pandas as pd

_MAX_FIELD = 2**31 - 1  # characters; Python's own limit is 131,072


class TableError(DataError):
    """A table or an option cannot be used; the message says where, what was found, what to do."""


def records(path: Path, separator: str, *, strict: bool = False) -> Iterable[tuple[int, list[str]]]:
    """The records of a text file, header first, each with the number of its first line."""
    csv.field_size_limit(_MAX_FIELD)
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=separator, strict=strict)
        line = 1
        for record in reader:
            if len(record) > 1 or (record and record[0].strip()):
                yield line, record
            line = reader.line_num + 1


def separator_of(path: Path) -> str:
    """The most frequent of comma, semicolon and tab in the header, outside quotes."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            header = next((line for line in file if line.strip()), "")
    except UnicodeDecodeError as error:
        raise _not_utf8(path) from error
    if not header:
        raise TableError(
            f"{path} is empty; expected a header with the names of the columns, and rows."
        )
    header = re.sub('"[^"]*"?', "", header)
    return max(",;\t", key=lambda mark: (header.count(mark), mark == ","))


def _not_utf8(path: Path) -> TableError:
    with open(path, "rb") as file:
        mark = file.read(2)
    if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return TableError(
            f"{path} is text in UTF-16; expected UTF-8. Save it as 'CSV UTF-8' in the "
            "spreadsheet, or convert it: iconv -f utf-16 -t utf-8."
        )
    return TableError(
        f"{path} is not text in UTF-8. Save it as 'CSV UTF-8' in the spreadsheet, or "
        "convert it: iconv -f latin1 -t utf-8."
    )


def read_text(
    path: Path,
    separator: str,
    categories: Collection[str],
    rows: Int[np.ndarray, " m"] | None = None,
) -> "pd.DataFrame":
    """The columns of a text file, whose `categories` stay text unless all are plain numbers.

    Args:
        path: the file.
        separator: the character between the values.
        categories: the names of columns that hold categories.
        rows: numbers of rows, from 0, in increasing order; then the columns are those of a file
            that has only these rows.
    """
    import pandas as pd

    try:
        _, header = next(iter(records(path, separator)))
        repeated = sorted({name for name in header if header.count(name) > 1})
        if repeated:
            raise TableError(
                f"{path}, line 1: the column name {repeated[0]!r} occurs more than once; "
                "expected a different name for each column."
            )
        with warnings.catch_warnings():
            # Otherwise pandas only warns when it cuts off lines that are longer than the header.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                path if rows is None else _text_of(path, separator, rows),
                sep=separator,
                index_col=False,
                low_memory=False,
                encoding="utf-8-sig",
                dtype={name: str for name in header if name.strip() in categories},
            )
    except UnicodeDecodeError as error:
        raise _not_utf8(path) from error
    except (pd.errors.ParserError, pd.errors.ParserWarning, csv.Error) as error:
        raise TableError(
            f"{path} cannot be read as a table: {_first_bad_line(path, separator) or error}"
        ) from error
    stripped = [name.strip() or name for name in frame.columns]
    if len(set(stripped)) == len(stripped):  # "y, age" has a column age
        frame.columns = stripped
    for name in set(categories) & set(frame.columns):
        texts = frame[name].dropna().unique()
        if all(map(_is_plain, texts)):
            numbers: Any = pd.to_numeric(frame[name])
            if numbers.nunique() == len(texts):  # 1 and 1.0 are one number
                frame[name] = numbers
    return frame


def _text_of(path: Path, separator: str, rows: Int[np.ndarray, " m"]) -> io.StringIO:
    """The header of a text file and some of its rows, as text."""
    wanted, text = set(rows.tolist()), io.StringIO(newline="")
    writer = csv.writer(text, delimiter=separator)
    for row, (_, record) in enumerate(records(path, separator), -1):
        if row < 0 or row in wanted:
            writer.writerow(record)
    text.seek(0)
    return text


def _is_plain(text: str) -> bool:
    """True if a text is a number as Python writes it."""
    try:
        return text == str(float(text)) or text == str(int(text))
    except ValueError:
        return False


def _first_bad_line(path: Path, separator: str) -> str:
    """A sentence on the first line that cannot be read; empty without one."""
    header, line, record = None, 1, [""]
    for line, record in records(path, separator):
        header = record if header is None else header
        if len(record) > len(header):
            return (
                f"line {line} has {len(record)} values, and the header has {len(header)} names. "
                "Put quotes around a value that contains the separator."
            )
    try:
        list(records(path, separator, strict=True))
    except csv.Error as error:
        if "unexpected end of data" in str(error):  # the last value takes in all that follows
            line += sum(value.count("\n") for value in record[:-1])
            names = header if header is not None and header is not record else []
            name = f" {names[len(record) - 1]!r}" if len(names) >= len(record) else ""
            return (
                f"line {line}, column {len(record)}{name}: a quote is opened and not closed. "
                "Close it, or write two quotes for one that belongs to the value."
            )
    return ""


def read_parquet(
    path: Path, rows: Int[np.ndarray, " m"] | None = None, *, keep_integers: bool = False
) -> "pd.DataFrame":
    """The columns of a Parquet file, those of its index first.

    Args:
        path: the file.
        rows: numbers of rows, from 0; then the columns are those of a file that has only these
            rows. Whole numbers are floats for pandas where one of them is missing.
        keep_integers: with `rows`, whether such columns hold Python's integers and None instead.
    """
    require("pyarrow")
    import pandas as pd

    try:
        if rows is None:
            frame = pd.read_parquet(path, engine="pyarrow")
        else:
            from pyarrow.parquet import read_table

            table = read_table(path)
            frame = table.take(rows).to_pandas(integer_object_nulls=keep_integers)
            # A range is in the notes of the file only, and does not fit some of the rows.
            notes = (table.schema.pandas_metadata or {}).get("index_columns", [])
            if len(notes) == 1 and isinstance(notes[0], dict) and notes[0].get("kind") == "range":
                index = pd.RangeIndex(*(notes[0][part] for part in ("start", "stop", "step")))
                frame.index = index[rows].rename(notes[0]["name"])
    except Exception as error:  # of pyarrow, and of pandas about its notes in the file
        raise TableError(not_parquet(path, error)) from error
    named = frame.reset_index() if any(name is not None for name in frame.index.names) else frame
    named.columns = [str(name) for name in named.columns]
    return named.reset_index(drop=True)


def read_npz(path: Path) -> "pd.DataFrame":
    """The arrays of an NPZ file as columns."""
    import pandas as pd

    if not zipfile.is_zipfile(path):
        raise TableError(
            f"{path} is not an NPZ file, despite its name; expected one that numpy.savez wrote."
        )
    try:
        with np.load(path, allow_pickle=False) as contents:
            arrays = {name: contents[name] for name in contents.files}
    except Exception as error:  # zip, struct and pickle each raise their own errors
        found = str(error).rstrip(".")
        raise TableError(
            f"{path} cannot be read: {found}. Expected a file that numpy.savez wrote, with arrays "
            "of numbers or text, not of Python objects."
        ) from error
    bad = [name for name, array in arrays.items() if array.ndim not in (1, 2)]
    if bad or not arrays:
        found = f"array {bad[0]!r} has the shape {arrays[bad[0]].shape}" if bad else "it is empty"
        raise TableError(f"{path}: {found}; expected arrays of shape (rows,) or (rows, columns).")
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name!r} {length:,}" for name, length in lengths.items())
        raise TableError(
            f"{path}: the arrays have different numbers of rows: {found}; expected the same number "
            "in each. Save only the arrays of the table."
        )
    columns = {}
    for name, array in arrays.items():
        for i, column in enumerate(np.atleast_2d(array.T)):
            columns[name if array.ndim == 1 else f"{name}[{i}]"] = column
    return pd.DataFrame(columns)
