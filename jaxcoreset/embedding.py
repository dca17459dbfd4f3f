"""From log-likelihoods at draws to atoms: Φ and its target, built on the device in fixed chunks.

Datum i's log-likelihood at the draws θ_1..θ_S of the weighting distribution π̂, less its mean over
the draws and divided by √S, is its atom: inner products of atoms are then covariances under π̂, and
‖y − Φw‖² estimates the variance of L − L_w (Campbell and Broderick 2019, section 4.2).

Chunks have one shape: the last one reaches back over rows that were done and counts only the new
ones, so that nothing is compiled twice and no row has to be made up.
"""

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxcoreset.problem import CoresetProblem

LogLikelihood = Callable[[Any, Any], Array]

# Entries of one chunk's matrix of log-likelihoods: large enough for the device, and 64 MB at most.
_CHUNK_ENTRIES = 1 << 23
_NUM_BAD_ROWS_SHOWN = 5


def embed(
    log_likelihood: LogLikelihood,
    draws: PyTree,
    data: PyTree,
    norm: str = "l2",
    batch_size: int | None = None,
) -> CoresetProblem:
    """Evaluate log-likelihoods at draws into a `CoresetProblem` with an atom for every datum.

    Args:
        log_likelihood: ``log_likelihood(draw, data) -> (n,)``, the log-likelihood of each datum at
            one draw, in nats. It is vmapped over draws and sees the data in chunks.
        draws: pytree of arrays with a leading axis of length S, draws from the weighting π̂.
        data: pytree of arrays with a leading axis of length n.
        norm: "l2", the L2(π̂) norm of Zhang et al. (2021), equation 2.
        batch_size: rows per chunk; chosen from S if left out.

    Returns:
        A problem with atoms of shape (n, S) and their sum as target.

    Raises:
        ValueError: if lengths differ, there are no rows or fewer than two draws, or a
            log-likelihood is not finite (the message names rows).
    """
    if norm != "l2":
        raise ValueError(f"norm is {norm!r}; wanted 'l2'.")
    values = log_likelihood_matrix(log_likelihood, draws, data, batch_size=batch_size)
    atoms = centre(values)
    return CoresetProblem(atoms, jnp.sum(atoms, axis=0))


def centre(values: Float[Array, "... s"]) -> Float[Array, "... s"]:
    """Log-likelihoods at S draws, along the last axis, into atoms: centred and divided by √S."""
    centred = values - jnp.mean(values, axis=-1, keepdims=True)
    return centred / np.sqrt(values.shape[-1])


def log_likelihood_matrix(
    log_likelihood: LogLikelihood,
    draws: PyTree,
    data: PyTree,
    *,
    batch_size: int | None = None,
) -> Float[Array, "n s"]:
    """Log-likelihoods of all rows at all draws, each row less its mean, streamed in chunks.

    Arguments and errors as in `embed`. The rows' means go because float32 cannot hold a large
    log-likelihood and its small variation over the draws in a sum.
    """
    num_rows, num_draws = _lengths(data, draws)
    blocks, health = [], _Health(num_rows)
    for chunk, first, fresh in chunks(data, batch_size or chunk_rows(num_draws)):
        block, bad = _evaluate(log_likelihood, draws, chunk)
        health.note(bad, first, fresh)
        blocks.append(block[fresh:])
    health.check()
    return blocks[0] if len(blocks) == 1 else jnp.concatenate(blocks)


def log_likelihood_sum(
    log_likelihood: LogLikelihood,
    draws: PyTree,
    data: PyTree,
    *,
    batch_size: int | None = None,
    on_rows: Callable[[int], Any] = lambda rows: None,
) -> Float[Array, " s"]:
    """The sum over all rows of the log-likelihood at each draw, up to a constant, in one pass.

    Nothing of size n × S is kept. Each row's mean over the draws is taken off before it is added,
    and the chunks' sums are added with compensation, so that float32 is enough.

    Arguments and errors as in `embed`.

    Args:
        log_likelihood: as in `embed`.
        draws: as in `embed`.
        data: as in `embed`.
        batch_size: as in `embed`.
        on_rows: called with the number of rows done since the last call, for a progress bar.
    """
    num_rows, num_draws = _lengths(data, draws)
    total = carry = None
    health = _Health(num_rows)
    for chunk, first, fresh in chunks(data, batch_size or chunk_rows(num_draws)):
        partial, bad = _evaluate_sum(log_likelihood, draws, chunk, jnp.asarray(fresh))
        health.note(bad, first, fresh)
        if total is None or carry is None:
            total, carry = partial, jnp.zeros_like(partial)
        else:
            total, carry = _add_compensated(total, carry, partial)
        on_rows(_leading(chunk) - fresh)
    health.check()
    assert total is not None
    return total


