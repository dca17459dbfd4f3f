"""Where the log-likelihood of all rows is expanded, and where its remainders fade out.

Remainders fade out at a distance at which a Gaussian has no mass. A skewed posterior may have some:
the effect of a level with one event in twenty rows falls by 12 nats at nine standard deviations on
one side. There the remainders have to count, so along such a parameter distances are made shorter.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxcoreset.data.dtypes import default_float
from jaxcoreset.likelihood.expansion import Expansion, flat_draws
from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params
from jaxcoreset.likelihood.passes import LogLikelihood
from jaxcoreset.likelihood.totals import log_likelihood_totals
from jaxcoreset.selection.draws import DrawPool
from jaxcoreset.selection.parts import Use
from jaxcoreset.weighting.laplace import LaplaceFitter

# Beyond a point at which the density has fallen by this many nats there is no mass that matters; a
# Gaussian has fallen so far at the root of twice as much, in standard deviations.
_FALL = 12.5
# A parameter is skewed if the density has fallen less at 1.25 times that distance; how far it
# reaches is looked for at these multiples.
_FIRST, _FURTHER = 1.25, (1.6, 2.2, 3.0, 4.0)
# Models of more parameters are not looked at: a pass would take more points than draws.
_MOST_PARAMS = 250
# A row's log-likelihood counts no less than this, so that no point is out of bounds.
_LOWEST = -1e5


def reaching_out(likelihood: ModelLikelihood, expansion: Expansion) -> Expansion:
    """An expansion whose remainders count as far as the posterior reaches along each parameter.

    The log-posterior is evaluated to both sides of the center along the conditional means of the
    other parameters, by one pass over all rows, and another if a parameter is skewed.
    """
    if expansion.center.size > _MOST_PARAMS:
        return expansion
    covariance = np.linalg.inv(expansion.precision)
    paths = (covariance / np.sqrt(np.diag(covariance))).T
    fallen = _falls(likelihood, expansion.center, paths, (_FIRST,))
    is_skewed = (fallen[..., 0] < _FALL).any(axis=1)
    if not is_skewed.any():
        return expansion
    skewed = paths[is_skewed]
    further = _falls(likelihood, expansion.center, skewed, _FURTHER)
    fallen = np.concatenate([fallen[is_skewed], further], axis=2)
    factors = np.array([max(map(_reach, both)) for both in fallen])
    widened = covariance + (skewed.T * (factors**2 - 1)) @ skewed
    return dataclasses.replace(expansion, metric=np.linalg.inv(widened))


def _reach(fallen: Float[np.ndarray, " t"]) -> float:
    """The multiple of a Gaussian's distance at which the density has fallen so far."""
    multiples = np.array([1.0, _FIRST, *_FURTHER])
    fallen = np.maximum.accumulate([min(_FALL, fallen[0]), *fallen])
    return float(np.interp(_FALL, fallen, multiples)) if fallen[1] < _FALL else 1.0


def _falls(
    likelihood: ModelLikelihood,
    center: Float[np.ndarray, " d"],
    paths: Float[np.ndarray, "p d"],
    multiples: Sequence[float],
) -> Float[np.ndarray, "p 2 t"]:
    """By how many nats the log-posterior is lower along paths, to both sides."""
    distances = np.sqrt(2 * _FALL) * np.multiply.outer([-1.0, 1.0], multiples)
    points = center + np.einsum("pd,st->pstd", paths, distances).reshape(-1, center.size)
    draws = likelihood.unravel.all(np.vstack([center, points]).astype(default_float()))
    bounded = _Bounded(likelihood.program.log_likelihood)
    total = log_likelihood_totals(bounded, draws, likelihood.rows)
    total = total + np.asarray(_log_priors(likelihood.program, draws), np.float64)
    found = total[0] - np.where(np.isfinite(total[1:]), total[1:], -np.inf)
    return found.reshape(len(paths), 2, len(multiples))


@dataclass(frozen=True)
class _Bounded:
    """Log-likelihoods of rows, with a lower bound where they are not finite or lower."""

    log_likelihood: LogLikelihood

    def __call__(self, draw: Mapping[str, Array], data: PyTree) -> Float[Array, " n"]:
        values = self.log_likelihood(draw, data)
        is_usual = jnp.isfinite(values) & (values > _LOWEST)
        return jnp.where(is_usual, values, jnp.asarray(_LOWEST, values.dtype))


@functools.partial(jax.jit, static_argnums=0)
def _log_priors(program: ModelLikelihood, draws: Params) -> Float[Array, " s"]:
    return jax.vmap(program.log_prior)(draws)


def expansion_of(
    likelihood: ModelLikelihood,
    pool: DrawPool,
    center: Float[np.ndarray, " d"] | None = None,
) -> Expansion | None:
    """The expansion at a point, or at the mean of the pool's draws; None if it is not proper."""
    position = _draws(pool).mean(axis=0) if center is None else center
    return LaplaceFitter(likelihood).expand(position)


def flat_center(params: Params) -> Float[np.ndarray, " d"]:
    """One point as flat parameters, in float64."""
    return flat_draws({name: jnp.asarray(value)[None] for name, value in params.items()})[0]


def _draws(pool: DrawPool) -> Float[np.ndarray, "s d"]:
    parts = [part for use in get_args(Use) for part in pool.parts(use)]
    return np.concatenate([flat_draws(part.draws) for part in parts])
