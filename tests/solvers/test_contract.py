"""What every solver keeps to: each of them on each problem, in few compiled programs."""

import functools
from inspect import isabstract

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcoreset as jc
from tests.loops import rounding_conditions
from tests.solvers.helpers import KEY, PROBLEMS, SOLVERS, dense, pick, used

every_solver = pytest.mark.parametrize("name", SOLVERS)
WELL_POSED = [name for name in PROBLEMS if name != "nothing"]


def solvers_that_claim(claim):
    names = [name for name, case in SOLVERS.items() if claim not in case.lacks]
    return pytest.mark.parametrize("name", names)


def problem_of(name, dtype=np.float64):
    return jc.CoresetProblem(*(array.astype(dtype) for array in PROBLEMS[name]))


def single(name, problem, k, key=KEY):
    """One problem alone; of a solver all have one shape and one bound on k, and so one program.

    By a solve, whose solution a sweep has too; where that is not claimed, by a sweep.
    """
    case = SOLVERS[name]
    key, max_k = key if case.solver.needs_key else None, max(case.ks)
    if "sweep of solves" not in case.lacks:
        return jc.solve(problem, k, case.solver, key, max_k=max_k)
    path = jc.sweep(problem, np.array(case.ks), case.solver, key, max_k=max_k)
    return pick(path, case.ks.index(k))


@functools.cache
def together(name):
    """Every problem at every size in one vmapped sweep, in float64, with a loose bound on k."""
    case = SOLVERS[name]

    def sweep(atoms, target):
        problem = jc.CoresetProblem(atoms, target)
        return jc.sweep(problem, np.array(case.ks), case.solver, KEY, max_k=case.loose)

    with jax.enable_x64(True):
        arrays = (jnp.asarray(np.stack(each)) for each in zip(*PROBLEMS.values(), strict=True))
        return jax.tree.map(np.asarray, jax.jit(jax.vmap(sweep))(*arrays))


def solutions_of(name, problem):
    """The solutions for every size, of a problem by its name."""
    at = list(PROBLEMS).index(problem)
    return [(k, pick(together(name), at, i)) for i, k in enumerate(SOLVERS[name].ks)]


def assert_same(found, expected, rtol=1e-6):
    """The same rows with the same weights, whatever the length of the arrays."""
    ours, theirs = dense(found), dense(expected)
    np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=1e-9 * max(theirs.max(), 1e-30))


@every_solver
def test_solutions_are_canonical_and_have_the_error_of_their_weights(name):
    for problem, (atoms, target) in PROBLEMS.items():
        for k, solution in solutions_of(name, problem):
            rows, weights = used(solution)
            assert len(rows) == solution.size <= k
            assert solution.weights.shape == (SOLVERS[name].loose,)
            assert (solution.weights >= 0).all()
            # Rows in increasing order, and then padding of row 0 and weight 0.
            assert (np.diff(rows) > 0).all()
            assert (solution.weights[: len(rows)] > 0).all()
            assert (solution.indices[len(rows) :] == 0).all()
            residual = target - weights @ atoms[rows]
            scale = max(target @ target, np.sum(atoms**2))
            np.testing.assert_allclose(
                solution.objective, residual @ residual, rtol=1e-6, atol=1e-13 * scale
            )
            norm = np.linalg.norm(target) or 1.0
            np.testing.assert_allclose(solution.relative_error, solution.objective**0.5 / norm)


@every_solver
def test_a_vmapped_sweep_equals_single_solves_whatever_the_bound_on_k(name):
    with jax.enable_x64(True):
        for problem in WELL_POSED:
            for k, solution in solutions_of(name, problem):
                alone = single(name, problem_of(problem), k)
                assert_same(solution, alone)
                if alone.relative_error > 1e-9:  # below it, rounding decides when to stop
                    assert solution.num_iters == alone.num_iters
                    assert solution.converged == alone.converged


