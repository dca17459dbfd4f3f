"""Errors with the expansion at the mode, and with the nearest quadratic in its place."""

from typing import Any

import numpy as np

from benchmarks.proxy.data import Case
from benchmarks.proxy.sweep import Sweep
from jaxcoreset.likelihood.quadratic import num_features
from jaxcoreset.selection.solving import select_none

_BOTH = "proxy and rows"


def regression(
    case: Case, ks: list[int], num_judging: int, num_draws: int | None
) -> list[dict[str, Any]]:
    """Errors by the number of rows; a regression that does not pay is not made.

    Args:
        case: a model and its data.
        ks: sizes; 0 is no rows.
        num_judging: the number of draws on which errors are measured.
        num_draws: the number of the solver's draws; as the builder takes if None.
    """
    one = Sweep(case, max(ks), num_judging, num_draws=num_draws)
    curves = []
    for regressed in (False, True):
        if regressed:
            one.pool.regress()
        alone = select_none(one.pool, one.construction.clock)
        none = one.errors(alone.path, "proxy")["kl"]
        curves.append(np.concatenate([none, one.errors(one.path(_BOTH), _BOTH)["kl"]]))
    rows = [
        {
            "data": case.name,
            "D": one.num_params,
            "features": num_features(one.num_params),
            "draws": one.pool.count("solver"),
            "k": k,
            "expansion": float(curves[0][k]),
            "regression": float(curves[1][k]),
            "expansion / regression": float(curves[0][k] / curves[1][k]),
            "seconds": one.seconds[_BOTH],
        }
        for k in ks
    ]
    for row in rows:
        print("  ", row, flush=True)
    return rows
