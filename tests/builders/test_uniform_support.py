"""`QuasiNewton` and `CoresetMCMC`: rows drawn at random, weights found with the model's draws."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import MCMC, NUTS

import jaxcoreset as jc
from jaxcoreset.builders.slice_sampler import SliceSampler
from tests.builders.test_sparse_vi import (
    MODEL,
    closed_form,
    dense,
    exact_kls,
    gaussian,
    gaussian_data,
    icosahedron,
)
from tests.models import logistic_data
from tests.models import logistic_model as logistic
from tests.reference import sparse_vi as reference

N, K = 400, 12
QUIET = {"progress_bar": False, "num_held_out": 50}
SOLVERS = {
    "QuasiNewton": partial(jc.QuasiNewton, **QUIET, num_iters=10),
    "CoresetMCMC": partial(jc.CoresetMCMC, **QUIET, num_iters=5000),
}
each = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)


def covariance_of(x):
    return lambda w: reference.log_likelihood_covariance(*MODEL, x, w)


def test_exact_covariances_give_the_reference_weights_of_quasi_newton():
    """A large τ keeps all weights positive, so that the rows drawn are those of the coreset."""
    x, points = gaussian_data(), icosahedron()
    with jax.enable_x64(True):
        settings = {"num_draws": len(points), "num_iters": 5, "sampler": closed_form(points)}
        newton = jc.QuasiNewton(gaussian, 6, regularisation=20.0, **QUIET, **settings)
        coreset = newton.run(jax.random.key(0), x)
    assert len(coreset) == 6
    expected = reference.quasi_newton(covariance_of(x), len(x), coreset.indices, 5, 20.0)
    np.testing.assert_allclose(dense(coreset, len(x)), expected, atol=1e-8)


def test_exact_covariances_give_the_reference_weights_of_coreset_mcmc():
    x, points = gaussian_data(), icosahedron()
    n, num_iters = len(x), 15
    with jax.enable_x64(True):
        settings = {"num_iters": num_iters, "num_gradient_rows": n, "sampler": closed_form(points)}
        mcmc = jc.CoresetMCMC(gaussian, 6, num_chains=len(points), **QUIET, **settings)
        coreset = mcmc.run(jax.random.key(0), x)
    assert len(coreset) == 6
    covariance, at, unit = covariance_of(x), coreset.indices, n / 6
    bias = len(points) / (len(points) - 1)

    def gradient(relative):
        w = np.zeros(n)
        w[at] = unit * relative
        return -unit * bias * covariance(w)[at] @ (1 - w)

    relative = reference.adam(gradient, np.ones(6), num_iters, lambda t: 0.1 / np.sqrt(t))
    np.testing.assert_allclose(coreset.weights, unit * relative, rtol=1e-6)


@pytest.fixture(scope="module")
def coresets():
    return {
        name: solver(gaussian, K).run(jax.random.key(0), gaussian_data(N))
        for name, solver in SOLVERS.items()
    }


@pytest.mark.parametrize("name", SOLVERS)
def test_divergence_is_far_below_that_of_uniform_weights(coresets, name):
    x, rng = gaussian_data(N), np.random.default_rng(1)
    uniform = []
    for _ in range(20):
        weights = np.zeros(N)
        weights[rng.choice(N, K, replace=False)] = N / K
        posteriors = [reference.posterior(*MODEL, x, w) for w in (weights, np.ones(N))]
        uniform.append(reference.kl(*posteriors[0], *posteriors[1]))
    coreset = coresets[name]
    (kl,) = exact_kls(x, {K: coreset})
    assert kl < 0.05 * np.median(uniform)
    report = coreset.report
    assert report.solver == name
    assert report.converged
    assert report.kl == report.curve["kl"][1] < 0.1 * report.curve["kl"][0]
    assert 0 < len(coreset) == report.num_used <= K
    assert np.all(coreset.weights > 0)


@each
def test_the_same_key_gives_the_same_coreset_and_another_does_not(solver, coresets):
    x = gaussian_data(N)
    first = coresets[solver.func.__name__]
    again = solver(gaussian, K).run(jax.random.key(0), x)
    np.testing.assert_array_equal(again.indices, first.indices)
    np.testing.assert_array_equal(again.weights, first.weights)
    other = solver(gaussian, K).run(jax.random.key(1), x)
    assert set(other.indices) != set(first.indices)


def test_slice_moves_draw_from_the_posterior_of_weighted_rows():
    x, weights = gaussian_data(), np.random.default_rng(2).uniform(0, 5, size=40)
    likelihood = jc.model_likelihood(gaussian, (x,))
    rows, w = tuple(jnp.asarray(leaf) for leaf in likelihood.data), jnp.asarray(weights, "f4")
    sampler = SliceSampler(num_chains=100, num_moves=10)

    @jax.jit
    def draw(key):
        # Placed for other weights, so that the chains have a way to go.
        state = sampler.place(likelihood, sampler.start(likelihood), 3 * w, rows, key)
        _, state, _ = sampler.draw(likelihood, state, w, rows, jax.random.fold_in(key, 1), 1000)
        return sampler.draw(likelihood, state, w, rows, jax.random.fold_in(key, 2), 10_000)

    draws, _, reliable = draw(jax.random.key(0))
    mean, covariance = reference.posterior(*MODEL, x, weights)
    assert bool(reliable)
    theta, sd = np.asarray(draws["theta"]), np.sqrt(covariance[0, 0])
    # About half of the 10,000 draws count: 1.5 % of sd for a mean, 2 % for a variance; thrice that.
    np.testing.assert_allclose(theta.mean(0), mean, atol=0.045 * sd)
    np.testing.assert_allclose(np.cov(theta.T), covariance, atol=0.06 * sd**2)


def means(key, model, *args):
    mcmc = MCMC(NUTS(model), num_warmup=300, num_samples=2000, progress_bar=False)
    mcmc.run(jax.random.key(key), *args)
    beta = np.asarray(mcmc.get_samples()["beta"])
    return beta.mean(0), beta.std(0)


@pytest.fixture(scope="module")
def of_all_rows():
    """A logistic regression's data, and the means and deviations that NUTS finds."""
    data = logistic_data(500, (1.0, -0.5, 0.3))
    with jax.enable_x64(True):
        return data, *means(0, logistic, *data)


