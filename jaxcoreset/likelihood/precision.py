"""Return whether float32 is enough for a model and its data, by measured rounding.

A row's log-likelihood is a difference of numbers that may be far larger, such as ``gammaln`` of a
count of 60,000. What all rows share, such as log σ, has the same rounding error in each row. So
neither the size of a sum over rows nor the number of rows says how large its rounding error is. It
is measured near the posterior: the values in float32 are compared with those in float64. This takes
another program, so the float32 values are checked first: along a short line they are nearly a
cubic, and the remainder is rounding.

Where all rows are summed too coarsely in float32, the build runs in float64, see
`CoresetBuilder.run`. Where only weighted rows are, these are evaluated in float64.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcoreset.data.arrays import leading, padded_rows
from jaxcoreset.data.compiling import quick_jit
from jaxcoreset.data.dtypes import default_float, in_float64, on_device
from jaxcoreset.data.messages import warn_user
from jaxcoreset.data.ragged import Ragged
from jaxcoreset.data.rows import PassContext
from jaxcoreset.likelihood.closures import float64_for
from jaxcoreset.likelihood.embedding import log_likelihood_matrix
from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params
from jaxcoreset.likelihood.verification import other_rows

# The largest variance that the rounding of a sum over all rows may have, in nats²: about what it
# adds to the estimated KL divergence.
MAX_NOISE = 1e-3
# The same for the rows of a coreset, if each of this many stands for an equal part of all rows.
_MAX_WEIGHTED_NOISE = 1e-4
_NUM_WEIGHTED = 50
# Not for more candidate rows than this: float64 would take memory that may be missing.
_MANY = 100_000
# The standard deviation of a rounded energy, in nats, above which NUTS in float32 takes too many
# steps or rejects good ones.
MAX_ENERGY_ERROR = 0.05
# The fraction of it below which float32 is not compared with float64.
_NEGLIGIBLE = 0.2
# The number of points at which values are compared. Along a line from one draw to another they are
# this fraction of it apart.
_NUM_POINTS, _SPACING = 8, 0.05
_EPS = float(np.finfo(np.float32).eps)

T = TypeVar("T")

# What was found of programs that are in use.
_RUNS_IN_FLOAT64: WeakKeyDictionary[ModelLikelihood, bool] = WeakKeyDictionary()


class Float32Error(ValueError):
    """Float32 is too coarse for a model and its data."""


@dataclass(frozen=True)
class Noise:
    """How much log-likelihoods are rounded, in nats².

    Attributes:
        of_row: the mean variance of a row's log-likelihood.
        of_total: the variance of the sum over all rows.
    """

    of_row: float = 0.0
    of_total: float = 0.0

    @classmethod
    def of(cls, errors: Float[np.ndarray, "points m"], num_data: int) -> "Noise":
        """From errors of some rows: shared ones add up over rows, others as independent noise."""
        of_row = float(np.mean(np.var(errors, axis=0, ddof=1)))
        shared = float(np.var(errors.mean(axis=1), ddof=1)) - of_row / errors.shape[1]
        return cls(of_row, num_data * of_row + num_data**2 * max(0.0, shared))

    def of_all(self, likelihood: ModelLikelihood) -> "Noise":
        """What the first process measured, so that all processes make the same decision."""
        own = {name: np.asarray(value) for name, value in vars(self).items()}
        found = likelihood.rows.context.processes.first(own)
        return Noise(**{name: float(value) for name, value in found.items()})


def check_float32(
    likelihood: ModelLikelihood, draws: Mapping[str, Any], max_noise: float = MAX_NOISE
) -> Noise:
    """Measure the rounding at two or more draws, and refuse it if all rows need float64.

    Args:
        likelihood: the likelihood.
        draws: unconstrained draws.
        max_noise: the largest variance that the rounding of the sum over all rows may have.

    Raises:
        Float32Error: if float64 is needed, JAX's x64 is off, and the model runs with it.
    """
    reference, n = likelihood.reference, likelihood.num_data
    if default_float() == np.float64 or reference is None:
        return Noise()
    rows = other_rows(likelihood, reference)
    values_at = functools.partial(_values, reference.evaluate)
    values = values_at(_on_a_line(draws), rows)
    of_size = float(np.mean((_EPS * values[0]) ** 2)) / 12
    bound = Noise.of(_less_cubic(values), n)
    bound = Noise(bound.of_row + of_size, bound.of_total + n * of_size).of_all(likelihood)
    is_fine = bound.of_total <= max_noise and bound.of_row * n**2 <= _NUM_WEIGHTED * max_noise
    if is_fine or not runs_in_float64(likelihood):
        return bound
    points = _first(draws)
    exact = model_in_float64(likelihood, values_at, points, rows)
    noise = Noise.of(values_at(points, rows) - exact, n).of_all(likelihood)
    if noise.of_total > max_noise:
        raise Float32Error(
            f"in float32 the log-likelihood of all {n:,} rows is rounded to "
            f"{np.sqrt(noise.of_total):.1g} nats; expected at most {np.sqrt(max_noise):.1g}. "
            "Use float64: jax.enable_x64(True)."
        )
    return noise


def precision_of(name: str) -> PassContext:
    """The context of passes in a precision, "float32" or "float64".

    JAX's x64 is not switched off where it is on.
    """
    return PassContext(in_float64=name == "float64" and default_float() != np.float64)


def in_enough_precision(run: Callable[[PassContext], T], precision: str, model: Callable) -> T:
    """Call a function in a precision, and again in float64 if that was float32 and too coarse.

    Args:
        run: a function of the context of its passes.
        precision: "float32" or "float64", as `Report.precision`.
        model: the user's model, which may use arrays that JAX remembers, see `float64_for`.
    """
    context = precision_of(precision)
    if not context.in_float64:
        try:
            return run(context)
        except Float32Error:
            context = PassContext(in_float64=True)
    with float64_for(model):
        return run(context)


def runs_in_float64(likelihood: ModelLikelihood) -> bool:
    """True if the model returns float64 values where JAX's x64 is on.

    It does not if it fixes a type, as some loops do. The model is traced once for this.
    """
    program = likelihood.program
    if program not in _RUNS_IN_FLOAT64:
        _RUNS_IN_FLOAT64[program] = _traces_in_float64(likelihood)
    return _RUNS_IN_FLOAT64[program]


def _traces_in_float64(likelihood: ModelLikelihood) -> bool:
    try:
        found = model_in_float64(
            likelihood,
            lambda params, rows: jax.eval_shape(likelihood.program.log_likelihood, params, rows),
            likelihood.init_params,
            likelihood.two_rows,
        )
    except Exception:
        return False
    return found.dtype == np.float64


def exactly(likelihood: ModelLikelihood, evaluate: Callable, *given: Any) -> Any:
    """Call a function in float64 if the model runs in it; its arrays come back as NumPy's."""
    if default_float() == np.float64 or not runs_in_float64(likelihood):
        found = evaluate(*on_device(given))
    else:
        found = model_in_float64(likelihood, evaluate, *given)
    return jax.tree.map(lambda x: np.asarray(x, np.float64), found)


