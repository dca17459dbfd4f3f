"""Every solver and the problems that all of them are tested on, by name.

What a solver does not claim stands here, in one table, with the reason.
"""

from dataclasses import dataclass

import jax
import numpy as np
import optax
import scipy.optimize

import jaxcoreset as jc
from jaxcoreset.solvers.base import Solver
from jaxcoreset.solvers.solution import Solution
from jaxcoreset.solvers.thresholding.stochastic import SVRGIHT, ProjectedOptax, StochasticAIHT
from tests.problems import correlated_atoms, independent_atoms

NUM_DATA, NUM_DRAWS = 30, 20
KEY = jax.random.key(7)


@dataclass(frozen=True)
class Case:
    """A solver, the sizes that it is tested at, and the claims that it does not make.

    Attributes:
        solver: the solver.
        ks: the sizes; the largest one is the bound on k.
        loose: a looser bound.
        lacks: claims that the solver does not make. "no rows that cannot help": it is empty where
            no atom points towards the target. "first of equals": of equal atoms it takes the first
            one alone. "exact on few": where a few atoms make the target, it finds their weights.
            "no units": the weights do not depend on the units of the atoms. "float32 near float64":
            so is the objective. "sweep of solves": a sweep has the solution that a solve has.
    """

    solver: Solver
    ks: tuple[int, ...] = (1, 3, 8)
    loose: int = 12
    lacks: frozenset[str] = frozenset()


# Hard thresholding keeps the largest entries, those of equal atoms are equal, and it converges
# slowly.
_THRESHOLDING = frozenset({"first of equals", "exact on few"})
# Samples are drawn by the norms of the atoms, or without looking at them.
_SAMPLING = frozenset({"no rows that cannot help", "first of equals", "exact on few"})

SOLVERS = {
    "IHT": Case(jc.IHT(max_iters=40), lacks=_THRESHOLDING),
    "AIHT": Case(jc.AIHT(max_iters=40), lacks=_THRESHOLDING),
    "AIHT2": Case(jc.AIHT2(max_iters=40), lacks=_THRESHOLDING),
    "StochasticAIHT": Case(
        StochasticAIHT(jc.AIHT2(max_iters=60, tol=0.02), batch_size=0.5, patience=1),
        lacks=_THRESHOLDING,
    ),
    "SVRGIHT": Case(SVRGIHT(jc.AIHT(max_iters=10), batch_size=0.2), lacks=_THRESHOLDING),
    # The steps of a user's optimizer have the units of its learning rate; Adam's are of nearly one
    # length, however small an entry of the gradient is, so that rounding decides their sign.
    "ProjectedOptax": Case(
        ProjectedOptax(optax.adam(1.0), max_iters=10, batch_size=0.2),
        lacks=_THRESHOLDING | {"no units", "float32 near float64"},
    ),
    "GIGA": Case(jc.GIGA(), lacks=frozenset({"exact on few"})),
    "FrankWolfe": Case(jc.FrankWolfe(), lacks=frozenset({"exact on few"})),
    # Random numbers of another precision are other numbers.
    "ImportanceSampling": Case(jc.ImportanceSampling(), lacks=_SAMPLING | {"float32 near float64"}),
    "UniformSampling": Case(jc.UniformSampling(), lacks=_SAMPLING),
    "MatchingPursuit": Case(jc.MatchingPursuit()),
    "SubspacePursuit": Case(jc.SubspacePursuit()),
    # It starts from all rows, and leaves out what the null space of their equations says.
    "Recombination": Case(jc.Recombination(), lacks=frozenset({"first of equals"})),
    # A sweep comes down from more rows than a solve, and is as good or better.
    "ExchangePursuit": Case(jc.ExchangePursuit(), lacks=frozenset({"sweep of solves"})),
    "ExchangePursuit, in blocks": Case(
        jc.ExchangePursuit(max_single=2), ks=(3, 8), lacks=frozenset({"sweep of solves"})
    ),
    # With a looser bound it counts more supports.
    "ExhaustiveSearch": Case(jc.ExhaustiveSearch(), ks=(1, 2, 3), loose=3),
}


def _atoms_at(rows: slice, seed: int) -> np.ndarray:
    """Atoms that are zero in all other rows."""
    atoms = np.zeros((NUM_DATA, NUM_DRAWS))
    atoms[rows] = correlated_atoms(NUM_DATA, NUM_DRAWS, seed)[rows]
    return atoms


