"""Coresets of groups: what a user gets, and how close it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import log_density, potential_energy

import jaxcoreset as jc
from jaxcoreset.data.ragged import order_by_length
from jaxcoreset.diagnostics.log_ratio import log_ratios
from jaxcoreset.likelihood import group_layout
from jaxcoreset.likelihood.group_likelihood import group_likelihood
from tests.builders.conftest import GROUP, NUM_GROUPS, Y, effects_given, nuts
from tests.likelihood.group_models import flights, intercepts, normals
from tests.models import regression_model


@pytest.fixture
def coreset(of_groups):
    return of_groups


EVERY = dict.fromkeys(range(NUM_GROUPS), 1.0)


def _weights(coreset):
    return dict(zip(coreset.indices.tolist(), coreset.weights.tolist(), strict=True))


def _points(samples, num):
    """The first draws, one by one."""
    return [{name: values[i] for name, values in samples.items()} for i in range(num)]


def _exact(at, weights):
    """The weighted log-likelihood of normal groups in closed form."""
    mu, tau, sigma = (float(at[name]) for name in ("mu", "tau", "sigma"))
    total = 0.0
    for number, weight in weights.items():
        own = Y[number == GROUP].astype(float) - mu
        n, variance = own.size, sigma**2 + own.size * tau**2
        square = (np.sum(own**2) - tau**2 / variance * np.sum(own) ** 2) / sigma**2
        log_det = (n - 1) * np.log(sigma**2) + np.log(variance)
        total += -0.5 * weight * (n * np.log(2 * np.pi) + log_det + square)
    return total


def test_a_few_groups_stand_for_all(coreset, samples):
    weights = _weights(coreset)
    differences = [_exact(at, EVERY) - _exact(at, weights) for at in _points(samples, 200)]
    assert len(coreset) <= 12
    assert coreset.report.kl < 0.01
    # The variance of the log-ratio is the symmetrised divergence.
    assert np.var(differences) < 2 * coreset.report.kl + 1e-4


def test_the_arguments_hold_the_rows_of_the_chosen_groups(coreset):
    labels, num_groups, kept = coreset.args
    assert num_groups == len(coreset) == coreset.indices.size
    for place, number in enumerate(coreset.indices):
        np.testing.assert_array_equal(kept[labels == place], Y[number == GROUP])
    assert "groups" in str(coreset.report)
    assert "groups" in repr(coreset)


def test_the_model_has_the_weighted_marginals_and_shared_parameters_only(coreset, samples):
    at = _points(samples, 2)
    found = [log_density(coreset.model, coreset.args, coreset.kwargs, one) for one in at]
    sites = [name for name, site in found[0][1].items() if not site.get("is_observed")]
    assert sorted(sites) == ["mu", "sigma", "tau"]
    exact = [_exact(one, _weights(coreset)) for one in at]
    priors = [float(coreset.likelihood.log_prior(coreset.likelihood.unconstrain(o))) for o in at]
    # The priors differ by the Jacobians of the two scales.
    jacobians = [float(jnp.log(one["tau"]) + jnp.log(one["sigma"])) for one in at]
    expected = [e + p - j for e, p, j in zip(exact, priors, jacobians, strict=True)]
    assert float(found[0][0] - found[1][0]) == pytest.approx(expected[0] - expected[1], abs=0.02)


def test_effects_of_all_groups_are_those_of_the_closed_form(coreset, samples):
    effects = coreset.group_effects(jax.random.key(1), samples, num_draws=200)["mean"]
    assert effects.shape == (200, NUM_GROUPS)
    at = np.linspace(0, 399, 200).round().astype(int)
    used = {name: values[at] for name, values in samples.items()}
    mean, precision = effects_given(used, GROUP, Y, NUM_GROUPS)
    scores = (effects - mean) * np.sqrt(precision)
    assert abs(scores.mean()) < 0.03
    assert abs(scores.std() - 1) < 0.03
    moments = coreset.group_effects(jax.random.key(1), samples, num_draws=200, moments=True)["mean"]
    np.testing.assert_allclose(moments[0], effects.mean(axis=0), atol=1e-4)
    np.testing.assert_allclose(moments[1], effects.std(axis=0), atol=1e-4)


def test_a_saved_coreset_is_the_same(coreset, samples, tmp_path):
    loaded = jc.load(coreset.save(tmp_path / "groups"), model=normals)
    (at,) = _points(samples, 1)
    one, other = (log_density(c.model, c.args, c.kwargs, at)[0] for c in (coreset, loaded))
    assert float(one) == float(other)
    with pytest.raises(ValueError, match="pass the model's arguments with all rows"):
        loaded.group_effects(jax.random.key(1), samples)
    args = (GROUP, NUM_GROUPS, Y)
    effects = loaded.group_effects(jax.random.key(1), samples, *args, num_draws=8)
    assert effects["mean"].shape == (8, NUM_GROUPS)
    certificates = [
        jc.certify(c, samples, *given, num_draws=60, progress_bar=False)
        for c, given in ((coreset, ()), (loaded, args))
    ]
    assert certificates[0].kl == pytest.approx(certificates[1].kl, rel=0.05)
    assert str(certificates[1]).split()[2:6] == ["groups", str(len(coreset)), "of", str(NUM_GROUPS)]


def test_log_ratios_are_exact_where_groups_are_evaluated_by_length(coreset, samples, monkeypatch):
    at = {name: np.asarray(values[:40]) for name, values in samples.items()}
    monkeypatch.setattr(group_layout, "choose_lengths", lambda sizes: (3, 8, 12))
    integration = coreset.grouping.integration
    split = group_likelihood(
        normals, (GROUP, NUM_GROUPS, Y), groups="group", integration=integration
    )
    chosen = split.rows.select(split.rows.places(coreset.indices))
    assert order_by_length(chosen) is not None
    found, whole = (log_ratios(coreset, one, at) for one in (split, coreset.likelihood))
    np.testing.assert_allclose(found, whole, atol=2e-3)
    weights = _weights(coreset)
    exact = [_exact(one, EVERY) - _exact(one, weights) for one in _points(at, 40)]
    # A proxy has a part in the log-ratios, but not here.
    assert coreset.proxy is None
    np.testing.assert_allclose(found, exact, atol=5e-3)


def test_groups_cannot_be_a_table_of_rows(coreset):
    pytest.importorskip("pandas")
    with pytest.raises(ValueError, match="rows have no weights of their own"):
        coreset.to_frame()


def test_an_integral_without_effects_is_refused():
    builder = jc.CoresetBuilder(regression_model, size=5, integration=jc.LaplaceIntegral())
    with pytest.raises(ValueError, match="no effects to integrate out"):
        builder.run(jax.random.key(0), np.eye(6), np.arange(6.0))


@pytest.mark.slow
def test_the_posterior_is_that_of_nuts_with_all_effects():
    X, plane, y = flights(num_planes=60, most=25)
    builder = jc.CoresetBuilder(intercepts, tol=0.01, groups="plane", progress_bar=False)
    coreset = builder.run(jax.random.key(0), X, plane, 60, y)
    settings = {"num_warmup": 700, "num_samples": 2000}
    full = MCMC(NUTS(intercepts), **settings, progress_bar=False)
    full.run(jax.random.key(1), X, plane, 60, y)
    marginal = nuts(coreset, 2, **settings)
    truth, found = full.get_samples(), marginal.get_samples()
    for name in ("beta", "mu", "tau"):
        sd = np.asarray(truth[name]).std(axis=0)
        # Both have a Monte Carlo error of some 0.04 standard deviations.
        assert (np.abs(found[name].mean(axis=0) - truth[name].mean(axis=0)) < 0.2 * sd).all()
        np.testing.assert_allclose(np.asarray(found[name]).std(axis=0), sd, rtol=0.15)
    effects = coreset.group_effects(jax.random.key(3), marginal, num_draws=500)["effect"]
    sd = np.asarray(truth["effect"]).std(axis=0)
    assert np.abs((effects.mean(axis=0) - truth["effect"].mean(axis=0)) / sd).max() < 0.3
    assert np.abs(effects.std(axis=0) / sd - 1).mean() < 0.05


def test_the_density_in_float64_follows_that_in_float32(coreset):

    def energy():
        def at(z):
            return potential_energy(coreset.model, coreset.args, coreset.kwargs, z)

        return jax.jit(at)(coreset.init_params())

    single = energy()
    with coreset.in_float64():
        double = energy()
    assert (single.dtype, double.dtype) == (np.float32, np.float64)
    np.testing.assert_allclose(single, double, rtol=1e-5)


@pytest.mark.parametrize("changed", ["response", "order"])
def test_effects_of_other_data_are_refused(coreset, samples, changed):
    """The rows of the groups chosen tell that it is not the table of the build."""
    y = Y + 1 if changed == "response" else Y[::-1].copy()
    with pytest.raises(ValueError, match=r"the data differ from those .*in the same order"):
        coreset.group_effects(jax.random.key(1), samples, GROUP, NUM_GROUPS, y, num_draws=8)
