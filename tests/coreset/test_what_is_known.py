"""What reports of updated and merged coresets say about those that they were made from."""

import copy
import dataclasses

import jax
import numpy as np
import pytest

import jaxcoreset as jc
from tests.coreset.test_update import NUM_NEW, NUM_ROWS, build, model, rows

NEW = rows(1, NUM_NEW)
ROUND = {"weighting": "Laplace", "kl": 0.01, "kl_standard_error": 0.001, "own_kl": None}
STUCK = ROUND | {"agrees": None, "trouble": "R-hat is 4.31, above 1.1"}
OWN = {"own_kl": 0.4, "own_kl_standard_error": 0.01, "agrees": False}


@pytest.fixture(scope="module")
def old():
    return build(rows(0))


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
