"""Programs that use a coreset outside jaxcoreset: with brms, Stan, PyMC or NumPyro.

Every program multiplies the log-likelihood of row i by its weight, and scales the columns by the
means and standard deviations of *all* rows, as the build did: those of the coreset's rows differ.
The programs are written by the templates in ``templates``.
"""

import dataclasses
import re
from pathlib import Path

from jaxcoreset.command.inputs import Inputs
from jaxcoreset.command.render import render
from jaxcoreset.command.tables import MIDNIGHT
from jaxcoreset.coreset.frame import as_text_cell

_R_WORDS = {"if", "else", "repeat", "while", "function", "for", "next", "break", "in"}
_R_WORDS |= {"TRUE", "FALSE", "NULL", "Inf", "NaN", "NA", "NA_integer_", "NA_real_"}
_R_WORDS |= {"NA_character_", "NA_complex_"}
_TEMPLATES = {
    "R, with brms": "brms.R.j2",
    "Stan": "model.stan.j2",
    "Python, to run the Stan program": "cmdstanpy.py.j2",
    "Python, with PyMC": "pymc.py.j2",
    "Python, with NumPyro": "numpyro.py.j2",
}
# The positive parameters of a regression, whose logarithms come after the coefficients and the
# intercept in the flat unconstrained parameters of a proxy.
_UNCONSTRAINED = {
    "logistic": [],
    "poisson": [],
    "normal": ["sigma"],
    "student_t": ["nu", "sigma"],
    "negative_binomial": ["phi"],
    "categorical": [],
}


def programs(
    inputs: Inputs,
    path: Path,
    weight: str = "weight",
    *,
    is_escaped: bool = False,
    proxy: Path | None = None,
) -> dict[str, str]:
    """Complete programs for a regression by name, by the tool's name.

    Args:
        inputs: the result of `regression_inputs`.
        path: the coreset's file; ``.csv`` or ``.parquet``, with the table's own columns.
        weight: the name of the column of weights.
        is_escaped: whether the file has apostrophes before formulas, see `Coreset.to_csv`.
        proxy: the JSON file of the coreset's proxy, if it has one. There is no program for brms
            then.
    """
    if is_escaped:
        inputs, weight = _escaped(inputs), as_text_cell(weight)
    response = str(inputs.response)
    prior_scale = float(inputs.arguments["prior_scale"])
    named = inputs.classes or inputs.outcomes
    values = {
        "file": path.name,
        "proxy": None if proxy is None else proxy.name,
        "unconstrained": _UNCONSTRAINED[str(inputs.likelihood)],
        "is_parquet": path.suffix == ".parquet",
        "weight": weight,
        "likelihood": inputs.likelihood,
        "response": response,
        "classes": inputs.classes,
        "outcomes": inputs.outcomes,
        "columns": inputs.columns,
        "numbers": [name for name in inputs.columns if name not in inputs.levels],
        "levels": inputs.levels,
        # columns of categories, a response of named values last
        "factors": inputs.levels | ({response: named} if named else {}),
        "kinds": inputs.kinds,
        "scaling": inputs.scaling,
        "coefficients": inputs.coefficients,
        "prior_scale": prior_scale,
        "scale": f"{prior_scale:g}",
        "wide": f"{4 * prior_scale:g}",
        "midnight": MIDNIGHT,
        "r_name": _r_name,
        # brms calls the predictor of a class by its name without punctuation
        "dpars": ["mu" + re.sub("[^A-Za-z0-9]", "", name) for name in inputs.classes[1:]],
    }
    tools = {tool: name for tool, name in _TEMPLATES.items() if proxy is None or "brms" not in tool}
    return {tool: render(template, **values) for tool, template in tools.items()}


def loading_program(path: Path, trust: bool) -> dict[str, str]:
    """A program that loads a coreset saved as NPZ and runs NUTS on it, by the tool's name.

    Args:
        path: the coreset's file.
        trust: whether its model is the user's own, which is only imported from a file to be
            trusted.
    """
    return {"Python, with NumPyro": render("load.py.j2", file=path.name, trust=trust)}


def _escaped(inputs: Inputs) -> Inputs:
    """The inputs with names and categories as they stand in a file with escaped formulas."""
    cell, coefficients = as_text_cell, {name: as_text_cell(name) for name in inputs.columns}
    for name, levels in inputs.levels.items():
        coefficients |= {f"{name} = {one}": f"{cell(name)} = {cell(one)}" for one in levels[1:]}
    return dataclasses.replace(
        inputs,
        response=cell(inputs.response),
        columns=[cell(name) for name in inputs.columns],
        levels={
            cell(name): [cell(one) for one in levels] for name, levels in inputs.levels.items()
        },
        kinds={cell(name): kind for name, kind in inputs.kinds.items()},
        classes=[cell(name) for name in inputs.classes],
        outcomes=[cell(name) for name in inputs.outcomes],
        scaling={cell(name): pair for name, pair in inputs.scaling.items()},
        coefficients=[coefficients[name] for name in inputs.coefficients],
    )


def _r_name(name: str) -> str:
    """A column's name in R: in backticks unless it is a plain one and no word of the language."""
    if re.fullmatch(r"([A-Za-z]|[.](?![0-9]))[A-Za-z0-9._]*", name) and name not in _R_WORDS:
        return name
    escaped = name.replace("\\", "\\\\").replace("`", "\\`")
    return f"`{escaped}`"
