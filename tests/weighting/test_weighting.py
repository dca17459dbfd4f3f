"""Weightings: each gives draws of what it says, and says what is wrong with what it is given."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.optimize
import scipy.special
import scipy.stats
from numpyro.infer import autoguide

import jaxcoreset as jc
from jaxcoreset.data import blocks
from jaxcoreset.weighting import laplace
from jaxcoreset.weighting.laplace import laplace_approximation, parameter_names
from jaxcoreset.weighting.log_posterior import LogPosterior
from jaxcoreset.weighting.pathfinder import log_posterior
from tests.models import logistic_model as logistic
from tests.models import regression_model as regression


def data_of(n, d=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    y = (rng.random(n) < scipy.special.expit(x @ np.arange(1, d + 1) / 2)).astype(int)
    return x, y


def test_laplace_of_a_weighted_gaussian_posterior_is_exact():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 4))
    y = x @ np.array([1.0, -1, 0.5, 0]) + 0.5 * rng.normal(size=200)
    weights = rng.random(200) * 3
    precision = (x.T * weights) @ x / 0.25 + np.eye(4) / 4
    mean = np.linalg.solve(precision, (x.T * weights) @ y / 0.25)
    found = laplace_approximation(jc.model_likelihood(regression, (x, y)), weights=weights)
    # float32 evaluations: the error is far below the posterior's standard deviation of 0.03.
    np.testing.assert_allclose(found.mode, mean, atol=1e-5)
    np.testing.assert_allclose(found.covariance, np.linalg.inv(precision), rtol=1e-4, atol=1e-7)
    draws = np.asarray(found.draws(jax.random.key(0), 20_000)["beta"])
    few = np.asarray(found.draws(jax.random.key(0), 10)["beta"])
    np.testing.assert_array_equal(few, draws[:10])
    np.testing.assert_allclose(draws.mean(0), mean, atol=4 * found.sd.max() / np.sqrt(20_000))
    np.testing.assert_allclose(draws.std(0), found.sd, rtol=0.03)


def test_laplace_of_many_rows_starts_on_some_and_ends_at_scipys_mode(monkeypatch):
    monkeypatch.setattr("jaxcoreset.weighting.log_posterior._PART_ROWS", 600)
    x, y = data_of(6000)
    likelihood = jc.model_likelihood(logistic, (x, y))
    programs = blocks._evaluate_quickly.alone()._cached._cache_size()
    found = laplace_approximation(likelihood, key=jax.random.key(1))
    assert blocks._evaluate_quickly.alone()._cached._cache_size() == programs + 1

    def negative_log_posterior(beta):
        return np.logaddexp(0, -(2 * y - 1) * (x @ beta)).sum() + beta @ beta / 2

    expected = scipy.optimize.minimize(negative_log_posterior, np.zeros(3), tol=1e-10).x
    assert np.max(np.abs(found.mode - expected) / found.sd) < 1e-3
    assert found.num_passes <= 4
    cold = laplace_approximation(likelihood)
    assert np.max(np.abs(found.mode - cold.mode) / found.sd) < 1e-3


def scale(y):
    s = numpyro.sample("s", dist.LogNormal(0.0, 10.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(0.0, s), obs=y)


def test_laplace_works_on_unconstrained_parameters_and_evaluates_no_point_twice(monkeypatch):
    """A scale's posterior has a mode on the log scale that SciPy finds too, Jacobian included."""
    points, evaluate = [], LogPosterior._evaluate

    def noted(self, position):
        points.append(position.tobytes())
        return evaluate(self, position)

    monkeypatch.setattr(LogPosterior, "_evaluate", noted)
    y = np.random.default_rng(0).normal(size=500) * 1.7
    # From here a step leaps beyond the mode, gains far less than expected, and is refused: the
    # search goes on from the point before.
    start = {"s": jnp.array(6.0)}
    found = laplace_approximation(jc.model_likelihood(scale, (y,)), start=start)
    assert len(set(points)) == len(points) == found.num_passes
    log_s = scipy.optimize.minimize_scalar(
        lambda t: 500 * t + (y**2).sum() / 2 * np.exp(-2 * t) + t**2 / 200,
        bounds=(-2, 3),
        method="bounded",
        options={"xatol": 1e-10},
    ).x
    assert found.names == ["s"]
    assert found.mode[0] == pytest.approx(log_s, abs=1e-4)


def scaled_slopes(x, y, prior):
    coefficients = numpyro.sample("slopes", dist.Normal(0, prior).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ coefficients, 1), obs=y)


