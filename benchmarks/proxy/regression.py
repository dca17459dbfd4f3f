"""What the expansion leaves, regressed on the quadratic features: a trial outside of the library.

The expansion at the mode is not the quadratic that is nearest to the log-likelihood under π̂. With
whitened draws u, the Hermite polynomials u_i, u_i u_j and (u_i² − 1)/√2 are orthonormal under the
Laplace approximation, and a ridge regression on them, which shrinks towards the expansion, makes it
nearer. Rows and regression are fitted together: for weights w the best coefficients leave

    ‖M^½ (y − Φ w)‖²  with  M = I − Z (ZᵀZ + λ I)⁻¹ Zᵀ,

so that the solver is given M^½ Φ and M^½ y.
"""

import time
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from benchmarks.proxy.data import Case
from benchmarks.proxy.sweep import CHOOSING, Sweep
from jaxcoreset.likelihood.expansion import flat_draws
from jaxcoreset.selection.parts import Use
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solve import default_solver, sweep

_BOTH = "proxy and rows"
# As fractions of the squared norm of a feature.
RIDGES = (0.003, 0.03, 0.3, 3.0)


def hermite(u: np.ndarray) -> np.ndarray:
    """The features at whitened points, shape (s, D(D + 3)/2)."""
    first, second = np.triu_indices(u.shape[1], 1)
    return np.hstack([u, u[:, first] * u[:, second], (u**2 - 1) / np.sqrt(2)])


def curvature(coefficients: np.ndarray, size: int) -> np.ndarray:
    """The Hessian, in whitened coordinates, of a combination of features."""
    first, second = np.triu_indices(size, 1)
    products = coefficients[size : size + first.size]
    hessian = np.diag(np.sqrt(2) * coefficients[size + first.size :])
    hessian[first, second] = hessian[second, first] = products
    return hessian


@dataclass
class _Problem:
    """Atoms (n, S), target (S,) and features (S, p) under the draws of one use, in float64."""

    atoms: np.ndarray
    target: np.ndarray
    features: np.ndarray


def _problem(one: Sweep, use: Use) -> _Problem:
    expansion = one.expansion
    factor = np.linalg.cholesky(expansion.precision)
    problem = one.pool.problem(use, _BOTH)
    parts = [part for part in one.pool.parts(use) if part.size > 1]
    found = []
    for part in parts:
        features = hermite((flat_draws(part.draws) - expansion.center) @ factor)
        found.append(features - features.mean(axis=0))
    scale = 1 / np.sqrt(sum(part.size for part in parts))
    atoms, target = (np.asarray(x, np.float64) for x in (problem.atoms, problem.target))
    return _Problem(atoms, target, scale * np.concatenate(found))


def regression(case: Case, ks: list[int], num_judging: int, num_draws: int) -> list[dict[str, Any]]:
    """Errors with the expansion as it is and with the regression, by the number of rows.

    The ridge is chosen on draws that neither solve nor judge.

    Args:
        case: a model and its data.
        ks: sizes; 0 is no rows.
        num_judging: the number of draws on which errors are measured.
        num_draws: the number of the solver's draws, raised to what the features need.
    """
    one = Sweep(case, max(ks), num_judging, num_draws=num_draws)
    num_features = one.num_params * (one.num_params + 3) // 2
    if one.pool.count("solver") < 2 * num_features:
        one.pool.ensure_draws(solver=2 * num_features + 1)
    plain = one.path(_BOTH)
    begin = time.perf_counter()
    solver, choosing, judging = (
        _problem(one, use) for use in ("solver", "selection", "confirmation")
    )
    left, values, right = np.linalg.svd(solver.features, full_matrices=False)
    fits = []
    for ridge in RIDGES:
        shrink = 1 - np.sqrt(ridge / (values**2 + ridge))
        atoms = solver.atoms - (solver.atoms @ left * shrink) @ left.T
        target = solver.target - left @ (shrink * (left.T @ solver.target))
        problem = CoresetProblem(jnp.asarray(atoms, jnp.float32), jnp.asarray(target, jnp.float32))
        path = sweep(problem, np.arange(1, one.size + 1), default_solver(len(atoms), one.size))
        fits.append((np.asarray(path.indices), np.asarray(path.weights, np.float64)))
    spent = time.perf_counter() - begin

    def rest(problem: _Problem, path: Any, k: int) -> np.ndarray:
        if k == 0:
            return problem.target
        return problem.target - path[1][k - 1] @ problem.atoms[path[0][k - 1]]

    rows = []
    taylor = np.asarray(plain.indices), np.asarray(plain.weights, np.float64)
    for k in ks:
        tried = []
        for ridge, path in zip(RIDGES, fits, strict=True):
            left_over = rest(solver, path, k)
            coefficients = right.T @ (values / (values**2 + ridge) * (left.T @ left_over))
            errors = [
                float(np.sum((rest(problem, path, k) - problem.features @ coefficients) ** 2))
                for problem in (choosing, judging)
            ]
            definite = 1 - np.linalg.eigvalsh(curvature(coefficients, one.num_params)).max()
            tried.append((errors[0], errors[1], ridge, float(definite)))
        best = min(tried)
        before = float(np.sum(rest(judging, taylor, k) ** 2))
        before_chosen = float(np.sum(rest(choosing, taylor, k) ** 2))
        rows.append(
            {
                "data": case.name,
                "D": one.num_params,
                "features": num_features,
                "draws": one.pool.count("solver"),
                "k": k,
                "expansion": before,
                "regression": best[1],
                "expansion / regression": before / best[1],
                "chosen": "regression" if best[0] < before_chosen else "expansion",
                "ridge": best[2],
                "least eigenvalue": best[3],
                "seconds": spent,
                "choosing draws": CHOOSING,
            }
        )
        print("  ", rows[-1], flush=True)
    return rows
