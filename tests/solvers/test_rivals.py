"""Claims of the papers' other methods: GIGA, Frank–Wolfe, importance and uniform sampling."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcoreset.solvers.frank_wolfe import GIGA, FrankWolfe
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.sampling import ImportanceSampling, UniformSampling
from jaxcoreset.solvers.solve import solve, sweep
from tests.datasets import atoms_of
from tests.reference.frank_wolfe import frank_wolfe
from tests.reference.giga import giga
from tests.reference.sampling import importance_probabilities, sampling_weights

GREEDY = [pytest.param(GIGA(), giga, id="GIGA"), pytest.param(FrankWolfe(), frank_wolfe, id="FW")]
SAMPLERS = [
    pytest.param(ImportanceSampling(), id="importance"),
    pytest.param(UniformSampling(), id="uniform"),
    pytest.param(UniformSampling(replace=True), id="uniform-replace"),
]
# Uniform sampling with replacement shares all its code with importance sampling.
EVERY = [pytest.param(GIGA(), id="GIGA"), pytest.param(FrankWolfe(), id="FW"), *SAMPLERS[:2]]
KEY = jax.random.key(3)


def synthetic_atoms(n=80, num_draws=60, seed=0):
    """Atoms of unequal norms around a common direction, as log-likelihoods have."""
    rng = np.random.default_rng(seed)
    atoms = rng.standard_normal((n, num_draws)) + 0.3 * rng.standard_normal(num_draws)
    return atoms * rng.gamma(2.0, size=(n, 1))


def run_path(atoms, solver, target=None):
    """The solutions for k = 1..80 in float32; one shape, so that a solver compiles once."""
    target = None if target is None else np.asarray(target, np.float32)
    problem = CoresetProblem(np.asarray(atoms, np.float32), target)
    return sweep(problem, np.arange(1, 81), solver, KEY)


def true_errors(atoms, solution):
    """‖y − Φw‖/‖y‖ in float64, from the weights of a sweep alone."""
    atoms = np.asarray(atoms, np.float64)
    target = atoms.sum(axis=0)
    dense = np.asarray(solution.dense(len(atoms)), np.float64)
    return np.linalg.norm(target - dense @ atoms, axis=-1) / np.linalg.norm(target)


def assert_same_solution(left, right, rtol=1e-4):
    """Equal rows, and weights equal but for float32's rounding; padding may differ in length."""
    n = int(max(left.indices.max(), right.indices.max())) + 1
    np.testing.assert_allclose(left.dense(n), right.dense(n), rtol=rtol, atol=rtol * 1e-2)
    np.testing.assert_allclose(left.relative_error, right.relative_error, rtol=rtol, atol=1e-6)
    np.testing.assert_array_equal(left.num_iters, right.num_iters)


@pytest.mark.parametrize("name", ["synthetic", "phishing_500", "biketrips_500"])
@pytest.mark.parametrize(("solver", "reference"), GREEDY)
def test_greedy_solver_equals_its_reference_iterate_by_iterate(solver, reference, name):
    atoms = synthetic_atoms() if name == "synthetic" else atoms_of(name)
    expected = reference(atoms.T, atoms.sum(axis=0), 50)
    with jax.enable_x64(True):
        path = sweep(CoresetProblem(atoms), np.arange(1, 81), solver, KEY)
        weights = np.asarray(path.dense(len(atoms)))[:50]
    scale = np.abs(expected).max(axis=1, keepdims=True)
    np.testing.assert_allclose(weights / scale, expected / scale, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("solver", "reference"), GREEDY)
def test_float32_reaches_the_error_of_the_float64_reference(solver, reference):
    atoms = synthetic_atoms()
    target = atoms.sum(axis=0)
    residuals = target - reference(atoms.T, target, 50) @ atoms
    expected = np.linalg.norm(residuals, axis=1) / np.linalg.norm(target)
    path = run_path(atoms, solver)
    assert path.weights.dtype == jnp.float32
    # Where float32 breaks a near tie the other way, the two go apart, to errors as good.
    np.testing.assert_allclose(path.relative_error[:50], expected, rtol=0.02)


