"""Stochastic hard thresholding in plain NumPy, float64, dense vectors, for batches that are given.

Appendix G of Zhang et al. (2021) on their Algorithms 1 to 3, and SVRG-HT of Li et al. (2016).
`phi` is the papers' Φ of shape (S, n), one column per datum; gradients are those of ‖y − Φw‖².
"""

import numpy as np

from tests.reference.hard_thresholding import project, step


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


def stochastic(phi, y, k, batches, *, algorithm, estimator, image_batches=None, normalise=False):
    """The iterates for a list of batches, each an array of rows."""
    n = phi.shape[1]
    unit = np.linalg.norm(phi, axis=0) if normalise else np.ones(n)
    phi = phi / unit
    w = z = np.zeros(n)
    iterates = []
    for number, rows in enumerate(batches):
        image_rows = None if image_batches is None else image_batches[number]
        gradient = gradient_estimate(phi, y, z, rows, estimator=estimator, image_rows=image_rows)
        settings = {"algorithm": algorithm, "is_estimate": True}
        w, z = step(phi, y, k, w, z, gradient, allowed=np.isin(np.arange(n), rows), **settings)
        iterates.append(w / unit)
    return iterates


def svrg(phi, y, k, epochs, *, algorithm, estimator):
    """The iterates for a list of epochs, each a list of batches."""
    n = phi.shape[1]
    w = z = np.zeros(n)
    iterates = []
    for batches in epochs:
        snapshot = w
        full = 2 * phi.T @ (phi @ snapshot - y)
        for rows in batches:
            gamma = diagonal(rows, n)
            if estimator == "support":
                gamma[z != 0] = 1
            gradient = full + 2 * gamma * (phi.T @ (phi @ (z - snapshot)))
            w, z = step(phi, y, k, w, z, gradient, algorithm=algorithm, is_estimate=True)
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
