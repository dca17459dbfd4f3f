"""Non-negative orthogonal matching pursuit in plain NumPy, each support solved afresh by SciPy."""

import numpy as np
from scipy.optimize import nnls


def matching_pursuit(atoms: np.ndarray, k: int) -> list[tuple[np.ndarray, np.ndarray, float]]:
    """The solution for every size up to k, as (indices in increasing order, weights, objective).

    An atom whose weight is driven to zero leaves the support. The solution for a size is the last
    before more rows than that were used for the first time; where the pursuit stops early, the list
    is shorter than k.
    """
    target = atoms.sum(axis=0)
    norms = np.linalg.norm(atoms, axis=1)
    scale = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
    eps = np.finfo(np.float64).eps
    path: list[tuple[np.ndarray, np.ndarray, float]] = []
    support = np.zeros(0, int)
    residual = target
    for _ in range(5 * k + 50):
        scores = scale * (atoms @ residual)
        scores[support] = -np.inf
        scores[norms == 0] = -np.inf
        # Equal but for the rounding of a sum: the lower index.
        slack = 8 * eps * np.linalg.norm(residual)
        chosen = int(np.argmax(scores >= scores.max() - slack))
        if scores[chosen] <= 1e-12 * np.linalg.norm(target):
            break
        support = np.append(support, chosen)
        weights, _ = nnls((atoms[support] * scale[support, None]).T, target, maxiter=10_000)
        support, weights = support[weights > 0], weights[weights > 0]
        residual = target - weights @ (atoms[support] * scale[support, None])
        if len(support) > k:
            break
        order = np.argsort(support)
        solution = (support[order], (weights * scale[support])[order], float(residual @ residual))
        if len(support) > len(path):
            path.append(solution)
        else:
            path[-1] = solution
    return path
