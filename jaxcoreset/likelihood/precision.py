"""Float64 for the weighted rows of a long table, even if JAX's x64 is off.

Float32 rounds a row's log-likelihood to about 1e-8 nats, and a coreset row of n has a weight of
n/k. So the sum of k rows has an error of variance (n²/k)·1e-15 nats², 0.1 for n = 10⁸, and the sum
itself, of the order of n nats, is rounded to n·1e-7. From a million rows on, the few weighted rows
are therefore evaluated in float64; less their mean over the draws, float32 holds them well.
"""

import warnings
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcoreset.data.arrays import leading
from jaxcoreset.data.dtypes import in_float64
from jaxcoreset.likelihood.embedding import log_likelihood_matrix
from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params

# Float64 from this number of rows on. At a million the variance is 2e-5 with 50 rows.
_LONG = 1_000_000
# Not for more candidate rows than this: float64 would take memory that may be missing.
_MANY = 100_000
# NUTS fails if energies are rounded to more nats than this.
_ROUGH = 0.2

T = TypeVar("T")


def needs_float64(likelihood: ModelLikelihood, total_weight: float | int) -> bool:
    """True if rows whose weights have this sum should be evaluated in float64.

    False if JAX does so anyway, or if the model cannot because it fixes a type, as some loops do.
    """
    if total_weight < _LONG or jax.config.jax_enable_x64:  # pyright: ignore
        return False
    try:
        found = in_float64(
            lambda params, rows: jax.eval_shape(likelihood.log_likelihood, params, rows),
            likelihood.init_params,
            likelihood.two_rows,
        )
    except Exception:
        return False
    return found.dtype == np.float64


def matrix_of_weighted(
    likelihood: ModelLikelihood,
    draws: Params,
    data: tuple,
    total_weight: float | int,
    batch_size: int | None = None,
) -> Float[Array, "m s"]:
    """Log-likelihoods at unconstrained draws of rows that will be weighted, less each row's mean.

    `total_weight` is the sum of their weights, such as the number of rows that they stand for.
    """

    def evaluate(draws: Params, data: tuple) -> Float[Array, "m s"]:
        return log_likelihood_matrix(likelihood.log_likelihood, draws, data, batch_size=batch_size)

    if leading(data) > _MANY or not needs_float64(likelihood, total_weight):
        return evaluate(draws, data)
    return jnp.asarray(np.asarray(in_float64(evaluate, draws, data)), float)


def rounding_of(
    likelihood: ModelLikelihood, params: Params, data: tuple, weights: Float[np.ndarray, " m"]
) -> float | None:
    """The rounding of a coreset's log-likelihood in float32, in nats; None if it is negligible.

    It is that at unconstrained `params`, such as a posterior draw. If it is not negligible, warns
    that NUTS on the coreset needs float64.
    """
    if weights.sum() < _LONG or jax.config.jax_enable_x64:  # pyright: ignore
        return None
    values = np.asarray(likelihood.log_likelihood(params, data), np.float64)
    rounding = float(abs(weights @ values) * np.finfo(np.float32).eps)
    if rounding <= _ROUGH:
        return None
    warnings.warn(
        f"the coreset's log density is rounded to {rounding:.1g} nats in float32, which makes NUTS "
        "fail. Run it in float64, which costs little on so few rows: under "
        "jax.enable_x64(True), or with jax.config.update('jax_enable_x64', True).",
        stacklevel=2,
    )
    return rounding
