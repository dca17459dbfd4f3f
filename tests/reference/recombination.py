"""Carathéodory recombination in plain NumPy, one point at a time by null vectors of an SVD."""

import numpy as np


def eliminate(equations: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Non-negative weights with the same ``weights @ equations``, one for each column at most.

    Args:
        equations: shape (n, k), a row for each point.
        weights: shape (n,), not negative.
    """
    weights = weights.copy()
    k = equations.shape[1]
    active: list[int] = []
    for point in np.flatnonzero(weights > 0):
        active.append(int(point))
        if len(active) <= k:
            continue
        null = np.linalg.svd(equations[active].T)[2][-1]
        null = null if (null > 0).any() else -null
        ratios = np.where(null > 0, weights[active] / np.where(null > 0, null, 1), np.inf)
        out = int(np.argmin(ratios))
        weights[active] = np.maximum(weights[active] - ratios[out] * null, 0)
        weights[active[out]] = 0
        del active[out]
    return weights
