"""Claims about `SubspacePursuit`, held against a NumPy reference with SciPy's NNLS."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcoreset as jc
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solution import Solution
from jaxcoreset.solvers.solve import solve, sweep
from tests.datasets import NAMES, atoms_of
from tests.problems import correlated_atoms, independent_atoms
from tests.reference.subspace_pursuit import subspace_pursuit

# Compilation is what these tests cost: one shape and one bound on k for nearly all of them.
N, NUM_DRAWS, MAX_K = 60, 40, 20
# Relative errors below this are rounding in float32.
FLOAT32_FLOOR = 3e-5
SOLVER = jc.SubspacePursuit()


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


@pytest.mark.parametrize("make", [correlated_atoms, independent_atoms])
@pytest.mark.parametrize("k", [1, 7, 20])
def test_every_iterate_has_the_objective_of_the_reference(make: Any, k: int) -> None:
    atoms = make(N, NUM_DRAWS, 3)
    indices, weights, history = subspace_pursuit(atoms, k)
    solver = jc.SubspacePursuit(record_history=True)
    with jax.enable_x64(True):
        solution = solve(CoresetProblem(jnp.asarray(atoms)), k, solver, max_k=MAX_K)
        assert solution.history is not None
        assert solution.num_iters == len(history) > 1
        np.testing.assert_allclose(solution.history[: len(history)], history, rtol=1e-9)
        np.testing.assert_array_equal(solution.history[len(history) :], solution.objective)
        support, found = _used(solution)
        np.testing.assert_array_equal(support, indices)
        np.testing.assert_allclose(found, weights, rtol=1e-7)
        assert solution.converged


@pytest.mark.parametrize("name", NAMES)
def test_objective_on_the_papers_data_is_that_of_the_reference(name: str) -> None:
    atoms = atoms_of(name)
    target_norm = np.linalg.norm(atoms.sum(axis=0))
    with jax.enable_x64(True):
        problem = CoresetProblem(jnp.asarray(atoms))
        for k in (5, 20, 50):
            _, _, history = subspace_pursuit(atoms, k)
            expected = history[-1] ** 0.5 / target_norm
            solution = solve(problem, k, SOLVER, max_k=50)
            # SciPy's weights and ours agree to some 1e-6 where atoms are nearly dependent, and what
            # is cut from a fit this good is decided by less; then a better fit is no failure.
            if expected > 1e-4:
                np.testing.assert_allclose(solution.relative_error, expected, rtol=1e-6)
            else:
                assert solution.relative_error < 10 * expected


def test_vmapped_sweep_equals_single_solves() -> None:
    # Lanes that stop at very different steps: a hard problem, one atom only, duplicates.
    batch = np.stack([_atoms(seed) for seed in range(3)])
    batch[1, 1:] = 0
    batch[2, 30:] = batch[2, :30]
    problems = jax.vmap(CoresetProblem)(jnp.asarray(batch, jnp.float32))
    ks = np.arange(1, MAX_K + 1)
    together = jax.vmap(lambda problem: sweep(problem, ks, SOLVER))(problems)
    assert (together.weights >= 0).all()
    assert (together.size <= ks).all()
    assert together.converged.all()
    for lane in range(len(batch)):
        for k in (1, 9, 20):
            single = _solve(_lone(problems, lane), k)
            vmapped = _lone(_lone(together, lane), k - 1)
            np.testing.assert_array_equal(single.indices, vmapped.indices)
            assert single.num_iters == vmapped.num_iters
            # Sums are taken in another order.
            np.testing.assert_allclose(single.weights, vmapped.weights, rtol=1e-3)


def test_float32_objective_is_that_of_float64() -> None:
    for seed in range(3):
        _, _, history = subspace_pursuit(_atoms(seed), 12)
        solution = _solve(_problem(_atoms(seed)), 12)
        np.testing.assert_allclose(solution.objective, history[-1], rtol=1e-3)


def test_of_equal_atoms_the_first_is_chosen() -> None:
    atoms = _atoms(2)[:20].repeat(3, axis=0)
    support, _ = _used(_solve(_problem(atoms)))
    assert len(support) > 0
    assert (support % 3 == 0).all()


def test_atoms_of_norm_zero_are_never_chosen_and_k_may_exceed_the_others() -> None:
    atoms = _atoms(3)
    atoms[::2] = 0
    atoms[20:] = 0
    solution = _solve(_problem(atoms))
    support, weights = _used(solution)
    # Ten atoms are left, whose sum is the target.
    np.testing.assert_array_equal(support, np.arange(1, 20, 2))
    np.testing.assert_allclose(weights, 1, rtol=1e-3)
    assert solution.relative_error < FLOAT32_FLOOR
    assert solution.converged


def test_a_target_of_its_own_is_matched() -> None:
    # A few atoms make it; one that only had the sum in view would not find them.
    atoms = independent_atoms(N, NUM_DRAWS)
    target = 2 * atoms[7] + 0.5 * atoms[30] + 3 * atoms[41]
    support, weights = _used(_solve(_problem(atoms, target), 3))
    np.testing.assert_array_equal(support, [7, 30, 41])
    np.testing.assert_allclose(weights, [2, 0.5, 3], rtol=1e-4)


def test_no_positive_correlation_gives_no_rows() -> None:
    atoms = np.abs(_atoms(4))
    solution = _solve(_problem(atoms, -atoms.sum(axis=0)))
    assert (solution.weights == 0).all()
    assert solution.converged
    np.testing.assert_allclose(solution.relative_error, 1, rtol=1e-6)


def test_rows_of_zeros_and_a_looser_bound_on_k_change_nothing_up_to_all_rows() -> None:
    atoms = _atoms(5)
    atoms[12:] = 0
    short = _problem(atoms[:12])
    for k in (4, 12):
        tight = solve(short, k, SOLVER, max_k=12)
        loose = _solve(_problem(atoms), k)
        np.testing.assert_array_equal(tight.indices, loose.indices[:12])
        np.testing.assert_allclose(tight.weights, loose.weights[:12], rtol=1e-3)
    assert tight.relative_error < FLOAT32_FLOOR


def test_a_lone_row_is_taken_and_the_limit_on_iterations_holds() -> None:
    lone = CoresetProblem(jnp.full((1, 3), 2.0))
    solution = solve(lone, 1, jc.SubspacePursuit(max_iters=1))
    np.testing.assert_allclose(solution.weights, [1], rtol=1e-6)
    assert solution.num_iters == 1
    assert not solution.converged
    with pytest.raises(ValueError, match="max_iters is 0"):
        jc.SubspacePursuit(max_iters=0)