def matrix_of_weighted(
    likelihood: ModelLikelihood,
    draws: Params,
    data: tuple,
    total_weight: float | int,
    batch_size: int | None = None,
    noise: Noise | None = None,
    block: int | None = None,
) -> Float[Array, "m s"]:
    """Log-likelihoods at unconstrained draws of rows that will be weighted, less each row's mean.

    Few rows that stand for many are evaluated in float64 if rounding matters; less their mean over
    the draws, float32 holds them well.

    Args:
        likelihood: the likelihood.
        draws: unconstrained draws.
        data: the rows.
        total_weight: the sum of their weights, such as the number of rows that they stand for.
        batch_size: the number of rows that are evaluated at a time.
        noise: what `check_float32` returned, if it is known.
        block: see `feature_matrix`.
    """

    def evaluate(draws: Params, data: tuple) -> Float[Array, "m s"]:
        log_likelihood = likelihood.program.log_likelihood
        settings = {"batch_size": batch_size, "block": block}
        return log_likelihood_matrix(log_likelihood, draws, data, **settings)

    if default_float() == np.float64 or leading(data) > _MANY:
        return evaluate(draws, data)
    noise = check_float32(likelihood, draws) if noise is None else noise
    of_coreset = noise.of_row * float(total_weight) ** 2 / _NUM_WEIGHTED
    if of_coreset <= _MAX_WEIGHTED_NOISE or not runs_in_float64(likelihood):
        return evaluate(draws, data)
    return jnp.asarray(np.asarray(model_in_float64(likelihood, evaluate, draws, data)), float)


def energy_error(
    likelihood: ModelLikelihood,
    draws: Mapping[str, Any],
    data: Sequence,
    weights: Float[np.ndarray, " m"],
) -> float:
    """The standard deviation of a coreset's log-likelihood by rounding in float32, in nats.

    It is measured at two or more draws. 0 means that it is negligible, or that the model does not
    run in float64.
    """
    return float(energy_errors(likelihood, draws, data, np.asarray(weights)[None])[0])


