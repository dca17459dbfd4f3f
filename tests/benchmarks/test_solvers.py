"""The benchmark of the solvers takes from earlier results what they have, and runs the rest."""

import dataclasses
import itertools
import json
import types

import jax
import numpy as np
import pytest
import scipy.optimize

import jaxcoreset as jc
from benchmarks.solvers import __main__ as solvers
from benchmarks.solvers import optimum, quality, speed
from benchmarks.solvers.kept import Kept

KS = (1, 2, 5)
RIVALS = {"MatchingPursuit": jc.MatchingPursuit(), "GIGA": jc.GIGA()}
CASE = quality._Case("none", 20, 1, KS)
DATA = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2


def _cell(known):
    problem = jc.CoresetProblem(jax.random.normal(jax.random.key(0), (30, 20)))
    return quality._cell(CASE, 0, problem, RIVALS, known)


def test_errors_of_other_methods_are_taken_for_the_same_sizes_and_the_defaults_are_not():
    fresh = _cell(None)
    known = {"GIGA": [3.0, 2.0, 1.0], "default": [9.0, 9.0, 9.0]}
    taken = _cell({"ks": list(KS), "relative_error": known})
    assert taken["relative_error"]["GIGA"] == [3.0, 2.0, 1.0]
    for method in ("default", "MatchingPursuit"):
        assert taken["relative_error"][method] == fresh["relative_error"][method]
    assert _cell({"ks": [1, 2], "relative_error": {"GIGA": [3.0, 2.0]}}) == fresh


def test_whole_sets_have_as_many_draws_as_are_asked_for(monkeypatch):
    monkeypatch.setattr(quality, "_compare", lambda cases, *_: cases)
    cases = quality.whole(None, False, None, (3, 2))
    assert {(case.num_draws, case.num_trials) for case in cases} == {(500, 3), (2000, 2)}


def test_best_pairs_and_triples_are_those_of_all_supports():
    rng = np.random.default_rng(0)
    atoms = rng.normal(size=(9, 6)).astype(np.float32) + 0.5
    atoms[4] = atoms[2]
    problem = jc.CoresetProblem(atoms)
    target = np.asarray(problem.target, np.float64)

    def least(k):
        errors = [
            scipy.optimize.nnls(atoms[list(rows)].T.astype(float), target)[1]
            for rows in itertools.combinations(range(9), k)
        ]
        return (min(errors) / np.linalg.norm(target)) ** 2

    pair, triple = optimum._best_pair(problem), optimum._best_triple(problem)
    assert pair == pytest.approx(least(2), rel=1e-4)
    assert min(pair, triple) == pytest.approx(least(3), rel=1e-4)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--trials", "0", "1"],
        ["--trials", "1", "0"],
        ["--share", "1/2"],
        ["--share", "1/2", "--keep", "here", "--output", "out.json"],
        ["--share", "3/2", "--keep", "here"],
        ["--share", "0/2", "--keep", "here"],
        ["--share", "1/2", "--keep", "here", "--parts", "whole,large"],
    ],
)
def test_arguments_that_make_no_sense_are_refused(wrong):
    with pytest.raises(SystemExit):
        solvers.main(["--parts", "whole", *wrong])


def test_a_set_has_the_same_draws_however_many_trials_there_are():
    # Earlier results are found by data set, number of draws and trial.
    few, many = (
        list(quality.common.each_trial(quality.common.logistic, *DATA, 20, trials))
        for trials in (2, 3)
    )
    for one, other in zip(few, many, strict=False):
        np.testing.assert_array_equal(one.atoms, other.atoms)


@pytest.fixture
def _one_data_set(monkeypatch):
    """A small data set, whose problems are not solved: each error is of the sizes and the trial."""

    def sweep(problem, ks, solver=None):
        return types.SimpleNamespace(relative_error=np.abs(problem.target[0]) / ks)

    monkeypatch.setattr(
        quality.common, "load", lambda name, folder: (quality.common.logistic, *DATA)
    )
    monkeypatch.setattr(quality.jc, "sweep", sweep)


