"""Exact inference on all rows."""

from collections.abc import Mapping
from typing import Any

from benchmarks.posteriors.case import Case
from benchmarks.posteriors.methods import common
from benchmarks.posteriors.outcome import Outcome


def nuts(case: Case, args: tuple, kwargs: Mapping[str, Any], key: Any, num_draws: int) -> Outcome:
    """NumPyro's NUTS on all rows as a user starts it: one chain, 1,000 steps of warmup, defaults.

    It runs in float32 unless JAX's x64 is on. It has draws only, and its distance from the truth is
    that of its precision and its number of effective draws.
    """
    draws, info = common.nuts(case.model, args, kwargs, key, num_draws)
    return Outcome(common.numpy_draws(draws, draws), info=info)


def nuts_program(
    case: Case, args: tuple, kwargs: Mapping[str, Any], key: Any, num_draws: int
) -> Outcome:
    """As `nuts`, with the whole run compiled by ``jax.jit`` as one program."""
    draws, info = common.nuts(case.model, args, kwargs, key, num_draws, one_program=True)
    return Outcome(common.numpy_draws(draws, draws), info=info)
