"""Claims about `MatchingPursuit`, held against SciPy's NNLS and a NumPy reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from jaxcoreset.solvers.matching_pursuit import MatchingPursuit
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solution import Solution
from jaxcoreset.solvers.solve import solve, sweep
from tests.datasets import NAMES, atoms_of
from tests.problems import low_rank_atoms
from tests.reference.matching_pursuit import matching_pursuit
from tests.solvers.helpers import in_float32, pick, used

# Relative errors below this are rounding in float32.
FLOAT32_FLOOR = 3e-5


def _scipy_on_support(atoms: np.ndarray, support: np.ndarray) -> tuple[np.ndarray, float]:
    """SciPy's weights and objective, with atoms scaled to norm one for its tolerances."""
    target = atoms.sum(axis=0)
    norms = np.linalg.norm(atoms[support], axis=1)
    scaled = atoms[support] / norms[:, None]
    weights, _ = scipy.optimize.nnls(scaled.T, target, maxiter=10_000)
    return weights / norms, float(np.sum((target - weights @ scaled) ** 2))


def _objective(atoms: np.ndarray, support: np.ndarray, weights: np.ndarray) -> float:
    return float(np.sum((atoms.sum(axis=0) - weights @ atoms[support]) ** 2))


def _check_float64(atoms: np.ndarray, solution: Solution) -> None:
    support, weights = used(solution)
    expected, objective = _scipy_on_support(atoms, support)
    np.testing.assert_allclose(solution.objective, objective, rtol=1e-5, atol=1e-20)
    # Where the error is 1e-9, so is the weight of what tells one atom from the others.
    if solution.relative_error > 1e-9:
        assert np.max(np.abs(weights - expected)) <= 1e-6 * np.max(expected)


def _check_float32(atoms: np.ndarray, solution: Solution) -> None:
    support, weights = used(solution)
    floor = FLOAT32_FLOOR**2 * float(np.sum(atoms.sum(axis=0) ** 2))
    _, objective = _scipy_on_support(atoms, support)
    assert _objective(atoms, support, weights) <= max(1.001 * objective, floor)
    np.testing.assert_allclose(
        solution.objective, _objective(atoms, support, weights), rtol=1e-3, atol=floor
    )


KS = np.array([20, 50, 100])
# One bound on k for nearly all small problems, so that they share two compiled programs.
MAX_K = 30
ALL_KS = np.arange(1, MAX_K + 1)


def _solve(problem: CoresetProblem, k: int = MAX_K) -> Solution:
    return solve(problem, k, MatchingPursuit(), max_k=MAX_K)


def _sweep(problem: CoresetProblem) -> Solution:
    return sweep(problem, ALL_KS, MatchingPursuit())


@pytest.mark.parametrize("name", NAMES)
def test_float64_weights_are_scipys_on_the_support(name: str) -> None:
    atoms = atoms_of(name)
    with jax.enable_x64(True):
        solutions = sweep(CoresetProblem(jnp.asarray(atoms)), KS, MatchingPursuit())
        for i in range(len(KS)):
            _check_float64(atoms, pick(solutions, i))


@pytest.mark.slow  # at the floor of float32, with the compiler at its best
@pytest.mark.parametrize("name", NAMES)
def test_float32_objective_is_scipys_on_the_support(name: str) -> None:
    atoms = atoms_of(name).astype(np.float32)
    solutions = sweep(CoresetProblem(jnp.asarray(atoms)), KS, MatchingPursuit())
    for i in range(len(KS)):
        _check_float32(atoms.astype(np.float64), pick(solutions, i))


@pytest.mark.slow  # at the floor of float32, with the compiler at its best
@pytest.mark.parametrize("name", ["phishing_500", "biketrips_500"])
def test_float32_is_as_good_as_the_float64_reference(name: str) -> None:
    atoms = atoms_of(name)
    target_norm = np.linalg.norm(atoms.sum(axis=0))
    path = matching_pursuit(atoms, int(KS[-1]))
    solutions = sweep(in_float32(atoms), KS, MatchingPursuit())
    for i, k in enumerate(KS):
        reference = path[min(k, len(path)) - 1][2] ** 0.5 / target_norm
        # Rounding may break a near tie either way; that costs far less than a tenth here.
        assert solutions.relative_error[i] <= max(1.1 * reference, FLOAT32_FLOOR)


def test_path_equals_the_reference_at_every_k() -> None:
    atoms = low_rank_atoms()
    path = matching_pursuit(atoms, 60)
    assert len(path) > 20
    with jax.enable_x64(True):
        solutions = sweep(CoresetProblem(jnp.asarray(atoms)), np.arange(1, 61), MatchingPursuit())
        for k in range(1, 61):
            indices, weights, objective = path[min(k, len(path)) - 1]
            solution = pick(solutions, k - 1)
            support, found = used(solution)
            np.testing.assert_array_equal(support, indices)
            np.testing.assert_allclose(found, weights, rtol=1e-6)
            np.testing.assert_allclose(solution.objective, objective, rtol=1e-9, atol=1e-20)
        assert solutions.converged.all()


def test_objective_never_rises_with_k_and_size_is_at_most_k() -> None:
    solutions = _sweep(in_float32(low_rank_atoms(seed=1)))
    assert (solutions.size <= ALL_KS).all()
    assert (np.diff(np.asarray(solutions.relative_error)) <= FLOAT32_FLOOR).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_duplicates_are_taken_once_and_by_the_lower_index(dtype: type) -> None:
    atoms = low_rank_atoms(seed=2)[:20].repeat(3, axis=0)
    with jax.enable_x64(dtype is np.float64):
        # The float64 sweep is that of the test against the reference.
        ks = ALL_KS if dtype is np.float32 else np.arange(1, 61)
        path = sweep(CoresetProblem(jnp.asarray(atoms, dtype)), ks, MatchingPursuit())
        solution = pick(path, -1)
        support, _ = used(solution)
        error = float(solution.relative_error)
        assert solution.converged
    assert (support % 3 == 0).all()
    assert 0 < len(support) <= 20
    # The target is three times the sum of the twenty atoms.
    assert error < FLOAT32_FLOOR


def test_one_row_is_the_best_aligned_atom_with_its_best_weight() -> None:
    atoms = low_rank_atoms(seed=4)
    target = atoms.sum(axis=0)
    norms = np.linalg.norm(atoms, axis=1)
    best = int(np.argmax(atoms @ target / norms))
    solution = _solve(in_float32(atoms), 1)
    support, weights = used(solution)
    assert support.tolist() == [best]
    weight = atoms[best] @ target / norms[best] ** 2
    np.testing.assert_allclose(weights, [weight], rtol=1e-5)


def test_more_rows_than_draws_fit_the_target() -> None:
    # Ten draws; the others see nothing.
    atoms = np.pad(low_rank_atoms(s=10, seed=5), ((0, 0), (0, 30)))
    solution = _solve(in_float32(atoms))
    assert solution.relative_error < FLOAT32_FLOOR
    assert solution.size <= 12
    assert solution.converged


def test_a_target_along_one_atom_takes_that_atom_alone() -> None:
    atoms = low_rank_atoms(seed=6)
    problem = in_float32(atoms, 2.5 * atoms[7])
    solution = _solve(problem, 10)
    support, weights = used(solution)
    assert support.tolist() == [7]
    np.testing.assert_allclose(weights, [2.5], rtol=1e-6)
    assert solution.converged
