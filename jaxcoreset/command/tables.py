"""Tables in files (CSV, Parquet and NPZ), read and checked by column and row.

An error names the file, the line or row, and the column of a bad value. Lines of a CSV file are
counted as an editor counts them: the header is line 1. Parquet and NPZ files have no lines; their
first row is row 1.
"""

import codecs
import csv
import itertools
import os
import re
import warnings
import zipfile
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Int, Num

from jaxcoreset.data.dtypes import first_lost, handed_on, held_by
from jaxcoreset.data.messages import (
    DataError,
    did_you_mean,
    no_column,
    not_parquet,
    require,
)

if TYPE_CHECKING:
    import pandas as pd

MIDNIGHT = " 00:00:00"
SUFFIXES = (".csv", ".tsv", ".parquet", ".npz")
_MAX_INT64 = 2**63 - 1
_MAX_FIELD = 2**31 - 1  # characters; Python's own limit is 131,072
# By the letter that NumPy and pandas give to a type; categories of pandas have that of objects.
_KINDS = {"M": "date", "b": "truth", "i": "whole number", "u": "whole number"}
_KINDS |= {"f": "number", "c": "number"}


class TableError(DataError):
    """A table or an option cannot be used; the message says where, what was found, what to do."""


@dataclass(frozen=True, eq=False)
class Table:
    """A table and the file that it comes from.

    Attributes:
        path: the file.
        frame: its columns, as a data frame with the index 0, 1, ....
        separator: the character between the values of a text file; empty for other files.
        rows: shape (n,), the numbers of the rows in the file, from 0, if some were left out.
    """

    path: Path
    frame: "pd.DataFrame"
    separator: str = ""
    rows: Int[np.ndarray, " n"] | None = None

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in the order of the file."""
        return list(self.frame.columns)

    def column(self, name: str) -> "pd.Series":
        """One column without missing values, as in the file.

        Raises:
            TableError: if there is no such column, or it has missing values.
        """
        self.check(name)
        values: Any = self.frame[name]
        missing = values.isna().to_numpy()
        written = self.written_as(name, missing)
        other = "" if not written else f" If {written} is a category, write it in another way."
        self.refuse(
            name,
            missing,
            f"a value is missing{f' (written {written})' if written else ''}",
            f"Fill it in, or drop such rows (--drop-missing).{other}",
        )
        return values

    def written_as(self, name: str, missing: Bool[np.ndarray, " n"]) -> str:
        """The text of the first missing value of a column, such as 'NA'; empty if it has none."""
        if not self.separator or not missing.any():
            return ""
        text = self.as_written(np.flatnonzero(missing)[:1])[name].iloc[0].strip()
        return repr(text) if text else ""

    def check(self, name: str) -> None:
        """Check that there is a column of this name.

        Raises:
            TableError: if there is none; the message suggests the nearest names.
        """
        if name not in self.columns:
            raise TableError(no_column(self.path, name, self.columns))

    def numbers(self, name: str, hint: str = "") -> Num[np.ndarray, " n"]:
        """One column as numbers: int64 or float64; true and false become 1 and 0.

        Args:
            name: the column.
            hint: advice for the end of an error message.

        Raises:
            TableError: if there is no such column, or a value is missing, infinite or not a number.
        """
        import pandas as pd

        values: Any = self.column(name)
        if values.dtype.kind in "mM":
            raise TableError(
                f"{self.path}, column {name!r} holds dates or times; expected numbers. Convert "
                f"them to a number of days or seconds first. {hint}".rstrip()
            )
        if values.dtype.kind not in "biufc":
            values = values.astype(object)
            numbers: Any = pd.to_numeric(values, errors="coerce")
            text = numbers.isna().to_numpy()
            if text.any():
                found = str(values[text].iloc[0])
                comma = re.fullmatch(r"\s*[-+]?\d+,\d+\s*", found)
                advice = "Write decimals with a point, not a comma." if comma else hint
                self.refuse(name, text, f"{_short(found)} is text", f"Expected a number. {advice}")
            values = numbers
        if values.dtype.kind == "c":
            raise TableError(f"{self.path}, column {name!r} holds complex numbers; expected real.")
        if values.dtype.kind == "u" and values.max() > _MAX_INT64:  # negative as int64
            array = values.to_numpy(dtype=np.float64)
            order = np.argsort(exact := values.to_numpy(dtype=np.uint64), kind="stable")
            equal = (np.diff(array[order]) == 0) & (np.diff(exact[order]) > 0)
            lost = np.isin(np.arange(array.size), order[1:][equal])
            found = f"float64 cannot tell {exact[lost][0]} from another value" if lost.any() else ""
            self.refuse(name, lost, found, "Subtract a constant from the column first.")
            return array
        array = values.to_numpy(dtype=np.float64 if values.dtype.kind == "f" else np.int64)
        self.refuse(name, ~np.isfinite(array), "the value is infinite", "Expected a number.")
        return array

    def check_held(self, name: str, values: np.ndarray) -> None:
        """Check that JAX holds the values of a column, which it shortens to 32 bits.

        Raises:
            TableError: if it does not.
        """
        bad = first_lost(values)
        if bad is not None:
            self.refuse(
                name,
                np.arange(values.size) == bad,
                f"found {values[bad]}, which {held_by(handed_on(values.dtype))}",
                "Fix the value, use another unit, or set the variable JAX_ENABLE_X64=1.",
            )

    def standardised(self, name: str, values: Num[np.ndarray, " n"]) -> tuple[Any, float, float]:
        """The values of a column less their mean and divided by their standard deviation.

        Returns:
            The scaled values, shape (n,), the mean, and the standard deviation (over n, not n - 1).

        Raises:
            TableError: if all are equal up to rounding: the standard deviation is at most 1e-12 of
                the largest absolute value.
        """
        self.check_held(name, np.asarray(values, np.float64))
        size = float(np.max(np.abs(values))) or 1.0  # so that squares stay finite
        mean, sd = float(np.mean(values / size)) * size, float(np.std(values / size)) * size
        if not sd > 1e-12 * size:
            raise TableError(
                f"{self.path}, column {name!r}: the values differ only by rounding; expected "
                "distinct values. Subtract a constant from them first, or leave the column out."
            )
        return (values - mean) / sd, mean, sd

    def labels(self, name: str) -> tuple[Int[np.ndarray, " n"], list[str]]:
        """One column as categories: an integer for each row, and the names of the categories.

        Categories are sorted. Their names are as in the file of the coreset; a date at midnight
        has no time.

        Raises:
            TableError: if there is no such column, or a value is missing.
        """
        import pandas as pd

        values: Any = self.column(name)
        if self.kind(name) == "text":  # a column of both text and numbers cannot be sorted
            values = values.astype(str)
        codes, levels = pd.factorize(values, sort=True)
        if self.kind(name) == "date":  # how pandas writes a date depends on the other dates
            return codes.astype(np.int64), [str(level).removesuffix(MIDNIGHT) for level in levels]
        return codes.astype(np.int64), pd.Series(levels).astype(str).tolist()

    def kind(self, name: str) -> str:
        """The kind of a column's values: "date", "truth", "whole number", "number" or "text".

        Raises:
            TableError: if there is no such column.
        """
        self.check(name)
        return _KINDS.get(self.frame[name].dtype.kind, "text")

    def matrix_columns(self, name: str) -> list[str]:
        """The columns ``name[0]``, ``name[1]``, ... of a matrix; empty if there are none."""
        have = set(self.columns)
        found = itertools.takewhile(have.__contains__, (f"{name}[{i}]" for i in itertools.count()))
        return list(found)

    def refuse(self, name: str, bad: np.ndarray, found: str, expected: str) -> None:
        """Raise an error that lists the rows of a column whose values cannot be used.

        Args:
            name: the column.
            bad: booleans of shape (n,), true in these rows.
            found: what the first of them holds.
            expected: a sentence that says what is expected and what to do.

        Raises:
            TableError: if there is such a row.
        """
        rows = np.flatnonzero(bad)
        if not rows.size:
            return
        word = "line" if self.separator else "row"
        first, *others = self.places(rows[:4].tolist())
        more = ""
        if others:
            rest = f" and {rows.size - 4:,} more" if rows.size > 4 else ""
            plural = "s" if len(others) > 1 else ""
            more = f" (the same in {word}{plural} {', '.join(map(str, others))}{rest})"
        raise TableError(
            f"{self.path}, {word} {first}, column {name!r}: {found}{more}. {expected}".rstrip()
        )

    def places(self, rows: Sequence[int]) -> list[int]:
        """The line numbers of rows in a text file; row numbers from 1 for other files.

        Args:
            rows: row numbers in `frame`, increasing.
        """
        if self.rows is not None:
            rows = self.rows[list(rows)].tolist()
        if not self.separator:
            return [row + 1 for row in rows]
        # A quoted value may span lines, and an empty line is not a row, so count the lines.
        records = _records(self.path, self.separator)
        lines = [line for line, _ in itertools.islice(records, rows[-1] + 2)]
        return [lines[row + 1] for row in rows]

    def as_written(self, rows: Int[np.ndarray, " m"]) -> "pd.DataFrame":
        """Some rows of a text file with the text of the file: 007 stays 007, and NA stays NA.

        Args:
            rows: row numbers in `frame`.
        """
        import pandas as pd

        in_file = rows if self.rows is None else self.rows[rows]
        wanted, values = set(in_file.tolist()), {}
        for row, (_, record) in enumerate(_records(self.path, self.separator), -1):
            if row in wanted:
                values[row] = record + [""] * (len(self.columns) - len(record))
        found = [values[row] for row in in_file.tolist()]
        return pd.DataFrame(found, columns=self.columns, dtype=object)


def read_table(path: str | os.PathLike, categories: Collection[str] = ()) -> Table:
    """Read a table.

    Args:
        path: a file that ends in ``.csv`` or ``.tsv`` (text in UTF-8 with a header, separated by
            commas, semicolons or tabs), ``.parquet``, or ``.npz``. In the last, an array of shape
            (n,) is a column, and one of shape (n, d) the columns ``name[0]`` to ``name[d-1]``.
        categories: the names of columns that hold categories. In a text file they stay text unless
            all are plain numbers, since 01 and 1 may be two categories.

    Raises:
        TableError: if there is no such file, or it is not such a table, or it has no rows.
        ModuleNotFoundError: if pandas, or for Parquet pyarrow, is not installed.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if not path.exists():
        folder = path.parent
        names = [file.name for file in folder.iterdir()] if folder.is_dir() else []
        raise TableError(f"there is no file {path}{did_you_mean(path.name, names)}")
    if path.is_dir():
        raise TableError(f"{path} is a directory; expected a file that holds one table.")
    if suffix not in SUFFIXES:
        raise TableError(
            f"{path} ends in {suffix or 'nothing'!r}; expected one of {', '.join(SUFFIXES)}. Save "
            "a spreadsheet as CSV first."
        )
    require("pandas")
    if suffix == ".npz":
        table = Table(path, _read_npz(path))
    elif suffix == ".parquet":
        table = Table(path, _read_parquet(path))
    else:
        separator = _separator(path)
        table = Table(path, _read_text(path, separator, categories), separator)
    if not len(table):
        raise TableError(f"{path} has a header and no rows; expected at least one row of data.")
    return table


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _records(
    path: Path, separator: str, *, strict: bool = False
) -> Iterable[tuple[int, list[str]]]:
    """The records of a text file, header first, each with the number of its first line."""
    csv.field_size_limit(_MAX_FIELD)
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=separator, strict=strict)
        line = 1
        for record in reader:
            if len(record) > 1 or (record and record[0].strip()):
                yield line, record
            line = reader.line_num + 1


