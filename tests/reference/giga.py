"""GIGA in plain NumPy: Algorithm 1 of Campbell and Broderick (2018), line by line, dense vectors.

Written from the paper's pseudocode alone; the device solver is held to it iterate by iterate.
`phi` is the papers' Φ of shape (S, n), one column per datum, none of them zero.
"""

import numpy as np


def unit(vector):
    """v/‖v‖, and 0 where ‖v‖ = 0 (below equation 18)."""
    norm = np.linalg.norm(vector)
    return vector / norm if norm > 0 else vector


def giga(phi, y, num_iters):
    """The weights of Algorithm 1 run for 1, 2, …, `num_iters` iterations, shape (num_iters, n)."""
    n = phi.shape[1]
    norms = np.linalg.norm(phi, axis=0)  # lines 1 and 2
    ell_n, ell = phi / norms, unit(y)
    w, ell_w = np.zeros(n), np.zeros_like(y)  # line 3
    path = []
    for _ in range(num_iters):
        d = unit(ell - (ell @ ell_w) * ell_w)  # line 5
        across = ell_n - np.outer(ell_w, ell_n.T @ ell_w)  # line 6
        lengths = np.linalg.norm(across, axis=0)
        defined = lengths > 1e-7
        scores = np.where(defined, (d @ across) / np.where(defined, lengths, 1), -np.inf)
        chosen = np.argmax(scores)  # line 7
        zeta0, zeta1 = ell @ ell_n[:, chosen], ell @ ell_w  # line 8
        zeta2 = ell_n[:, chosen] @ ell_w
        first, second = zeta0 - zeta1 * zeta2, zeta1 - zeta0 * zeta2
        gamma = first / (first + second)  # line 9
        mixed = (1 - gamma) * ell_w + gamma * ell_n[:, chosen]
        w = (1 - gamma) * w  # lines 10 and 11
        w[chosen] += gamma
        w = w / np.linalg.norm(mixed)
        ell_w = unit(mixed)
        path.append(w * np.linalg.norm(y) / norms * (ell_w @ ell))  # line 13
    return np.array(path)
