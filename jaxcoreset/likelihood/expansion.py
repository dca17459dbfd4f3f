"""The second-order expansion of the log-likelihood of all rows, and the rows' remainders.

With T_i the expansion of row i's log-likelihood ℓ_i at a point θ*, in unconstrained parameters,
log L(θ) = Σ_n T_n(θ) + Σ_n (ℓ_n − T_n)(θ). The first sum is a number, a vector and a matrix. It is
a *proxy* of all rows, as in the difference estimator of subsampling MCMC (Quiroz et al. 2019). The
second sum is small where the posterior is nearly Gaussian, and weighted rows approximate it:

    log L(θ) ≈ Σ_n T_n(θ) + χ(r) Σ_i w_i (ℓ_i − T_i)(θ).

Without χ, Σ w_i T_i may be more curved than Σ T_n, and the density then grows without bound. So the
remainders fade out with the distance from θ*: χ(r) = sigmoid((√D + 4 − r) / 0.5), where r is the
Mahalanobis radius under the Laplace approximation's covariance. Farther out the log-likelihood is
the quadratic, and the density is proper.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxcoreset.data.arrays import leading, padded_rows, require_type
from jaxcoreset.data.blocks import few_places
from jaxcoreset.data.compiling import quick_jit
from jaxcoreset.data.dtypes import default_float
from jaxcoreset.likelihood.embedding import DRAWS_AT_A_TIME
from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params, Unravel
from jaxcoreset.likelihood.passes import Features, LogLikelihood, check_shape, feature_matrix
from jaxcoreset.likelihood.precision import exactly
from jaxcoreset.solvers.numerics import HIGHEST

# The remainders fade out at this radius beyond √D, over this width.
_RADIUS_BEYOND, _FADE_WIDTH = 4.0, 0.5
# If there are more than this number of times the places of a program for few rows, this number of
# times as many rows are evaluated at once.
_MANY_PLACES = 16


@dataclass(frozen=True, eq=False)
class Expansion:
    """A quadratic in the flat unconstrained parameters, in float64.

    Attributes:
        center: shape (D,), the point θ* of the expansion.
        value: the log-likelihood of all rows there, in nats.
        gradient: shape (D,), its gradient.
        hessian: shape (D, D), its Hessian.
        precision: shape (D, D), minus the Hessian of the log-posterior, positive definite.
        metric: shape (D, D), by which the radius of the fade is measured; the precision by default.
        other_mode: at how many standard deviations from the center the density rises again; None if
            it was not seen to do so.
    """

    center: Float[np.ndarray, " d"]
    value: float
    gradient: Float[np.ndarray, " d"]
    hessian: Float[np.ndarray, "d d"]
    precision: Float[np.ndarray, "d d"]
    metric: Float[np.ndarray, "d d"] | None = None
    other_mode: float | None = None

    def at(self, flat: Float[np.ndarray, "s d"]) -> Float[np.ndarray, " s"]:
        """The quadratic at flat parameters, less its value at the center."""
        delta = np.asarray(flat, np.float64) - self.center
        return delta @ self.gradient + 0.5 * np.sum((delta @ self.hessian) * delta, axis=1)

    @property
    def fade_metric(self) -> Float[np.ndarray, "d d"]:
        """The metric, or else the precision."""
        return self.precision if self.metric is None else self.metric

    def fade(self, flat: Float[np.ndarray, "s d"]) -> Float[np.ndarray, " s"]:
        """The factor χ of the remainders at flat parameters, between 0 and 1."""
        from scipy.special import expit

        delta = np.asarray(flat, np.float64) - self.center
        radius = np.sqrt(np.sum((delta @ self.fade_metric) * delta, axis=1))
        return expit((_radius(self.center.size) - radius) / _FADE_WIDTH)

    def plus(self, other: "Terms") -> "Expansion":
        """The expansion, at the same center, of these rows and of others together."""
        return Expansion(
            self.center,
            self.value + other.value,
            self.gradient + other.gradient,
            self.hessian + other.hessian,
            self.precision - other.hessian,
            None if self.metric is None else self.metric - other.hessian,
        )


@dataclass(frozen=True, eq=False)
class Terms:
    """The log-likelihood of some weighted rows at a point, and its derivatives.

    Attributes:
        value: a number, in nats.
        gradient: shape (D,).
        hessian: shape (D, D).
    """

    value: float
    gradient: Float[np.ndarray, " d"]
    hessian: Float[np.ndarray, "d d"]

    def plus(self, other: "Terms") -> "Terms":
        """Those of these rows and of others together."""
        return Terms(
            self.value + other.value, self.gradient + other.gradient, self.hessian + other.hessian
        )

    def at(self, delta: Float[np.ndarray, " d"]) -> float:
        """The second-order expansion at a distance from the point."""
        return float(self.value + delta @ self.gradient + 0.5 * delta @ self.hessian @ delta)


class Proxy(eqx.Module):
    """The log-likelihood of a coreset with a proxy, but for its constant, as a pytree of arrays.

    Attributes:
        center: shape (D,), the flat unconstrained parameters of the expansion.
        value: the log-likelihood of all rows there, in nats.
        gradient: shape (D,), that of Σ T_n.
        hessian: shape (D, D), that of Σ T_n.
        precision: shape (D, D), by which the radius of the fade is measured.
        row_value: Σ w_i ℓ_i at the center, over the rows of the coreset.
        row_gradient: shape (D,), its gradient.
        row_hessian: shape (D, D), its Hessian.
        unravel: the names and shapes of the parameters.
    """

    center: Float[np.ndarray, " d"]
    value: Float[np.ndarray, ""]
    gradient: Float[np.ndarray, " d"]
    hessian: Float[np.ndarray, "d d"]
    precision: Float[np.ndarray, "d d"]
    row_value: Float[np.ndarray, ""]
    row_gradient: Float[np.ndarray, " d"]
    row_hessian: Float[np.ndarray, "d d"]
    unravel: Unravel = eqx.field(static=True, kw_only=True)

    @classmethod
    def of(cls, expansion: Expansion, rows: Terms, unravel: Unravel) -> "Proxy":
        """The proxy of an expansion and the weighted rows of a coreset."""
        whole = expansion.value, expansion.gradient, expansion.hessian, expansion.fade_metric
        of_rows = rows.value, rows.gradient, rows.hessian
        parts = (np.asarray(x, np.float64) for x in (expansion.center, *whole, *of_rows))
        return cls(*parts, unravel=unravel)

    @property
    def expansion(self) -> Expansion:
        """The expansion of all rows."""
        return Expansion(
            self.center, float(self.value), self.gradient, self.hessian, self.precision
        )

    def log_likelihood(self, flat: Float[Array, " d"], weighted: Any) -> Float[Array, ""]:
        """The log-likelihood less that of all rows at the center.

        Args:
            flat: the flat unconstrained parameters.
            weighted: Σ w_i ℓ_i there; None if there are no rows.
        """
        quadratic, rows, fade = self._parts(flat)
        return quadratic if weighted is None else quadratic + fade * (weighted - rows)

    def rest(self, flat: Float[Array, " d"], weighted: Any) -> Float[Array, ""]:
        """What a model adds whose weighted rows are in it already; arguments as above."""
        quadratic, rows, fade = self._parts(flat)
        if weighted is None:
            return quadratic
        # Where a row has no probability, neither has the whole.
        kept = jnp.where(jnp.isfinite(weighted), weighted, 0)
        return quadratic - fade * rows - (1 - fade) * kept

    def scaled(self, factor: float) -> "Proxy":
        """The proxy of a log-likelihood that is multiplied by a factor, as are the weights."""
        names = ("value", "gradient", "hessian", "row_value", "row_gradient", "row_hessian")
        parts = {name: np.asarray(factor * getattr(self, name)) for name in names}
        return dataclasses.replace(self, **parts)

    def _parts(self, flat: Float[Array, " d"]) -> tuple[Array, Array, Array]:
        """Σ T_n less its constant, Σ w_i T_i, and the factor χ."""
        one = jax.tree.map(lambda x: jnp.asarray(x, flat.dtype), self)
        delta = flat - one.center

        def form(matrix: Array) -> Array:
            return jnp.vdot(delta, jnp.matmul(matrix, delta, precision=HIGHEST), precision=HIGHEST)

        quadratic = jnp.vdot(one.gradient, delta, precision=HIGHEST) + 0.5 * form(one.hessian)
        rows = jnp.vdot(one.row_gradient, delta, precision=HIGHEST) + 0.5 * form(one.row_hessian)
        # The square root has no derivative at zero.
        radius = jnp.sqrt(jnp.maximum(form(one.precision), 1e-12))
        fade = jax.nn.sigmoid((_radius(flat.size) - radius) / _FADE_WIDTH)
        return quadratic, one.row_value + rows, fade

    def flat(self, params: Mapping[str, Array]) -> Float[Array, " d"]:
        """Unconstrained parameters as a flat vector."""
        return jnp.concatenate([jnp.ravel(params[name]) for name, _ in self.unravel.shapes])

    def to_dict(self) -> dict[str, Any]:
        """The arrays by name, and the names and shapes of the parameters."""
        arrays = {name: np.asarray(getattr(self, name)) for name in _ARRAYS}
        shapes = [[name, list(shape)] for name, shape in self.unravel.shapes]
        return {**arrays, "shapes": shapes}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Proxy":
        """The inverse of `to_dict`.

        Raises:
            ValueError: if an array is missing, has another shape, or is not finite.
        """
        require_type(plain["shapes"], list[Any], "shapes of the proxy")
        shapes = tuple((str(name), tuple(map(int, shape))) for name, shape in plain["shapes"])
        size = (sum(math.prod(shape) for _, shape in shapes),)
        arrays = {name: np.asarray(plain[name]) for name in _ARRAYS}
        for name, value in arrays.items():
            shape = () if name.endswith("value") else size
            shape = size * 2 if name.endswith(("hessian", "precision")) else shape
            if value.shape != shape or value.dtype.kind != "f" or not np.isfinite(value).all():
                raise ValueError(f"{name} of the proxy is not finite, or not of shape {shape}")
        return cls(**arrays, unravel=Unravel(shapes))


_ARRAYS = tuple(field.name for field in fields(Proxy) if field.name != "unravel")


def _radius(num_params: int) -> float:
    return float(np.sqrt(num_params)) + _RADIUS_BEYOND


def terms_of_rows(
    likelihood: ModelLikelihood,
    data: tuple,
    weights: Float[np.ndarray, " k"],
    center: Float[np.ndarray, " d"],
) -> Terms:
    """The weighted log-likelihood of a few rows at a point and its derivatives, in float64."""
    size = center.size
    if not len(weights):
        return Terms(0.0, np.zeros(size), np.zeros((size, size)))
    evaluate = functools.partial(_weighted_terms, likelihood.program)
    # Always as many rows, few or many, so that calls share two programs.
    num = few_places(data)
    num = num if len(weights) <= _MANY_PLACES * num else _MANY_PLACES * num
    total = Terms(0.0, np.zeros(size), np.zeros((size, size)))
    for at in range(0, len(weights), num):
        few, own = padded_rows([leaf[at : at + num] for leaf in data], weights[at : at + num], num)
        value, gradient, hessian = exactly(likelihood, evaluate, center, few, own)
        total = total.plus(Terms(float(value), gradient, hessian))
    return total


@functools.partial(quick_jit, static_argnums=0)
def _weighted_terms(
    program: ModelLikelihood, center: Array, data: tuple, weights: Array
) -> tuple[Array, Array, Array]:
    def total(flat: Array) -> Float[Array, ""]:
        return jnp.vdot(weights, program.log_likelihood(program.unravel(flat), data))

    return derivatives(total, center)


def derivatives(
    function: Callable[[Array], Array], at: Float[Array, " d"]
) -> tuple[Array, Array, Array]:
    """The value, the gradient and the symmetric Hessian of a function, which is traced once."""

    def slope(at: Array) -> tuple[Array, tuple[Array, Array]]:
        value, gradient = jax.value_and_grad(function)(at)
        return gradient, (value, gradient)

    hessian, (value, gradient) = jax.jacfwd(slope, has_aux=True)(at)
    return value, gradient, (hessian + hessian.T) / 2


def remainders(
    likelihood: ModelLikelihood,
    draws: Params,
    data: tuple,
    center: Float[np.ndarray, " d"],
    batch_size: int | None = None,
    typical: int | None = None,
    block: int | None = None,
) -> Float[np.ndarray, "m s"]:
    """The remainders ℓ_i − T_i of rows at draws, in float64 if the model runs in it.

    They are small differences of large numbers, which float32 cannot resolve.

    Args:
        likelihood: the likelihood.
        draws: unconstrained draws, with a leading axis of s.
        data: m rows.
        center: the flat parameters of the expansion.
        batch_size: the number of rows that are evaluated at a time.
        typical: a number of rows; calls with the same number share a program.
        block: the number of rows that are evaluated at once; chosen by that of draws by default.
    """
    deltas = flat_draws(draws) - center
    num = len(deltas)
    if num > DRAWS_AT_A_TIME:
        deltas = np.pad(deltas, ((0, -num % DRAWS_AT_A_TIME), (0, 0)), mode="edge")

    def evaluate(deltas: Array, center: Array, data: tuple) -> Array:
        features = _Remainders(deltas, center, likelihood.unravel)
        log_likelihood = likelihood.program.log_likelihood
        return feature_matrix(log_likelihood, features, data, batch_size, typical, block)

    found = [
        exactly(likelihood, evaluate, deltas[at : at + DRAWS_AT_A_TIME], center, data)
        for at in range(0, len(deltas), DRAWS_AT_A_TIME)
    ]
    return np.concatenate(found, axis=1)[:, :num]


def flat_draws(draws: Mapping[str, Any]) -> Float[np.ndarray, "s d"]:
    """Draws as flat unconstrained parameters, in float64."""
    num = leading(draws)
    parts = [np.asarray(draws[name], np.float64).reshape(num, -1) for name in sorted(draws)]
    return np.concatenate(parts, axis=1)


def flat_point(params: Mapping[str, Any]) -> Float[np.ndarray, " d"]:
    """One point's flat unconstrained parameters, in float64."""
    return flat_draws({name: np.asarray(value)[None] for name, value in params.items()})[0]


