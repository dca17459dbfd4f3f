"""`SparseVI`: greedy choices under the coreset posterior, weights by stochastic gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer.util import log_density

import jaxcoreset as jc
from jaxcoreset.builders.sparse_vi import LaplaceSampler, SparseVI
from jaxcoreset.weighting.laplace import laplace_approximation
from tests.models import by_number, logistic_data
from tests.models import logistic_model as logistic
from tests.reference import sparse_vi as reference

D = 3
# The prior's mean and covariance, and a row's covariance, of `gaussian`.
MODEL = np.zeros(D), np.eye(D), np.eye(D)


def gaussian(x):
    """The papers' Gaussian model: x_n ~ N(θ, I), θ ~ N(0, I)."""
    theta = numpyro.sample("theta", dist.Normal(0, 1).expand([D]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("x", dist.Normal(theta, 1).to_event(1), obs=x)


def gaussian_data(n=40):
    return np.random.default_rng(0).normal(1.0, 1.0, size=(n, D))


def icosahedron():
    """Twenty points with the standard normal's moments in three dimensions up to degree five.

    The vertices of an icosahedron agree with the sphere to that degree; E r² = 3 and E r⁴ = 15 put
    twelve of them at r² = 5 and eight points at the origin. Covariances of quadratic functions over
    them are exact.
    """
    golden = (1 + np.sqrt(5)) / 2
    vertices = [
        np.roll([0, a, b * golden], shift) for shift in range(3) for a in (-1, 1) for b in (-1, 1)
    ]
    vertices = np.array(vertices) * np.sqrt(5 / (1 + golden**2))
    return np.vstack([vertices, np.zeros((8, D))])


def closed_form(points=None):
    """The Gaussian model's own sampler, with given standard normal points or random ones."""

    def sampler(weights, rows, key, num):
        variance = 1 / (1 + jnp.sum(weights))
        normal = jax.random.normal(key, (num, D)) if points is None else jnp.asarray(points)
        return {"theta": variance * (weights @ rows[0]) + jnp.sqrt(variance) * normal}

    return sampler


def dense(coreset, n):
    weights = np.zeros(n)
    weights[coreset.indices] = coreset.weights
    return weights


def settings(**changes):
    return {"progress_bar": False, "num_held_out": 50, **changes}


def of_gaussian(size, **changes):
    """A search for the Gaussian model's coreset under its exact posteriors."""
    return SparseVI(gaussian, size, **settings(**{"sampler": closed_form(), **changes}))


def exact_kls(x, path):
    """KL(π_w‖π) along a path, by closed form."""
    full = reference.posterior(*MODEL, x, np.ones(len(x)))
    return [
        reference.kl(*reference.posterior(*MODEL, x, dense(coreset, len(x))), *full)
        for coreset in path.values()
    ]


def sampled_covariance(x, points):
    """The covariance of log-likelihoods at given standard normal points, in plain NumPy."""

    def covariance(w):
        mean, cov = reference.posterior(*MODEL, x, w)
        draws = mean + np.sqrt(cov[0, 0]) * points
        f = -0.5 * np.sum((x[:, None] - draws) ** 2, axis=2)
        f -= f.mean(axis=1, keepdims=True)
        return f @ f.T / len(points)

    return covariance


def exact_covariance(x, points):
    return lambda w: reference.log_likelihood_covariance(*MODEL, x, w)


@pytest.mark.parametrize(
    ("points", "covariance", "optimizer", "rate", "step"),
    [
        (icosahedron(), exact_covariance, {}, lambda t: 1 / t, reference.adam),
        (
            np.random.default_rng(1).normal(size=(20, D)),
            sampled_covariance,
            {"optimizer": optax.sgd(0.05)},
            lambda t: 0.05,
            reference.sgd,
        ),
    ],
    ids=["exact", "sampled"],
)
def test_weights_are_those_of_the_reference_iterate_by_iterate(
    points, covariance, optimizer, rate, step
):
    x = gaussian_data()
    with jax.enable_x64(True):
        sampler = closed_form(points)
        vi = of_gaussian(6, num_draws=20, num_iters=20, sampler=sampler, **optimizer)
        path = vi.run_path(jax.random.key(0), x)
    expected = reference.sparse_vi(covariance(x, points), len(x), 6, 20, rate, step)
    np.testing.assert_allclose([dense(c, len(x)) for c in path.values()], expected, atol=1e-9)


def test_learning_rate_is_that_of_adam_counted_from_one():
    def updates(vi):
        state, found = vi._optimizer.init(jnp.zeros(2)), []
        for gradient in ([3.0, -1.0], [0.5, 2.0], [-1.0, 1.0]):
            step, state = vi._optimizer.update(jnp.array(gradient), state)
            found.append(step)
        return np.array(found)

    papers = updates(SparseVI(gaussian, 2))
    np.testing.assert_array_equal(
        updates(SparseVI(gaussian, 2, learning_rate=lambda t: 1 / t)), papers
    )
    halved = updates(SparseVI(gaussian, 2, learning_rate=lambda t: 0.5 / t))
    np.testing.assert_allclose(halved, papers / 2, rtol=1e-6)


@pytest.fixture(scope="module")
def gaussian_path():
    return of_gaussian(12).run_path(jax.random.key(0), gaussian_data())


def test_divergence_falls_along_the_path_and_the_report_has_all_of_it(gaussian_path):
    kls = exact_kls(gaussian_data(), gaussian_path)
    assert list(gaussian_path) == list(range(1, 13))
    assert kls[0] > kls[3] > kls[11]
    assert kls[11] < 0.05
    last = gaussian_path[12].report
    assert last.curve["size"].tolist() == list(range(1, 13))
    for k, coreset in gaussian_path.items():
        assert coreset.report.kl == last.curve["kl"][k - 1]
        assert coreset.report.num_used == last.curve["num_used"][k - 1] == len(coreset) <= k
        assert np.all(coreset.weights > 0)
        assert np.all(np.diff(coreset.indices) > 0)
    assert last.solver == "SparseVI"
    assert last.converged
    assert 0 < last.relative_error < 1


def test_the_same_key_gives_the_same_path(gaussian_path):
    again = of_gaussian(12).run_path(jax.random.key(0), gaussian_data())
    for k, coreset in gaussian_path.items():
        np.testing.assert_array_equal(coreset.indices, again[k].indices)
        np.testing.assert_array_equal(coreset.weights, again[k].weights)


def test_the_laplace_sampler_is_exact_where_the_posterior_is_gaussian():
    x = gaussian_data()
    weights = np.random.default_rng(2).uniform(0, 5, size=len(x))
    with jax.enable_x64(True):
        likelihood = jc.model_likelihood(gaussian, (x,))
        sampler = LaplaceSampler()
        start, data = sampler.start(likelihood), likelihood.data
        draws, mode, reliable = sampler.draw(
            likelihood, start, jnp.asarray(weights), data, jax.random.key(0), 20_000
        )
        theta = np.asarray(draws["theta"])
    mean, covariance = reference.posterior(*MODEL, x, weights)
    assert bool(reliable)
    np.testing.assert_allclose(mode, mean, atol=1e-10)
    # 20,000 draws: a variance is known to 1 %, here with four times that allowed.
    np.testing.assert_allclose(np.cov(theta.T), covariance, atol=0.04 * covariance[0, 0])


def test_a_logistic_coreset_has_its_model_and_a_nearer_posterior_than_uniform_subsamples():
    x, y = logistic_data(300, (1.0, -0.5, 0.3))
    coreset = SparseVI(logistic, 20, **settings(num_held_out=1000)).run(0, x, y=y)
    assert 0 < len(coreset) <= 20
    np.testing.assert_array_equal(coreset.kwargs["y"], y[coreset.indices])
    assert coreset.report.weighting == "Laplace"
    beta = np.array([0.3, -0.2, 0.1])
    value, _ = log_density(coreset.model, coreset.args, coreset.kwargs, {"beta": beta})
    terms = -np.logaddexp(0, -(2 * coreset.kwargs["y"] - 1) * (coreset.args[0] @ beta))
    prior = -0.5 * beta @ beta - 1.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(value, coreset.weights @ terms + prior, rtol=1e-5)

    likelihood = jc.model_likelihood(logistic, (x, y))
    full = laplace_approximation(likelihood)

    def divergence(weights):
        """Symmetrised, from Laplace to Laplace."""
        small = laplace_approximation(likelihood, weights=weights, start=full.params())
        one, other = (full.mode, full.covariance), (small.mode, small.covariance)
        return reference.kl(*one, *other) + reference.kl(*other, *one)

    rng, uniform = np.random.default_rng(1), []
    for _ in range(3):
        weights = np.zeros(300)
        weights[rng.choice(300, 20, replace=False)] = 15
        uniform.append(divergence(weights))
    found = divergence(dense(coreset, 300))
    assert found < 0.2 * min(uniform)
    assert 0.5 < coreset.report.kl / found < 2


def test_draws_can_be_used_for_several_steps():
    x = gaussian_data()
    vi = of_gaussian(12, redraw_every=10)
    assert exact_kls(x, vi.run_path(jax.random.key(0), x))[-1] < 0.05


def test_rows_drawn_anew_stand_for_the_data():
    x = gaussian_data()
    some = {"num_candidates": 15, "num_gradient_rows": 20, "num_held_out": 300}
    vi = of_gaussian(12, weighting=None, **some)
    path = vi.run_path(jax.random.key(0), x)
    report = path[12].report
    assert (report.num_candidates, report.num_held_out) == (15, 300)
    assert report.weighting == "its own"
    # Half the rows as often leave noise in the gradient, which 1/t does not average out.
    kls = exact_kls(x, path)
    assert kls[-1] < 0.5 < kls[0]


def test_left_out_draws_count_for_nothing():
    """Draws at which the likelihood is no number change nothing but how many draws there are."""
    x, points = gaussian_data(), icosahedron()
    spoilt = np.vstack([points, np.full((5, D), np.inf)])
    found = []
    for given in (points, spoilt):
        steps = {"num_iters": 20, "redraw_every": 5}
        vi = of_gaussian(4, num_draws=len(given), sampler=closed_form(given), **steps)
        found.append(vi.run(jax.random.key(0), x))
    clean, other = (dense(coreset, len(x)) for coreset in found)
    np.testing.assert_allclose(other, clean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1].report.curve["usable_draws"], 0.8)


def nowhere(weights, rows, key, num):
    return {"theta": jnp.full((num, D), jnp.nan)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampler": nowhere}, "not finite at draws of the coreset posterior"),
        ({"optimizer": optax.sgd(0.0)}, "no row has a weight"),
    ],
)
def test_steps_that_lead_nowhere_are_refused(changes, message):
    vi = of_gaussian(2, num_draws=20, **{"sampler": closed_form(icosahedron()), **changes})
    with pytest.raises(ValueError, match=message):
        vi.run(jax.random.key(0), gaussian_data())


