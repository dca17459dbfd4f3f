"""Programs that use a coreset outside jaxcoreset: with brms, Stan, PyMC or NumPyro.

Every program multiplies the log-likelihood of row i by its weight, and scales the columns by the
means and standard deviations of *all* rows, as the build did: those of the coreset's rows differ.
The programs are written by the templates in ``templates``.
"""

import re
from pathlib import Path

from jaxcoreset.command.inputs import Inputs
from jaxcoreset.command.render import render
from jaxcoreset.command.tables import MIDNIGHT

_TEMPLATES = {
    "R, with brms": "brms.R.j2",
    "Stan": "model.stan.j2",
    "Python, to run the Stan program": "cmdstanpy.py.j2",
    "Python, with PyMC": "pymc.py.j2",
    "Python, with NumPyro": "numpyro.py.j2",
}


def programs(inputs: Inputs, path: Path, weight: str = "weight") -> dict[str, str]:
    """Complete programs for a regression by name, by the tool's name.

    Args:
        inputs: the result of `regression_inputs`.
        path: the coreset's file; ``.csv`` or ``.parquet``, with the table's own columns.
        weight: the name of the column of weights.
    """
    response = str(inputs.response)
    prior_scale = float(inputs.arguments["prior_scale"])
    values = {
        "file": path.name,
        "is_parquet": path.suffix == ".parquet",
        "weight": weight,
        "likelihood": inputs.likelihood,
        "response": response,
        "classes": inputs.classes,
        "columns": inputs.columns,
        "numbers": [name for name in inputs.columns if name not in inputs.levels],
        "levels": inputs.levels,
        # columns of categories, a categorical response last
        "factors": inputs.levels | ({response: inputs.classes} if inputs.classes else {}),
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
    return {tool: render(template, **values) for tool, template in _TEMPLATES.items()}


def loading_program(path: Path) -> dict[str, str]:
    """A program that loads a coreset saved as NPZ and runs NUTS on it, by the tool's name."""
    return {"Python, with NumPyro": render("load.py.j2", file=path.name)}


def _r_name(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z.][A-Za-z0-9._]*", name) else f"`{name}`"
