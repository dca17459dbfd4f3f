"""Tables in files (CSV, Parquet and NPZ), read and checked by column and row.

An error names the file, the line or row, and the column of a bad value. Lines of a CSV file are
counted as an editor counts them: the header is line 1. Parquet and NPZ files have no lines; their
first row is row 1.
"""

import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int, Integer, Num

from jaxcoreset.command.files import (
    TableError,
    read_npz,
    read_parquet,
    read_text,
    records,
    separator_of,
)
from jaxcoreset.data.dtypes import first_lost, handed_on, held_by
from jaxcoreset.data.messages import did_you_mean, no_column, require

if TYPE_CHECKING:
    import pandas as pd

MIDNIGHT = " 00:00:00"
SUFFIXES = (".csv", ".tsv", ".parquet", ".npz")
# The most values that a column of categories may have.
MAX_LEVELS = 200
_MAX_INT64 = 2**63 - 1
# By the letter that NumPy and pandas give to a type; categories of pandas have that of objects.
_KINDS = {"M": "date", "b": "truth", "i": "whole number", "u": "whole number"}
_KINDS |= {"f": "number", "c": "number"}


@dataclass(frozen=True, eq=False)
class Table:
    """A table and the file that it comes from.

    Attributes:
        path: the file.
        frame: its columns, as a data frame with the index 0, 1, ....
        separator: the character between the values of a text file; empty for other files.
        rows: shape (n,), the numbers of the rows in the file, from 0, if some were left out.
        read_rows: reads the columns again, with these rows of the file only; None if the table is
            not as in the file.
    """

    path: Path
    frame: "pd.DataFrame"
    separator: str = ""
    rows: Int[np.ndarray, " n"] | None = None
    read_rows: Callable[[np.ndarray], "pd.DataFrame"] | None = None

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

    def with_rows(self, rows: Int[np.ndarray, " m"]) -> "Table":
        """Some of the rows, as in a file that has only these.

        A value that is missing, or text in a column of numbers, decides about the type of a whole
        column, so the type is found again from the values that are kept.

        Args:
            rows: row numbers in `frame`, increasing.
        """
        in_file = rows if self.rows is None else self.rows[rows]
        if self.read_rows is None:
            frame = self.frame.iloc[rows].reset_index(drop=True)
        else:
            frame = self.read_rows(in_file)
        return dataclasses.replace(self, frame=frame, rows=in_file)

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

        Text such as 02139 is a number in a text file only; decimals are numbers in every file.

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
            if not self.separator:  # a file with types says that 02139 is text, not a number
                digits = np.array([isinstance(value, str | bytes) for value in values]) & ~text
                text = text | digits
                if digits.any():
                    hint = f"Save {name!r} as numbers if it holds numbers. {hint}".rstrip()
            if text.any():
                found = str(values[text].iloc[0])
                comma = re.fullmatch(r"\s*[-+]?\d+,\d+\s*", found)
                advice = "Write decimals with a point, not a comma." if comma else hint
                self.refuse(name, text, f"{_short(found)} is text", f"Expected a number. {advice}")
            values = numbers
        if values.dtype.kind == "c":
            raise TableError(f"{self.path}, column {name!r} holds complex numbers; expected real.")
        if values.dtype.kind == "u" and values.max() > _MAX_INT64:  # negative as int64
            return self.in_float64(name, values.to_numpy(dtype=np.uint64))
        array = values.to_numpy(dtype=np.float64 if values.dtype.kind == "f" else np.int64)
        self.refuse(name, ~np.isfinite(array), "the value is infinite", "Expected a number.")
        return array

    def in_float64(self, name: str, exact: Integer[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """The whole numbers of a column in float64, whose results do not wrap.

        Raises:
            TableError: if two different numbers are one number in float64.
        """
        array = exact.astype(np.float64)
        order = np.argsort(exact, kind="stable")
        equal = (np.diff(array[order]) == 0) & (exact[order][1:] > exact[order][:-1])
        lost = np.isin(np.arange(array.size), order[1:][equal])
        found = f"float64 cannot tell {exact[lost][0]} from another value" if lost.any() else ""
        self.refuse(name, lost, found, "Subtract a constant from the column first.")
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
        found = itertools.islice(records(self.path, self.separator), rows[-1] + 2)
        lines = [line for line, _ in found]
        return [lines[row + 1] for row in rows]

    def as_written(self, rows: Int[np.ndarray, " m"]) -> "pd.DataFrame":
        """Some rows of a text file with the text of the file: 007 stays 007, and NA stays NA.

        Args:
            rows: row numbers in `frame`.
        """
        import pandas as pd

        in_file = rows if self.rows is None else self.rows[rows]
        wanted, values = set(in_file.tolist()), {}
        rows_up_to_last = itertools.islice(
            records(self.path, self.separator), max(wanted, default=-1) + 2
        )
        for row, (_, record) in enumerate(rows_up_to_last, -1):
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
        table = Table(path, read_npz(path))
    elif suffix == ".parquet":
        table = Table(path, read_parquet(path), read_rows=functools.partial(read_parquet, path))
    else:
        separator = separator_of(path)
        read = functools.partial(read_text, path, separator, categories)
        table = Table(path, read(), separator, read_rows=read)
    if not len(table):
        raise TableError(f"{path} has a header and no rows; expected at least one row of data.")
    return table


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
