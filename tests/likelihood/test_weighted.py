"""The weighted model: NumPyro's own inference on weighted rows."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats as st
from numpyro.handlers import condition
from numpyro.infer import MCMC, NUTS, Predictive, init_to_value, log_likelihood
from numpyro.infer.util import log_density

from jaxcoreset.likelihood import ModelError, weighted_model
from tests import models
from tests.models import DIMS, FLOAT32, density, normal_data, normal_model


@pytest.fixture(scope="module")
def weighted():
    model, (X, y), _ = models.linear()
    return weighted_model(model, np.full(10, 4.0), DIMS), (X[::4], y[::4])


def test_weighted_model_runs_under_nuts_and_finds_the_exact_posterior_mean():
    X, y = normal_data(6)
    weights = np.array([1.0, 3.0, 0.0, 0.5, 2.0, 10.0])
    model = weighted_model(normal_model, weights, DIMS)
    kernel = NUTS(model, init_strategy=init_to_value(values={"b": 0.0}))
    mcmc = MCMC(kernel, num_warmup=100, num_samples=400, progress_bar=False)
    mcmc.run(jax.random.key(0), X, y)
    precision = 1.0 + weights @ X**2
    draws = np.asarray(mcmc.get_samples()["b"])
    # About 200 effective draws: a standard error of 0.07 sd, four of which are allowed.
    assert abs(draws.mean() - (weights * X) @ y / precision) < 0.28 / np.sqrt(precision)


def test_weighted_model_predicts_new_rows_without_weights(weighted):
    model, _ = weighted
    draws = {"a": jnp.zeros(3), "b": jnp.ones((3, 2)), "s": jnp.full(3, 1e-4)}
    X = np.arange(14.0).reshape(7, 2)
    predicted = Predictive(model, draws)(jax.random.key(0), X)["y"]
    # A standard deviation of 1e-4 leaves the mean, to within five of them and float32.
    np.testing.assert_allclose(predicted, np.tile(X.sum(axis=1), (3, 1)), atol=1e-3)


def test_weighted_model_gives_the_unweighted_log_likelihood(weighted):
    model, (X, y) = weighted
    draws = {"a": jnp.zeros(2), "b": jnp.ones((2, 2)), "s": jnp.ones(2)}
    values = log_likelihood(model, draws, X, y)["y"]
    np.testing.assert_allclose(values[1], st.norm.logpdf(y, X.sum(axis=1)), **FLOAT32)


def test_weighted_model_refuses_observations_of_another_number(weighted):
    model, (X, y) = weighted
    params = {"a": 0.0, "b": np.zeros(2), "s": 1.0}
    with pytest.raises(ModelError, match=r"site 'y' is observed with 9 rows.*weights for 10"):
        log_density(model, (X[:9], y[:9]), {}, params)


def test_weights_apply_to_observations_by_an_outer_condition_handler(weighted):
    model, (X, y) = weighted
    params = {"a": 0.1, "b": np.ones(2), "s": 1.0}
    inside = density(model, (X, y), {}, params)
    outside = density(condition(model, {"y": jnp.asarray(y)}), (X,), {}, params)
    np.testing.assert_allclose(outside, inside, rtol=1e-6)


def test_weights_apply_to_a_scalar_distribution_that_is_conditioned_outside():
    def model(y=None):
        numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal()), 1.0), obs=y)

    y, weights = np.array([0.3, -1.0, 2.0]), np.array([2.0, 0.0, 5.0])
    weighted = weighted_model(model, weights, DIMS)
    value = density(condition(weighted, {"y": jnp.asarray(y)}), (), {}, {"m": 0.4})
    expected = weights @ st.norm.logpdf(y, 0.4) + st.norm.logpdf(0.4)
    np.testing.assert_allclose(value, expected, **FLOAT32)


def test_weights_may_be_traced():
    X, y = normal_data(6)

    def total(weights):
        return log_density(weighted_model(normal_model, weights, DIMS), (X, y), {}, {"b": 0.3})[0]

    gradient = jax.jit(jax.grad(total))(jnp.ones(6))
    np.testing.assert_allclose(gradient, st.norm.logpdf(y, 0.3 * X), **FLOAT32)


def test_weighted_models_compare_by_model_and_weights_and_can_be_pickled():
    model = weighted_model(normal_model, [1.0, 2.0, 0.0, 3.0], DIMS)
    same = weighted_model(normal_model, np.array([1.0, 2.0, 0.0, 3.0]), dict(DIMS))
    other = weighted_model(normal_model, [1.0, 2.0, 0.5, 3.0], DIMS)
    assert model == same == pickle.loads(pickle.dumps(model))
    assert hash(model) == hash(same)
    assert model != other


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, -0.5], r"weights\[1\] is -0.5"),
        ([1.0, np.nan], r"weights\[1\] is nan"),
        (np.ones((2, 2)), r"shape \(2, 2\)"),
    ],
)
def test_bad_weights_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        weighted_model(normal_model, weights, DIMS)


def test_bare_model_without_data_dims_is_refused():
    with pytest.raises(ValueError, match="without data_dims"):
        weighted_model(normal_model, [1.0])


def test_weights_of_sites_that_the_model_does_not_observe_are_refused():
    def model(X, y, extra=None):
        slope = numpyro.sample("slope", dist.Normal())
        if extra is not None:
            numpyro.sample("extra", dist.Normal(slope, 1), obs=extra)
        with numpyro.plate("rows", len(X)):
            numpyro.sample("obs", dist.Normal(slope * X, 1), obs=y)

    X, y = np.ones(3), np.zeros(3)
    with pytest.raises(ModelError, match=r"for the sites \['y'\].*observes \['obs'\]"):
        log_density(weighted_model(model, np.ones(3), {"y": -1}), (X, y), {}, {"slope": 1.0})
    with pytest.raises(ValueError, match="without data_dims"):
        weighted_model(model, np.ones(3), {})
    # Other observed sites are not weighted.
    both = weighted_model(model, np.ones(3), {"obs": -1})
    assert np.isfinite(log_density(both, (X, y, 0.5), {}, {"slope": 1.0})[0])
