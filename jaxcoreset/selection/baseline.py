"""What a Gaussian alone reaches, which needs no rows: the baseline of every coreset.

The Gaussian is the Laplace approximation, or for other draws that of their mean and covariance. At
its own draws θ, log π(θ) = L(θ) + log p(θ) is known up to a constant from the pass over the data,
so that the variance of log π − log q costs nothing more.
"""

import functools
import importlib.util
from dataclasses import dataclass
from typing import Any, get_args

import jax
import numpy as np
from jaxtyping import Array, Float

from jaxcoreset.data.compiling import quick_jit
from jaxcoreset.likelihood.embedding import DRAWS_AT_A_TIME
from jaxcoreset.likelihood.expansion import flat_draws
from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params
from jaxcoreset.selection.draws import DrawPool
from jaxcoreset.selection.estimate import kl_of_residuals
from jaxcoreset.selection.parts import Part, Use, importance_weights
from jaxcoreset.weighting.laplace import LaplaceApproximation

# Fewer draws than this for each parameter do not give a covariance.
_DRAWS_PER_PARAMETER = 5


@dataclass(frozen=True)
class GaussianBaseline:
    """How close a Gaussian is to the posterior of all rows.

    Attributes:
        kl: the estimate of the symmetrised KL divergence, in nats, on held-out draws.
        kl_standard_error: its standard error.
        relative_ess: the effective sample size of its draws for the posterior, as a fraction of
            them: Kish's size of the importance weights.
        k_hat: the shape of the weights' tail; None without ArviZ.
    """

    kl: float
    kl_standard_error: float
    relative_ess: float
    k_hat: float | None

    @classmethod
    def of(
        cls, pool: DrawPool, approximation: LaplaceApproximation | None = None
    ) -> "GaussianBaseline | None":
        """The baseline by the draws of a pool; None if these are too few for a covariance.

        If the draws are not of a Laplace approximation, the Gaussian has the mean and covariance of
        the solver's draws. If rows were added since the draws were made, the draws have
        `importance_weights`.

        Args:
            pool: the draws and the sums of all rows at them.
            approximation: the Gaussian; that of the pool's source if left out.
        """
        parts = [*pool.parts("selection"), *pool.parts("confirmation")]
        parts = [part for part in parts if part.size > 1]
        log_weights = log_weights_of(pool, parts, approximation)
        if log_weights is None or not all(np.isfinite(one).all() for one in log_weights):
            return None
        masses = importance_weights(parts)
        # The constants of blocks differ, so each is centred by itself.
        pairs = zip(log_weights, masses, strict=True)
        residuals = np.concatenate([one - one @ mass / mass.sum() for one, mass in pairs])
        mass = np.concatenate(masses)
        kl, error = kl_of_residuals(
            residuals / np.sqrt(residuals.size), pool.source.inefficiency, mass
        )
        k_hat = None
        is_weighted = any(part.total_then is not None for part in parts)
        if not is_weighted and importlib.util.find_spec("arviz") is not None:
            from jaxcoreset.weighting.psis import pareto_smooth

            k_hat = pareto_smooth(residuals, 1 / pool.source.inefficiency)[1]
        return cls(float(kl), float(error), kish(residuals, mass), k_hat)

    def facts(self) -> dict[str, Any]:
        """The attributes of a `Report`."""
        return {f"gaussian_{name}": value for name, value in vars(self).items()}


def relative_ess_of(pool: DrawPool) -> float:
    """The effective sample size of the draws of π̂ for the full posterior, as a fraction of them.

    This is Kish's size of the importance weights π(θ)/q(θ), with the Gaussian of `GaussianBaseline`
    as q, which can only make a good π̂ look worse. The result is 0 if there are too few draws.
    """
    parts = [part for use in get_args(Use) for part in pool.parts(use)[:1]]
    log_weights = log_weights_of(pool, parts)
    if log_weights is None:
        return 0.0
    joined = np.concatenate(log_weights)
    return kish(joined) if np.isfinite(joined).all() else 0.0


def kish(
    log_weights: Float[np.ndarray, " s"], mass: Float[np.ndarray, " s"] | None = None
) -> float:
    """Kish's effective sample size of weights at draws, as a fraction of the draws.

    Args:
        log_weights: the logarithms of the weights.
        mass: how much each draw counts; alike if left out.
    """
    mass = np.ones(log_weights.size) if mass is None else mass
    weights = np.exp(log_weights - log_weights.max())
    return float((mass @ weights) ** 2 / (mass.sum() * (mass @ weights**2)))


def flat_and_prior(
    pool: DrawPool, parts: list[Part]
) -> tuple[Float[np.ndarray, "s d"], Float[np.ndarray, " s"]]:
    """The parts' draws, flat, and the log prior at each."""
    draws = jax.tree.map(lambda *x: np.concatenate(x), *(part.draws for part in parts))
    num, program = sum(part.size for part in parts), pool.likelihood.program
    prior = np.zeros(0)
    while prior.size < num:  # the first ones once more, until the last piece is full
        at = np.arange(prior.size, prior.size + DRAWS_AT_A_TIME) % num
        piece = jax.tree.map(lambda x, at=at: x[at], draws)
        prior = np.append(prior, np.asarray(log_priors(program, piece), np.float64))
    return flat_draws(draws), prior[:num]


@functools.partial(quick_jit, static_argnums=0)
def log_priors(program: ModelLikelihood, draws: Params) -> Float[Array, " s"]:
    """The log prior at each draw."""
    return jax.vmap(program.log_prior)(draws)


def log_weights_of(
    pool: DrawPool, parts: list[Part], approximation: LaplaceApproximation | None = None
) -> list[Float[np.ndarray, " s"]] | None:
    """Log π − log q at the draws of some parts, up to a constant; None if there is no Gaussian."""
    flat, prior = flat_and_prior(pool, parts)
    density = _log_density(flat, pool, approximation or pool.source.approximation)
    if density is None:
        return None
    total = np.concatenate([np.asarray(part.total, np.float64) for part in parts])
    ends = np.cumsum([part.size for part in parts])[:-1]
    return np.split(total + prior - density, ends)


def _log_density(
    flat: np.ndarray, pool: DrawPool, approximation: LaplaceApproximation | None
) -> Float[np.ndarray, " s"] | None:
    if approximation is not None:
        mean, covariance = approximation.mode, approximation.covariance
    else:
        parts = pool.parts("solver")[:1]
        fitted, _ = flat_and_prior(pool, parts)
        (mass,) = importance_weights(parts)
        if 1 / np.sum(mass**2) < _DRAWS_PER_PARAMETER * fitted.shape[1]:
            return None
        mean = mass @ fitted
        covariance = np.atleast_2d(np.cov(fitted, rowvar=False, aweights=mass))
    try:
        factor = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        return None
    return -0.5 * np.sum(np.linalg.solve(factor, (flat - mean).T) ** 2, axis=0)