@pytest.mark.usefixtures("_one_data_set")
@pytest.mark.parametrize(("ks", "taken"), [(list(KS), 1), ([1, 2], 0)])
def test_only_results_that_were_taken_are_counted(ks, taken):
    cell = {"data": "none", "num_draws": 20, "trial": 0, "ks": ks}
    cell |= {"relative_error": {"GIGA": [1.0] * len(ks)}}
    date = {"date": "2026-01-01"}
    earlier = {"environment": {"date": "2026-02-02"}, "environments": {"whole": date}}
    earlier |= {"whole": {"cells": [cell]}}
    found = quality._compare([CASE], None, RIVALS, earlier, "whole")
    wanted = {"problems": taken, "environment": date} if taken else None
    assert found.get("others") == wanted


def test_each_part_has_the_environment_that_it_was_measured_in(monkeypatch, tmp_path):
    out = tmp_path / "results.json"
    for part, environment in (("large", "first"), ("speed", "second")):
        monkeypatch.setattr(solvers.common, "environment", lambda e=environment: e)
        monkeypatch.setattr(speed, part, lambda *a: [])
        solvers.main(["--parts", part, "--output", str(out)])
    assert json.loads(out.read_text())["environments"] == {"large": "first", "speed": "second"}


@pytest.mark.usefixtures("_one_data_set")
def test_processes_share_the_problems_and_what_they_keep_is_put_together(monkeypatch, tmp_path):
    case = dataclasses.replace(CASE, num_trials=3)
    alone = quality._compare([case], None, RIVALS)
    solved = []
    solve = quality._cell
    monkeypatch.setattr(
        quality, "_cell", lambda case, trial, *a: solved.append(trial) or solve(case, trial, *a)
    )

    def run(*share):
        return quality._compare([case], None, RIVALS, None, "", Kept(tmp_path, *share))

    assert run((2, 2)) == {"left": 2}
    assert solved == [1]
    together = run((1, 2))
    assert solved == [1, 0, 2]
    assert (together["cells"], together["summary"]) == (alone["cells"], alone["summary"])
    assert together["kept"]["problems"] == 1
    assert run()["kept"]["problems"] == 3
    assert solved == [1, 0, 2]


@pytest.mark.usefixtures("_one_data_set")
def test_kept_problems_with_other_sizes_are_solved_again(tmp_path):
    quality._compare([CASE], None, RIVALS, None, "", Kept(tmp_path))
    other = dataclasses.replace(CASE, ks=(1, 3))
    found = quality._compare([other], None, RIVALS, None, "", Kept(tmp_path))
    assert found["cells"][0]["ks"] == [1, 3]
    assert "kept" not in found


@pytest.mark.usefixtures("_one_data_set")
def test_what_is_kept_says_where_the_others_errors_are_from(tmp_path):
    cell = {"data": "none", "num_draws": 20, "trial": 0, "ks": list(KS)}
    cell |= {"relative_error": {"GIGA": [1.0] * len(KS)}}
    environment = {"date": "2026-01-01"}
    earlier = {"environment": environment, "part": {"cells": [cell]}}
    kept = Kept(tmp_path)
    first = quality._compare([CASE], None, RIVALS, earlier, "part", kept)
    again = quality._compare([CASE], None, RIVALS, None, "part", kept)
    assert first["others"] == again["others"] == {"problems": 1, "environment": environment}


def test_large_sizes_do_not_slow_down_the_small_ones_of_a_sweep_side_by_side():
    ks = np.array([1, 200, 500])
    sweeps = {
        method: [part.tolist() for part in quality._sweeps(ks, method, solver)]
        for method, solver in quality.RIVALS.items()
    }
    assert sweeps["AIHT2"] == sweeps["IHT"] == [[1, 200], [500]]
    assert sweeps["GIGA"] == [[1, 200, 500]]
    assert sweeps["Recombination"] == [[1, 200]]  # beyond it takes too long
    assert [part.tolist() for part in quality._sweeps(ks[:2], "AIHT2", jc.AIHT2())] == [[1, 200]]
