"""Regressions of real numbers: one likelihood each."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.stats import norm
from numpyro.contrib.hsgp.approximation import hsgp_squared_exponential
from scipy.interpolate import BSpline

import jaxcoreset as jc
from tests.users_models.case import NUM_ROWS, Case, covariates

# A likelihood with a corner has second derivatives that are zero: the error says to use NUTS.
WITHOUT_A_MODE = {"weighting": jc.SubsampleNUTS()}


def coefficients(x: Any, scale: float = 2.0) -> jax.Array:
    return numpyro.sample("beta", dist.Normal(0, scale).expand([x.shape[1]]).to_event(1))


def in_float32(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(x.astype(np.float32) for x in arrays)


def normal() -> Case:
    rng, x = covariates(0)
    y = x @ [1, 0.5, -0.3] + 0.7 * rng.normal(size=NUM_ROWS)

    def model(X, y=None):
        alpha = numpyro.sample("alpha", dist.Normal(0, 10))
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
        mu = alpha + X[:, 1:] @ beta
        with numpyro.plate("data", X.shape[0]):
            numpyro.sample("obs", dist.Normal(mu, sigma), obs=y)

    return Case(model, (x, *in_float32(y)))


def heteroscedastic() -> Case:
    rng, x = covariates(1)
    y = x @ [1, 0.5, -0.3] + np.exp(x @ [-0.5, 0.4, 0]) * rng.normal(size=NUM_ROWS)

    def model(x, y=None):
        beta = coefficients(x)
        gamma = numpyro.sample("gamma", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ beta, jnp.exp(x @ gamma)), obs=y)

    return Case(model, (x, *in_float32(y)))


def student_t() -> Case:
    rng, x = covariates(2)
    y = x @ [1, 0.5, -0.3] + 0.5 * rng.standard_t(3, size=NUM_ROWS)

    def model(x, y):
        beta, sigma = coefficients(x), numpyro.sample("sigma", dist.HalfCauchy(1))
        nu = numpyro.sample("nu", dist.Gamma(2, 0.1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.StudentT(nu, x @ beta, sigma), obs=y)

    return Case(model, (x, *in_float32(y)))


def laplace() -> Case:
    rng, x = covariates(3)
    y = x @ [1, 0.5, -0.3] + rng.laplace(0, 0.8, size=NUM_ROWS)

    def model(x, y):
        beta, scale = coefficients(x), numpyro.sample("scale", dist.Exponential(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Laplace(x @ beta, scale), obs=y)

    return Case(model, (x, *in_float32(y)), settings=WITHOUT_A_MODE)


def cauchy() -> Case:
    rng, x = covariates(4)
    y = x @ [1, 0.5, -0.3] + 0.5 * rng.standard_cauchy(size=NUM_ROWS)

    def model(x, y):
        beta, scale = coefficients(x), numpyro.sample("scale", dist.HalfNormal(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Cauchy(x @ beta, scale), obs=y)

    return Case(model, (x, *in_float32(y)))


def lognormal() -> Case:
    rng, x = covariates(5)
    y = np.exp(x @ [1, 0.5, -0.3] + 0.6 * rng.normal(size=NUM_ROWS))

    def model(x, y=None):
        beta, sigma = coefficients(x), numpyro.sample("sigma", dist.LogNormal(0, 1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("price", dist.LogNormal(x @ beta, sigma), obs=y)

    return Case(model, (x, *in_float32(y)))


def gamma() -> Case:
    rng, x = covariates(6)
    y = rng.gamma(3, np.exp(x @ [1, 0.5, -0.3]) / 3)

    def model(x, y=None):
        beta, shape = coefficients(x), numpyro.sample("shape", dist.HalfNormal(5))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("cost", dist.Gamma(shape, shape / jnp.exp(x @ beta)), obs=y)

    return Case(model, (x, *in_float32(y)))


def gumbel() -> Case:
    rng, x = covariates(7)
    y = x @ [1, 0.5, -0.3] + rng.gumbel(0, 0.8, size=NUM_ROWS)

    def model(x, y=None):
        beta, scale = coefficients(x), numpyro.sample("scale", dist.HalfNormal(1))
        with numpyro.plate("years", x.shape[0]):
            numpyro.sample("flood", dist.Gumbel(x @ beta, scale), obs=y)

    return Case(model, (x, *in_float32(y)))


def beta() -> Case:
    rng, x = covariates(8)
    mean = 1 / (1 + np.exp(-x @ [0.3, 0.5, -0.3]))
    y = np.clip(rng.beta(12 * mean, 12 * (1 - mean)), 1e-3, 1 - 1e-3)

    def model(x, y=None):
        mean = jax.nn.sigmoid(x @ coefficients(x))
        precision = numpyro.sample("precision", dist.Gamma(2, 0.1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("share", dist.BetaProportion(mean, precision), obs=y)

    return Case(model, (x, *in_float32(y)))


def exponential() -> Case:
    rng, x = covariates(9)
    y = rng.exponential(np.exp(-x @ [0.3, 0.5, -0.3]))

    def model(x, y=None):
        rate = jnp.exp(x @ coefficients(x))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("wait", dist.Exponential(rate), obs=y)

    return Case(model, (x, *in_float32(y)))


def weibull() -> Case:
    rng, x = covariates(10)
    y = np.exp(x @ [0.5, 0.4, -0.3]) * rng.weibull(1.6, size=NUM_ROWS)

    def model(x, y=None):
        beta, shape = coefficients(x), numpyro.sample("shape", dist.LogNormal(0, 1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("life", dist.Weibull(jnp.exp(x @ beta), shape), obs=y)

    return Case(model, (x, *in_float32(y)))


def von_mises() -> Case:
    rng, x = covariates(11)
    y = np.angle(
        np.exp(1j * (0.4 + 2 * np.arctan(x @ [0, 0.5, -0.3]) + rng.vonmises(0, 3, NUM_ROWS)))
    )

    def model(x, y=None):
        mu = numpyro.sample("mu", dist.VonMises(0.0, 0.5))
        slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([2]).to_event(1))
        kappa = numpyro.sample("kappa", dist.HalfNormal(5))
        with numpyro.plate("data", x.shape[0]):
            direction = mu + 2 * jnp.arctan(x[:, 1:] @ slopes)
            numpyro.sample("y", dist.VonMises(direction, kappa), obs=y)

    return Case(model, (x, *in_float32(y)))


def quantile_regression() -> Case:
    rng, x = covariates(12)
    y = x @ [1, 0.5, -0.3] + rng.gamma(2, 0.5, size=NUM_ROWS)

    def model(x, y):
        beta, scale = coefficients(x), numpyro.sample("scale", dist.HalfNormal(1))
        with numpyro.plate("data", x.shape[0]):
            noise = dist.AsymmetricLaplaceQuantile(x @ beta, scale, quantile=0.9)
            numpyro.sample("y", noise, obs=y)

    # With few draws the estimate's own standard error is a third of it.
    settings = WITHOUT_A_MODE | {"num_held_out": 4000}
    return Case(model, (x, *in_float32(y)), settings=settings)


def truncated_normal() -> Case:
    rng, x = covariates(13)
    y = x @ [0.5, 0.5, -0.3] + 0.8 * rng.normal(size=NUM_ROWS)
    x, y = x[y > 0], y[y > 0]

    def model(x, y):
        beta, sigma = coefficients(x), numpyro.sample("sigma", dist.HalfNormal(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.TruncatedNormal(x @ beta, sigma, low=0.0), obs=y)

    return Case(model, (x, *in_float32(y)))


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


def multivariate_normal() -> Case:
    rng, x = covariates(15, 1)
    noise = rng.multivariate_normal([0, 0], [[1, 0.6], [0.6, 0.8]], size=NUM_ROWS)
    y = x @ np.array([[1, -0.5], [0.3, 0.8]]) + noise

    def model(x, y=None):
        B = numpyro.sample("B", dist.Normal(0, 1).expand([2, 2]).to_event(2))
        scales = numpyro.sample("scales", dist.HalfNormal(1).expand([2]).to_event(1))
        L = numpyro.sample("L", dist.LKJCholesky(2, concentration=2.0))
        with numpyro.plate("data", x.shape[0]):
            both = dist.MultivariateNormal(x @ B, scale_tril=scales[:, None] * L)
            numpyro.sample("y", both, obs=y)

    return Case(model, (x, *in_float32(y)))


def splines() -> Case:
    """A cubic basis, whose coefficients are shrunk by a common scale."""
    rng = np.random.default_rng(16)
    x = rng.uniform(-1, 1, size=NUM_ROWS)
    knots = np.concatenate([[-1.0] * 3, np.linspace(-1, 1, 5), [1.0] * 3])
    basis = BSpline.design_matrix(x, knots, 3).toarray()
    y = np.sin(4 * x) + 0.4 * rng.normal(size=NUM_ROWS)

    def model(basis, y=None):
        tau = numpyro.sample("tau", dist.Gamma(3.0, 2.0))
        w = numpyro.sample("w", dist.Normal(0, tau).expand([basis.shape[1]]).to_event(1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
        with numpyro.plate("data", basis.shape[0]):
            numpyro.sample("y", dist.Normal(basis @ w, sigma), obs=y)

    return Case(model, in_float32(basis, y))


def hilbert_space_gp() -> Case:
    rng = np.random.default_rng(17)
    x = rng.uniform(-1, 1, size=NUM_ROWS)
    y = np.sin(5 * x) + 0.3 * rng.normal(size=NUM_ROWS)

    def model(x, y=None):
        amplitude = numpyro.sample("amplitude", dist.LogNormal(0, 0.5))
        length = numpyro.sample("length", dist.InverseGamma(5, 2))
        noise = numpyro.sample("noise", dist.HalfNormal(1))
        f = hsgp_squared_exponential(x, alpha=amplitude, length=length, ell=1.5, m=8)
        with numpyro.plate("obs", x.shape[0]):
            numpyro.sample("y", dist.Normal(f, noise), obs=y)

    return Case(model, in_float32(x, y))


def instrumental_variables() -> Case:
    """Treatment and outcome have errors that go together."""
    rng, z = covariates(18, 1)
    errors = rng.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], size=NUM_ROWS)
    t = z @ [0.2, 1.0] + errors[:, 0]
    y = 0.5 + 0.7 * t + errors[:, 1]

    def model(z, t, y):
        a = numpyro.sample("a", dist.Normal(0, 1).expand([2]).to_event(1))
        b = numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
        rho = numpyro.sample("rho", dist.Uniform(-1, 1))
        numpyro.sample("t", dist.Normal(z @ a, 1.0), obs=t)
        mean = b[0] + b[1] * t + rho * (t - z @ a)
        numpyro.sample("y", dist.Normal(mean, jnp.sqrt(1 - rho**2)), obs=y)

    return Case(model, (z, *in_float32(t, y)))


POSTERIORS = [
    normal,
    heteroscedastic,
    student_t,
    laplace,
    cauchy,
    lognormal,
    gamma,
    gumbel,
    beta,
    exponential,
    weibull,
    von_mises,
    quantile_regression,
    truncated_normal,
    tobit,
    multivariate_normal,
    splines,
    hilbert_space_gp,
    instrumental_variables,
]
