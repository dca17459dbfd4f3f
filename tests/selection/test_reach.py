"""Remainders count as far as a posterior reaches: exact divergences by quadrature on a grid."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density

import jaxcoreset as jc
from jaxcoreset.likelihood.expansion import Expansion
from jaxcoreset.selection import reach
from jaxcoreset.weighting.laplace import LaplaceFitter


def oblique(offset, y=None):
    """The posterior is skewed along a + b, which neither parameter's conditional means follow."""
    a = numpyro.sample("a", dist.Normal(0.0, 4.0))
    b = numpyro.sample("b", dist.Normal(0.0, 4.0))
    with numpyro.plate("rows", offset.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=a + b + offset), obs=y)


def divergence(coreset, model, args, grid):
    """The symmetrised KL on a grid, whose cells are less than a standard deviation wide."""

    def log_mass(model, *args):
        with jax.enable_x64(True):
            at = {name: jnp.asarray(values, float) for name, values in grid.items()}
            one = jax.jit(lambda params: log_density(model, args, {}, params)[0])
            values = np.asarray(jax.lax.map(one, at, batch_size=500))
        return values - np.logaddexp.reduce(values)

    p, q = log_mass(model, *args), log_mass(coreset.model, *coreset.args)
    return np.sum((np.exp(p) - np.exp(q)) * (p - q))


def test_remainders_count_as_far_as_a_skewed_posterior_reaches_and_after_a_merge_too():
    """One event: on one side the density falls by 12 nats at nine standard deviations."""
    grid = dict(zip("ab", np.mgrid[-30:25:0.5, -30:25:0.5].reshape(2, -1), strict=True))
    data = np.random.default_rng(0).normal(size=400), (np.arange(400) == 7).astype(np.int32)
    builder = jc.CoresetBuilder(oblique, 3, proxy=jc.Taylor(), rounds=1, progress_bar=False)
    coreset = builder.run(jax.random.key(0), *data)
    assert divergence(coreset, oblique, data, grid) < 0.002
    assert coreset.report.gaussian_kl > 0.3
    merged = jc.merge([coreset, coreset], 4, jax.random.key(1))
    assert merged.report.num_data == 800
    assert divergence(merged, oblique, [np.tile(x, 2) for x in data], grid) < 0.002


def two_modes(y):
    """A mixture without an order: the modes are 15 standard deviations apart."""
    means = numpyro.sample("means", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    shares = dist.Categorical(probs=jnp.ones(2) / 2)
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.MixtureSameFamily(shares, dist.Normal(means, 1.0)), obs=y)


@pytest.mark.slow
@pytest.mark.unoptimised
def test_another_mode_is_told_and_no_proxy_stands_for_it():
    rng = np.random.default_rng(1)
    y = np.r_[rng.normal(-0.7, 1, 150), rng.normal(0.7, 1, 150)].astype(np.float32)
    with pytest.warns(UserWarning, match="another mode"):
        coreset = jc.CoresetBuilder(two_modes, size=12, progress_bar=False).run(0, y)
    assert coreset.proxy is None
    assert 10 < coreset.report.other_mode < 20
    assert coreset.report.verdict.startswith("one mode only")
    merged = jc.merge([coreset, coreset], 12, jax.random.key(1))
    updated = coreset.update(jax.random.key(2), y[:20])
    for later in (merged, updated):
        assert later.report.other_mode == coreset.report.other_mode
        assert later.likelihood is None  # of the other rows nothing is kept
    grid = np.mgrid[-1.8:1.8:31j, -1.8:1.8:31j].reshape(2, -1).T
    # Rows know of both modes.
    assert divergence(coreset, two_modes, (y,), {"means": grid}) < 0.01
    draws = np.concatenate([at := rng.normal([-0.7, 0.7], 0.1, (500, 2)), at[:, ::-1]])
    of_both = jc.CoresetBuilder(
        two_modes, size=12, progress_bar=False, weighting=jc.Draws({"means": draws}), rounds=1
    )
    assert of_both.run(0, y).report.other_mode is None


def surveyed(x, weight, y=None):
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", x.shape[0]), numpyro.handlers.scale(scale=weight):
        numpyro.sample("y", dist.Bernoulli(logits=slope * x), obs=y)


