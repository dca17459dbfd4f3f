"""From a table to a model and its arguments, for the command ``jaxcoreset build``.

The model is either a named regression, whose numeric columns are standardised, or the user's own
NumPyro model, whose arguments are filled from the columns of the same names.
"""

import dataclasses
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jaxcoreset.command.formulas import formula_table
from jaxcoreset.command.problems import Problems, check_each, without_missing
from jaxcoreset.command.regressions import PRIOR_SCALE, REGRESSIONS, read_response
from jaxcoreset.command.tables import MAX_LEVELS, Table, TableError
from jaxcoreset.data.messages import did_you_mean, listed

_MATRIX_NAMES = ("x", "X")
_RESPONSE_NAME = "y"


@dataclass(frozen=True)
class Inputs:
    """A model and the arguments that it is called with.

    Attributes:
        model: the NumPyro model.
        title: the model's name in a sentence.
        arguments: its arguments by name.
        table: the rows of the table that they are made of.
        data_axes: the argument of `model_likelihood`.
        likelihood: the name of the regression, if it is a named one.
        response: the column of the response, if one was named.
        columns: the columns that the model uses, without the response.
        used: the columns of the file that the model uses, the response among them.
        levels: the names of the categories, in order, for each column of categories.
        kinds: the `Table.kind` of each column with levels, and of a response with classes.
        classes: the classes of a categorical response.
        scaling: the mean and standard deviation of each standardised column.
        coefficients: the names of the columns of the regression's matrix.
        notes: sentences on what else was done with the table.
        outcomes: the two values of a logistic response, that for 1 last, if they are not 0 and 1.
        formula: the formula that made the columns, if there was one.
    """

    model: Callable
    title: str
    arguments: dict[str, Any]
    table: Table
    data_axes: Any = None
    likelihood: str | None = None
    response: str | None = None
    columns: list[str] = field(default_factory=list)
    used: list[str] = field(default_factory=list)
    levels: dict[str, list[str]] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    classes: list[str] = field(default_factory=list)
    scaling: dict[str, tuple[float, float]] = field(default_factory=dict)
    coefficients: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    formula: str | None = None

    def parameter_name(self, name: str) -> str:
        """The readable name of an unconstrained parameter: ``age`` for ``beta[2]``."""
        site, _, index = name.rstrip("]").partition("[")
        if self.likelihood is None:
            return name
        if site not in ("beta", "intercept"):
            return f"log {name}"  # scales and shapes, which are positive
        places = [int(place) for place in index.split(",") if place]
        plain = self.coefficients[places.pop(0)] if site == "beta" else site
        return f"{plain} → {self.classes[places[0] + 1]}" if places else plain