@pytest.mark.slow
@pytest.mark.unoptimised
@each
def test_means_of_a_logistic_regression_are_those_of_nuts_on_all_rows(solver, of_all_rows):
    data, mean, sd = of_all_rows
    with jax.enable_x64(True):
        coreset = solver(logistic, 40).run(jax.random.key(0), *data)
        assert coreset.weights.dtype == np.float64
        found, spread = means(1, coreset.model, *coreset.args)
    # A uniform subsample of 40 rows is off by one standard deviation in each.
    np.testing.assert_allclose(found, mean, atol=0.35 * sd.max())
    np.testing.assert_allclose(spread, sd, rtol=0.3)


@pytest.mark.parametrize("solver", [*SOLVERS.values(), partial(jc.SparseVI, **QUIET)])
def test_as_many_rows_as_there_are_come_back_whole(solver):
    coreset = solver(gaussian, 40).run(jax.random.key(0), gaussian_data())
    assert coreset.indices.tolist() == list(range(40))
    assert np.all(coreset.weights == 1)
    assert coreset.report.kl == 0


def test_a_site_that_sums_up_rows_is_warned_of():
    def model(x):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        numpyro.deterministic("gap", mean - x.mean())
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("x", dist.Normal(mean, 1), obs=x)

    builder = SOLVERS["QuasiNewton"](model, 5)
    with pytest.warns(UserWarning, match=r"sites \['gap'\] are computed from the rows"):
        builder.run(jax.random.key(0), np.linspace(-1, 1, 40))


def test_a_report_can_be_that_of_the_coresets_own_draws():
    newton = SOLVERS["QuasiNewton"](gaussian, 8, weighting=None, sampler=closed_form())
    report = newton.run(jax.random.key(0), gaussian_data()).report
    assert report.weighting == "its own"
    assert report.num_held_out == 50


# The checker of annotations, which is on in the tests, may be the first to refuse a wrong type.
@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("SparseVI", {"size": 0}, "size is 0"),
        ("SparseVI", {"size": True}, "whole number"),
        ("SparseVI", {"size": 2.0}, "size"),
        ("SparseVI", {"num_draws": 1}, "num_draws is 1"),
        ("SparseVI", {"num_iters": 0}, "num_iters is 0"),
        ("SparseVI", {"redraw_every": 7}, "divisor of num_iters"),
        ("SparseVI", {"num_candidates": 0}, "num_candidates is 0"),
        ("SparseVI", {"num_gradient_rows": -1}, "num_gradient_rows is -1"),
        ("SparseVI", {"optimizer": optax.sgd(1.0), "learning_rate": lambda t: 1}, "one of them"),
        ("SparseVI", {"learning_rate": 0.1}, "learning_rate"),
        ("SparseVI", {"optimizer": "adam"}, "optimizer"),
        ("SparseVI", {"sampler": SliceSampler}, "sampler"),
        ("SparseVI", {"weighting": "laplace"}, "weighting"),
        ("SparseVI", {"num_held_out": 1}, "num_held_out is 1"),
        ("QuasiNewton", {"num_draws": 1}, "num_draws is 1"),
        ("QuasiNewton", {"regularisation": 0.0}, "regularisation is 0.0"),
        ("CoresetMCMC", {"size": 0}, "size is 0"),
        ("CoresetMCMC", {"num_chains": 1}, "num_chains is 1"),
        ("CoresetMCMC", {"optimizer": optax.adam}, "optimizer"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(name, arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        getattr(jc, name)(logistic, **{"size": 5, **arguments})
