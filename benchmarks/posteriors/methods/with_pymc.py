"""nutpie's NUTS (Rust) on models in PyMC."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from benchmarks.posteriors.case import Case
from benchmarks.posteriors.methods.common import NUM_WARMUP
from benchmarks.posteriors.methods.regressions import regression_of
from benchmarks.posteriors.outcome import Missing, Outcome


def nutpie(case: Case, args: tuple, kwargs: Mapping[str, Any], key: Any, num_draws: int) -> Outcome:
    """The model in PyMC, sampled by nutpie with its default settings and compiled by numba.

    One chain, 1,000 steps of warmup, float64. Effects of groups are standardised, as PyMC's guides
    recommend. Models whose priors PyMC does not have are left out.
    """
    try:
        import nutpie as sampler  # pyright: ignore[reportMissingImports]
        import pymc as pm  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise Missing(f"{error.name} is not installed") from error
    with pm.Model() as model:
        _write(pm, case, args)
    compiled = sampler.compile_pymc_model(model)
    seed = int(jax.random.randint(key, (), 1, 2**30))
    found = sampler.sample(
        compiled,
        draws=num_draws,
        tune=NUM_WARMUP,
        chains=1,
        seed=seed,
        progress_bar=False,
    )
    posterior, stats = found.posterior, found.sample_stats
    draws = {name: np.asarray(posterior[name], np.float64)[0] for name in case.parameters}
    info = {
        "gradients per draw": float(np.asarray(stats["n_steps"]).mean()),
        "divergences": int(np.asarray(stats["diverging"]).sum()),
    }
    return Outcome(draws, info=info)


def _write(pm: Any, case: Case, args: tuple) -> None:
    """Add the case's sites to the model of PyMC that is open."""
    match case.name:
        case "robust":
            X, y = args
            theta = pm.Normal("theta", 0, 1, shape=X.shape[1])
            scale, nu = pm.HalfNormal("scale", 2), pm.Gamma("nu", 2, 0.1)
            pm.StudentT("y", nu=nu, mu=pm.math.dot(X, theta), sigma=scale, observed=y)
        case "weibull":
            X, censored, time = args
            beta = pm.Normal("beta", 0, 3, shape=X.shape[1])
            shape = pm.LogNormal("shape", 0, 1)
            life = pm.Weibull.dist(alpha=shape, beta=pm.math.exp(pm.math.dot(X, beta)))
            upper = np.where(censored, time, np.inf)
            pm.Censored("time", life, lower=None, upper=upper, observed=time)
        case "cauchy":
            (y,) = args
            theta = pm.Cauchy("theta", 0, 1, shape=2)
            pm.Cauchy("y", theta[0] + theta[1], 1, observed=y)
        case "horseshoe":
            X, y = args
            tau, local = pm.HalfCauchy("tau", 0.05), pm.HalfCauchy("local", 1, shape=X.shape[1])
            z, sigma = pm.Normal("z", 0, 1, shape=X.shape[1]), pm.HalfNormal("sigma", 2)
            pm.Normal("y", pm.math.dot(X, tau * local * z), sigma, observed=y)
        case "zero-inflated":
            X, y = args
            beta, gamma = (
                pm.Normal("beta", 0, 2, shape=X.shape[1]),
                pm.Normal("gamma", 0, 2, shape=2),
            )
            share = 1 - pm.math.invlogit(pm.math.dot(X[:, :2], gamma))
            rate = pm.math.exp(pm.math.dot(X, beta))
            pm.ZeroInflatedPoisson("y", psi=share, mu=rate, observed=y)
        case "item-response":
            person, item, persons, items, y = args
            slope, level = (
                pm.LogNormal("slope", 0, 0.5, shape=items),
                pm.Normal("level", 0, 2, shape=items),
            )
            ability = pm.Normal("ability", 0, 1, shape=persons)
            pm.Bernoulli("y", logit_p=slope[item] * ability[person] + level[item], observed=y)
        case "mixture" | "ordinal":
            raise Missing("PyMC has no prior of ordered values like the model's")
        case _:
            _write_regression(pm, case, args)


def _write_regression(pm: Any, case: Case, args: tuple) -> None:
    found = regression_of(case, args)
    if found.mixing is not None:
        beta = pm.math.dot(pm.Cauchy("theta", 0, 1, shape=len(found.mixing)), found.mixing)
    else:
        scales = iter(np.split(found.scales, np.cumsum(list(found.sites.values()))[:-1]))
        parts = [pm.Normal(name, 0, next(scales), shape=size) for name, size in found.sites.items()]
        beta = parts[0] if len(parts) == 1 else pm.math.concatenate(parts)
    eta = pm.math.dot(found.X, beta) + found.offset
    if found.group is not None:
        tau, z = pm.HalfNormal("tau", 1), pm.Normal("z", 0, 1, shape=found.num_groups)
        eta = eta + (tau * z)[found.group]
    if found.family == "bernoulli":
        pm.Bernoulli("y", logit_p=eta, observed=found.y)
    elif found.family == "poisson":
        pm.Poisson("y", pm.math.exp(eta), observed=found.y)
    else:
        alpha = pm.Gamma("concentration", 1, 0.2)
        pm.NegativeBinomial("y", mu=pm.math.exp(eta), alpha=alpha, observed=found.y)
