"""Add rows that arrive later: a coreset of all rows, without reading the old rows again.

`DataSummary` is what a build keeps of the rows that it saw: the draws of π̂, the log-likelihood of
all rows at each draw, and the candidates. `updated` adds the log-likelihoods of the new rows at the
same draws, adds some of the new rows to the candidates, and solves again. The sums over all rows
are exact. New draws would need the old rows, so the report gives the effective sample size of the
old draws for the new posterior.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from jaxcoreset.coreset.codes import as_built
from jaxcoreset.coreset.report import GOOD_KL, Report
from jaxcoreset.coreset.report_table import NEEDS_BUILD, is_unreliable
from jaxcoreset.coreset.summary import DataSummary
from jaxcoreset.data.messages import warn_user
from jaxcoreset.data.ragged import padded_alike
from jaxcoreset.data.rows import PassContext
from jaxcoreset.data.utils import Clock, host_generator
from jaxcoreset.likelihood.embedding import log_likelihood_sum
from jaxcoreset.likelihood.expansion import Proxy
from jaxcoreset.likelihood.from_model import model_likelihood
from jaxcoreset.likelihood.group_layout import Layout
from jaxcoreset.likelihood.group_model import GroupModel
from jaxcoreset.likelihood.grouping import likelihood_of_new_groups
from jaxcoreset.likelihood.index_check import check_new_indices
from jaxcoreset.likelihood.integral_error import describe, error_of_integrals
from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params
from jaxcoreset.likelihood.precision import matrix_of_weighted
from jaxcoreset.likelihood.trace import one_at_a_time
from jaxcoreset.selection.construction import CANDIDATES_PER_ROW, MIN_CANDIDATES
from jaxcoreset.selection.draws import DrawPool
from jaxcoreset.selection.estimate import KLEstimate, kl_of_residuals
from jaxcoreset.selection.parts import Part, Use, importance_weights
from jaxcoreset.selection.solving import check_selection, solve_and_select
from jaxcoreset.selection.tolerance import Selection, largest_shift
from jaxcoreset.weighting import DrawSource
from jaxcoreset.weighting.laplace import LaplaceFitter

# The rows that an update may give a coreset with a proxy that had fewer.
_LEAST_SIZE = 32


def likelihood_of_others(
    coreset: Any, args: tuple, kwargs: dict[str, Any]
) -> tuple[Callable[[PassContext], ModelLikelihood], Layout | None]:
    """The function that makes the likelihood of other rows in a context.

    Args:
        coreset: the coreset.
        args: the model's positional arguments, in which only the rows differ.
        kwargs: its keyword arguments.

    Returns:
        The function, and for a coreset of groups these groups.
    """
    model, grouping, before = coreset.full_model, coreset.grouping, coreset.arguments
    args, kwargs = as_built(coreset, args, kwargs)
    if grouping is not None:
        layout = grouping.lay_out(model, args, kwargs, before)
        marginal = grouping.model(model, before)
        return lambda context: likelihood_of_new_groups(marginal, layout, context), layout
    arguments = before.like(args, kwargs)
    before.check_same_constants(arguments)
    call, axes = arguments.call, arguments.axes
    return lambda context: model_likelihood(model, *call, data_axes=axes, context=context), None


@one_at_a_time
def updated(
    likelihood_in: Callable[[PassContext], ModelLikelihood],
    before: Report,
    summary: DataSummary | None,
    key: PRNGKeyArray,
    context: PassContext,
    proxy: Proxy | None = None,
) -> dict[str, Any]:
    """Solve for the rows before and new ones, see `Coreset.update`.

    Args:
        likelihood_in: makes the likelihood of the new rows, in a context.
        before: the report of the earlier coreset.
        summary: what is known about the earlier rows.
        key: a JAX random key.
        context: where the new rows are evaluated.
        proxy: the approximation of all earlier rows that the coreset's rows correct, if there is
            one.

    Returns:
        The arguments of `coreset_of_selection`.
    """
    unit = before.unit
    if summary is None and before.num_used in (before.num_data, before.num_distinct):
        kind = (
            "" if before.num_used == before.num_data else f"{before.num_used:,} distinct ones of "
        )
        raise ValueError(
            f"the coreset is {kind}all {before.num_data:,} {unit} themselves, so it keeps no "
            f"summary to which new {unit} could be added. Build a new coreset from these {unit} "
            "and the new ones together."
        )
    if summary is None:
        instead = (
            "You can merge it instead: jc.merge([coreset, coreset_of_the_new_rows], size, key)."
            if unit == "rows"
            else f"Build a new coreset from all {unit} instead."
        )
        raise ValueError(
            f"the coreset has no summary of the {unit} that it was built from, so new {unit} "
            f"cannot be added; expected a coreset that CoresetBuilder or update made. {instead}"
        )
    clock = Clock()
    with clock.stage("model"):
        likelihood = likelihood_in(context)
        check_new_indices(likelihood, summary.candidates)
    with clock.stage("embedding"):
        pool = _joined_pool(summary, likelihood, before, key)
        summary.check_same_model(pool)
        # The expansion alone needed no draws that confirm a size, and now there may be rows.
        if before.tol is not None and not pool.count("confirmation"):
            _halve_selection_draws(pool)
        if proxy is not None:
            new = LaplaceFitter(likelihood).terms_at(proxy.center)
            pool.expansion = proxy.expansion.plus(new)
            if not np.linalg.eigvalsh(pool.expansion.precision)[0] > 0:
                raise ValueError(
                    f"the posterior of all {unit} is not log-concave at the mode for the earlier "
                    f"{unit}, so the proxy cannot be updated. The new {unit} differ too much from "
                    f"the earlier ones: build a new coreset from all {unit}."
                )
    # A coreset may have no rows; with the new ones some may be needed.
    size = before.size if proxy is None else max(before.size, _LEAST_SIZE)
    selection = solve_and_select(pool, size, clock, tol=before.tol)
    check_selection(pool, selection)
    # Find what the old draws are worth, and the error under importance weights.
    relative_ess, weighted = reweighted(pool, selection)
    held_out = pool.count("confirmation") or pool.count("selection")
    step = {
        "what": "update",
        "num_rows": likelihood.num_data,
        "relative_ess": relative_ess,
        "ess": relative_ess * held_out / summary.inefficiency,
        "kl": selection.estimate.kl,
        "kl_weighted": weighted.kl,
        **_doubt_of(before),
    }
    if is_unreliable(step):
        warn_user(
            f"with {likelihood.num_data:,} new {unit} the {held_out:,} old draws that were held "
            f"out are worth {step['ess']:.1f} draws of the posterior: {NEEDS_BUILD}.",
        )
    estimate = larger_estimate(selection.estimate, weighted, step)
    is_within = None
    if before.tol is not None:
        shift = selection.estimate.largest_shift
        is_within = bool(estimate.upper <= before.tol and shift <= largest_shift(before.tol))
    return {
        "pool": pool,
        "selection": selection,
        "clock": clock,
        "estimate": estimate,
        "keep_summary": True,
        "num_data": before.num_data + likelihood.num_data,
        "size": before.size,
        "weighting": before.weighting,
        "tol": before.tol,
        "other_mode": before.other_mode,
        "spike": before.spike,
        "is_within_tol": is_within,
        "history": [*before.history, step],
        **_facts_of_groups(likelihood, before, pool),
    }


def larger_estimate(estimate: KLEstimate, weighted: KLEstimate, step: dict[str, Any]) -> KLEstimate:
    """The larger of the estimates without and with importance weights, if these can be trusted.

    Args:
        estimate: the error at the draws as they are.
        weighted: the error under their importance weights.
        step: what the report says about the effective sample size of the weights.
    """
    if is_unreliable(step):
        # Most of the posterior may be where no draw is, with an error of any size.
        return dataclasses.replace(estimate, kl=math.inf, standard_error=math.inf)
    if not weighted.kl > estimate.kl:
        return estimate
    standard_error = max(weighted.standard_error, estimate.standard_error)
    return dataclasses.replace(weighted, standard_error=standard_error)


def _doubt_of(before: Report) -> dict[str, str]:
    """What is known against the estimate of the earlier coreset, whose draws are used again."""
    if before.trouble is not None:
        doubt = f"NUTS on the coreset before the update has not mixed ({before.trouble})"
        return {"doubt": doubt}
    last = before.rounds[-1] if before.rounds else {}
    is_unlike = last.get("agrees") is False and not last.get("alike")
    is_good = before.kl + 2 * before.kl_standard_error <= (before.tol or GOOD_KL)
    if is_unlike and last["own_kl"] > last["kl"] and not is_good:
        doubt = "before the update, the estimate was larger under the coreset's own posterior"
        return {"doubt": doubt}
    return {}


def _facts_of_groups(likelihood: ModelLikelihood, before: Report, pool: DrawPool) -> dict[str, Any]:
    """What the report says about integrals over the effects of earlier and of new groups."""
    marginal = likelihood.model
    if not isinstance(marginal, GroupModel):
        return {}
    error = error_of_integrals(likelihood, pool.parts("solver")[0].draws)
    # Both errors are variances of sums, and the sums may be correlated.
    total = None if before.integral_kl is None else (before.integral_kl**0.5 + error**0.5) ** 2
    return {"unit": "groups", "integration": describe(marginal), "integral_kl": total}


class ExhaustedSource(DrawSource):
    """A source whose draws are all in the pool already."""

    def __init__(self, inefficiency: float = 1.0):
        self.limit, self.inefficiency = 0, inefficiency

    def take(self, key: PRNGKeyArray, start: int, num: int) -> Params:
        """See `DrawSource.take`; there are none."""
        raise ValueError("there are no further draws, because the old rows are not available.")


def _joined_pool(
    summary: DataSummary, likelihood: ModelLikelihood, before: Report, key: PRNGKeyArray
) -> DrawPool:
    """The old draws with the sums over all rows, and old and new candidates."""
    draws = jax.tree.map(lambda *x: jnp.concatenate(x), *(part.draws for part in summary.parts))
    new = np.asarray(
        log_likelihood_sum(likelihood.program.log_likelihood, draws, likelihood.rows), np.float64
    )
    num = min(likelihood.num_data, max(MIN_CANDIDATES, CANDIDATES_PER_ROW * before.size))
    chosen = np.sort(host_generator(key).choice(likelihood.num_data, num, replace=False))
    before_and_new = padded_alike(tuple(summary.candidates), tuple(likelihood.take(chosen)))
    data = tuple(np.concatenate(pair) for pair in zip(*before_and_new, strict=True))
    values = matrix_of_weighted(likelihood, draws, data, before.num_data + likelihood.num_data)
    pool = DrawPool(likelihood, ExhaustedSource(summary.inefficiency), key)
    indices = np.concatenate([summary.indices, before.num_data + likelihood.rows.numbers(chosen)])
    pool.set_outside_candidates(indices, data)
    first = 0
    for part in summary.parts:
        at = slice(first, first + part.total.size)
        total = jnp.asarray(part.total + new[at], values.dtype)
        pool.parts(part.use).append(Part(part.draws, total, values[:, at], part.total_then))
        first = at.stop
    return pool


def _halve_selection_draws(pool: DrawPool) -> None:
    """Give every second draw that selects a size to those that confirm it."""
    whole = list(pool.parts("selection"))
    pool.parts("selection").clear()
    uses: tuple[Use, Use] = ("selection", "confirmation")
    for part in whole:
        for i, use in enumerate(uses):
            at = slice(i, None, 2)
            then = None if part.total_then is None else part.total_then[at]
            draws = jax.tree.map(lambda x, at=at: x[at], part.draws)
            pool.parts(use).append(Part(draws, part.total[at], part.values[:, at], then))


def reweighted(
    pool: DrawPool, selection: Selection, mass: Float[np.ndarray, " s"] | None = None
) -> tuple[float, KLEstimate]:
    """The relative effective sample size for the posterior of all rows, and the error under it.

    Args:
        pool: the held-out draws.
        selection: the coreset.
        mass: their importance weights, which add up to one. If left out, these are by the
            log-likelihood of the rows that came since the draws were made, known at each draw.
    """
    use: Use = "confirmation" if pool.count("confirmation") else "selection"
    differences = []
    for part in pool.parts(use):
        values, reached = pool.values(part, selection.approach, selection.positions)
        weighted = np.asarray(selection.weights, np.float64) @ np.asarray(values, np.float64)
        difference = np.asarray(reached, np.float64) - weighted
        differences.append(difference - difference.mean())
    if mass is None:
        mass = np.concatenate(importance_weights(pool.parts(use)))
    difference = np.concatenate(differences)
    residuals = (difference - mass @ difference) / np.sqrt(mass.size)
    kl, standard_error = kl_of_residuals(residuals, pool.source.inefficiency, mass)
    estimate = KLEstimate(float(kl), float(standard_error), selection.estimate.relative_error)
    return float(1 / np.sum(mass**2) / mass.size), estimate
