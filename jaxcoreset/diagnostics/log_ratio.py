"""Full against coreset log-likelihood at draws: log π/π_w up to a constant, streamed and exact.

Since the prior is the same, the log-ratio at a draw is L(θ) − L_w(θ), the sum of all rows'
log-likelihoods less the weighted sum of the coreset's. Both are of the order of n nats and their
difference is to be right to a fraction of one, so each row is centred over the draws before
anything is added, and float64 on the host adds what float32 on the device cannot.
"""

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxcoreset.coreset.coreset import Coreset
from jaxcoreset.data.arrays import leading
from jaxcoreset.data.blocks import column_sums
from jaxcoreset.data.dtypes import in_float64
from jaxcoreset.data.rows import BadRows, Rows, State
from jaxcoreset.likelihood.arguments import is_array, is_same
from jaxcoreset.likelihood.embedding import check_single
from jaxcoreset.likelihood.from_model import model_likelihood
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.passes import LogLikelihood, centred_columns
from jaxcoreset.likelihood.precision import wants_float64

# A sum in float32 that is lower has a log-likelihood of −inf in it.
_LOWEST = -1e37
# Rows whose values are added up together in `_in_sums`, as `column_sums` does it.
_PART_ROWS = 256
# The numbers of draws for which a likelihood's programs have been held to another one.
_checked: WeakKeyDictionary[ModelLikelihood, set[int]] = WeakKeyDictionary()


def log_likelihood_totals(
    log_likelihood: LogLikelihood,
    draws: PyTree,
    data: "PyTree | Rows",
    weights: Float[np.ndarray, " n"] | None = None,
    *,
    batch_size: int | None = None,
    on_rows: Callable[[int], Any] = lambda rows: None,
    check: bool = False,
) -> Float[np.ndarray, " s"]:
    """The weighted sum over all rows of the log-likelihood at each draw, in nats and in float64.

    Unlike `embedding.log_likelihood_sum` it keeps the constant, which evidence needs, and takes
    −inf at a draw, whose total is then −inf.

    Args:
        log_likelihood: ``log_likelihood(draw, data) -> (n,)``; vmapped over draws.
        draws: pytree of arrays with a leading axis of length S.
        data: pytree of arrays with a leading axis of length n.
        weights: how often each row counts; once if left out.
        batch_size: rows per chunk; chosen from S if left out.
        on_rows: called with the number of rows done since the last call, for a progress bar.
        check: whether to hold the first rows' values to another program's, see `check_single`.

    Raises:
        ValueError: if a log-likelihood is NaN or +inf; the message names rows.
        RuntimeError: if the compiled program is found to be wrong.
    """
    num_draws = leading(draws, "draws")
    rows = Rows.of(data, batch_size)

    def add(state: State, values: tuple, first: int, num: int) -> State:
        parts, means = values
        means = means.reshape(-1)[:num].astype(np.float64)
        if weights is None:
            parts = np.where(parts < _LOWEST, -np.inf, parts)
            if check and first == rows.offset:
                shared = min(_PART_ROWS, *means.shape, rows.block(num_draws))
                sums = parts[0, :, 0].astype(np.float64) + means[:shared].sum()
                check_single(log_likelihood, draws, rows.head(shared), sums[None], in_sum=True)
            total = parts.sum(axis=(0, 2), dtype=np.float64) + means.sum()
        else:  # float32 cannot hold the weights' products: n nats, of which a fraction matters
            local = np.asarray(weights, np.float64)[first - rows.offset :][:num]
            by_row = np.moveaxis(parts, 1, 2).reshape(-1, num_draws)[:num].astype(np.float64)
            if check and first == rows.offset:
                some = by_row[:_PART_ROWS]
                check_single(log_likelihood, draws, rows.head(len(some)), some)
            total = local @ by_row + local @ means
        return {"total": state["total"] + total}

    args = log_likelihood, jax.tree.map(jnp.asarray, draws)
    states = rows.map_reduce(
        _in_sums if weights is None else _by_row,
        args,
        num_draws,
        {"total": np.zeros(num_draws)},
        add,
        what="log-likelihoods at draws",
        on_rows=on_rows,
    )
    total = np.sum([state["total"] for state in states], axis=0)
    if (np.isnan(total) | (total == np.inf)).any():
        _name_bad_rows(args, num_draws, rows)
    return total


def _by_row(args: tuple, rows: tuple, counted: Array) -> tuple[Array, Array]:
    """Each row's log-likelihood at the draws less a number of the row's, and that number."""
    log_likelihood, draws = args
    values, means = centred_columns(log_likelihood, draws, rows[0])
    return values - means, means


def _in_sums(args: tuple, rows: tuple, counted: Array) -> tuple[Array, Array]:
    """The same, with the centred log-likelihoods added up by some rows.

    What is −inf becomes a number that is too low to be one, since rows that do not count are
    multiplied by zero.
    """
    log_likelihood, draws = args
    values, means = centred_columns(log_likelihood, draws, rows[0])
    # Not by `maximum`: XLA's fused programs for a CPU lose a NaN in it (jaxlib 0.10 and 0.11).
    values = jnp.clip(values, jnp.finfo(values.dtype).min, jnp.inf) - means
    return column_sums(values * counted.astype(values.dtype)), means


