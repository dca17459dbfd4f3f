"""Non-negative subspace pursuit in plain NumPy, each support solved afresh by SciPy."""

import numpy as np
from scipy.optimize import nnls


def subspace_pursuit(
    atoms: np.ndarray, k: int, target: np.ndarray | None = None, max_iters: int = 100
) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Indices in increasing order, their weights, and the objective after each iteration.

    The last iteration is the one that did not lower the objective; the point before it is kept.
    """
    target = atoms.sum(axis=0) if target is None else target
    norms = np.linalg.norm(atoms, axis=1)
    usable = norms > 0
    units = atoms / np.where(usable, norms, 1)[:, None]
    support, weights = np.zeros(0, int), np.zeros(0)
    objective, history = float(target @ target), []
    for _ in range(max_iters):
        scores = units @ (target - weights @ units[support])
        scores[support] = -np.inf
        best = np.argsort(-scores, kind="stable")[:k]
        best = best[(scores[best] > 1e-12 * np.linalg.norm(target)) & usable[best]]
        union = np.sort(np.concatenate([support, best]))
        wide, _ = nnls(units[union].T, target, maxiter=10_000)
        kept = np.argsort(-wide, kind="stable")[:k]
        kept = np.sort(kept[wide[kept] > 0])
        new_support = union[kept]
        narrow, _ = nnls(units[new_support].T, target, maxiter=10_000)
        new_support, narrow = new_support[narrow > 0], narrow[narrow > 0]
        residual = target - narrow @ units[new_support]
        if residual @ residual >= (1 - 1e-12) * objective:
            history.append(objective)
            break
        support, weights, objective = new_support, narrow, float(residual @ residual)
        history.append(objective)
    return support, weights / norms[support], history
