"""Log-densities of observations in forms that XLA compiles to fast programs, and to right ones.

A build evaluates every row at thousands of draws, so its cost is nanoseconds per value. XLA's
fastest programs for a CPU consist of sums, products, minima, maxima and exponentials, without
selections: a density that tests whether its argument is finite takes more than twice as long. So do
the selections in XLA's own log(1 + x), in jaxlib 0.10.1.

NumPyro takes a Beta density from a Dirichlet's, a sum over two coordinates, which jaxlib 0.10.2
gets wrong on CPUs. A sum of two terms is right with any version.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import betaln, gammaln, xlog1py, xlogy
from jaxtyping import Array, Float
from numpyro.distributions import BernoulliLogits, Beta, BetaProportion


def plain_log_prob(distribution: Any, value: Any) -> Any:
    """``distribution.log_prob(value)``, in a faster or safer form if there is one."""
    if type(distribution) not in (BernoulliLogits, Beta, BetaProportion):
        return distribution.log_prob(value)
    penalty: Any = 0.0
    if distribution._validate_args:
        # As in NumPyro for traced values, but added: this is a number per value, not per draw.
        is_in_support: Any = distribution.support
        is_valid = is_in_support(value)
        penalty = jnp.where(is_valid, 0.0, -jnp.inf)
        value = jnp.where(is_valid, value, 0.5)
    if type(distribution) is BernoulliLogits:
        return bernoulli_log_prob(distribution.logits, value) + penalty
    a, b = distribution.concentration1, distribution.concentration0
    return beta_log_prob(a, b, value) + penalty


def bernoulli_log_prob(logits: Any, value: Any) -> Float[Array, "..."]:
    """The log-density y z − max(z, 0) − log(1 + exp(−|z|)), and of infinite z 0 or −∞.

    Args:
        logits: z; it broadcasts with `value`.
        value: y, 0 or 1.
    """
    logits = jnp.asarray(logits, jnp.result_type(logits, float))
    largest = jnp.finfo(logits.dtype).max
    # Zero times infinity is NaN. So z is clipped to a finite value, and what was clipped is counted
    # often enough for the sum to be infinite.
    inner = jnp.clip(logits, -largest / 2, largest / 2)
    beyond = jnp.clip(logits, -largest, largest) - inner
    usual = value * inner - jnp.clip(inner, 0) - log1p(jnp.exp(-jnp.abs(inner)))
    return usual + 3 * (value * beyond - jnp.clip(beyond, 0))


@jax.custom_jvp
def log1p(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """log(1 + x), to a few units of the last place, without the selections of XLA's `log1p`.

    What rounding takes from x in 1 + x is added to the logarithm of the rounded sum, at which its
    slope is one where that matters.
    """
    kind = jnp.finfo(x.dtype)
    # Without this, XLA takes 1 + x - 1 to be x.
    rounded = jax.lax.reduce_precision(1 + x, kind.nexp, kind.nmant)
    # Of large numbers nothing is taken, and the difference of infinite ones would be NaN.
    most = kind.max / 4
    taken = jnp.minimum(x, most) - (jnp.minimum(rounded, most) - 1)
    return jnp.log(rounded) + taken


@log1p.defjvp
def _slope_of_log1p(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    (x,), (tangent,) = primals, tangents
    return log1p(x), tangent / (1 + x)


def beta_log_prob(a: Any, b: Any, value: Any) -> Float[Array, "..."]:
    """The log-density (a − 1) log y + (b − 1) log(1 − y) − log B(a, b).

    Args:
        a: the first concentration; all three broadcast.
        b: the second one.
        value: y, between 0 and 1.
    """
    # Whole numbers have no derivatives.
    a, b, value = (jnp.asarray(x, jnp.result_type(x, float)) for x in (a, b, value))
    return xlogy(a - 1, value) + xlog1py(b - 1, -value) - _log_beta(a, b)


def _log_beta(a: Any, b: Any) -> Array:
    """The log of B(a, b); JAX's `betaln` is better in float32, but has only 8 digits in float64."""
    if jnp.result_type(a, b) == jnp.float64:
        return gammaln(a) + gammaln(b) - gammaln(a + b)
    return betaln(a, b)
