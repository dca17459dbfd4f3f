"""Gaussians of the unconstrained parameters, alone and with importance weights."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxcoreset as jc
from benchmarks.posteriors.case import Case
from benchmarks.posteriors.methods import common
from benchmarks.posteriors.outcome import Missing, Outcome
from jaxcoreset.data.blocks import block_rows
from jaxcoreset.weighting import pathfinder

# Stan's defaults for Pathfinder (CmdStan User's Guide, "Pathfinder method"), of single paths.
_NUM_PATHS, _NUM_ELBO_DRAWS, _HISTORY = 4, 25, 5
# BlackJAX keeps all steps, so fewer are allowed than by Stan.
_MAX_ITERS = 100
# With float32 a path does not end for its noise, and BlackJAX stops it by this fall of the
# objective; its default of 1e-5 ends some paths half a standard deviation from the mode.
_LEAST_FALL = 1e-9


def laplace(
    case: Case, args: tuple, kwargs: Mapping[str, Any], key: Any, num_draws: int
) -> Outcome:
    """The Laplace approximation of all rows, by this library's `laplace_approximation`.

    The mode is found to a hundredth of a nat, in float64 where float32 does not find it; no
    settings.
    """
    fit_key, draws_key = jax.random.split(key)

    def finish(likelihood: jc.ModelLikelihood, found: jc.LaplaceApproximation) -> Outcome:
        scale, info = np.linalg.cholesky(found.covariance), {"passes": found.num_passes}
        return common.gaussian_outcome(
            case, likelihood, found.mode, scale, draws_key, num_draws, **info
        )

    return common.with_laplace(case, args, kwargs, fit_key, finish)


def laplace_psis(
    case: Case, args: tuple, kwargs: Mapping[str, Any], key: Any, num_draws: int
) -> Outcome:
    """As `laplace`, with as many proposals, resampled by Pareto-smoothed importance weights.

    Vehtari, Simpson, Gelman, Yao and Gabry, "Pareto smoothed importance sampling" (JMLR 2024). The
    log-density of all rows at the proposals is summed in float64.
    """
    fit_key, draws_key, resample_key = jax.random.split(key, 3)

    def finish(likelihood: jc.ModelLikelihood, found: jc.LaplaceApproximation) -> Outcome:
        normal = np.asarray(jax.random.normal(draws_key, (num_draws, found.mode.size)), np.float64)
        flat = found.mode + normal @ np.linalg.cholesky(found.covariance).T
        proposals = likelihood.unravel.all(jnp.asarray(flat, jnp.zeros(()).dtype))
        ratios = common.log_posterior(likelihood, proposals) + 0.5 * np.sum(normal**2, axis=1)
        info = {"passes": found.num_passes}
        return common.resampled(likelihood, proposals, ratios, resample_key, num_draws, **info)

    return common.with_laplace(case, args, kwargs, fit_key, finish)


def pathfinder_psis(
    case: Case, args: tuple, kwargs: Mapping[str, Any], key: Any, num_draws: int
) -> Outcome:
    """Pathfinder by BlackJAX: four paths, their draws resampled by Pareto-smoothed weights.

    Zhang, Carpenter, Gelman and Vehtari, "Pathfinder: Parallel quasi-Newton variational inference"
    (JMLR 2022), Algorithm 2, with Stan's default settings: 4 paths from points uniform in (-2, 2),
    history 5, 25 draws for each evidence bound; but up to 100 steps of L-BFGS instead of 1,000. A
    path gives `num_draws` proposals.
    """
    try:
        import blackjax.vi.pathfinder as algorithm
    except ImportError as error:
        raise Missing("BlackJAX is not installed") from error
    likelihood = common.likelihood_of(case, args, kwargs)
    rows, size = common.device_rows(likelihood), block_rows(_MAX_ITERS * _NUM_ELBO_DRAWS)
    program = likelihood.program

    @jax.jit
    def path(key: Any, rows: tuple) -> Any:
        start_key, path_key, draws_key = jax.random.split(key, 3)
        flat = jax.random.uniform(start_key, (likelihood.num_params,), minval=-2.0, maxval=2.0)
        state, _ = algorithm.approximate(
            path_key,
            lambda params: pathfinder.log_posterior(program, params, rows, size),
            likelihood.unravel(flat),
            _NUM_ELBO_DRAWS,
            maxiter=_MAX_ITERS,
            maxcor=_HISTORY,
            ftol=_LEAST_FALL,
        )
        return state.elbo, *algorithm.sample(draws_key, state, num_draws)

    *path_keys, resample_key = jax.random.split(key, _NUM_PATHS + 1)
    found = [path(path_key, rows) for path_key in path_keys]
    kept = [(draws, log_q) for elbo, draws, log_q in found if np.isfinite(elbo)]
    if not kept:
        raise Missing(f"Pathfinder: none of {_NUM_PATHS} paths has a finite evidence bound")
    proposals = jax.tree.map(lambda *parts: jnp.concatenate(parts), *[draws for draws, _ in kept])
    log_q = np.concatenate([np.asarray(values, np.float64) for _, values in kept])
    ratios = common.log_posterior(likelihood, proposals) - log_q
    return common.resampled(likelihood, proposals, ratios, resample_key, num_draws, paths=len(kept))
