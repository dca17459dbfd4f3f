"""Report all problems of a table and of the options at once, and drop rows with missing values."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from jaxcoreset.command.tables import Table, TableError
from jaxcoreset.data.messages import listed


class Problems(list[str]):
    """Messages of errors that do not depend on one another."""

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Keep the message of a TableError that a block raises, and go on after the block."""
        try:
            yield
        except TableError as error:
            self.append(str(error))

    def refuse(self) -> None:
        """Raise a TableError with all messages, if there are any."""
        if len(self) == 1:
            raise TableError(self[0])
        if self:
            numbered = "\n".join(f"  {i}. {text}" for i, text in enumerate(self, 1))
            raise TableError(f"{len(self)} problems were found:\n{numbered}")


def check_each(check: Callable[[str], Any], names: Iterable[str]) -> None:
    """Call `check` with each of these names, and raise a TableError with all that it raised."""
    problems = Problems()
    for name in names:
        with problems.collected():
            check(name)
    problems.refuse()


def without_missing(table: Table, names: Sequence[str]) -> tuple[Table, list[str]]:
    """The rows that have a value in all of these columns, and a note on the other rows.

    Raises:
        TableError: if there are no such rows.
    """
    missing: Any = table.frame[[name for name in names if name in table.columns]].isna()
    dropped = missing.any(axis=1).to_numpy()
    if not dropped.any():
        return table, []
    if dropped.all():
        raise TableError(f"{table.path} has no row with a value in each of {listed(names)}.")
    names = [str(name) for name in missing.columns[missing.any()]]
    note = (
        f"Left out {dropped.sum():,} of {len(table):,} rows, with missing values in "
        f"{listed(names)}."
    )
    if written := {table.written_as(name, missing[name].to_numpy()) for name in names} - {""}:
        note += f" Cells with {', '.join(sorted(written))} count as missing."
    return table.with_rows(np.flatnonzero(~dropped)), [note]
