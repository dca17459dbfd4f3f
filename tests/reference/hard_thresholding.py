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


def line_search(phi, gradient, residual=None):
    """argmin_μ f(w − μ∇) in closed form: ‖∇‖² / (2‖Φ∇‖²).

    With the residual r = y − Φw, `gradient` may be any direction d: max(−⟨r, Φd⟩, 0) / ‖Φd‖².
    """
    image = phi @ gradient
    curvature = image @ image
    slope = np.sum(gradient**2) / 2 if residual is None else max(-residual @ image, 0)
    return slope / curvature if curvature > 0 else 0.0


def step(
    phi,
    y,
    k,
    w,
    z,
    gradient,
    *,
    algorithm,
    step_fraction=1.0,
    momentum_fraction=1.0,
    projection=project,
    is_estimate=False,
    allowed=True,
):
    """One pass of Algorithm 2's loop (3 with the de-bias step): the new weights and the next z.

    `gradient` is that at z, or an estimate of it. `allowed` are the rows that may have a weight.
    """
    restricted = np.where(expanded_support(gradient, z, k, projection), gradient, 0)
    # The true residual, whatever was estimated.
    mu = step_fraction * line_search(phi, restricted, y - phi @ z if is_estimate else None)
    new = projection(np.where(allowed | (z != 0), z - mu * gradient, 0), k)
    if algorithm == "AIHT2":
        restricted = np.where(new != 0, -2 * phi.T @ (y - phi @ new), 0)
        new = np.maximum(new - step_fraction * line_search(phi, restricted) * restricted, 0)
    tau = 0.0
    if algorithm != "IHT":
        change = phi @ (new - w)
        # A batch that brings nothing changes the weights by rounding alone.
        if np.linalg.norm(change) > 1e-12 * np.linalg.norm(phi @ new):
            tau = momentum_fraction * ((y - phi @ new) @ change) / (change @ change)
    return new, new + tau * (new - w)


def hard_thresholding(phi, y, k, *, tol=1e-5, max_iters=300, start=None, **settings):
    """The iterates w_1, w_2, … of "IHT", "AIHT" or "AIHT2", from `start` instead of zero.

    `settings` are those of `step`, for instance a `projection(vector, k)` onto the constraint set,
    in place of Π onto C_k.
    """
    w = z = np.zeros(phi.shape[1]) if start is None else start
    iterates = []
    for _ in range(max_iters):
        new, z = step(phi, y, k, w, z, -2 * phi.T @ (y - phi @ z), **settings)
        iterates.append(new)
        stop = np.linalg.norm(new - w) <= tol * np.linalg.norm(new)
        w = new
        if stop:
            break
    return iterates


def objective(phi, y, w):
    """‖y − Φw‖²."""
    residual = y - phi @ w
    return residual @ residual