@every_solver
def test_atoms_of_norm_zero_are_never_chosen(name):
    for problem in ("zeros", "three useful", "one useful"):
        unused = np.linalg.norm(PROBLEMS[problem][0], axis=1) == 0
        for _, solution in solutions_of(name, problem):
            rows, _ = used(solution)
            assert len(rows) > 0
            assert not unused[rows].any()
    for _, solution in solutions_of(name, "nothing"):
        assert solution.size == solution.objective == 0


@every_solver
def test_duplicates_do_no_harm(name):
    for _, solution in solutions_of(name, "duplicates"):
        rows, _ = used(solution)
        assert len(rows) > 0
        if "first of equals" not in SOLVERS[name].lacks:
            assert (rows % 3 == 0).all()


@solvers_that_claim("no rows that cannot help")
def test_no_rows_are_chosen_where_none_can_help(name):
    for problem, error in (("opposed", 1), ("zero target", 0)):
        for _, solution in solutions_of(name, problem):
            assert solution.size == 0
            np.testing.assert_allclose(solution.relative_error, error)


@solvers_that_claim("exact on few")
def test_a_few_atoms_that_make_the_target_get_their_weights(name):
    for problem, weights in (("three useful", [1, 1, 1]), ("one useful", [1])):
        _, solution = solutions_of(name, problem)[-1]
        np.testing.assert_allclose(used(solution)[1], weights, rtol=1e-6)
        assert solution.converged


@solvers_that_claim("float32 near float64")
def test_float32_is_near_float64(name):
    for problem in ("correlated", "independent"):
        for k, solution in solutions_of(name, problem):
            found = single(name, problem_of(problem, np.float32), k)
            assert found.weights.dtype == found.objective.dtype == np.float32
            np.testing.assert_allclose(found.objective, solution.objective, rtol=1e-3)


@solvers_that_claim("no units")
def test_weights_do_not_depend_on_the_units(name):
    atoms, k = PROBLEMS["correlated"][0].astype(np.float32), max(SOLVERS[name].ks)
    plain = single(name, jc.CoresetProblem(atoms), k)
    for power in (2.0**-40, 2.0**40):
        scaled = single(name, jc.CoresetProblem(np.float32(power) * atoms), k)
        assert_same(scaled, plain, rtol=1e-5)
        np.testing.assert_allclose(scaled.relative_error, plain.relative_error, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in SOLVERS if SOLVERS[name].solver.needs_key])
def test_the_key_decides_and_is_asked_for(name):
    problem, k = problem_of("correlated", np.float32), max(SOLVERS[name].ks)
    first, again, other = (single(name, problem, k, key) for key in (KEY, KEY, jax.random.key(8)))
    np.testing.assert_array_equal(first.weights, again.weights)
    assert not np.array_equal(dense(first), dense(other))
    with pytest.raises(ValueError, match="key is missing"):
        jc.solve(problem, k, SOLVERS[name].solver)


@every_solver
def test_no_loop_decides_by_what_it_rounds(name):
    """Such a loop could run forever in a batch."""
    problem, k = problem_of("correlated", np.float32), max(SOLVERS[name].ks)
    assert not rounding_conditions(lambda problem: single(name, problem, k), problem)


def test_conditions_that_round_are_seen_and_backtracking_has_none():
    def halve(x):
        return jax.lax.while_loop(lambda y: y * y > 2, lambda y: y / 2, x)

    def halve_exactly(x):
        return jax.lax.while_loop(lambda y: jnp.abs(y) > 2, lambda y: y / 2, x)

    assert "mul" in rounding_conditions(halve, 8.0)[0]
    assert not rounding_conditions(halve_exactly, 8.0)
    solver = jc.AIHT2(line_search="backtracking")
    problem = problem_of("correlated", np.float32)
    assert not rounding_conditions(lambda p, k: jc.solve(p, k, solver, max_k=8), problem, 2)


def test_the_list_has_every_solver():
    public = {name: getattr(jc, name) for name in dir(jc)}
    solvers = {
        name
        for name, value in public.items()
        if isinstance(value, type) and issubclass(value, jc.Solver) and not isabstract(value)
    }
    assert solvers == {name.split(",")[0] for name in SOLVERS}
