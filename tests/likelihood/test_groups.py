"""Log-likelihoods of groups, whose effects are integrated out, against closed forms and SciPy."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.integrate import quad
from scipy.stats import nbinom, norm

from jaxcoreset.builders.preparing import warn_of_summaries
from jaxcoreset.data.ragged import Ragged
from jaxcoreset.likelihood import group_layout
from jaxcoreset.likelihood.group_effects import draw_effects
from jaxcoreset.likelihood.group_likelihood import group_likelihood
from jaxcoreset.likelihood.group_model import GroupModel
from jaxcoreset.likelihood.integral_error import accurate_enough
from jaxcoreset.likelihood.integration import AdaptiveQuadrature, GaussianIntegral, LaplaceIntegral
from tests.likelihood.group_models import (
    effects,
    flights,
    frailties,
    in_order,
    intercepts,
    lines,
    marginals_of_normals,
    means,
    normals,
    rows,
    unchecked,
)

SHARED = {"beta": jnp.array([0.5, -0.3]), "mu": jnp.array(-0.4), "tau": jnp.array(0.7)}
NORMAL = {"mu": jnp.array(0.8), "tau": jnp.array(0.6), "sigma": jnp.array(0.4)}


def _values(likelihood, shared):
    """The log-likelihood of every group, in the order of their numbers."""
    evaluate = jax.jit(likelihood.log_likelihood_constrained)
    return np.asarray(evaluate(shared, in_order(likelihood.rows)))


def _marginals(model, args, groups="group", integration=None):
    """The same as a function of what groups share, without the checks of a likelihood."""
    marginal, layout = unchecked(model, args, groups, integration)
    leaves, data = layout.arguments.leaves, in_order(layout.rows())
    return lambda shared: marginal.log_marginals(shared, leaves, data)


def test_the_prior_and_named_values_do_not_integrate_effects(monkeypatch):
    X, plane, y = flights()
    likelihood = group_likelihood(intercepts, (X, plane, 40, y), groups="plane")
    params = {name: x + 0.1 for name, x in likelihood.init_params.items()}
    prior = float(likelihood.log_prior(params))
    named = likelihood.named_sites(params, likelihood.two_rows)
    monkeypatch.setattr(GroupModel, "log_marginals", None)
    assert float(likelihood.log_prior(params)) == prior
    again = likelihood.named_sites(params, likelihood.two_rows)
    jax.tree.map(np.testing.assert_array_equal, named, again)
    with pytest.raises(TypeError):  # which the values of groups need
        likelihood.log_likelihood(params, likelihood.two_rows)


@pytest.fixture(scope="module")
def planes():
    """The data of `intercepts`, their likelihood, and its values at `SHARED`."""
    X, plane, y = flights()
    likelihood = group_likelihood(intercepts, (X, plane, 40, y), groups="plane")
    return X, plane, y, likelihood, _values(likelihood, SHARED)


def test_a_group_is_the_integral_that_scipy_finds(planes):
    X, plane, y, likelihood, found = planes
    assert sorted(likelihood.init_params) == ["beta", "mu", "tau"]
    assert likelihood.num_data == 40

    def integrand(z, rows):
        eta = X[rows] @ np.array([0.5, -0.3]) + z
        return np.exp(np.sum(y[rows] * eta - np.logaddexp(0, eta))) * norm.pdf(z, -0.4, 0.7)

    for group in range(0, 40, 3):
        rows = plane == group
        expected = np.log(quad(integrand, -8, 8, (rows,), epsabs=0, epsrel=1e-9, limit=200)[0])
        assert found[group] == pytest.approx(expected, abs=1e-4)


def test_centred_and_non_centred_effects_have_one_marginal(planes):
    X, plane, y, _, values = planes
    other = _marginals(partial(intercepts, is_centred=False), (X, plane, 40, y), "plane")
    np.testing.assert_allclose(jax.jit(other)(SHARED), values, atol=1e-4)


def test_groups_of_several_lengths_with_text_labels_have_the_same_values(planes, monkeypatch):
    X, plane, y, _, values = planes
    names = np.array([f"N{number:03d}" for number in range(40)])[plane]
    monkeypatch.setattr(group_layout, "choose_lengths", lambda sizes: (4, 12, 30))
    split = group_likelihood(intercepts, (X, names, 40, y), groups="plane")
    ragged = next(leaf for leaf in split.data if isinstance(leaf, Ragged))
    assert ragged.lengths == (4, 12, 30)
    assert (np.diff(np.searchsorted(ragged.lengths, ragged.sizes)) >= 0).all()
    np.testing.assert_allclose(_values(split, SHARED), values, atol=1e-5)


def _normal_marginals(shared, group, y, num_groups):
    """The log-densities of groups with normal effects and rows, in closed form."""
    sizes = np.bincount(group, minlength=num_groups)
    residuals = jnp.asarray(y, float) - shared["mu"]
    noise, spread = shared["sigma"] ** 2, shared["tau"] ** 2
    return marginals_of_normals(residuals, group, sizes, noise, spread)


@pytest.mark.slow
@pytest.mark.unoptimised
@pytest.mark.parametrize(
    ("integration", "is_float64"),
    [
        (AdaptiveQuadrature(), True),
        (AdaptiveQuadrature(), False),
        (LaplaceIntegral(), True),
        (GaussianIntegral(), True),
    ],
)
def test_normal_marginals_and_their_derivatives_are_exact(integration, is_float64):
    group, y = means(num_groups=8)

    def with_derivatives(values):
        def all_of(at):
            return values(at), jax.grad(lambda at: values(at).sum())(at), hessian(at)

        hessian = jax.hessian(lambda at: values(at).sum())
        return jax.jit(all_of)({name: jnp.asarray(float(x)) for name, x in NORMAL.items()})

    with jax.enable_x64(True):
        expected = with_derivatives(lambda at: _normal_marginals(at, group, y, 8))
    with jax.enable_x64(is_float64):
        found = with_derivatives(_marginals(normals, (group, 8, y), integration=integration))
    close = 1e-7 if is_float64 else 2e-3
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == (np.float64 if is_float64 else np.float32)
        np.testing.assert_allclose(one, other, rtol=close, atol=10 * close)


@pytest.mark.slow
@pytest.mark.unoptimised
@pytest.mark.parametrize("is_normal", [True, False])
def test_normal_effects_of_normal_rows_are_integrated_in_closed_form(planes, is_normal):
    group, y = means(num_groups=8)
    likelihood, at = planes[3], SHARED
    if is_normal:
        likelihood, at = group_likelihood(normals, (group, 8, y), groups="group"), NORMAL
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
        exact = _normal_marginals(NORMAL, group, y, 8)
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
    found = jax.jit(_marginals(lines, (x, group, 6, y)))(shared)
    tau = np.linspace(0.5, 0.9, num_dims)
    covariance = np.outer(tau, tau) * (0.4 + 0.6 * np.eye(num_dims))
    expected = [
        _normal_log_density(
            y[group == g] - x[group == g] @ np.full(num_dims, 0.3),
            x[group == g] @ covariance @ x[group == g].T + 0.25 * np.eye((group == g).sum()),
        )
        for g in range(6)
    ]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_rows_with_a_gamma_effect_are_negative_binomial_once_nodes_are_enough():
    rng = np.random.default_rng(2)
    x = rng.normal(size=50).astype(np.float32)
    y = rng.negative_binomial(2, 0.4, 50)
    likelihood = group_likelihood(frailties, (x, y), integration=AdaptiveQuadrature(5))
    draws = {
        "beta": jnp.asarray(0.3 + 0.1 * rng.normal(size=32), float),
        "shape": jnp.asarray(np.log(2.0) + 0.1 * rng.normal(size=32), float),
    }
    better, error = accurate_enough(likelihood, draws, 1e-7)
    marginal: Any = better.model
    assert marginal.integration.num_nodes > 5
    assert error <= 1e-7
    mean = np.exp(1 + 0.3 * x.astype(float))
    expected = nbinom.logpmf(y, 2.0, 2.0 / (2.0 + mean))
    found = _values(better, {"beta": jnp.array(0.3), "shape": jnp.array(2.0)})
    np.testing.assert_allclose(found, expected, atol=2e-4)


def test_groups_without_rows_have_log_likelihood_zero():
    """Even where the places that fill them up are outside the support."""
    group, _ = means(num_groups=6)

    def bounded(group, low, y):
        scale: Any = numpyro.sample("scale", dist.HalfNormal(1))
        left = low[group]
        mean = left + effects(low.size, scale=scale)[group]
        at: Any = dist.TruncatedNormal(mean, 1, low=left, high=left + 1)
        numpyro.sample("y", at, obs=y)

    low = np.arange(9, dtype=np.float32)
    y = (low[group] + 0.5).astype(np.float32)
    likelihood = group_likelihood(bounded, (group, low, y), groups="group")
    assert likelihood.num_data == 9
    np.testing.assert_allclose(_values(likelihood, {"scale": 0.5})[6:], 0, atol=1e-4)


def _kinds(group, num_groups, y=None):
    """Groups of two kinds, with a normal effect too."""
    simplex: Any = dist.Dirichlet(jnp.ones(2))
    share: Any = numpyro.sample("share", simplex)
    at: Any = numpyro.sample("at", dist.Normal(0, 2).expand([2]).to_event(1))
    with numpyro.plate("groups", num_groups):
        kinds: Any = dist.Categorical(share)
        kind: Any = numpyro.sample("kind", kinds, infer={"enumerate": "parallel"})
        mean: Any = numpyro.sample("mean", dist.Normal(at[kind], 0.5))
    rows(group, mean[group], y, 0.4)


def _mixture(y):
    """Each row of one of two kinds."""
    share: Any = numpyro.sample("share", dist.Beta(2, 2))
    at: Any = numpyro.sample("at", dist.Normal(0, 2).expand([2]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        kind: Any = numpyro.sample("kind", dist.Bernoulli(share))
        numpyro.sample("y", dist.Normal(at[kind], 0.4), obs=y)


def test_discrete_effects_are_summed_out():
    group, y = means(num_groups=6)
    share, at = np.array([0.3, 0.7]), np.array([-1.0, 1.0])
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


def _drawn(likelihood, at, program=None):
    """Draws of the groups' effects at draws of what groups share."""
    marginal, leaves, key = likelihood.model, likelihood.arguments.leaves, jax.random.key(0)
    return draw_effects(marginal, likelihood.rows, leaves, at, key, program=program)


