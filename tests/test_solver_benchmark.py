"""The benchmark of the solvers takes from earlier results what they have, and runs the rest."""

import json

import jax
import numpy as np
import pytest

import jaxcoreset as jc
from benchmarks import solver_quality, solver_speed, solvers

KS = (1, 2, 5)
RIVALS = {"MatchingPursuit": jc.MatchingPursuit(), "GIGA": jc.GIGA()}
CASE = solver_quality._Case("none", 20, 1, KS)


def _cell(known):
    problem = jc.CoresetProblem(jax.random.normal(jax.random.key(0), (30, 20)))
    return solver_quality._cell(CASE, 0, problem, RIVALS, known)


def test_errors_of_other_methods_are_taken_and_the_defaults_are_not():
    fresh = _cell(None)
    taken = _cell(
        {"ks": list(KS), "relative_error": {"GIGA": [3.0, 2.0, 1.0], "default": [9.0, 9.0, 9.0]}}
    )
    assert taken["relative_error"]["GIGA"] == [3.0, 2.0, 1.0]
    for method in ("default", "MatchingPursuit"):
        assert taken["relative_error"][method] == fresh["relative_error"][method]


def test_results_for_other_sizes_are_not_taken():
    taken = _cell({"ks": [1, 2], "relative_error": {"GIGA": [3.0, 2.0]}})
    assert taken["relative_error"] == _cell(None)["relative_error"]


def test_whole_sets_have_as_many_draws_as_are_asked_for(monkeypatch):
    monkeypatch.setattr(solver_quality, "_compare", lambda cases, *_: cases)
    counts = {
        (case.num_draws, case.num_trials) for case in solver_quality.whole(None, False, None, 3)
    }
    assert counts == {(500, 3), (2000, 1)}


def test_fewer_draws_than_one_are_refused():
    with pytest.raises(SystemExit):
        solvers.main(["--parts", "whole", "--trials", "0"])


def test_a_set_has_the_same_draws_however_many_trials_there_are():
    # Earlier results are found by data set, number of draws and trial.
    data = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    few, many = (
        list(solver_quality.common.each_trial(solver_quality.common.logistic, *data, 20, trials))
        for trials in (2, 3)
    )
    for one, other in zip(few, many, strict=False):
        np.testing.assert_array_equal(one.atoms, other.atoms)


@pytest.mark.parametrize(("ks", "taken"), [(list(KS), 1), ([1, 2], 0)])
def test_only_results_that_were_taken_are_counted(monkeypatch, ks, taken):
    data = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    loaded = (solver_quality.common.logistic, *data)
    monkeypatch.setattr(solver_quality.common, "load", lambda name, folder: loaded)
    cell = {"data": "none", "num_draws": 20, "trial": 0, "ks": ks}
    cell |= {"relative_error": {"GIGA": [1.0] * len(ks)}}
    earlier = {"environment": "the last part's", "environments": {"whole": "this part's"}}
    earlier |= {"whole": {"cells": [cell]}}
    found = solver_quality._compare([CASE], None, RIVALS, earlier, "whole")
    wanted = {"problems": taken, "environment": "this part's"} if taken else None
    assert found.get("others") == wanted


def test_each_part_has_the_environment_that_it_was_measured_in(monkeypatch, tmp_path):
    out = tmp_path / "results.json"
    for part, environment in (("large", "first"), ("speed", "second")):
        monkeypatch.setattr(solvers.common, "environment", lambda e=environment: e)
        monkeypatch.setattr(solver_speed, part, lambda *a: [])
        solvers.main(["--parts", part, "--output", str(out)])
    assert json.loads(out.read_text())["environments"] == {"large": "first", "speed": "second"}
