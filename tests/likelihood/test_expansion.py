"""The expansion of all rows, the rows' remainders, and the proxy, against JAX and brute force."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density

from jaxcoreset.likelihood.expansion import (
    Proxy,
    _weighted_terms,
    flat_draws,
    remainders,
    terms_of_rows,
)
from jaxcoreset.likelihood.from_model import model_likelihood
from jaxcoreset.likelihood.weighted import weighted_model
from jaxcoreset.weighting.laplace import LaplaceFitter, laplace_approximation


def regression(X, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
    shape = numpyro.sample("shape", dist.Gamma(3.0, 1.0))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Gamma(shape, shape * jnp.exp(-X @ b)), obs=y)


def data(num=60, seed=0):
    random = np.random.default_rng(seed)
    X = np.c_[np.ones(num), random.normal(size=(num, 2))]
    return X, random.gamma(2.0, np.exp(X @ [1.0, 0.4, -0.3]) / 2.0)


@pytest.fixture(scope="module")
def fitted():
    likelihood = model_likelihood(regression, data())
    return likelihood, laplace_approximation(likelihood)


def exact(likelihood, flat, rows):
    """Log-likelihoods of rows in float64, with their derivatives by JAX."""
    with jax.enable_x64(True):
        found = _derivatives(likelihood, jnp.asarray(flat, float), rows)
        return [np.asarray(x) for x in found]


@functools.partial(jax.jit, static_argnums=0)
def _derivatives(likelihood, flat, rows):
    def values(flat):
        return likelihood.log_likelihood(likelihood.unravel(flat), rows)

    return values(flat), jax.jacobian(values)(flat), jax.hessian(values)(flat)


def test_the_expansion_of_all_rows_is_that_of_jax(fitted):
    likelihood, laplace = fitted
    expansion = laplace.expansion
    values, gradients, hessians = exact(likelihood, expansion.center, likelihood.data)
    np.testing.assert_allclose(expansion.value, values.sum(), rtol=1e-5)
    np.testing.assert_allclose(expansion.gradient, gradients.sum(0), atol=1e-3)
    np.testing.assert_allclose(expansion.hessian, hessians.sum(0), rtol=1e-4, atol=1e-3)
    # With the prior it is the precision of the Laplace approximation.
    np.testing.assert_allclose(np.linalg.inv(expansion.precision), laplace.covariance, rtol=1e-4)


def smooth(basis, y=None):
    """A Gaussian process by basis functions, as in the case that ended in a LinAlgError."""
    length = numpyro.sample("length", dist.InverseGamma(5.0, 1.0))
    sd = numpyro.sample("sd", dist.HalfNormal(1.0))
    z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([basis.shape[1]]).to_event(1))
    scales = jnp.exp(-0.25 * (length * jnp.arange(1, basis.shape[1] + 1)) ** 2)
    with numpyro.plate("rows", basis.shape[0]):
        numpyro.sample("y", dist.Normal(basis @ (scales * z), sd), obs=y)


def test_hessians_are_symmetric_in_float32():
    random = np.random.default_rng(0)
    basis = np.sin(random.uniform(0, 3, (2000, 1)) * np.arange(1, 7))
    y = basis[:, 0] + 0.3 * random.normal(size=2000)
    likelihood = model_likelihood(smooth, (basis, y))
    hessian = LaplaceFitter(likelihood).terms_at(np.r_[0.0, -1.0, np.ones(6)]).hessian
    np.testing.assert_array_equal(hessian, hessian.T)


def test_remainders_are_what_the_expansions_leave(fitted):
    likelihood, laplace = fitted
    center = laplace.expansion.center
    draws = laplace.draws(jax.random.key(0), 7)
    found = remainders(likelihood, draws, likelihood.data, center)
    values, gradients, hessians = exact(likelihood, center, likelihood.data)
    for at, flat in enumerate(flat_draws(draws)):
        delta = flat - center
        taylor = values + gradients @ delta + 0.5 * hessians @ delta @ delta
        expected = exact(likelihood, flat, likelihood.data)[0] - taylor
        np.testing.assert_allclose(found[:, at], expected, rtol=1e-8, atol=1e-11)


def test_the_fade_is_one_near_the_mode_and_zero_far_from_it(fitted):
    expansion = fitted[1].expansion
    factor = np.linalg.cholesky(np.linalg.inv(expansion.precision))
    directions = np.random.default_rng(0).normal(size=(5, 4))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    for radius in (0.0, 2.0, 5.9, 6.0, 6.3, 20.0):
        flat = expansion.center + radius * directions @ factor.T
        expected = 1 / (1 + np.exp(-(np.sqrt(4) + 4 - radius) / 0.5))
        np.testing.assert_allclose(expansion.fade(flat), expected, rtol=1e-6, atol=1e-12)
    assert expansion.fade(expansion.center[None])[0] > 0.99999


@pytest.mark.parametrize("weights", [[0.5, 20.0, 7.0], [0.0, 0.0, 0.0]])
def test_the_model_with_a_proxy_has_the_density_of_its_formula(fitted, weights):
    likelihood, laplace = fitted
    expansion, weights = laplace.expansion, np.array(weights)
    rows = likelihood.take([3, 20, 41])
    used = weights > 0
    kept = tuple(leaf[used] for leaf in rows)
    terms = terms_of_rows(likelihood, kept, weights[used], expansion.center)
    proxy = Proxy.of(expansion, terms, likelihood.unravel)
    model = weighted_model(likelihood, weights, proxy=proxy)
    values, gradients, hessians = exact(likelihood, expansion.center, rows)
    density_of = jax.jit(lambda params: log_density(model, rows, {}, params)[0])
    with jax.enable_x64(True):
        for flat in flat_draws(laplace.draws(jax.random.key(1), 3)) * [[1], [1.5], [4.0]]:
            delta = flat - expansion.center
            taylor = values + gradients @ delta + 0.5 * hessians @ delta @ delta
            left = weights @ (exact(likelihood, flat, rows)[0] - taylor)
            expected = expansion.at(flat[None])[0] + expansion.fade(flat[None])[0] * left
            params = likelihood.unravel(flat)
            density = density_of(likelihood.constrain(params))
            # `log_density` has no Jacobian of the transform, which the prior of a likelihood has.
            jacobian = float(params["shape"])
            found = float(density) + jacobian - float(likelihood.log_prior(params))
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_the_terms_of_weighted_rows_are_those_of_jax_and_share_a_program(fitted):
    likelihood, laplace = fitted
    programs = set()
    for count in (1, 3, 150):
        rows = likelihood.take(np.arange(count) % likelihood.num_data)
        weights = np.resize([3.0, 0.5, 7.0], count)
        found = terms_of_rows(likelihood, rows, weights, laplace.mode)
        programs.add(_weighted_terms.alone()._cache_size())
        values, gradients, hessians = exact(likelihood, laplace.mode, rows)
        np.testing.assert_allclose(found.value, weights @ values, rtol=1e-10)
        np.testing.assert_allclose(found.gradient, weights @ gradients, rtol=1e-10)
        np.testing.assert_allclose(found.hessian, np.tensordot(weights, hessians, 1), rtol=1e-10)
    assert len(programs) == 1


def test_the_terms_of_a_thousand_rows_and_more_are_those_of_jax(fitted):
    likelihood, laplace = fitted
    rows = likelihood.take(np.arange(1100) % likelihood.num_data)
    weights = np.resize([3.0, 0.5, 7.0], 1100)
    found = terms_of_rows(likelihood, rows, weights, laplace.mode)
    values, gradients, hessians = exact(likelihood, laplace.mode, rows)
    np.testing.assert_allclose(found.value, weights @ values, rtol=1e-10)
    np.testing.assert_allclose(found.gradient, weights @ gradients, rtol=1e-10)
    np.testing.assert_allclose(found.hessian, np.tensordot(weights, hessians, 1), rtol=1e-10)


def test_a_point_where_the_posterior_would_not_be_proper_has_no_expansion(fitted):
    likelihood, laplace = fitted
    fitter = LaplaceFitter(likelihood)
    assert fitter.expand(laplace.mode) is not None

    def saddle(X, y=None):
        a = numpyro.sample("a", dist.Normal(0.0, 10.0))
        b = numpyro.sample("b", dist.Normal(0.0, 10.0))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.Normal(a * b, 1.0), obs=y)

    X, y = data()
    other = LaplaceFitter(model_likelihood(saddle, (X, y)))
    assert other.expand(np.zeros(2)) is None


def test_a_proxy_is_kept_as_arrays(fitted):
    likelihood, laplace = fitted
    terms = terms_of_rows(likelihood, likelihood.take([1]), np.array([2.0]), laplace.mode)
    proxy = Proxy.of(laplace.expansion, terms, likelihood.unravel)
    plain = proxy.to_dict()
    again = Proxy.from_dict(plain)
    assert again.unravel == proxy.unravel
    jax.tree.map(np.testing.assert_array_equal, again, proxy)
    with pytest.raises(ValueError, match="hessian of the proxy"):
        Proxy.from_dict(plain | {"hessian": plain["hessian"][:2]})
    with pytest.raises(ValueError, match="gradient of the proxy"):
        Proxy.from_dict(plain | {"gradient": np.full(4, np.nan)})
