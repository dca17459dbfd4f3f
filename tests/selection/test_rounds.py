"""Rounds: a weighting that is off is repaired, and the report says so."""

import dataclasses
import statistics

import jax
import numpy as np
import pytest

import jaxcoreset as jc
import jaxcoreset.selection.rounds
from jaxcoreset.diagnostics.gaussian import gaussian_kl
from jaxcoreset.selection.draws import DrawPool
from jaxcoreset.selection.estimate import KLEstimate
from jaxcoreset.selection.rounds import agree, relative_ess_of
from jaxcoreset.weighting.nuts import CoresetSampler
from tests.models import regression_model as regression

# The same in all builds, whose programs are then the same.
SETTINGS = {"num_held_out": 500, "progress_bar": False, "proxy": None}


def posterior_of(x, y, weights):
    precision = (x.T * weights) @ x / 0.25 + np.eye(x.shape[1]) / 4
    return np.linalg.solve(precision, (x.T * weights) @ y / 0.25), np.linalg.inv(precision)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, 6))
    return x, x @ rng.normal(size=6) + 0.5 * rng.normal(size=1000)


@pytest.fixture(scope="module")
def off(data):
    """A π̂ three sd off in every parameter and twice as wide."""
    mean, covariance = posterior_of(*data, np.ones(1000))
    sd = np.sqrt(np.diag(covariance))
    rng = np.random.default_rng(1)
    draws = rng.multivariate_normal(mean + 3 * sd, 4 * covariance, size=3000)
    return jc.Draws({"beta": draws})


def divergence(data, coreset):
    """The symmetrised KL between the posteriors of all rows and of a coreset, in closed form."""
    x, y = data
    full = posterior_of(x, y, np.ones(len(y)))
    small = posterior_of(x[coreset.indices], y[coreset.indices], coreset.weights.astype(float))
    return gaussian_kl(*full, *small) + gaussian_kl(*small, *full)


def rounds_of(data, off, **settings):
    builder = jc.CoresetBuilder(regression, 16, weighting=off, **SETTINGS, **settings)
    return builder.run_rounds(jax.random.key(0), *data)


@pytest.fixture(scope="module")
def mended(data, off):
    return rounds_of(data, off)


def divergences(data, weighting):
    builder = jc.CoresetBuilder(regression, 16, weighting=weighting, rounds=1, **SETTINGS)
    return [divergence(data, builder.run(jax.random.key(seed), *data)) for seed in range(5)]


def draws_of(posterior):
    return jc.Draws({"beta": np.random.default_rng(2).multivariate_normal(*posterior, size=3000)})


@pytest.mark.slow
@pytest.mark.unoptimised
def test_two_rounds_mend_a_weighting_three_sd_off(data, off, mended):
    # From one key to another a build varies by a factor of ten, so that single ones tell little.
    mean = statistics.geometric_mean
    best = divergences(data, draws_of(posterior_of(*data, np.ones(1000))))
    first = mended[0]
    x, y = (values[first.indices] for values in data)
    second = divergences(data, draws_of(posterior_of(x, y, first.weights.astype(float))))
    assert mean(divergences(data, off)) > 3 * mean(best)
    assert mean(second) < 2.5 * mean(best)
    assert divergence(data, mended[1]) < 2.5 * max(best)


def test_the_coresets_own_estimate_sees_what_the_weightings_does_not(data, mended):
    """After a bad start it is near the truth; where the rounds end, both are."""
    for coreset in mended:
        found = coreset.report.rounds[-1]
        truth = divergence(data, coreset)
        if truth < 0.3:
            assert 0.5 < found["own_kl"] / truth < 2
    last = mended[-1].report
    assert last.rounds[-1]["agrees"] is True
    assert 0.5 < last.kl / divergence(data, mended[-1]) < 2


def test_report_holds_the_history(mended):
    report = mended[-1].report
    assert len(report.rounds) == len(mended) > 1
    assert report.rounds[0]["weighting"] == "Draws"
    assert report.rounds[1]["weighting"] == "coreset posterior"
    assert [one["agrees"] for one in report.rounds] == [False] * (len(mended) - 1) + [True]
    assert "round 2" in str(report)
    again = jc.Report.from_dict(report.to_dict())
    assert again.rounds == report.rounds
    # Where the estimates differ, the larger one is reported.
    first = mended[0].report
    assert first.kl == max(first.rounds[0]["kl"], first.rounds[0]["own_kl"])


def test_rounds_are_the_same_for_the_same_key(data, off, mended):
    again = rounds_of(data, off, rounds=2)
    assert len(again) == 2
    for coreset, before in zip(again, mended, strict=False):
        np.testing.assert_array_equal(coreset.indices, before.indices)
        np.testing.assert_array_equal(coreset.weights, before.weights)


def test_auto_leaves_a_good_weighting_alone_and_mends_a_bad_one(data, mended):
    good = jc.CoresetBuilder(regression, 16, **SETTINGS).run(jax.random.key(0), *data)
    (only,) = good.report.rounds
    assert only["own_kl"] is None
    assert only["relative_ess"] > 0.9
    report = mended[-1].report
    assert report.rounds[0]["relative_ess"] < 0.1
    assert report.rounds[-1]["agrees"]
    assert len(report.rounds) > 1


