"""The benchmark of 10,080 problems, on a few of each kind: it holds, and sees what does not."""

import jax
import numpy as np
import pytest

import jaxcoreset as jc
from benchmarks.robustness.solvers import NUM_DATA, SOLVERS, Judge, make_problems, measure
from tests.solvers.helpers import SOLVERS as CASES

_EPS = float(np.finfo(np.float32).eps)


@pytest.mark.parametrize(
    "names",
    [("ExchangePursuit", "ExhaustiveSearch"), pytest.param(tuple(SOLVERS), marks=pytest.mark.slow)],
)
def test_no_claim_is_broken_on_one_problem_of_each_kind(names):
    rows = measure(1, names, report=lambda _: None)
    assert [row["num_problems"] for row in rows] == [15] * 2 * len(names)
    assert [row["violations"] for row in rows] == [{}] * 2 * len(names)


def test_the_full_run_has_10080_problems():
    assert 2 * len(SOLVERS) * len(make_problems(21)[1]) == 10_080
    names = {type(solver).__name__ for solver in SOLVERS.values()}
    assert names == {type(case.solver).__name__ for case in CASES.values()}


@pytest.fixture(scope="module")
def found():
    """Paths of Frank–Wolfe for the sums of atoms, and of atoms half of which are zero."""
    kinds, atoms, targets = make_problems(3)
    some = np.isin(kinds, ["sum of the atoms", "zero atoms"])
    atoms, targets = atoms[some], targets[some]
    problems = jax.vmap(jc.CoresetProblem)(atoms, targets)
    solver = SOLVERS["FrankWolfe"]
    paths = jax.vmap(lambda p: jc.sweep(p, np.arange(1, NUM_DATA + 1), solver))(problems)
    return Judge(atoms, targets, _EPS), jax.tree.map(np.array, paths)


def _nan(path):
    path.weights[0, -1, 0] = np.nan


def _negative(path):
    path.weights[0, -1, 0] = -1


def _twice(path):
    path.indices[0, -1, :2] = 3
    path.weights[0, -1, :2] = 1


def _beyond(path):
    path.indices[0, -1, 0] = NUM_DATA


def _zero_atom(path):
    path.indices[3, -1, 0] = 0
    path.weights[3, -1, 0] = 1


def _lie(path):
    path.relative_error[0, -1] *= 1.01


def _far(path):
    path.weights[0, -1] *= 100
    path.relative_error[0, -1] = 0


def _rise(path):
    path.weights[0, -1] = 0
    path.relative_error[0, -1] = 1


@pytest.mark.parametrize(
    ("change", "claims"),
    [
        (_nan, {"finite"}),
        (_negative, {"not negative"}),
        (_twice, {"size"}),
        (_beyond, {"size"}),
        (_zero_atom, {"no zeros"}),
        (_lie, {"error"}),
        (_far, {"error", "no worse than none"}),
        (_rise, {"monotone"}),
    ],
)
def test_a_broken_claim_is_seen_in_the_problem_that_breaks_it(found, change, claims):
    judge, paths = found
    assert not any(flags.any() for flags in judge.violations("FrankWolfe", paths).values())
    broken = jax.tree.map(np.array, paths)
    change(broken)
    flags = judge.violations("FrankWolfe", broken)
    assert {claim for claim, of in flags.items() if of.any()} >= claims
    for claim in claims:
        assert np.flatnonzero(flags[claim]).size == 1


def test_errors_that_differ_in_a_batch_are_counted(found):
    judge, paths = found
    apart, same = judge.batch(paths, paths)
    assert not apart.any()
    assert same == {"other_rows": 0, "other_errors": 0, "largest_difference": 0}
    other = jax.tree.map(np.array, paths)
    other.weights[2, -1, 0] = 0
    apart, differ = judge.batch(paths, other)
    np.testing.assert_array_equal(np.flatnonzero(apart), [2])
    assert differ["other_rows"] == differ["other_errors"] == 1
    assert differ["largest_difference"] > 1e-3
