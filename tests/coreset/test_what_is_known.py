"""What reports of updated and merged coresets say about those that they were made from."""

import copy
import dataclasses

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import jaxcoreset as jc
from tests.coreset.test_update import NUM_NEW, NUM_ROWS, build, model, rows

NEW = rows(1, NUM_NEW)
ROUND = {"weighting": "Laplace", "kl": 0.01, "kl_standard_error": 0.001, "own_kl": None}
STUCK = ROUND | {"agrees": None, "trouble": "R-hat is 4.31, above 1.1"}
OWN = {"own_kl": 0.4, "own_kl_standard_error": 0.01, "agrees": False}


def with_facts(coreset, **facts):
    other = copy.copy(coreset)
    other.report = dataclasses.replace(coreset.report, **facts)
    return other


def test_a_coreset_that_was_not_checked_does_not_become_good(old, tmp_path):
    assert old.update(jax.random.key(1), *NEW).report.verdict.startswith("good")
    unchecked = with_facts(old, rounds=[STUCK])
    assert unchecked.report.verdict.startswith("not checked: NUTS on the coreset has not mixed")
    with pytest.warns(UserWarning, match="not checked.* build a new coreset from all rows"):
        updated = unchecked.update(jax.random.key(1), *NEW)
    with pytest.warns(UserWarning, match="not checked.* build a new coreset from all rows"):
        merged = jc.merge([old, unchecked], 7, jax.random.key(2))
    again = updated.update(jax.random.key(3), *rows(2, NUM_NEW))
    loaded = jc.load(updated.save(tmp_path / "updated"), model)
    for one in (updated, again, loaded, jc.merge([updated], 7, jax.random.key(2)), merged):
        assert one.report.verdict.startswith("not checked: ")
        assert "R-hat is 4.31" in str(one.report)
        assert "run longer chains" in str(one.report)
    assert "before the update has not mixed" in updated.report.verdict
    assert "before the merge, NUTS" in merged.report.verdict


def test_two_estimates_that_differed_are_not_forgotten(old):
    differing = with_facts(old, kl=0.4, rounds=[STUCK | OWN | {"trouble": None, "alike": False}])
    with pytest.warns(UserWarning, match="not checked: before the update, the estimate was larger"):
        updated = differing.update(jax.random.key(1), *NEW)
    assert "the estimate was larger under the coreset's own" in updated.report.verdict
    alike = with_facts(old, kl=0.4, rounds=[STUCK | OWN | {"trouble": None, "alike": True}])
    assert alike.update(jax.random.key(1), *NEW).report.verdict.startswith("good")
    # The report has the larger estimate, and that may be good.
    small = {"trouble": None, "alike": False, "kl": 1e-4, "own_kl": 3e-4}
    near = with_facts(old, kl=3e-4, kl_standard_error=1e-5, rounds=[STUCK | OWN | small])
    assert near.update(jax.random.key(1), *NEW).report.verdict.startswith("good")


def test_a_merger_with_an_update_of_unknown_error_warns(old):
    unknown = with_facts(old, kl=np.inf, kl_standard_error=np.inf)
    with pytest.warns(UserWarning, match="not known: build a new coreset"):
        merged = jc.merge([old, unknown], 7, jax.random.key(2))
    assert np.isinf(merged.report.kl)


def test_a_spike_stays_in_the_report_and_a_gaussian_is_that_of_the_draws(old):
    spiky, worse = with_facts(old, spike=5.0), with_facts(old, spike=9.0)
    with pytest.warns(UserWarning, match="a mode that the full posterior does not have"):
        updated = spiky.update(jax.random.key(1), *NEW)
    merged = jc.merge([old, spiky, worse], 7, jax.random.key(2))
    assert updated.report.spike == 5.0
    assert merged.report.spike == 9.0
    for one in (old, merged):  # the mode of the joint posterior
        assert one.report.gaussian_verdict.startswith("A Gaussian at the mode")
    assert updated.report.gaussian_verdict.startswith("A Gaussian of the draws' moments")


@pytest.mark.parametrize("seed", [3, 4])
def test_an_update_within_the_tolerance_shifts_no_mean_by_more_than_a_build_may(seed):
    coreset = build(rows(0), size=None, tol=jc.Tolerance(0.2, max_size=8))
    updated = coreset.update(jax.random.key(seed), *rows(seed, NUM_NEW, slopes=1.1))
    report = updated.report
    at = int(np.argmax(report.curve["size"] == report.num_used))
    shift, error = (report.curve[f"mean_shift{x}"][at] for x in ("", "_standard_error"))
    assert report.is_within_tol
    assert report.num_data == NUM_ROWS + NUM_NEW
    assert shift + 2 * error <= jc.Tolerance(0.2).max_shift


def counts(exposure, y=None):
    rate = numpyro.sample("rate", dist.Gamma(1.0, 1.0))
    with numpyro.plate("rows", len(exposure)):
        numpyro.sample("y", dist.Poisson(rate * exposure), obs=y)


def gaussian_kl_of_counts(shape, rate):
    """The variance of log π − log q for z, the logarithm of a Gamma, and its moments' Gaussian."""
    z = np.linspace(-8, 4, 20_001)
    log_density = shape * z - rate * np.exp(z)
    mass = np.exp(log_density - log_density.max())
    mass /= mass.sum()
    mean = mass @ z
    ratio = log_density + 0.5 * (z - mean) ** 2 / (mass @ (z - mean) ** 2)
    return mass @ (ratio - mass @ ratio) ** 2


def test_the_gaussian_of_an_update_is_that_of_the_posterior_of_all_rows():
    exposure = np.linspace(0.02, 0.2, 40)
    y = (np.arange(40) % 20 == 10).astype(float)
    draws = np.random.default_rng(0).gamma(1 + y.sum(), 1 / (1 + exposure.sum()), 8000)
    few = {"num_draws": 4000, "num_held_out": 4000, "rounds": 1, "progress_bar": False}
    builder = jc.CoresetBuilder(counts, size=3, weighting=jc.Draws({"rate": draws}), **few)
    built = builder.run(jax.random.key(0), exposure, y)
    more = np.linspace(0.2, 0.4, 10)
    updated = built.update(jax.random.key(1), more, (np.arange(10) % 3 == 0).astype(float))
    expected = gaussian_kl_of_counts(1 + 2 + 4, 1 + exposure.sum() + more.sum())
    assert updated.report.gaussian_kl == pytest.approx(expected, rel=0.25)
    assert updated.report.gaussian_k_hat is None