def test_with_large_survey_weights_the_density_falls_as_far_out_and_has_no_other_mode():
    """The posterior is log-concave, and rows of a million people have −700,000 nats."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 200)) > 0
    weight = np.where(np.arange(200) < 100, 1e6, 10.0)
    likelihood = jc.model_likelihood(surveyed, (x - 0.5, weight, y.astype(int)))
    expansion = LaplaceFitter(likelihood)().expansion
    posterior = reach.PosteriorOfRows(likelihood, likelihood.rows, expansion.center)
    assert reach.reaching_out(posterior, expansion).other_mode is None
    far = expansion.center + np.array([[0.0], [20.0], [-20.0]]) / np.sqrt(expansion.precision)
    values = posterior.values(far)
    np.testing.assert_allclose(values[1:] - values[0], -200, atol=10)


def counted(y):
    """No level below zero gives a count above zero any probability; a count of zero is NaN."""
    level = numpyro.sample("level", dist.Normal(1.0, 10.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.maximum(level, 0.0)), obs=y)


def test_impossible_rows_make_a_point_low_and_leave_the_others_exact():
    y = np.random.default_rng(0).poisson(2.0, 300)
    likelihood = jc.model_likelihood(counted, (y,))
    center = np.array([y.mean()])
    posterior = reach.PosteriorOfRows(likelihood, likelihood.rows, center)
    values = posterior.values(np.array([center, 1.1 * center, [-1.0]]))
    fall = y.sum() * np.log(1.1) - 0.1 * y.sum()
    prior = ((center - 1) ** 2 - (1.1 * center - 1) ** 2) / 200
    np.testing.assert_allclose(np.diff(values[:2]), fall + prior, atol=1e-3)
    assert values[2] == -np.inf


class Tail:
    """A Gaussian, but with an exponential tail in one direction."""

    def __init__(self, *direction):
        self.direction = np.array(direction)

    def values(self, points):
        along = points @ self.direction
        squares = np.sum(points**2, axis=1)
        return -0.5 * squares + np.where(along > 2, 0.5 * (along - 2) ** 2, 0)

    def gradients(self, points):
        along = points @ self.direction
        return -points + np.where(along > 2, along - 2, 0)[:, None] * self.direction


def metric_of(density, precision):
    zeros = np.zeros(len(precision))
    return reach.reaching_out(density, Expansion(zeros, 0.0, zeros, -precision, precision)).metric


@pytest.mark.parametrize("direction", [(1.0,), (0.5, -0.5, 0.5, 0.5)])
def test_a_tail_is_found_in_a_parameters_direction_and_in_no_parameters_direction(direction):
    found = metric_of(Tail(*direction), np.eye(len(direction)))
    values, vectors = np.linalg.eigh(found)
    # The log-density has fallen by 12.5 nats at 2 + 10.5 / 2.
    np.testing.assert_allclose(values[0] ** -0.5, 7.25 / 5, rtol=0.02)
    np.testing.assert_allclose(np.abs(vectors[:, 0] @ direction), 1, atol=0.01)
    np.testing.assert_allclose(values[1:], 1, atol=1e-6)


def test_a_gaussian_keeps_its_distances():
    assert metric_of(Tail(0, 0, 0, 0), np.eye(4)) is None


def test_a_precision_that_float32_made_asymmetric_has_a_metric():
    """The inverse of such a matrix may have no Cholesky factor."""
    precision = np.diag([1e5, 1e5, 1.0, 1.0])
    precision[:2, 2:] = 300.0
    precision[2:, :2] = np.diag([250.0, 250.0])
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.cholesky(np.linalg.inv(precision))
    found = metric_of(Tail(0.5, -0.5, 0.5, 0.5), precision)
    assert np.linalg.eigvalsh(found).min() > 0
    np.testing.assert_array_equal(found, found.T)


class _Counting(Tail):
    """Keeps the numbers of points it is asked for."""

    def values(self, points):
        self.nums.append(len(points))
        return super().values(points)


@pytest.mark.parametrize(("num_params", "expected"), [(5, 16), (20, 48)])
def test_passes_for_the_tails_share_a_program_and_are_not_far_larger_than_needed(
    num_params, expected
):
    density = _Counting(*np.zeros(num_params))
    density.nums = []
    reach._falls(density, np.zeros(num_params), np.eye(num_params)[:2], (1.25,))
    reach._falls(density, np.zeros(num_params), np.repeat(np.eye(num_params), 2, axis=0), (1.25,))
    assert density.nums == [expected, expected]
