"""Claims about `MatchingPursuit`, held against SciPy's NNLS and a NumPy reference."""

from typing import Any

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
from tests.reference.matching_pursuit import matching_pursuit

# Relative errors below this are rounding in float32.
FLOAT32_FLOOR = 3e-5


def _synthetic(seed: int = 0, n: int = 60, num_draws: int = 40) -> np.ndarray:
    """Atoms with a common part, as log-likelihoods have, so that the target needs many of them."""
    rng = np.random.default_rng(seed)
    low_rank = rng.standard_normal((n, 6)) @ rng.standard_normal((6, num_draws))
    atoms = low_rank + 0.5 * rng.standard_normal((n, num_draws))
    return atoms * rng.exponential(size=(n, 1))


def _lone(batch: Any, at: int | jax.Array) -> Any:
    return jax.tree.map(lambda x: x[at], batch)


def _used(solution: Solution) -> tuple[np.ndarray, np.ndarray]:
    weights = np.asarray(solution.weights, np.float64)
    return np.asarray(solution.indices)[weights > 0], weights[weights > 0]


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
    support, weights = _used(solution)
    expected, objective = _scipy_on_support(atoms, support)
    np.testing.assert_allclose(solution.objective, objective, rtol=1e-5, atol=1e-20)
    # Where the error is 1e-9, so is the weight of what tells one atom from the others.
    if solution.relative_error > 1e-9:
        assert np.max(np.abs(weights - expected)) <= 1e-6 * np.max(expected)


def _check_float32(atoms: np.ndarray, solution: Solution) -> None:
    support, weights = _used(solution)
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
            _check_float64(atoms, _lone(solutions, i))


@pytest.mark.slow  # at the floor of float32, with the compiler at its best
@pytest.mark.parametrize("name", NAMES)
def test_float32_objective_is_scipys_on_the_support(name: str) -> None:
    atoms = atoms_of(name).astype(np.float32)
    solutions = sweep(CoresetProblem(jnp.asarray(atoms)), KS, MatchingPursuit())
    for i in range(len(KS)):
        _check_float32(atoms.astype(np.float64), _lone(solutions, i))


@pytest.mark.slow  # at the floor of float32, with the compiler at its best
@pytest.mark.parametrize("name", ["phishing_500", "biketrips_500"])
def test_float32_is_as_good_as_the_float64_reference(name: str) -> None:
    atoms = atoms_of(name)
    target_norm = np.linalg.norm(atoms.sum(axis=0))
    path = matching_pursuit(atoms, int(KS[-1]))
    solutions = sweep(CoresetProblem(jnp.asarray(atoms, jnp.float32)), KS, MatchingPursuit())
    for i, k in enumerate(KS):
        reference = path[min(k, len(path)) - 1][2] ** 0.5 / target_norm
        # Rounding may break a near tie either way; that costs far less than a tenth here.
        assert solutions.relative_error[i] <= max(1.1 * reference, FLOAT32_FLOOR)


def test_path_equals_the_reference_at_every_k() -> None:
    atoms = _synthetic()
    path = matching_pursuit(atoms, 60)
    assert len(path) > 20
    with jax.enable_x64(True):
        solutions = sweep(CoresetProblem(jnp.asarray(atoms)), np.arange(1, 61), MatchingPursuit())
        for k in range(1, 61):
            indices, weights, objective = path[min(k, len(path)) - 1]
            solution = _lone(solutions, k - 1)
            support, found = _used(solution)
            np.testing.assert_array_equal(support, indices)
            np.testing.assert_allclose(found, weights, rtol=1e-6)
            np.testing.assert_allclose(solution.objective, objective, rtol=1e-9, atol=1e-20)
        assert solutions.converged.all()


def test_sweep_equals_solve_at_each_k() -> None:
    problem = CoresetProblem(jnp.asarray(_synthetic(), jnp.float32))
    solutions = _sweep(problem)
    for k in (1, 2, 11, 29, 30):
        single = _solve(problem, k)
        swept = _lone(solutions, k - 1)
        np.testing.assert_array_equal(single.indices, swept.indices)
        np.testing.assert_allclose(single.weights, swept.weights, rtol=1e-4)
        np.testing.assert_allclose(single.objective, swept.objective, rtol=1e-4)
        assert single.num_iters == swept.num_iters


def test_objective_never_rises_with_k_and_size_is_at_most_k() -> None:
    solutions = _sweep(CoresetProblem(jnp.asarray(_synthetic(1), jnp.float32)))
    assert (solutions.size <= ALL_KS).all()
    assert (np.diff(np.asarray(solutions.relative_error)) <= FLOAT32_FLOOR).all()


