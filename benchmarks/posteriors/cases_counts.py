"""Counts and ordered categories whose informative rows are few."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import gammaln

from benchmarks.posteriors.case import Case


def _coefficients(name: str, num: int, scale: float = 2.0) -> Any:
    return numpyro.sample(name, dist.Normal(0.0, scale).expand([num]).to_event(1))


def _cutpoints(num: int) -> Any:
    prior = dist.Normal(0.0, 6.0).expand([num]).to_event(1)
    ordered = dist.TransformedDistribution(prior, dist.transforms.OrderedTransform())
    return numpyro.sample("cutpoints", ordered)


def ordinal(X: Any, num_categories: int, y: Any = None) -> None:
    """Ordered logistic regression."""
    beta, cutpoints = _coefficients("beta", X.shape[1]), _cutpoints(num_categories - 1)
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.OrderedLogistic(X @ beta, cutpoints), obs=y)


def ordinal_by_bounds(X: Any, num_categories: int, y: Any) -> None:
    """The same density from the two cutpoints around each row's category."""
    beta, cutpoints = _coefficients("beta", X.shape[1]), _cutpoints(num_categories - 1)
    far = jnp.array([1e3])
    bounds, latent = jnp.concatenate([-far, cutpoints, far]), X @ beta
    within = -jax.nn.softplus(latent - bounds[y + 1]) - jax.nn.softplus(bounds[y] - latent)
    numpyro.factor("rows", jnp.sum(within + jnp.log1p(-jnp.exp(-jnp.diff(bounds)))[y]))


def _ordinal() -> tuple[tuple, dict]:
    """50,000 rows in six categories, of which two have a handful."""
    rng = np.random.default_rng(201)
    n = 50_000
    X = rng.normal(size=(n, 3)).astype(np.float32)
    latent = X @ np.array([0.8, -0.4, 0.2]) + rng.logistic(size=n)
    y = np.searchsorted(np.array([-1.0, 0.5, 2.0, 7.8, 9.5]), latent)
    return (X, 6, y.astype(np.int32)), {}


def negative_binomial(X: Any, log_exposure: Any, y: Any = None) -> None:
    """Negative binomial regression with an offset."""
    beta = _coefficients("beta", X.shape[1], 5.0)
    concentration = numpyro.sample("concentration", dist.Gamma(1.0, 0.2))
    mean = jnp.exp(X @ beta + log_exposure)
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.NegativeBinomial2(mean, concentration), obs=y)


def negative_binomial_by_count(X: Any, log_exposure: Any, y: Any, most: int) -> None:
    """The same density, with the gamma functions once for each count."""
    beta = _coefficients("beta", X.shape[1], 5.0)
    concentration: Any = numpyro.sample("concentration", dist.Gamma(1.0, 0.2))
    log_mean = X @ beta + log_exposure
    of_count = gammaln(concentration + jnp.arange(most + 1)) - gammaln(concentration)
    both = jnp.log(concentration + jnp.exp(log_mean))
    odds = y * (log_mean - both) + concentration * (jnp.log(concentration) - both)
    numpyro.factor("rows", jnp.sum(of_count[y] + odds))


def _with_most() -> tuple[tuple, dict]:
    (X, log_exposure, y), _ = _negative_binomial()
    return (X, log_exposure, y, int(y.max())), {}


def _negative_binomial() -> tuple[tuple, dict]:
    """50,000 rows with some 500 claims, hardly ever two in a row."""
    rng = np.random.default_rng(202)
    n = 50_000
    X = np.column_stack([np.ones(n), rng.normal(size=(n, 2))]).astype(np.float32)
    log_exposure = np.log(rng.uniform(0.1, 1.0, n)).astype(np.float32)
    mean = np.exp(X @ np.array([-4.2, 0.4, -0.3]) + log_exposure)
    y = rng.poisson(mean * rng.gamma(0.5, 2.0, n))
    return (X, log_exposure, y.astype(np.int32)), {}


def zero_inflated(X: Any, y: Any = None) -> None:
    """Poisson regression with zeros in excess, whose share depends on the predictors too."""
    beta, gamma = _coefficients("beta", X.shape[1]), _coefficients("gamma", 2)
    with numpyro.plate("rows", X.shape[0]):
        rate, gate = jnp.exp(X @ beta), jax.nn.sigmoid(X[:, :2] @ gamma)
        numpyro.sample("y", dist.ZeroInflatedPoisson(gate=gate, rate=rate), obs=y)


def zero_inflated_by_logits(X: Any, y: Any) -> None:
    """The same density but for the factorials."""
    beta, gamma = _coefficients("beta", X.shape[1]), _coefficients("gamma", 2)
    log_rate, logits = X @ beta, X[:, :2] @ gamma
    rate = jnp.exp(log_rate)
    values = jnp.where(y == 0, jnp.logaddexp(logits, -rate), y * log_rate - rate)
    numpyro.factor("rows", jnp.sum(values - jax.nn.softplus(logits)))


def _zero_inflated() -> tuple[tuple, dict]:
    """50,000 rows with rates so low that a zero in excess is hardly told from another."""
    rng = np.random.default_rng(203)
    n = 50_000
    X = np.column_stack([np.ones(n), rng.normal(size=(n, 2))]).astype(np.float32)
    counts = rng.poisson(np.exp(X @ np.array([-2.5, 0.5, 0.3])))
    kept = rng.random(n) > 1 / (1 + np.exp(-X[:, :2] @ np.array([-0.5, 0.7])))
    return (X, (counts * kept).astype(np.int32)), {}


COUNTS = (
    Case(
        "ordinal",
        "ordinal with sparse categories",
        ordinal,
        _ordinal,
        ("beta", "cutpoints"),
        why="two cutpoints rest on a handful of rows",
        truth=(ordinal_by_bounds, _ordinal),
    ),
    Case(
        "negative-binomial",
        "negative binomial with offset",
        negative_binomial,
        _negative_binomial,
        ("beta", "concentration"),
        why="the dispersion rests on the few rows with two claims",
        truth=(negative_binomial_by_count, _with_most),
    ),
    Case(
        "zero-inflated",
        "zero-inflated Poisson",
        zero_inflated,
        _zero_inflated,
        ("beta", "gamma"),
        why="rate and share of zeros are confounded",
        truth=(zero_inflated_by_logits, _zero_inflated),
    ),
)
