"""Claims about `Recombination`, held against a NumPy reference that eliminates one at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcoreset as jc
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.recombination import leading_directions, recombine, starting_weights
from jaxcoreset.solvers.solve import solve
from tests.problems import correlated_atoms
from tests.reference.recombination import eliminate
from tests.solvers.helpers import in_float32, scipy_nnls, used

# Compilation is what these tests cost: one shape and one bound on k for nearly all of them.
N, NUM_DRAWS, MAX_K = 60, 40, 12
SOLVER = jc.Recombination()


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
    atoms = correlated_atoms(N, NUM_DRAWS, 1)
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
    atoms = correlated_atoms(N, NUM_DRAWS, 2)
    target = np.random.default_rng(0).exponential(size=N) @ atoms
    with jax.enable_x64(True):
        problem = CoresetProblem(jnp.asarray(atoms), jnp.asarray(target))
        _, start, weights = map(np.asarray, _recombine_problem(problem, jnp.asarray(9)))
    directions = np.linalg.svd(atoms, full_matrices=False)[2][:8]
    for w, size in ((start, N), (weights, 9)):
        assert (w >= 0).all()
        assert np.sum(w > 0) <= size
        np.testing.assert_allclose(w @ atoms @ directions.T, target @ directions.T, atol=1e-9)
    solution = solve(in_float32(atoms, target), MAX_K, SOLVER)
    own_sum = solve(in_float32(atoms), MAX_K, SOLVER)
    assert solution.relative_error < 2 * own_sum.relative_error


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


def test_float32_objective_is_that_of_scipy_on_the_same_atoms() -> None:
    for seed in range(3):
        atoms = correlated_atoms(N, NUM_DRAWS, seed)
        solution = solve(in_float32(atoms), MAX_K, SOLVER)
        support, _ = used(solution)
        _, least = scipy_nnls(atoms[support], atoms.sum(axis=0))
        np.testing.assert_allclose(solution.objective, least, rtol=1e-3)


def test_a_lone_row_is_taken_and_a_target_outside_the_cone_is_met_by_least_squares() -> None:
    lone = solve(CoresetProblem(jnp.full((1, 3), 2.0)), 1, SOLVER)
    np.testing.assert_allclose(lone.weights, [1], rtol=1e-6)
    atoms = np.abs(correlated_atoms(N, NUM_DRAWS, 4))
    # Along one atom: the equations can only be met by it and what cancels.
    solution = solve(in_float32(atoms, 2.5 * atoms[7]), MAX_K, SOLVER)
    assert np.isfinite(solution.weights).all()
    assert solution.relative_error < 0.5


def test_two_of_three_atoms_that_oppose_their_sum_are_matched() -> None:
    # The other rows are zero, for the program of the other tests.
    atoms = np.zeros((N, NUM_DRAWS))
    atoms[:3, :3] = [[0.9, -0.5, -1.3], [0.7, 1, 0.5], [-2.5, -1.5, 0.6]]
    solution = solve(in_float32(atoms, atoms[:2].sum(axis=0)), 3, SOLVER, max_k=MAX_K)
    np.testing.assert_array_equal(used(solution)[0], [0, 1])
    np.testing.assert_allclose(used(solution)[1], 1, rtol=1e-5)


def test_any_target_in_the_cone_of_atoms_of_low_rank_is_matched() -> None:
    rng = np.random.default_rng(1)
    atoms = rng.normal(size=(40, N, MAX_K - 1)) @ rng.normal(size=(40, MAX_K - 1, NUM_DRAWS))
    of_few = np.zeros((20, N))
    of_few[:, :2] = 1
    weights = np.concatenate([rng.exponential(size=(20, N)), of_few])
    for own, w in zip(atoms, weights, strict=True):
        # The rank is the number of leading directions, so that as many atoms are enough.
        assert solve(in_float32(own, w @ own), MAX_K, SOLVER).relative_error < 1e-5
