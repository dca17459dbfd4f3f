"""Parts of messages: near names, lists of names, packages of an extra, tables of text; warnings."""

import difflib
import html
import re
import sys
import traceback
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

_LISTED = 12


class DataError(ValueError):
    """The data cannot be used; the message says where, what was found, and what to do."""


def text_table(title: str, rows: Iterable[Sequence[str]]) -> str:
    """Texts in aligned columns under a title, such as names and what belongs to them."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[-1] = 0
    lines = ("  ".join(f"{text:<{w}}" for text, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join([title, *(f"  {line}" for line in lines)])


class ShownAsTable:
    """An object whose `str` is a `text_table`, and which a notebook shows as an HTML table."""

    def _repr_html_(self) -> str:
        title, *lines = str(self).split("\n")
        rows = [re.split(r"\s{2,}", line.strip()) for line in lines]
        return html_table(title, rows)


def html_table(title: str, rows: Iterable[Sequence[str]]) -> str:
    """The rows of a `text_table` as an HTML table, with all texts escaped."""
    left = ' style="text-align:left"'

    def line(row: Sequence[str]) -> str:
        name, *cells = map(html.escape, row)
        values = "".join(f"<td{left}>{cell}</td>" for cell in cells)
        return f'<tr><th scope="row"{left}>{name}</th>{values}</tr>'

    body = "".join(map(line, rows))
    return f"<table><caption{left}>{html.escape(title)}</caption><tbody>{body}</tbody></table>"


def warn_user(message: str) -> None:
    """Warn at the line that called the package, however deep in it the reason was found."""
    package = __name__.partition(".")[0]
    frames = traceback.walk_stack(sys._getframe())
    stack = [frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in frames]
    level = len(stack) - stack[::-1].index(package)
    while level < len(stack) and stack[level] == "jaxtyping":  # its checks wrap the call
        level += 1
    warnings.warn(message, stacklevel=level + 1)


def require(package: str, why: str = "tables need it", extra: str = "tables") -> Any:
    """A package of an extra.

    Args:
        package: its name, or that of a module in it.
        why: what needs it, for the message.
        extra: the extra.

    Raises:
        ModuleNotFoundError: if it is not installed.
    """
    try:
        __import__(package)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{error.name} is missing; {why}: pip install 'jaxcoreset[{extra}]'",
            name=error.name,
        ) from error
    return sys.modules[package]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The nearest of the known names as a question; a full stop if none is near."""
    by_case = {other.casefold(): other for other in known}
    near = difflib.get_close_matches(name.casefold(), list(by_case), n=2, cutoff=0.6)
    if not near:
        return "."
    return f"; did you mean {' or '.join(repr(by_case[other]) for other in near)}?"


def no_column(where: object, name: str, columns: Sequence[str]) -> str:
    """A sentence that a table has no such column, with the nearest names."""
    return (
        f"{where} has no column {name!r}{did_you_mean(name, columns)} Its columns are "
        f"{listed(columns)}."
    )


def not_parquet(path: object, error: Exception) -> str:
    """A sentence that a file cannot be read as Parquet."""
    return (
        f"{path} cannot be read as Parquet: {error} Expected a whole Parquet file; if writing or "
        "copying it was interrupted, repeat that."
    )


def listed(names: Sequence[object]) -> str:
    """Names for a message, the first dozen of them."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(map(repr, names[:_LISTED])) + more
