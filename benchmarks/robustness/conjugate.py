"""Posteriors in closed form, in float64: those that `benchmarks.robustness.numerical` judges by.

Each function takes the data of all rows and how often each row counts, and returns the exact
posterior of the weighted rows. `divergence` is the symmetrised KL divergence of two of them.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import digamma


@dataclass(frozen=True)
class Gaussian:
    """N(mean, (RᵀR)⁻¹), in the units of the prior.

    Attributes:
        mean: shape (D,).
        root: the upper triangular root R of the precision, shape (D, D).
    """

    mean: np.ndarray
    root: np.ndarray


@dataclass(frozen=True)
class Gamma:
    """Independent Gamma(shape, rate), one for each entry."""

    shape: np.ndarray
    rate: np.ndarray


@dataclass(frozen=True)
class Dirichlet:
    """Dirichlet(concentration), shape (K,); a Beta has K = 2."""

    concentration: np.ndarray


Posterior = Gaussian | Gamma | Dirichlet


def regression(
    x: np.ndarray,
    y: np.ndarray,
    noise: float | np.ndarray,
    prior: np.ndarray,
    counts: np.ndarray,
) -> Gaussian:
    """Slopes of a linear regression with known noise, from the prior N(0, diag(prior²)).

    A QR decomposition in the prior's units squares no condition number.
    """
    x, y, prior = (np.asarray(part, np.float64) for part in (x, y, prior))
    weights = np.sqrt(counts) / noise
    rows = np.vstack([x * prior * weights[:, None], np.eye(prior.size)])
    orthogonal, root = np.linalg.qr(rows)
    right = np.concatenate([y * weights, np.zeros(prior.size)])
    return Gaussian(solve_triangular(root, orthogonal.T @ right), root)


def mean_of_vectors(
    y: np.ndarray, covariance: np.ndarray, prior: float, counts: np.ndarray
) -> Gaussian:
    """The mean of normal vectors with known covariance, from the prior N(0, prior² I)."""
    y, size = np.asarray(y, np.float64), y.shape[1]
    root = np.linalg.inv(np.linalg.cholesky(covariance))
    precision = counts.sum() * root.T @ root + np.eye(size) / prior**2
    mean = np.linalg.solve(precision, root.T @ root @ (counts @ y))
    return Gaussian(mean, np.linalg.cholesky(precision).T)


def gamma(
    shape: float, rate: float, shapes: np.ndarray, rates: np.ndarray, counts: np.ndarray
) -> Gamma:
    """Gamma(shape, rate) after rows that add `shapes` and `rates`; a column is a parameter."""
    shapes, rates = np.asarray(shapes, np.float64), np.asarray(rates, np.float64)
    return Gamma(np.atleast_1d(shape + counts @ shapes), np.atleast_1d(rate + counts @ rates))


def dirichlet(prior: np.ndarray, rows: np.ndarray, counts: np.ndarray) -> Dirichlet:
    """Dirichlet(prior) after rows of counts of each class."""
    return Dirichlet(np.asarray(prior, np.float64) + counts @ np.asarray(rows, np.float64))


def divergence(one: Posterior, other: Posterior) -> float:
    """KL(one‖other) + KL(other‖one), in nats.

    In an exponential family it is the inner product of the differences of natural parameters and
    of expectations of the sufficient statistics.
    """
    match one, other:
        case Gaussian(), Gaussian():
            # Of the singular values s of one root in units of the other: Σ (s − 1/s)² / 2.
            spread = np.linalg.svd(
                solve_triangular(other.root.T, one.root.T, lower=True), compute_uv=False
            )
            shift = one.mean - other.mean
            far = np.sum((one.root @ shift) ** 2) + np.sum((other.root @ shift) ** 2)
            return float(0.5 * (np.sum((spread - 1 / spread) ** 2) + far))
        case Gamma(), Gamma():
            logs = digamma(one.shape) - digamma(other.shape) - np.log(one.rate / other.rate)
            means = one.shape / one.rate - other.shape / other.rate
            terms = (one.shape - other.shape) * logs - (one.rate - other.rate) * means
            return float(np.sum(terms))
        case Dirichlet(), Dirichlet():
            a, b = one.concentration, other.concentration
            logs = digamma(a) - digamma(b) - (digamma(a.sum()) - digamma(b.sum()))
            return float(np.sum((a - b) * logs))
    raise TypeError(f"two posteriors of one family are expected, not {one!r} and {other!r}")
