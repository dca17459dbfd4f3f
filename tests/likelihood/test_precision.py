"""Long tables: what is weighted by n/k is evaluated in float64, with JAX's x64 off."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS

import jaxcoreset as jc
from jaxcoreset.diagnostics.gaussian import gaussian_kl
from jaxcoreset.likelihood import precision
from jaxcoreset.weighting.nuts import CoresetSampler

# Each of the rows counts several times, so that they stand for five millions.
NUM_ROWS, TIMES = 500_000, 10
SETTINGS: dict[str, Any] = {
    "size": 8,
    "num_draws": 200,
    "num_held_out": 100,
    "progress_bar": False,
    "proxy": None,
}


def regression(x, y=None):
    """Conjugate, so that every weighted posterior is known."""
    slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(slopes[0] + slopes[1] * x, 1.0), obs=y)


def counted(times):
    def model(x, y=None):
        with numpyro.handlers.scale(scale=times):
            regression(x, y)

    return model


def with_its_own_type(x, y=None):
    """A loop that carries float32: under x64 it can't be traced."""
    slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([2]).to_event(1))
    start = jnp.zeros((), jnp.float32)
    total, _ = jax.lax.scan(lambda sum, one: (sum + one, None), start, slopes)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(total * x, 1.0), obs=y)


def posterior(x, y, weights):
    columns = np.stack([np.ones(len(x)), np.asarray(x, np.float64)])
    precision = TIMES * (columns * weights) @ columns.T + np.eye(2)
    mean = np.linalg.solve(precision, TIMES * (columns * weights) @ np.asarray(y, np.float64))
    return mean, np.linalg.inv(precision)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=NUM_ROWS).astype(np.float32)
    return x, (0.5 - 0.3 * x + rng.normal(size=NUM_ROWS)).astype(np.float32)


@pytest.fixture(scope="module")
def built(data):
    with pytest.warns(UserWarning, match="NUTS may fail with"):
        return jc.CoresetBuilder(counted(TIMES), **SETTINGS).run(jax.random.key(0), *data)


@pytest.fixture(scope="module")
def full(data):
    return posterior(*data, 1.0)


@pytest.mark.slow
@pytest.mark.unoptimised
def test_coreset_of_millions_of_rows_is_not_limited_by_float32(built, full):
    """In float32 the estimate, and the divergence, were some 2e-3: 2.5e13/8 times (3e-8)²."""
    small = posterior(*built.args, built.weights.astype(np.float64))
    assert gaussian_kl(*full, *small) + gaussian_kl(*small, *full) < 1e-5
    assert built.report.kl < 1e-5
    assert "use in_float64()" in str(built.report)
    assert jc.Report.from_dict(built.report.to_dict()).rounding == built.report.rounding


@pytest.mark.slow
@pytest.mark.unoptimised
def test_the_rounding_told_is_that_of_the_same_sum_in_numpy(built, full):
    points = np.random.default_rng(0).multivariate_normal(*full, size=400)

    def log_density(dtype):
        x, y = (np.asarray(column, dtype) for column in built.args)
        intercept, slope = points.T.astype(dtype)[..., None]
        log_likelihood = -(((y - intercept - slope * x) / dtype(1)) ** 2) / dtype(2)
        log_likelihood -= dtype(0.5 * np.log(2 * np.pi))
        log_likelihood *= dtype(TIMES) * built.weights.astype(dtype)
        return log_likelihood.sum(axis=1, dtype=dtype)

    expected = np.std(log_density(np.float32) - log_density(np.float64), ddof=1)
    assert expected > precision.MAX_ENERGY_ERROR
    assert 0.5 * expected < built.report.rounding < 2 * expected


@pytest.mark.slow
@pytest.mark.unoptimised
def test_nuts_in_float64_finds_the_posterior_and_the_certificate_says_so(built, full):
    """By NumPyro, in float64, as the warning says."""
    with built.in_float64():
        mcmc = MCMC(NUTS(built.model), num_warmup=300, num_samples=1000, progress_bar=False)
        mcmc.run(jax.random.key(1), *built.args, init_params=built.approximation.params())
        draws = np.asarray(mcmc.get_samples()["slopes"])
    mean, covariance = full
    np.testing.assert_allclose(draws.mean(0), mean, atol=0.3 * np.sqrt(covariance.max()))
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.3 * covariance.max())
    certificate = jc.certify(built, mcmc, num_draws=200, progress_bar=False)
    assert certificate.kl < 1e-6
    assert certificate.verdict == "good"


@pytest.mark.slow
@pytest.mark.unoptimised
def test_the_builders_own_nuts_is_in_float64(built, full):
    mean, covariance = full
    sampler = CoresetSampler(built.likelihood, num_samples=1000)
    start = np.tile(mean, (4, 1))
    draws = sampler.run(jax.random.key(0), built.indices, built.weights, start, covariance)
    found = draws.take(jax.random.key(0), 0, 1000)["slopes"]
    assert found.dtype == jnp.float32
    assert draws.r_hat < 1.1
    np.testing.assert_allclose(np.mean(found, axis=0), mean, atol=0.3 * np.sqrt(covariance.max()))


