"""The log-likelihood of all rows at draws, constant included, to a fraction of a nat.

The total is of the order of n nats, more than float32 holds to that precision. So each row is
centred over the draws before anything is added, and the host adds in float64.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxcoreset.data.arrays import leading
from jaxcoreset.data.bad_rows import BadRows
from jaxcoreset.data.blocks import column_sums
from jaxcoreset.data.rows import Rows, State
from jaxcoreset.likelihood.passes import LogLikelihood, Progressed, centred_columns

# A sum in float32 that is lower than this includes a log-likelihood of −inf.
_LOWEST = -1e37


def log_likelihood_totals(
    log_likelihood: LogLikelihood,
    draws: PyTree,
    data: "PyTree | Rows",
    weights: Float[np.ndarray, " n"] | None = None,
    *,
    batch_size: int | None = None,
    on_rows: Callable[[int], Any] = lambda rows: None,
    what: str = "log-likelihoods at draws",
) -> Float[np.ndarray, " s"]:
    """The weighted sum over all rows of the log-likelihood at each draw, in nats and in float64.

    Unlike `embedding.log_likelihood_sum` it keeps the constant, which evidence needs, and accepts a
    log-likelihood of −inf: the total at that draw is then −inf.

    Arguments as in `embedding.log_likelihood_sum`; each row counts `weights` times, or once.
    `what` names the pass.

    Raises:
        ValueError: if a log-likelihood is NaN or +inf; the message names rows. Also if the sum
            overflows upwards.
    """
    num_draws = leading(draws, "draws")
    all_rows = rows = Rows.of(data, batch_size)
    done = on_rows
    if weights is None and (folded := all_rows.folded(num_draws)) is not None:
        rows, weights = folded
        done = Progressed(on_rows, weights)

    def add(state: State, values: tuple, first: int, num: int) -> State:
        parts, means = values
        means = means.reshape(-1)[:num].astype(np.float64)
        if weights is None:
            parts = np.where(parts < _LOWEST, -np.inf, parts)
            total = parts.sum(axis=(0, 2), dtype=np.float64) + means.sum()
        else:  # float32 cannot hold the weighted sum: n nats, of which a fraction matters
            local = np.asarray(weights, np.float64)[first - rows.offset :][:num]
            by_row = np.moveaxis(parts, 1, 2).reshape(-1, num_draws)[:num]
            if not local.all():  # zero times −inf would be NaN
                local, by_row, means = local[local > 0], by_row[local > 0], means[local > 0]
            total = local @ by_row.astype(np.float64) + local @ means
        return {"total": state["total"] + total}

    args = log_likelihood, jax.tree.map(jnp.asarray, draws)
    terms, start = _in_sums if weights is None else _by_row, {"total": np.zeros(num_draws)}
    states = rows.map_reduce(terms, args, num_draws, start, add, what=what, on_rows=done)
    total = np.sum([state["total"] for state in states], axis=0)
    if (np.isnan(total) | (total == np.inf)).any():
        _name_bad_rows(args, num_draws, all_rows)
    return total


def _by_row(args: tuple, rows: tuple, counted: Array) -> tuple[Array, Array]:
    """Each row's log-likelihood at the draws less its mean over a few of them, and that mean."""
    log_likelihood, draws = args
    values, means = centred_columns(log_likelihood, draws, rows[0])
    return values - means, means


def _in_sums(args: tuple, rows: tuple, counted: Array) -> tuple[Array, Array]:
    """As `_by_row`, with the centred log-likelihoods of groups of rows added up.

    −inf becomes the lowest finite number, since rows that do not count are multiplied by zero.
    """
    log_likelihood, draws = args
    values, means = centred_columns(log_likelihood, draws, rows[0])
    # Not by `maximum`: XLA's fused programs for a CPU lose a NaN in it (jaxlib 0.10 and 0.11).
    values = jnp.clip(values, jnp.finfo(values.dtype).min, jnp.inf) - means
    return column_sums(values * counted.astype(values.dtype)), means


def _name_bad_rows(args: tuple, num_draws: int, rows: Rows) -> None:
    """Raise a ValueError that names the rows whose log-likelihood is NaN or +inf."""
    states = rows.map_reduce(
        _bad_rows, args, num_draws, BadRows.start(), BadRows.add, what="rows that are not finite"
    )
    count, shown = BadRows.merged(states)
    if not count:
        raise ValueError(
            f"the log-likelihood is below +inf in each of {rows.num_rows} rows, but its sum over "
            "them is too large for float32 at one of the draws. Rescale the model's terms, or turn "
            "JAX's x64 on."
        )
    raise ValueError(
        f"the log-likelihood is NaN or +inf at one of the draws in {count} of {rows.num_rows} "
        f"rows, the first of them {shown}. Look at these rows for missing values."
    )


def _bad_rows(args: tuple, rows: tuple, counted: Array) -> Array:
    log_likelihood, draws = args
    values, _ = centred_columns(log_likelihood, draws, rows[0])
    return (jnp.isnan(values) | (values == jnp.inf)).any(axis=0)
