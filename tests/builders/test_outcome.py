"""Which round is returned, what a report says of it, and modes that only a coreset has."""

import dataclasses
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import jaxcoreset as jc
from jaxcoreset.builders import spikes
from jaxcoreset.builders.outcome import (
    check_tolerance,
    got_far_worse,
    has_escaped,
    reported_estimate,
    up_to_best,
)
from jaxcoreset.coreset.report import Report
from jaxcoreset.coreset.warn import warn_if_bad
from jaxcoreset.data.utils import Clock
from jaxcoreset.likelihood.program import with_program
from jaxcoreset.selection.estimate import KLEstimate
from jaxcoreset.selection.rounds import Checker, Round
from jaxcoreset.selection.sizes import extrapolate
from jaxcoreset.weighting.chains import Transitions, mixing_trouble
from jaxcoreset.weighting.nuts import CoresetSampler
from tests.builders.conftest import nuts
from tests.models import logistic_model as logistic


def report(kl, **facts):
    return dataclasses.replace(
        Report.without_error("all rows", 100, 100, 10, Clock()), kl=kl, **facts
    )


@pytest.mark.parametrize(
    ("own_kl", "agrees", "alike", "relative_ess", "expected"),
    [
        (None, None, None, None, 0.2),
        (0.5, False, False, 0.9, 0.5),
        (0.1, False, False, 0.9, 0.2),
        (0.5, False, True, 0.9, 0.5),  # similar, but too large to be trusted
        (0.5, True, True, 0.9, 0.35),  # both are as good: the mean of the two
        (0.1, True, True, 0.9, 0.15),
        (0.1, True, True, None, 0.15),
        (0.1, True, True, 0.49, 0.1),  # draws of a weighting beside the posterior
        (0.1, True, True, 0.01, 0.1),
        (0.1, True, True, "repeats", 0.1),  # held-out draws that are not new
        (0.5, True, False, 0.9, 0.5),  # both within the tolerance
        (0.1, True, False, 0.01, 0.2),
    ],
)
def test_the_estimate_is_that_of_the_coresets_posterior_where_it_is_the_better_one(
    own_kl, agrees, alike, relative_ess, expected
):
    error = None if own_kl is None else 0.01
    last = Round(
        "Laplace",
        *(5, 0.2, 0.01),
        own_kl=own_kl,
        own_kl_standard_error=error,
        own_mean_shift=0.04,
        agrees=agrees,
        alike=alike,
        relative_ess=0.9 if relative_ess == "repeats" else relative_ess,
        has_repeats=relative_ess == "repeats",
    )
    found = reported_estimate(KLEstimate(0.2, 0.02, 0.1, 0.02), last)
    assert found.kl == pytest.approx(expected)
    # Where both count, the larger shift does.
    assert found.mean_shift == (0.02 if expected == 0.2 else 0.04)
    errors = {0.2: 0.02, own_kl: 0.01}
    assert found.standard_error == pytest.approx(errors.get(expected, 0.0005**0.5 / 2))


def test_a_tolerance_is_met_if_the_reported_estimate_is_within_it(monkeypatch):
    """Here the draws of the coreset's own posterior say otherwise than those of the weighting."""
    x = np.random.default_rng(0).normal(size=(200, 1)).astype(np.float32)
    settings = {"tol": jc.Tolerance(0.01, throw=False), "progress_bar": False}
    builder = jc.CoresetBuilder(logistic, **settings)
    for kl, is_within in ((0.0099, True), (0.0101, False)):
        reported = KLEstimate(kl, 0.002, 0.1)
        monkeypatch.setattr(
            "jaxcoreset.builders.builder.reported_estimate", lambda *_, one=reported: one
        )
        coreset = builder.run(jax.random.key(0), x, (x[:, 0] > 0).astype(np.float32))
        assert coreset.report.is_within_tol is is_within


@pytest.mark.parametrize(
    ("errors", "within", "expected"),
    [
        ([2e4, 1e6, 3e6], None, 1),
        ([2.0, 0.1, 0.01], None, 3),
        ([0.010, 0.012], None, 2),
        ([0.002, 0.009], True, 2),
        ([0.002, 0.9], False, 1),
    ],
)
def test_a_round_that_is_worse_than_one_before_is_not_returned(errors, within, expected):
    rounds = [{"kl": error, "own_kl": None, "trouble": None} for error in errors]
    found = []
    for at, error in enumerate(errors):
        coreset = object.__new__(jc.Coreset)
        coreset.report = report(error, rounds=rounds[: at + 1], is_within_tol=within)
        found.append(coreset)
    kept = up_to_best(found)
    assert len(kept) == expected
    assert kept[-1].report.rounds == rounds


