"""Which models use arrays of 64 bits that are not their arguments."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.reparam import LocScaleReparam

from jaxcoreset.likelihood.closures import float64_for, uses_wide_arrays

KNOTS = np.linspace(-1, 1, 3)
NARROW = KNOTS.astype(np.float32)


def of_the_module(x):
    return x * KNOTS


def narrow(x):
    return jnp.sin(x) * NARROW * np.pi


def with_default(x, knots=KNOTS):
    return x * knots


class Layer:
    def __init__(self, knots):
        self.knots = knots

    def __call__(self, x):
        return x * self.knots

    def method(self, x):
        return x * self.knots


def enclosing(knots):
    return lambda x: x * knots


def calls(function):
    return lambda x: function(x) + 1


def reparametrised(knots):
    @functools.partial(numpyro.handlers.reparam, config={"a": LocScaleReparam(0)})
    def model(x):
        numpyro.sample("a", dist.Normal(x * knots, 1))

    return model


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (of_the_module, True),
        (narrow, False),
        (with_default, True),
        (Layer(KNOTS), True),
        (Layer(NARROW), False),
        (Layer(KNOTS).method, True),
        (enclosing(KNOTS), True),
        (enclosing(NARROW), False),
        (calls(of_the_module), True),
        (calls(calls(narrow)), False),
        (functools.partial(with_default, knots=NARROW), True),
        (functools.partial(narrow, KNOTS), True),
        (reparametrised(KNOTS), True),
        (reparametrised(NARROW), False),
        (calls({"knots": KNOTS}), True),
        (enclosing(np.arange(3)), True),
    ],
)
def test_wide_arrays_are_found(model, expected):
    assert uses_wide_arrays(model) == expected


def test_both_precisions_are_right_after_one_another():
    x = np.ones(3, np.float32)

    def slope(z):
        # An operation for each array, as JAX makes one of it.
        return jnp.sum(jnp.maximum(z[:, None] + jnp.zeros(3) - KNOTS, 0))

    for _ in range(2):
        assert jax.jit(lambda z: slope(z) * 1)(x).dtype == np.float32
        with float64_for(slope):
            assert jax.jit(lambda z: slope(z) * 1)(x.astype(np.float64)).dtype == np.float64


def test_programs_are_kept_where_no_such_array_is_used():
    num_traced = 0

    @jax.jit
    def program(x):
        nonlocal num_traced
        num_traced += 1
        return x * 2

    program(1.0)
    with float64_for(narrow):
        pass
    program(1.0)
    assert num_traced == 1
