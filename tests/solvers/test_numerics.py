"""Arithmetic that the solvers share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcoreset.solvers.arguments import as_integer
from jaxcoreset.solvers.numerics import divide, first_true, project_simplex


def test_a_quotient_is_zero_where_the_denominator_is_not_positive():
    found = divide(jnp.array([1.0, 1.0, 0.0, 3.0]), jnp.array([2.0, 0.0, 0.0, -1.0]))
    np.testing.assert_array_equal(found, [0.5, 0, 0, 0])


@pytest.mark.parametrize("share", [0.0, 0.05, 1.0])
def test_the_first_true_entry_of_each_row(share):
    flags = np.random.default_rng(1).uniform(size=(4, 33)) < share
    expected = np.where(flags.any(-1), flags.argmax(-1), 32)
    np.testing.assert_array_equal(first_true(jnp.asarray(flags)), expected)
    np.testing.assert_array_equal(jax.vmap(first_true)(jnp.asarray(flags)), expected)


def test_without_total_or_allowed_entries_the_projection_is_zero():
    vector, no = jnp.arange(4.0), jnp.zeros(4, bool)
    assert not project_simplex(vector, ~no, 0.0).any()
    assert not project_simplex(vector, no).any()


@pytest.mark.parametrize("value", [2.5, "3", None, True])
def test_what_is_not_an_integer_is_refused(value):
    with pytest.raises(TypeError, match=r"size is .*; expected an integer"):
        as_integer("size", value)


def test_integers_are_checked_against_their_range():
    assert as_integer("size", np.int64(3), 1, 3) == 3
    with pytest.raises(ValueError, match="size is 0; expected at least 1"):
        as_integer("size", 0, 1)
    with pytest.raises(ValueError, match="size is 4; expected 1 ≤ size ≤ 3"):
        as_integer("size", 4, 1, 3)
