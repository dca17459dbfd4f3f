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


def unequal_atoms(n=80, s=60, seed=0):
    """Atoms of unequal norms around a common direction, as log-likelihoods have."""
    rng = np.random.default_rng(seed)
    atoms = rng.standard_normal((n, s)) + 0.3 * rng.standard_normal(s)
    return atoms * rng.gamma(2.0, size=(n, 1))


def low_rank_atoms(n=60, s=40, seed=0):
    """Atoms with a common part, as log-likelihoods have, so that the target needs many of them."""
    rng = np.random.default_rng(seed)
    atoms = rng.standard_normal((n, 6)) @ rng.standard_normal((6, s))
    atoms += 0.5 * rng.standard_normal((n, s))
    return atoms * rng.exponential(size=(n, 1))
