"""Claims about `MatchingPursuit`, held against SciPy's NNLS and a NumPy reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcoreset.solvers.matching_pursuit import MatchingPursuit
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solve import solve, sweep
from tests.datasets import NAMES, atoms_of
from tests.problems import low_rank_atoms
from tests.reference.matching_pursuit import matching_pursuit
from tests.solvers.helpers import assert_best_on_its_support, in_float32, pick, scipy_nnls, used

# Relative errors below this are rounding in float32.
FLOAT32_FLOOR = 3e-5
KS = np.array([20, 50, 100])


@pytest.mark.parametrize("name", NAMES)
def test_float64_weights_are_scipys_on_the_support(name: str) -> None:
    atoms = atoms_of(name)
    with jax.enable_x64(True):
        solutions = sweep(CoresetProblem(jnp.asarray(atoms)), KS, MatchingPursuit())
        for i in range(len(KS)):
            solution = pick(solutions, i)
            support, weights = used(solution)
            expected, objective = scipy_nnls(atoms[support], atoms.sum(axis=0))
            np.testing.assert_allclose(solution.objective, objective, rtol=1e-5, atol=1e-20)
            # Where the error is 1e-9, so is the weight of what tells one atom from the others.
            if solution.relative_error > 1e-9:
                assert np.max(np.abs(weights - expected)) <= 1e-6 * np.max(expected)


@pytest.mark.slow  # at the floor of float32, with the compiler at its best
@pytest.mark.parametrize("name", NAMES)
def test_float32_objective_is_scipys_on_the_support_and_as_good_as_the_reference(name: str) -> None:
    single = in_float32(atoms_of(name))
    solutions = sweep(single, KS, MatchingPursuit())
    rounded = np.asarray(single.atoms, np.float64)
    floor = (FLOAT32_FLOOR * np.linalg.norm(rounded.sum(axis=0))) ** 2
    for i, k in enumerate(KS):
        assert_best_on_its_support(rounded, pick(solutions, i), k, floor)
    if name in ("phishing_500", "biketrips_500"):
        path = matching_pursuit(atoms_of(name), int(KS[-1]))
        for k, error in zip(KS, solutions.relative_error, strict=True):
            reference = path[min(k, len(path)) - 1][2] ** 0.5 / np.sqrt(floor) * FLOAT32_FLOOR
            # Rounding may break a near tie either way; that costs far less than a tenth here.
            assert error <= max(1.1 * reference, FLOAT32_FLOOR)


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


def test_more_rows_than_draws_fit_the_target_and_one_along_an_atom_takes_that_alone() -> None:
    # Ten draws; the others see nothing.
    atoms = np.pad(low_rank_atoms(s=10, seed=5), ((0, 0), (0, 30)))
    solution = solve(in_float32(atoms), 30, MatchingPursuit())
    assert solution.relative_error < FLOAT32_FLOOR
    assert solution.size <= 12
    assert solution.converged
    atoms = low_rank_atoms(seed=6)
    solution = solve(in_float32(atoms, 2.5 * atoms[7]), 30, MatchingPursuit())
    support, weights = used(solution)
    assert support.tolist() == [7]
    np.testing.assert_allclose(weights, [2.5], rtol=1e-6)
    assert solution.converged
