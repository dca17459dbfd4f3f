"""Claims about `SubspacePursuit`, held against a NumPy reference with SciPy's NNLS."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import jaxcoreset as jc
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solve import solve, sweep
from tests.datasets import NAMES, atoms_of
from tests.problems import correlated_atoms, independent_atoms
from tests.reference.subspace_pursuit import subspace_pursuit
from tests.solvers.helpers import used

# Compilation is what these tests cost: one shape and one bound on k for nearly all of them.
N, NUM_DRAWS, MAX_K = 60, 40, 20
SOLVER = jc.SubspacePursuit()


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
        support, found = used(solution)
        np.testing.assert_array_equal(support, indices)
        np.testing.assert_allclose(found, weights, rtol=1e-7)
        assert solution.converged


@pytest.mark.parametrize("name", NAMES[::2])
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


def test_a_lone_row_is_taken_and_the_limit_on_iterations_holds() -> None:
    lone = CoresetProblem(jnp.full((1, 3), 2.0))
    solution = solve(lone, 1, jc.SubspacePursuit(max_iters=1))
    np.testing.assert_allclose(solution.weights, [1], rtol=1e-6)
    assert solution.num_iters == 1
    assert not solution.converged
    with pytest.raises(ValueError, match="max_iters is 0"):
        jc.SubspacePursuit(max_iters=0)


def _hard_problems() -> tuple[np.ndarray, np.ndarray]:
    """Few rows, so that supports double beyond them; some unequal, some doubled, some positive."""
    rng = np.random.default_rng(0)
    atoms = rng.normal(size=(200, 8, 6))
    atoms[1::5] = np.abs(atoms[1::5]) + 0.2
    atoms[2::5, 4:] = atoms[2::5, :4]
    atoms[3::5] *= 10.0 ** rng.uniform(-3, 3, size=(40, 8, 1))
    weights = np.where(np.arange(200)[:, None] % 2, 1, rng.exponential(size=(200, 8)))
    targets = np.einsum("bn,bns->bs", weights, atoms)
    targets[::7] = rng.normal(size=targets[::7].shape)
    return atoms, targets


def test_a_path_lists_no_row_twice_is_monotone_and_ends_at_the_optimum() -> None:
    atoms, targets = _hard_problems()
    problems = jax.vmap(CoresetProblem)(*(jnp.asarray(x, np.float32) for x in (atoms, targets)))
    paths = jax.vmap(lambda p: sweep(p, np.arange(8, 0, -1), SOLVER))(problems)
    paths = jax.tree.map(np.asarray, paths)
    assert (np.diff(paths.objective, axis=1) >= 0).all()
    for own, target, indices, weights, errors in zip(
        atoms, targets, paths.indices, paths.weights, paths.relative_error, strict=True
    ):
        for rows, w in zip(indices, weights, strict=True):
            assert len(set(rows[w > 0])) == np.sum(w > 0)
        best = scipy.optimize.nnls(own.T, target)[1] / np.linalg.norm(target)
        assert errors[0] <= 1.001 * best + 2e-5