def chunk_rows(width: int) -> int:
    """Rows of a chunk whose evaluation is `width` numbers per row."""
    return max(256, _CHUNK_ENTRIES // max(width, 1))


def chunks(data: PyTree, batch_size: int) -> Iterator[tuple[PyTree, int, int]]:
    """The rows in chunks of one shape, as (chunk, its first row, its first row not seen before).

    The last is relative to the chunk: 0 but in the last chunk.
    """
    num_rows = _leading(data)
    size = min(batch_size, num_rows)
    for start in range(0, num_rows, size):
        first = min(start, num_rows - size)
        yield jax.tree.map(lambda x, at=first: _rows(x, at, size), data), first, start - first


def _rows(array: Any, first: int, size: int) -> Any:
    if isinstance(array, jax.Array):  # with the first row as data, so that all chunks share a slice
        return jax.lax.dynamic_slice_in_dim(array, first, size)
    return array[first : first + size]


def _centred_block(log_likelihood: LogLikelihood, draws: PyTree, chunk: PyTree) -> tuple:
    block = jax.vmap(log_likelihood, in_axes=(0, None), out_axes=-1)(draws, chunk)
    rows, num_draws = _leading(chunk), _leading(draws)
    if block.shape != (rows, num_draws):
        raise ValueError(
            f"log_likelihood returned shape {block.shape[:-1]} for {rows} rows; wanted ({rows},), "
            "the log-likelihood of each row at one draw."
        )
    bad = ~jnp.isfinite(block).all(axis=-1)
    return block - jnp.mean(block, axis=-1, keepdims=True), bad


@eqx.filter_jit
def _evaluate(log_likelihood: LogLikelihood, draws: PyTree, chunk: PyTree) -> tuple:
    return _centred_block(log_likelihood, draws, chunk)


@eqx.filter_jit
def _evaluate_sum(
    log_likelihood: LogLikelihood, draws: PyTree, chunk: PyTree, fresh: Int[Array, ""]
) -> tuple:
    block, bad = _centred_block(log_likelihood, draws, chunk)
    is_fresh = jnp.arange(block.shape[0]) >= fresh
    return jnp.sum(jnp.where(is_fresh[:, None], block, 0), axis=0), bad


@jax.jit
def _add_compensated(total: Array, carry: Array, value: Array) -> tuple[Array, Array]:
    """Kahan's sum: `carry` is what rounding has lost so far."""
    value = value - carry
    new = total + value
    return new, (new - total) - value


class _Health:
    """Which rows had a log-likelihood that is not finite, read once, after the last chunk."""

    def __init__(self, num_rows: int):
        self.num_rows = num_rows
        self.flags: list[tuple[Bool[Array, " m"], int, int]] = []

    def note(self, bad: Bool[Array, " m"], first: int, fresh: int) -> None:
        self.flags.append((bad, first, fresh))

    def check(self) -> None:
        rows = [
            np.flatnonzero(np.asarray(bad)[fresh:]) + first + fresh
            for bad, first, fresh in self.flags
        ]
        bad_rows = np.concatenate(rows)
        if bad_rows.size:
            shown = bad_rows[:_NUM_BAD_ROWS_SHOWN].tolist()
            raise ValueError(
                f"the log-likelihood is not finite at one of the draws in {bad_rows.size} of "
                f"{self.num_rows} rows, the first of them {shown}. Look at these rows for missing "
                "values or responses that the model gives no probability; leave them out, or use "
                "a likelihood with wider support."
            )


def _lengths(data: PyTree, draws: PyTree) -> tuple[int, int]:
    num_rows, num_draws = _leading(data, "data"), _leading(draws, "draws")
    if num_rows == 0:
        raise ValueError("data has no rows; wanted at least one.")
    if num_draws < 2:
        raise ValueError(f"draws has {num_draws} draws; wanted at least two, to centre them.")
    return num_rows, num_draws


def _leading(tree: PyTree, name: str = "data") -> int:
    lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(tree)}
    if len(lengths) != 1 or () in lengths:
        found = sorted(length[0] if length else 0 for length in lengths)
        raise ValueError(
            f"the arrays of {name} have leading axes {found or 'none'}; wanted one common length."
        )
    return lengths.pop()[0]