@pytest.mark.usefixtures("unverified")
def test_rows_that_are_worth_something_else_alone_are_refused():
    sparse_vi = SparseVI(by_number(5), 3, num_draws=50, num_iters=3, num_held_out=100)
    with pytest.raises(ValueError, match="of a datum at site 'y' changes when other rows"):
        sparse_vi.run(jax.random.key(0), np.random.default_rng(0).normal(size=40))


def counts(x, y=None):
    """Poisson with a softplus rate, which is zero in float32 where x·β < −104."""
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jax.nn.softplus(x @ beta)), obs=y)


@pytest.fixture(scope="module")
def count_data():
    """Covariates so large that half the draws of the prior give some row a rate of zero."""
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.uniform(50, 200, size=60), rng.normal(size=60)])
    return x, rng.poisson(np.logaddexp(0, x @ np.array([0.03, 0.5])))


@pytest.mark.slow
@pytest.mark.unoptimised
def test_draws_without_a_finite_log_likelihood_are_left_out(count_data):
    path = SparseVI(counts, 10, **settings()).run_path(jax.random.key(0), *count_data)
    usable = path[10].report.curve["usable_draws"]
    assert 0.2 < usable[0] < 0.9
    assert usable[9] == 1
    likelihood = jc.model_likelihood(counts, count_data)
    full = laplace_approximation(likelihood)

    def divergence(coreset):
        fit = laplace_approximation(likelihood, weights=dense(coreset, 60), start=full.params())
        return reference.kl(fit.mode, fit.covariance, full.mode, full.covariance)

    assert divergence(path[10]) < 0.01 * divergence(path[1])