def energy_errors(
    likelihood: ModelLikelihood,
    draws: Mapping[str, Any],
    data: Sequence,
    weights: Float[np.ndarray, "c m"],
) -> Float[np.ndarray, " c"]:
    """The `energy_error` of several weightings of the same rows, which are evaluated once."""
    weights = np.asarray(weights, np.float64)
    if likelihood.reference is None or not weights.size:
        return np.zeros(len(weights))
    evaluate = likelihood.reference.evaluate
    data, weights = padded_rows(data, weights)
    # On the host, since JAX warns of its own arrays in float64 where x64 is off.
    on_host = jax.tree.map(lambda x: x if isinstance(x, Ragged) else np.asarray(x), data)

    def in_float32(points: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        with jax.enable_x64(False):
            values = _values(evaluate, points, on_host).astype(np.float32)
            sums = _weighted_sums(weights.astype(np.float32), values)
        return values, np.asarray(sums, np.float64)

    values, sums = in_float32(_on_a_line(draws))
    bound = np.std(_less_cubic(sums), axis=0, ddof=1) + _EPS * (weights @ np.abs(values[0]))
    # A build in float64 may be of rows that float32 does not tell apart, or points of the line.
    is_coarse = likelihood.rows.context.in_float64
    is_fine = (bound <= _NEGLIGIBLE * MAX_ENERGY_ERROR) & (not is_coarse)
    if is_fine.all() or not runs_in_float64(likelihood):
        return np.zeros(len(weights))
    points = _first(draws)
    exact = model_in_float64(likelihood, lambda *given: _values(evaluate, *given), points, data)
    errors = np.std(in_float32(points)[1] - exact @ weights.T, axis=0, ddof=1)
    return np.where(is_fine, 0.0, errors)


@quick_jit
def _weighted_sums(weights: Array, values: Array) -> Float[Array, "points c"]:
    return jnp.sum(weights * values[:, None], axis=-1)


def samples_in_float64(likelihood: ModelLikelihood) -> bool:
    """True if JAX's x64 is on by the user's will, and not only for this build's passes."""
    return default_float() == np.float64 and not likelihood.rows.context.in_float64


def needs_float64(rounding: float) -> str:
    """What a rounding above the limit means, and what to do, in a clause."""
    return (
        f"float32 rounds the coreset's log-density to {rounding:.1g} nats, too coarsely for NUTS: "
        "sample within coreset.in_float64()"
    )


def rounding_of(
    likelihood: ModelLikelihood,
    draws: Mapping[str, Any],
    data: Sequence,
    weights: Float[np.ndarray, " m"],
) -> float | None:
    """The `energy_error` of a coreset; None if it is negligible, or x64 is on by the user's will.

    If it is not negligible, warns that NUTS on the coreset needs float64.
    """
    if samples_in_float64(likelihood):
        return None
    error = max(energy_error(likelihood, draws, data, weights), _error_of_steps(draws))
    if error <= MAX_ENERGY_ERROR:
        return None
    warn_user(
        f"the coreset's log-density is rounded to {error:.1g} nats in float32, and NUTS may fail "
        "with such an error. Sample it in float64, which costs little for so few rows: with "
        "coreset.in_float64(): mcmc.run(key, *coreset.args, **coreset.kwargs).",
    )
    return error


def _error_of_steps(draws: Mapping[str, Any]) -> float:
    """The standard deviation of the log-density by rounding a point to float32, in nats.

    NUTS rounds its position in each step. The density is taken as that of a Gaussian with the
    covariance of the draws, or with their variances if there are too few draws.
    """
    flat = np.concatenate(
        [np.asarray(x, np.float64).reshape(len(x), -1) for x in draws.values()], axis=1
    )
    sd = flat.std(axis=0, ddof=1)
    sd = np.where(sd > 0, sd, np.finfo(np.float64).tiny)
    spacing = np.spacing(np.abs(flat.mean(axis=0)).astype(np.float32)).astype(np.float64) / sd
    num, dim = flat.shape
    slopes = np.ones(dim)  # the mean squares, in nats per standard deviation
    if num > 2 * dim:
        standard = (flat - flat.mean(axis=0)) / sd
        slopes = np.diag(np.linalg.pinv(standard.T @ standard / (num - 1), hermitian=True))
    return float(np.sqrt(spacing**2 @ slopes / 12))


def model_in_float64(likelihood: ModelLikelihood, evaluate: Callable[..., T], *trees: Any) -> T:
    """Call a function of a likelihood with JAX's x64 on, see `in_float64`."""
    with float64_for(likelihood.model):
        return in_float64(evaluate, *trees)


def _values(
    evaluate: Callable, points: Mapping[str, Any], rows: tuple
) -> Float[np.ndarray, "points m"]:
    """Log-likelihoods of rows at points, by `ModelLikelihood.by_site`, compiled."""
    found = []
    for at in range(leading(points)):
        by_site = evaluate({name: x[at] for name, x in points.items()}, rows)[0]
        found.append(sum(np.asarray(values, np.float64) for values in by_site.values()))
    return np.stack(found)


def _first(draws: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(x)[:_NUM_POINTS] for name, x in draws.items()}


def _on_a_line(draws: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Points from the first draw towards the second."""
    steps = _SPACING * np.arange(_NUM_POINTS)

    def between(value: Any) -> np.ndarray:
        first, second = np.asarray(value)[:2]
        return first + np.multiply.outer(steps, second - first).astype(first.dtype)

    return {name: between(value) for name, value in draws.items()}


def _less_cubic(values: Float[np.ndarray, "*points_rows"]) -> Float[np.ndarray, "*points_rows"]:
    """What is left of values at regular points after a cubic has been fitted."""
    basis, _ = np.linalg.qr(np.vander(np.linspace(-1, 1, len(values)), 4))
    # Four of the degrees of freedom are gone.
    scale = np.sqrt((len(values) - 1) / (len(values) - 4))
    return scale * (values - basis @ (basis.T @ values))