@pytest.fixture
def agreement(monkeypatch):
    """Estimates that agree, which else they do now and then."""
    monkeypatch.setattr(jaxcoreset.selection.rounds, "agree", lambda *_, **__: (True, True))


@pytest.mark.usefixtures("agreement")
def test_a_poor_weighting_is_left_behind_even_where_the_estimates_agree(data, off):
    """Both estimates may be right, and a build at better draws several times nearer."""
    builder = jc.CoresetBuilder(regression, 16, weighting=off, **SETTINGS)
    nearer, right = [], []
    for seed in (1, 2, 14):
        first, second = builder.run_rounds(jax.random.key(seed), *data)
        report = second.report
        assert [one["agrees"] for one in report.rounds] == [True, None]
        assert report.rounds[1]["weighting"] == "coreset posterior"
        assert "under coreset posterior" in str(report)
        nearer.append(divergence(data, second) / divergence(data, first))
        right.append(report.kl / divergence(data, second))
    # Of three, as one may have a lucky first build.
    assert statistics.median(nearer) < 0.5
    assert 0.5 < statistics.median(right) < 2


def test_draws_of_a_coreset_posterior_are_near_if_its_own_error_was_small(monkeypatch, data, off):
    was_near = []

    def disagree(*_, **known):
        was_near.append(known["was_near"])
        return False, False

    monkeypatch.setattr(jaxcoreset.selection.rounds, "agree", disagree)
    builder = jc.CoresetBuilder(regression, 16, weighting=off, **(SETTINGS | {"rounds": 4}))
    rounds = builder.run(jax.random.key(1), *data).report.rounds
    own = [one["own_kl"] for one in rounds]
    assert was_near == [False, *(kl <= 0.3 for kl in own[:-1])]
    assert True in was_near


def test_a_build_after_estimates_that_differ_is_looked_at_if_a_mean_is_off(monkeypatch, data, off):
    """Both are within the tolerance, so the round is accepted but for the mean."""
    monkeypatch.setattr(jaxcoreset.selection.rounds, "agree", lambda *_, **__: (True, False))
    estimate = KLEstimate(0.01, 0.001, 0.1, mean_shift=9.0, mean_shift_standard_error=0.5)
    monkeypatch.setattr(jaxcoreset.selection.rounds, "estimate_at", lambda *_: estimate)
    tol = jc.Tolerance(0.1, throw=False)
    settings = SETTINGS | {"rounds": 3}
    builder = jc.CoresetBuilder(regression, tol=tol, weighting=off, **settings)
    rounds = builder.run(jax.random.key(1), *data).report.rounds
    assert len(rounds) == 3
    assert [one["own_mean_shift"] for one in rounds] == [9.0] * 3
    assert [one["own_mean_shift_standard_error"] for one in rounds] == [0.5] * 3
    assert not any(one["agrees"] for one in rounds)


def test_the_report_says_that_estimates_differ_within_the_tolerance(mended):
    report = mended[0].report
    (only,) = report.rounds
    for agrees, alike, said in (
        (True, True, "they agree"),
        (True, False, "both are within the tolerance"),
        (False, True, "they are similar"),
        (False, False, "they differ"),
    ):
        told = only | {"own_kl": 0.1, "own_kl_standard_error": 0.01}
        told |= {"agrees": agrees, "alike": alike}
        assert f"own posterior: {said}" in str(dataclasses.replace(report, rounds=[told]))


@pytest.mark.usefixtures("agreement")
def test_a_tolerance_that_is_kept_to_asks_for_no_second_build(data, off):
    builder = jc.CoresetBuilder(regression, tol=0.1, weighting=off, progress_bar=False, proxy=None)
    (only,) = builder.run_rounds(jax.random.key(1), *data)
    assert only.report.rounds[0]["relative_ess"] < 0.1
    assert only.report.is_within_tol


@pytest.mark.slow
@pytest.mark.unoptimised
def test_tolerance_is_met_from_a_bad_start(data, off):
    builder = jc.CoresetBuilder(regression, tol=0.05, weighting=off, **SETTINGS)
    coreset = builder.run(jax.random.key(0), *data)
    assert coreset.report.is_within_tol
    assert divergence(data, coreset) < 0.06


def test_a_weighting_beside_the_posterior_is_checked_by_the_coresets_own(data):
    """Under the weighting alone, these estimates are 0.6 of the truth at the median."""
    mean, covariance = posterior_of(*data, np.ones(1000))
    factor = np.linalg.cholesky(covariance)
    ratios = []
    for seed in range(5):
        generator = np.random.default_rng(seed)
        direction = generator.normal(size=6)
        shift = factor @ (1.1 * direction / np.linalg.norm(direction))
        draws = generator.multivariate_normal(mean + shift, covariance, size=8000)
        builder = jc.CoresetBuilder(
            regression, tol=0.05, weighting=jc.Draws({"beta": draws}), **SETTINGS
        )
        coreset = builder.run(jax.random.key(seed), *data)
        first = coreset.report.rounds[0]
        assert 0.1 < first["relative_ess"] < 0.45
        assert first["own_kl"] is not None
        assert coreset.report.is_within_tol
        ratios.append(coreset.report.kl / divergence(data, coreset))
    assert 0.75 < statistics.median(ratios) < 1.25


