"""Distances between a full posterior and a coreset posterior, as the papers measure them.

A posterior is given as a `LaplaceApproximation`, as a pair (mean, covariance) of a Gaussian, as
draws of shape (draws, D), or as a dictionary of samples with one leading axis, as
``mcmc.get_samples()`` returns it. Draws are represented by the Gaussian of their mean and
covariance. `certify` also measures what means and covariances do not show.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float, PyTree

from jaxcoreset.data.arrays import leading
from jaxcoreset.likelihood.fisher import fisher_features
from jaxcoreset.likelihood.passes import LogLikelihood, feature_matrix, feature_sum
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.weighting.laplace import LaplaceApproximation

# The maximum number of entries of the coreset rows' gradient matrix in memory.
_ENTRIES = 1 << 24


class Divergence(NamedTuple):
    """Kullback–Leibler divergences between a full posterior π and a coreset posterior π_w, in nats.

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

    As in the experiments of Zhang et al. (2021), section 5.3. They compare means and covariances
    only.

    Args:
        full: the approximation of the full posterior.
        coreset: the approximation of the coreset posterior.
    """
    return divergence(full, coreset)


def divergence(full: Any, coreset: Any, sites: Sequence[str] | None = None) -> Divergence:
    """Forward, reverse and symmetrised KL between the Gaussians of two posteriors, in nats.

    The divergences are exact for Gaussians and Laplace approximations. Draws are compared by their
    moments, and S draws add about D(D + 3)/(4 S) nats to each direction.

    Args:
        full: the full posterior, in any form of this module.
        coreset: the coreset posterior, in any form of this module.
        sites: for dictionaries, the sites to compare; by default all, which must be the same.

    Raises:
        ValueError: if shapes do not fit, or there are no more draws than parameters.
        numpy.linalg.LinAlgError: if a covariance is not positive definite.
    """
    (mean, covariance), (other_mean, other_covariance) = _both_moments(full, coreset, sites)
    forward = gaussian_kl(mean, covariance, other_mean, other_covariance)
    reverse = gaussian_kl(other_mean, other_covariance, mean, covariance)
    return Divergence(forward, reverse, forward + reverse)


def map_distance(full: Any, coreset: Any, sites: Sequence[str] | None = None) -> float:
    """The ℓ2 distance of the modes of two posteriors (Zhang et al. 2021, section 5.3, appendix G).

    For Laplace approximations it is the distance of the modes of the unconstrained parameters, for
    Gaussians and draws the distance of the means.

    Args:
        full: the full posterior, in any form of this module, or its mode, shape (D,).
        coreset: the coreset posterior, likewise.
        sites: see `divergence`.

    Raises:
        ValueError: if shapes do not fit, or there are no more draws than parameters: pass their
            mean instead.
    """
    modes = [
        np.asarray(one, np.float64)
        if _is_array(one) and np.ndim(one) == 1
        else moments(one, sites)[0]
        for one in (full, coreset)
    ]
    _same_size(*modes)
    return float(np.linalg.norm(modes[0] - modes[1]))


class RelativeErrors(NamedTuple):
    """Differences of the moments of a coreset posterior, relative to those of the full one.

    Attributes:
        mean: ‖μ_w − μ‖ / ‖μ‖.
        covariance: ‖Σ_w − Σ‖ / ‖Σ‖, Frobenius norms.
        variance: the largest |σ_w² − σ²| / σ² of a parameter.
        standardised_mean: the largest |μ_w − μ| / σ of a parameter.
    """

    mean: float
    covariance: float
    variance: float
    standardised_mean: float


def relative_errors(full: Any, coreset: Any, sites: Sequence[str] | None = None) -> RelativeErrors:
    """The relative errors of mean, covariance and variances.

    The errors of the mean and the covariance are those of Campbell and Beronov (2019), that of the
    variance is that of Campbell and Broderick (2018, section 4.1). The first depends on the origin
    of the parameters.

    Args:
        full: the full posterior, in any form of this module.
        coreset: the coreset posterior, likewise.
        sites: see `divergence`.

    Raises:
        ValueError: if shapes do not fit, or there are no more draws than parameters.
    """
    (mean, covariance), (other_mean, other_covariance) = _both_moments(full, coreset, sites)
    variances, others = np.diag(covariance), np.diag(other_covariance)
    shift = other_mean - mean
    return RelativeErrors(
        mean=float(np.linalg.norm(shift) / np.linalg.norm(mean)),
        covariance=float(
            np.linalg.norm(other_covariance - covariance) / np.linalg.norm(covariance)
        ),
        variance=float(np.max(np.abs(others - variances) / variances)),
        standardised_mean=float(np.max(np.abs(shift) / np.sqrt(variances))),
    )


def relative_error(problem: CoresetProblem, indices: ArrayLike, weights: ArrayLike) -> float:
    """The relative error ‖y − Φw‖ / ‖y‖ of weighted rows on a problem, in float64.

    Args:
        problem: the atoms and the target.
        indices: shape (m,), the row numbers.
        weights: shape (m,).
    """
    target = np.asarray(problem.target, np.float64)
    atoms = np.asarray(problem.gather(jnp.asarray(indices)), np.float64)
    residual = target - np.asarray(weights, np.float64) @ atoms
    return float(np.linalg.norm(residual) / np.linalg.norm(target))


def gaussian_fisher_distance(
    mean: ArrayLike, covariance: ArrayLike, other_mean: ArrayLike, other_covariance: ArrayLike
) -> float:
    """√E‖∇log p − ∇log q‖² under p = N(mean, covariance), with q the other Gaussian.

    The difference is the linear function A(θ − μ) + Σ_q⁻¹(μ − μ_q) with A = Σ_q⁻¹ − Σ⁻¹, whose
    expected square is tr(AΣA) + ‖Σ_q⁻¹(μ − μ_q)‖².

    Args:
        mean: shape (D,).
        covariance: shape (D, D), positive definite.
        other_mean: shape (D,).
        other_covariance: shape (D, D), positive definite.
    """
    covariance = np.asarray(covariance, np.float64)
    precision, other = np.linalg.inv(covariance), np.linalg.inv(np.asarray(other_covariance, float))
    difference = other - precision
    shift = other @ (np.asarray(mean, np.float64) - np.asarray(other_mean, np.float64))
    return float(np.sqrt(np.trace(difference @ covariance @ difference) + shift @ shift))


def fisher_distance(
    log_likelihood: LogLikelihood,
    draws: PyTree,
    data: PyTree,
    indices: ArrayLike,
    weights: ArrayLike,
    batch_size: int | None = None,
) -> float:
    """The weighted Fisher information distance √E‖∇(L − L_w)‖² under the draws.

    See Campbell and Broderick (2018), equation 39; in their experiments the expectation is under
    the full posterior. The prior cancels, so this is also the root mean square of the difference
    ∇log π − ∇log π_w. It depends on the units of the parameters. With ``likelihood =
    coreset.likelihood`` and samples of NumPyro:

        draws = likelihood.unconstrain_draws(mcmc.get_samples())
        fisher_distance(
            likelihood.log_likelihood, draws, likelihood.data, coreset.indices, coreset.weights
        )

    Args:
        log_likelihood: ``log_likelihood(draw, data) -> (n,)``, differentiable in the draw.
        draws: pytree of floating-point arrays with a leading axis of length S.
        data: pytree of arrays with a leading axis of length n.
        indices: shape (m,), the row numbers of the coreset.
        weights: shape (m,).
        batch_size: the number of rows per chunk.

    Raises:
        ValueError: if lengths differ, or a log-likelihood or its gradient is not finite.
    """
    indices, weights = np.asarray(indices), np.asarray(weights, np.float64)
    if indices.ndim != 1 or indices.shape != weights.shape:
        raise ValueError(
            f"indices has shape {indices.shape} and weights has {weights.shape}; expected (m,) "
            "for both."
        )
    features = fisher_features(draws)
    residual = np.asarray(feature_sum(log_likelihood, features, data, batch_size), np.float64)
    step = batch_size or max(1, _ENTRIES // features.width)
    for first in range(0, len(indices), step):
        rows = jax.tree.map(lambda leaf, at=first: leaf[indices[at : at + step]], data)
        block = feature_matrix(log_likelihood, features, rows, leading(rows))
        residual = residual - weights[first : first + step] @ np.asarray(block, np.float64)
    return float(np.linalg.norm(residual))


def moments(
    posterior: Any, sites: Sequence[str] | None = None
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
    """Mean and covariance of a posterior in any form of this module, in float64.

    The sites of a dictionary are in alphabetical order, as in `LaplaceApproximation.names`.

    Args:
        posterior: the posterior.
        sites: for a dictionary, the sites to use; all by default.

    Raises:
        ValueError: if the posterior has none of these forms, a site is missing, or there are no
            more draws than parameters.
    """
    if isinstance(posterior, LaplaceApproximation):
        return posterior.mode, posterior.covariance
    if isinstance(posterior, tuple) and len(posterior) == 2:
        mean, covariance = (np.asarray(part, np.float64) for part in posterior)
        if mean.ndim != 1 or covariance.shape != (mean.size, mean.size):
            raise ValueError(
                f"the mean has shape {mean.shape} and the covariance {covariance.shape}; expected "
                "(D,) and (D, D)."
            )
        return mean, covariance
    draws = _draws(posterior, sites)
    if draws.ndim != 2 or len(draws) < 2:
        raise ValueError(
            f"draws have shape {draws.shape}; expected (draws, D) with at least two draws."
        )
    if len(draws) <= draws.shape[1]:
        raise ValueError(
            f"there are {len(draws):,} draws of {draws.shape[1]:,} parameters; expected more draws "
            "than parameters, as a covariance needs. If the first axis is that of chains, pass "
            "mcmc.get_samples(group_by_chain=False)."
        )
    return draws.mean(axis=0), np.atleast_2d(np.cov(draws, rowvar=False))


def _draws(posterior: Any, sites: Sequence[str] | None) -> np.ndarray:
    if _is_array(posterior):
        return np.asarray(posterior, np.float64)
    if not isinstance(posterior, Mapping):
        raise ValueError(
            f"a posterior is a {type(posterior).__name__}; expected a LaplaceApproximation, a pair "
            "(mean, covariance), draws of shape (draws, D), or a dictionary of samples."
        )
    names = sorted(posterior if sites is None else sites)
    missing = [name for name in names if name not in posterior]
    if missing or not names:
        raise ValueError(f"samples have no {', '.join(missing) or 'sites'}; expected {sites}.")
    count = leading({name: posterior[name] for name in names}, "the samples")
    parts = [np.asarray(posterior[name], np.float64).reshape(count, -1) for name in names]
    return np.concatenate(parts, axis=1)


def _both_moments(full: Any, coreset: Any, sites: Sequence[str] | None) -> tuple[tuple, tuple]:
    if sites is None and isinstance(full, Mapping) and isinstance(coreset, Mapping):
        odd = sorted(set(full) ^ set(coreset))
        if odd:
            raise ValueError(
                f"{', '.join(odd)} is in one of the posteriors only; expected the same sites in "
                "both: name the sites to compare, sites=[…]."
            )
    both = moments(full, sites), moments(coreset, sites)
    _same_size(both[0][0], both[1][0])
    return both


def _same_size(one: np.ndarray, two: np.ndarray) -> None:
    if one.shape != two.shape:
        raise ValueError(
            f"the posteriors have {one.size} and {two.size} parameters; expected the same number. "
            "If samples have deterministic sites, name the sites to compare: sites=[…]."
        )


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | jax.Array)