@dataclass(frozen=True)
class FadedRemainder:
    """A row's remainder at a draw, in JAX's precision, to compare rows in a pass over all of them.

    Attributes:
        log_likelihood: ``log_likelihood(draw, data) -> (n,)``.
        unravel: from flat parameters to a draw.
    """

    log_likelihood: LogLikelihood
    unravel: Callable

    def __call__(self, draw: Mapping[str, Array], data: PyTree) -> Float[Array, " n"]:
        """The remainders of rows, faded out, at one of the draws that `around` returns.

        In a batch of draws the center is not to be batched: what depends on it alone is then
        evaluated once, and that is all that is not linear in the rest.
        """
        found = _remainder(self.log_likelihood, self.unravel, draw["center"], draw["delta"], data)
        return draw["fade"] * found


def around(expansion: Expansion, draws: Params) -> tuple[dict[str, Array], dict[str, Array]]:
    """Draws as what `FadedRemainder` takes: with a leading axis, and what they have in common."""
    flat = flat_draws(draws)
    given = {"delta": flat - expansion.center, "fade": expansion.fade(flat)}
    of_draws = {name: jnp.asarray(value, default_float()) for name, value in given.items()}
    return of_draws, {"center": jnp.asarray(expansion.center, default_float())}


def _remainder(
    log_likelihood: LogLikelihood, unravel: Callable, center: Array, delta: Array, data: PyTree
) -> Float[Array, " n"]:
    """Rows' log-likelihoods beside a point, less their second-order expansions there."""

    def values(flat: Array) -> Array:
        return log_likelihood(unravel(flat), data)

    def slope(flat: Array) -> Array:
        return jax.jvp(values, (flat,), (delta,))[1]

    first, second = jax.jvp(slope, (center,), (delta,))
    return values(center + delta) - values(center) - first - second / 2


class _Remainders(Features):
    """Log-likelihoods at draws less their expansions at one point."""

    quantity = "the log-likelihood"

    deltas: Float[Array, "s d"]
    center: Float[Array, " d"]
    unravel: Callable = eqx.field(static=True)

    @property
    def width(self) -> int:
        return leading(self.deltas)

    def block(self, log_likelihood: LogLikelihood, chunk: PyTree) -> tuple[Array, Array]:
        # The center is the same for all draws, so that only linear terms depend on the draw.
        def remainder(delta: Array) -> Array:
            return _remainder(log_likelihood, self.unravel, self.center, delta, chunk)

        found = jax.vmap(remainder, out_axes=-1)(self.deltas)
        check_shape(found.shape[:-1], leading(chunk))
        return found, ~jnp.isfinite(jnp.mean(found, axis=-1))

    def sum(self, log_likelihood: LogLikelihood, chunk: PyTree, counted: Array) -> Array:
        """The sum of `block` over the rows counted."""
        values, _ = self.block(log_likelihood, chunk)
        return jnp.sum(jnp.where(counted[:, None], values, 0), axis=0)
