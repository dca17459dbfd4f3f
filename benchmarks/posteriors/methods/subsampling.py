"""NUTS on rows that are drawn at random, with weights that make up for all rows."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxcoreset as jc
from benchmarks.posteriors import results
from benchmarks.posteriors.case import Case
from benchmarks.posteriors.methods import common
from benchmarks.posteriors.outcome import Missing, Outcome

_ROWS = 1000
# Draws of the Laplace approximation at which a row's importance is measured.
_NUM_DRAWS = 100


def weighted_nuts(
    case: Case,
    likelihood: jc.ModelLikelihood,
    indices: np.ndarray,
    weights: np.ndarray,
    key: Any,
    num_draws: int,
) -> Outcome:
    """NUTS with default settings on weighted rows, and the log-density that it samples.

    With groups the density is one of their effects too, and is left out.
    """
    rows = likelihood.take(indices)
    args, kwargs = likelihood.assemble(rows)
    model = jc.weighted_model(likelihood, weights)
    draws, info = common.nuts(model, args, kwargs, key, num_draws)

    def log_density(params: Mapping[str, Any]) -> Any:
        values = likelihood.log_likelihood(params, rows)
        return jnp.dot(weights, values, precision="highest") + likelihood.log_prior(params)

    return Outcome(
        common.numpy_draws(draws, likelihood.init_params),
        None if case.groups else log_density,
        info={"rows": len(indices)} | info,
    )


def uniform(
    case: Case, args: tuple, kwargs: Mapping[str, Any], key: Any, num_draws: int
) -> Outcome:
    """1,000 rows that are drawn uniformly without replacement, each with the weight n/1,000."""
    return _uniform(case, args, kwargs, key, num_draws, _ROWS)


def uniform_same(
    case: Case, args: tuple, kwargs: Mapping[str, Any], key: Any, num_draws: int
) -> Outcome:
    """As `uniform`, with as many rows as the library's default kept."""
    return _uniform(case, args, kwargs, key, num_draws, rows_of_ours(case))


def importance(
    case: Case, args: tuple, kwargs: Mapping[str, Any], key: Any, num_draws: int
) -> Outcome:
    """1,000 rows that are drawn with replacement in proportion to their sensitivity.

    `jaxcoreset.ImportanceSampling` (Campbell and Broderick, JMLR 2019, section 4.1): a row's
    sensitivity is the standard deviation of its log-likelihood over 100 draws of the Laplace
    approximation of all rows, and its weight is the inverse of its probability.
    """
    return _importance(case, args, kwargs, key, num_draws, _ROWS)


def importance_same(
    case: Case, args: tuple, kwargs: Mapping[str, Any], key: Any, num_draws: int
) -> Outcome:
    """As `importance`, with as many draws of rows as the library's default kept."""
    return _importance(case, args, kwargs, key, num_draws, rows_of_ours(case))


def rows_of_ours(case: Case) -> int:
    """The number of rows that the library's default kept, by the results so far."""
    if case.groups is not None:
        raise Missing("the library's default keeps groups, not rows")
    info = (results.cell(case.name, "ours") or {}).get("info", {})
    if not info.get("rows"):
        raise Missing("there is no result yet in which the library's default keeps rows")
    return int(info["rows"])


def _uniform(
    case: Case, args: tuple, kwargs: Mapping[str, Any], key: Any, num_draws: int, size: int
) -> Outcome:
    likelihood = common.likelihood_of(case, args, kwargs)
    rows_key, key = jax.random.split(key)
    n = likelihood.num_data
    size = min(size, n)
    indices = np.sort(np.asarray(jax.random.choice(rows_key, n, (size,), replace=False)))
    weights = np.full(size, n / size, np.float32)
    return weighted_nuts(case, likelihood, indices, weights, key, num_draws)


def _importance(
    case: Case, args: tuple, kwargs: Mapping[str, Any], key: Any, num_draws: int, size: int
) -> Outcome:
    fit_key, draws_key, rows_key, key = jax.random.split(key, 4)

    def finish(likelihood: jc.ModelLikelihood, laplace: jc.LaplaceApproximation) -> Outcome:
        draws = laplace.draws(draws_key, _NUM_DRAWS)
        problem = jc.embed(likelihood.log_likelihood, draws, likelihood.data)
        count = min(size, likelihood.num_data)
        found = jc.solve(problem, count, jc.ImportanceSampling(), rows_key)
        weights = np.asarray(found.weights)
        indices, weights = np.asarray(found.indices)[weights > 0], weights[weights > 0]
        return weighted_nuts(case, likelihood, indices, weights, key, num_draws)

    return common.with_laplace(case, args, kwargs, fit_key, finish)