def test_efficiency_is_that_of_importance_weights_in_closed_form(data):
    """Between Gaussians of one covariance that are c sd apart it is exp(−c²)."""
    mean, covariance = posterior_of(*data, np.ones(1000))
    factor = np.linalg.cholesky(covariance)
    shift = factor @ np.array([0.6, 0, 0, 0, 0, 0])
    draws = np.random.default_rng(3).multivariate_normal(mean + shift, covariance, size=4000)
    likelihood = jc.model_likelihood(regression, data)
    source = jc.Draws({"beta": draws}).fit(likelihood, jax.random.key(0))
    pool = DrawPool(likelihood, source, jax.random.key(1))
    pool.ensure_draws(solver=2000, selection=2000)
    assert relative_ess_of(pool) == pytest.approx(np.exp(-0.36), abs=0.06)


def test_sampler_draws_from_the_weighted_posterior(data):
    """With and without the covariance that its mass matrix starts at."""
    x, y = data
    rows = np.arange(0, 1000, 5)
    weights = np.random.default_rng(4).gamma(2.0, 2.5, size=rows.size)
    mean, covariance = posterior_of(x[rows], y[rows], weights)
    sampler = CoresetSampler(jc.model_likelihood(regression, data), num_samples=2000)
    for known in (None, covariance):
        source = sampler.run(jax.random.key(0), rows, weights, np.zeros((4, 6)), known)
        draws = np.asarray(source.take(jax.random.key(1), 0, 2000)["beta"], np.float64)
        z = (draws - mean) @ np.linalg.cholesky(np.linalg.inv(covariance))
        assert np.linalg.norm(z.mean(0)) < 0.2
        np.testing.assert_allclose(np.linalg.eigvalsh(np.cov(z.T)), 1, atol=0.25)
        assert source.r_hat < 1.05
        assert source.inefficiency < 4


@pytest.mark.parametrize(
    ("under", "own", "before", "tol", "stops"),
    [
        ((0.01, 0.001), (0.011, 0.001), False, None, True),
        ((0.01, 0.001), (0.02, 0.001), False, None, False),
        ((0.02, 0.001), (0.01, 0.001), False, None, False),
        ((0.01, 0.005), (0.02, 0.005), False, None, True),  # as far as one can tell
        ((9.0, 7.6), (0.2, 0.01), False, None, False),  # nothing can be told
        ((1e-7, 1e-8), (2e-5, 1e-6), False, None, True),  # negligible
        ((1e-4, 1e-5), (4e-4, 1e-5), False, 0.01, True),  # negligible for this tolerance
        ((0.008, 0.0005), (0.001, 0.0001), False, 0.01, True),  # each within the tolerance
        ((0.001, 0.0001), (0.008, 0.0005), False, 0.01, True),
        ((0.001, 0.0001), (0.008, 0.0015), False, 0.01, False),  # but for its standard error
        ((0.009, 0.001), (0.001, 0.0001), False, 0.01, False),
        ((np.nan, 0.1), (0.001, 0.0001), False, 0.01, False),
        ((0.8, 0.02), (0.4, 0.02), False, 1.0, False),  # lower bounds
        ((0.5, 0.01), (0.5, 0.01), False, 1.0, False),
        ((0.1, 0.01), (0.2, 0.01), False, 1.0, True),
        ((0.009, 0.0001), (0.012, 0.0005), False, 0.01, False),  # above it
        ((0.009, 0.0001), (0.011, 0.001), True, 0.01, False),  # above it, if by chance
        ((5.0, 0.1), (5.1, 0.1), False, None, False),  # may be chance
        ((5.0, 0.1), (5.1, 0.1), True, None, True),
    ],
)
def test_when_estimates_agree(under, own, before, tol, stops):
    estimates = [KLEstimate(kl, error, 0.1) for kl, error in (under, own)]
    assert agree(*estimates, before, tol)[0] is stops


def test_estimates_that_differ_within_the_tolerance_ask_for_another_round_once():
    estimates = KLEstimate(0.001, 0.0001, 0.1), KLEstimate(0.008, 0.0005, 0.1)
    assert agree(*estimates, False, 0.01, was_near=False) == (False, False)
    assert agree(*estimates, False, 0.01) == (True, False)


@pytest.mark.parametrize("rounds", [0, 1.5, "always"])
@pytest.mark.usefixtures("untyped")
def test_bad_rounds_are_refused(rounds):
    with pytest.raises(ValueError, match="rounds is"):
        jc.CoresetBuilder(regression, size=5, rounds=rounds, proxy=None)
