"""Formulas such as ``late ~ distance + C(carrier)``, by the package formulaic, as tables.

A formula computes in float64, since squares and products wrap in the integers of a file, and lose
digits in its short floats. Categories are those of the file: 1, not 1.0.
"""

import functools
import importlib
import re
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxcoreset.command.problems import check_each, without_missing
from jaxcoreset.command.tables import MAX_LEVELS, Table, TableError
from jaxcoreset.data.messages import listed

if TYPE_CHECKING:
    import pandas as pd

_CATEGORIES = ("C", "hashed")  # the functions of formulaic that make categories of a column


def formula_table(
    table: Table, formula: str, *, drop_missing: bool = False
) -> tuple[Table, str, list[str], list[str], Table, list[str]]:
    """The columns that a formula makes of a table.

    Args:
        table: the table.
        formula: ``response ~ terms``; the response is a column.
        drop_missing: whether to leave out rows in which a column of the formula has no value.

    Returns:
        A table of the response and the explanatory columns, the name of the response, the names of
        the explanatory columns without the intercept, those of the columns of `table` that are
        used, the rows of `table` that were kept, and notes on rows that were left out.

    Raises:
        TableError: if the formula cannot be read or evaluated, or a term is not a number in some
            row, or columns are missing, or float64 cannot tell two numbers of a column that is no
            category.
        ModuleNotFoundError: if formulaic is not installed; the extra ``formula`` brings it.
    """
    try:
        formulaic: Any = importlib.import_module("formulaic")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "formulaic is missing; --formula needs it: pip install 'jaxcoreset[formula]'",
            name="formulaic",
        ) from error
    import pandas as pd

    try:
        parsed: Any = formulaic.Formula(formula)
        sides = parsed.lhs, parsed.rhs
    except AttributeError as error:
        raise TableError(
            f"--formula is {formula!r}; expected a response and its terms, such as "
            "'late ~ distance + C(carrier)'."
        ) from error
    except Exception as error:
        message = str(error).strip().partition("\n")[0]
        if "`.` operator" in message:
            message = "the term '.' is not known; name the columns."
        raise TableError(f"--formula {formula!r} cannot be read: {message}") from error
    if isinstance(sides[1], tuple):
        raise TableError(f"--formula {formula!r} has several parts; expected no '|'.")
    used = sorted(str(variable) for variable in parsed.required_variables)
    check_each(table.check, used)
    left = [str(term).strip("`") for term in sides[0]]
    if len(left) != 1 or left[0] not in table.columns:
        raise TableError(
            f"--formula {formula!r} explains {' + '.join(left)}; expected one column as it is. Add "
            "a column to the file for a transformed response."
        )
    response, notes = left[0], []
    if drop_missing:
        table, notes = without_missing(table, used)
    check_each(table.column, used)
    for name in _text_columns(table, sides[1], used):
        _check_levels(table.frame[name].unique(), name)
    numbers = _in_float64(table, used, _computed_with(formulaic, sides[1], used))
    context = {
        name: functools.partial(_of_file, getattr(formulaic.transforms, name), table, numbers)
        for name in _CATEGORIES
    }
    try:
        with np.errstate(all="ignore"):  # values that are no numbers are told below
            found = sides[1].get_model_matrix(numbers, context=context, na_action="ignore")
        matrix = pd.DataFrame(found)
    except Exception as error:  # a formula may compute anything
        message = str(error).strip().partition("\n")[0]
        raise TableError(f"--formula {formula!r} cannot be evaluated: {message}") from error
    if "Intercept" not in matrix.columns:
        raise TableError(
            f"--formula {formula!r} has no intercept, and the regressions always have one: leave "
            "out '0 +' and '- 1'."
        )
    matrix = matrix.drop(columns="Intercept")
    if response in matrix.columns:
        raise TableError(f"--formula {formula!r} explains {response!r} by itself.")
    for name in matrix.columns:  # columns of 0 and 1 stay as they are
        if np.isin(matrix[name].to_numpy(), (0.0, 1.0)).all():
            matrix[name] = matrix[name].astype(bool)
    made = matrix.assign(**{response: table.frame[response].to_numpy()})
    design = Table(table.path, made, table.separator, table.rows)
    expected = "Leave such rows out of the file, or use another term."

    def check_values(name: str) -> None:
        bad = ~np.isfinite(matrix[name].to_numpy(np.float64))
        design.refuse(name, bad, "the term is infinite or not a number", expected)

    check_each(check_values, matrix.columns)
    return design, response, list(matrix.columns), used, table, notes


def _computed_with(formulaic: Any, terms: Iterable[Any], used: Collection[str]) -> set[str]:
    """The columns of a formula that are more than categories, such as a in C(b) + C(a) + a**2."""
    found: set[str] = set()
    for factor in (factor for term in terms for factor in term.factors):
        if factor.expr in used:
            found.add(factor.expr)
        elif not re.fullmatch(rf"({'|'.join(_CATEGORIES)})\((`[^`]+`|\w+)(,.*)?\)", factor.expr):
            found |= {
                str(name) for name in formulaic.Formula(f"{{{factor.expr}}}").required_variables
            }
    return found


def _text_columns(table: Table, terms: Iterable[Any], used: Collection[str]) -> list[str]:
    """The columns of text that a formula names as they are, which makes them categories."""
    plain = {factor.expr.strip("`") for term in terms for factor in term.factors}
    return [name for name in used if name in plain and table.kind(name) == "text"]


def _check_levels(found: Any, name: str, levels: Collection[Any] | None = None) -> None:
    """Check that categories are few, and that `levels` has all of them if it is given."""
    if len(found) > MAX_LEVELS:
        raise TableError(
            f"{name!r} has {len(found):,} different values; expected at most {MAX_LEVELS} "
            "categories. Leave it out, or merge rare categories."
        )
    if levels is not None and (lacking := [value for value in found if value not in levels]):
        raise TableError(f"{name!r} has values that the levels lack: {listed(lacking)}.")


def _in_float64(
    table: Table, used: Collection[str], computed_with: Collection[str]
) -> "pd.DataFrame":
    """The columns of a formula, with their numbers in float64.

    Raises:
        TableError: if two different numbers of a column of `computed_with` are one in float64.
    """
    columns: dict[str, Any] = {}

    def read(name: str) -> None:
        values: Any = table.frame[name]
        if table.kind(name) == "whole number" and name in computed_with:
            table.in_float64(name, values.to_numpy(dtype=f"{values.dtype.kind}8"))
        is_number = table.kind(name) in ("whole number", "number") and values.dtype.kind != "c"
        columns[name] = values.astype(np.float64) if is_number else values

    check_each(read, used)
    return table.frame[list(used)].assign(**columns)


def _of_file(
    categories: Callable,
    table: Table,
    numbers: "pd.DataFrame",
    values: Any,
    *given: Any,
    **more: Any,
) -> Any:
    """Call `categories` with a column as it is in the file, not with its numbers in float64."""
    import pandas as pd

    name: Any = getattr(values, "name", None)
    if name in numbers.columns and values.dtype == np.float64:
        if values.equals(numbers[name]):
            values = table.frame[name]
        elif table.kind(name) == "whole number" and (values % 1 == 0).all():  # such as C(age // 10)
            values = values.astype(np.int64)
    if categories.__name__ == "C":
        _check_levels(pd.unique(pd.Series(values)), name or "a term", more.get("levels"))
    return categories(values, *given, **more)
