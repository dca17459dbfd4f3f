"""Parts of messages: near names, lists of names, packages of an extra, and tables of text."""

import difflib
from collections.abc import Iterable, Sequence

_LISTED = 12


class DataError(ValueError):
    """The data cannot be used; the message says where, what was found, and what to do."""


def text_table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Names and texts in two columns under a title."""
    rows = list(rows)
    width = max(len(name) for name, _ in rows)
    return "\n".join([title, *(f"  {name:<{width}}  {text}" for name, text in rows)])


def require(package: str) -> None:
    """Check that a package of the extra ``tables`` is installed.

    Raises:
        ModuleNotFoundError: if it is not.
    """
    try:
        __import__(package)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{package} is missing; tables need it: pip install 'jaxcoreset[tables]'", name=package
        ) from error


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


def listed(names: Sequence[str]) -> str:
    """Names for a message, the first dozen of them."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(map(repr, names[:_LISTED])) + more
