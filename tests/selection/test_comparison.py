"""Comparisons of solvers hold what each of them returns by itself."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcoreset as jc
from tests.problems import low_rank_atoms

KS = np.array([6, 2, 4])


@pytest.fixture(scope="module")
def problems():
    atoms = low_rank_atoms().astype(np.float32)
    return jc.CoresetProblem(atoms[:, :30]), jc.CoresetProblem(atoms[:, 30:])


@pytest.fixture(scope="module")
def comparison(problems):
    problem, held_out = problems
    solvers = {
        "pursuit": jc.MatchingPursuit(),
        "<b>": jc.GIGA(),
        "random": jc.UniformSampling(),
    }
    return jc.compare(problem, solvers, KS, held_out=held_out, key=jax.random.key(0))


def test_solutions_are_those_of_a_sweep(problems, comparison):
    for label, solver in (("pursuit", jc.MatchingPursuit()), ("random", jc.UniformSampling())):
        alone = jc.sweep(problems[0], KS, solver, jax.random.key(0))
        found = comparison.solutions[label]
        np.testing.assert_array_equal(found.indices, alone.indices)
        np.testing.assert_allclose(found.weights, alone.weights, rtol=1e-4)


def test_held_out_error_is_that_of_numpy(problems, comparison):
    atoms, target = (np.asarray(x, np.float64) for x in (problems[1].atoms, problems[1].target))
    for label, found in comparison.solutions.items():
        dense = np.asarray(found.dense(problems[0].num_data), np.float64)
        squares = ((target - dense @ atoms) ** 2).sum(axis=1)
        np.testing.assert_allclose(comparison.held_out_objective[label], squares, rtol=1e-3)
        expected = np.sqrt(squares) / np.linalg.norm(target)
        np.testing.assert_allclose(comparison.held_out_error[label], expected, rtol=1e-3)


def test_rows_are_plain_and_the_text_is_in_order_of_size(comparison):
    rows = json.loads(json.dumps(comparison.rows))
    assert [(row["solver"], row["k"]) for row in rows[:4]] == [
        ("pursuit", 6),
        ("pursuit", 2),
        ("pursuit", 4),
        ("<b>", 6),
    ]
    assert all(0 < row["warm_seconds"] < row["cold_seconds"] for row in rows)
    assert list(comparison.to_frame().columns) == list(rows[0])
    title, header, *lines = str(comparison).splitlines()
    assert "held-out" in title
    assert header.split("  ")[1] == "solver"
    assert header.index("k = 2") < header.index("k = 4") < header.index("k = 6")
    assert f"{comparison.held_out_error['pursuit'][0]:.2e}" in lines[0]
    assert '<th scope="row" style="text-align:left">&lt;b&gt;</th>' in comparison._repr_html_()


def test_solvers_of_one_class_are_numbered_and_none_is_the_default(problems):
    solvers = [None, jc.IHT(max_iters=2), jc.IHT(max_iters=3)]
    found = jc.compare(problems[0], solvers, [2])
    assert list(found.solutions) == ["default", "IHT", "IHT (2)"]
    assert found.held_out_error is None
    assert "held_out_error" not in found.rows[0]
    assert float(found.error["IHT"][0]) == float(found.solutions["IHT"].relative_error[0])


@pytest.mark.parametrize(
    ("solvers", "options", "message"),
    [
        ([], {}, "solvers is empty"),
        (jc.GIGA(), {}, "expected several solvers"),
        ([jc.GIGA], {}, r"for instance GIGA\(\)"),
        ([jc.GIGA(), jc.UniformSampling()], {}, "key is missing"),
        ([jc.GIGA()], {"held_out": jc.CoresetProblem(jnp.eye(3))}, "3 rows and problem has 60"),
        ([jc.GIGA()], {"repeats": 0}, "repeats is 0"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_solver_runs(
    problems, solvers, options, message, untyped, monkeypatch
):
    monkeypatch.setattr("jaxcoreset.selection.comparison._timed", None)
    with pytest.raises((TypeError, ValueError), match=message):
        jc.compare(problems[0], solvers, [2], **options)
