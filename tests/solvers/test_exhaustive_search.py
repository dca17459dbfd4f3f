"""Claims about `ExhaustiveSearch`, held against SciPy's NNLS on every support."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from jaxcoreset.solvers.exhaustive_search import ExhaustiveSearch
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solve import solve, sweep

N, NUM_DRAWS, MAX_K = 9, 12, 3


def _problems() -> np.ndarray:
    rng = np.random.default_rng(0)
    atoms = rng.normal(size=(4, N, NUM_DRAWS)) * rng.exponential(size=(4, N, 1))
    atoms[1] += rng.normal(size=NUM_DRAWS)
    atoms[2, 5:] = atoms[2, :4]
    atoms[3, 0] = 0
    return atoms


def _best(atoms: np.ndarray, k: int) -> float:
    target = atoms.sum(axis=0)
    return min(
        scipy.optimize.nnls(atoms[list(some)].T, target)[1] ** 2
        for some in itertools.combinations(range(len(atoms)), k)
    )


def test_objective_is_the_smallest_over_all_supports() -> None:
    atoms = _problems()
    problems = jax.vmap(CoresetProblem)(jnp.asarray(atoms, jnp.float32))
    path = jax.vmap(lambda p: sweep(p, np.arange(1, MAX_K + 1), ExhaustiveSearch()))(problems)
    expected = [[_best(a, k) for k in range(1, MAX_K + 1)] for a in atoms]
    np.testing.assert_allclose(path.objective, expected, rtol=1e-4)
    assert np.all(np.asarray(path.size) <= np.arange(1, MAX_K + 1))


def test_small_problems_are_searched_by_default_and_others_are_not() -> None:
    atoms = jnp.asarray(np.random.default_rng(0).normal(size=(25, NUM_DRAWS)))
    assert solve(CoresetProblem(atoms[:N]), MAX_K).solver == "ExhaustiveSearch"
    assert solve(CoresetProblem(atoms), 12).solver == "ExchangePursuit"


def test_too_many_supports_are_refused() -> None:
    problem = CoresetProblem(jnp.ones((100, 2)))
    with pytest.raises(ValueError, match=r"more than 68,405 supports.*100 rows"):
        solve(problem, 5, ExhaustiveSearch())


@pytest.mark.parametrize("k", [1, 2])
def test_rows_that_are_nearly_the_same_are_told_apart(k: int) -> None:
    rng = np.random.default_rng(k)
    common = rng.normal(size=30)
    atoms = (1 + rng.random((60, 1))) * common + 1e-3 * rng.normal(size=(60, 30))
    solution = solve(CoresetProblem(jnp.asarray(atoms, jnp.float32)), k, ExhaustiveSearch())
    atoms = atoms.astype(np.float32).astype(np.float64)
    residual = atoms.sum(axis=0) - np.asarray(solution.dense(60), np.float64) @ atoms
    assert residual @ residual < 1.02 * _best(atoms, k)


@pytest.mark.parametrize("spread", ["of columns", "of rows"])
def test_the_best_support_is_found_where_normal_equations_tie(spread: str) -> None:
    rng = np.random.default_rng(5)
    atoms = rng.normal(size=(30, N, NUM_DRAWS))
    ends = (30, 1, NUM_DRAWS) if spread == "of columns" else (30, N, 1)
    atoms = (atoms * 10.0 ** rng.uniform(-6, 6, size=ends)).astype(np.float32)
    problems = jax.vmap(CoresetProblem)(jnp.asarray(atoms))
    path = jax.vmap(lambda p: sweep(p, np.arange(1, MAX_K + 1), ExhaustiveSearch()))(problems)
    atoms = atoms.astype(np.float64)
    for i, own in enumerate(atoms):
        dense = np.asarray(path.dense(N)[i], np.float64)
        errors = np.linalg.norm(own.sum(axis=0) - dense @ own, axis=1)
        best = np.sqrt([_best(own, k) for k in range(1, MAX_K + 1)])
        np.testing.assert_array_less(errors, 1.001 * best + 2e-6 * np.linalg.norm(own.sum(axis=0)))
