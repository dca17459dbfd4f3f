"""What people would pick instead: ``method(case, args, kwargs, key, num_draws) -> Outcome`` each.

A method gets the case's own model and all its rows, as a user would pass them, and returns draws of
every latent site. Which settings it uses, and where they come from, stands in its docstring. A
method that cannot run a case, or needs a program that is not there, raises `Missing`.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.posteriors.case import Case
from benchmarks.posteriors.outcome import Missing as Missing
from benchmarks.posteriors.outcome import Outcome

Method = Callable[[Case, tuple, Mapping[str, Any], Any, int], Outcome]

_MODULES = {
    "gaussians": {
        "laplace": "Laplace",
        "laplace_psis": "Laplace with PSIS",
        "pathfinder_psis": "Pathfinder with PSIS",
    },
    "full_data": {
        "nuts": "NUTS on all rows",
        "nuts_program": "NUTS on all rows, one program",
    },
    "energy_conserving": {
        "hmcecs": "HMCECS, as its example",
        "hmcecs_tuned": "HMCECS, tuned",
    },
    "variational": {
        "mean_field": "SVI, mean field",
        "full_rank": "SVI, full rank",
        "dais_uniform": "surrogate DAIS, uniform rows",
        "dais_coreset": "surrogate DAIS, coreset",
    },
    "subsampling": {
        "uniform": "1,000 uniform rows",
        "uniform_same": "uniform rows, as many as ours",
        "importance": "1,000 rows by importance",
        "importance_same": "rows by importance, as many as ours",
    },
    "coresets": {
        "quasi_newton": "quasi-Newton coreset",
        "coreset_mcmc": "coreset MCMC",
    },
    "stan": {
        "stan_glm": "Stan's GLM",
        "brms": "brms",
    },
    "with_pymc": {
        "nutpie": "nutpie with PyMC",
    },
}


def _later(module: str, function: str) -> Method:
    """A method whose module is imported when it is called."""

    def method(
        case: Case, args: tuple, kwargs: Mapping[str, Any], key: Any, num_draws: int
    ) -> Outcome:
        found = importlib.import_module(f"{__name__}.{module}")
        return getattr(found, function)(case, args, kwargs, key, num_draws)

    method.__name__ = function
    return method


# By the name that tables use; and by the short name for files and the command line.
TITLES = {name: title for names in _MODULES.values() for name, title in names.items()}
METHODS: dict[str, Method] = {
    name: _later(module, name) for module, names in _MODULES.items() for name in names
}
