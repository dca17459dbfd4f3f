"""Pareto-smoothed leave-one-out for many rows at once, on the device.

To leave row i out, the draws are weighted by r = log p − log q − ℓ_i, where log p − log q is the
log-ratio of the full posterior to the coreset's, and ℓ_i the row's log-likelihood. The largest r of
each row are smoothed (Vehtari, Simpson, Gelman, Yao and Gabry, JMLR 25(72), 2024, Algorithm 1). A
loop over rows on the host would take longer than their log-likelihoods.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxcoreset.likelihood.observed import are_observed
from jaxcoreset.weighting.psis import NEGLIGIBLE

# The prior of the tail's shape and of its scale (Zhang and Stephens, Technometrics 51(3), 2009, and
# Vehtari et al. 2024, appendix C).
_PRIOR_SHAPE, _PRIOR_WEIGHT, _PRIOR_QUANTILE = 0.5, 10, 3
_GRID = 30
# A tail of fewer draws cannot be fitted.
_SHORTEST_TAIL = 5
# Below it, in absolute value, a tail is exponential in float32.
_NO_SHAPE = 1e-6
# Ratios that are lower than the largest by more nats count as nothing in float32.
_WIDEST = 80.0


class LeaveOneOut(eqx.Module):
    """What leaving rows out takes, besides their log-likelihoods.

    Attributes:
        log_ratios: shape (S,), log p − log q at the draws, of which the largest is 0.
        log_weights: shape (S,), the same smoothed; their exponentials add up to one.
        tail: how many of the largest ratios are smoothed.
    """

    log_ratios: Float[Array, " s"]
    log_weights: Float[Array, " s"]
    tail: int = eqx.field(static=True)

    @classmethod
    def of(
        cls,
        log_ratios: Float[np.ndarray, "*s"],
        log_weights: Float[np.ndarray, "*s"],
        efficiency: float,
    ) -> "LeaveOneOut":
        """That of these ratios; `efficiency` is their effective sample size over their number."""
        ratios, num = log_ratios.ravel() - log_ratios.max(), log_ratios.size
        tail = math.ceil(min(num / 5, 3 * math.sqrt(num / efficiency)))
        return cls(jnp.asarray(ratios, float), jnp.asarray(log_weights.ravel(), float), tail)

    def __call__(self, values: Float[Array, "m s"]) -> dict[str, Array]:
        """The log predictive densities of rows, left out and not, and Pareto's k.

        Args:
            values: their log-likelihoods at the draws.
        """
        # The full posterior excludes draws at which a row has no probability; without that row it
        # might not, which no weight of these draws shows.
        possible = values > -jnp.inf
        ratios = jnp.where(possible, self.log_ratios - values, -jnp.inf)
        # Without barriers XLA sorts all the ratios on a CPU, which takes eight times as long. One
        # barrier around both arrays would end the process on several devices (jaxlib 0.10).
        top, at = map(jax.lax.optimization_barrier, jax.lax.top_k(ratios, self.tail + 1))
        largest = top[:, :1]
        cutoff = jnp.maximum(top[:, -1:], largest - _WIDEST)
        # The excess over the cutoff, from the smallest on, in units of the largest.
        excess = jnp.expm1(top[:, -2::-1] - cutoff)
        inside = excess > 0
        scale = jnp.maximum(excess[:, -1:], jnp.finfo(excess.dtype).tiny)
        khat, quantiles = fit_tail(excess / scale, inside)
        smooth = cutoff + jnp.log1p(quantiles * scale)
        plain = top[:, -2::-1]
        narrow = largest[:, 0] - jnp.min(ratios, axis=1) < NEGLIGIBLE
        khat = jnp.where(narrow, 0.0, khat)
        use = (jnp.isfinite(khat) & ~narrow)[:, None]
        smooth = jnp.where(use, jnp.minimum(smooth, largest), plain)

        # Σ exp(r + ℓ) / Σ exp(r) over the smoothed r; r + ℓ is the ratio log p − log q, where r is
        # not smoothed.
        exponentials = jnp.exp(self.log_ratios)
        rest = ratios <= cutoff
        below = jnp.sum(jnp.where(rest, jnp.exp(ratios - largest), 0), axis=1)
        below = below + jnp.sum(jnp.where(inside, jnp.exp(smooth - largest), 0), axis=1)
        above = jnp.sum(jnp.where(rest & (ratios > -jnp.inf), exponentials, 0), axis=1)
        raised = jnp.where(inside, jnp.exp(smooth - plain), 0) * exponentials[at[:, -2::-1]]
        above = above + jnp.sum(raised, axis=1)
        return {
            "elpd": jnp.log(above) - jnp.log(below) - largest[:, 0],
            "lpd": jax.nn.logsumexp(self.log_weights + values, axis=1),
            "khat": jnp.where(jnp.all(possible, axis=1), khat, jnp.inf),
        }


def fit_tail(
    excess: Float[Array, "m t"], inside: Bool[Array, "m t"]
) -> tuple[Float[Array, " m"], Float[Array, "m t"]]:
    """The shape of each row's generalised Pareto distribution, and its quantiles by rank.

    Args:
        excess: in increasing order; the largest is 1.
        inside: which entries are of the tail, the last ones of a row.

    Returns:
        The shape is infinite for tails of fewer than five entries.
    """
    most = excess.shape[1]
    num = jnp.sum(inside, axis=1)
    count = jnp.maximum(num, 1).astype(excess.dtype)
    quartile = most - num + jnp.floor(count / 4 + 0.5).astype(int) - 1
    quartile = jnp.take_along_axis(excess, jnp.clip(quartile, 0)[:, None], axis=1)
    points = jnp.arange(1, _GRID + math.isqrt(most) + 1)
    num_points = _GRID + jnp.floor(jnp.sqrt(count))[:, None]
    grid = 1 - jnp.sqrt(num_points / (points - 0.5))
    grid = grid / (_PRIOR_QUANTILE * jnp.maximum(quartile, 1e-30)) + 1 / excess[:, -1:]
    means = _mean_log(grid, excess, inside, count)
    likelihood = count[:, None] * (jnp.log(-grid / means) - means - 1)
    likelihood = jnp.where(points <= num_points, likelihood, -jnp.inf)
    weights = jax.nn.softmax(likelihood, axis=1)
    rate = jnp.sum(jnp.where(weights > 0, weights * grid, 0), axis=1)
    shape = _mean_log(rate[:, None], excess, inside, count)[:, 0]
    sigma = -shape / rate
    khat = (count * shape + _PRIOR_WEIGHT * _PRIOR_SHAPE) / (count + _PRIOR_WEIGHT)

    ranks: Int[Array, "m t"] = jnp.arange(most) - (most - num)[:, None]
    survival = jnp.log1p(-jnp.clip((ranks + 0.5) / count[:, None], 0, 1 - 1e-7))
    power = jnp.where(jnp.abs(khat) < _NO_SHAPE, 1.0, khat)[:, None]
    curved = jnp.expm1(-power * survival) / power
    quantiles = jnp.where(jnp.abs(khat)[:, None] < _NO_SHAPE, -survival, curved)
    is_fitted = (num >= _SHORTEST_TAIL) & jnp.isfinite(khat)
    return jnp.where(is_fitted, khat, jnp.inf), quantiles * sigma[:, None]


def _mean_log(grid: Array, excess: Array, inside: Array, count: Array) -> Array:
    """The mean of log(1 − b x) over the tail x, for each b of a grid."""
    logs = jnp.log1p(-grid[:, :, None] * excess[:, None, :])
    return jnp.sum(jnp.where(inside[:, None, :], logs, 0), axis=2) / count[:, None]


def block(args: Any, rows: tuple, counted: Array) -> dict[str, Array]:
    """`LeaveOneOut` of a block of rows, and which are observations, for a pass over all of them."""
    program, draws, leave = args
    values = jax.vmap(program.log_likelihood_constrained, in_axes=(0, None))(draws, rows[0])
    first = {name: x[0] for name, x in draws.items()}
    return {**leave(values.T), "observed": are_observed(program, first, rows[0])}
