"""How far apart two posteriors are, as plain functions of their means and covariances, in nats."""

from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike

from jaxcoreset.laplace import LaplaceApproximation


class Divergence(NamedTuple):
    """Kullback–Leibler divergences between a full posterior π and a coreset's π_w, in nats.

    Attributes:
        forward: KL(π‖π_w).
        reverse: KL(π_w‖π).
        symmetrised: their sum.
    """

    forward: float
    reverse: float
    symmetrised: float


def gaussian_kl(
    mean: ArrayLike, covariance: ArrayLike, other_mean: ArrayLike, other_covariance: ArrayLike
) -> float:
    """KL(N(mean, covariance) ‖ N(other_mean, other_covariance)), in closed form, in nats.

    Args:
        mean: shape (D,).
        covariance: shape (D, D), positive definite.
        other_mean: shape (D,).
        other_covariance: shape (D, D), positive definite.

    Raises:
        numpy.linalg.LinAlgError: if a covariance is not positive definite.
    """
    factor = np.linalg.cholesky(np.asarray(covariance, np.float64))
    other = np.linalg.cholesky(np.asarray(other_covariance, np.float64))
    difference = np.asarray(other_mean, np.float64) - np.asarray(mean, np.float64)
    spread = np.linalg.solve(other, factor)
    shift = np.linalg.solve(other, difference)
    log_ratio = np.sum(np.log(np.diag(other)) - np.log(np.diag(factor)))
    return float(0.5 * (np.sum(spread**2) - difference.size + shift @ shift) + log_ratio)


def laplace_divergence(full: LaplaceApproximation, coreset: LaplaceApproximation) -> Divergence:
    """The divergences between the Laplace approximations of a full and a coreset posterior.

    As in the experiments of Zhang et al. (2021), section 5.3. They see means and covariances only.

    Args:
        full: that of all the data.
        coreset: that of the weighted rows.
    """
    forward = gaussian_kl(full.mode, full.covariance, coreset.mode, coreset.covariance)
    reverse = gaussian_kl(coreset.mode, coreset.covariance, full.mode, full.covariance)
    return Divergence(forward, reverse, forward + reverse)
