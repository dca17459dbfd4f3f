"""Algorithms 1 to 3 of Zhang et al. (2021) in plain NumPy, line by line, float64, dense vectors.

Written from the paper's pseudocode alone; the device solvers are held to it iterate by iterate.
`phi` is the papers' Φ of shape (S, n), one column per datum.
"""

import numpy as np


def project(vector, k):
    """Π onto C_k and the non-negative orthant: the k largest entries, where positive."""
    order = np.argsort(-vector, kind="stable")[:k]
    out = np.zeros_like(vector)
    out[order] = np.maximum(vector[order], 0)
    return out


def expanded_support(gradient, z, k, projection):
    """supp(Π_{C_k \\ Z}(∇f)) ∪ Z with Z = supp(z): lines 3 and 4."""
    support = z != 0
    return support | (projection(np.where(support, 0, np.abs(gradient)), k) > 0)


def line_search(phi, gradient):
    """argmin_μ f(w − μ∇) in closed form: ‖∇‖² / (2‖Φ∇‖²)."""
    curvature = 2 * np.sum((phi @ gradient) ** 2)
    return np.sum(gradient**2) / curvature if curvature > 0 else 0.0


def hard_thresholding(
    phi,
    y,
    k,
    *,
    algorithm,
    step_fraction=1.0,
    momentum_fraction=1.0,
    tol=1e-5,
    max_iters=300,
    projection=project,
):
    """The iterates w_1, w_2, … of "IHT", "AIHT" or "AIHT2".

    `projection(vector, k)` is that onto the constraint set, in place of Π onto C_k.
    """
    n = phi.shape[1]
    w, z = np.zeros(n), np.zeros(n)
    iterates = []
    for _ in range(max_iters):
        gradient = -2 * phi.T @ (y - phi @ z)
        restricted = np.where(expanded_support(gradient, z, k, projection), gradient, 0)
        mu = step_fraction * line_search(phi, restricted)
        new = projection(z - mu * gradient, k)
        if algorithm == "AIHT2":
            gradient = -2 * phi.T @ (y - phi @ new)
            restricted = np.where(new != 0, gradient, 0)
            mu = step_fraction * line_search(phi, restricted)
            new = np.maximum(new - mu * restricted, 0)
        tau = 0.0
        if algorithm != "IHT":
            change = phi @ (new - w)
            curvature = change @ change
            if curvature > 0:
                tau = momentum_fraction * ((y - phi @ new) @ change) / curvature
        iterates.append(new)
        stop = np.linalg.norm(new - w) <= tol * np.linalg.norm(new)
        z = new + tau * (new - w)
        w = new
        if stop:
            break
    return iterates


def objective(phi, y, w):
    """‖y − Φw‖²."""
    residual = y - phi @ w
    return residual @ residual
