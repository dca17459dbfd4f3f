"""The estimate of the symmetrised KL divergence between a coreset posterior and the full one.

With L and L_w the log-likelihoods of all rows and of the coreset, the variance of L − L_w over
draws of either posterior is KL(π‖π_w) + KL(π_w‖π) where that is small. On a problem whose entries
are divided by √S, it is S times the mean of the squared residuals y − Φw.

To first order the covariance of L_w − L and a function of the parameters is how far the function's
mean is off. In standard deviations, no linear function is off by more than the norm of the part of
the residuals that is linear in the parameters.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxcoreset.selection.draws import Approach, DrawPool, Use
from jaxcoreset.solvers.numerics import HIGHEST
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solution import Solution

# The fewest columns of a basis, some of which may be zero.
_FEWEST_COLUMNS = 8


@dataclass(frozen=True)
class KLEstimate:
    """An estimate of the symmetrised KL divergence in nats, with its standard error.

    Attributes:
        kl: the variance of L − L_w over the draws.
        standard_error: the Monte Carlo standard error of `kl`.
        relative_error: ‖y − Φw‖/‖y‖ on the same draws.
        mean_shift: the largest error of the posterior mean of a linear function of the parameters,
            in standard deviations; 0 where there are too few draws to tell.
    """

    kl: float
    standard_error: float
    relative_error: float
    mean_shift: float = 0.0

    @property
    def upper(self) -> float:
        """Two standard errors above the estimate."""
        return self.kl + 2 * self.standard_error

    @property
    def lower(self) -> float:
        """Two standard errors below the estimate."""
        return self.kl - 2 * self.standard_error


def kl_of_residuals(residuals: Any, inefficiency: Any = 1.0, mass: Any = None) -> tuple[Any, Any]:
    """The symmetrised KL divergence in nats, and its standard error, from residuals at draws.

    Args:
        residuals: shape (..., S), NumPy or JAX: y − Φw at S draws, which is L − L_w, centred, over
            √S.
        inefficiency: how many of the draws are worth an independent one.
        mass: shape (S,), importance weights that add up to one; equal ones if left out.

    Returns:
        Two arrays of shape (...).
    """
    num_draws = residuals.shape[-1]
    squares = num_draws * residuals**2
    if mass is None:
        return squares.mean(-1), squares.std(-1) * (inefficiency / num_draws) ** 0.5
    kl = squares @ mass
    return kl, (inefficiency * (squares - kl[..., None]) ** 2 @ mass**2) ** 0.5


def estimate_at(
    pool: DrawPool, path: Solution, at: int, use: Use, approach: Approach = "rows"
) -> KLEstimate:
    """The estimate for one entry of a path, on the draws of one use."""
    one = jax.tree.map(lambda x: x[at : at + 1], path)
    return estimate_on(curve_of(pool, one, use, approach), 0)


def curve_of(
    pool: DrawPool, path: Solution, use: Use, approach: Approach = "rows"
) -> dict[str, np.ndarray]:
    """The errors along a path of solutions, on the draws of one use."""
    problem = pool.problem(use, approach)
    return errors(path, problem, pool.source.inefficiency, pool.linear_basis(use))


def estimate_on(curve: dict[str, np.ndarray], at: int) -> KLEstimate:
    """The estimate for one entry of the errors along a path."""
    names = ("kl", "kl_standard_error", "held_out_error", "mean_shift")
    return KLEstimate(*(float(curve[name][at]) for name in names))


def errors(
    path: Solution,
    held_out: CoresetProblem,
    inefficiency: float = 1.0,
    basis: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """The errors along a path of solutions, on the solver's draws and on the held-out ones.

    Args:
        path: the solutions.
        held_out: the candidates' atoms, and the target, under draws that the solver did not see.
        inefficiency: how many of these draws are worth an independent one.
        basis: shape (S, D), orthonormal: what is linear in the D parameters at the S draws.
    """
    size = held_out.target.shape[0]
    num_params = 0 if basis is None else basis.shape[1]
    # Columns of zeros, so that models with similar numbers of parameters share a program.
    width = max(_FEWEST_COLUMNS, 1 << max(num_params - 1, 0).bit_length())
    padded = np.zeros((size, width), held_out.target.dtype)
    if basis is not None:
        padded[:, :num_params] = basis
    measured = _measure(held_out, path.indices, path.weights, inefficiency, jnp.asarray(padded))
    error, kl, standard_error, linear = (np.asarray(value, np.float64) for value in measured)
    # The share of the rest, which is not linear, that falls on D of S directions by chance.
    chance = inefficiency * num_params / size
    linear = np.maximum(linear - chance * kl, 0) / (1 - chance) if chance < 1 else 0 * linear
    return {
        "num_used": np.asarray(path.size),
        "relative_error": np.asarray(path.relative_error, np.float64),
        "held_out_error": error,
        "kl": kl,
        "kl_standard_error": standard_error,
        "mean_shift": np.sqrt(linear),
    }


@jax.jit
def _measure(
    held_out: CoresetProblem, indices: Array, weights: Array, inefficiency: Array, basis: Array
) -> tuple:
    """Of each solution the relative error, the KL divergence, its error and its linear part."""

    def one(pair: tuple[Array, Array]) -> tuple[Array, Array, Array, Array]:
        indices, weights = pair
        combined = jnp.matmul(weights, held_out.gather(indices), precision=HIGHEST)
        residuals = held_out.target - combined
        kl, standard_error = kl_of_residuals(residuals, inefficiency)
        linear = jnp.sum(jnp.matmul(residuals, basis, precision=HIGHEST) ** 2)
        return jnp.sqrt(kl) / jnp.linalg.norm(held_out.target), kl, standard_error, linear

    return jax.lax.map(one, (indices, weights))
