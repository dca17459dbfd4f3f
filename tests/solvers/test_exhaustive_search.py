"""Claims about `ExhaustiveSearch`, held against SciPy's NNLS on every support."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from jaxcoreset.solvers.exchange.pursuit import ExchangePursuit
from jaxcoreset.solvers.exhaustive_search import ExhaustiveSearch
from jaxcoreset.solvers.matching_pursuit import MatchingPursuit
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solution import Solution
from jaxcoreset.solvers.solve import default_solver, solve, sweep

# One shape for nearly all problems, and so one compiled program.
NUM_PROBLEMS, N, NUM_DRAWS = 30, 9, 12
KS = np.arange(1, 4)


def _paths(atoms: np.ndarray) -> Solution:
    problems = jax.vmap(CoresetProblem)(jnp.asarray(atoms, jnp.float32))
    return jax.vmap(lambda p: sweep(p, KS, ExhaustiveSearch()))(problems)


def _best(atoms: np.ndarray, k: int) -> float:
    target = atoms.sum(axis=0)
    return min(
        scipy.optimize.nnls(atoms[list(some)].T, target)[1] ** 2
        for some in itertools.combinations(range(len(atoms)), k)
    )


def test_objective_is_the_smallest_over_all_supports() -> None:
    rng = np.random.default_rng(0)
    atoms = rng.normal(size=(NUM_PROBLEMS, N, NUM_DRAWS))
    atoms *= rng.exponential(size=(NUM_PROBLEMS, N, 1))
    atoms[1::4] += rng.normal(size=NUM_DRAWS)
    atoms[2::4, 5:] = atoms[2::4, :4]
    atoms[3::4, 0] = 0
    path = _paths(atoms)
    np.testing.assert_allclose(path.objective, [[_best(a, k) for k in KS] for a in atoms], 1e-4)
    assert np.all(np.asarray(path.size) <= KS)


@pytest.mark.parametrize("spread", ["of columns", "of rows"])
def test_the_best_support_is_found_where_normal_equations_tie(spread: str) -> None:
    rng = np.random.default_rng(5)
    atoms = rng.normal(size=(NUM_PROBLEMS, N, NUM_DRAWS))
    ends = (NUM_PROBLEMS, 1, NUM_DRAWS) if spread == "of columns" else (NUM_PROBLEMS, N, 1)
    atoms = (atoms * 10.0 ** rng.uniform(-6, 6, size=ends)).astype(np.float32)
    found = np.asarray(_paths(atoms).dense(N), np.float64)
    for dense, own in zip(found, atoms.astype(np.float64), strict=True):
        target = own.sum(axis=0)
        best = np.sqrt([_best(own, k) for k in KS])
        errors = np.linalg.norm(target - dense @ own, axis=1)
        np.testing.assert_array_less(errors, 1.001 * best + 2e-6 * np.linalg.norm(target))


def test_rows_that_are_nearly_the_same_are_told_apart() -> None:
    rng = np.random.default_rng(1)
    common = rng.normal(size=30)
    atoms = (1 + rng.random((60, 1))) * common + 1e-3 * rng.normal(size=(60, 30))
    atoms = atoms.astype(np.float32)
    found = sweep(CoresetProblem(atoms), np.array([1, 2]), ExhaustiveSearch()).dense(60)
    atoms = atoms.astype(np.float64)
    for k, weights in zip((1, 2), np.asarray(found, np.float64), strict=True):
        residual = atoms.sum(axis=0) - weights @ atoms
        assert residual @ residual < 1.02 * _best(atoms, k)


def test_it_is_the_default_for_few_supports_and_refuses_too_many() -> None:
    assert isinstance(default_solver(25, 5), ExhaustiveSearch)
    assert isinstance(default_solver(25, 6), ExchangePursuit)
    assert isinstance(default_solver(10_000, 2001), MatchingPursuit)
    assert solve(CoresetProblem(np.eye(3)), 2).solver == "ExhaustiveSearch"
    problem = CoresetProblem(jnp.ones((100, 2)))
    with pytest.raises(ValueError, match=r"more than 68,405 supports.*100 rows"):
        solve(problem, 5, ExhaustiveSearch())
