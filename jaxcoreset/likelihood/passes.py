"""Features of a datum's log-likelihood that can be added over data, as matrices and as sums.

`Features` defines them: log-likelihoods at draws (`likelihood.embedding`) or their partial
derivatives (`likelihood.fisher`). A pass over the data goes block by block, collects the rows whose
features are not finite, and names them at the end.
"""

import abc
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from jaxcoreset.data.arrays import leading
from jaxcoreset.data.bad_rows import BadRows
from jaxcoreset.data.blocks import Pieces, evaluate_blocks
from jaxcoreset.data.compiling import quick_jit
from jaxcoreset.data.rows import Rows, State

LogLikelihood = Callable[[Any, Any], Array]

# The number of draws whose mean is subtracted from a row's log-likelihoods before rows are added.
_FEW_DRAWS = 16
# Log-likelihoods that are this much lower than the highest of them do not count in that mean, in
# nats: a draw far away would move it to where float32 is too coarse for all others. Nor do those
# that are larger than `_HUGE`, so that the mean does not overflow.
_FAR, _HUGE = 100.0, 1e30


class Features(eqx.Module):
    """What the log-likelihood of a datum is reduced to: numbers that can be added over data.

    Attributes:
        quantity: the quantity that must be finite, in words.
    """

    quantity: ClassVar[str]

    @property
    @abc.abstractmethod
    def width(self) -> int:
        """The number of features of a datum."""

    @property
    def block_width(self) -> int:
        """The number of values per row by which blocks are chosen."""
        return self.width

    def pieces(self) -> "Sequence[Features]":
        """The same features in pieces that share a program, or one piece."""
        return [self]

    def joined(self, pieces: Sequence[Array]) -> Array:
        """The features of rows from those of the `pieces`."""
        return pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces, axis=-1)

    @abc.abstractmethod
    def block(self, log_likelihood: LogLikelihood, chunk: PyTree) -> tuple[Array, Array]:
        """The features of a chunk's m rows, (m, width), and which rows are not finite, (m,)."""

    def terms(self, log_likelihood: LogLikelihood, chunk: PyTree) -> Array:
        """What `sum` adds for each row, (m, width), which is `block` up to a constant in a row."""
        return self.block(log_likelihood, chunk)[0]

    @abc.abstractmethod
    def sum(
        self, log_likelihood: LogLikelihood, chunk: PyTree, counted: Bool[Array, " m"]
    ) -> Array:
        """The sum of `terms` over the rows counted, (width,); not finite if a row is not."""


def feature_matrix(
    log_likelihood: LogLikelihood,
    features: Features,
    data: PyTree,
    batch_size: int | None = None,
    typical: int | None = None,
    block: int | None = None,
) -> Array:
    """The features of all rows, evaluated in blocks; a ValueError names rows that are not finite.

    `log_likelihood` and `data` as in `embed`; `batch_size` rows are moved to the device at a time.
    `typical` as in `evaluate_blocks`; `block` is the number of rows of a block, chosen by the
    number of features if it is left out; such blocks are moved one by one, whatever `batch_size`
    is, so that all numbers of rows share a program. Both are ignored for lists of several lengths.
    """
    num_rows = _num_rows(data)
    rows = Rows.of(data, batch_size)
    parts, state = [], BadRows.start()
    args, width = _in_pieces(log_likelihood, features)
    if rows.is_ragged:
        groups = rows.evaluate(_block, args, width)
    else:
        groups = evaluate_blocks(
            _block,
            args,
            (rows.data, ()),
            block or rows.block(width),
            batch_size=block or batch_size,
            typical=block or typical,
        )
    for first, num, found in groups:
        bad = np.any([np.asarray(bad) for _, bad in found], axis=0)
        state = BadRows.add(state, bad, first, num)
        part = features.joined([_by_row(values) for values, _ in found])
        parts.append(part if len(part) == num else _first_rows(part, num))
    _check_health([state], num_rows, features.quantity)
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts)


def feature_sum(
    log_likelihood: LogLikelihood,
    features: Features,
    data: "PyTree | Rows",
    batch_size: int | None = None,
    on_rows: Callable[[int], Any] = lambda rows: None,
) -> Float[np.ndarray, " width"]:
    """The sum of the features over all rows, in one pass and in float64; see `feature_matrix`.

    `Rows` may be read from files or other processes, and have a `batch_size` of their own;
    `on_rows` is called with the number of rows done since the last call.

    Raises:
        ValueError: if the sum is not finite. A second pass finds the rows to name.
    """
    if not isinstance(data, Rows):
        _num_rows(data)
    rows = Rows.of(data, batch_size)
    args, width = _in_pieces(log_likelihood, features)
    start = {"total": np.zeros(features.width)}
    if (folded := rows.folded(width)) is None:
        states = rows.map_reduce(
            _sum, args, width, start, _add_sums, what="target", on_rows=on_rows
        )
    else:  # in float32 a product with a large count would lose what sums of equal rows keep
        distinct, counts = folded

        def add(state: State, values: list[np.ndarray], first: int, num: int) -> State:
            by_row = [
                counts[first : first + num] @ x.reshape(-1, x.shape[-1])[:num] for x in values
            ]
            return {"total": state["total"] + np.concatenate(by_row)}

        done = Progressed(on_rows, counts)
        states = distinct.map_reduce(_terms, args, width, start, add, what="target", on_rows=done)
    total = np.sum([state["total"] for state in states], axis=0)
    if not np.isfinite(total).all():
        _name_rows_not_finite(log_likelihood, features, rows)
    return total


def _in_pieces(log_likelihood: LogLikelihood, features: Features) -> tuple[Pieces, int]:
    """The arguments of a pass, piece by piece, and the width by which its blocks are chosen."""
    args = Pieces(tuple((log_likelihood, piece) for piece in features.pieces()))
    return args, features.block_width


