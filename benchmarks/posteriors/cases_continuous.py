"""Continuous observations: tails, censoring, mixtures, and a prior that is far from normal."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from benchmarks.posteriors.case import Case
from benchmarks.proxy.data import robust


def _robust() -> tuple[tuple, dict]:
    """50,000 rows with tails that are nearly normal."""
    rng = np.random.default_rng(301)
    n = 50_000
    X = np.column_stack([np.ones(n), rng.normal(size=(n, 3))]).astype(np.float32)
    y = X @ np.array([0.5, 1.0, -0.5, 0.0]) + 0.8 * rng.standard_t(60, size=n)
    return (X, y.astype(np.float32)), {}


def weibull(X: Any, censored: Any, time: Any = None) -> None:
    """Weibull regression with right-censored times."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 3.0).expand([X.shape[1]]).to_event(1))
    shape = numpyro.sample("shape", dist.LogNormal(0.0, 1.0))
    life = dist.Weibull(jnp.exp(X @ beta), shape)
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("time", dist.RightCensoredDistribution(life, censored), obs=time)


def weibull_by_hazard(X: Any, censored: Any, time: Any) -> None:
    """The same density, with one exponential function of each row."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 3.0).expand([X.shape[1]]).to_event(1))
    shape: Any = numpyro.sample("shape", dist.LogNormal(0.0, 1.0))
    log_time = jnp.log(time)
    scaled = shape * (log_time - X @ beta)
    events = jnp.where(censored, 0.0, jnp.log(shape) + scaled - log_time)
    numpyro.factor("rows", jnp.sum(events) - jnp.sum(jnp.exp(scaled)))


def _weibull() -> tuple[tuple, dict]:
    """50,000 units, of which some thirty fail before the study ends."""
    rng = np.random.default_rng(302)
    n = 50_000
    X = np.column_stack([np.ones(n), rng.normal(size=n), rng.random(n) < 0.05])
    X = X.astype(np.float32)
    time = np.exp(X @ np.array([3.7, -0.4, -0.8])) * rng.weibull(1.8, n)
    end = rng.uniform(0.3, 1.0, n)
    observed = np.maximum(np.minimum(time, end), 1e-3)
    return (X, time > end, observed.astype(np.float32)), {}


def _two_components() -> tuple[Any, Any]:
    """The distributions of the component and of each component's values."""
    prior = dist.Normal(jnp.array([0.0, 3.0]), 3.0).to_event(1)
    ordered = dist.TransformedDistribution(prior, dist.transforms.OrderedTransform())
    mu = numpyro.sample("mu", ordered)
    sigma = numpyro.sample("sigma", dist.LogNormal(0.0, 1.0).expand([2]).to_event(1))
    share: Any = numpyro.sample("share", dist.Beta(1.0, 1.0))
    return dist.Categorical(probs=jnp.stack([1 - share, share])), dist.Normal(mu, sigma)


def mixture(y: Any) -> None:
    """Two normal components with ordered means, and an unknown share of the second."""
    mixed = dist.MixtureSameFamily(*_two_components())
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", mixed, obs=y)


def mixture_by_count(y: Any, count: Any) -> None:
    """The same density by counts of equal rows."""
    mixed = dist.MixtureSameFamily(*_two_components())
    numpyro.factor("rows", jnp.sum(count * mixed.log_prob(y)))


def _mixture() -> tuple[tuple, dict]:
    """50,000 rows, of which 1 in 125 is of the second component, which overlaps the first."""
    rng = np.random.default_rng(303)
    n = 50_000
    second = rng.random(n) < 0.008
    y = np.where(second, rng.normal(3.3, 0.8, n), rng.normal(0.0, 1.0, n))
    return (np.round(y, 2).astype(np.float32),), {}


def _mixture_by_count() -> tuple[tuple, dict]:
    (y,), _ = _mixture()
    return np.unique(y, return_counts=True), {}


def cauchy(y: Any) -> None:
    """Cauchy observations around the sum of two parameters with Cauchy priors."""
    theta: Any = numpyro.sample("theta", dist.Cauchy(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Cauchy(theta[0] + theta[1], 1.0), obs=y)


def _cauchy() -> tuple[tuple, dict]:
    """50,000 rows."""
    rng = np.random.default_rng(304)
    return ((3.0 + rng.standard_cauchy(50_000)).astype(np.float32),), {}


def _shrunk(num: int) -> tuple[Any, Any]:
    """Coefficients with a horseshoe prior, and the scale of the noise."""
    tau: Any = numpyro.sample("tau", dist.HalfCauchy(0.05))
    local: Any = numpyro.sample("local", dist.HalfCauchy(1.0).expand([num]).to_event(1))
    beta: Any = numpyro.sample("beta", dist.Normal(0.0, tau * local).to_event(1))
    return beta, numpyro.sample("sigma", dist.HalfNormal(2.0))


def horseshoe(X: Any, y: Any = None) -> None:
    """Linear regression with a horseshoe prior."""
    beta, sigma = _shrunk(X.shape[1])
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ beta, sigma), obs=y)


def _horseshoe() -> tuple[tuple, dict]:
    """50,000 rows, twenty predictors: three strong effects, three weak ones, and none."""
    rng = np.random.default_rng(305)
    n, num = 50_000, 20
    X = rng.normal(size=(n, num)).astype(np.float32)
    beta = np.zeros(num)
    beta[:6] = 0.5, -0.3, 0.2, 0.015, -0.012, 0.01
    return (X, (X @ beta + rng.normal(size=n)).astype(np.float32)), {}


def horseshoe_by_sums(gram: Any, moments: Any, square: Any, num_rows: int) -> None:
    """The same density from the sums that it depends on."""
    beta, sigma = _shrunk(len(moments))
    squares = square - 2 * beta @ moments + beta @ gram @ beta
    numpyro.factor("rows", -0.5 * squares / sigma**2 - num_rows * jnp.log(sigma))


def _horseshoe_by_sums() -> tuple[tuple, dict]:
    (X, y), _ = _horseshoe()
    X, y = X.astype(np.float64), y.astype(np.float64)
    return (X.T @ X, X.T @ y, y @ y, len(y)), {}


CONTINUOUS = (
    Case(
        "robust",
        "Student-t with free degrees of freedom",
        robust,
        _robust,
        ("theta", "scale", "nu"),
        why="the degrees of freedom have a long upper tail",
    ),
    Case(
        "weibull",
        "censored Weibull",
        weibull,
        _weibull,
        ("beta", "shape"),
        why="scale and shape rest on some thirty failures",
        truth=(weibull_by_hazard, _weibull),
    ),
    Case(
        "mixture",
        "two components with ordered means",
        mixture,
        _mixture,
        ("mu", "sigma", "share"),
        why="the second component is rare and overlaps the first",
        truth=(mixture_by_count, _mixture_by_count),
    ),
    Case(
        "cauchy",
        "Cauchy location, Cauchy priors",
        cauchy,
        _cauchy,
        ("theta",),
        why="the likelihood sees a sum; along the line there are two modes and heavy tails",
    ),
    Case(
        "horseshoe",
        "linear with a horseshoe prior",
        horseshoe,
        _horseshoe,
        ("tau", "local", "beta", "sigma"),
        why="the scales of the coefficients have Cauchy priors",
        truth=(horseshoe_by_sums, _horseshoe_by_sums),
        # Strong effects are sampled as they are, and those that may be zero are standardised.
        centred={"beta": np.repeat([1.0, 0.5, 0.0], [3, 3, 14])},
    ),
)
