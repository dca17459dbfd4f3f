"""Likelihoods that compute the same share a compiled program, and no other ones do."""

import dataclasses
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import norm

import jaxcoreset as jc
from jaxcoreset.diagnostics.log_ratio import full_likelihood
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


def check_values(likelihood, noise=1.0, prior=1.0, shift=0.0):
    """That the compiled program gives SciPy's log-likelihoods and log-prior."""
    x, y = likelihood.data[:2]
    slopes = np.array([0.4, -0.3], np.float32)
    of_rows, others = likelihood.program.compiled({"slopes": slopes}, likelihood.data)
    np.testing.assert_allclose(of_rows["y"], norm.logpdf(y, x @ slopes + shift, noise), rtol=1e-4)
    expected = norm.logpdf(slopes, 0, prior).sum()
    np.testing.assert_allclose(others["slopes"], expected, rtol=1e-4)
    log_prior = likelihood.program.log_prior({"slopes": slopes})
    np.testing.assert_allclose(log_prior, expected, rtol=1e-4)


def ridge(x, y, noise=1.0):
    """The posterior mode in closed form, in float64."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    return np.linalg.solve(x.T @ x / noise**2 + np.eye(2), x.T @ y / noise**2)


def test_a_build_looks_for_the_program_of_a_model_once(monkeypatch):
    likelihood, looked = likelihood_of(regression()), []
    key_of = program._key_of
    monkeypatch.setattr(program, "_key_of", lambda one: looked.append(one) or key_of(one))
    with program.of_one_build():
        first = program.with_program(likelihood)
        assert program.with_program(first).shared is first.shared
        assert len(looked) == 1
        # Another model beside the same program, as where integrals of groups become finer.
        other = dataclasses.replace(first, model=regression(noise=lambda: 2.0))
        assert program.with_program(other).shared is not first.shared
    # Between builds a model may change.
    program.with_program(first)
    assert len(looked) == 3


def test_models_made_anew_share_a_program_and_give_their_own_posterior():
    first, second = (likelihood_of(regression(), *table(seed)) for seed in (0, 1))
    assert first.program is second.program
    for one in (first, second):
        np.testing.assert_allclose(jc.laplace_approximation(one).mode, ridge(*one.data), rtol=1e-4)


def test_a_closed_over_array_or_a_setting_that_changes_gives_another_program():
    noise, prior = np.array(1.0, np.float32), [1.0]
    model = regression(prior=lambda: prior[0], noise=lambda: noise)
    for noise[...], prior[0] in ((1.0, 1.0), (0.5, 1.0), (1.0, 1.0), (1.0, 0.2), (1.0, 0.05)):
        check_values(likelihood_of(model), noise=float(noise), prior=prior[0])


def test_a_large_array_inside_a_compiled_function_of_the_model_is_seen():
    shift = np.zeros(5_000, np.float32)

    @jax.jit
    def shifted(x, slopes):
        return x @ slopes + jnp.asarray(shift)[4_321]

    x, y = table()
    programs = []
    for value in (0.0, 3.0):
        shift[4_321] = value
        shifted.clear_cache()  # JAX itself keeps what it was
        likelihood = likelihood_of(regression(mean=shifted), x, y)
        check_values(likelihood, shift=value)
        programs.append(likelihood.program)
    assert programs[0] is not programs[1]


@pytest.mark.parametrize("kind", ["constant", "column"])
def test_an_argument_of_the_prior_gives_another_program(kind):
    # A column that is the same in all rows may be in the prior, although it holds rows.
    for value in (1.0, 0.1):
        sd = value if kind == "constant" else np.full(NUM_ROWS, value, np.float32)
        check_values(likelihood_of(regression(), sd=sd), prior=value)


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
    jc.laplace_approximation(first)
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


def test_a_setting_that_changes_after_a_build_does_not_reach_later_ones():
    """What is compiled for a likelihood from before belongs to a program of its own."""
    setting = [1.0]
    builder = jc.CoresetBuilder(
        regression(noise=lambda: setting[0]), size=NUM_ROWS, progress_bar=False, proxy=None
    )
    coreset = builder.run(jax.random.key(0), *table())  # all rows, which needs no draws
    for value in (2.0, 1.0):
        setting[0] = value
        found = full_likelihood(coreset, (), {}, None)
        assert (found.program is coreset.likelihood.program) == (value == 1.0)
        check_values(found, noise=value)
        mode = jc.laplace_approximation(coreset.likelihood).mode
        np.testing.assert_allclose(mode, ridge(*table(), noise=value), rtol=1e-4)