def test_a_kind_of_each_row_is_summed_out_and_drawn():
    _, y = means(num_groups=30)
    likelihood = group_likelihood(_mixture, (y,))
    at = {"share": jnp.array(0.3), "at": jnp.array([0.6, 1.4])}
    parts = np.log([[0.7], [0.3]]) + norm.logpdf(y, [[0.6], [1.4]], 0.4)
    np.testing.assert_allclose(_values(likelihood, at), np.logaddexp(*parts), atol=1e-4)
    kinds = _drawn(likelihood, {name: jnp.stack([x] * 400) for name, x in at.items()})["kind"]
    assert kinds.shape == (400, y.size)
    chance = np.exp(parts[1] - np.logaddexp(*parts))
    assert np.abs(kinds.mean(axis=0) - chance).max() < 5 * 0.5 / 20


def test_programs_are_not_shared_by_models_with_other_effects_of_groups(monkeypatch):
    monkeypatch.setattr("jaxcoreset.likelihood.group_likelihood.check_groups", lambda *given: None)
    group, y = means(num_groups=6)
    kept = []
    for name, function in (("first", jnp.square), ("second", jnp.square), ("second", jnp.exp)):

        def model(group, num_groups, y=None, name=name, function=function):
            with numpyro.plate("groups", num_groups):
                effect: Any = numpyro.sample(name, dist.Normal(0, 1))
                numpyro.deterministic(f"of the {name}", function(effect))
            b: Any = numpyro.sample("b", dist.Normal(0, 1))
            rows(group, b + effect[group], y, 0.5)

        likelihood = group_likelihood(model, (group, 6, y), groups="group")
        assert all(likelihood.shared is not other.shared for other in kept)
        kept.append(likelihood)
    drawn = _drawn(likelihood, {"b": jnp.zeros(3)}, likelihood.shared)
    assert sorted(drawn) == ["of the second", "second"]
    np.testing.assert_allclose(drawn["of the second"], jnp.exp(drawn["second"]), rtol=1e-5)


