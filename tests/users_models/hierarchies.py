"""Groups that share a prior, and effects of single rows, which are integrated out."""

import functools

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from numpyro.infer.reparam import LocScaleReparam

from tests.users_models.case import NUM_ROWS, Case, covariates
from tests.users_models.regressions import in_float32, sigmoid


def of_groups(seed: int) -> tuple[np.random.Generator, np.ndarray, np.ndarray, np.ndarray]:
    """A generator, the groups of the rows, a covariate, and effects of the groups by row."""
    rng = np.random.default_rng(seed)
    group = rng.integers(6, size=NUM_ROWS)
    x = rng.normal(size=NUM_ROWS).astype(np.float32)
    return rng, group, x, np.array([-0.8, -0.3, 0.0, 0.2, 0.6, 1.2])[group]


def not_centred() -> Case:
    rng, group, x, effect = of_groups(201)
    y = (rng.random(NUM_ROWS) < sigmoid(0.3 + effect + 0.5 * x)).astype(int)

    def model(group, x, y=None):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        tau = numpyro.sample("tau", dist.HalfNormal(1))
        b = numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("groups", 6):
            z = numpyro.sample("z", dist.Normal(0, 1))
        alpha = numpyro.deterministic("alpha", mu + tau * z)
        with numpyro.plate("rows", group.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=alpha[group] + b * x), obs=y)

    return Case(model, (group, x, y))


def with_a_reparam_handler() -> Case:
    rng, group, x, effect = of_groups(202)
    y = rng.poisson(np.exp(0.5 + 0.5 * effect + 0.3 * x))

    @functools.partial(numpyro.handlers.reparam, config={"alpha": LocScaleReparam(0)})
    def model(group, x, num_groups, y=None):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        tau = numpyro.sample("tau", dist.Gamma(3, 4))
        b = numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("groups", num_groups):
            alpha = numpyro.sample("alpha", dist.Normal(mu, tau))
        with numpyro.plate("rows", group.shape[0]):
            numpyro.sample("y", dist.Poisson(jnp.exp(alpha[group] + b * x)), obs=y)

    return Case(model, (group, x, 6), {"y": y})


def correlated_slopes() -> Case:
    rng = np.random.default_rng(204)
    group = rng.integers(8, size=NUM_ROWS)
    x = rng.normal(size=NUM_ROWS)
    effects = rng.multivariate_normal([0.5, -0.3], [[0.6, 0.2], [0.2, 0.4]], size=8)
    y = effects[group, 0] + effects[group, 1] * x + 0.5 * rng.normal(size=NUM_ROWS)

    def model(group, x, y=None):
        mu = numpyro.sample("mu", dist.Normal(0, 1).expand([2]).to_event(1))
        tau = numpyro.sample("tau", dist.Gamma(4, 6).expand([2]).to_event(1))
        L = numpyro.sample("L", dist.LKJCholesky(2, 2.0))
        with numpyro.plate("groups", 8):
            pair = dist.MultivariateNormal(mu, scale_tril=tau[:, None] * L)
            effect = numpyro.sample("effect", pair)
        with numpyro.plate("rows", x.shape[0]):
            mean = effect[group, 0] + effect[group, 1] * x
            numpyro.sample("y", dist.Normal(mean, 0.5), obs=y)

    return Case(model, (group, *in_float32(x, y)))


def effect_of_a_row() -> Case:
    """Poisson counts that scatter more, by a normal effect of each row."""
    rng, x = covariates(209)
    y = rng.poisson(np.exp(x @ [0.5, 0.3, 0] + 0.5 * rng.normal(size=NUM_ROWS)))
    grid = np.linspace(-9, 9, 61)

    def model(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
        tau = numpyro.sample("tau", dist.Gamma(3, 6))
        with numpyro.plate("rows", x.shape[0]):
            effect = numpyro.sample("effect", dist.Normal(0, tau))
            numpyro.sample("y", dist.Poisson(jnp.exp(x @ beta + effect)), obs=y)

    def marginal(x, y=None):
        """The integrals are sums over a fine grid, which for a smooth integrand is exact."""
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
        tau = numpyro.sample("tau", dist.Gamma(3, 6))
        log_rate = (x @ beta)[:, None] + tau * grid
        values = dist.Poisson(jnp.exp(log_rate)).log_prob(y[:, None]) - grid**2 / 2
        numpyro.factor("log_likelihood", logsumexp(values, axis=1))

    return Case(model, (x, y), marginal=marginal)


def error_in_a_covariate() -> Case:
    """A covariate that is measured with an error, and whose true value is normal."""
    rng = np.random.default_rng(210)
    true = rng.normal(size=NUM_ROWS)
    measured = true + 0.3 * rng.normal(size=NUM_ROWS)
    y = 0.2 + 0.8 * true + 0.7 * rng.normal(size=NUM_ROWS)

    def model(measured, y=None):
        a = numpyro.sample("a", dist.Normal(0, 1))
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        true = numpyro.sample("true", dist.Normal(jnp.zeros(measured.shape[0]), 1.0))
        numpyro.sample("measured", dist.Normal(true, 0.3), obs=measured)
        numpyro.sample("y", dist.Normal(a + slope * true, 0.7), obs=y)

    def marginal(measured, y=None):
        a = numpyro.sample("a", dist.Normal(0, 1))
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        mean, variance = measured / 1.09, 0.09 / 1.09
        scale = jnp.sqrt(0.49 + slope**2 * variance)
        numpyro.sample("y", dist.Normal(a + slope * mean, scale), obs=y)

    return Case(model, in_float32(measured, y), marginal=marginal)
