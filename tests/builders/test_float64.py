"""Models that float32 is too coarse for: the right answer comes by itself, or is told of."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS

import jaxcoreset as jc
from jaxcoreset.data.messages import DataError
from jaxcoreset.diagnostics.gaussian import gaussian_kl

SETTINGS = {"progress_bar": False, "num_held_out": 200}


def regression(x, y=None):
    slopes = numpyro.sample("slopes", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ slopes, 1.0), obs=y)


def posterior(x, y, weights=1.0):
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    precision = (x.T * weights) @ x + np.eye(x.shape[1]) / 4
    return np.linalg.solve(precision, (x.T * weights) @ y), np.linalg.inv(precision)


def with_long_tails(num_rows=4000, limit=1e4):
    """Responses of a Cauchy: a row's log-likelihood is up to 5e7, and rounded to 4 nats."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, 3)).astype(np.float32)
    noise = np.clip(rng.standard_cauchy(num_rows), -limit, limit)
    return x, (x @ [1, -0.5, 0.3] + noise).astype(np.float32)


@pytest.mark.filterwarnings("ignore:the coreset's log-density")
def test_a_build_whose_sums_float32_cannot_hold_runs_in_float64():
    x, y = with_long_tails()
    coreset = jc.CoresetBuilder(regression, size=30, **SETTINGS, proxy=None).run(
        jax.random.key(0), x, y
    )
    full, small = posterior(x, y), posterior(*coreset.args, np.asarray(coreset.weights, float))
    assert gaussian_kl(*full, *small) + gaussian_kl(*small, *full) < 1e-8
    assert coreset.report.kl < 1e-8
    assert coreset.report.precision == "float64"
    assert not jax.config.jax_enable_x64


@pytest.mark.slow
@pytest.mark.unoptimised
def test_nuts_in_float64_finds_the_posterior_that_float32_loses():
    x, y = with_long_tails(20_000)
    y = y + 1000  # every row's log-likelihood is then at least 5e5
    builder = jc.CoresetBuilder(regression, size=30, **SETTINGS, proxy=None)
    with pytest.warns(UserWarning, match="NUTS fails with such an error"):
        coreset = builder.run(jax.random.key(0), x, y)
    assert coreset.report.rounding > 0.05
    mcmc = MCMC(NUTS(coreset.model), num_warmup=200, num_samples=400, progress_bar=False)
    with coreset.in_float64():
        mcmc.run(jax.random.key(1), *coreset.args, init_params=coreset.init_params())
    mean, covariance = posterior(x, y)
    sd = np.sqrt(np.diag(covariance))
    draws = np.asarray(mcmc.get_samples()["slopes"])
    assert draws.dtype == np.float64
    assert np.all(np.abs(draws.mean(0) - mean) < 0.3 * sd)
    np.testing.assert_allclose(draws.std(0), sd, rtol=0.3)
    assert jc.certify(coreset, mcmc, num_draws=100, progress_bar=False).kl < 1e-6


def test_an_ordinary_build_stays_in_float32():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(500, 2)).astype(np.float32)
    y = (x @ [1, 2] + rng.normal(size=500)).astype(np.float32)
    coreset = jc.CoresetBuilder(regression, size=10, **SETTINGS, proxy=None).run(
        jax.random.key(0), x, y
    )
    assert coreset.report.precision == "float32"
    assert coreset.report.rounding is None


def groups(g, count, y=None):
    with numpyro.plate("groups", 4):
        logits = numpyro.sample("logits", dist.Normal(0, 1))
    with numpyro.plate("rows", g.shape[0]):
        numpyro.sample("y", dist.Binomial(count, logits=logits[g]), obs=y)


def counts(dtype):
    rng = np.random.default_rng(0)
    g, count = rng.integers(4, size=600), rng.integers(1, 400, size=600)
    return g, count.astype(dtype), rng.binomial(count, 0.3).astype(dtype)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float64])
def test_counts_of_any_type_give_one_coreset_under_x64(dtype):
    """``gammaln`` of an int32 is float32 even then: rows seemed to depend on one another."""
    with jax.enable_x64(True):
        builder = jc.CoresetBuilder(groups, size=12, **SETTINGS, proxy=None)
        coreset = builder.run(jax.random.key(0), *counts(dtype))
        expected = builder.run(jax.random.key(0), *counts(np.int64))
    np.testing.assert_array_equal(coreset.indices, expected.indices)


@pytest.mark.slow
@pytest.mark.unoptimised
def test_a_coreset_of_int64_groups_can_be_sampled_without_x64_and_then_with():
    coreset = jc.CoresetBuilder(groups, size=12, **SETTINGS, proxy=None).run(
        jax.random.key(0), *counts(np.int64)
    )
    mcmc = MCMC(NUTS(coreset.model), num_warmup=20, num_samples=20, progress_bar=False)
    mcmc.run(jax.random.key(0), *coreset.args)
    with jax.enable_x64(True):
        mcmc = MCMC(NUTS(coreset.model), num_warmup=20, num_samples=20, progress_bar=False)
        mcmc.run(jax.random.key(0), *coreset.args)
    assert mcmc.get_samples()["logits"].dtype == jnp.float64


@pytest.mark.parametrize(
    ("name", "value"), [("y", np.array([1, 13_000_000_000] * 20)), ("x", np.full(40, 1e200))]
)
def test_numbers_that_jax_would_change_without_a_word_are_refused(name, value):
    def model(x, y):
        rate = numpyro.sample("rate", dist.Exponential(1.0))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("obs", dist.Poisson(rate * (1 + 0 * x)), obs=y)

    data = {"x": np.ones(40), "y": np.arange(40)} | {name: value}
    with pytest.raises(DataError, match=rf"{name}\[.* cannot hold"):
        jc.CoresetBuilder(model, size=5, **SETTINGS, proxy=None).run(jax.random.key(0), **data)
