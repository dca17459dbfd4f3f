"""Frank–Wolfe on the coreset polytope in plain NumPy, float64, dense vectors.

Campbell and Broderick (2019), section 4.2, from its description in section 2.1 of Campbell and
Broderick (2018): minimise ‖y − Φw‖² over {w ≥ 0, Σ σ_n w_n = σ}. `phi` is the papers' Φ of shape
(S, n), one column per datum, none of them zero.
"""

import numpy as np


def frank_wolfe(phi, y, num_iters):
    """The weights after 1, 2, …, `num_iters` iterations, the first being the start at a vertex."""
    norms = np.linalg.norm(phi, axis=0)
    vertex_weights = norms.sum() / norms
    vertices = phi * vertex_weights
    w = np.zeros(phi.shape[1])
    nearest = np.argmin(np.sum((vertices - y[:, None]) ** 2, axis=0))
    w[nearest] = vertex_weights[nearest]
    path = [w]
    for _ in range(num_iters - 1):
        gradient = -2 * phi.T @ (y - phi @ w)
        chosen = np.argmin(gradient * vertex_weights)  # linear minimisation over the vertices
        vertex = np.zeros_like(w)
        vertex[chosen] = vertex_weights[chosen]
        direction = vertex - w
        slope, curvature = gradient @ direction, 2 * np.sum((phi @ direction) ** 2)
        w = w + min(max(-slope / curvature, 0.0), 1.0) * direction
        path.append(w)
    return np.array(path)