class Progressed:
    """Reports the progress in all rows where a pass evaluates the distinct ones.

    Args:
        on_rows: called with the number of rows done since the last call.
        counts: how often each distinct row occurs.
    """

    def __init__(self, on_rows: Callable[[int], Any], counts: Float[np.ndarray, " m"]):
        self._on_rows, self._counts, self._first = on_rows, counts, 0

    def __call__(self, num: int) -> None:
        """Tell of further distinct rows, in their order."""
        before, self._first = self._first, self._first + num
        self._on_rows(int(self._counts[before : self._first].sum()))


@functools.partial(quick_jit, donate_argnums=0)
def _by_row(values: Array) -> Array:
    """The values of blocks, row by row, in the same memory."""
    return values.reshape(-1, values.shape[-1])


@functools.partial(quick_jit, static_argnums=1)
def _first_rows(values: Array, num: int) -> Array:
    """The values without those of rows that only fill the last block up."""
    return values[:num]


def _block(args: tuple, rows: tuple, counted: Array) -> tuple[Array, Array]:
    log_likelihood, features = args
    return features.block(log_likelihood, rows[0])


def _terms(args: tuple, rows: tuple, counted: Array) -> Array:
    log_likelihood, features = args
    return features.terms(log_likelihood, rows[0])


def _sum(args: tuple, rows: tuple, counted: Array) -> Array:
    log_likelihood, features = args
    return features.sum(log_likelihood, rows[0], counted)


def _bad_rows(args: tuple, rows: tuple, counted: Array) -> Array:
    return _block(args, rows, counted)[1]


def _add_sums(state: State, sums: list[np.ndarray], first: int, num: int) -> State:
    added = np.concatenate([one.sum(axis=0, dtype=np.float64) for one in sums])
    return {"total": state["total"] + added}


def _add_bad(state: State, bad: list[np.ndarray], first: int, num: int) -> State:
    return BadRows.add(state, np.any(bad, axis=0), first, num)


def _name_rows_not_finite(log_likelihood: LogLikelihood, features: Features, rows: Rows) -> None:
    """Raise a ValueError that names the rows whose features are not finite."""
    (args, width), start = _in_pieces(log_likelihood, features), BadRows.start()
    states = rows.map_reduce(
        _bad_rows, args, width, start, _add_bad, what="rows that are not finite"
    )
    _check_health(states, rows.num_rows, features.quantity)
    raise ValueError(
        f"{features.quantity} is finite in every row, but not its sum over all {rows.num_rows} of "
        "them; values this large are out of the range of float32. Rescale the model's terms."
    )


def centred(values: Array, where: Array | None = None) -> Array:
    """Values less their mean along the last axis, over the entries named by `where`."""
    return values - jnp.mean(values, axis=-1, keepdims=True, where=where)


def first_draws(draws: PyTree) -> PyTree:
    """The few draws whose mean is subtracted from a row's log-likelihoods."""
    return jax.tree.map(lambda leaf: leaf[:_FEW_DRAWS], draws)


def mean_near_best(
    log_likelihood: LogLikelihood, draws: PyTree, chunk: PyTree
) -> Float[Array, " m"]:
    """The mean of each row's log-likelihoods at those draws that are near the best of them."""
    values = jax.vmap(log_likelihood, in_axes=(0, None))(draws, chunk)
    check_shape(values.shape[1:], leading(chunk))
    is_near = (values >= jnp.max(values, axis=0) - _FAR) & (jnp.abs(values) < _HUGE)
    return jnp.sum(jnp.where(is_near, values, 0), axis=0) / jnp.maximum(is_near.sum(axis=0), 1)


def centred_columns(
    log_likelihood: LogLikelihood, draws: PyTree, chunk: PyTree, first: PyTree | None = None
) -> tuple[Array, Array]:
    """Log-likelihoods at s draws of m rows, (s, m), and what to subtract from the columns, (m,).

    The latter is the `mean_near_best` of other draws, `first`, by default of a few of these, so
    that each value is used once. With draws in front, products and no selections, XLA on a CPU then
    adds columns while it evaluates them, and stores no matrix.
    """
    first = first_draws(draws) if first is None else first
    means = mean_near_best(log_likelihood, first, chunk)
    return jax.vmap(log_likelihood, in_axes=(0, None))(draws, chunk), means


def checked_draws(draws: PyTree, lowest: int) -> PyTree:
    """The draws; a ValueError if there are too few or their lengths differ."""
    num_draws = leading(draws, "draws")
    if num_draws < lowest:
        expected = "at least two, to centre them" if lowest == 2 else "at least one"
        raise ValueError(f"draws has {num_draws} draws; expected {expected}.")
    return draws


def check_shape(shape: tuple[int, ...], num_rows: int) -> None:
    """Raise a ValueError if a log-likelihood does not return one number per row."""
    if shape != (num_rows,):
        raise ValueError(
            f"log_likelihood returned shape {shape} for {num_rows} rows; expected ({num_rows},), "
            "the log-likelihood of each row at one draw."
        )


def _check_health(states: Sequence[State], num_rows: int, quantity: str) -> None:
    """Raise a ValueError that names rows that are not finite, if there are any."""
    count, shown = BadRows.merged(states)
    if count:
        raise ValueError(
            f"{quantity} is not finite at one of the draws in {count} of {num_rows} rows, the "
            f"first of them {shown}. Look at these rows for missing values or responses that the "
            "model gives no probability; leave them out, or use a likelihood with wider support."
        )


def _num_rows(data: PyTree) -> int:
    num_rows = leading(data, "data")
    if num_rows == 0:
        raise ValueError("data has no rows; expected at least one.")
    return num_rows
