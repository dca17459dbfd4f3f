"""Laplace approximations of many coreset posteriors at once, for the papers' two regressions.

The library's own, `laplace_approximation`, takes any model, one at a time. The figures need some
hundred thousand of them, so here the two likelihoods are written out, rows are gathered, and
Newton's method runs for a batch of coresets in float64. Both log-likelihoods are concave, and the
prior is N(0, I), so that there is one mode and Newton's method with step halving finds it.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

import jaxcoreset as jc

# Twice the nats that a full Newton step would still gain, where the search stops.
_DECREMENT = 1e-12
_STEP_LENGTHS = 2.0 ** -np.arange(0, 20, 2)
_MAX_ITERS = 100
_LANES = 128


def log_likelihood(eta: jax.Array, y: jax.Array, counts: bool) -> jax.Array:
    """Log p(y | η), but for a constant: Poisson with rate log(1 + e^η), or Bernoulli."""
    rate = jax.nn.softplus(eta)
    if not counts:
        return y * eta - rate
    # log(log(1 + e^η)) is η where the rate underflows.
    safe = jnp.where(eta > -30, rate, 1)
    return y * jnp.where(eta > -30, jnp.log(safe), eta) - rate


@dataclass(frozen=True)
class Gaussians:
    """Laplace approximations: mode (…, D), precision (…, D, D), and whether it is a mode (…)."""

    mode: np.ndarray
    precision: np.ndarray
    found: np.ndarray


class Regression:
    """A data set with its model.

    Args:
        z: shape (n, D), with the intercept's column.
        y: shape (n,), counts or zeros and ones.
        counts: whether the model is Poisson with a softplus rate, and not logistic.
    """

    def __init__(self, z: np.ndarray, y: np.ndarray, counts: bool):
        self.z, self.y = np.asarray(z, np.float64), np.asarray(y, np.float64)
        self.counts = counts
        ones = np.ones((1, len(self.z)))
        fitted = self.fit(np.arange(len(self.z))[None], ones)
        if not fitted.found.all():
            raise ValueError("the full posterior's mode was not found; check the data.")
        self.full = Gaussians(fitted.mode[0], fitted.precision[0], fitted.found[0])

    def fit(self, indices: np.ndarray, weights: np.ndarray) -> Gaussians:
        """Laplace approximations of coresets with rows `indices` and `weights`, both (c, k)."""
        with jax.enable_x64(True):
            fitted = _fit_all(
                jnp.asarray(self.z),
                jnp.asarray(self.y),
                jnp.asarray(indices),
                jnp.asarray(np.asarray(weights, np.float64)),
                self.counts,
            )
            return Gaussians(*(np.asarray(part) for part in fitted))

    def measures(self, indices: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Of the full posterior from those of coresets: divergences in nats, distance of the modes.

        Args:
            indices: shape (*b, k).
            weights: shape (*b, k).

        Returns:
            "forward", "reverse" and "map", each of shape (*b,); NaN where there is no fit.
        """
        batch = indices.shape[:-1]
        fitted = self.fit(
            np.reshape(indices, (-1, indices.shape[-1])),
            np.reshape(weights, (-1, indices.shape[-1])),
        )
        forward, reverse, distance = _divergences(self.full, fitted)
        found = {"forward": forward, "reverse": reverse, "map": distance}
        return {
            name: np.where(fitted.found, values, np.nan).reshape(batch)
            for name, values in found.items()
        }

    def of_solutions(self, solutions: jc.Solution) -> dict[str, np.ndarray]:
        """`measures` of what solvers return."""
        return self.measures(np.asarray(solutions.indices), np.asarray(solutions.weights))

    def of_dense(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """`measures` of weights of every row, shape (*b, n)."""
        size = max(1, int(np.count_nonzero(weights, axis=-1).max()))
        indices = np.argsort(-weights, axis=-1, kind="stable")[..., :size]
        return self.measures(indices, np.take_along_axis(weights, indices, axis=-1))

    def draws(self, seed: int, num: int) -> np.ndarray:
        """Draws of the full posterior's Laplace approximation, shape (num, D)."""
        normal = np.random.default_rng(seed).normal(size=(num, self.full.mode.size))
        factor = np.linalg.cholesky(np.linalg.inv(self.full.precision))
        return self.full.mode + normal @ factor.T

    def prior(self) -> dict[str, float]:
        """`measures` of no row at all."""
        one = self.measures(np.zeros((1, 1), int), np.zeros((1, 1)))
        return {name: float(values[0]) for name, values in one.items()}


@functools.partial(jax.jit, static_argnums=4)
def _fit_all(
    z: jax.Array, y: jax.Array, indices: jax.Array, weights: jax.Array, counts: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    def one(coreset: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        rows, weight = coreset
        return _fit(z[rows], y[rows], weight, counts)

    return jax.lax.map(one, (indices, weights), batch_size=min(_LANES, indices.shape[0]))


def _fit(
    z: jax.Array, y: jax.Array, weights: jax.Array, counts: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    first = jax.vmap(jax.grad(lambda eta, y: log_likelihood(eta, y, counts)))
    second = jax.vmap(jax.grad(jax.grad(lambda eta, y: log_likelihood(eta, y, counts))))

    def energy(theta: jax.Array) -> jax.Array:
        return 0.5 * theta @ theta - weights @ log_likelihood(z @ theta, y, counts)

    def hessian(theta: jax.Array) -> jax.Array:
        curvature = -weights * second(z @ theta, y)
        return jnp.eye(theta.size) + (z.T * curvature) @ z

    def step(state: tuple) -> tuple:
        theta, _, iteration = state
        gradient = theta - z.T @ (weights * first(z @ theta, y))
        move = -jnp.linalg.solve(hessian(theta), gradient)
        decrement = -gradient @ move
        lengths = jnp.asarray(_STEP_LENGTHS)
        values = jax.vmap(lambda length: energy(theta + length * move))(lengths)
        length = lengths[jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf))]
        # Near the mode the energies only differ by rounding, and a full step is right.
        length = jnp.where(decrement < 1e-6, 1.0, length)
        return theta + length * move, decrement, iteration + 1

    start = jnp.zeros(z.shape[1]), jnp.asarray(jnp.inf), jnp.asarray(0)
    theta, decrement, _ = jax.lax.while_loop(
        lambda s: (s[1] > _DECREMENT) & (s[2] < _MAX_ITERS), step, start
    )
    precision = hessian(theta)
    found = (decrement <= _DECREMENT) & jnp.isfinite(precision).all() & jnp.isfinite(theta).all()
    return theta, precision, found


def _divergences(full: Gaussians, other: Gaussians) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Forward and reverse KL, and the distance of the modes, of one Gaussian from many."""
    size = full.mode.size
    factor = np.linalg.cholesky(full.precision)
    half = np.linalg.inv(factor)
    # In coordinates where the full posterior has the unit covariance.
    relative = half @ other.precision @ half.T
    relative = np.where(other.found[:, None, None], relative, np.eye(size))
    eigenvalues, vectors = np.linalg.eigh(0.5 * (relative + np.swapaxes(relative, 1, 2)))
    eigenvalues = np.maximum(eigenvalues, np.finfo(float).tiny)
    difference = full.mode - other.mode
    shift = difference @ factor  # squared: Δᵀ Λ Δ
    rotated = np.einsum("cij,ci->cj", vectors, shift)
    excess = np.asarray(eigenvalues) - 1
    # −log λ + λ − 1 without cancellation near 1.
    forward = 0.5 * np.sum(excess - np.log1p(excess) + eigenvalues * rotated**2, axis=1)
    inverse = -excess / eigenvalues
    reverse = 0.5 * np.sum(inverse - np.log1p(inverse) + rotated**2, axis=1)
    return forward, reverse, np.linalg.norm(difference, axis=1)