def regression_inputs(
    table: Table,
    likelihood: str,
    response: str,
    columns: Sequence[str] | None = None,
    categorical: Sequence[str] = (),
    *,
    scale_columns: bool = True,
    prior_scale: float = PRIOR_SCALE,
    positive: str | None = None,
    drop_missing: bool = False,
) -> Inputs:
    """A named regression, with its matrix and response from a table.

    Args:
        table: the table.
        likelihood: a name in `REGRESSIONS`.
        response: the column to explain.
        columns: the explanatory columns; by default all other columns that have a name and more
            than one value.
        categorical: the explanatory columns that hold categories; each becomes a column of 0 and 1
            for every category but the first.
        scale_columns: whether to standardise the numeric columns, and the response of `normal` and
            `student_t`.
        prior_scale: the prior standard deviation of the coefficients.
        positive: the value of a logistic response that counts as 1.
        drop_missing: whether to leave out rows without a value in one of these columns.

    Raises:
        TableError: if a column is missing or does not fit; it names all such columns.
    """
    regression = REGRESSIONS[likelihood]
    problems, named = Problems(), columns is not None
    with problems.collected():
        table.check(response)
    has_response = not problems
    with problems.collected():
        columns = _columns(table, columns, [response], categorical)
        _refuse_idle_categories(columns, categorical, response)
    if problems and has_response:  # which may have a problem of its own
        with problems.collected():
            present = without_missing(table, [response])[0] if drop_missing else table
            read_response(likelihood, present, response, positive)
    problems.refuse()
    assert columns is not None
    table, notes = without_missing(table, [response, *columns]) if drop_missing else (table, [])
    y, more, classes, outcomes = np.zeros(0), {}, [], []
    with problems.collected():
        y, more, outcomes = read_response(likelihood, table, response, positive)
        classes = table.labels(response)[1] if likelihood == "categorical" else []
    parts, coefficients, scaling = [], [], {}
    levels: dict[str, list[str]] = {}
    for name in columns:
        with problems.collected():
            if name in categorical:
                codes, levels[name] = _categories(table, name)
                parts += [(codes == level).astype(float) for level in range(1, len(levels[name]))]
                coefficients += [f"{name} = {level}" for level in levels[name][1:]]
                continue
            values = table.numbers(
                name,
                f"If {name!r} is a category, use --categorical {name}; to leave it out, name the "
                "other columns with --columns.",
            )
            if values.min() == values.max() and (scale_columns or not named):
                if named:
                    raise TableError(
                        f"{table.path}, column {name!r} has the same value in every row, so it "
                        "explains nothing; expected at least two values. Leave it out."
                    )
                notes.append(f"Column {name!r} is left out: it has the same value in every row.")
                continue
            if scale_columns and table.kind(name) != "truth":
                column = values
                values, *scaling[name] = table.standardised(name, column)
                if _is_swallowed(column, values):
                    notes.append(
                        f"Column {name!r}: next to its largest value, {np.abs(column).max():g}, "
                        "most of its values are the same number. If that value is a mistake or a "
                        "code, fix it; otherwise use the logarithm of the column."
                    )
            table.check_held(name, values.astype(float))
            parts.append(values.astype(float))
            coefficients.append(name)
    problems.refuse()
    if not parts:
        raise TableError(f"{table.path} has no column left to explain {response!r} with.")
    if repeated := [name for name in coefficients if coefficients.count(name) > 1]:
        raise TableError(
            f"{table.path}: two columns of the regression would be called {repeated[0]!r}, one "
            "of them for a category; expected different names. Rename a column."
        )
    if scale_columns and regression.scales_response:
        if y.min() == y.max():
            raise TableError(f"{table.path}, column {response!r} has the same value in every row.")
        y, *scaling[response] = table.standardised(response, y)
    table.check_held(response, y)
    named_y = bool(classes or outcomes)
    columns = [name for name in columns if name in coefficients or name in levels]
    return Inputs(
        table=table,
        outcomes=outcomes,
        model=regression.model,
        title=regression.title,
        arguments={"x": np.stack(parts, axis=1), "y": y, **more, "prior_scale": prior_scale},
        data_axes={"x": 0, "y": 0},
        likelihood=likelihood,
        response=response,
        columns=columns,
        used=[response, *columns],
        levels=levels,
        kinds={name: table.kind(name) for name in (*levels, *([response] if named_y else []))},
        classes=classes,
        scaling={name: (mean, sd) for name, (mean, sd) in scaling.items()},
        coefficients=coefficients,
        notes=notes,
    )


def formula_inputs(
    table: Table, likelihood: str, formula: str, *, drop_missing: bool = False, **options: Any
) -> Inputs:
    """A named regression, with the matrix that a formula makes of a table.

    Columns of 0 and 1 stay as they are; other ones are standardised as in `regression_inputs`,
    which takes the same `options`.
    """
    made, response, columns, used, kept, notes = formula_table(
        table, formula, drop_missing=drop_missing
    )
    found = regression_inputs(made, likelihood, response, columns, **options)
    notes = [*notes, *found.notes]
    return dataclasses.replace(found, table=kept, used=used, formula=formula, notes=notes)


