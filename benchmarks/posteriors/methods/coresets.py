"""Coreset methods from after 2021, as the library has them, and NUTS on what they keep."""

from collections.abc import Mapping
from typing import Any

import jax

import jaxcoreset as jc
from benchmarks.posteriors.case import Case
from benchmarks.posteriors.methods.common import likelihood_of
from benchmarks.posteriors.methods.subsampling import weighted_nuts
from benchmarks.posteriors.outcome import Missing, Outcome

_ROWS = 1000


def quasi_newton(
    case: Case, args: tuple, kwargs: Mapping[str, Any], key: Any, num_draws: int
) -> Outcome:
    """Quasi-Newton coresets: weights of 1,000 uniform rows by a few second-order steps.

    Naik, Rousseau and Campbell, "Fast Bayesian coresets via subsampling and quasi-Newton
    refinement" (NeurIPS 2022), by `jaxcoreset.QuasiNewton` with its default settings.
    """
    return _of_builder("QuasiNewton", case, args, kwargs, key, num_draws)


def coreset_mcmc(
    case: Case, args: tuple, kwargs: Mapping[str, Any], key: Any, num_draws: int
) -> Outcome:
    """Coreset MCMC: weights of 1,000 uniform rows by stochastic gradients along Markov chains.

    Chen and Campbell, "Coreset Markov chain Monte Carlo" (AISTATS 2024), by
    `jaxcoreset.CoresetMCMC` with its default settings.
    """
    return _of_builder("CoresetMCMC", case, args, kwargs, key, num_draws)


def _of_builder(
    name: str, case: Case, args: tuple, kwargs: Mapping[str, Any], key: Any, num_draws: int
) -> Outcome:
    builder = getattr(jc, name, None)
    if builder is None:
        raise Missing(f"this version of the library has no {name}")
    likelihood = likelihood_of(case, args, kwargs)
    build_key, key = jax.random.split(key)
    size = min(_ROWS, likelihood.num_data // 2)
    coreset = builder(case.model, size, weighting=None, progress_bar=False).run(
        build_key, *args, **kwargs
    )
    return weighted_nuts(case, likelihood, coreset.indices, coreset.weights, key, num_draws)
