"""Synthetic coreset problems, shared by the tests."""

import numpy as np


def correlated_atoms(n=120, s=60, seed=0):
    """Atoms with a decaying spectrum and a common part, as log-likelihoods have, in float64."""
    rng = np.random.default_rng(seed)
    spectrum = np.arange(1, s + 1) ** -0.7
    return rng.normal(size=(n, s)) * spectrum + 0.3 * rng.normal(size=s)


def independent_atoms(n=120, s=400, seed=0):
    """Atoms without structure: well conditioned, so that rounding errors stay small."""
    return np.random.default_rng(seed).normal(size=(n, s)) / np.sqrt(s) + 0.2