def test_a_verdict_is_a_sentence_and_a_bad_one_a_warning():
    trouble = [{"own_kl": None, "trouble": "R-hat is 4.31, above 1.1"}]
    for bad, start in (
        (report(3.0), "don't use"),
        (report(0.01, rounds=trouble), "not checked"),
    ):
        assert bad.verdict.startswith(start)
        with pytest.warns(UserWarning, match=start) as warned:
            warn_if_bad(bad)
        assert warned[0].filename == __file__  # the line that called the package
    assert report(0.01).verdict.startswith("good")
    assert report(0.05).verdict.startswith("usable with correction")
    assert report(0.01, tol=0.02, is_within_tol=True).verdict.startswith("good")
    assert report(0.01, tol=0.001, is_within_tol=False).verdict.startswith("above the tolerance")
    assert report(np.inf).verdict.startswith("not known")


def test_a_report_says_what_to_do_next():
    def next_of(kl, **facts):
        facts = {"num_draws": 100, **facts}
        lines = str(report(kl, **facts)).splitlines()
        return next(line for line in lines if line.startswith("  next ")).split(maxsplit=1)[1]

    assert "no error to certify" in next_of(0.0, num_draws=0)
    assert next_of(0.01).endswith("then certify(coreset, mcmc).")
    assert next_of(0.05).endswith("then correct(coreset, mcmc); or raise size.")
    unmet = {"tol": 0.001, "is_within_tol": False}
    assert next_of(0.01, **unmet).endswith("or raise max_size or tol.")
    assert next_of(0.01, **unmet, rows_needed=80).endswith("or run NUTS on all rows.")
    assert next_of(3.0).startswith("raise size, or draw from a better approximation")
    assert next_of(np.inf) == "build a new coreset from all rows."
    assert "weighting=Draws(samples)" in next_of(0.01, other_mode=9.0)
    stuck = [{"own_kl": None, "kl": 0.01, "kl_standard_error": 0.001, "weighting": "π̂"}]
    assert "longer chains" in next_of(0.01, rounds=[{**stuck[0], "trouble": "R-hat is 4.31"}])


def test_a_report_says_how_many_rows_smaller_errors_take():
    curve = {
        "num_used": np.array([1, 2, 4]),
        "kl": np.array([0.5, 0.05, 0.005]),
        "kl_standard_error": np.array([0.05, 0.02, 0.002]),
    }
    # 0.05 + 2 · 0.02 ≤ 0.1, and 0.005 + 2 · 0.002 ≤ 0.01
    needed = "2 for 0.1, 4 for 0.01, more than 4 for 0.001 nats"
    assert needed in str(report(0.005, curve=curve))
    assert "rows needed" not in str(report(np.inf, curve=curve))
    assert "rows needed" not in str(report(0.0))


