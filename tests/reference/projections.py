"""Euclidean projections onto the constraint sets by exhaustive search, in plain NumPy and float64.

For every support that a set allows the nearest point with that support is known in closed form; the
nearest of them all is the projection. Written from the definitions of the sets alone.
"""

import itertools

import numpy as np


def allows_groups(support, k, groups, max_groups):
    """At most k rows of at most `max_groups` groups."""
    return len(support) <= k and len(set(groups[list(support)])) <= max_groups


def allows_strata(support, k, groups, k_per_group, reserved):
    """At most k rows, at most so many of each group, and no row in a slot held for another group.

    Where the slots held are more than k, only rows that fill one are allowed.
    """
    sizes = np.bincount(groups)
    counts = np.bincount(groups[list(support)], minlength=sizes.size)
    held = np.minimum(reserved, sizes)
    if len(support) > k or (counts > k_per_group).any():
        return False
    if held.sum() > k:
        return bool((counts <= held).all())
    return bool(np.maximum(counts, held).sum() <= k)


def nearest_on_orthant(vector, support):
    """The nearest w ≥ 0 that is zero outside `support`."""
    nearest = np.zeros_like(vector)
    rows = list(support)
    nearest[rows] = np.maximum(vector[rows], 0)
    return nearest


def nearest_on_simplex(vector, support, total):
    """The nearest w ≥ 0 with sum `total` that is zero outside `support`; None if there is none.

    Tries every set of entries that are positive at the optimum: there the multiplier of the sum is
    one number, and the others' gradient must not point inwards (Karush, Kuhn and Tucker).
    """
    best = None
    for size in range(1, len(support) + 1):
        for positive in itertools.combinations(support, size):
            rows = list(positive)
            point = np.zeros_like(vector)
            point[rows] = vector[rows] - (vector[rows].sum() - total) / size
            if point.min() >= 0 and (best is None or _closer(vector, point, best)):
                best = point
    return best


def project(vector, allows, nearest):
    """The nearest point over all supports that ``allows(support)``."""
    best = None
    for size in range(vector.size + 1):
        for support in itertools.combinations(range(vector.size), size):
            if allows(support):
                point = nearest(vector, support)
                if point is not None and (best is None or _closer(vector, point, best)):
                    best = point
    return best


def _closer(vector, point, other):
    return np.sum((vector - point) ** 2) < np.sum((vector - other) ** 2)