@pytest.mark.parametrize("solver", EVERY)
def test_sweep_equals_solve_whatever_the_bound_of_k(solver):
    atoms = synthetic_atoms()
    problem = CoresetProblem(atoms.astype(np.float32))
    path = run_path(atoms, solver)
    for k in (1, 12, 33, 39):
        one = jax.tree.map(lambda x, k=k: x[k - 1], path)
        # The sweep's bound is 80. A k near 40 is rounded up to it.
        assert_same_solution(one, solve(problem, k, solver, KEY, max_k=None if k > 36 else 40))


@pytest.mark.parametrize("solver", EVERY)
def test_vmapped_solve_equals_single_solve_over_problems_and_k(solver):
    atoms = np.stack([synthetic_atoms(seed=seed).astype(np.float32) for seed in range(3)])
    problems = jax.vmap(CoresetProblem)(atoms)
    ks = jnp.array([1, 7, 40])

    def one(problem, k):
        return solve(problem, k, solver, KEY, max_k=40)

    batch = jax.jit(jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(0, None)))(problems, ks)
    assert batch.weights.shape == (3, 3, 40)
    for i in range(3):
        for j in range(3):
            lane = jax.tree.map(lambda x, i=i, j=j: x[i, j], batch)
            single = solve(CoresetProblem(atoms[i]), int(ks[j]), solver, KEY, max_k=40)
            assert_same_solution(lane, single)


