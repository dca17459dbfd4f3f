"""Rows whose predictions are not numbers, as where a predictor is missing."""

from collections.abc import Mapping

import jax
import numpy as np
from jax.interpreters import partial_eval
from jaxtyping import Array

from jaxcoreset.data.dtypes import is_float
from jaxcoreset.data.rows import Rows
from jaxcoreset.diagnostics.simulation import Simulation
from jaxcoreset.likelihood.arguments import ModelError
from jaxcoreset.likelihood.checks import list_rows

# The most rows whose data are read, to say what is missing.
_MOST_READ = 1000


def refuse_missing(
    simulation: Simulation,
    rows: Rows,
    draws: Mapping[str, Array],
    refused: Mapping[str, np.ndarray],
    first: int,
) -> None:
    """Raise a ModelError that names the rows whose predictions are not numbers, if there are any.

    Args:
        simulation: what was drawn.
        rows: all rows.
        draws: constrained draws, with a leading axis.
        refused: for each site which of some rows have such predictions.
        first: the number of the first one of these rows.
    """
    for name, bad in refused.items():
        if not bad.any():
            continue
        at = first + np.flatnonzero(bad)
        later = " (and maybe in later rows)" if first + bad.size < rows.num_rows else ""
        raise ModelError(
            f"the prediction of site {name!r} is not a number in {list_rows(at)}{later}; expected "
            f"a number for every row and posterior draw. {_cause(simulation, rows, draws, at)}"
        )


def refuse_missing_responses(name: str, observed: np.ndarray, kept: np.ndarray) -> None:
    """Raise a ModelError if observations that a check compares are NaN.

    Args:
        name: the observed site.
        observed: its observations, of shape (n, …).
        kept: which rows are compared, of shape (n,).
    """
    bad = np.isnan(observed).reshape(len(observed), -1).any(axis=1) & kept
    if bad.any():
        raise ModelError(
            f"the responses of site {name!r} that were passed to predict are NaN in "
            f"{list_rows(np.flatnonzero(bad))}; a check compares all of them, and expects numbers: "
            "predict the rows that have a response, or mask the others in the model."
        )


def _cause(simulation: Simulation, rows: Rows, draws: Mapping[str, Array], at: np.ndarray) -> str:
    """What makes the predictions of these rows NaN, in sentences that say what to do."""
    data = tuple(np.asarray(leaf) for leaf in rows.take(at[:_MOST_READ]))
    pairs = zip(simulation.arguments.data_names, data, _used(simulation, draws, data), strict=True)
    causes = []
    for name, leaf, is_used in pairs:
        if is_used and is_float(leaf.dtype):
            bad = ~np.isfinite(leaf).reshape(len(leaf), -1).all(axis=1)
            causes += [f"{name} in {list_rows(at[:_MOST_READ][bad])}"] if bad.any() else []
    if causes:
        return f"The data are not finite, {' and '.join(causes)}: fill in or drop these rows."
    return (
        "The data of these rows are finite, so it is the model that has no distribution there, "
        "such as a Poisson distribution with a negative rate: drop these rows, or change the model."
    )


def _used(simulation: Simulation, draws: Mapping[str, Array], data: tuple) -> list[bool]:
    """Which arguments the predictions depend on; a response that is drawn anew is none of them."""
    one = {name: x[:1] for name, x in draws.items()}

    def refused(data: tuple) -> dict[str, Array]:
        return simulation.draw_checked(one, jax.random.key(0), data).refused

    traced = jax.make_jaxpr(refused)(data).jaxpr
    return list(partial_eval.dce_jaxpr(traced, [True] * len(traced.outvars))[1])
