"""The benchmark of 10,080 problems, on a few of each kind: it holds, and sees what does not."""

import jax
import numpy as np
import pytest

import jaxcoreset as jc
from benchmarks.robustness.solvers import NUM_DATA, SOLVERS, Judge, make_problems, measure
from tests.solvers.helpers import SOLVERS as CASES


@pytest.mark.slow
@pytest.mark.unoptimised
def test_no_claim_is_broken_on_one_problem_of_each_kind():
    rows = measure(1, report=lambda _: None)
    assert [row["num_problems"] for row in rows] == [15] * 2 * len(SOLVERS)
    assert [row["violations"] for row in rows] == [{}] * 2 * len(SOLVERS)


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
    paths = jax.tree.map(np.asarray, paths)
    judge = Judge(atoms, targets, float(np.finfo(np.float32).eps))
    assert not any(flags.any() for flags in judge.violations("FrankWolfe", paths).values())
    return judge, paths


def changed(paths, changes):
    """Paths with other values in some places of the last solution of a problem."""
    paths = jax.tree.map(np.array, paths)
    for problem, field, value in changes:
        getattr(paths, field)[problem, -1] = value
    return paths


# Weights or rows of all slots of the last solution, or its error.
SLOTS = np.arange(NUM_DATA)


@pytest.mark.parametrize(
    ("changes", "claims"),
    [
        ([(0, "weights", np.where(SLOTS == 0, np.nan, 1))], {"finite"}),
        ([(0, "weights", np.where(SLOTS == 0, -1, 1))], {"not negative"}),
        ([(0, "indices", SLOTS // 2), (0, "weights", 1)], {"size"}),
        ([(0, "indices", SLOTS + 1), (0, "weights", 1)], {"size"}),
        ([(3, "indices", SLOTS), (3, "weights", 1)], {"no zeros"}),
        ([(0, "relative_error", 0.9)], {"error"}),
        ([(0, "weights", 100), (0, "relative_error", 0)], {"error", "no worse than none"}),
        ([(0, "weights", 0), (0, "relative_error", 1)], {"monotone"}),
    ],
)
def test_a_broken_claim_is_seen_in_the_problem_that_breaks_it(found, changes, claims):
    judge, paths = found
    flags = judge.violations("FrankWolfe", changed(paths, changes))
    assert {claim for claim, of in flags.items() if of.any()} >= claims
    for claim in claims:
        np.testing.assert_array_equal(np.flatnonzero(flags[claim]), [changes[0][0]])


def test_errors_that_differ_in_a_batch_are_counted(found):
    judge, paths = found
    apart, same = judge.batch(paths, paths)
    assert not apart.any()
    assert same == {"other_rows": 0, "other_errors": 0, "largest_difference": 0}
    apart, differ = judge.batch(paths, changed(paths, [(2, "weights", 0)]))
    np.testing.assert_array_equal(np.flatnonzero(apart), [2])
    assert differ["other_rows"] == differ["other_errors"] == 1
    assert differ["largest_difference"] > 1e-3
