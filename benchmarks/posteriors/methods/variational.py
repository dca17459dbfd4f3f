"""Stochastic variational inference with NumPyro's guides and parts of the rows.

All methods here have the same optimiser: Adam from 0.01 down to 0 along a cosine, with 20,000
steps, each on 1,000 rows that are drawn with replacement. NumPyro's examples of SVI have between
2,000 and 80,000 steps of a constant length from 0.0005 to 0.01; one that falls to 0 lets the noise
of the parts die out.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import (
    AutoMultivariateNormal,
    AutoNormal,
    AutoSurrogateLikelihoodDAIS,
)

import jaxcoreset as jc
from benchmarks.posteriors.case import Case
from benchmarks.posteriors.methods import common
from benchmarks.posteriors.outcome import Missing, Outcome

_ROWS, _STEPS, _STEP = 1000, 20_000, 0.01
# Rows of the surrogate; steps of Hamiltonian dynamics, their length and the base's scale at first.
# With NumPyro's defaults for the last two, 0.01 and 0.1, a normal posterior of 4,000 rows ends with
# standard deviations that are 1.1 to 2 times too large.
_SURROGATE_ROWS, _DAIS_STEPS, _DAIS_STEP, _DAIS_SCALE = 200, 8, 0.001, 0.01


def _fit(
    likelihood: jc.ModelLikelihood, guide_of: Callable[[Callable], Any], key: Any
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The guide, its parameters, and what is to be known of the fit."""
    size = min(_ROWS, likelihood.num_data)
    model = common.subsampled_model(likelihood, size)
    guide = guide_of(model)
    optimizer = optax.adam(optax.cosine_decay_schedule(_STEP, _STEPS))
    svi = SVI(model, guide, optimizer, Trace_ELBO())
    rows = common.device_rows(likelihood)
    found = svi.run(key, _STEPS, rows, progress_bar=False)
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found.params)):
        raise Missing("SVI diverged: its parameters are not finite")
    losses = np.asarray(found.losses, np.float64)[-1000:]
    info = {"steps": _STEPS, "rows of a part": size, "loss": float(losses.mean())}
    return guide, found.params, info


def mean_field(
    case: Case, args: tuple, kwargs: Mapping[str, Any], key: Any, num_draws: int
) -> Outcome:
    """`AutoNormal`, an independent normal for each unconstrained parameter; see the module."""
    likelihood = common.likelihood_of(case, args, kwargs)
    fit_key, draws_key = jax.random.split(key)
    _, found, info = _fit(likelihood, AutoNormal, fit_key)
    mean, sd = (
        np.concatenate(
            [np.ravel(found[f"{x}_auto_{part}"]) for x in sorted(likelihood.init_params)]
        )
        for part in ("loc", "scale")
    )
    return common.gaussian_outcome(case, likelihood, mean, sd, draws_key, num_draws, **info)


def full_rank(
    case: Case, args: tuple, kwargs: Mapping[str, Any], key: Any, num_draws: int
) -> Outcome:
    """`AutoMultivariateNormal`, one normal of all unconstrained parameters; see the module."""
    likelihood = common.likelihood_of(case, args, kwargs)
    common.refuse_many_parameters(likelihood)
    fit_key, draws_key = jax.random.split(key)
    guide, found, info = _fit(likelihood, AutoMultivariateNormal, fit_key)
    # The guide has the sites in the model's order, and the likelihood in that of their names.
    places = guide._unpack_latent(np.arange(likelihood.num_params))
    order = np.concatenate([np.ravel(places[name]) for name in sorted(places)])
    mean, scale = found["auto_loc"][order], found["auto_scale_tril"][order]
    return common.gaussian_outcome(case, likelihood, mean, scale, draws_key, num_draws, **info)


def _dais(
    likelihood: jc.ModelLikelihood, surrogate: Callable, key: Any, num_draws: int, **info: Any
) -> Outcome:
    fit_key, draws_key = jax.random.split(key)

    def guide_of(model: Callable) -> Any:
        return AutoSurrogateLikelihoodDAIS(
            model,
            surrogate,
            K=_DAIS_STEPS,
            base_dist="cholesky",
            eta_init=_DAIS_STEP,
            init_scale=_DAIS_SCALE,
        )

    guide, found, of_fit = _fit(likelihood, guide_of, fit_key)
    rows = common.device_rows(likelihood)
    draws = guide.sample_posterior(draws_key, found, rows, sample_shape=(num_draws,))
    return Outcome(common.numpy_draws(draws, likelihood.init_params), info=of_fit | info)


def dais_uniform(
    case: Case, args: tuple, kwargs: Mapping[str, Any], key: Any, num_draws: int
) -> Outcome:
    """`AutoSurrogateLikelihoodDAIS` with a uniform subset of 200 rows, whose weights are learned.

    Jankowiak and Phan, "Surrogate likelihoods for variational annealed importance sampling" (ICML
    2022), section 3, as in the example of the class's documentation; K = 8 steps and a base
    distribution with a full covariance.
    """
    likelihood = common.likelihood_of(case, args, kwargs)
    common.refuse_many_parameters(likelihood)
    rows_key, key = jax.random.split(key)
    n = likelihood.num_data
    size = min(_SURROGATE_ROWS, n)
    chosen = np.sort(np.asarray(jax.random.choice(rows_key, n, (size,), replace=False)))
    part = likelihood.assemble(likelihood.take(chosen))

    def surrogate() -> None:
        weights: Any = numpyro.param(
            "omegas", jnp.full(size, n / size), constraint=dist.constraints.positive
        )
        jc.weighted_model(likelihood, weights)(*part[0], **part[1])

    return _dais(likelihood, surrogate, key, num_draws, rows=size)


def dais_coreset(
    case: Case, args: tuple, kwargs: Mapping[str, Any], key: Any, num_draws: int
) -> Outcome:
    """As `dais_uniform`, with ``coreset.model`` as the surrogate, whose weights stay as they are.

    The coreset has the default settings and 200 rows at most, and its build is part of the time.
    """
    likelihood = common.likelihood_of(case, args, kwargs)
    common.refuse_many_parameters(likelihood)
    build_key, key = jax.random.split(key)
    builder = jc.CoresetBuilder(case.model, size=_SURROGATE_ROWS, progress_bar=False)
    coreset = builder.run(build_key, *args, **kwargs)
    surrogate = functools.partial(coreset.model, *coreset.args, **coreset.kwargs)
    return _dais(likelihood, surrogate, key, num_draws, rows=len(coreset))
