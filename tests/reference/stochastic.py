"""Stochastic hard thresholding in plain NumPy, float64, dense vectors, for batches that are given.

Appendix G of Zhang et al. (2021) on their Algorithms 1 to 3, and SVRG-HT of Li et al. (2016).
`phi` is the papers' Φ of shape (S, n), one column per datum; gradients are those of ‖y − Φw‖².
"""

import numpy as np

from tests.reference.hard_thresholding import expanded_support, line_search, project


def diagonal(rows, n):
    """Γ as the vector of its diagonal: n/B on the rows of a batch."""
    out = np.zeros(n)
    out[rows] = n / len(rows)
    return out


def gradient_estimate(phi, y, w, rows, *, estimator, image_rows=None):
    """g̃(w) = 2 Γ₁ᵀΦᵀ(ΦΓ₂w − y) for each choice of Γ₁ and Γ₂."""
    n = len(w)
    gamma, image_gamma = diagonal(rows, n), np.ones(n)
    if estimator == "double":
        image_gamma = diagonal(image_rows, n)
    if estimator == "support":
        gamma[w != 0] = 1
    if estimator == "pool":
        gamma = (gamma > 0) | (w != 0)
    return 2 * gamma * (phi.T @ (phi @ (image_gamma * w) - y))


def step(phi, y, k, w, before, tau, gradient_at, algorithm, allowed=None):
    """One pass of Algorithm 2's loop (3 with the de-bias step) with a gradient of one's own.

    Returns the new weights and the new momentum. `allowed` are the rows that may have a weight.
    """
    z = w + tau * (w - before)
    gradient = gradient_at(z)
    direction = np.where(expanded_support(gradient, z, k, project), gradient, 0)
    image = phi @ direction
    # argmin_μ ‖y − Φ(z − μd)‖², with the true residual, whatever was estimated.
    downhill = max(-(y - phi @ z) @ image, 0)
    mu = downhill / (image @ image) if image @ image > 0 else 0.0
    moved = z - mu * gradient
    if allowed is not None:
        moved = np.where(allowed | (z != 0), moved, 0)
    new = project(moved, k)
    if algorithm == "AIHT2":
        gradient = -2 * phi.T @ (y - phi @ new)
        restricted = np.where(new != 0, gradient, 0)
        new = np.maximum(new - line_search(phi, restricted) * restricted, 0)
    tau = 0.0
    if algorithm != "IHT":
        change = phi @ (new - w)
        # A batch that brings nothing changes the weights by rounding alone.
        if np.linalg.norm(change) > 1e-12 * np.linalg.norm(phi @ new):
            tau = ((y - phi @ new) @ change) / (change @ change)
    return new, tau


def stochastic(phi, y, k, batches, *, algorithm, estimator, image_batches=None, normalise=False):
    """The iterates for a list of batches, each an array of rows."""
    n = phi.shape[1]
    unit = np.linalg.norm(phi, axis=0) if normalise else np.ones(n)
    phi = phi / unit
    w, before, tau = np.zeros(n), np.zeros(n), 0.0
    iterates = []
    for number, rows in enumerate(batches):
        image_rows = None if image_batches is None else image_batches[number]
        new, tau = step(
            phi,
            y,
            k,
            w,
            before,
            tau,
            lambda z, rows=rows, image_rows=image_rows: gradient_estimate(
                phi, y, z, rows, estimator=estimator, image_rows=image_rows
            ),
            algorithm,
            allowed=np.isin(np.arange(n), rows),
        )
        w, before = new, w
        iterates.append(w / unit)
    return iterates


def svrg(phi, y, k, epochs, *, algorithm, estimator):
    """The iterates for a list of epochs, each a list of batches."""
    n = phi.shape[1]
    w, before, tau = np.zeros(n), np.zeros(n), 0.0
    iterates = []
    for batches in epochs:
        snapshot = w
        full = 2 * phi.T @ (phi @ snapshot - y)
        for rows in batches:

            def gradient_at(z, rows=rows, snapshot=snapshot, full=full):
                gamma = diagonal(rows, n)
                if estimator == "support":
                    gamma[z != 0] = 1
                return full + 2 * gamma * (phi.T @ (phi @ (z - snapshot)))

            new, tau = step(phi, y, k, w, before, tau, gradient_at, algorithm)
            w, before = new, w
            iterates.append(w)
    return iterates


def projected_momentum(phi, y, k, batches, *, rate, decay, estimator):
    """Heavy-ball steps, each projected: v ← decay·v + g̃(w), w ← Π(w − rate·v)."""
    n = phi.shape[1]
    w, velocity = np.zeros(n), np.zeros(n)
    iterates = []
    for rows in batches:
        velocity = decay * velocity + gradient_estimate(phi, y, w, rows, estimator=estimator)
        w = project(w - rate * velocity, k)
        iterates.append(w)
    return iterates
