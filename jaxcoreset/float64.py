"""Float64 where float32 cannot hold what a long table weighs, though JAX's x64 is off.

A row's log-likelihood is rounded to some 1e-8 nats, and a coreset row of a table of n rows has a
weight of n/k. So k rows add up with an error of variance (n²/k)·1e-15 nats², which is nothing for
n = 10⁵ and 0.1 for n = 10⁸; and the weighted sum itself, of the order of n nats, is rounded to
n·1e-7. The few rows that are weighted are therefore evaluated in float64 from a million rows on. A
row's log-likelihood less its mean over the draws is then small, and float32 holds it well.
"""

import warnings
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PyTree

from jaxcoreset.laplace import Params
from jaxcoreset.likelihood import ModelLikelihood

# From so many rows on. At a million the variance is 2e-5 with 50 rows.
_LONG = 1_000_000
# NUTS gets lost where energies are rounded to more nats than this.
_ROUGH = 0.2

T = TypeVar("T")


def wants_float64(likelihood: ModelLikelihood) -> bool:
    """Whether rows of these data that are weighted are to be evaluated in float64.

    Not where JAX does so anyway, nor where the model cannot: where it fixes a type, as some loops
    do.
    """
    if likelihood.num_data < _LONG or jax.config.jax_enable_x64:  # pyright: ignore
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


def rounding_of(
    likelihood: ModelLikelihood,
    params: Params,
    indices: Int[np.ndarray, " m"],
    weights: Float[np.ndarray, " m"],
) -> float | None:
    """What float32 rounds a coreset's log-likelihood to, in nats; None where it is little.

    Warns that NUTS on the coreset wants float64, else.

    Args:
        likelihood: the model's likelihood and data.
        params: unconstrained parameters at which to look, such as a draw of the posterior.
        indices: the coreset's rows.
        weights: its weights.
    """
    if likelihood.num_data < _LONG or jax.config.jax_enable_x64:  # pyright: ignore
        return None
    values = np.asarray(likelihood.log_likelihood(params, likelihood.take(indices)), np.float64)
    rounding = float(abs(weights @ values) * np.finfo(np.float32).eps)
    if rounding <= _ROUGH:
        return None
    warnings.warn(
        f"the coreset's log density is rounded to {rounding:.1g} nats in float32, in which NUTS "
        "gets lost. Run it in float64, which costs little on so few rows: under "
        "jax.enable_x64(True), or with jax.config.update('jax_enable_x64', True).",
        stacklevel=2,
    )
    return rounding


def in_float64(evaluate: Callable[..., T], *trees: PyTree) -> T:
    """Call a function with JAX's x64 on, and with all floating-point arrays as float64."""
    with jax.enable_x64(True):
        return evaluate(*jax.tree.map(lambda x: jnp.asarray(as_float64(x)), trees))


def as_float64(values: PyTree) -> PyTree:
    """An array as it is, but for its type where that is floating-point."""
    values = np.asarray(values)
    return values.astype(np.float64) if jnp.issubdtype(values.dtype, jnp.floating) else values
