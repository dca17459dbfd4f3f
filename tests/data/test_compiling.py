"""Programs that are compiled quickly, and programs that are compiled to run fast."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcoreset.data import compiling
from jaxcoreset.data.compiling import (
    fast_jit,
    largest_size,
    quick_jit,
    rows_at,
    shared_program,
)

POINTS = np.linspace(-1, 1, 5, dtype=np.float32)


def _twice_the_sine(x):
    return 2 * jnp.sin(x)


@pytest.mark.parametrize("compiled", [quick_jit, fast_jit])
@pytest.mark.parametrize("jit", [jax.jit, eqx.filter_jit])
def test_values_are_those_of_the_function_under_all_transformations(compiled, jit):
    """JAX refuses a compiler's options within another program, even if all is constant there."""
    function = compiled(_twice_the_sine, jit=jit)
    transformed = {
        "alone": lambda x: jnp.stack([function(one) for one in x]),
        "jit": jax.jit(function),
        "vmap": jax.vmap(function),
        "jit of vmap": jax.jit(jax.vmap(function)),
        "map": lambda x: jax.lax.map(function, x),
        "constant within jit": jax.jit(lambda x: x * 0 + function(POINTS)),
    }
    for name, run in transformed.items():
        np.testing.assert_allclose(run(POINTS), 2 * np.sin(POINTS), rtol=1e-6, err_msg=name)
    slope = jax.vmap(jax.grad(function))(POINTS)
    np.testing.assert_allclose(slope, 2 * np.cos(POINTS), rtol=1e-6)
    jax.jit(jax.hessian(function))(0.5)


def test_a_method_and_static_arguments_are_compiled_too():
    class Scale(eqx.Module):
        scale: float

        @functools.partial(quick_jit, jit=eqx.filter_jit)
        def __call__(self, x):
            return self.scale * x

    assert Scale(3.0)(jnp.asarray(2.0)) == 6.0
    assert jax.jit(lambda x: Scale(3.0)(x))(2.0) == 6.0

    @functools.partial(quick_jit, static_argnums=1)
    def ones(x, num):
        return x * jnp.ones(num)

    assert ones(2.0, 3).shape == (3,)


def test_a_compiler_without_the_option_is_asked_for_nothing(monkeypatch):
    monkeypatch.setattr(compiling, "_OPTION", "xla_option_of_another_version")
    compiling._knows_option.cache_clear()
    try:
        assert quick_jit(_twice_the_sine)(0.0) == 0.0
        assert not compiling._knows_option()
    finally:
        compiling._knows_option.cache_clear()


def test_options_reach_the_compiler(monkeypatch):
    """An option that XLA does not know is an error, unless nobody asked whether it does."""
    monkeypatch.setattr(compiling, "_OPTION", "xla_option_of_another_version")
    monkeypatch.setattr(compiling, "_knows_option", lambda: True)
    with pytest.raises(jax.errors.JaxRuntimeError, match="another_version"):
        quick_jit(_twice_the_sine)(0.0)


def _compiled(call):
    """What a call returns, and how many programs were compiled for it."""
    found = []

    def listen(event, duration_secs, **about):
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(about)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        return call(), len(found)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_functions_of_one_code_share_a_program_and_others_do_not():
    x = np.arange(3, dtype=np.float32)

    def doubled(name, factor):
        return shared_program(lambda values: {name: factor * values}, x)

    first, num = _compiled(lambda: doubled("a", np.float32(2.5)))
    assert num >= 1
    again, num = _compiled(lambda: doubled("a", np.float32(2.5)))
    assert (again is first, num) == (True, 0)
    for other in (doubled("a", np.float32(3.5)), doubled("b", np.float32(2.5))):
        assert other is not first
    np.testing.assert_array_equal(first(x)["a"], 2.5 * x)
    np.testing.assert_array_equal(doubled("a", np.float32(3.5))(x + 1)["a"], 3.5 * (x + 1))
    np.testing.assert_array_equal(doubled("b", np.float32(2.5))(x)["b"], 2.5 * x)


def test_functions_that_call_python_do_not_share_a_program():
    x = np.arange(3, dtype=np.float32)

    def called(function):
        like = jax.ShapeDtypeStruct((3,), np.float32)
        return shared_program(lambda values: jax.pure_callback(function, like, values), x)

    np.testing.assert_array_equal(called(lambda v: np.asarray(v) + 1)(x), x + 1)
    np.testing.assert_array_equal(called(lambda v: np.asarray(v) + 2)(x), x + 2)


def test_rows_and_the_largest_size_are_numpys():
    values = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    values[1, 0] = -7.0
    at = np.array([4, 0, 1, 4])
    for array in (values, jax.device_put(values)):
        found = rows_at(array, at)
        assert isinstance(found, type(array))
        np.testing.assert_array_equal(found, values[at])
        assert largest_size(array) == 7
    assert np.isnan(largest_size(jax.device_put(np.array([1.0, np.nan]))))
