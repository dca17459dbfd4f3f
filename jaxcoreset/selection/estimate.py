"""The estimate of the symmetrised KL divergence between a coreset posterior and the full one.

With L and L_w the log-likelihoods of all rows and of the coreset, the variance of L − L_w over
draws of either posterior is KL(π‖π_w) + KL(π_w‖π) where that is small. On a problem whose entries
are divided by √S, it is S times the mean of the squared residuals y − Φw.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from jaxcoreset.data.arrays import power_of_two
from jaxcoreset.likelihood.embedding import DRAWS_AT_A_TIME
from jaxcoreset.selection.draws import DrawPool
from jaxcoreset.selection.parts import Approach, Use
from jaxcoreset.solvers.solution import Solution

# From it on, in nats, an estimate is a lower bound.
LOWER_BOUND_KL = 0.3
# The least number of rows that are taken for the held-out error.
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
    positions, weights = _used(path)
    residuals = _residuals(pool, positions, weights, use, approach)
    norm, inefficiency = pool.norm(use), pool.source.inefficiency
    kl, standard_error = kl_of_residuals(residuals, inefficiency)
    # To first order a mean is shifted by the covariance of the parameter and L_w − L.
    shift = np.max(np.abs(residuals @ pool.standardised(use)), axis=1, initial=0.0)
    error = np.sqrt(kl) / norm if norm > 0 else np.zeros_like(kl)
    return {
        "num_used": np.count_nonzero(np.asarray(path.weights) > 0, axis=-1),
        "relative_error": np.asarray(path.relative_error, np.float64),
        "held_out_error": error,
        "kl": kl,
        "kl_standard_error": standard_error,
        "mean_shift": shift,
        "mean_shift_standard_error": np.sqrt(kl * inefficiency / residuals.shape[1]),
    }


def _used(path: Solution) -> tuple[Int[np.ndarray, " j"], Float[np.ndarray, "m j"]]:
    """The positions of a path's rows with a weight, and their weights in each of its m solutions.

    The first position is repeated up to a power of two, with weights of 0, so that many paths share
    the programs that take rows.
    """
    indices, weights = np.asarray(path.indices), np.asarray(path.weights, np.float64)
    used = np.unique(indices[weights != 0])
    num = power_of_two(used.size, _FEWEST_ROWS)
    positions = np.full(num, used[0] if used.size else 0, np.int64)
    positions[: used.size] = used
    dense = np.zeros((len(weights), num))
    for solution, own, row in zip(dense, weights, indices, strict=True):
        np.add.at(solution, np.searchsorted(used, row[own != 0]), own[own != 0])
    return positions, dense


def _residuals(
    pool: DrawPool,
    positions: Int[np.ndarray, " j"],
    weights: Float[np.ndarray, "m j"],
    use: Use,
    approach: Approach,
) -> Float[np.ndarray, "m s"]:
    """What m solutions, with weights of the candidates at positions, leave of the target.

    Atoms and target are those of `DrawPool.problem`. This is computed on the host, since a program
    on a device is compiled for each number of draws.
    """
    parts, found = pool.usable_parts(use), []
    for part in parts:
        values, total = pool.values(part, approach, positions)
        values = np.asarray(values)
        # Piece by piece, so that only few values are in float64 at a time.
        starts = range(0, part.size, DRAWS_AT_A_TIME)
        pieces = [slice(at, at + DRAWS_AT_A_TIME) for at in starts]
        sums = np.hstack([weights @ values[:, at].astype(np.float64) for at in pieces])
        left = np.asarray(total, np.float64) - sums
        found.append(left - left.mean(axis=1, keepdims=True))
    return np.concatenate(found, axis=1) / np.sqrt(sum(part.size for part in parts))


def estimate_on(curve: dict[str, np.ndarray], at: int) -> KLEstimate:
    """The estimate for one entry of the errors along a path."""
    names = ("kl", "kl_standard_error", "held_out_error", "mean_shift", "mean_shift_standard_error")
    return KLEstimate(*(float(curve[name][at]) for name in names))
