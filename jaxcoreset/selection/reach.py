"""How far a posterior reaches beyond a Gaussian, so that remainders count there.

Remainders fade out at a distance at which a Gaussian has no mass. A skewed posterior may have some:
the effect of a level with one event in twenty rows falls by 12 nats at nine standard deviations on
one side, and a rare component of a mixture by 5 nats at six, in a direction that is no parameter's.
The remainders must count there, so distances in such directions are made shorter.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxcoreset.data.compiling import quick_jit
from jaxcoreset.data.dtypes import as_floats, default_float
from jaxcoreset.data.rows import Rows, State
from jaxcoreset.likelihood.expansion import Expansion
from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params, Unravel
from jaxcoreset.likelihood.passes import LogLikelihood
from jaxcoreset.likelihood.totals import log_likelihood_totals
from jaxcoreset.selection.baseline import log_priors

# Beyond a point at which the density has fallen by this many nats there is no mass that matters; a
# Gaussian has fallen so far at the root of twice as much, in standard deviations.
_FALL = 12.5
_RADIUS = float(np.sqrt(2 * _FALL))
# The posterior is skewed in a direction if the density has fallen less at 1.25 times that distance;
# how far it reaches is looked for at these multiples.
_FIRST, _FURTHER = 1.25, (1.6, 2.2, 3.0, 4.0)
# Directions are searched from this many starts, in at most this many passes, of which so many leap,
# until none turns by more than this; two of them are the same if their cosine is above the last.
NUM_STARTS, _MOST_PASSES, _NUM_LEAPS, _TURN, _SAME = 8, 8, 2, 0.1, 0.8
# The density is a Gaussian if no gradient there differs from a Gaussian's by more than this, in
# nats per standard deviation.
_NEGLIGIBLE = 0.05
# The first number of points is rounded up to a multiple of this, and later ones to a multiple of
# what results, so that passes share a program.
_POINTS_AT_A_TIME = 16
# Models of more parameters are not looked at: a pass would take more points than draws.
MOST_PARAMS = 250
# There is another mode where the density rises again by this many nats.
_RISE = 2.0
# A point is impossible where a row's log-likelihood is lower by so many nats than at the center, or
# by its size there if that is more, as for a row with a large survey weight. Rows are centred over
# points, so a larger number would cost the other points digits of float32.
_LARGEST_FALL = 1e5


@runtime_checkable
class Density(Protocol):
    """A log-posterior at flat unconstrained parameters."""

    def values(self, points: Float[np.ndarray, "p d"]) -> Float[np.ndarray, " p"]:
        """The log-density, in nats and up to a constant; −inf where it is not finite."""
        ...

    def gradients(self, points: Float[np.ndarray, "p d"]) -> Float[np.ndarray, "p d"]:
        """Its gradient, which may have entries that are not finite."""
        ...


def reaching_out(density: Density, expansion: Expansion) -> Expansion:
    """An expansion whose remainders count as far as the posterior reaches.

    The log-posterior is evaluated to both sides of the center along the conditional means of the
    other parameters, by one pass over all rows. From the points where it has fallen least, the
    highest points at that Mahalanobis distance are searched, by some passes with gradients; where
    the posterior is Gaussian, one of them suffices. If it is skewed in one of these directions,
    another pass looks how far it reaches.
    """
    center = expansion.center
    if center.size > MOST_PARAMS:
        return expansion
    # An inverse may be too asymmetric to have a root; inverse roots of the precision are definite.
    factor = np.linalg.cholesky(expansion.precision)
    root = np.linalg.inv(factor).T
    covariance = root @ root.T
    axes = (covariance / np.sqrt(np.diag(covariance))).T
    paths = np.concatenate([axes, -axes])
    fallen = _falls(density, center, paths, (_FIRST,))[:, 0]
    starts = paths[np.argsort(fallen, kind="stable")[:NUM_STARTS]]
    found = _highest(density, center, root, starts)
    if len(found):
        paths = np.concatenate([paths, found])
        fallen = np.append(fallen, _falls(density, center, found, (_FIRST,))[:, 0])
    chosen = _different(paths @ factor, fallen)
    if not chosen:
        return expansion
    paths = paths[chosen]
    falls = _falls(density, center, paths, (_FIRST, *_FURTHER))
    factors = np.array([_reach(one) for one in falls])
    units = paths @ factor
    widened = np.eye(center.size) + (units.T * (factors**2 - 1)) @ units
    half = np.linalg.solve(np.linalg.cholesky(widened), factor.T)
    return dataclasses.replace(expansion, metric=half.T @ half, other_mode=_other_mode(falls))


def _other_mode(falls: Float[np.ndarray, "p t"]) -> float | None:
    """The distance at which the density is higher than nearer to the center, in sd."""
    dips = np.maximum.accumulate(falls, axis=1) - falls
    rises = np.where(falls < _FALL, dips, 0)
    if rises.max() < _RISE:
        return None
    return float(_RADIUS * (_FIRST, *_FURTHER)[np.unravel_index(rises.argmax(), rises.shape)[1]])


def _different(directions: Float[np.ndarray, "p d"], fallen: Float[np.ndarray, " p"]) -> list[int]:
    """The skewed ones of unit directions, those that fall least first, without near repeats."""
    kept: list[int] = []
    for one in np.argsort(fallen, kind="stable"):
        is_new = all(abs(directions[one] @ directions[other]) < _SAME for other in kept)
        if fallen[one] < _FALL and is_new:
            kept.append(int(one))
    return kept


def _reach(fallen: Float[np.ndarray, " t"]) -> float:
    """The multiple of a Gaussian's distance at which the density has fallen so far."""
    multiples = np.array([1.0, _FIRST, *_FURTHER])
    fallen = np.maximum.accumulate([min(_FALL, fallen[0]), *fallen])
    return float(np.interp(_FALL, fallen, multiples)) if fallen[1] < _FALL else 1.0