def model_inputs(
    table: Table,
    spec: str,
    response: str | None = None,
    columns: Sequence[str] | None = None,
    categorical: Sequence[str] = (),
    *,
    drop_missing: bool = False,
) -> Inputs:
    """A user's model, with its arguments from a table.

    An argument takes the column of its name, or the matrix of the columns ``name[0]``, ``name[1]``,
    ...; an argument ``y`` takes the response, and an argument ``x`` or ``X`` the matrix of
    `columns`. Any other argument must have a default. A column of true and false is boolean, and
    1 and 0 within a matrix.

    Args:
        table: the table.
        spec: ``module:function``, or ``file.py:function``.
        response: the column for an argument called ``y``.
        columns: the columns for an argument called ``x`` or ``X``; by default all those that no
            other argument takes.
        categorical: columns of categories; the model takes integers from 0, in the order of the
            sorted categories.
        drop_missing: whether to leave out rows without a value in a column that the model takes.

    Raises:
        TableError: if there is no such model, or the table lacks one of its arguments.
    """
    model = import_model(spec)
    sources = _sources(
        table, spec, inspect.signature(model).parameters, response, columns, categorical
    )
    used = dict.fromkeys(name for source in sources.values() for name in _as_list(source))
    table, notes = without_missing(table, sorted(used)) if drop_missing else (table, [])
    levels: dict[str, list[str]] = {}
    values: dict[str, np.ndarray] = {}

    def read(name: str) -> None:
        if name in categorical:
            values[name], levels[name] = table.labels(name)
            return
        hint = (
            f"If {name!r} is a category, use --categorical {name}; to leave it out of a matrix, "
            "name the other columns with --columns."
        )
        values[name] = table.numbers(name, hint)
        table.check_held(name, values[name])

    check_each(read, used)
    arguments = {
        name: _own_column(table, source, values[source], source in categorical)
        if isinstance(source, str)
        else np.stack([values[column] for column in source], axis=1)
        for name, source in sources.items()
    }
    return Inputs(
        table=table,
        notes=notes,
        model=model,
        title=f"the model {spec}",
        arguments=arguments,
        response=response,
        columns=[name for name in table.columns if name in used and name != response],
        used=list(used),
        levels=levels,
    )


def _own_column(table: Table, name: str, values: np.ndarray, is_category: bool) -> np.ndarray:
    """A column that is an argument of its own: boolean if it holds true and false."""
    # A model may write ~flag, which is -1 or -2 for integers, and so always true.
    return values.astype(bool) if table.kind(name) == "truth" and not is_category else values


def _sources(
    table: Table,
    spec: str,
    parameters: Mapping[str, inspect.Parameter],
    response: str | None,
    columns: Sequence[str] | None,
    categorical: Sequence[str],
) -> dict[str, str | list[str]]:
    """For each argument of a model its column, or the columns of its matrix."""
    for name in (*categorical, *([response] if response is not None else [])):
        table.check(name)
    sources: dict[str, str | list[str]] = {}
    for name in parameters:
        if name in table.columns:
            sources[name] = name
        elif matrix := table.matrix_columns(name):
            sources[name] = matrix
        elif name == _RESPONSE_NAME and response is not None:
            sources[name] = response
    taken = {name for names in sources.values() for name in _as_list(names)}
    rest = _columns(table, columns, [*taken, *([response] if response else [])], categorical)
    for name, parameter in parameters.items():
        if name in sources or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name in _MATRIX_NAMES:
            sources[name] = [column for column in rest if column not in categorical]
            if not sources[name]:
                raise TableError(f"{table.path} has no column left for the matrix {name!r}.")
        elif parameter.default is parameter.empty:
            response_hint = " or name it with --response" if name == _RESPONSE_NAME else ""
            raise TableError(
                f"{spec} has an argument {name!r}, but {table.path} has no column of that name"
                f"{did_you_mean(name, table.columns)} Expected: a column {name!r}{response_hint}, "
                f"columns {name}[0], {name}[1], ... for a matrix, or a default in the model. The "
                f"columns are {listed(table.columns)}."
            )
    if not sources:
        raise TableError(
            f"no argument of {spec} is a column of {table.path}: its arguments are "
            f"{listed(list(parameters)) or 'none'}, and the columns are {listed(table.columns)}."
        )
    used = {name for source in sources.values() for name in _as_list(source)}
    for option, names in (
        ("--response", [response] if response else []),
        ("--columns", columns or []),
        ("--categorical", categorical),
    ):
        if idle := [name for name in names if name not in used]:
            raise TableError(
                f"{option} names {idle[0]!r}, which no argument of {spec} takes: its arguments are "
                f"{listed(list(parameters))}. An argument takes the column of its name, y takes "
                "the response, and x or X takes the matrix of numeric columns."
            )
    return sources