def test_a_model_is_traced_once_to_see_whether_it_runs_in_float64(monkeypatch):
    x, seen = np.linspace(-1, 1, 100, dtype=np.float32), []
    traces = precision._traces_in_float64
    monkeypatch.setattr(precision, "_traces_in_float64", lambda one: seen.append(1) or traces(one))
    for model, runs in ((regression, True), (with_its_own_type, False)):
        likelihood = jc.model_likelihood(model, (x + 2, x))
        assert [precision.runs_in_float64(likelihood) for _ in range(3)] == [runs] * 3
    assert len(seen) <= 2  # or none, where a test before used these programs


def test_models_of_one_type_stay_in_float32():
    x = np.linspace(-1, 1, 100, dtype=np.float32)
    draws = {"slopes": np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)}
    for model, runs in ((regression, True), (with_its_own_type, False)):
        likelihood = jc.model_likelihood(model, (x, 1e5 * x))
        assert precision.runs_in_float64(likelihood) == runs
        if runs:
            with pytest.raises(precision.Float32Error, match="rounded to"):
                precision.check_float32(likelihood, draws)
            with jax.enable_x64(True):
                assert precision.check_float32(likelihood, draws).of_total == 0
        else:
            assert precision.check_float32(likelihood, draws).of_total > 1e-3


def test_nothing_is_said_of_rounding_where_it_is_little():
    x = np.linspace(-1, 1, 100, dtype=np.float32)
    likelihood = jc.model_likelihood(regression, (x, x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows, weights = likelihood.take(np.arange(4)), np.full(4, 25.0)
        draws = {"slopes": np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)}
        assert precision.rounding_of(likelihood, draws, rows, weights) is None
    with pytest.warns(UserWarning, match="rounded to"):
        assert precision.rounding_of(likelihood, draws, rows, 1e6 * weights) > 0.2


@pytest.mark.parametrize("offset", [0.0, 1.7e9], ids=["parameters", "data"])
def test_what_float32_does_not_resolve_is_told(offset):
    """Parameters, or data and the sum of a small parameter and a constant."""
    rng = np.random.default_rng(0)
    seconds = 1.7e9 + 10 * rng.normal(size=300)  # float32 knows multiples of 128

    def model(seconds):
        mean = numpyro.sample("mean", dist.Normal(1.7e9 - offset, 1e3))
        sd = numpyro.sample("sd", dist.HalfNormal(20))
        with numpyro.plate("seconds", seconds.shape[0]):
            numpyro.sample("second", dist.Normal(mean + offset, sd), obs=seconds)

    builder = jc.CoresetBuilder(model, size=5, progress_bar=False)
    with pytest.warns(UserWarning, match="NUTS may fail with") as told:
        coreset = builder.run(jax.random.key(0), seconds)
    # A number is off by up to 64 seconds, in units of 10 for a row and 0.6 for the mean.
    assert coreset.report.rounding > 10
    assert len(told) == 1
    stuck = {"mean": np.full(100, 1.7e9 - offset, "f"), "sd": rng.uniform(9, 11, 100).astype("f")}
    message = r"float32 rounds .* sample within coreset\.in_float64"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(ValueError, match=message):
            jc.certify(coreset, stuck)
    assert not told


@pytest.mark.parametrize("num", [4000, 5])
def test_the_error_of_steps_is_that_of_a_gaussian_at_rounded_points(num):
    rng = np.random.default_rng(1)
    factor = np.array([[1.0, 0], [0.99, np.sqrt(1 - 0.99**2)]]) if num > 5 else np.eye(2)
    center, sd = np.array([3e6, -5e5]), np.array([2.0, 0.5])
    standard = rng.normal(size=(4000, 2)) @ factor.T
    points = center + sd * standard
    rounded = points.astype(np.float32).astype(np.float64)
    slopes = np.linalg.solve(factor @ factor.T, standard.T).T / sd
    expected = np.sqrt(np.mean(np.sum(slopes * (rounded - points), axis=1) ** 2))
    draws = {"a": points[:num, 0], "b": points[:num, 1]}
    tolerance = 0.1 if num > 5 else 1.0
    assert precision._error_of_steps(draws) == pytest.approx(expected, rel=tolerance)


@pytest.mark.slow
@pytest.mark.unoptimised
@pytest.mark.filterwarnings("ignore:the coreset's log-density")
def test_merged_and_updated_coresets_are_as_exact(data, monkeypatch):
    """Two blocks that stand for some millions of rows: each row counts 2,000 times."""
    x, y = (column[:4000] for column in data)
    builder = jc.CoresetBuilder(counted(2000), **SETTINGS)
    blocks = [builder.run(jax.random.key(0), x[at::2], y[at::2]) for at in (0, 1)]

    def errors():
        merged = jc.merge(blocks, 8, jax.random.key(1))
        updated = blocks[0].update(jax.random.key(2), x[1::2], y[1::2])
        return merged.report.history[-1]["kl"], updated.report.history[-1]["kl"]

    in_float64 = errors()
    for module in ("likelihood.precision", "weighting.auto"):
        monkeypatch.setattr(f"jaxcoreset.{module}.runs_in_float64", lambda likelihood: False)
    in_float32 = errors()
    assert in_float64[0] < 1e-6 < in_float32[0]
    # The new rows' own sum is in float32, and each of these rows counts 2,000 times in it.
    assert in_float64[1] < 0.5 * in_float32[1], (in_float32, in_float64)
