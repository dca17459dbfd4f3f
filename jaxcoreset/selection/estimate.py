"""The estimate of the symmetrised KL divergence between a coreset posterior and the full one.

With L and L_w the log-likelihoods of all rows and of the coreset, the variance of L − L_w over
draws of either posterior is KL(π‖π_w) + KL(π_w‖π) where that is small. On a problem whose entries
are divided by √S, it is S times the mean of the squared residuals y − Φw.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxcoreset.data.arrays import power_of_two
from jaxcoreset.data.compiling import quick_jit
from jaxcoreset.selection.draws import DrawPool
from jaxcoreset.selection.parts import Approach, Use
from jaxcoreset.solvers.numerics import HIGHEST
from jaxcoreset.solvers.solution import Solution

# From it on, in nats, an estimate is a lower bound.
LOWER_BOUND_KL = 0.3
# The least number of rows that programs for the held-out error have places for.
_FEWEST_ROWS = 64


@dataclass(frozen=True)
class KLEstimate:
    """An estimate of the symmetrised KL divergence in nats, with its standard error.

    Attributes:
        kl: the variance of L − L_w over the draws.
        standard_error: the Monte Carlo standard error of `kl`.
        relative_error: ‖y − Φw‖/‖y‖ on the same draws; y is of all rows' log-likelihoods, beside a
            proxy too.
        mean_shift: the largest shift of a posterior mean, in posterior standard deviations, to
            first order; None if unknown.
        mean_shift_standard_error: the Monte Carlo standard error of a shift.
    """

    kl: float
    standard_error: float
    relative_error: float
    mean_shift: float | None = None
    mean_shift_standard_error: float = 0.0

    @property
    def upper(self) -> float:
        """Two standard errors above the estimate."""
        return self.kl + 2 * self.standard_error

    @property
    def largest_shift(self) -> float:
        """Two standard errors above the largest shift of a mean; 0 if that is unknown."""
        if self.mean_shift is None:
            return 0.0
        return self.mean_shift + 2 * self.mean_shift_standard_error


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
    return estimate_on(errors_on(pool, one, use, approach), 0)


def errors_on(
    pool: DrawPool, path: Solution, use: Use, approach: Approach = "rows"
) -> dict[str, np.ndarray]:
    """The errors along a path of solutions, on the solver's draws and on those of one use.

    They are relative to all rows' log-likelihood.
    """
    positions, indices = _used(path)
    atoms, target = pool.atoms_at(positions, use, approach)
    norm, inefficiency, draws = pool.norm(use), pool.source.inefficiency, pool.standardised(use)
    measured = _measure(atoms, target, indices, path.weights, inefficiency, draws)
    kl, standard_error, shift = (np.asarray(value, np.float64) for value in measured)
    error = np.sqrt(kl) / norm if norm > 0 else np.zeros_like(kl)
    return {
        "num_used": np.count_nonzero(np.asarray(path.weights) > 0, axis=-1),
        "relative_error": np.asarray(path.relative_error, np.float64),
        "held_out_error": error,
        "kl": kl,
        "kl_standard_error": standard_error,
        "mean_shift": shift,
        "mean_shift_standard_error": np.sqrt(kl * inefficiency / target.size),
    }


def _used(path: Solution) -> tuple[Int[np.ndarray, " j"], Int[np.ndarray, "*m k"]]:
    """The positions of a path's rows with a weight, and where each of its rows is among them.

    The first position is repeated up to a power of two, so that many paths share a program.
    """
    indices, is_used = np.asarray(path.indices), np.asarray(path.weights) != 0
    used = np.unique(indices[is_used])
    num = power_of_two(used.size, _FEWEST_ROWS)
    positions = np.full(num, used[0] if used.size else 0, np.int64)
    positions[: used.size] = used
    places = np.where(is_used, np.searchsorted(used, indices), 0)
    return positions, places.astype(np.int32)


def estimate_on(curve: dict[str, np.ndarray], at: int) -> KLEstimate:
    """The estimate for one entry of the errors along a path."""
    names = ("kl", "kl_standard_error", "held_out_error", "mean_shift", "mean_shift_standard_error")
    return KLEstimate(*(float(curve[name][at]) for name in names))


@quick_jit
def _measure(
    atoms: Array,
    target: Array,
    indices: Array,
    weights: Array,
    inefficiency: Array,
    draws: Array,
) -> tuple:
    """The KL divergence, its standard error and the largest shift of a mean of each solution.

    To first order a mean is shifted by the covariance of the parameter and L_w − L.
    """

    def one(pair: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        indices, weights = pair
        residual = target - jnp.matmul(weights, atoms[indices], precision=HIGHEST)
        shifts = jnp.abs(jnp.matmul(residual, draws, precision=HIGHEST))
        return *kl_of_residuals(residual, inefficiency), jnp.max(shifts, initial=0.0)

    return jax.lax.map(one, (indices, weights))