def test_mode_is_found_where_columns_have_very_different_scales():
    """The starting point is some 1e7 standard deviations away in one of the slopes."""
    scales = np.array([1e-6, 1.0, 1e6])
    x = (np.random.default_rng(2).normal(size=(500, 3)) * scales).astype(np.float32)
    y = (x @ (1 / scales) + np.random.default_rng(3).normal(size=500)).astype(np.float32)
    prior = (2 / scales).astype(np.float32)
    exact = x.astype(np.float64)
    precision = exact.T @ exact + np.diag(prior**-2.0)
    found = laplace_approximation(jc.model_likelihood(scaled_slopes, (x, y, prior)))
    expected = np.linalg.solve(precision, exact.T @ y)
    assert np.max(np.abs(found.mode - expected) / found.sd) < 1e-2
    np.testing.assert_allclose(found.covariance, np.linalg.inv(precision), rtol=1e-3)


def test_covariates_far_from_zero_beside_an_intercept_need_float64_and_are_no_flat_direction():
    rng = np.random.default_rng(4)
    x = np.hstack([1e4 + rng.normal(size=(500, 2)), np.ones((500, 1))])
    prior = np.array([2.0, 2.0, 1e4])
    y = x @ [1.0, -0.5, 5.0] + rng.normal(size=500)
    precision = x.T @ x + np.diag(prior**-2.0)
    with jax.enable_x64(True):
        found = laplace_approximation(jc.model_likelihood(scaled_slopes, (x, y, prior)))
    expected = np.linalg.solve(precision, x.T @ y)
    assert np.max(np.abs(found.mode - expected) / found.sd) < 1e-3
    np.testing.assert_allclose(found.sd, np.sqrt(np.diag(np.linalg.inv(precision))), rtol=1e-4)


def test_a_mode_far_from_zero_is_found_in_few_steps():
    days = 2.459e6 + 30 * np.random.default_rng(0).normal(size=500)  # Julian dates

    def model(days):
        mean = numpyro.sample("mean", dist.Normal(2.459e6, 1000.0))
        sd = numpyro.sample("sd", dist.HalfNormal(100.0))
        with numpyro.plate("days", days.shape[0]):
            numpyro.sample("day", dist.Normal(mean, sd), obs=days)

    def negative_log_posterior(point):
        mean, sd = 2.459e6 + point[0], np.exp(point[1])
        rows = scipy.stats.norm(mean, sd).logpdf(days).sum() + point[1]
        return sd**2 / 2e4 + point[0] ** 2 / 2e6 - rows

    expected = scipy.optimize.minimize(
        negative_log_posterior, [0, 3], method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-9}
    ).x
    with jax.enable_x64(True):
        found = laplace_approximation(jc.model_likelihood(model, (days,)))
    assert found.num_passes < 100
    sd = np.sqrt(np.diag(found.covariance))
    np.testing.assert_allclose((found.mode - [2.459e6, 0] - expected) / sd, 0, atol=1e-4)


def test_flat_direction_is_named():
    x, y = data_of(50)

    def model(x, y):
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
        loose = numpyro.sample("loose", dist.ImproperUniform(dist.constraints.real, (), ()))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ beta + 0 * loose), obs=y)

    with pytest.raises(ValueError, match="flat or falling along loose"):
        laplace_approximation(jc.model_likelihood(model, (x, y)))


def test_the_direction_along_which_a_posterior_falls_is_named():
    hessian = np.array([[2.0, 0.1, 0.0], [0.1, -100.0, 0.2], [0.0, 0.2, 3.0]])
    with pytest.raises(ValueError, match=r"falling along b, .*eigenvalue -1 of the scaled"):
        laplace._inverse_hessian(hessian, ["a", "b", "c"])


def test_mode_is_found_where_the_first_steps_overflow():
    """An outcome that is not centred: on the way its variance passes through all of float32."""

    def offset(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1e6))
        scale = numpyro.sample("scale", dist.HalfNormal(10))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(mean, scale), obs=y)

    y = (10_000 + np.random.default_rng(0).normal(size=3000)).astype(np.float32)
    found = laplace_approximation(jc.model_likelihood(offset, (y,)))
    deviation = np.sqrt(found.covariance[0, 0])
    assert abs(found.mode[0] - y.mean(dtype=np.float64)) < 0.2 * deviation
    assert deviation == pytest.approx(y.std(dtype=np.float64) / np.sqrt(3000), rel=0.01)


