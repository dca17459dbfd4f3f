"""Likelihoods that compute the same share a compiled program, and no other ones do."""

import gc
import weakref
from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import jaxcoreset as jc
from jaxcoreset.likelihood import program

NUM_ROWS = 300


def table(seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(NUM_ROWS, 2)).astype(np.float32)
    return x, (x @ np.ones(2) + generator.normal(size=NUM_ROWS)).astype(np.float32)


def regression(prior=lambda: 1.0, noise=lambda: 1.0, mean=lambda x, slopes: x @ slopes):
    """A new model, which asks for its settings each time that it runs."""

    def model(x, y=None, sd=1.0):
        scale = prior() * (sd if isinstance(sd, float) else sd[0])
        slopes = numpyro.sample("slopes", dist.Normal(0, scale).expand([2]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(mean(x, slopes), noise()), obs=y)

    return model


def likelihood_of(model, *data, **constants):
    return jc.model_likelihood(model, data or table(), constants)


def posterior(likelihood):
    """What compiled programs find: the mode, and a matrix of log-likelihoods."""
    found = jc.laplace_approximation(likelihood)
    draws = found.draws(jax.random.key(0), 20)
    evaluate = likelihood.program.log_likelihood
    return found, np.asarray(jc.embed(evaluate, draws, likelihood.data).atoms)


def ridge(x, y, noise=1.0, prior=1.0):
    """The posterior mode in closed form, in float64."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    return np.linalg.solve(x.T @ x / noise**2 + np.eye(2) / prior**2, x.T @ y / noise**2)


def test_models_made_anew_share_a_program_and_give_their_own_posterior():
    first, second = (likelihood_of(regression(), *table(seed)) for seed in (0, 1))
    assert first.program is second.program
    for seed, one in enumerate((first, second)):
        mode = posterior(one)[0].mode
        np.testing.assert_allclose(mode, ridge(*table(seed)), rtol=1e-4)


def test_a_closed_over_array_that_is_changed_gives_another_program():
    noise = np.array(1.0, np.float32)
    model = regression(noise=lambda: noise)
    for value in (1.0, 0.5, 1.0, 2.0):
        noise[...] = value
        mode = posterior(likelihood_of(model))[0].mode
        np.testing.assert_allclose(mode, ridge(*table(), noise=value), rtol=1e-4)


def test_a_large_array_inside_a_compiled_function_of_the_model_is_seen():
    shift = np.zeros(5_000, np.float32)

    @jax.jit
    def shifted(x, slopes):
        return x @ slopes + jnp.asarray(shift)[4_321]

    x, y = table()
    for value in (0.0, 3.0):
        shift[4_321] = value
        jax.clear_caches()  # JAX itself keeps what `shifted` was
        mode = posterior(likelihood_of(regression(mean=shifted), x, y))[0].mode
        np.testing.assert_allclose(mode, ridge(x, y - value), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("value", [0.2, 0.05])
def test_a_setting_of_the_prior_gives_another_program(value):
    setting = [1.0]
    model = regression(prior=lambda: setting[0])
    posterior(likelihood_of(model))
    setting[0] = value
    mode = posterior(likelihood_of(model))[0].mode
    np.testing.assert_allclose(mode, ridge(*table(), prior=value), rtol=1e-3)


@pytest.mark.parametrize("kind", ["constant", "column"])
def test_an_argument_of_the_prior_gives_another_program(kind):
    # A column that is the same in all rows may be in the prior, although it holds rows.
    x, y = table()
    for value in (1.0, 0.1):
        sd = value if kind == "constant" else np.full(NUM_ROWS, value, np.float32)
        likelihood = jc.model_likelihood(regression(), (x, y), {"sd": sd})
        mode = posterior(likelihood)[0].mode
        np.testing.assert_allclose(mode, ridge(x, y, prior=value), rtol=1e-3)


def test_a_rule_for_derivatives_gives_another_program():
    slope = [1.0]

    @jax.custom_jvp
    def same(x):
        return x

    same.defjvp(lambda primals, tangents: (primals[0], slope[0] * tangents[0]))
    model = regression(mean=lambda x, slopes: x @ same(slopes))
    first = likelihood_of(model).program
    slope[0] = 2.0
    assert likelihood_of(model).program is not first
    slope[0] = 1.0
    assert likelihood_of(model).program is first


def test_a_model_that_calls_python_shares_no_program():
    def mean(x, slopes):
        shape = jax.ShapeDtypeStruct((), np.float32)
        factor = jax.pure_callback(lambda: np.float32(2), shape, vmap_method="sequential")
        return x @ slopes * jax.lax.stop_gradient(factor)

    one, two = (likelihood_of(regression(mean=mean)).program for _ in range(2))
    assert one is not two


def test_float64_has_a_program_of_its_own():
    first = likelihood_of(regression()).program
    with jax.enable_x64(True):
        assert likelihood_of(regression()).program is not first


def test_a_program_outlives_the_model_that_it_was_made_from():
    first = likelihood_of(regression())
    posterior(first)
    gone = weakref.ref(first.model)
    shared = first.program
    del first
    gc.collect()
    assert gone() is None
    second = likelihood_of(regression(), *table(1))
    assert second.program is shared
    # Ten rows, for which nothing is compiled yet: the second model runs.
    rows = second.take(np.arange(10))
    params = {"slopes": np.ones(2, np.float32)}
    found = shared.log_likelihood(params, rows)
    expected = -0.5 * (rows[1] - rows[0].sum(axis=1)) ** 2 - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_setting_that_changes_after_a_build_does_not_reach_later_ones(monkeypatch):
    setting = [1.0]
    model = regression(noise=lambda: setting[0])
    x, y = table()
    builder = jc.CoresetBuilder(
        model, size=5, num_draws=60, num_held_out=60, rounds=1, progress_bar=False, proxy=None
    )
    coreset = builder.run(jax.random.key(0), x, y)
    draws = coreset.approximation.draws(jax.random.key(1), 70)
    setting[0] = 2.0
    jc.certify(coreset, draws, progress_bar=False)  # compiles for 70 draws
    setting[0] = 1.0

    def certified():
        return jc.certify(builder.run(jax.random.key(0), x, y), draws, progress_bar=False).kl

    found = certified()
    monkeypatch.setattr(program, "_PROGRAMS", OrderedDict())
    assert found == pytest.approx(certified(), rel=1e-2)
