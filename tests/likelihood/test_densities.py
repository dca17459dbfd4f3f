"""Log-densities in faster forms, against NumPyro's own and SciPy's."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.special import log_expit
from scipy.stats import beta

from jaxcoreset.likelihood.densities import bernoulli_log_prob, plain_log_prob

LOGITS = np.float32(np.concatenate([np.linspace(-99, 99, 1001), [0, 1e-30, -1e-30, 1e30, -1e30]]))


@pytest.mark.parametrize(("y", "dtype"), [(0, "f4"), (1, "f4"), (1, "f8")])
def test_bernoulli_is_scipys(y, dtype):
    with jax.enable_x64(dtype == "f8"):
        found = bernoulli_log_prob(jnp.asarray(LOGITS, dtype), jnp.full(LOGITS.size, y))
    # A float32 below 1e-37 is zero to XLA. In the tail NumPyro's own is zero from 1e-7 on.
    close = {"rtol": 5e-7, "atol": 2e-38} if dtype == "f4" else {"rtol": 1e-15}
    np.testing.assert_allclose(found, log_expit((2 * y - 1) * np.float64(LOGITS)), **close)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_bernoulli_and_its_derivatives_are_numpyros(order):
    def numpyros(z, y):
        return dist.BernoulliLogits(z, validate_args=False).log_prob(y)

    def ours(z, y):
        return plain_log_prob(dist.BernoulliLogits(z, validate_args=False), y)

    z, y = map(jnp.ravel, jnp.meshgrid(jnp.linspace(-20, 20, 82), jnp.array([0.0, 0.3, 1.0])))
    for _ in range(order):
        numpyros, ours = jax.grad(numpyros), jax.grad(ours)
    found, expected = jax.jit(lambda z, y: (jax.vmap(ours)(z, y), jax.vmap(numpyros)(z, y)))(z, y)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("z", [-np.inf, np.inf])
@pytest.mark.parametrize("y", [0, 1])
def test_infinite_logits_are_certain(z, y):
    expected = 0.0 if y == (z > 0) else -np.inf
    assert bernoulli_log_prob(jnp.asarray(z, jnp.float32), y) == expected
    assert np.isnan(bernoulli_log_prob(jnp.nan, y))


def test_a_response_outside_the_support_has_no_probability():
    checked = dist.BernoulliLogits(jnp.zeros(3), validate_args=True)
    value = jnp.array([0.0, 1.0, 2.0])
    expected = jax.jit(checked.log_prob)(value)
    assert expected[2] == -jnp.inf
    np.testing.assert_allclose(plain_log_prob(checked, value), expected)


def _of_beta(a, b, y):
    of_proportion = dist.BetaProportion(a / 50, 50.0, validate_args=False)
    return plain_log_prob(dist.Beta(a, b, validate_args=False), y), plain_log_prob(of_proportion, y)


@pytest.mark.parametrize("double", [False, True])
def test_beta_is_scipys(double):
    a, b, y = np.meshgrid([0.3, 1.0, 2.5, 40.0], [0.5, 1.0, 7.0], [1e-6, 0.2, 0.9, 0.999])
    with jax.enable_x64(double):
        given = [jnp.asarray(x, float) for x in (a, b, y)]
        found, mean = jax.jit(_of_beta)(*given)
    exact = [np.asarray(x, np.float64) for x in given]
    tolerance = {"rtol": 1e-12 if double else 2e-5, "atol": 1e-12 if double else 1e-4}
    np.testing.assert_allclose(found, beta.logpdf(exact[2], *exact[:2]), **tolerance)
    expected = beta.logpdf(exact[2], exact[0], 50 - exact[0])
    np.testing.assert_allclose(mean, expected, **tolerance)


def test_slopes_of_beta_are_numpyros_and_outside_it_has_no_probability():
    def slope(density):
        return jax.grad(lambda a: density(dist.Beta(a, 3.0, validate_args=False), 0.3))(2.0)

    ours, numpyros = jax.jit(
        lambda: (slope(plain_log_prob), slope(lambda beta, y: beta.log_prob(y)))
    )()
    np.testing.assert_allclose(ours, numpyros, rtol=1e-5)
    checked = dist.Beta(jnp.full(2, 2.0), 3.0, validate_args=True)
    assert jax.jit(plain_log_prob)(checked, jnp.array([0.5, 1.5]))[1] == -jnp.inf


def test_other_densities_are_numpyros():
    normal = dist.Normal(1.0, 2.0)
    assert plain_log_prob(normal, 0.5) == normal.log_prob(0.5)
