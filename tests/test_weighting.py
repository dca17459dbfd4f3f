"""The Laplace approximation and draws that the user brings."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.optimize
import scipy.special

import jaxcoreset as jc
from jaxcoreset import laplace
from jaxcoreset.laplace import laplace_approximation, parameter_names


def logistic(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def regression(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)


def data_of(n, d=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    y = (rng.random(n) < scipy.special.expit(x @ np.arange(1, d + 1) / 2)).astype(int)
    return x, y


@pytest.mark.parametrize("weighted", [False, True])
def test_laplace_of_a_gaussian_posterior_is_exact(weighted):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 4))
    y = x @ np.array([1.0, -1, 0.5, 0]) + 0.5 * rng.normal(size=200)
    weights = rng.random(200) * 3 if weighted else np.ones(200)
    precision = (x.T * weights) @ x / 0.25 + np.eye(4) / 4
    mean = np.linalg.solve(precision, (x.T * weights) @ y / 0.25)
    found = laplace_approximation(
        jc.model_likelihood(regression, (x, y)), weights=weights if weighted else None
    )
    # float32 evaluations: the error is far below the posterior's standard deviation of 0.03.
    np.testing.assert_allclose(found.mode, mean, atol=1e-5)
    np.testing.assert_allclose(found.covariance, np.linalg.inv(precision), rtol=1e-4, atol=1e-7)
    draws = np.asarray(found.draws(jax.random.key(0), 20_000)["beta"])
    np.testing.assert_allclose(draws.mean(0), mean, atol=4 * found.sd.max() / np.sqrt(20_000))
    np.testing.assert_allclose(draws.std(0), found.sd, rtol=0.03)


def test_laplace_of_many_rows_starts_on_some_and_ends_at_scipys_mode(monkeypatch):
    monkeypatch.setattr(laplace, "_WARM_START_ROWS", 2000)
    x, y = data_of(20_000)
    likelihood = jc.model_likelihood(logistic, (x, y))
    found = laplace_approximation(likelihood, key=jax.random.key(1))

    def negative_log_posterior(beta):
        return np.logaddexp(0, -(2 * y - 1) * (x @ beta)).sum() + beta @ beta / 2

    expected = scipy.optimize.minimize(negative_log_posterior, np.zeros(3), tol=1e-10).x
    assert np.max(np.abs(found.mode - expected) / found.sd) < 1e-3
    assert found.num_passes <= 4
    cold = laplace_approximation(likelihood)
    assert np.max(np.abs(found.mode - cold.mode) / found.sd) < 1e-3


def test_laplace_works_on_unconstrained_parameters():
    """A scale's posterior has a mode on the log scale that SciPy finds too, Jacobian included."""
    y = np.random.default_rng(0).normal(size=500) * 1.7

    def model(y):
        s = numpyro.sample("s", dist.LogNormal(0.0, 10.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(0.0, s), obs=y)

    found = laplace_approximation(jc.model_likelihood(model, (y,)))
    log_s = scipy.optimize.minimize_scalar(
        lambda t: 500 * t + (y**2).sum() / 2 * np.exp(-2 * t) + t**2 / 200,
        bounds=(-2, 3),
        method="bounded",
        options={"xatol": 1e-10},
    ).x
    assert found.names == ["s"]
    assert found.mode[0] == pytest.approx(log_s, abs=1e-4)


def test_flat_direction_is_named():
    x, y = data_of(50)

    def model(x, y):
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
        loose = numpyro.sample("loose", dist.ImproperUniform(dist.constraints.real, (), ()))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ beta + 0 * loose), obs=y)

    with pytest.raises(ValueError, match="flat or falling along loose"):
        laplace_approximation(jc.model_likelihood(model, (x, y)))


def test_mode_not_reached_is_told():
    x, y = data_of(300)
    with pytest.raises(ValueError, match=r"not reached in .* mostly along beta\["):
        laplace_approximation(jc.model_likelihood(logistic, (x, y)), max_iters=1)


def test_parameter_names_follow_the_order_of_ravelling():
    params = {"b": np.zeros((2, 2)), "a": np.zeros(()), "c": np.zeros(1)}
    assert parameter_names(params) == ["a", "b[0,0]", "b[0,1]", "b[1,0]", "b[1,1]", "c[0]"]


@pytest.fixture(scope="module")
def likelihood():
    return jc.model_likelihood(logistic, data_of(60))


def test_draws_of_the_user_are_divided_without_overlap(likelihood):
    samples = {"beta": np.arange(300.0).reshape(100, 3), "other": np.zeros(100)}
    source = jc.Draws(samples).fit(likelihood, jax.random.key(0))
    seen, held_out = source.split(jax.random.key(1), 60, 30)
    assert seen["beta"].shape == (60, 3)
    assert held_out["beta"].shape == (30, 3)
    together = np.concatenate([seen["beta"], held_out["beta"]])[:, 0]
    assert len(set(together.tolist())) == 90
    seen, held_out = source.split(jax.random.key(1), 300, 100)
    assert (seen["beta"].shape[0], held_out["beta"].shape[0]) == (75, 25)


def test_draws_are_unconstrained():
    def model(y):
        s = numpyro.sample("s", dist.HalfNormal(1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(0.0, s), obs=y)

    likelihood = jc.model_likelihood(model, (np.ones(5),))
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
        ({"beta": np.ones((20, 2))}, r"wanted \(draws, \*\(3,\)\)"),
        ({"beta": np.full((20, 3), np.nan)}, "not finite"),
    ],
)
def test_bad_draws_are_refused(likelihood, samples, message):
    with pytest.raises(ValueError, match=message):
        jc.Draws(samples).fit(likelihood, jax.random.key(0))


def test_too_few_draws_are_refused(likelihood):
    source = jc.Draws({"beta": np.ones((5, 3))}).fit(likelihood, jax.random.key(0))
    with pytest.raises(ValueError, match="5 draws; wanted at least 8"):
        source.split(jax.random.key(0), 4, 4)