def test_mode_not_reached_is_told():
    x, y = data_of(300)
    with pytest.raises(ValueError, match=r"not reached.* ended .* mostly along beta\["):
        laplace_approximation(jc.model_likelihood(logistic, (x, y)), max_iters=1)


def test_parameter_names_follow_the_order_of_ravelling():
    params = {"b": np.zeros((2, 2)), "a": np.zeros(()), "c": np.zeros(1)}
    assert parameter_names(params) == ["a", "b[0,0]", "b[0,1]", "b[1,0]", "b[1,1]", "c[0]"]


@pytest.fixture(scope="module")
def likelihood():
    return jc.model_likelihood(logistic, data_of(60))


def test_draws_of_the_user_are_divided_without_overlap(likelihood):
    samples = {"beta": np.arange(300.0).reshape(100, 3) ** [1, 0.5, 2], "other": np.zeros(100)}
    source = jc.Draws(samples).fit(likelihood, jax.random.key(0))
    seen, held_out = source.split(jax.random.key(1), 60, 30)
    assert seen["beta"].shape == (60, 3)
    assert held_out["beta"].shape == (30, 3)
    together = np.concatenate([seen["beta"], held_out["beta"]])[:, 0]
    assert len(set(together.tolist())) == 90
    seen, held_out = source.split(jax.random.key(1), 300, 100)
    assert (seen["beta"].shape[0], held_out["beta"].shape[0]) == (75, 25)


def test_draws_are_unconstrained():
    likelihood = jc.model_likelihood(scale, (np.ones(5),))
    s = np.linspace(0.5, 2, 40)
    source = jc.Draws({"s": s}).fit(likelihood, jax.random.key(0))
    seen, held_out = source.split(jax.random.key(0), 20, 20)
    both = np.sort(np.concatenate([seen["s"], held_out["s"]]))
    np.testing.assert_allclose(both, np.log(s), atol=1e-6)
    with pytest.raises(ValueError, match="outside the support"):
        jc.Draws({"s": -s}).fit(likelihood, jax.random.key(0))


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ({}, "samples has no beta"),
        ({"beta": np.ones((20, 2))}, r"expected \(draws, \*\(3,\)\)"),
        ({"beta": np.full((20, 3), np.nan)}, "not finite"),
    ],
)
def test_bad_draws_are_refused(likelihood, samples, message):
    with pytest.raises(ValueError, match=message):
        jc.Draws(samples).fit(likelihood, jax.random.key(0))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_draws_that_do_not_vary_in_all_directions_are_refused(likelihood, dtype):
    """Whatever a coreset leaves in the other directions, its error at such draws is zero."""
    rng = np.random.default_rng(0)
    normal = 1 + 0.01 * rng.normal(size=(500, 3))
    flawed = {
        "only 2 of the 500 draws": np.repeat(normal[:2], 250, axis=0),
        "in 1 of 3 directions": 1 + (normal[:, :1] - 1) * np.array([1, -2, 0.5]),
        "in 2 of 3 directions": normal * [1, 1, 0],
    }
    with jax.enable_x64(dtype is np.float64):
        for message, samples in flawed.items():
            with pytest.raises(ValueError, match=message):
                jc.Draws({"beta": samples.astype(dtype)}).fit(likelihood, jax.random.key(0))
        # Strongly correlated draws, and draws of a chain that often stays, are no such draws.
        close = normal @ np.array([[1, 1, 0], [0, 1e-3, 0], [0, 0, 1]])
        jc.Draws({"beta": close.astype(dtype)}).fit(likelihood, jax.random.key(0))
        often = np.repeat(normal[:50], 10, axis=0).astype(dtype)
        assert jc.Draws({"beta": often}).fit(likelihood, jax.random.key(0)).has_repeats


def test_too_few_draws_are_refused(likelihood):
    source = jc.Draws({"beta": np.ones((5, 3))}).fit(likelihood, jax.random.key(0))
    with pytest.raises(ValueError, match="5 draws; expected at least 8"):
        source.split(jax.random.key(0), 4, 4)


