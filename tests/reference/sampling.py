"""Random subsets in plain NumPy, given the rows that were drawn; dense vectors, float64.

Importance sampling is section 4.1 of Campbell and Broderick (2019), as section 2.1 of Campbell and
Broderick (2018) has it. `phi` is the papers' Φ of shape (S, n), one column per datum.
"""

import numpy as np


def importance_probabilities(phi):
    """σ_n/σ."""
    norms = np.linalg.norm(phi, axis=0)
    return norms / norms.sum()


def sampling_weights(draws, probabilities):
    """(c_n/k) / p_n, where row n was drawn c_n times in k."""
    counts = np.bincount(draws, minlength=len(probabilities))
    drawn = counts > 0
    weights = np.zeros(len(probabilities))
    weights[drawn] = counts[drawn] / len(draws) / probabilities[drawn]
    return weights
