"""Algorithms 1 to 3 of Zhang et al. (2019) in plain NumPy, float64, from the paper's pseudocode.

A distribution is a table of shape (m,)·n. Nothing here is fast: X_S is found by looking at all
points of the lattice, and an objective is minimised over P_S by a general method where there is no
formula.
"""

import itertools

import numpy as np
import scipy.optimize


def restricted_points(lattice, coordinates):
    """X_S as a mask over the lattice: x_i = 0 for every i outside S."""
    digits = np.indices(lattice)
    outside = [i for i in range(len(lattice)) if i not in coordinates]
    return (digits[outside] == 0).all(axis=0)


def project_simplex(vector):
    """The nearest vector with non-negative entries that sum to one, by sorting."""
    falling = np.sort(vector)[::-1]
    sums = np.cumsum(falling)
    size = np.nonzero(falling * np.arange(1, len(vector) + 1) > sums - 1)[0][-1] + 1
    return np.maximum(vector - (sums[size - 1] - 1) / size, 0)


class SquaredDistance:
    """‖q − p‖²."""

    def __init__(self, target):
        self.target = target

    def value(self, table):
        return ((table - self.target) ** 2).sum()

    def minimise(self, mask):
        table = np.zeros_like(self.target)
        table[mask] = project_simplex(self.target[mask])
        return table


class KLDivergence:
    """KL(q‖p), its gradient taken at max(q, floor)."""

    def __init__(self, target, floor, size):
        self.target, self.floor, self.smoothness = target, floor, size

    def value(self, table):
        on = table > 0
        return (table[on] * np.log(table[on] / self.target[on])).sum()

    def gradient(self, table):
        return np.log(np.maximum(table, self.floor) / self.target) + 1

    def minimise(self, mask):
        table = np.where(mask, self.target, 0)
        return table / table.sum()


class ExpectationDistance:
    """‖Aq − Ap‖², with A of shape (r, m, …, m)."""

    def __init__(self, features, target):
        self.features = features
        self.wanted = self.expectations(target)
        flat = features.reshape(len(features), -1)
        self.smoothness = 2 * np.linalg.norm(flat, 2) ** 2

    def expectations(self, table):
        return self.features.reshape(len(self.features), -1) @ table.ravel()

    def value(self, table):
        return ((self.expectations(table) - self.wanted) ** 2).sum()

    def gradient(self, table):
        return 2 * np.tensordot(self.expectations(table) - self.wanted, self.features, axes=1)

    def minimise(self, mask):
        columns = self.features[:, mask]
        # A sum of one is an equation of great weight.
        weight = 1e4 * np.linalg.norm(columns)
        equations = np.vstack([columns, np.full(columns.shape[1], weight)])
        table = np.zeros(self.features.shape[1:])
        table[mask] = scipy.optimize.nnls(equations, np.append(self.wanted, weight))[0]
        return table / table.sum()


def greedy(objective, lattice, k, tie=1e-9):
    """Algorithm 3; the lowest index among scores that are equal but for `tie`. Table and S."""
    chosen = []
    for _ in range(k):
        rest = [i for i in range(len(lattice)) if i not in chosen]
        values = [
            objective.value(objective.minimise(restricted_points(lattice, [*chosen, i])))
            for i in rest
        ]
        least = min(values)
        chosen.append(next(i for i, v in zip(rest, values, strict=True) if v <= least + tie))
    return objective.minimise(restricted_points(lattice, chosen)), chosen


def sparse_projection(table, k):
    """Algorithm 2: Algorithm 3 for the squared distance to any table."""
    return greedy(SquaredDistance(table), table.shape, k)


def hard_thresholding(objective, start, k, *, step_fraction, stuck_tol, num_iters):
    """Algorithm 1 with the step-size rule of section 4: iterates, supports and step sizes."""
    first = step_fraction / objective.smoothness
    table, step = start, first
    tables, supports, steps = [], [], []
    for _ in range(num_iters):
        new, support = sparse_projection(table - step * objective.gradient(table), k)
        steps.append(step)
        stuck = np.linalg.norm(new - table) <= stuck_tol * np.linalg.norm(table)
        step = 2 * step if stuck else first
        table = new
        tables.append(new)
        supports.append(support)
    return tables, supports, steps


def exhaustive(target, k, divergence):
    """The least ‖q − p‖² or KL(q‖p) over all supports of size k, by enumeration."""
    n, m = target.ndim, target.shape[0]
    strides = m ** np.arange(n)[::-1]
    supports = np.array(list(itertools.combinations(range(n), k)))
    digits = np.array(list(itertools.product(range(m), repeat=k)))
    wanted = target.ravel()[strides[supports] @ digits.T]
    if divergence == "kl":
        return -np.log(wanted.sum(axis=1).max())
    values = np.apply_along_axis(project_simplex, 1, wanted)
    return ((values - wanted) ** 2 - wanted**2).sum(axis=1).min() + (target**2).sum()
