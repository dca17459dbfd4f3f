"""The search for the mode of a group's effect."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxcoreset.likelihood.integration import find_mode
from tests.loops import rounding_conditions


def _mode(shift, slope):
    """Of a log-density whose curvature changes from one point to another."""
    return find_mode(lambda z: -jnp.sum(jnp.log(jnp.cosh(z - shift)) + z**2 / 8 + slope * z), 1)


def test_the_search_does_not_go_on_by_what_it_rounds():
    assert not rounding_conditions(_mode, jnp.ones(1), jnp.ones(1))


def test_modes_of_a_batch_have_no_slope_and_are_those_alone():
    rng = np.random.default_rng(0)
    shifts, slopes = (jnp.asarray(rng.normal(size=(500, 1)) * s) for s in (3.0, 0.5))
    modes, factors = jax.vmap(_mode)(shifts, slopes)
    left = -jnp.tanh(modes - shifts) - modes / 4 - slopes
    np.testing.assert_allclose(left, 0, atol=2e-3)
    curvature = 1 / jnp.cosh(modes - shifts) ** 2 + 1 / 4
    np.testing.assert_allclose(factors[:, 0], curvature**0.5, rtol=0.02)
    for i in (0, 123):
        np.testing.assert_allclose(_mode(shifts[i], slopes[i])[0], modes[i], atol=1e-4)
