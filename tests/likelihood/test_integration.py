"""The search for the mode of a group's effect."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import dblquad

from jaxcoreset.likelihood.integration import (
    AdaptiveQuadrature,
    LaplaceIntegral,
    default_integration,
    find_mode,
)
from tests.loops import rounding_conditions


def _mode(shift, slope):
    """Of a log-density whose curvature changes from one point to another."""
    return find_mode(lambda z: -jnp.sum(jnp.log(jnp.cosh(z - shift)) + z**2 / 8 + slope * z), 1)


def test_the_search_does_not_go_on_by_what_it_rounds():
    assert not rounding_conditions(_mode, jnp.ones(1), jnp.ones(1))


def test_modes_of_a_batch_have_no_slope_and_are_those_alone():
    rng = np.random.default_rng(0)
    shifts, slopes = (jnp.asarray(rng.normal(size=(500, 1)) * s) for s in (3.0, 0.5))
    modes, factors = jax.jit(jax.vmap(_mode))(shifts, slopes)
    left = -np.tanh(modes - shifts) - modes / 4 - slopes
    np.testing.assert_allclose(left, 0, atol=2e-3)
    curvature = 1 / np.cosh(modes - shifts) ** 2 + 1 / 4
    np.testing.assert_allclose(factors[:, 0], curvature**0.5, rtol=0.02)
    alone = jax.jit(_mode)
    for i in (0, 123):
        np.testing.assert_allclose(alone(shifts[i], slopes[i])[0], modes[i], atol=1e-4)


_RNG = np.random.default_rng(1)
_X = np.stack([np.ones(30), _RNG.normal(size=30)], axis=1)
_Y = _RNG.random(30) < 0.3


def _logistic(scale, xp=jnp):
    """The log-density of two effects of a group with thirty binary rows."""

    def log_density(z):
        logits = _X @ z + 0.2
        return xp.sum(_Y * logits - xp.logaddexp(0.0, logits)) - xp.sum((z / scale) ** 2) / 2

    return log_density


def _log_marginal(scale):
    log_density = _logistic(scale)
    fixed = _logistic(jax.lax.stop_gradient(scale))
    return default_integration(2).log_integral(fixed, log_density, 2)


def test_two_effects_are_integrated_as_scipy_does_with_derivatives():
    scale, offset = jnp.array([0.9, 0.6]), 15  # nats, so that `dblquad` integrates numbers near one

    def expected(scale):
        log_density = _logistic(np.asarray(scale), np)

        def density(b, a):
            return np.exp(log_density(np.array([a, b])) + offset)

        return np.log(dblquad(density, -6, 6, -4, 4, epsabs=0, epsrel=1e-7)[0]) - offset

    value, slope = jax.jit(jax.value_and_grad(_log_marginal))(scale)
    assert float(value) == pytest.approx(expected([0.9, 0.6]), abs=1e-3)
    numeric = (expected([0.91, 0.6]) - expected([0.89, 0.6])) / 0.02
    assert float(slope[0]) == pytest.approx(numeric, abs=2e-3)


def test_more_than_two_effects_are_integrated_by_laplace_and_fewer_by_quadrature():
    assert default_integration(1) == AdaptiveQuadrature(num_nodes=9)
    assert default_integration(2) == AdaptiveQuadrature(num_nodes=5)
    assert default_integration(3) == LaplaceIntegral()


def test_derivatives_are_right_where_the_search_ends():
    @jax.jit
    def found(scale):
        log_density = _logistic(scale)
        mode, factor = find_mode(log_density, 2)
        return factor, jax.grad(log_density)(mode), jax.hessian(log_density)(mode)

    factor, slope, curvature = found(jnp.array([0.9, 0.6]))
    np.testing.assert_allclose(slope, 0, atol=1e-3)
    np.testing.assert_allclose(factor @ factor.T, -curvature, rtol=0.02)
