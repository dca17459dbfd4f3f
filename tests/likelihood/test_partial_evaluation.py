"""Functions of an effect that keep what does not change, and their own log(1 + x)."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxcoreset.likelihood.partial_evaluation import prepare

POINTS = np.r_[-np.logspace(-10, -0.01, 40), 0, np.logspace(-30, 30, 80)].astype(np.float32)


def log1p():
    prepared = prepare(lambda one: jnp.sum(jnp.log1p(one)), jnp.zeros(1))
    return lambda x: prepared(x[None])


def test_log1p_of_a_prepared_function_is_that_of_numpy_with_its_derivatives():
    prepared = log1p()
    exact = POINTS.astype(np.float64)
    np.testing.assert_allclose(jax.jit(jax.vmap(prepared))(POINTS), np.log1p(exact), rtol=1e-6)
    slope = jax.jit(jax.vmap(jax.grad(prepared)))
    np.testing.assert_allclose(slope(POINTS), 1 / (1 + exact), rtol=1e-5)
    bend = jax.jit(jax.vmap(jax.grad(jax.grad(prepared))))
    at = POINTS[np.abs(POINTS) < 1e10]
    np.testing.assert_allclose(bend(at), -1 / (1 + at.astype(np.float64)) ** 2, rtol=1e-5)


def test_log1p_has_the_limits_of_numpy():
    found = jax.vmap(log1p())(jnp.array([-1.0, jnp.inf, -2.0, jnp.nan]))
    np.testing.assert_array_equal(found, [-np.inf, np.inf, np.nan, np.nan])