def chains(seed=0):
    """Draws of four chains, and how they moved."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(4, 250, 2)), Transitions(0, rng.normal(size=(4, 250)))


def test_chains_that_have_not_mixed_are_told_from_those_that_have():
    draws, moved = chains()
    assert mixing_trouble(draws, moved) is None
    stuck = draws.copy()
    stuck[2] = stuck[2, :1]
    assert "chain 2 of 4 is the same" in str(mixing_trouble(stuck, moved))
    apart = draws + 3 * np.arange(4)[:, None, None]
    assert "R-hat" in str(mixing_trouble(apart, moved))
    assert "diverged" in str(mixing_trouble(draws, dataclasses.replace(moved, num_divergent=400)))
    slow = Transitions(0, np.cumsum(moved.energy, axis=1))
    assert "energies" in str(mixing_trouble(draws, slow))
    rare = np.repeat(draws[:, ::50], 50, axis=1)
    assert "differ" in str(mixing_trouble(rare, moved))


def test_draws_of_chains_that_have_not_mixed_do_not_become_the_weighting(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2)).astype(np.float32)
    y = (rng.random(400) < 0.5).astype(np.int32)
    monkeypatch.setattr(
        "jaxcoreset.weighting.nuts.mixing_trouble", lambda draws, transitions: "R-hat is 9"
    )
    looked = []
    # All chains of this test share one program.
    chains = {"num_samples": 60, "num_warmup": 50}

    def sampler_of(checker, **settings):
        looked.append(settings)
        return CoresetSampler(checker.likelihood, **chains)

    monkeypatch.setattr(Checker, "_sampler_of", sampler_of)
    settings = {"size": 8, "num_draws": 60, "num_held_out": 60, "progress_bar": False}
    with pytest.warns(UserWarning, match="not checked: NUTS on the coreset has not mixed"):
        coreset = jc.CoresetBuilder(logistic, **settings, rounds=3, proxy=None).run(0, x, y)
    # Once more, with longer trajectories and a longer warm-up.
    assert [list(one) for one in looked] == [["max_tree_depth"], ["num_warmup"]]
    assert len(coreset.report.rounds) == 1
    assert coreset.report.rounds[0]["own_kl"] is None
    nuts = jc.SubsampleNUTS(num_rows=8, **chains)
    with pytest.raises(ValueError, match="have not mixed: R-hat is 9"):
        jc.CoresetBuilder(logistic, **settings, weighting=nuts, proxy=None).run(0, x, y)


def mixture(y):
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(2)))
    means = numpyro.sample("means", dist.Normal(jnp.array([-2.0, 2.0]), 1).to_event(1))
    scales = numpyro.sample("scales", dist.LogNormal(0, 1).expand([2]).to_event(1))
    parts = dist.Normal(means, scales)
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(probs=share), parts), obs=y)


def rows_of_mixture(num_rows):
    rng = np.random.default_rng(0)
    y = np.where(rng.random(num_rows) < 0.3, -2.0, 1.5) + 0.8 * rng.normal(size=num_rows)
    return y.astype(np.float32)


@pytest.mark.slow
@pytest.mark.unoptimised
def test_a_spike_is_found_and_chains_that_start_as_told_do_not_see_it():
    builder = jc.CoresetBuilder(mixture, tol=0.02, progress_bar=False, proxy=None)
    with pytest.warns(UserWarning, match="a mode that the full posterior does not have"):
        coreset = builder.run(jax.random.key(0), rows_of_mixture(4000))
    assert coreset.report.spike > 100
    assert "start chains at init_params()" in str(coreset.report)
    good = jc.certify(coreset, nuts(coreset), num_draws=200, progress_bar=False)
    assert good.excess < 1
    assert good.verdict == "good"
    assert dataclasses.replace(good, excess=100.0).verdict == "don't use"
    # One component on the heaviest row.
    heavy = float(coreset.args[0][np.argmax(coreset.weights)])
    rng = np.random.default_rng(1)
    spike = {
        "share": np.tile([0.99, 0.01], (100, 1)) + 0.001 * rng.normal(size=(100, 1)) * [1, -1],
        "means": np.column_stack([rng.normal(0, 0.02, 100), rng.normal(heavy, 1e-3, 100)]),
        "scales": np.column_stack([2 + 0.01 * rng.normal(size=100), 1e-3 * (1 + rng.random(100))]),
    }
    bad = jc.certify(coreset, spike, num_draws=100, progress_bar=False)
    assert bad.excess > 100
    assert bad.separated
    assert bad.verdict == "don't use"
    assert "a mode that only the weighted density has" in bad.reason


@pytest.mark.parametrize("many_params", [100, 1])
def test_a_spike_is_found_from_few_starting_points_as_in_models_of_many_parameters(
    many_params, monkeypatch
):
    monkeypatch.setattr(spikes, "_MANY_PARAMS", many_params)
    y = rows_of_mixture(400)
    likelihood = with_program(jc.model_likelihood(mixture, (y,)))
    truth = {
        "share": jnp.array([0.3, 0.7]),
        "means": jnp.array([-2.0, 1.5]),
        "scales": jnp.array([0.8, 0.8]),
    }
    start = likelihood.unconstrain(truth)
    weights = np.full(20, 20, np.float32)
    assert spikes.find_spike(likelihood, (y[::20],), weights, start) > 100


def test_a_row_that_is_not_finite_at_draws_is_told_by_its_number_among_all_rows():
    """Not by its place among the candidates."""

    def model(x, known, y):
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        with numpyro.plate("rows", x.shape[0]):
            sd = jnp.where(known == 1, 1.0, 3 - slope)
            numpyro.sample("obs", dist.Normal(slope * x, sd), obs=y)

    x = np.random.default_rng(0).normal(size=400).astype(np.float32)
    known = (np.arange(400) < 300).astype(np.float32)
    far = jc.Draws({"slope": np.random.default_rng(1).normal(4, 0.1, size=400)})
    builder = jc.CoresetBuilder(model, size=8, candidates=50, weighting=far, proxy=None)
    with pytest.raises(ValueError, match=r"first of them \[300, 301"):
        builder.run(jax.random.key(0), x, known, x)


def test_a_row_of_a_file_that_is_not_finite_is_told_by_its_number_among_all_rows(tmp_path):
    """Not by its place among the rows where the mode is searched first, whose files are not read
    whole before."""

    def model(x, sd, y):
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("obs", dist.Normal(slope * x, sd), obs=y)

    rng = np.random.default_rng(0)
    columns = rng.normal(size=(3, 100_000)).astype(np.float32)
    columns[1] = np.arange(100_000) < 90_000
    np.save(tmp_path / "columns.npy", columns)
    x, sd, y = np.load(tmp_path / "columns.npy", mmap_mode="r")
    builder = jc.CoresetBuilder(model, size=8, progress_bar=False, proxy=None)
    with pytest.raises(ValueError, match=r"first of them \[9\d{4}, 9\d{4}"):
        builder.run(jax.random.key(0), x, sd, y)


@pytest.fixture(scope="module")
def rare_rows():
    """Rows of indicators, the last of which are rare, and few events."""
    rng = np.random.default_rng(3)
    z = (rng.random((3000, 25)) < np.geomspace(0.3, 0.004, 25)).astype(np.float32)
    z[:, 0] = 1
    rate = 1 / (1 + np.exp(4 - z @ rng.normal(scale=0.5, size=25)))
    return z, (rng.random(3000) < rate).astype(np.int32)


@pytest.mark.slow
@pytest.mark.unoptimised
@pytest.mark.usefixtures("untyped")
def test_a_tolerance_that_takes_too_many_rows_gives_the_best_coreset_or_says_how_many(rare_rows):
    tol = jc.Tolerance(0.005, max_size=128, throw=False)
    builder = jc.CoresetBuilder(logistic, tol=tol, num_held_out=500, progress_bar=False)
    report = builder.run(jax.random.key(0), *rare_rows).report
    assert not report.is_within_tol
    assert report.rounds[-1]["own_kl"] is not None  # it is checked by its own posterior
    assert "not met: this is the best coreset, and it would take about" in str(report)
    with pytest.raises(ValueError, match="The sizes that were tried suggest") as error:
        check_tolerance(tol, report, SimpleNamespace(is_exhausted=False))
    # A build with max_size = 1500 keeps 179 rows: near them the error falls faster than before.
    (told,) = re.findall(r"take about (\d+) rows: raise max_size or tol", str(error.value))
    assert 150 < int(told) < 400


def test_a_coreset_whose_only_mode_is_far_away_is_blamed_and_not_its_chains(rare_rows):
    builder = jc.CoresetBuilder(logistic, size=6, rounds=1, progress_bar=False, proxy=None)
    with pytest.warns(UserWarning, match="don't use"):  # six rows are separable
        coreset = builder.run(jax.random.key(0), *rare_rows)
    found = jc.certify(coreset, nuts(coreset), num_draws=200, progress_bar=False)
    assert found.excess > 20
    assert found.separated is False
    assert found.coreset_verdict == "don't use"
    assert found.chains_verdict == "converged"


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([0.4, 0.2, 0.1], 1280),
        ([0.16, 0.08, 0.04], 512),
        ([0.16, 0.04, 0.01], None),  # the error is within: something else is not
        ([np.inf, 0.04, 0.02], None),
        ([0.4, 0.2, np.nan], None),
        ([0.16, 0.16, 0.04], 256),
        ([0.4, 0.4, 0.4], np.inf),
    ],
)
def test_the_rows_that_a_tolerance_takes_follow_the_trend(errors, expected):
    assert extrapolate([32, 64, 128], errors, 0.01) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("kl", "own_kl", "expected"),
    [(0.8, 70.0, True), (0.8, 0.7, False), (0.001, 0.5, False), (0.8, None, False)],
)
def test_a_coreset_escapes_where_its_own_posterior_finds_a_far_larger_error(kl, own_kl, expected):
    assert has_escaped({"kl": kl, "own_kl": own_kl}) == expected


@pytest.mark.parametrize(("before", "after", "expected"), [(74.0, 6e3, True), (74.0, 20.0, False)])
def test_rounds_end_where_they_get_far_worse(before, after, expected):
    assert got_far_worse(report(before), report(after)) == expected
    assert not got_far_worse(report(1e-3), report(0.5))


def test_a_lower_bound_is_not_confirmed_without_the_coresets_own_posterior():
    """Nor does a posterior that was sampled before an update confirm one that came after it."""
    checked = {"own_kl": 0.5, "own_kl_standard_error": 0.01, "agrees": True, "alike": True}
    only = Round("Laplace", 5, 0.5, 0.01).to_dict()
    alone, both = (
        report(0.5, mean_shift=0.123, rounds=[one], tol=None) for one in (only, only | checked)
    )
    assert alone.verdict.startswith("not confirmed: at least 0.5")
    assert both.verdict.startswith("usable with correction")
    step = {"what": "update", "relative_ess": 1.0, "ess": 500.0}
    assert dataclasses.replace(both, history=[step]).verdict.startswith("not confirmed")
    with pytest.warns(UserWarning, match="not confirmed: at least 0.5"):
        warn_if_bad(alone)
    assert "mean off" not in str(alone)
    assert "no parameter's mean off by over 0.2 sd" in str(report(0.2, mean_shift=0.123))