def import_model(spec: str) -> Callable:
    """The function that ``module:function`` or ``file.py:function`` names.

    The current directory is searched first, as by ``python -m``.

    Raises:
        TableError: if it cannot be imported.
    """
    module_name, _, name = spec.rpartition(":")
    if not module_name or not name:
        raise TableError(
            f"--model is {spec!r}; expected module:function, such as models:late_arrival for the "
            "function late_arrival in models.py."
        )
    folder = Path.cwd()
    if module_name.endswith(".py"):
        path = Path(module_name)
        if not path.is_file():
            raise TableError(f"--model is {spec!r}, but there is no file {path}.")
        folder, module_name = path.resolve().parent, path.stem
    sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the user's file may raise anything
        trouble = f"{module_name} cannot be imported: {type(error).__name__}: {error}."
        if isinstance(error, ModuleNotFoundError):
            trouble = f"{module_name} cannot be imported: {error}."
            if module_name.split(".")[0] == error.name:
                where = f"in {folder} or among the installed packages."
                trouble = f"there is no module {error.name!r} {where}"
        raise TableError(f"--model is {spec!r}, but {trouble}") from error
    finally:
        sys.path.remove(str(folder))
    model = getattr(module, name, None)
    if not callable(model):
        functions = [other for other, value in vars(module).items() if inspect.isfunction(value)]
        raise TableError(
            f"--model is {spec!r}, but {module_name} has no function {name!r}"
            f"{did_you_mean(name, functions)}"
        )
    return model


def _columns(
    table: Table, columns: Sequence[str] | None, taken: Sequence[str], categorical: Sequence[str]
) -> list[str]:
    """The named columns, or all columns that have a name and are not taken."""
    check_each(table.check, (*(columns or ()), *categorical))
    if columns is None:
        columns = [
            name for name in table.columns if name not in taken and not name.startswith("Unnamed:")
        ]
    repeated = [name for name in columns if list(columns).count(name) > 1]
    if repeated:
        raise TableError(
            f"--columns names {repeated[0]!r} more than once; expected each column once."
        )
    both = [name for name in columns if name in taken]
    if both:
        raise TableError(
            f"--columns names {both[0]!r}, which the model already takes, as the response or by "
            "its own name; expected other columns."
        )
    return list(columns)


def _refuse_idle_categories(
    columns: Sequence[str], categorical: Sequence[str], response: str
) -> None:
    idle = [name for name in categorical if name not in columns]
    if response in idle:
        raise TableError(
            f"--categorical names {response!r}, which is the response; expected explanatory "
            "columns. For a response of categories use --likelihood categorical, or logistic for 0 "
            "and 1."
        )
    if idle:
        raise TableError(
            f"--categorical names {idle[0]!r}, which is not an explanatory column of {response!r}: "
            f"these are {listed(columns)}. Name it in --columns too, or leave it out."
        )


def _categories(table: Table, name: str) -> tuple[np.ndarray, list[str]]:
    codes, levels = table.labels(name)
    if not 2 <= len(levels) <= MAX_LEVELS:
        raise TableError(
            f"{table.path}, column {name!r} has {len(levels):,} different values; expected "
            f"from 2 to {MAX_LEVELS} categories. Leave it out, or merge rare categories."
        )
    return codes, levels


def _is_swallowed(column: np.ndarray, scaled: np.ndarray) -> bool:
    """Return whether more than half of the distinct values are equal in float32 once scaled."""
    return 2 * np.unique(scaled.astype(np.float32)).size < np.unique(column).size


def _as_list(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names