@pytest.fixture(scope="module")
def conjugate():
    """Correlated linear regression: its likelihood, and its posterior's mean and precision."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(600, 3)) * np.array([1.0, 1.0, 3.0])
    x[:, 1] += 0.7 * x[:, 0]
    y = x @ np.array([1.0, -1.0, 0.5]) + 0.5 * rng.normal(size=600)
    precision = x.T @ x / 0.25 + np.eye(3) / 4
    mean = np.linalg.solve(precision, x.T @ y / 0.25)
    return jc.model_likelihood(regression, (x, y)), mean, precision


def whitened(draws, mean, precision):
    """Draws in units of the posterior: of mean 0 and covariance I if they are of the posterior."""
    return (np.asarray(draws["beta"], np.float64) - mean) @ np.linalg.cholesky(precision)


# What each leaves beside Monte Carlo error (0.03 in a mean, 0.05 in a covariance's eigenvalue at
# 2000 draws): the last steps of SVI's noise, a few in a hundred of an sd; L-BFGS's covariance.
@pytest.mark.parametrize(
    ("weighting", "mean_error", "least", "most"),
    [
        (jc.Laplace(), 0.12, 0.85, 1.15),
        (jc.Guide(), 0.2, 0.75, 1.35),
        (jc.Guide(batch_size=150), 0.35, 0.7, 1.5),
        (jc.SubsampleNUTS(num_samples=2000), 0.15, 0.8, 1.2),
    ],
    ids=["Laplace", "Guide", "Guide on minibatches", "SubsampleNUTS"],
)
def test_weighting_draws_from_a_known_posterior(conjugate, weighting, mean_error, least, most):
    likelihood, mean, precision = conjugate
    draws = weighting.fit(likelihood, jax.random.key(0)).take(jax.random.key(1), 0, 2000)
    z = whitened(draws, mean, precision)
    assert np.linalg.norm(z.mean(0)) < mean_error
    values = np.linalg.eigvalsh(np.cov(z.T))
    assert least < values[0]
    assert values[-1] < most


def test_pathfinder_finds_the_posterior_whatever_the_key(conjugate):
    pytest.importorskip("blackjax")
    likelihood, mean, precision = conjugate
    for seed in range(2):
        source = jc.Pathfinder().fit(likelihood, jax.random.key(seed))
        z = whitened(source.take(jax.random.key(1), 0, 2000), mean, precision)
        assert np.linalg.norm(z.mean(0)) < 0.1  # Monte Carlo: 0.04
        values = np.linalg.eigvalsh(np.cov(z.T))
        assert 0.75 < values[0] < values[-1] < 1.35


def test_a_subset_of_rows_counts_as_all_of_them(conjugate):
    """NUTS on 150 of 600 rows: as wide as the posterior of all, and off by about 2 sd = √(n/m)."""
    likelihood, mean, precision = conjugate
    source = jc.SubsampleNUTS(num_rows=150, num_samples=2000).fit(likelihood, jax.random.key(0))
    z = whitened(source.take(jax.random.key(1), 0, 2000), mean, precision)
    # The subset's own covariates make its covariance another by about 1/√150 a direction.
    assert np.linalg.eigvalsh(np.cov(z.T))[0] > 0.6
    assert np.linalg.eigvalsh(np.cov(z.T))[-1] < 1.6
    assert np.linalg.norm(z.mean(0)) < 4 * 2 * np.sqrt(3)


@pytest.mark.slow
@pytest.mark.unoptimised
@pytest.mark.parametrize(
    "weighting",
    [jc.Laplace(), jc.Guide(autoguide.AutoNormal, num_steps=50), jc.SubsampleNUTS(50, 50, 400)],
    ids=["Laplace", "Guide", "SubsampleNUTS"],
)
def test_draws_are_added_and_the_same_key_gives_the_same(conjugate, weighting):
    likelihood, _, _ = conjugate
    key = jax.random.key(3)
    first = weighting.fit(likelihood, jax.random.key(0))
    parts = [first.take(key, 0, 300)["beta"], first.take(key, 300, 500)["beta"]]
    again = weighting.fit(likelihood, jax.random.key(0))
    np.testing.assert_array_equal(again.take(key, 0, 300)["beta"], parts[0])
    np.testing.assert_array_equal(again.take(key, 300, 500)["beta"], parts[1])
    rows = np.concatenate(parts)
    assert rows.shape == (800, 3)
    assert len(np.unique(rows, axis=0)) > 700  # NUTS may stay where it is


@pytest.mark.slow
@pytest.mark.unoptimised
@pytest.mark.parametrize(
    "weighting",
    [jc.Guide(), jc.SubsampleNUTS()],
    ids=["Guide", "SubsampleNUTS"],
)
def test_draws_of_a_positive_parameter_are_of_its_logarithm(weighting):
    """log s has nearly the posterior N(log of the rms of y, 1/2n) under this flat a prior."""
    y = 1.7 * np.random.default_rng(0).normal(size=400)
    likelihood = jc.model_likelihood(scale, (y,))
    draws = weighting.fit(likelihood, jax.random.key(0)).take(jax.random.key(1), 0, 1000)["s"]
    sd = 1 / np.sqrt(800)
    assert abs(np.mean(draws) - np.log(np.sqrt(np.mean(y**2)))) < 0.4 * sd
    assert 0.75 < np.std(draws) / sd < 1.3


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: jc.Guide(num_steps=0), ValueError, "num_steps is 0"),
        (lambda: jc.Guide(learning_rate=0.0), ValueError, "learning_rate is 0.0"),
        (lambda: jc.Guide(autoguide.AutoDelta, num_steps=5), ValueError, "all the same"),
        (lambda: jc.Guide(lambda model: model, num_steps=5), TypeError, "expected an AutoGuide"),
        (lambda: jc.SubsampleNUTS(num_rows=0), ValueError, "num_rows is 0"),
        (lambda: jc.SubsampleNUTS(num_samples=8), ValueError, "num_samples is 8"),
        (lambda: jc.Pathfinder(num_paths=0), ValueError, "num_paths is 0"),
    ],
)
@pytest.mark.usefixtures("untyped")
def test_bad_weightings_are_refused(likelihood, make, error, message):
    with pytest.raises(error, match=message):
        make().fit(likelihood, jax.random.key(0))


def test_pathfinder_without_blackjax_names_the_extra(likelihood, monkeypatch):
    monkeypatch.setitem(sys.modules, "blackjax.vi", None)
    monkeypatch.setitem(sys.modules, "blackjax", None)
    with pytest.raises(ModuleNotFoundError, match=r"jaxcoreset\[pathfinder\]"):
        jc.Pathfinder().fit(likelihood, jax.random.key(0))


def test_streamed_log_posterior_is_that_of_all_rows(conjugate):
    likelihood, mean, _ = conjugate
    params = {"beta": jnp.asarray(mean + 0.1, np.float32)}
    data = tuple(jnp.asarray(leaf) for leaf in likelihood.data)
    whole = likelihood.log_likelihood(params, data).sum() + likelihood.log_prior(params)
    for batch_size in (7, 1000):
        value = log_posterior(likelihood, params, data, batch_size)
        np.testing.assert_allclose(value, whole, rtol=1e-5)


def test_a_mode_that_float32_does_not_resolve_is_found_in_float64_as_the_message_says():
    rng = np.random.default_rng(0)
    groups = rng.integers(20, size=10_000).astype(np.int32)
    x = rng.normal(size=10_000).astype(np.float32)
    means = (1 + 0.8 * rng.normal(size=20))[groups] + 0.5 * x
    y = (means + 0.01 * rng.normal(size=10_000)).astype(np.float32)

    def non_centred(groups, x, y=None):
        mean = numpyro.sample("mean", dist.Normal(0, 2))
        tau = numpyro.sample("tau", dist.HalfNormal(2))
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        sd = numpyro.sample("sd", dist.HalfNormal(1))
        with numpyro.plate("groups", 20):
            z = numpyro.sample("z", dist.Normal(0, 1))
        with numpyro.plate("rows", len(groups)):
            eta = (mean + tau * z)[groups] + slope * x
            numpyro.sample("y", dist.Normal(eta, sd), obs=y)

    with pytest.raises(ValueError, match=r"within jax.enable_x64\(True\)"):
        laplace_approximation(jc.model_likelihood(non_centred, (groups, x, y)))
    with jax.enable_x64(True):
        found = laplace_approximation(jc.model_likelihood(non_centred, (groups, x, y)))
    assert np.all(found.sd > 0)


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_neighbours_in_a_slow_chain_are_not_new_to_the_solver(correlation):
    """A build then asks the coreset's own posterior."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = X.sum(axis=1) + rng.normal(size=300)
    likelihood = jc.model_likelihood(regression, (X, y))
    noise, chain = rng.normal(size=(2000, 3)), np.zeros((2000, 3))
    for i in range(1, 2000):
        chain[i] = correlation * chain[i - 1] + (1 - correlation**2) ** 0.5 * noise[i]
    source = jc.Draws({"beta": 1 + 0.06 * chain}).fit(likelihood, jax.random.key(0))
    assert source.has_repeats == (correlation > 0)