def test_errors_name_what_is_expected():
    group, y = means(num_groups=6)
    with pytest.raises(ValueError, match="did you mean 'group'"):
        group_likelihood(normals, (group, 6, y), groups="grop")
    x = np.ones((group.size, 3), np.float32)
    with pytest.raises(ValueError, match="expected at most 2: use LaplaceIntegral"):
        group_likelihood(lines, (x, group, 6, y), groups="group", integration=AdaptiveQuadrature())


def test_deterministic_sites_of_several_groups_are_told_from_those_of_one():
    def model(group, num, x, y):
        mu = numpyro.sample("mu", dist.Normal())
        numpyro.deterministic("twice", 2 * mu)
        with numpyro.plate("groups", num):
            effect = numpyro.sample("effect", dist.Normal(mu, 1))
            numpyro.deterministic("odds", jnp.exp(effect))
        numpyro.deterministic("average", effect.mean())
        numpyro.deterministic("best", jnp.argmax(effect))
        numpyro.deterministic("centred", effect - effect.mean())
        numpyro.deterministic("total", jax.ops.segment_sum(x, group, num))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(effect[group] + x, 1), obs=y)

    group = np.repeat(np.arange(4), [2, 5, 9, 20])
    x = np.random.default_rng(0).normal(size=36)
    likelihood = group_likelihood(model, (group, 4, x, x), groups="group")
    structure = likelihood.model.structure
    assert structure.left_out == ("average", "best", "centred", "total")
    assert set(structure.effects) == {"odds"}
    assert set(likelihood.named_sites(likelihood.init_params, likelihood.two_rows)) == {"twice"}
    with pytest.warns(UserWarning, match="'average', 'best', 'centred', 'total'.*group_effects"):
        warn_of_summaries(likelihood)


def test_a_mask_of_the_observed_site_takes_the_place_of_obs_mask():
    """The marginal density of the rows whose response is observed, in closed form."""

    def model(noisy, seen, y):
        slope = numpyro.sample("slope", dist.Normal())
        with numpyro.plate("rows", len(noisy)):
            true = numpyro.sample("true", dist.Normal())
            numpyro.sample("noisy", dist.Normal(true, 0.3), obs=noisy)
            with numpyro.handlers.mask(mask=seen):
                numpyro.sample("y", dist.Normal(slope * true, 1), obs=y)

    rng = np.random.default_rng(0)
    noisy, seen, y = rng.normal(size=40), rng.random(40) < 0.8, rng.normal(size=40)
    likelihood = group_likelihood(model, (noisy, seen, y), groups=None)
    found = likelihood.log_likelihood({"slope": 0.7}, likelihood.take(np.arange(40)))
    mean, variance = noisy / 1.09, 0.09 / 1.09
    expected = norm.logpdf(noisy, 0, 1.09**0.5)
    expected = expected + seen * norm.logpdf(y, 0.7 * mean, (1 + 0.49 * variance) ** 0.5)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
