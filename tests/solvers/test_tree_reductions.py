"""Reductions of short arrays, compared with NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcoreset.solvers.exchange.tree_reductions import first_true, tree_any, tree_max, tree_sum

SHAPES = [(1,), (2,), (31,), (32,), (33,), (130,), (500,), (4096,), (5000,), (8, 500), (3, 0, 70)]


@pytest.mark.parametrize("shape", SHAPES)
def test_largest(shape):
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    np.testing.assert_array_equal(tree_max(jnp.asarray(values)), values.max(-1))
    values[...] = -np.inf
    np.testing.assert_array_equal(tree_max(jnp.asarray(values)), values.max(-1))


@pytest.mark.parametrize("shape", SHAPES)
def test_sum(shape):
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    expected, sizes = values.sum(-1, dtype=np.float64), np.abs(values).sum(-1)
    assert np.all(np.abs(tree_sum(jnp.asarray(values)) - expected) <= 4e-7 * sizes)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_first_and_any(shape, share):
    flags = np.random.default_rng(1).uniform(size=shape) < share
    found = first_true(jnp.asarray(flags))
    assert found.dtype == jnp.int32
    np.testing.assert_array_equal(found, np.where(flags.any(-1), flags.argmax(-1), shape[-1] - 1))
    np.testing.assert_array_equal(tree_any(jnp.asarray(flags)), flags.any(-1))


def test_what_is_not_a_number_is_the_largest():
    values = jnp.arange(100.0).at[40].set(jnp.nan)
    assert np.isnan(tree_max(values))


def test_elements_of_a_batch_are_reduced_separately():
    values = jax.random.normal(jax.random.key(0), (4, 77))
    np.testing.assert_array_equal(jax.vmap(tree_max)(values), values.max(1))
    np.testing.assert_array_equal(jax.vmap(first_true)(values > 1), jnp.argmax(values > 1, axis=1))
