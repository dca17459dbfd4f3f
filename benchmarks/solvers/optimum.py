"""How far from the global optimum on real data: a part of `benchmarks.solvers`.

All pairs and triples of 500 rows are tried in NumPy and float64, which no solver does.
"""

from pathlib import Path
from typing import Any

import numpy as np

import jaxcoreset as jc
from benchmarks import common

_SOLVERS = {
    "default": None,
    "MatchingPursuit": jc.MatchingPursuit(),
    "GIGA": jc.GIGA(),
    "AIHT2": jc.AIHT2(),
}
# Problems of a data set, of which so many have their triples tried as well.
_PROBLEMS, _WITH_TRIPLES = 20, 5
# A determinant below this is rounding: the atoms are as good as the same.
_SINGULAR = 1e-9
_OPTIMAL = 1.001


def optimum(data_dir: Path | None, quick: bool) -> list[dict[str, Any]]:
    """Objectives over that of the best k = 2 and 3 rows, on the papers' small data sets."""
    rows = []
    for name in common.SIX[1:2] if quick else common.SIX:
        loaded = common.load(name, data_dir)
        if loaded is None:
            continue
        ratios: dict[tuple[int, str], list[float]] = {}
        for trial, problem in enumerate(common.each_trial(*loaded, 500, 1 if quick else _PROBLEMS)):
            best = {2: _best_pair(problem)}
            if trial < _WITH_TRIPLES and not quick:
                best[3] = min(best[2], _best_triple(problem))
            for method, solver in _SOLVERS.items():
                found = jc.sweep(problem, np.array(list(best)), solver)
                errors = np.asarray(found.relative_error, np.float64) ** 2
                for k, objective in zip(best, errors, strict=True):
                    ratios.setdefault((k, method), []).append(objective / best[k])
        for (k, method), found in sorted(ratios.items()):
            rows.append(
                {
                    "data": name,
                    "k": k,
                    "solver": method,
                    "problems": len(found),
                    "geometric mean": float(np.exp(np.mean(np.log(found)))),
                    "worst": float(np.max(found)),
                    "optimal": float(np.mean(np.array(found) < _OPTIMAL)),
                }
            )
        print(f"  {name}", flush=True)
    columns = ["data", "k", "solver", "problems", "geometric mean", "worst", "optimal"]
    print("\n" + common.table(rows, columns))
    print(f"\nobjective over the least of any k rows; optimal: the share of those below {_OPTIMAL}")
    return rows


def _in_float64(problem: jc.CoresetProblem) -> tuple[np.ndarray, np.ndarray, float]:
    """Gram matrix of unit atoms, their correlations with the target, and its squared norm."""
    atoms = np.asarray(problem.atoms, np.float64)
    atoms = atoms / np.linalg.norm(atoms, axis=1, keepdims=True)
    target = np.asarray(problem.target, np.float64)
    return atoms @ atoms.T, atoms @ target, float(target @ target)


def _best_pair(problem: jc.CoresetProblem) -> float:
    """The least objective of at most two rows with non-negative weights, over that of none."""
    gram, correlations, norm = _in_float64(problem)
    gain = _gains_of_pairs(gram, np.ones(len(gram)), correlations)[0]
    return float(1 - max(gain.max(), np.max(np.maximum(correlations, 0) ** 2)) / norm)


def _best_triple(problem: jc.CoresetProblem) -> float:
    """The same of three rows whose weights are all positive."""
    gram, correlations, norm = _in_float64(problem)
    best = 0.0
    for first in range(len(gram) - 2):
        # The others less what they have of the first, in whose span the rest is a pair.
        others = np.arange(first + 1, len(gram))
        along = gram[first, others]
        inner = gram[np.ix_(others, others)] - np.outer(along, along)
        rest = correlations[others] - along * correlations[first]
        gain, weights = _gains_of_pairs(inner, 1 - along**2, rest)
        own = correlations[first] - along[:, None] * weights - along * weights.T
        gain = np.where((own > 0) & (gain > 0), gain + correlations[first] ** 2, 0)
        best = max(best, float(gain.max()))
    return 1 - best / norm


def _gains_of_pairs(
    gram: np.ndarray, squares: np.ndarray, correlations: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """What each pair takes off the objective, 0 unless both weights are positive; first weights."""
    determinants = np.outer(squares, squares) - gram**2
    np.fill_diagonal(determinants, 0)
    determinants = np.where(determinants > _SINGULAR, determinants, np.inf)
    weights = (correlations[:, None] * squares - gram * correlations) / determinants
    gains = weights * correlations[:, None] + weights.T * correlations
    return np.where((weights > 0) & (weights.T > 0), gains, 0), weights