def _falls(
    density: Density,
    center: Float[np.ndarray, " d"],
    paths: Float[np.ndarray, "p d"],
    multiples: Sequence[float],
) -> Float[np.ndarray, "p t"]:
    """By how many nats the log-posterior is lower along paths."""
    points = np.einsum("pd,t->ptd", paths, _RADIUS * np.asarray(multiples))
    points = np.vstack([center, center + points.reshape(-1, center.size)])
    num = len(points)
    at_a_time = _POINTS_AT_A_TIME * math.ceil((2 * center.size + 1) / _POINTS_AT_A_TIME)
    points = np.pad(points, ((0, -num % at_a_time), (0, 0)), mode="edge")
    values = density.values(points)[:num]
    falls = np.minimum(values[0] - values[1:], _LARGEST_FALL)
    return falls.reshape(len(paths), len(multiples))


def _highest(
    density: Density,
    center: Float[np.ndarray, " d"],
    root: Float[np.ndarray, "d d"],
    paths: Float[np.ndarray, "p d"],
) -> Float[np.ndarray, "q d"]:
    """Paths of unit length to local maxima of the log-posterior at one distance.

    There are none if the starts are such maxima already.

    In coordinates z in which the Gaussian is standard its gradient is −z, so r = z + ∇ log p(z) is
    what it does not say. The first steps are those of the power method for the derivatives beyond
    the second, to the direction of r; later ones go from z to z + r, and back to the sphere.
    """
    radius = _FIRST * _RADIUS
    units = np.linalg.solve(root, paths.T).T
    for number in range(_MOST_PASSES):
        rest = density.gradients(center + radius * units @ root.T) @ root + radius * units
        rest = np.where(np.isfinite(rest), rest, 0)
        sizes = np.linalg.norm(rest, axis=1, keepdims=True)
        if number == 0 and sizes.max() < _NEGLIGIBLE:
            return paths[:0]
        is_leap = (number < _NUM_LEAPS) & (sizes > _NEGLIGIBLE)
        moved = np.where(is_leap, rest, radius * units + rest)
        moved /= np.linalg.norm(moved, axis=1, keepdims=True)
        turns = np.linalg.norm(moved - units, axis=1)
        units = moved
        if number >= _NUM_LEAPS and turns.max() < _TURN:
            break
    return units @ root.T


