"""`CoresetProblem`, `Solution`, `solve` and `sweep`: shapes, batching, and bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcoreset as jc
from jaxcoreset.solvers.constraints import SimplexTopK
from jaxcoreset.solvers.solution import _ascending, make_solution
from jaxcoreset.solvers.solve import _run
from tests.problems import correlated_atoms

# One bound on k for nearly all tests, so that they share compiled programs; 15 is rounded up to it.
MAX_K = 16


@pytest.fixture(scope="module")
def problem():
    return jc.CoresetProblem(correlated_atoms())


@pytest.mark.parametrize("num_rows", [3, 100])
def test_problem_operations_agree_with_numpy_by_gather_and_by_pass(problem, num_rows):
    rng = np.random.default_rng(0)
    indices, weights = rng.integers(0, 120, num_rows), rng.random(num_rows)
    vector, atoms = rng.normal(size=60), np.asarray(problem.atoms)
    combined = problem.combine(jnp.asarray(indices), jnp.asarray(weights))
    np.testing.assert_allclose(combined, weights @ atoms[indices], rtol=1e-4, atol=1e-4)
    correlations = problem.correlate_at(jnp.asarray(indices), jnp.asarray(vector))
    np.testing.assert_allclose(correlations, atoms[indices] @ vector, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(problem.squared_norms(), (atoms**2).sum(1), rtol=1e-5)


@pytest.mark.parametrize(("k", "max_k"), [(1, MAX_K), (15, None)])
def test_a_solution_has_the_length_of_its_bound_and_knows_its_solver(problem, k, max_k):
    solution = jc.solve(problem, k, jc.MatchingPursuit(), max_k=max_k)
    assert solution.indices.shape == solution.weights.shape == (max_k or k,)
    assert solution.dense(120).shape == (120,)
    assert solution.solver == "MatchingPursuit"


@pytest.mark.parametrize("largest", [9, 2**29 - 1, 2**29, 2**31 - 1])
def test_rows_are_put_in_order_whether_row_and_place_fit_one_number_or_not(largest):
    rows = np.array([largest, 3, largest, 0, 3, largest - 1, 1, largest])
    order = _ascending(jnp.asarray(rows, jnp.int32), largest)
    np.testing.assert_array_equal(order, np.argsort(rows, kind="stable"))


@pytest.mark.parametrize("rounding", [1 - 1e-6, 1 + 1e-6])
def test_a_solution_without_rows_has_the_error_of_none_however_it_was_rounded(problem, rounding):
    at_zero = jnp.vdot(problem.target, problem.target)
    empty = make_solution(
        problem, jnp.zeros(3, int), jnp.zeros(3), rounding * at_zero, jnp.array(1), jnp.array(True)
    ).or_none(problem)
    assert empty.converged
    assert empty.objective == at_zero
    assert empty.relative_error == 1


IN_RANGE, OUT_OF_RANGE = [1, 2, 3, 4, 9, 16], [0, 17]


@pytest.fixture(scope="module")
def traced(problem):
    """Solutions under jit and vmap for k in range and out of it."""
    run = jax.vmap(lambda k: jc.solve(problem, k, jc.MatchingPursuit(), max_k=MAX_K))
    return jax.jit(run)(jnp.array(IN_RANGE + OUT_OF_RANGE))


def test_solve_works_under_jit_and_vmap_over_k(problem, traced):
    solver = jc.MatchingPursuit()
    for i, k in enumerate(IN_RANGE):
        single = jc.solve(problem, k, solver, max_k=MAX_K)
        np.testing.assert_array_equal(traced.indices[i], single.indices)
    assert np.asarray(traced.size).tolist()[:4] == [1, 2, 3, 4]
    # Without a bound it is n; the shape needs no compilation.
    unbound = jax.eval_shape(jax.vmap(lambda k: jc.solve(problem, k, solver)), jnp.arange(1, 5))
    assert unbound.weights.shape == (4, problem.num_data)


def test_traced_k_out_of_range_is_flagged_and_solved_for_the_nearest_in_range(traced):
    assert traced.converged[: len(IN_RANGE)].all()
    assert not traced.converged[len(IN_RANGE) :].any()
    assert np.all(np.isfinite(traced.weights))
    np.testing.assert_array_equal(traced.weights[-2:], traced.weights[jnp.array([0, 5])])


def test_a_traced_k_beyond_its_bound_is_not_cut_short_in_silence(problem):
    # The bound is rounded up to 20 inside.
    solver, ks = jc.MatchingPursuit(), jnp.array([16, 17, 18])
    path = jax.jit(lambda ks: jc.sweep(problem, ks, solver, max_k=MAX_K))(ks)
    alone = jc.solve(problem, MAX_K, solver)
    assert path.converged.tolist() == [True, False, False]
    for lane in range(3):
        np.testing.assert_array_equal(path.indices[lane], alone.indices)
        np.testing.assert_allclose(path.weights[lane], alone.weights, rtol=1e-4)
        residual = problem.target - path.weights[lane] @ problem.atoms[path.indices[lane]]
        np.testing.assert_allclose(path.objective[lane], jnp.vdot(residual, residual), rtol=1e-3)


def test_known_values_may_meet_a_users_jit(problem):
    ks, atoms, solver = jnp.arange(1, 5), jnp.asarray(correlated_atoms()), jc.MatchingPursuit()
    # What could go wrong goes wrong while tracing.
    path = jax.eval_shape(lambda p: jc.sweep(p, ks, solver), problem)
    assert path.weights.shape == (4, 4)
    made = jax.eval_shape(lambda: jc.solve(jc.CoresetProblem(atoms), 15, solver, max_k=MAX_K))
    assert made.weights.shape == (MAX_K,)


def test_a_sweep_of_other_k_does_not_compile_again(problem):
    solver = jc.GIGA()
    before = _run._cached._cache_size()
    jc.sweep(problem, jnp.arange(1, 31), solver)
    jc.sweep(problem, jnp.arange(30, 0, -1), solver)
    assert _run._cached._cache_size() == before + 1


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16])
def test_atoms_of_16_bits_become_float32(dtype):
    problem = jc.CoresetProblem(jnp.asarray(correlated_atoms(), dtype))
    assert problem.atoms.dtype == problem.target.dtype == np.float32
    assert float(jc.solve(problem, 15, jc.MatchingPursuit(), max_k=MAX_K).relative_error) < 0.5


@pytest.mark.parametrize(
    ("atoms", "target", "message"),
    [
        (np.ones(3), None, r"expected \(n, S\)"),
        (np.ones((2, 3, 4)), None, "jax.vmap"),
        (np.ones((0, 3)), None, "at least one"),
        (np.ones((2, 3)), np.ones(2), r"target has shape \(2,\); expected \(3,\)"),
        (np.array([[1.0, 2.0], [np.nan, 1.0]]), None, r"1 of 2 rows, the first at \[1\]"),
        (np.zeros((2, 3)), None, "every atom is zero"),
        (np.ones((2, 2)), np.array([np.inf, 1]), "target has entries"),
        (np.full((2, 2), 1e-20, np.float32), None, "largest entry is 1e-20, whose square float32"),
        (np.full((4, 9), 1e37, np.float32), None, "largest entry of atoms and target is 4e[+]37"),
        (np.ones((2, 2), np.float32), np.full(2, 1e18), "Multiply atoms and target"),
    ],
)
def test_bad_problem_is_refused(atoms, target, message):
    with pytest.raises(ValueError, match=message):
        jc.CoresetProblem(atoms, target)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: jc.solve(p, 0), ValueError, "k is 0; expected 1 ≤ k ≤ n = 120"),
        (lambda p: jc.solve(p, 2.5), TypeError, "expected an integer"),
        (lambda p: jc.solve(p, 5, max_k=4), ValueError, "max_k is 4"),
        (lambda p: jc.solve(p.atoms, 5), TypeError, "CoresetProblem"),
        (lambda p: jc.CoresetProblem(p), TypeError, "is a CoresetProblem; expected an array"),
        (lambda p: jc.solve(p, 5, jc.AIHT2), TypeError, r"AIHT2\(\)"),
        (lambda p: jc.sweep(p, [0, 3]), ValueError, "k is 0"),
        (lambda p: jc.sweep(p, []), TypeError, "ks has shape"),
        (lambda p: jc.sweep(p, [1.5]), TypeError, "integers"),
    ],
)
@pytest.mark.usefixtures("untyped")
def test_bad_arguments_are_refused(problem, call, error, message):
    with pytest.raises(error, match=message):
        call(problem)


@pytest.mark.parametrize("solver", [jc.AIHT2(max_iters=2), jc.FrankWolfe()])
def test_no_rows_are_returned_in_place_of_rows_that_are_worse(solver):
    # Few draws of very different sizes, where a step and the threshold can raise the objective.
    rng = np.random.default_rng(0)
    atoms = rng.normal(size=(400, 6, 4)) * 10.0 ** rng.uniform(-3, 3, size=(400, 1, 4))
    targets = np.einsum("bn,bns->bs", rng.exponential(size=(400, 6)), atoms)
    with jax.enable_x64(True):
        problems = jax.vmap(jc.CoresetProblem)(jnp.asarray(atoms), jnp.asarray(targets))
        k = jnp.asarray(2)
        raw = jax.jit(jax.vmap(lambda p: solver.run(p, k, 2, None)))(problems)
        found = jax.vmap(lambda p: jc.solve(p, k, solver, max_k=2))(problems)
        raw, found = jax.tree.map(np.asarray, (raw, found))
    worse = raw.objective > np.sum(targets**2, axis=1)
    assert 0 < worse.sum() < len(worse)
    assert not found.weights[worse].any()
    np.testing.assert_array_equal(found.relative_error[worse], 1)
    assert not found.converged[worse].any()
    np.testing.assert_array_equal(found.indices[~worse], raw.indices[~worse])
    np.testing.assert_array_equal(found.converged[~worse], raw.converged[~worse])


@pytest.mark.parametrize(
    "solver",
    [jc.AIHT2(constraint=SimplexTopK(50.0)), jc.UniformSampling(), jc.ImportanceSampling()],
)
def test_sums_and_samples_are_kept_where_no_rows_would_be_nearer(solver):
    atoms = correlated_atoms(30, 20)
    found = jc.solve(jc.CoresetProblem(atoms, -atoms.sum(axis=0)), 4, solver, jax.random.key(0))
    assert found.relative_error > 1
    assert found.size > 0


def test_solvers_run_where_rank_promotion_is_an_error(problem):
    with jax.numpy_rank_promotion("raise"):
        strict = jc.solve(problem, 5, jc.MatchingPursuit(), max_k=MAX_K)
    np.testing.assert_array_equal(
        strict.indices, jc.solve(problem, 5, jc.MatchingPursuit(), max_k=MAX_K).indices
    )