def _problems() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Atoms and target by name, all of one shape."""
    correlated = correlated_atoms(NUM_DATA, NUM_DRAWS)
    independent = independent_atoms(NUM_DATA, NUM_DRAWS)
    positive = np.abs(correlated)
    atoms = {
        "correlated": correlated,
        "independent": independent,
        "zeros": _atoms_at(np.s_[1::2], 1),
        "three useful": _atoms_at(np.s_[:3], 2),
        "one useful": _atoms_at(np.s_[:1], 2),
        "duplicates": correlated[:10].repeat(3, axis=0),
    }
    problems = {name: (array, array.sum(axis=0)) for name, array in atoms.items()}
    problems["own target"] = independent, np.array([2.0, 0.5, 3.0]) @ independent[[4, 11, 20]]
    problems["outside the cone"] = correlated, np.random.default_rng(0).normal(size=NUM_DRAWS)
    problems["opposed"] = positive, -positive.sum(axis=0)
    problems["zero target"] = correlated, np.zeros(NUM_DRAWS)
    # Refused where values can be looked at, and not where they are traced.
    problems["nothing"] = np.zeros_like(correlated), np.zeros(NUM_DRAWS)
    return problems


PROBLEMS = _problems()


def used(solution: Solution) -> tuple[np.ndarray, np.ndarray]:
    """Rows and weights of one solution, without its padding."""
    weights = np.asarray(solution.weights, np.float64)
    return np.asarray(solution.indices)[weights > 0], weights[weights > 0]


def dense(solution: Solution) -> np.ndarray:
    """The weights of one solution for all rows."""
    weights = np.zeros(NUM_DATA)
    np.add.at(weights, np.asarray(solution.indices), np.asarray(solution.weights))
    return weights


def pick(batch: object, *at: int) -> object:
    """One element of a batch of problems or solutions."""
    return jax.tree.map(lambda x: x[at], batch)


def in_float32(atoms: np.ndarray, target: np.ndarray | None = None) -> jc.CoresetProblem:
    """A problem in float32; the target is the sum of the atoms if left out."""
    target = None if target is None else np.asarray(target, np.float32)
    return jc.CoresetProblem(np.asarray(atoms, np.float32), target)


def solve_in_float64(
    atoms: np.ndarray, k: int | np.ndarray, solver: Solver, key: object = None
) -> tuple[Solution, np.ndarray]:
    """The solution for k, or the solutions for several, and their weights on all rows."""
    with jax.enable_x64(True):
        run = jc.solve if np.ndim(k) == 0 else jc.sweep
        solution = run(jc.CoresetProblem(atoms), k, solver, key)
        weights = np.asarray(solution.dense(len(atoms)))
    return jax.tree.map(np.asarray, solution), weights


def path_in_float32(
    atoms: np.ndarray, solver: Solver, target: np.ndarray | None = None
) -> Solution:
    """The solutions for k = 1..80 in float32; one shape, so that a solver compiles once."""
    return jc.sweep(in_float32(atoms, target), np.arange(1, 81), solver, KEY)


def scipy_nnls(atoms: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, float]:
    """SciPy's weights and objective, with atoms scaled to norm one for its tolerances."""
    norms = np.linalg.norm(atoms, axis=1)
    norms = np.where(norms > 0, norms, 1)
    scaled = atoms / norms[:, None]
    weights, error = scipy.optimize.nnls(scaled.T, target, maxiter=10_000)
    return weights / norms, float(error**2)


def assert_best_on_its_support(
    atoms: np.ndarray, solution: Solution, k: int, floor: float = 0.0
) -> None:
    """At most k rows, with an objective that is SciPy's on them or below `floor`, as reported."""
    support, weights = used(solution)
    target = atoms.sum(axis=0)
    objective = np.sum((target - weights @ atoms[support]) ** 2)
    assert len(support) <= k
    assert objective <= max(1.001 * scipy_nnls(atoms[support], target)[1], floor)
    np.testing.assert_allclose(solution.objective, objective, rtol=1e-3, atol=floor)


def true_errors(atoms: np.ndarray, solution: Solution) -> np.ndarray:
    """‖y − Φw‖/‖y‖ in float64, from the weights of a sweep alone."""
    atoms = np.asarray(atoms, np.float64)
    target = atoms.sum(axis=0)
    dense = np.asarray(solution.dense(len(atoms)), np.float64)
    return np.linalg.norm(target - dense @ atoms, axis=-1) / np.linalg.norm(target)
