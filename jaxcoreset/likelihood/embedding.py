"""From log-likelihoods at draws to atoms: Φ and its target, built on the device in fixed chunks.

Datum i's log-likelihood at the draws θ_1..θ_S of the weighting distribution π̂, less its mean over
the draws and divided by √S, is its atom: inner products of atoms are then covariances under π̂, and
‖y − Φw‖² estimates the variance of L − L_w (Campbell and Broderick 2019, section 4.2).

`embed(norm="fisher")` uses gradients instead (`jaxcoreset.likelihood.fisher`).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from jaxcoreset.data.arrays import leading
from jaxcoreset.data.blocks import column_sums
from jaxcoreset.data.compiling import quick_jit
from jaxcoreset.likelihood.fisher import fisher_features
from jaxcoreset.likelihood.passes import (
    Features,
    LogLikelihood,
    centred,
    centred_columns,
    check_shape,
    checked_draws,
    feature_matrix,
    feature_sum,
    first_draws,
    mean_near_best,
)
from jaxcoreset.solvers.numerics import as_key, product
from jaxcoreset.solvers.problem import CoresetProblem

# How many entries are added at a time on a CPU.
_PART = 512
# The number of draws of a piece. A pass is made in pieces if it has this number of draws, or at
# least twice as many, so that all such passes share a program; a last shorter piece has its own.
DRAWS_AT_A_TIME = 500


def embed(
    log_likelihood: LogLikelihood,
    draws: PyTree,
    data: PyTree,
    norm: str = "l2",
    batch_size: int | None = None,
    *,
    num_features: int | None = None,
    key: PRNGKeyArray | int | None = None,
) -> CoresetProblem:
    """Evaluate log-likelihoods at draws into a `CoresetProblem` with an atom for every datum.

    Args:
        log_likelihood: ``log_likelihood(draw, data) -> (n,)``, the log-likelihood of each datum at
            one draw, in nats. It is vmapped over draws and sees the data in chunks; for "fisher"
            it is differentiated forwards in the draw as well.
        draws: pytree of arrays with a leading axis of length S, draws from the weighting π̂.
        data: pytree of arrays with a leading axis of length n.
        norm: "l2", the L2(π̂) norm of Zhang et al. (2021), equation 2; or "fisher", the weighted
            Fisher information distance of Campbell and Broderick (2018), equation 39, whose
            objective is E_π̂ ‖∇(L − L_w)‖². The latter depends on the units of θ.
        batch_size: rows per chunk; chosen from the atoms' length if left out.
        num_features: for "fisher", the number J of random (draw, coordinate) pairs, see
            `fisher_features`. By default all S·D partial derivatives are taken, where D is the
            number of coordinates of θ: no error beyond that of the draws, and n·S·D numbers of
            memory.
        key: a JAX random key, for `num_features`; the same key gives the same atoms.

    Returns:
        A problem with atoms of shape (n, S), or (n, J) or (n, S·D) for "fisher", and their sum as
        target.

    Raises:
        ValueError: if the norm is unknown, lengths differ, there are no rows or too few draws (two
            for "l2", one for "fisher"), a log-likelihood or its gradient is not finite (the
            message names rows), or `num_features` is out of range, without a key, or given for
            "l2".
        TypeError: if `num_features` is not a whole number, or draws to be differentiated at are
            not floating-point.
    """
    if norm == "fisher":
        features = fisher_features(draws, num_features, None if key is None else as_key(key))
        atoms = feature_matrix(log_likelihood, features, data, batch_size)
    elif norm == "l2":
        if num_features is not None:
            raise ValueError(
                f"num_features is {num_features} and norm is 'l2', whose atoms have one entry per "
                "draw; leave it out, or pass norm='fisher'."
            )
        values = log_likelihood_matrix(log_likelihood, draws, data, batch_size=batch_size)
        atoms = centre(values)
    else:
        raise ValueError(f"norm is {norm!r}; expected 'l2' or 'fisher'.")
    return CoresetProblem(atoms, jnp.sum(atoms, axis=0))


def centre(
    values: Float[Array, "... s"], usable: Bool[Array, " s"] | None = None
) -> Float[Array, "... s"]:
    """Log-likelihoods at S draws, along the last axis, into atoms: centred and divided by √S.

    Atoms are zero at draws that are not `usable`; all are by default.
    """
    if usable is None:
        return centred(values) / np.sqrt(values.shape[-1])
    num = jnp.maximum(jnp.sum(usable), 1).astype(values.dtype)
    return jnp.where(usable, centred(values, usable) / jnp.sqrt(num), 0)


def log_likelihood_matrix(
    log_likelihood: LogLikelihood,
    draws: PyTree,
    data: PyTree,
    *,
    batch_size: int | None = None,
    block: int | None = None,
) -> Float[Array, "n s"]:
    """Log-likelihoods of all rows at all draws, each row less its mean, streamed in chunks.

    Arguments and errors as in `embed`; `block` as in `feature_matrix`. The rows' means are
    subtracted because float32 cannot hold a large log-likelihood and its small variation over the
    draws in a sum.
    """
    values = _Values(checked_draws(draws, 2))
    return feature_matrix(log_likelihood, values, data, batch_size, block=block)


def log_likelihood_sum(
    log_likelihood: LogLikelihood,
    draws: PyTree,
    data: PyTree,
    *,
    batch_size: int | None = None,
    on_rows: Callable[[int], Any] = lambda rows: None,
) -> Float[np.ndarray, " s"]:
    """The sum over all rows of the log-likelihood at each draw, up to a constant, in float64.

    It takes one pass, and nothing of size n × S is stored. Before a row is added, its mean over
    those of the first few draws that are near its best one is subtracted. The blocks' sums are
    added in float64 on the host. Arguments and errors as in `embed`; `on_rows` is called with the
    number of rows done since the last call.
    """
    return feature_sum(log_likelihood, _Values(checked_draws(draws, 2)), data, batch_size, on_rows)


def block_width(num_draws: int) -> int:
    """The width by which the blocks of a pass at some draws are chosen."""
    # Short blocks, since a user's number of rows at a time is rounded up to blocks.
    return 4 * DRAWS_AT_A_TIME if has_pieces(num_draws) else num_draws


def has_pieces(num_draws: int) -> bool:
    """True if this number of draws is evaluated in pieces of `DRAWS_AT_A_TIME`."""
    return num_draws == DRAWS_AT_A_TIME or num_draws >= 2 * DRAWS_AT_A_TIME


class _Values(Features):
    """Log-likelihoods at draws, each row less its mean; a piece is less `mean_near_best`."""

    quantity = "the log-likelihood"

    draws: PyTree
    # Of a piece, the first draws of all pieces, so that a row has the same constant in all of them.
    first: PyTree | None = None

    @property
    def width(self) -> int:
        return leading(self.draws)

    @property
    def block_width(self) -> int:
        return block_width(self.width)

    def pieces(self) -> "Sequence[Features]":
        if not has_pieces(self.width):
            return [self]
        # On the host, since a slice on a device needs a program for each number of draws.
        draws = jax.tree.map(np.asarray, self.draws)
        first = jax.device_put(first_draws(draws))

        def between(at: int) -> PyTree:
            return jax.tree.map(lambda leaf: leaf[at : at + DRAWS_AT_A_TIME], draws)

        return [
            _Values(jax.device_put(between(at)), first)
            for at in range(0, self.width, DRAWS_AT_A_TIME)
        ]

    def joined(self, pieces: Sequence[Array]) -> Array:
        if not has_pieces(self.width):
            return pieces[0]
        # Piece by piece, since a program for all of them takes long to compile.
        means = functools.reduce(jnp.add, [_row_sums(piece, self.width) for piece in pieces])
        found = [_less(piece, means) for piece in pieces]
        return found[0] if len(found) == 1 else jnp.concatenate(found, axis=-1)

    def block(self, log_likelihood: LogLikelihood, chunk: PyTree) -> tuple[Array, Array]:
        values = jax.vmap(log_likelihood, in_axes=(0, None), out_axes=-1)(self.draws, chunk)
        check_shape(values.shape[:-1], leading(chunk))
        # A mean is finite if all its values are, and it is cheaper to check.
        bad = ~jnp.isfinite(jnp.mean(values, axis=-1))
        if self.first is None:
            return centred(values), bad
        return values - mean_near_best(log_likelihood, self.first, chunk)[:, None], bad

    def terms(self, log_likelihood: LogLikelihood, chunk: PyTree) -> Array:
        """As `block`, less what `sum` subtracts, which a draw far away does not move."""
        values, reference = centred_columns(log_likelihood, self.draws, chunk, self.first)
        return (values - reference).T

    def sum(
        self, log_likelihood: LogLikelihood, chunk: PyTree, counted: Bool[Array, " m"]
    ) -> Array:
        """The sum over the rows counted of log-likelihoods up to a constant, (width,)."""
        values, reference = centred_columns(log_likelihood, self.draws, chunk, self.first)
        weights = counted.astype(values.dtype)
        # A sum in one loop with what is added is slow on a CPU: XLA does not vectorise the loop.
        return jax.lax.platform_dependent(
            (values - reference) * weights, cpu=_by_products, default=_by_columns
        )


@quick_jit
def _row_sums(values: Array, divisor: Array | float) -> Float[Array, " m"]:
    return jnp.sum(values / divisor, axis=-1)


@functools.partial(quick_jit, donate_argnums=0)
def _less(values: Array, means: Array) -> Float[Array, "m s"]:
    """Values less their rows' means, in the same memory."""
    return values - means[:, None]


def _by_columns(values: Float[Array, "s m"]) -> Float[Array, " s"]:
    return jnp.sum(column_sums(values), axis=-1)


def _by_products(values: Float[Array, "s m"]) -> Float[Array, " s"]:
    """Sums along the last axis, as products with a vector of ones.

    A single product over many thousand entries would lose digits.
    """
    num_draws, num_rows = values.shape
    part = min(num_rows, _PART)
    padded = jnp.pad(values, ((0, 0), (0, -num_rows % part)))
    sums = product(padded.reshape(-1, part), jnp.ones(part, values.dtype))
    return jnp.sum(sums.reshape(num_draws, -1), axis=-1)
