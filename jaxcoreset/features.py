"""Numbers of a datum's log-likelihood that can be added over data, as matrices and as sums.

`Features` says what the numbers are: log-likelihoods at draws (`jaxcoreset.embedding`) or their
partial derivatives (`jaxcoreset.fisher`). Passes over the data go chunk by chunk, note rows whose
numbers are not finite, and name them at the end.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from jaxcoreset.chunks import chunk_rows, chunks, leading

LogLikelihood = Callable[[Any, Any], Array]

_NUM_BAD_ROWS_SHOWN = 5


class Features(eqx.Module):
    """What the log-likelihood of a datum is reduced to: numbers that can be added over data.

    Attributes:
        quantity: what these numbers need to be finite, in words.
    """

    quantity: ClassVar[str]

    @property
    @abc.abstractmethod
    def width(self) -> int:
        """How many numbers a datum has."""

    @abc.abstractmethod
    def block(self, log_likelihood: LogLikelihood, chunk: PyTree) -> tuple[Array, Array]:
        """The numbers of a chunk's m rows, (m, width), and which rows are not finite, (m,)."""

    def sum(
        self, log_likelihood: LogLikelihood, chunk: PyTree, counted: Bool[Array, " m"]
    ) -> tuple[Array, Array]:
        """The sum of `block` over the rows counted, (width,), and rows not finite, (m,)."""
        block, bad = self.block(log_likelihood, chunk)
        return jnp.sum(jnp.where(counted[:, None], block, 0), axis=0), bad


def feature_matrix(
    log_likelihood: LogLikelihood, features: Features, data: PyTree, batch_size: int | None
) -> Array:
    """The features of all rows, streamed in chunks; a ValueError names rows that are not finite."""
    blocks, health = [], _Health(_num_rows(data), features.quantity)
    for chunk, first, fresh in chunks(data, batch_size or chunk_rows(features.width)):
        block, bad = _evaluate(log_likelihood, features, chunk)
        health.note(bad, first, fresh)
        blocks.append(block[fresh:])
    health.check()
    return blocks[0] if len(blocks) == 1 else jnp.concatenate(blocks)


def feature_sum(
    log_likelihood: LogLikelihood,
    features: Features,
    data: PyTree,
    batch_size: int | None,
    on_rows: Callable[[int], Any],
) -> Array:
    """Their sum over all rows, in one pass; see `feature_matrix`."""
    total = carry = None
    health = _Health(_num_rows(data), features.quantity)
    for chunk, first, fresh in chunks(data, batch_size or chunk_rows(features.width)):
        partial, bad = _evaluate_sum(log_likelihood, features, chunk, jnp.asarray(fresh))
        health.note(bad, first, fresh)
        if total is None or carry is None:
            total, carry = partial, jnp.zeros_like(partial)
        else:
            total, carry = _add_compensated(total, carry, partial)
        on_rows(leading(chunk) - fresh)
    health.check()
    assert total is not None
    return total


def name_rows_not_finite(
    log_likelihood: LogLikelihood, features: Features, data: PyTree, batch_size: int | None
) -> None:
    """Raise a ValueError that names the rows whose features are not finite, if any are not."""
    health = _Health(_num_rows(data), features.quantity)
    for chunk, first, fresh in chunks(data, batch_size or chunk_rows(features.width)):
        health.note(_evaluate(log_likelihood, features, chunk)[1], first, fresh)
    health.check()


def checked_draws(draws: PyTree, lowest: int) -> PyTree:
    """The draws; a ValueError where there are too few or their lengths differ."""
    num_draws = leading(draws, "draws")
    if num_draws < lowest:
        wanted = "at least two, to centre them" if lowest == 2 else "at least one"
        raise ValueError(f"draws has {num_draws} draws; wanted {wanted}.")
    return draws


def check_shape(shape: tuple[int, ...], num_rows: int) -> None:
    """Raise a ValueError if a log-likelihood does not return one number per row."""
    if shape != (num_rows,):
        raise ValueError(
            f"log_likelihood returned shape {shape} for {num_rows} rows; wanted ({num_rows},), the "
            "log-likelihood of each row at one draw."
        )


@eqx.filter_jit
def _evaluate(log_likelihood: LogLikelihood, features: Features, chunk: PyTree) -> tuple:
    with jax.default_matmul_precision("highest"):
        return features.block(log_likelihood, chunk)


@eqx.filter_jit
def _evaluate_sum(
    log_likelihood: LogLikelihood, features: Features, chunk: PyTree, fresh: Int[Array, ""]
) -> tuple:
    with jax.default_matmul_precision("highest"):
        return features.sum(log_likelihood, chunk, jnp.arange(leading(chunk)) >= fresh)


@jax.jit
def _add_compensated(total: Array, carry: Array, value: Array) -> tuple[Array, Array]:
    """Kahan's sum: `carry` is what rounding has lost so far."""
    value = value - carry
    new = total + value
    return new, (new - total) - value


class _Health:
    """Which rows had a log-likelihood that is not finite, read once, after the last chunk."""

    def __init__(self, num_rows: int, quantity: str):
        self.num_rows = num_rows
        self.quantity = quantity
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
                f"{self.quantity} is not finite at one of the draws in {bad_rows.size} of "
                f"{self.num_rows} rows, the first of them {shown}. Look at these rows for missing "
                "values or responses that the model gives no probability; leave them out, or use "
                "a likelihood with wider support."
            )


def _num_rows(data: PyTree) -> int:
    num_rows = leading(data, "data")
    if num_rows == 0:
        raise ValueError("data has no rows; wanted at least one.")
    return num_rows
