"""Claims about `Recombination`, held against a NumPy reference that eliminates one at a time."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import jaxcoreset as jc
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.recombination import leading_directions, recombine, starting_weights
from jaxcoreset.solvers.solution import Solution
from jaxcoreset.solvers.solve import solve, sweep
from tests.datasets import NAMES, atoms_of
from tests.problems import correlated_atoms
from tests.reference.recombination import eliminate, recombination

# Compilation is what these tests cost: one shape and one bound on k for nearly all of them.
N, NUM_DRAWS, MAX_K = 60, 40, 12
FLOAT32_FLOOR = 3e-5
SOLVER = jc.Recombination()


def _atoms(seed: int = 0) -> np.ndarray:
    return correlated_atoms(N, NUM_DRAWS, seed)


def _problem(atoms: np.ndarray, target: np.ndarray | None = None) -> CoresetProblem:
    return CoresetProblem(jnp.asarray(atoms, jnp.float32), target)


def _solve(problem: CoresetProblem, k: int = MAX_K) -> Solution:
    return solve(problem, k, SOLVER, max_k=MAX_K)


def _used(solution: Solution) -> tuple[np.ndarray, np.ndarray]:
    weights = np.asarray(solution.weights, np.float64)
    return np.asarray(solution.indices)[weights > 0], weights[weights > 0]


def _lone(batch: Any, at: int) -> Any:
    return jax.tree.map(lambda x: x[at], batch)


@jax.jit
def _recombine_problem(problem: CoresetProblem, k: jax.Array) -> tuple[jax.Array, ...]:
    """What is done before the least-squares problem: equations, start, and recombined weights."""
    usable = problem.squared_norms() > 0
    leading = leading_directions(problem, k - 1, MAX_K - 1)
    start = starting_weights(problem, leading, usable)
    equations = jnp.concatenate([usable[:, None], leading.coordinates], axis=1)
    return equations, start, recombine(equations, leading.left_out, start, k)[0]


@pytest.mark.parametrize("k", [1, 2, 7, 12])
def test_total_and_leading_coordinates_are_matched_to_rounding_by_k_atoms(k: int) -> None:
    atoms = _atoms(1)
    with jax.enable_x64(True):
        equations, start, weights = map(
            np.asarray, _recombine_problem(CoresetProblem(jnp.asarray(atoms)), jnp.asarray(k))
        )
    np.testing.assert_array_equal(start, 1)
    assert (weights >= 0).all()
    assert 0 < np.sum(weights > 0) <= k
    np.testing.assert_allclose(weights @ equations, np.sum(equations, axis=0), atol=1e-11)
    # The property itself, with directions from elsewhere.
    directions = np.linalg.svd(atoms, full_matrices=False)[2][: k - 1]
    np.testing.assert_allclose(weights.sum(), N, rtol=1e-12)
    np.testing.assert_allclose(
        weights @ atoms @ directions.T, atoms.sum(axis=0) @ directions.T, atol=1e-10
    )
    by_one = eliminate(equations[:, :k], start)
    np.testing.assert_allclose(by_one @ equations, weights @ equations, atol=1e-10)


def test_a_target_of_its_own_is_matched_from_weights_that_are_not_one() -> None:
    atoms = _atoms(2)
    target = np.random.default_rng(0).exponential(size=N) @ atoms
    with jax.enable_x64(True):
        problem = CoresetProblem(jnp.asarray(atoms), jnp.asarray(target))
        _, start, weights = map(np.asarray, _recombine_problem(problem, jnp.asarray(9)))
    directions = np.linalg.svd(atoms, full_matrices=False)[2][:8]
    for w, size in ((start, N), (weights, 9)):
        assert (w >= 0).all()
        assert np.sum(w > 0) <= size
        np.testing.assert_allclose(w @ atoms @ directions.T, target @ directions.T, atol=1e-9)
    solution = _solve(_problem(atoms, target))
    own_sum = _solve(_problem(atoms))
    assert solution.relative_error < 2 * own_sum.relative_error


def test_a_target_outside_the_cone_gives_what_least_squares_can() -> None:
    atoms = np.abs(_atoms(4))
    solution = _solve(_problem(atoms, -atoms.sum(axis=0)))
    assert (solution.weights == 0).all()
    np.testing.assert_allclose(solution.relative_error, 1, rtol=1e-6)
    # Along one atom: the equations can only be met by it and what cancels.
    solution = _solve(_problem(atoms, 2.5 * atoms[7]))
    assert np.isfinite(solution.weights).all()
    assert solution.relative_error < 0.5


@pytest.mark.parametrize(("num_data", "num_draws"), [(300, 80), (10, 30)])
def test_directions_are_nearly_those_of_the_svd(num_data: int, num_draws: int) -> None:
    # The first goes through the range finder, the second does not need it.
    count = 4
    atoms = correlated_atoms(num_data, num_draws)
    with jax.enable_x64(True):
        problem = CoresetProblem(jnp.asarray(atoms))
        leading = jax.jit(lambda p: leading_directions(p, jnp.asarray(count), count + 2))(problem)
        left = float(jnp.sum(leading.left_out**2))
        coordinates = np.asarray(leading.coordinates)
    values = np.linalg.svd(atoms, compute_uv=False)
    np.testing.assert_allclose(left, np.sum(values[count:] ** 2), rtol=1e-2)
    np.testing.assert_allclose(
        coordinates.T @ coordinates, np.diag([1.0] * count + [0.0] * 2), atol=1e-10
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_median_error_on_the_papers_data_is_near_the_references(name: str) -> None:
    with jax.enable_x64(True):
        errors = [
            [
                float(solve(CoresetProblem(jnp.asarray(atoms)), 20, SOLVER).relative_error),
                recombination(atoms, 20),
            ]
            for atoms in (atoms_of(name, 500, seed) for seed in range(3))
        ]
    ours, reference = np.median(errors, axis=0)
    assert ours < 1.6 * reference + 1e-8


def test_vmapped_sweep_equals_single_solves() -> None:
    batch = np.stack([_atoms(seed) for seed in range(3)])
    batch[1, 5:] = 0
    batch[2, 30:] = 0
    problems = jax.vmap(CoresetProblem)(jnp.asarray(batch, jnp.float32))
    ks = np.arange(1, MAX_K + 1)
    together = jax.vmap(lambda problem: sweep(problem, ks, SOLVER))(problems)
    assert (together.weights >= 0).all()
    assert (together.size <= ks).all()
    assert together.converged.all()
    for lane in range(len(batch)):
        for k in (1, 5, 12):
            single = _solve(_lone(problems, lane), k)
            vmapped = _lone(_lone(together, lane), k - 1)
            np.testing.assert_array_equal(single.indices, vmapped.indices)
            assert single.num_iters == vmapped.num_iters
            # Sums are taken in another order.
            np.testing.assert_allclose(single.weights, vmapped.weights, rtol=2e-3, atol=1e-3)


def test_float32_objective_is_that_of_scipy_on_the_same_atoms() -> None:
    for seed in range(3):
        atoms = _atoms(seed)
        solution = _solve(_problem(atoms))
        support, _ = _used(solution)
        _, distance = scipy.optimize.nnls(atoms[support].T, atoms.sum(axis=0))
        np.testing.assert_allclose(solution.objective, distance**2, rtol=1e-3)


def test_zeros_are_never_chosen_and_few_useful_atoms_are_all_kept() -> None:
    atoms = _atoms(3)
    atoms[::2] = 0
    atoms[16:] = 0
    solution = _solve(_problem(atoms))
    support, weights = _used(solution)
    np.testing.assert_array_equal(support, np.arange(1, 16, 2))
    np.testing.assert_allclose(weights, 1, rtol=1e-3)
    assert solution.relative_error < FLOAT32_FLOOR
    assert solution.num_iters == 0


def test_duplicates_do_no_harm() -> None:
    atoms = _atoms(2)[:6].repeat(10, axis=0)
    solution = _solve(_problem(atoms), 8)
    assert solution.relative_error < FLOAT32_FLOOR
    assert 0 < solution.size <= 8


def test_a_looser_bound_on_k_changes_nothing_and_all_rows_are_exact() -> None:
    atoms = _atoms(5)[:6]
    problem = _problem(atoms)
    tight = solve(problem, 6, SOLVER)
    np.testing.assert_allclose(tight.weights, 1, rtol=1e-3)
    assert tight.relative_error < FLOAT32_FLOOR
    padded = _problem(np.concatenate([atoms, np.zeros((N - 6, NUM_DRAWS))]))
    loose, tight = _solve(padded, 4), solve(problem, 4, SOLVER, max_k=6)
    np.testing.assert_array_equal(loose.indices[:6], tight.indices)
    np.testing.assert_allclose(loose.weights[:6], tight.weights, rtol=1e-3)


def test_a_lone_row_is_taken() -> None:
    solution = solve(CoresetProblem(jnp.full((1, 3), 2.0)), 1, SOLVER)
    np.testing.assert_allclose(solution.weights, [1], rtol=1e-6)
