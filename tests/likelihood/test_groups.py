"""Log-likelihoods of groups, whose effects are integrated out, against closed forms and SciPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.integrate import quad
from scipy.stats import nbinom, norm

from jaxcoreset.data.ragged import Ragged
from jaxcoreset.likelihood import group_layout
from jaxcoreset.likelihood.group_effects import draw_effects
from jaxcoreset.likelihood.group_likelihood import group_likelihood
from jaxcoreset.likelihood.integral_error import accurate_enough
from jaxcoreset.likelihood.integration import AdaptiveQuadrature, GaussianIntegral, LaplaceIntegral
from tests.likelihood.group_models import (
    flights,
    frailties,
    intercepts,
    intercepts_non_centred,
    lines,
    means,
    normals,
)

SHARED = {"beta": jnp.array([0.5, -0.3]), "mu": jnp.array(-0.4), "tau": jnp.array(0.7)}
NORMAL = {"mu": jnp.array(0.8), "tau": jnp.array(0.6), "sigma": jnp.array(0.4)}


def _values(likelihood, shared):
    """The log-likelihood of every group, in the order of their numbers."""
    rows = likelihood.rows
    places = rows.places(np.arange(rows.num_rows))
    return np.asarray(likelihood.log_likelihood_constrained(shared, rows.take(places)))


@pytest.fixture(scope="module")
def planes():
    X, plane, y = flights()
    return X, plane, y, group_likelihood(intercepts, (X, plane, 40, y), groups="plane")


def test_a_group_is_the_integral_that_scipy_finds(planes):
    X, plane, y, likelihood = planes
    found = _values(likelihood, SHARED)

    def integrand(z, rows):
        eta = X[rows] @ np.array([0.5, -0.3]) + z
        return np.exp(np.sum(y[rows] * eta - np.logaddexp(0, eta))) * norm.pdf(z, -0.4, 0.7)

    for group in (0, 7, 23):
        rows = plane == group
        expected = np.log(quad(integrand, -8, 8, (rows,), epsabs=0, epsrel=1e-9, limit=200)[0])
        assert found[group] == pytest.approx(expected, abs=1e-4)


def test_nine_nodes_are_as_good_as_forty_one(planes):
    X, plane, y, likelihood = planes
    finer = group_likelihood(
        intercepts, (X, plane, 40, y), groups="plane", integration=AdaptiveQuadrature(41)
    )
    np.testing.assert_allclose(_values(likelihood, SHARED), _values(finer, SHARED), atol=1e-4)


def test_only_shared_parameters_are_left(planes):
    _, _, _, likelihood = planes
    assert sorted(likelihood.init_params) == ["beta", "mu", "tau"]
    assert likelihood.num_data == 40


def test_centred_and_non_centred_effects_have_one_marginal(planes):
    X, plane, y, likelihood = planes
    other = group_likelihood(intercepts_non_centred, (X, plane, 40, y), groups="plane")
    np.testing.assert_allclose(_values(likelihood, SHARED), _values(other, SHARED), atol=1e-4)


def test_labels_may_be_text(planes):
    X, plane, y, likelihood = planes
    names = np.array([f"N{number:03d}" for number in range(40)])[plane]
    named = group_likelihood(intercepts, (X, names, 40, y), groups="plane")
    np.testing.assert_allclose(_values(likelihood, SHARED), _values(named, SHARED), rtol=1e-6)


def test_groups_of_several_lengths_have_the_same_values(planes, monkeypatch):
    X, plane, y, likelihood = planes
    monkeypatch.setattr(group_layout, "choose_lengths", lambda sizes: (4, 12, 30))
    split = group_likelihood(intercepts, (X, plane, 40, y), groups="plane")
    ragged = next(leaf for leaf in split.data if isinstance(leaf, Ragged))
    assert ragged.lengths == (4, 12, 30)
    assert (np.diff(np.searchsorted(ragged.lengths, ragged.sizes)) >= 0).all()
    np.testing.assert_allclose(_values(likelihood, SHARED), _values(split, SHARED), atol=1e-5)


def test_vmapped_and_jitted_values_are_the_single_ones(planes):
    *_, likelihood = planes
    data = likelihood.rows.take(np.arange(10))
    draws = {name: jnp.stack([value, value + 0.1]) for name, value in SHARED.items()}
    many = jax.jit(jax.vmap(likelihood.log_likelihood_constrained, in_axes=(0, None)))(draws, data)
    for i in range(2):
        one = {name: value[i] for name, value in draws.items()}
        single = likelihood.log_likelihood_constrained(one, data)
        np.testing.assert_allclose(many[i], single, atol=1e-5)


def _normal_marginals(shared, group, y, num_groups):
    found = []
    for number in range(num_groups):
        own = y[group == number]
        covariance = shared["sigma"] ** 2 * jnp.eye(own.size) + shared["tau"] ** 2
        found.append(
            dist.MultivariateNormal(jnp.full(own.size, shared["mu"]), covariance).log_prob(own)
        )
    return jnp.stack(found)


@pytest.mark.slow
@pytest.mark.unoptimised
@pytest.mark.parametrize(
    "integration", [AdaptiveQuadrature(), LaplaceIntegral(), GaussianIntegral()]
)
@pytest.mark.parametrize("is_float64", [False, True])
def test_normal_marginals_and_their_derivatives_are_exact(integration, is_float64):
    group, y = means(num_groups=8)
    with jax.enable_x64(is_float64):
        shared = {name: jnp.asarray(float(value)) for name, value in NORMAL.items()}
        likelihood = group_likelihood(
            normals, (group, 8, y), groups="group", integration=integration
        )
        data = likelihood.rows.take(np.arange(8))

        def total(at):
            return jnp.sum(likelihood.log_likelihood_constrained(at, data))

        def exact(at):
            return jnp.sum(_normal_marginals(at, group, jnp.asarray(y, float), 8))

        for function in (lambda f: f, jax.grad, jax.hessian):
            found, expected = jax.jit(function(total))(shared), jax.jit(function(exact))(shared)
            close = 1e-7 if is_float64 else 2e-3
            for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                assert one.dtype == (np.float64 if is_float64 else np.float32)
                np.testing.assert_allclose(one, other, rtol=close, atol=10 * close)


@pytest.mark.slow
@pytest.mark.unoptimised
@pytest.mark.parametrize("is_normal", [True, False])
def test_normal_effects_of_normal_rows_are_integrated_in_closed_form(planes, is_normal):
    group, y = means(num_groups=20)
    likelihood, at = planes[3], SHARED
    if is_normal:
        likelihood, at = group_likelihood(normals, (group, 20, y), groups="group"), NORMAL
    rng = np.random.default_rng(0)
    center = likelihood.unconstrain(at)
    draws = {
        name: value + 0.1 * rng.normal(size=(8, *value.shape)) for name, value in center.items()
    }
    found, error = accurate_enough(likelihood, draws, 1e-3)
    marginal: Any = found.model
    assert isinstance(marginal.integration, GaussianIntegral) is is_normal
    if is_normal:
        assert error == 0
        exact = _normal_marginals(NORMAL, group, y, 20)
        np.testing.assert_allclose(_values(found, NORMAL), exact, atol=2e-4)


def _normal_log_density(residual, covariance):
    _, log_det = np.linalg.slogdet(2 * np.pi * covariance)
    return -0.5 * (log_det + residual @ np.linalg.solve(covariance, residual))


@pytest.mark.slow
@pytest.mark.unoptimised
@pytest.mark.parametrize("num_dims", [2, 3])
def test_effects_of_several_dimensions_are_integrated_exactly(num_dims):
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(6), [1, 2, 5, 8, 8, 9])
    x = rng.normal(size=(group.size, num_dims)).astype(np.float32)
    y = rng.normal(size=group.size).astype(np.float32)
    shared = {
        "mu": jnp.full(num_dims, 0.3),
        "tau": jnp.linspace(0.5, 0.9, num_dims),
        "rho": jnp.array(0.4),
    }
    likelihood = group_likelihood(lines, (x, group, 6, y), groups="group")
    expected_kind = AdaptiveQuadrature if num_dims == 2 else LaplaceIntegral
    marginal: Any = likelihood.model
    assert isinstance(marginal.integration, expected_kind)
    tau = np.linspace(0.5, 0.9, num_dims)
    covariance = np.outer(tau, tau) * (0.4 + 0.6 * np.eye(num_dims))
    expected = [
        _normal_log_density(
            y[group == g] - x[group == g] @ np.full(num_dims, 0.3),
            x[group == g] @ covariance @ x[group == g].T + 0.25 * np.eye((group == g).sum()),
        )
        for g in range(6)
    ]
    np.testing.assert_allclose(_values(likelihood, shared), expected, atol=1e-4)


def test_rows_with_a_gamma_effect_of_their_own_are_negative_binomial():
    rng = np.random.default_rng(2)
    x = rng.normal(size=50).astype(np.float32)
    y = rng.negative_binomial(2, 0.4, 50)
    likelihood = group_likelihood(frailties, (x, y), integration=AdaptiveQuadrature(21))
    shared = {"beta": jnp.array(0.3), "shape": jnp.array(2.0)}
    mean = np.exp(1 + 0.3 * x.astype(float))
    expected = nbinom.logpmf(y, 2.0, 2.0 / (2.0 + mean))
    np.testing.assert_allclose(_values(likelihood, shared), expected, atol=2e-4)


def test_nodes_are_added_until_the_error_is_small_enough():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=200).astype(np.float32), rng.poisson(0.4, 200)
    likelihood = group_likelihood(frailties, (x, y), integration=AdaptiveQuadrature(2))
    draws = {
        "beta": 0.3 + 0.1 * rng.normal(size=32),
        "shape": np.log(1.5) + 0.1 * rng.normal(size=32),
    }
    draws = {name: jnp.asarray(value, jnp.float32) for name, value in draws.items()}
    better, error = accurate_enough(likelihood, draws, 1e-5)
    marginal: Any = better.model
    assert marginal.integration.num_nodes > 2
    assert error <= 1e-5


def test_groups_without_rows_have_log_likelihood_zero():
    group, y = means(num_groups=6)
    likelihood = group_likelihood(normals, (group, 9, y), groups="group")
    assert likelihood.num_data == 9
    np.testing.assert_allclose(_values(likelihood, NORMAL)[6:], 0, atol=1e-5)

    def bounded(group, low, y):
        scale: Any = numpyro.sample("scale", dist.HalfNormal(1))
        with numpyro.plate("groups", low.size):
            effect: Any = numpyro.sample("effect", dist.Normal(0, scale))
        left = low[group]
        at: Any = dist.TruncatedNormal(left + effect[group], 1, low=left, high=left + 1)
        numpyro.sample("y", at, obs=y)

    low = np.arange(9, dtype=np.float32)
    y = (low[group] + 0.5).astype(np.float32)
    likelihood = group_likelihood(bounded, (group, low, y), groups="group")
    np.testing.assert_allclose(_values(likelihood, {"scale": 0.5})[6:], 0, atol=1e-4)


def _crossed(group, num_groups, y=None):
    with numpyro.plate("groups", num_groups):
        effect: Any = numpyro.sample(
            "effect", dist.Normal(0, numpyro.sample("s", dist.HalfNormal(1)))
        )
    with numpyro.plate("rows", group.shape[0]):
        versus = effect[(group + 1) % num_groups]
        numpyro.sample("y", dist.Normal(effect[group] - versus, 1), obs=y)


def _random_walk(group, num_groups, y=None):
    scale: Any = numpyro.sample("s", dist.HalfNormal(1))
    effect: Any = numpyro.sample("effect", dist.GaussianRandomWalk(scale, num_groups))
    with numpyro.plate("rows", group.shape[0]):
        numpyro.sample("y", dist.Normal(effect[group], 1), obs=y)


def _running_sum(group, num_groups, y=None):
    scale: Any = numpyro.sample("s", dist.HalfNormal(1))
    with numpyro.plate("groups", num_groups):
        step: Any = numpyro.sample("step", dist.Normal(0, scale))
    with numpyro.plate("rows", group.shape[0]):
        numpyro.sample("y", dist.Normal(jnp.cumsum(step)[group], 1), obs=y)


def _sizes_in_the_prior(group, num_groups, y=None):
    scale: Any = numpyro.sample("s", dist.HalfNormal(1))
    sizes = jnp.bincount(group, length=num_groups)
    with numpyro.plate("groups", num_groups):
        effect: Any = numpyro.sample("effect", dist.Normal(0, scale / jnp.sqrt(1 + sizes)))
    with numpyro.plate("rows", group.shape[0]):
        numpyro.sample("y", dist.Normal(effect[group], 1), obs=y)


def _soft_sum_to_zero(group, num_groups, y=None):
    scale: Any = numpyro.sample("s", dist.HalfNormal(1))
    with numpyro.plate("groups", num_groups):
        effect: Any = numpyro.sample("effect", dist.Normal(0, scale))
    numpyro.factor("sum", dist.Normal(0, 0.01).log_prob(jnp.sum(effect)))
    with numpyro.plate("rows", group.shape[0]):
        numpyro.sample("y", dist.Normal(effect[group], 1), obs=y)


def _number_in_a_shared_prior(group, num_groups, y=None):
    scale: Any = numpyro.sample("s", dist.HalfNormal(1 / num_groups))
    with numpyro.plate("groups", num_groups):
        effect: Any = numpyro.sample("effect", dist.Normal(0, scale))
    with numpyro.plate("rows", group.shape[0]):
        numpyro.sample("y", dist.Normal(effect[group], 1), obs=y)


def _counts(group, num_groups, y=None):
    rate: Any = numpyro.sample("rate", dist.Gamma(2, 2))
    with numpyro.plate("groups", num_groups):
        kind: Any = numpyro.sample("kind", dist.Poisson(rate))
    with numpyro.plate("rows", group.shape[0]):
        numpyro.sample("y", dist.Normal(kind[group], 1), obs=y)


def _kinds(group, num_groups, y=None):
    """Groups of three kinds, with a normal effect too if tau is there."""
    simplex: Any = dist.Dirichlet(jnp.ones(3))
    share: Any = numpyro.sample("share", simplex)
    at: Any = numpyro.sample("at", dist.Normal(0, 2).expand([3]).to_event(1))
    with numpyro.plate("groups", num_groups):
        kinds: Any = dist.Categorical(share)
        kind: Any = numpyro.sample("kind", kinds, infer={"enumerate": "parallel"})
        mean: Any = numpyro.sample("mean", dist.Normal(at[kind], 0.5))
    with numpyro.plate("rows", group.shape[0]):
        numpyro.sample("y", dist.Normal(mean[group], 0.4), obs=y)


def _mixture(y):
    """Each row of one of two kinds."""
    share: Any = numpyro.sample("share", dist.Beta(2, 2))
    at: Any = numpyro.sample("at", dist.Normal(0, 2).expand([2]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        kind: Any = numpyro.sample("kind", dist.Bernoulli(share))
        numpyro.sample("y", dist.Normal(at[kind], 0.4), obs=y)


def test_discrete_effects_are_summed_out():
    group, y = means(num_groups=6)
    share, at = np.array([0.2, 0.5, 0.3]), np.array([-1.0, 0.5, 2.0])
    likelihood = group_likelihood(_kinds, (group, 6, y), groups="group")
    found = _values(likelihood, {"share": jnp.asarray(share), "at": jnp.asarray(at)})
    for g in range(6):
        own = y[group == g].astype(float)
        covariance = 0.16 * np.eye(own.size) + 0.25
        parts = [
            np.log(s) + _normal_log_density(own - a, covariance)
            for s, a in zip(share, at, strict=True)
        ]
        assert found[g] == pytest.approx(np.logaddexp.reduce(parts), abs=2e-3)


def test_a_kind_of_each_row_is_summed_out_and_drawn():
    _, y = means(num_groups=30)
    likelihood = group_likelihood(_mixture, (y,))
    at = {"share": jnp.array(0.3), "at": jnp.array([0.6, 1.4])}
    parts = np.log([[0.7], [0.3]]) + norm.logpdf(y, [[0.6], [1.4]], 0.4)
    np.testing.assert_allclose(_values(likelihood, at), np.logaddexp(*parts), atol=1e-4)
    marginal: Any = likelihood.model
    draws = {name: jnp.stack([value] * 400) for name, value in at.items()}
    kinds = draw_effects(
        marginal, likelihood.rows, likelihood.arguments.leaves, draws, jax.random.key(0)
    )["kind"]
    assert kinds.shape == (400, y.size)
    chance = np.exp(parts[1] - np.logaddexp(*parts))
    assert np.abs(kinds.mean(axis=0) - chance).max() < 5 * 0.5 / 20


def test_programs_are_not_shared_by_models_with_other_effects_of_groups():
    group, y = means(num_groups=6)
    kept = []
    for name, function in (("first", jnp.square), ("second", jnp.square), ("second", jnp.exp)):

        def model(group, num_groups, y=None, name=name, function=function):
            with numpyro.plate("groups", num_groups):
                effect: Any = numpyro.sample(name, dist.Normal(0, 1))
                numpyro.deterministic(f"of the {name}", function(effect))
            b: Any = numpyro.sample("b", dist.Normal(0, 1))
            with numpyro.plate("rows", group.shape[0]):
                numpyro.sample("y", dist.Normal(b + effect[group], 0.5), obs=y)

        likelihood = group_likelihood(model, (group, 6, y), groups="group")
        kept.append(likelihood)
        rows, leaves, at = likelihood.rows, likelihood.arguments.leaves, {"b": jnp.zeros(3)}
        marginal: Any = likelihood.model
        drawn = draw_effects(
            marginal, rows, leaves, at, jax.random.key(0), program=likelihood.shared
        )
        assert sorted(drawn) == sorted([name, f"of the {name}"])
        np.testing.assert_allclose(drawn[f"of the {name}"], function(drawn[name]), rtol=1e-5)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (_crossed, "depends on the effect of a group that it is not in"),
        (_running_sum, "depends on the effect of a group that it is not in"),
        (_random_walk, "'effect' grows with the groups and is not one independent effect"),
        (_sizes_in_the_prior, "depends on other groups or on the rows"),
        (_soft_sum_to_zero, "site 'sum', which all groups share, depends on the effects"),
        (_number_in_a_shared_prior, "site 's', which all groups share, depends on the effects"),
        (_counts, r"latent site 'kind' is discrete \(Poisson\)"),
    ],
)
def test_models_whose_groups_are_not_independent_are_refused(model, words):
    group, y = means(num_groups=6)
    with pytest.raises(ValueError, match=words):
        group_likelihood(model, (group, 6, y), groups="group")


def test_errors_name_what_is_expected():
    group, y = means(num_groups=6)
    with pytest.raises(ValueError, match="did you mean 'group'"):
        group_likelihood(normals, (group, 6, y), groups="grop")
    with pytest.raises(ValueError, match="Pass the number of different labels, 6"):
        group_likelihood(normals, (np.array(list("abcdef"))[group], 7, y), groups="group")
    x = np.ones((group.size, 3), np.float32)
    with pytest.raises(ValueError, match="expected at most 2: use LaplaceIntegral"):
        group_likelihood(lines, (x, group, 6, y), groups="group", integration=AdaptiveQuadrature())