@pytest.mark.parametrize("solver", EVERY)
def test_solution_is_canonical_and_its_error_is_that_of_its_weights(solver):
    atoms = synthetic_atoms().astype(np.float32)
    ks = np.arange(1, 81)
    path = run_path(atoms, solver)
    used = np.asarray(path.weights) > 0
    for row, k in enumerate(ks):
        rows = np.asarray(path.indices)[row][used[row]]
        assert 1 <= len(rows) <= k
        assert np.all(np.diff(rows) > 0)
        assert np.all(used[row][: len(rows)])
    assert np.asarray(path.converged).all()
    np.testing.assert_array_equal(path.num_iters, ks)
    np.testing.assert_allclose(path.relative_error, true_errors(atoms, path), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("solver", EVERY)
def test_atom_of_norm_zero_is_never_chosen(solver):
    atoms = synthetic_atoms().astype(np.float32)
    atoms[::2] = 0
    path = run_path(atoms, solver)
    dense = np.asarray(path.dense(80))
    assert np.isfinite(dense).all()
    assert not dense[:, ::2].any()
    assert dense[-1].any()


@pytest.mark.parametrize("solver", EVERY)
def test_solution_is_empty_where_all_atoms_are_zero(solver):
    # Which is refused at the door, but for values that are being traced.
    problem = jax.tree.map(lambda x: x[0], jax.vmap(CoresetProblem)(jnp.zeros((1, 80, 60))))
    path = sweep(problem, np.arange(1, 81), solver, KEY)
    assert not np.asarray(path.weights).any()
    assert not np.asarray(path.objective).any()


@pytest.mark.parametrize("solver", EVERY)
def test_duplicate_atoms_cause_no_nan_and_appear_once(solver):
    atoms = np.repeat(synthetic_atoms(n=20), 4, axis=0).astype(np.float32)
    path = run_path(atoms, solver)
    assert np.isfinite(path.weights).all()
    assert np.isfinite(path.relative_error).all()
    if not solver.needs_key:  # of equal atoms, the one of lowest index
        chosen = np.asarray(path.dense(80)).any(axis=0)
        assert not chosen.reshape(20, 4)[:, 1:].any()


def test_giga_objective_never_rises_and_its_scale_is_the_best_one():
    atoms = synthetic_atoms()
    target = atoms.sum(axis=0)
    with jax.enable_x64(True):
        path = sweep(CoresetProblem(atoms), np.arange(1, 81), GIGA(), KEY)
        assert np.all(np.diff(path.objective) <= 0)
        images = np.asarray(path.dense(80)) @ atoms
    # At the best scale the residual is orthogonal to Φw.
    alignment = np.sum((target - images) * images, axis=1)
    np.testing.assert_allclose(alignment / (target @ target), 0, atol=1e-13)


def test_giga_starts_from_the_best_single_atom():
    atoms = synthetic_atoms()
    target = atoms.sum(axis=0)
    correlations = atoms @ target / np.linalg.norm(atoms, axis=1)
    best = np.argmax(correlations)
    expected = np.zeros(80)
    expected[best] = correlations[best] / np.linalg.norm(atoms[best])
    np.testing.assert_allclose(run_path(atoms, GIGA()).dense(80)[0], expected, rtol=1e-5)


@pytest.mark.parametrize("solver", [FrankWolfe(), ImportanceSampling()])
def test_weights_stay_in_the_polytope(solver):
    atoms = synthetic_atoms().astype(np.float32)
    norms = np.linalg.norm(atoms, axis=1)
    path = run_path(atoms, solver)
    np.testing.assert_allclose(path.dense(80) @ norms, norms.sum(), rtol=1e-5)


def test_frank_wolfe_starts_from_the_best_vertex_even_where_zero_is_better():
    # Orthogonal atoms: every vertex is further from the target than w = 0 (Proposition 2.1).
    path = run_path(np.eye(80, 60) * (np.arange(60) < 9), FrankWolfe())
    assert path.indices[0, 0] == 0
    np.testing.assert_allclose(path.weights[0, 0], 9, rtol=1e-6)
    np.testing.assert_allclose(path.relative_error[0], np.sqrt(9 - 1), rtol=1e-6)
    assert path.relative_error[8] < 1.0


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("solver", [GIGA(), FrankWolfe()])
def test_run_stops_at_a_target_it_has_reached_and_repeats_the_solution(solver, x64):
    atoms = synthetic_atoms()
    norms = np.linalg.norm(atoms, axis=1)
    weight = norms.sum() / norms[7]  # a vertex of the polytope, so both can reach it
    with jax.enable_x64(x64):
        problem = CoresetProblem(atoms, weight * atoms[7])
        path = jax.tree.map(np.asarray, sweep(problem, np.arange(1, 81), solver, KEY))
    dense = np.zeros((80, 80))
    np.put_along_axis(dense, path.indices, path.weights, axis=1)
    np.testing.assert_array_equal(dense[1:], dense[:1].repeat(79, axis=0))
    np.testing.assert_array_equal(path.num_iters, 1)
    np.testing.assert_array_equal(np.flatnonzero(dense[0]), [7])
    np.testing.assert_allclose(dense[0, 7], weight, rtol=1e-5)
    assert path.converged.all()
    assert path.relative_error.max() < 1e-6


def test_giga_is_empty_where_no_atom_points_towards_the_target():
    atoms = np.abs(synthetic_atoms()).astype(np.float32)
    path = run_path(atoms, GIGA(), target=-np.ones(60))
    assert not np.asarray(path.weights).any()
    np.testing.assert_array_equal(path.num_iters, 0)
    np.testing.assert_allclose(path.relative_error, 1, rtol=1e-6)
    assert path.converged.all()


@pytest.mark.parametrize("solver", EVERY)
def test_target_of_zero_gives_a_finite_solution(solver):
    half = synthetic_atoms(n=40).astype(np.float32)
    path = run_path(np.concatenate([half, -half]), solver)
    assert np.isfinite(path.weights).all()
    assert np.isfinite(path.relative_error).all()


def test_giga_takes_no_geodesic_along_or_against_the_iterate():
    # Every atom lies on one line, the target on it or a hair beside it.
    line = np.linspace(-1, 1, 60)
    atoms = np.outer(np.r_[2.0, 1.0, -1.0, -3.0, 0.5, np.zeros(75)], line)
    for target in (line, line + 1e-3 * np.cos(40 * line)):
        path = run_path(atoms, GIGA(), target)
        np.testing.assert_array_equal(path.num_iters, 1)
        # Atoms that are equal but for scale are equals to a choice by angle.
        np.testing.assert_array_equal(path.indices[:, 0], 0)
        np.testing.assert_allclose(path.weights[:, 0], 0.5, rtol=1e-3)


@pytest.mark.parametrize("solver", [GIGA(), FrankWolfe()])
def test_long_run_to_the_limit_of_float32_is_finite_honest_and_falling(solver):
    # Atoms of rank three, so that the target can be matched by a few of them.
    basis = np.random.default_rng(1).standard_normal((3, 60))
    atoms = (synthetic_atoms(num_draws=3) @ basis).astype(np.float32)
    path = run_path(atoms, solver)
    errors = np.asarray(path.relative_error)
    assert np.isfinite(errors).all()
    assert errors[-1] < 1e-4
    # The claim follows the weights in print down to float32's rounding of the target.
    np.testing.assert_allclose(errors, true_errors(atoms, path), rtol=1e-2, atol=2e-6)
    assert np.all(np.diff(errors) <= 2e-6)


@pytest.mark.parametrize("solver", SAMPLERS)
def test_draws_with_their_weights_equal_the_reference(solver):
    atoms = synthetic_atoms()
    problem = CoresetProblem(atoms.astype(np.float32))
    probabilities = np.full(80, 1 / 80)
    if isinstance(solver, ImportanceSampling):
        probabilities = importance_probabilities(atoms.T)
    draws = np.asarray(solver.draw(solver.proportions(problem), 50, KEY))
    path = run_path(atoms, solver)
    for k in (1, 2, 10, 50):
        expected = sampling_weights(draws[:k], probabilities)
        np.testing.assert_allclose(path.dense(80)[k - 1], expected, rtol=1e-5)


@pytest.mark.parametrize("solver", SAMPLERS)
def test_sampling_is_unbiased_for_the_sum_of_the_atoms(solver):
    atoms = synthetic_atoms(n=30, num_draws=8).astype(np.float32)
    atoms[4] = 0
    problem = CoresetProblem(atoms)
    keys = jax.random.split(jax.random.key(11), 4000)
    batch = jax.jit(jax.vmap(lambda key: solve(problem, 6, solver, key)))(keys)
    images = np.asarray(batch.dense(30), np.float64) @ atoms
    standard_errors = images.std(axis=0) / np.sqrt(len(keys))
    # Eight coordinates, each within four standard errors but for one case in two thousand.
    z = (images.mean(axis=0) - atoms.sum(axis=0)) / standard_errors
    assert np.abs(z).max() < 4


def test_importance_sampling_draws_rows_in_proportion_to_their_norms():
    # Not a square number of rows, zeros among them, and a whole block of zeros.
    rng = np.random.default_rng(5)
    proportions = rng.gamma(1.0, size=1010)
    proportions[rng.random(1010) < 0.3] = 0
    proportions[100:200] = 0
    num_draws = 200_000
    draws = ImportanceSampling().draw(jnp.asarray(proportions, jnp.float32), num_draws, KEY)
    counts = np.bincount(np.asarray(draws), minlength=1010)
    assert len(counts) == 1010
    assert not counts[proportions == 0].any()
    expected = num_draws * proportions / proportions.sum()
    seen = expected > 0
    chi_squared = np.sum((counts[seen] - expected[seen]) ** 2 / expected[seen])
    degrees = seen.sum() - 1
    assert abs(chi_squared - degrees) < 4 * np.sqrt(2 * degrees)


def test_uniform_sampling_without_replacement_keeps_distinct_rows_of_equal_weight():
    atoms = synthetic_atoms().astype(np.float32)
    path = run_path(atoms, UniformSampling())
    np.testing.assert_array_equal(path.size, np.arange(1, 81))
    for k in (1, 30, 80):
        np.testing.assert_allclose(path.weights[k - 1, :k], 80 / k, rtol=1e-6)
    assert path.relative_error[-1] < 1e-6


@pytest.mark.parametrize("solver", SAMPLERS)
def test_key_decides_the_sample_and_is_asked_for(solver):
    problem = CoresetProblem(synthetic_atoms().astype(np.float32))
    ks = np.arange(1, 81)
    first, again, other = (sweep(problem, ks, solver, jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.indices, again.indices)
    assert first.indices.tolist() != other.indices.tolist()
    with pytest.raises(ValueError, match="key is missing"):
        solve(problem, 10, solver)
    with pytest.raises(ValueError, match="key is missing"):
        solver.run(problem, jnp.asarray(3), 3, None)
