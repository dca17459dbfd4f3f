"""Mixtures whose component is summed out, and times to an event that may be censored."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp

from tests.users_models.case import NUM_ROWS, Case, covariates
from tests.users_models.regressions import coefficients, in_float32


def two_normals() -> Case:
    rng = np.random.default_rng(300)
    y = np.where(rng.random(NUM_ROWS) < 0.4, -1.5, 1.0) + 0.7 * rng.normal(size=NUM_ROWS)

    def model(y):
        w = numpyro.sample("w", dist.Dirichlet(jnp.ones(2)))
        ordered = dist.transforms.OrderedTransform()
        base = dist.Normal(0, 2).expand([2]).to_event(1)
        mu = numpyro.sample("mu", dist.TransformedDistribution(base, ordered))
        sigma = numpyro.sample("sigma", dist.LogNormal(0, 0.5))
        with numpyro.plate("rows", y.shape[0]):
            parts = dist.Normal(mu, sigma)
            numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(probs=w), parts), obs=y)

    return Case(model, in_float32(y))


def by_a_factor() -> Case:
    """Two groups of customers by their counts; a row's component is summed out by hand."""
    rng = np.random.default_rng(301)
    y = rng.poisson(np.where(rng.random(NUM_ROWS) < 0.3, 9.0, 2.0))

    def model(y):
        share = numpyro.sample("share", dist.Beta(2, 2))
        low = numpyro.sample("low", dist.LogNormal(0.5, 0.5))
        more = numpyro.sample("more", dist.LogNormal(2, 0.5))
        each = jnp.stack(
            [
                jnp.log1p(-share) + dist.Poisson(low).log_prob(y),
                jnp.log(share) + dist.Poisson(low + more).log_prob(y),
            ]
        )
        numpyro.factor("log_lik", logsumexp(each, axis=0))

    return Case(model, (y,))


def outliers() -> Case:
    """A regression in which some rows are of a wide distribution."""
    rng, x = covariates(302)
    is_far = rng.random(NUM_ROWS) < 0.1
    y = x @ [1, 0.5, -0.3] + np.where(is_far, 8, 0.6) * rng.normal(size=NUM_ROWS)

    def model(x, y=None):
        mean = x @ coefficients(x)
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
        far = numpyro.sample("far", dist.Beta(1, 9))
        mixing = dist.Categorical(probs=jnp.stack([1 - far, far]))
        with numpyro.plate("rows", x.shape[0]):
            both = [dist.Normal(mean, sigma), dist.Normal(mean, 8.0)]
            numpyro.sample("y", dist.MixtureGeneral(mixing, both), obs=y)

    return Case(model, (x, *in_float32(y)))


def of_regressions() -> Case:
    """Two lines, told apart by the order of their slopes."""
    rng, x = covariates(303, 1)
    first = rng.random(NUM_ROWS) < 0.5
    y = np.where(first, x @ [0.5, -1], x @ [-0.5, 1.2]) + 0.5 * rng.normal(size=NUM_ROWS)

    def model(x, y):
        intercept = numpyro.sample("intercept", dist.Normal(0, 1).expand([2]).to_event(1))
        slope = numpyro.sample(
            "slope",
            dist.TransformedDistribution(
                dist.Normal(0, 1).expand([2]).to_event(1), dist.transforms.OrderedTransform()
            ),
        )
        share = numpyro.sample("share", dist.Beta(2, 2))
        means = intercept + x[:, 1:] * slope
        mixing = dist.Categorical(probs=jnp.stack([share, 1 - share]))
        with numpyro.plate("rows", x.shape[0]):
            lines = dist.MixtureSameFamily(mixing, dist.Normal(means, 0.5))
            numpyro.sample("y", lines, obs=y)

    return Case(model, (x, *in_float32(y)))


def censored(seed: int, shape: float = 1.4) -> tuple:
    """Covariates, times, and whether the event was seen."""
    rng, x = covariates(seed)
    event = np.exp(x @ [0.5, 0.4, -0.3]) * rng.weibull(shape, NUM_ROWS)
    limit = rng.exponential(3, NUM_ROWS)
    return x, *in_float32(np.minimum(event, limit)), (event < limit).astype(int)


def censored_weibull() -> Case:
    """The usual factor of a survival model: density where an event was seen, else survival."""

    def model(x, time, event):
        scale = jnp.exp(x @ coefficients(x))
        k = numpyro.sample("k", dist.LogNormal(0, 1))
        log_hazard = jnp.log(k / scale) + (k - 1) * jnp.log(time / scale)
        with numpyro.plate("patients", x.shape[0]):
            numpyro.factor("log_lik", event * log_hazard - (time / scale) ** k)

    return Case(model, censored(304))


def censored_by_distribution() -> Case:
    """Right-censored by NumPyro's own distribution, in an accelerated failure time model."""

    def model(x, time, event):
        mean, sigma = x @ coefficients(x), numpyro.sample("sigma", dist.HalfNormal(1))
        with numpyro.plate("patients", x.shape[0]):
            life = dist.RightCensoredDistribution(dist.LogNormal(mean, sigma), 1 - event)
            numpyro.sample("time", life, obs=time)

    return Case(model, censored(305))


def censored_by_masks() -> Case:
    """Rows with an event and rows without, in two sites with masks."""

    def model(x, time, event):
        rate = jnp.exp(-(x @ coefficients(x)))
        with numpyro.plate("patients", x.shape[0]):
            with numpyro.handlers.mask(mask=event == 1):
                numpyro.sample("seen", dist.Exponential(rate), obs=time)
            with numpyro.handlers.mask(mask=event == 0):
                numpyro.sample("unseen", dist.Bernoulli(jnp.exp(-rate * time)), obs=1 - event)

    return Case(model, censored(306, shape=1.0))


def piecewise_exponential() -> Case:
    """Patients and intervals as rows of a Poisson regression with an exposure."""
    rng, x = covariates(307)
    interval = rng.integers(4, size=NUM_ROWS)
    exposure = rng.uniform(0.2, 1, NUM_ROWS).astype(np.float32)
    hazard = np.array([0.3, 0.5, 0.4, 0.8])[interval] * np.exp(x[:, 1:] @ [0.4, -0.3])
    event = rng.poisson(hazard * exposure)

    def model(interval, exposure, x, event=None):
        with numpyro.plate("intervals", 4):
            baseline = numpyro.sample("baseline", dist.Gamma(1, 1))
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            expected = exposure * baseline[interval] * jnp.exp(x[:, 1:] @ beta)
            numpyro.sample("event", dist.Poisson(expected), obs=event)

    return Case(model, (interval, exposure, x[:], event))


def cure_model() -> Case:
    """Some are cured and have no event; others have one after an exponential time."""

    def model(x, time, event):
        cured = numpyro.sample("cured", dist.Beta(1, 1))
        rate = jax.nn.softplus(x @ coefficients(x, 1.0))
        seen = jnp.log1p(-cured) + jnp.log(rate) - rate * time
        unseen = jnp.log(cured + (1 - cured) * jnp.exp(-rate * time))
        numpyro.factor("log_lik", jnp.where(event == 1, seen, unseen))

    x, time, event = censored(308, shape=1.0)
    immune = np.random.default_rng(309).random(NUM_ROWS) < 0.4
    return Case(model, (x, np.where(immune, np.float32(4), time), np.where(immune, 0, event)))


POSTERIORS = [
    two_normals,
    by_a_factor,
    outliers,
    of_regressions,
    censored_weibull,
    censored_by_distribution,
    censored_by_masks,
    piecewise_exponential,
    cure_model,
]