def _name_bad_rows(args: tuple, num_draws: int, rows: Rows) -> None:
    """Raise a ValueError that names the rows whose log-likelihood is NaN or +inf."""
    states = rows.map_reduce(
        _bad_rows,
        args,
        num_draws,
        BadRows.start(),
        BadRows.add,
        what="rows that are not finite",
    )
    count, shown = BadRows.merged(states)
    raise ValueError(
        f"the log-likelihood is NaN or +inf at one of the draws in {count} of {rows.num_rows} "
        f"rows, the first of them {shown}. Look at these rows for missing values."
    )


def _bad_rows(args: tuple, rows: tuple, counted: Array) -> Array:
    log_likelihood, draws = args
    values, _ = centred_columns(log_likelihood, draws, rows[0])
    return (jnp.isnan(values) | (values == jnp.inf)).any(axis=0)


def log_ratios(
    coreset: Coreset,
    likelihood: ModelLikelihood,
    draws: Mapping[str, np.ndarray],
    *,
    batch_size: int | None = None,
    on_rows: Callable[[int], Any] = lambda rows: None,
) -> Float[np.ndarray, " s"]:
    """L(θ) − L_w(θ) in nats at constrained draws with one leading axis, constant included.

    Raises:
        ValueError: if the coreset's own likelihood is zero at a draw, or one is NaN or +inf.
        RuntimeError: if a compiled program is found to be wrong, see `check_single`.
    """
    # A program is compared with another one once for each number of draws, which compiles it anew.
    checked = _checked.setdefault(likelihood, set())
    check = len(next(iter(draws.values()))) not in checked
    evaluate = likelihood.log_likelihood_constrained
    at = {name: jnp.asarray(values) for name, values in draws.items()}
    full = log_likelihood_totals(
        evaluate, at, likelihood.rows, batch_size=batch_size, on_rows=on_rows, check=check
    )
    kept = likelihood.take(coreset.indices)

    def weigh(draws: PyTree, kept: tuple) -> Float[np.ndarray, " s"]:
        return log_likelihood_totals(evaluate, draws, kept, coreset.weights, check=check)

    weighted = (
        in_float64(weigh, at, kept)
        if wants_float64(likelihood, likelihood.num_data)
        else weigh(at, kept)
    )
    if not np.isfinite(weighted).all():
        raise ValueError(
            "the coreset's own likelihood is zero at "
            f"{np.count_nonzero(~np.isfinite(weighted))} of the {weighted.size} draws, so they "
            "are not from its posterior; expected samples of NUTS on coreset.model."
        )
    checked.add(full.size)
    return full - weighted


def full_likelihood(
    coreset: Coreset, args: tuple, kwargs: Mapping[str, Any], likelihood: ModelLikelihood | None
) -> ModelLikelihood:
    """The likelihood of all the data that the coreset was built from.

    Args:
        coreset: the coreset.
        args: the model's positional arguments with all rows, if they are given.
        kwargs: its keyword arguments with all rows.
        likelihood: the likelihood itself, if it is given.

    Raises:
        ValueError: if there is no likelihood, or the data do not contain the coreset's rows.
    """
    if args or kwargs:
        if likelihood is not None:
            raise ValueError("likelihood is given and so are the model's arguments; give only one.")
        arguments = coreset.arguments.like(args, kwargs)
        n = coreset.report.num_data
        for name, leaf in zip(coreset.data_names, arguments.data, strict=True):
            found = leaf.shape[0] if is_array(leaf) else "no"
            if found != n:
                raise ValueError(
                    f"argument {name} has {found} rows, but the coreset was built from {n}; pass "
                    "all the data, not the coreset's own rows."
                )
        args, kwargs = arguments.call
        likelihood = model_likelihood(coreset.full_model, args, kwargs, data_axes=arguments.axes)
    elif likelihood is None:
        likelihood = coreset.likelihood
    if likelihood is None:
        raise ValueError(
            "the data that the coreset was built from are not available, because it was loaded, "
            "updated or merged; pass the model's arguments with all rows, in the order in which "
            "they came (after an update the old ones, then the new ones): for instance "
            "correct(coreset, mcmc, X, y)."
        )
    if likelihood is not coreset.likelihood:
        _check_contains(coreset, likelihood)
    return likelihood


def _check_contains(coreset: Coreset, likelihood: ModelLikelihood) -> None:
    """Raise a ValueError if the coreset was not built from these data."""
    n = coreset.report.num_data
    if likelihood.num_data != n:
        raise ValueError(
            f"the data have {likelihood.num_data} rows, but the coreset was built from {n}; pass "
            "the same data."
        )
    if likelihood.data_dims != coreset.data_dims:
        raise ValueError(
            f"the axis of the data in the observed sites is {likelihood.data_dims}, and "
            f"{coreset.data_dims} in the coreset; expected the same model and data: pass "
            "likelihood=model_likelihood(model, args, kwargs, data_axes=…, plate=…) with the "
            "settings of the builder."
        )
    rows = likelihood.arguments.with_data(likelihood.take(coreset.indices))
    if not all(map(is_same, rows.leaves, coreset.arguments.leaves)):
        raise ValueError(
            "the data differ from those that the coreset was built from, in the rows of the "
            "coreset or in an argument that holds no rows. Pass the same data in the same order, "
            "and the same other arguments."
        )
