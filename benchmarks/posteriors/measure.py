"""How far a method's draws are from the truth."""

from typing import Any

import jax
import numpy as np
from numpyro.diagnostics import effective_sample_size

from benchmarks.posteriors.density import Posterior, Truth
from benchmarks.posteriors.outcome import Outcome
from benchmarks.proxy.truth import moments_divergence

# Draws of a method at which the densities are evaluated.
_JUDGED = 1000


def _mean(values: np.ndarray) -> tuple[float, float]:
    """The mean and its Monte Carlo error; the draws are in the order of their chains."""
    size = float(effective_sample_size(values[None])) if np.ptp(values) > 0 else len(values)
    return float(values.mean()), float(values.std() / np.sqrt(max(size, 1.0)))


def divergence(of_truth: np.ndarray, of_method: np.ndarray) -> dict[str, Any]:
    """The symmetrised KL divergence of p and q from log p − log q at draws of both, in nats.

    E_p[log p − log q] − E_q[log p − log q] needs no normalisers. Where it is below its own Monte
    Carlo error, the variance of log p − log q under p is the better figure.

    Args:
        of_truth: log p − log q, up to a constant, at draws of p.
        of_method: the same at draws of q.
    """
    if not (np.isfinite(of_truth).all() and np.isfinite(of_method).all()):
        return {"KL": None, "error": None, "variance": None}
    (mine, error), (theirs, of_theirs) = _mean(of_truth), _mean(of_method)
    around = of_truth - np.median(of_truth)
    return {
        "range": [float(around.min()), float(around.max())],
        "KL": mine - theirs,
        "error": float(np.hypot(error, of_theirs)),
        "variance": float(np.var(of_truth)),
    }


def compare(outcome: Outcome, posterior: Posterior, truth: Truth) -> dict[str, Any]:
    """Everything that the tables tell of a method's draws.

    Args:
        outcome: the method's draws.
        posterior: the posterior of all rows.
        truth: draws of it.
    """
    own = posterior.case.flat(outcome.draws)
    with np.errstate(all="ignore"):
        given = outcome.unconstrained or posterior.unconstrain(outcome.draws)
    free = posterior.flat(given)
    mean_error = np.abs(own.mean(axis=0) - truth.mean) / truth.sd
    ratio = own.std(axis=0) / truth.sd
    inside = (own >= truth.quantiles[0]) & (own <= truth.quantiles[-1])
    low, high = np.quantile(own, (0.05, 0.95), axis=0)
    samples = posterior.case.flat(posterior.constrain(posterior.split(truth.unconstrained)))
    covered = ((samples >= low) & (samples <= high)).mean(axis=0)
    found: dict[str, Any] = {
        "draws": len(own),
        "mean error, sd": float(mean_error.max()),
        "sd ratios": [float(ratio.min()), float(ratio.max())],
        "truth within their 90 % intervals": [float(covered.min()), float(covered.max())],
        "draws within the true 90 % intervals": [
            float(inside.mean(axis=0).min()),
            float(inside.mean(axis=0).max()),
        ],
        "effective": float(min(effective_sample_size(x[None]) for x in own.T if np.ptp(x) > 0)),
    }
    if outcome.log_weights is not None:
        weights = np.exp(outcome.log_weights - outcome.log_weights.max())
        weights /= weights.sum()
        corrected = np.abs(weights @ own - truth.mean) / truth.sd
        found["mean error corrected, sd"] = float(corrected.max())
    whole = np.isfinite(free).all(axis=1)
    try:
        found["KL of moments"] = moments_divergence(truth.unconstrained, free[whole])
    except np.linalg.LinAlgError:
        found["KL of moments"] = None
    if outcome.log_density is not None:
        thin = np.linspace(0, len(free) - 1, min(_JUDGED, len(free))).round().astype(int)
        theirs = free[thin]
        # Integrals over effects are those of the coreset's own precision.
        with jax.enable_x64(posterior.case.groups is None):
            at_truth = posterior.log_densities(truth.unconstrained, outcome.log_density)
            at_theirs = posterior.log_densities(theirs, outcome.log_density)
        of_truth = truth.log_density - at_truth
        of_method = posterior.log_densities(theirs) - at_theirs
        found |= divergence(of_truth, of_method)
    return found
