"""Formulas such as ``late ~ distance + C(carrier)``, by the package formulaic, as tables."""

import importlib
from typing import Any

import numpy as np

from jaxcoreset.command.problems import check_each, without_missing
from jaxcoreset.command.tables import Table, TableError


def formula_table(
    table: Table, formula: str, *, drop_missing: bool = False
) -> tuple[Table, str, list[str], Table, list[str]]:
    """The columns that a formula makes of a table.

    Args:
        table: the table.
        formula: ``response ~ terms``; the response is a column.
        drop_missing: whether to leave out rows in which a column of the formula has no value.

    Returns:
        A table of the response and the explanatory columns, the name of the response, the names of
        the explanatory columns without the intercept, the rows of `table` that were kept, and notes
        on rows that were left out.

    Raises:
        TableError: if the formula cannot be read or evaluated, or columns are missing.
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
        raise TableError(f"--formula {formula!r} cannot be read: {message}") from error
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
    try:
        matrix = pd.DataFrame(sides[1].get_model_matrix(table.frame, context={}))
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
    return design, response, list(matrix.columns), table, notes