def _separator(path: Path) -> str:
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


def _read_text(path: Path, separator: str, categories: Collection[str]) -> "pd.DataFrame":
    import pandas as pd

    try:
        _, header = next(iter(_records(path, separator)))
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
                path,
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
        if all(map(_is_plain, frame[name].dropna().unique())):
            frame[name] = pd.to_numeric(frame[name])
    return frame


def _is_plain(text: str) -> bool:
    """True if a text is a number as Python writes it."""
    try:
        return text == str(float(text)) or text == str(int(text))
    except ValueError:
        return False


def _first_bad_line(path: Path, separator: str) -> str:
    """A sentence on the first line that cannot be read; empty without one."""
    header, line, record = None, 1, [""]
    for line, record in _records(path, separator):
        header = record if header is None else header
        if len(record) > len(header):
            return (
                f"line {line} has {len(record)} values, and the header has {len(header)} names. "
                "Put quotes around a value that contains the separator."
            )
    try:
        list(_records(path, separator, strict=True))
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


def _read_parquet(path: Path) -> "pd.DataFrame":
    require("pyarrow")
    import pandas as pd

    try:
        frame = pd.read_parquet(path, engine="pyarrow")
    except Exception as error:  # of pyarrow, and of pandas about its notes in the file
        raise TableError(not_parquet(path, error)) from error
    named = frame.reset_index() if any(name is not None for name in frame.index.names) else frame
    named.columns = [str(name) for name in named.columns]
    return named.reset_index(drop=True)


def _read_npz(path: Path) -> "pd.DataFrame":
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
