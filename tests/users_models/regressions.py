"""Likelihoods of real numbers, counts, matches and times to an event, and mixtures of two."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm

import jaxcoreset as jc
from jaxcoreset.command import regressions as of_command
from tests.users_models.case import NUM_ROWS, Case, covariates

# With the default proxy, the coresets of some models have no rows.
ROWS_ALONE = {"proxy": None}


def coefficients(x: Any, scale: float = 2.0) -> jax.Array:
    return numpyro.sample("beta", dist.Normal(0, scale).expand([x.shape[1]]).to_event(1))


def in_float32(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(x.astype(np.float32) for x in arrays)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def heteroscedastic() -> Case:
    rng, x = covariates(1)
    y = x @ [1, 0.5, -0.3] + np.exp(x @ [-0.5, 0.4, 0]) * rng.normal(size=NUM_ROWS)

    def model(x, y=None):
        beta = coefficients(x)
        gamma = numpyro.sample("gamma", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ beta, jnp.exp(x @ gamma)), obs=y)

    return Case(model, (x, *in_float32(y)))


def laplace() -> Case:
    rng, x = covariates(3)
    y = x @ [1, 0.5, -0.3] + rng.laplace(0, 0.8, size=NUM_ROWS)

    def model(x, y):
        beta, scale = coefficients(x), numpyro.sample("scale", dist.Exponential(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Laplace(x @ beta, scale), obs=y)

    # A likelihood with a corner has no second derivatives there: the error says to use NUTS.
    return Case(model, (x, *in_float32(y)), settings={"weighting": jc.SubsampleNUTS()})


def tobit() -> Case:
    """Responses below zero are seen as zero; the likelihood is a factor for each row."""
    rng, x = covariates(14)
    y = np.maximum(x @ [0.5, 0.5, -0.3] + 0.8 * rng.normal(size=NUM_ROWS), 0)

    def model(x, y):
        beta, sigma = coefficients(x), numpyro.sample("sigma", dist.HalfNormal(1))
        mu = x @ beta
        seen = norm.logpdf(y, mu, sigma)
        numpyro.factor("lik", jnp.where(y > 0, seen, norm.logcdf(0, mu, sigma)))

    return Case(model, (x, *in_float32(y)))


def poisson_exposure() -> Case:
    """An offset of the logarithm of the exposure, given by keyword."""
    rng, x = covariates(104)
    exposure = rng.uniform(0.5, 5, size=NUM_ROWS).astype(np.float32)
    y = rng.poisson(exposure * np.exp(x @ [0.3, 0.4, -0.3]))

    def model(x, exposure=None, y=None):
        log_rate = x @ coefficients(x) + jnp.log(exposure)
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("claims", dist.Poisson(jnp.exp(log_rate)), obs=y)

    return Case(model, (x,), {"exposure": exposure, "y": y})


def negative_binomial() -> Case:
    """Counts that scatter more than Poisson's, with an unknown concentration."""
    rng, x = covariates(115)
    y = rng.poisson(np.exp(x @ [1.0, 0.4, -0.3]) * rng.gamma(3, 1 / 3, size=NUM_ROWS))
    return Case(of_command.negative_binomial, (x[:, 1:], y), settings=ROWS_ALONE)


def categorical() -> Case:
    """Three classes; the first one's scores are zero."""
    rng, x = covariates(116)
    scores = x @ [[0, 0, 0.3], [0, 1, -1], [0, 0.5, 0.5]]
    y = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1)
    return Case(of_command.categorical, (x[:, 1:], y, 3), settings=ROWS_ALONE)


def student_t() -> Case:
    """Robust regression: one row in ten is an outlier."""
    rng, x = covariates(117)
    scale = np.where(rng.random(NUM_ROWS) < 0.1, 10, 0.5)
    y = x @ [0.3, 1, -0.5] + scale * rng.normal(size=NUM_ROWS)
    return Case(of_command.student_t, (x[:, 1:], *in_float32(y)), settings=ROWS_ALONE)


def bradley_terry() -> Case:
    """Matches between eight players, whose strengths add up to zero."""
    rng = np.random.default_rng(114)
    strength = np.linspace(-1, 1, 8)
    home = rng.integers(8, size=NUM_ROWS)
    away = (home + rng.integers(1, 8, size=NUM_ROWS)) % 8
    won = (rng.random(NUM_ROWS) < sigmoid(0.3 + strength[home] - strength[away])).astype(int)

    def model(home, away, won=None):
        advantage = numpyro.sample("advantage", dist.Normal(0, 1))
        strength = numpyro.sample("strength", dist.ZeroSumNormal(1.0, event_shape=(8,)))
        with numpyro.plate("matches", home.shape[0]):
            logits = advantage + strength[home] - strength[away]
            numpyro.sample("won", dist.Bernoulli(logits=logits), obs=won)

    return Case(model, (home, away), {"won": won})


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


def censored_by_masks() -> Case:
    """Rows with an event and rows without, in two sites with masks."""
    rng, x = covariates(306)
    event = np.exp(x @ [0.5, 0.4, -0.3]) * rng.weibull(1.0, NUM_ROWS)
    limit = rng.exponential(3, NUM_ROWS)

    def model(x, time, event):
        rate = jnp.exp(-(x @ coefficients(x)))
        with numpyro.plate("patients", x.shape[0]):
            with numpyro.handlers.mask(mask=event == 1):
                numpyro.sample("seen", dist.Exponential(rate), obs=time)
            with numpyro.handlers.mask(mask=event == 0):
                numpyro.sample("unseen", dist.Bernoulli(jnp.exp(-rate * time)), obs=1 - event)

    return Case(model, (x, *in_float32(np.minimum(event, limit)), (event < limit).astype(int)))