@dataclass(frozen=True)
class PosteriorOfRows:
    """The log-posterior of all rows; each call is a pass over them.

    Attributes:
        likelihood: the likelihood.
        rows: its rows, or some of them.
        center: the flat parameters with whose log-likelihoods those of rows are compared.
    """

    likelihood: ModelLikelihood
    rows: Rows
    center: Float[np.ndarray, " d"]

    def values(self, points: Float[np.ndarray, "p d"]) -> Float[np.ndarray, " p"]:
        """See `Density.values`."""
        likelihood = self.likelihood
        draws = likelihood.unravel.all(points.astype(default_float()))
        total = log_likelihood_totals(self._bounded(), draws, self.rows, what="tails")
        total = total + np.asarray(log_priors(likelihood.program, draws), np.float64)
        return np.where(np.isfinite(total), total, -np.inf)

    def gradients(self, points: Float[np.ndarray, "p d"]) -> Float[np.ndarray, "p d"]:
        """See `Density.gradients`."""
        flat = as_floats(points)
        args = self._bounded(), flat
        start = {"gradient": np.zeros(points.shape)}
        rows, counts = self.rows.folded() or (self.rows, None)
        per_row = () if counts is None else (counts.astype(default_float()),)
        states = rows.map_reduce(
            _slopes, args, 4 * points.size, start, _add_slopes, what="tails", per_row=per_row
        )
        prior = np.asarray(_prior_slopes(self.likelihood.program, flat), np.float64)
        return np.sum([state["gradient"] for state in states], axis=0) + prior

    def _bounded(self) -> "_Bounded":
        center = self.likelihood.unravel(self.center.astype(default_float()))
        return _Bounded(self.likelihood.program.log_likelihood, center, self.likelihood.unravel)


def _slopes(args: tuple, rows: tuple, counted: Array) -> Float[Array, "p d"]:
    log_likelihood, points = args
    data, counts = rows

    def total(flat: Array) -> Float[Array, ""]:
        values = log_likelihood(log_likelihood.unravel(flat), data)
        return jnp.sum(jnp.where(counted, values * counts[0] if counts else values, 0))

    return jax.vmap(jax.grad(total))(points)


def _add_slopes(state: State, values: np.ndarray, first: int, num: int) -> State:
    return {"gradient": state["gradient"] + values.sum(axis=0, dtype=np.float64)}


class _Bounded(eqx.Module):
    """Log-likelihoods of rows; −inf where they are not finite or far lower than at the center."""

    log_likelihood: LogLikelihood = eqx.field(static=True)
    center: Params
    unravel: Unravel = eqx.field(static=True)

    def __call__(self, draw: Mapping[str, Array], data: PyTree) -> Float[Array, " n"]:
        values = self.log_likelihood(draw, data)
        best = self.log_likelihood(self.center, data)
        best = jnp.where(jnp.isfinite(best), best, 0)
        lowest = best - jnp.maximum(jnp.asarray(_LARGEST_FALL, values.dtype), jnp.abs(best))
        return jnp.where(jnp.isfinite(values) & (values > lowest), values, -jnp.inf)


@functools.partial(quick_jit, static_argnums=0)
def _prior_slopes(program: ModelLikelihood, points: Float[Array, "p d"]) -> Float[Array, "p d"]:
    return jax.vmap(jax.grad(lambda flat: program.log_prior(program.unravel(flat))))(points)