def test_vmapped_sweep_equals_single_sweeps() -> None:
    # Lanes that stop at very different steps: an exact fit, a hard problem, one with few atoms.
    batch = np.stack([_synthetic(seed) for seed in range(4)])
    batch[1, 1:] = 0
    batch[2, 30:] = batch[2, :30]
    problems = jax.vmap(CoresetProblem)(jnp.asarray(batch, jnp.float32))
    vmapped = jax.vmap(_sweep)(problems)
    for lane in range(len(batch)):
        single = _sweep(_lone(problems, lane))
        together = _lone(vmapped, lane)
        np.testing.assert_array_equal(single.indices, together.indices)
        np.testing.assert_array_equal(single.num_iters, together.num_iters)
        np.testing.assert_array_equal(single.converged, together.converged)
        # Sums are taken in another order, which the weights feel by the condition of the support.
        np.testing.assert_allclose(single.weights, together.weights, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(
            single.relative_error, together.relative_error, rtol=1e-3, atol=FLOAT32_FLOOR
        )


def test_vmapped_solve_over_k_equals_the_sweep() -> None:
    problem = CoresetProblem(jnp.asarray(_synthetic(), jnp.float32))
    ks = jnp.array([3, 17, 9])
    vmapped = jax.vmap(lambda k: solve(problem, k, MatchingPursuit(), max_k=MAX_K))(ks)
    swept = _lone(_sweep(problem), ks - 1)
    np.testing.assert_array_equal(vmapped.indices, swept.indices)
    np.testing.assert_allclose(vmapped.weights, swept.weights, rtol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_duplicates_are_taken_once_and_by_the_lower_index(dtype: type) -> None:
    atoms = _synthetic(2)[:20].repeat(3, axis=0)
    with jax.enable_x64(dtype is np.float64):
        # The float64 sweep is that of the test against the reference.
        ks = ALL_KS if dtype is np.float32 else np.arange(1, 61)
        path = sweep(CoresetProblem(jnp.asarray(atoms, dtype)), ks, MatchingPursuit())
        solution = _lone(path, -1)
        support, _ = _used(solution)
        error = float(solution.relative_error)
        assert solution.converged
    assert (support % 3 == 0).all()
    assert 0 < len(support) <= 20
    # The target is three times the sum of the twenty atoms.
    assert error < FLOAT32_FLOOR


def test_atoms_of_norm_zero_are_never_chosen() -> None:
    atoms = _synthetic(3)
    atoms[::2] = 0
    solution = _solve(CoresetProblem(jnp.asarray(atoms, jnp.float32)))
    support, _ = _used(solution)
    assert len(support) > 0
    assert (support % 2 == 1).all()
    assert np.isfinite(solution.weights).all()


def test_one_row_is_the_best_aligned_atom_with_its_best_weight() -> None:
    atoms = _synthetic(4)
    target = atoms.sum(axis=0)
    norms = np.linalg.norm(atoms, axis=1)
    best = int(np.argmax(atoms @ target / norms))
    solution = _solve(CoresetProblem(jnp.asarray(atoms, jnp.float32)), 1)
    support, weights = _used(solution)
    assert support.tolist() == [best]
    weight = atoms[best] @ target / norms[best] ** 2
    np.testing.assert_allclose(weights, [weight], rtol=1e-5)


def test_more_rows_than_draws_fit_the_target() -> None:
    # Ten draws; the others see nothing.
    atoms = np.pad(_synthetic(5, num_draws=10), ((0, 0), (0, 30)))
    solution = _solve(CoresetProblem(jnp.asarray(atoms, jnp.float32)))
    assert solution.relative_error < FLOAT32_FLOOR
    assert solution.size <= 12
    assert solution.converged


def test_a_target_along_one_atom_takes_that_atom_alone() -> None:
    atoms = _synthetic(6)
    problem = CoresetProblem(jnp.asarray(atoms, jnp.float32), jnp.asarray(2.5 * atoms[7]))
    solution = _solve(problem, 10)
    support, weights = _used(solution)
    assert support.tolist() == [7]
    np.testing.assert_allclose(weights, [2.5], rtol=1e-6)
    assert solution.converged


def test_no_positive_correlation_gives_no_rows() -> None:
    atoms = np.abs(_synthetic(7))
    problem = CoresetProblem(
        jnp.asarray(atoms, jnp.float32), jnp.asarray(-atoms.sum(axis=0), jnp.float32)
    )
    solutions = _sweep(problem)
    assert (solutions.weights == 0).all()
    assert solutions.converged.all()
    np.testing.assert_allclose(solutions.relative_error, 1, rtol=1e-6)


def test_a_target_of_zero_gives_no_rows() -> None:
    atoms = jnp.asarray(_synthetic(8), jnp.float32)
    solution = _solve(CoresetProblem(atoms, jnp.zeros(40)), 10)
    assert (solution.weights == 0).all()
    assert solution.objective == 0
    assert solution.converged


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_scale_of_the_atoms_does_not_matter(scale: float) -> None:
    atoms = _synthetic(9)
    plain = _solve(CoresetProblem(jnp.asarray(atoms, jnp.float32)), 20)
    scaled = _solve(CoresetProblem(jnp.asarray(scale * atoms, jnp.float32)), 20)
    np.testing.assert_array_equal(plain.indices, scaled.indices)
    np.testing.assert_allclose(plain.weights, scaled.weights, rtol=1e-4)
