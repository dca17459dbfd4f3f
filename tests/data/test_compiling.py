"""Programs that are compiled quickly, and programs that are compiled to run fast."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcoreset.data import compiling
from jaxcoreset.data.compiling import fast_jit, quick_jit

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
