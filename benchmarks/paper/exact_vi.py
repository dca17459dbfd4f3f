"""Linear Gaussian models in closed form, and SparseVI on them without any sampling.

The log-likelihood of datum n is, but for a constant, −(v_n − u_n·θ)²/2, or a sum of such terms, and
the prior is N(μ₀, σ₀² I), so that every coreset posterior is Gaussian and covariances of
log-likelihoods under it are known. Zhang et al. (2021), sections 5.1 and 5.2, have the algorithms
use them: no error from sampling is left.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from jaxcoreset.diagnostics.gaussian import Divergence


class ExactModel(Protocol):
    """What SparseVI needs to know."""

    @property
    def num_data(self) -> int:
        """N."""
        ...

    def covariances(
        self, rows: np.ndarray, weights: np.ndarray, wanted: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Cov[f_i, L − L_w] and Var[f_i] of the `wanted` i under the posterior of weighted rows."""
        ...


@dataclass(frozen=True)
class GaussianMean:
    """x_n ~ N(θ, I), θ ~ N(0, I) in D dimensions.

    Attributes:
        x: shape (n, D).
    """

    x: np.ndarray

    @property
    def num_data(self) -> int:
        """The number of data, n."""
        return len(self.x)

    @cached_property
    def _total(self) -> np.ndarray:
        return self.x.sum(axis=0)

    def posterior(self, rows: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, float]:
        """Mean, and variance of every coordinate."""
        variance = 1 / (1 + weights.sum())
        return variance * (weights @ self.x[rows]), float(variance)

    def covariances(
        self, rows: np.ndarray, weights: np.ndarray, wanted: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `ExactModel.covariances`."""
        mean, variance = self.posterior(rows, weights)
        missing = self.num_data - weights.sum()
        residual = self._total - weights @ self.x[rows] - missing * mean
        apart = self.x[wanted] - mean
        quadratic = 0.5 * self.x.shape[1] * variance**2
        covariance = variance * (apart @ residual) + quadratic * missing
        return covariance, variance * np.sum(apart**2, axis=1) + quadratic

    def atoms(self) -> np.ndarray:
        """Coordinates of the centred log-likelihoods in L2(π), exactly: shape (n, D + 1)."""
        everything = np.arange(self.num_data)
        mean, variance = self.posterior(everything, np.ones(self.num_data))
        scale = np.sqrt(variance)
        last = np.full((self.num_data, 1), -variance * np.sqrt(self.x.shape[1] / 2))
        return np.hstack([scale * (self.x - mean), last])

    def divergence(self, weights: np.ndarray) -> Divergence:
        """Of the full posterior from that of weights, shape (n,), in nats."""
        everything = np.arange(self.num_data)
        mean, variance = self.posterior(everything, np.ones(self.num_data))
        other_mean, other = self.posterior(everything, weights)
        distance, size = np.sum((mean - other_mean) ** 2), self.x.shape[1]

        def kl(one: float, two: float) -> float:
            ratio = one / two
            return float(0.5 * (size * (ratio - 1 - np.log(ratio)) + distance / two))

        forward, reverse = kl(variance, other), kl(other, variance)
        return Divergence(forward, reverse, forward + reverse)


@dataclass(frozen=True)
class LinearRegression:
    """v_n ~ N(u_n·θ, 1), θ ~ N(m, s² I): a regression in units of its noise.

    Attributes:
        u: shape (n, D).
        v: shape (n,).
        prior_mean: m.
        prior_variance: s².
    """

    u: np.ndarray
    v: np.ndarray
    prior_mean: float
    prior_variance: float

    @property
    def num_data(self) -> int:
        """The number of data, n."""
        return len(self.u)

    @cached_property
    def _gram(self) -> np.ndarray:
        return self.prior_variance * self.u @ self.u.T

    @cached_property
    def _prior_residual(self) -> np.ndarray:
        return self.v - self.prior_mean * self.u.sum(axis=1)

    @cached_property
    def _full(self) -> tuple[np.ndarray, np.ndarray, float]:
        mean, precision = self.posterior(np.ones(self.num_data))
        return mean, precision, float(np.linalg.slogdet(precision)[1])

    def posterior(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and precision under weights, shape (n,)."""
        weighted = self.u * weights[:, None]
        precision = self.u.T @ weighted + np.eye(self.u.shape[1]) / self.prior_variance
        shift = weighted.T @ self._prior_residual
        return self.prior_mean + np.linalg.solve(precision, shift), precision

    def covariances(
        self, rows: np.ndarray, weights: np.ndarray, wanted: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `ExactModel.covariances`; in the space of the data, whose Gram matrix is kept."""
        root = np.sqrt(weights)
        kept = self._gram[rows] * root[:, None]  # (k, n)
        inner = np.eye(len(rows)) + kept[:, rows] * root
        solved = np.linalg.solve(inner, np.column_stack([kept, root * self._prior_residual[rows]]))
        left = kept[:, wanted].T
        residual = self._prior_residual - solved[:, -1] @ kept
        covariance = self._gram[wanted] - left @ solved[:, :-1]  # u_i·Σu_j, (wanted, n)
        missing = np.ones(self.num_data)
        missing[rows] -= weights
        of_residual = residual[wanted] * (covariance @ (missing * residual))
        own = covariance[np.arange(len(wanted)), wanted]
        variance = residual[wanted] ** 2 * own + 0.5 * own**2
        return of_residual + 0.5 * (covariance**2 @ missing), variance

    def atoms(self) -> np.ndarray:
        """Coordinates of the centred log-likelihoods in L2(π), exactly, from their Gram matrix."""
        mean, precision, _ = self._full
        residual = self.v - self.u @ mean
        inner = self.u @ np.linalg.solve(precision, self.u.T)
        values, vectors = np.linalg.eigh(np.outer(residual, residual) * inner + 0.5 * inner**2)
        kept = values > 1e-13 * values[-1]
        return vectors[:, kept] * np.sqrt(values[kept])

    def divergence(self, weights: np.ndarray) -> Divergence:
        """Of the full posterior from that of weights, shape (n,), in nats."""
        mean, precision, log_determinant = self._full
        other_mean, other = self.posterior(weights)
        difference = mean - other_mean
        log_ratio = log_determinant - np.linalg.slogdet(other)[1]

        def kl(one: np.ndarray, two: np.ndarray, logs: float) -> float:
            trace = np.trace(np.linalg.solve(one, two))
            return float(0.5 * (trace - len(mean) + difference @ two @ difference + logs))

        forward, reverse = kl(precision, other, log_ratio), kl(other, precision, -log_ratio)
        return Divergence(forward, reverse, forward + reverse)


def sparse_vi(model: ExactModel, size: int, num_iters: int = 100) -> np.ndarray:
    """SparseVI with exact covariances: Campbell and Beronov (2019), Algorithm 1.

    The row whose log-likelihood has the largest correlation with L − L_w, for rows that have weight
    already the largest absolute one, and then `num_iters` steps of Adam with length 1/t on
    KL(π_w‖π) in the weights of all rows, kept from falling below 0.

    Returns:
        Weights after each of `size` iterations, shape (size, n).
    """
    rows, weights = np.zeros(0, int), np.zeros(0)
    everything = np.arange(model.num_data)
    path = np.zeros((size, model.num_data))
    for at in range(size):
        covariance, variance = model.covariances(rows, weights, everything)
        scores = covariance / np.sqrt(variance)
        used = rows[weights > 0]
        scores[used] = np.abs(scores[used])
        best = int(np.argmax(scores))
        if best not in rows:
            rows, weights = np.append(rows, best), np.append(weights, 0.0)
        first, second = np.zeros(len(rows)), np.zeros(len(rows))
        for t in range(1, num_iters + 1):
            gradient = -model.covariances(rows, weights, rows)[0]
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient**2
            step = first / (1 - 0.9**t) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
            weights = np.maximum(weights - step / t, 0)
        path[at, rows] = weights
    return path
