"""Full against coreset log-likelihood at draws: log π/π_w up to a constant, streamed and exact.

The prior cancels: the log-ratio at a draw is L(θ) − L_w(θ). Both are of the order of n nats, and
their difference must be accurate to a fraction of a nat; see `jaxcoreset.likelihood.totals`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxcoreset.coreset.codes import as_built
from jaxcoreset.coreset.contains import check_contains, check_sum
from jaxcoreset.coreset.coreset import Coreset
from jaxcoreset.data.chosen_groups import read_groups
from jaxcoreset.data.compiling import quick_jit
from jaxcoreset.data.ragged import order_by_length
from jaxcoreset.likelihood.arguments import is_array
from jaxcoreset.likelihood.expansion import Proxy
from jaxcoreset.likelihood.from_model import model_likelihood
from jaxcoreset.likelihood.grouping import likelihood_of_layout
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.precision import (
    energy_error,
    exactly,
    model_in_float64,
    precision_of,
)
from jaxcoreset.likelihood.program import with_program
from jaxcoreset.likelihood.totals import log_likelihood_totals

# The rounding of the coreset's log-likelihood, in nats, above which it is summed in float64.
_MAX_ERROR = 1e-2


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
    """
    evaluate = likelihood.program.log_likelihood_constrained
    at = {name: jnp.asarray(values) for name, values in draws.items()}
    full = log_likelihood_totals(
        evaluate, at, likelihood.rows, batch_size=batch_size, on_rows=on_rows
    )
    weighted = _weighted(coreset, likelihood, at)
    if not np.isfinite(weighted).all():
        raise ValueError(
            "the coreset's own likelihood is zero at "
            f"{np.count_nonzero(~np.isfinite(weighted))} of the {weighted.size} draws, so they "
            "are not from its posterior; expected samples of NUTS on coreset.model."
        )
    return full - weighted


def _weighted(
    coreset: Coreset, likelihood: ModelLikelihood, at: dict[str, Any]
) -> Float[np.ndarray, " s"]:
    """The coreset's log-likelihood at constrained draws, constant included."""
    evaluate, proxy = likelihood.program.log_likelihood_constrained, coreset.proxy
    kept = likelihood.rows.select(likelihood.rows.places(coreset.indices))
    # Chosen groups of one length are evaluated as an array, those of several length by length.
    padded, order = tuple(leaf[:] for leaf in kept), order_by_length(kept)
    rows, weights = padded, coreset.weights
    if order is not None:
        rows, weights = read_groups(kept, order, copy=True), weights[order]

    def weigh(draws: PyTree, rows: tuple) -> Float[np.ndarray, " s"]:
        return log_likelihood_totals(evaluate, draws, rows, weights)

    weighted = None
    if len(coreset):
        first = likelihood.unconstrain_draws({name: x[:8] for name, x in at.items()})
        is_exact = energy_error(likelihood, first, padded, coreset.weights) > _MAX_ERROR
        weighted = model_in_float64(likelihood, weigh, at, rows) if is_exact else weigh(at, rows)
    if proxy is None:
        assert weighted is not None
        return weighted

    def with_proxy(draws: PyTree, weighted: Any, proxy: Proxy) -> Float[Array, " s"]:
        return _with_proxy(likelihood.unconstrain_draws(draws), weighted, proxy)

    # The quadratic is of differences from the center, which float32 does not resolve.
    return exactly(likelihood, with_proxy, at, weighted, proxy) + float(proxy.value)


@quick_jit
def _with_proxy(draws: PyTree, weighted: Any, proxy: Proxy) -> Float[Array, " s"]:
    """The log-likelihood of the proxy and the weighted rows, less the proxy's value."""
    return jax.vmap(proxy.log_likelihood)(jax.vmap(proxy.flat)(draws), weighted)


def starting_point(coreset: Coreset, likelihood: ModelLikelihood) -> dict[str, np.ndarray] | None:
    """Constrained parameters where chains on the coreset should start, if it knows them."""
    if coreset.summary is None and coreset.approximation is None:
        return None
    return {name: np.asarray(x) for name, x in likelihood.constrain(coreset.init_params()).items()}


def full_likelihood(
    coreset: Coreset, args: tuple, kwargs: Mapping[str, Any], likelihood: ModelLikelihood | None
) -> ModelLikelihood:
    """The likelihood of all the data that the coreset was built from.

    It is that of the model's arguments with all rows, or `likelihood`, or the coreset's own.

    Raises:
        ValueError: if there is no likelihood, or the data do not contain the coreset's rows.
    """
    if args or kwargs:
        if likelihood is not None:
            raise ValueError(
                "both likelihood and the model's arguments are given; expected only one of them."
            )
        likelihood = _likelihood_of(coreset, args, kwargs)
    elif likelihood is None:
        likelihood = coreset.likelihood
    if likelihood is None:
        raise ValueError(
            "the data that the coreset was built from are not available, because it was loaded, "
            "updated or merged; pass the model's arguments with all rows, in the order in which "
            "they came (after an update the old ones, then the new ones): for instance "
            "correct(coreset, mcmc, X, y)."
        )
    # Also of the coreset's own likelihood: its arrays may have been changed in place.
    _check_contains(coreset, likelihood)
    # What the model uses may have changed since the likelihood was made.
    return with_program(likelihood)


def _likelihood_of(coreset: Coreset, args: tuple, kwargs: Mapping[str, Any]) -> ModelLikelihood:
    """The likelihood of the model's arguments with all rows."""
    model, n = coreset.full_model, coreset.report.num_data
    args, kwargs = as_built(coreset, args, kwargs)
    context = precision_of(coreset.report.precision)
    if coreset.grouping is not None:
        with context.precision():
            layout = coreset.grouping.lay_out_all(model, args, kwargs, coreset.arguments)
            marginal = coreset.grouping.model(model, coreset.arguments)
            return likelihood_of_layout(marginal, layout, context=context)
    arguments = coreset.arguments.like(args, kwargs)
    for name, leaf in zip(coreset.data_names, arguments.data, strict=True):
        found = leaf.shape[0] if is_array(leaf) else "no"
        if found != n:
            raise ValueError(
                f"argument {name} has {found} rows, but the coreset was built from {n}; pass "
                "all the data, not the coreset's own rows."
            )
    args, kwargs = arguments.call
    with context.precision():
        return model_likelihood(model, args, kwargs, data_axes=arguments.axes, context=context)


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
    is_own = likelihood is coreset.likelihood
    check_contains(coreset, likelihood.arguments, likelihood.rows, is_own=is_own)
    check_sum(coreset, with_program(likelihood), is_own=is_own)
