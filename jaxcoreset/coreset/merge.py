"""Merge coresets that were built from different rows of one model.

Only their weighted rows are needed. The error of the result is that of each coreset plus that of
the reduction. In a tree over many blocks the errors add up along its depth (merge and reduce:
Bentley and Saxe 1980; Feldman, Schmidt and Sohler 2020).
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import PRNGKeyArray

from jaxcoreset.coreset.codes import codes_of_all
from jaxcoreset.coreset.coreset import Coreset, coreset_of_selection
from jaxcoreset.coreset.joint import JointLikelihood
from jaxcoreset.coreset.report import GOOD_KL
from jaxcoreset.coreset.report_table import NEEDS_BUILD, is_unreliable
from jaxcoreset.coreset.update import ExhaustedSource, larger_estimate, reweighted
from jaxcoreset.coreset.warn import warn_if_bad
from jaxcoreset.data.messages import listed, warn_user
from jaxcoreset.data.rows import PassContext
from jaxcoreset.data.utils import Clock, check_int
from jaxcoreset.likelihood.from_model import model_likelihood
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.precision import in_enough_precision, matrix_of_weighted
from jaxcoreset.likelihood.trace import one_at_a_time
from jaxcoreset.selection.baseline import GaussianBaseline, log_weights_of
from jaxcoreset.selection.construction import DRAWS_PER_ROW, MIN_DRAWS
from jaxcoreset.selection.draws import DrawPool
from jaxcoreset.selection.estimate import KLEstimate
from jaxcoreset.selection.parts import Use, split
from jaxcoreset.selection.reach import reaching_out
from jaxcoreset.selection.rounds import CHECKED_ESS
from jaxcoreset.selection.solving import check_selection, solve_and_select
from jaxcoreset.solvers.base import Solver
from jaxcoreset.solvers.numerics import as_key
from jaxcoreset.weighting.laplace import LaplaceFitter
from jaxcoreset.weighting.psis import log_sum_exp

_DIFFERENT = "coresets are of different models; expected one model for all of them."
# Below it, in nats, the error of a reduction does not matter, even if it is a few times larger.
_NEGLIGIBLE = GOOD_KL / 10
# The rows of a coreset by which its model is compared with that of another one.
_FEW_ROWS = 4


@one_at_a_time
def merge(
    coresets: Sequence[Coreset],
    size: int,
    key: PRNGKeyArray | int,
    *,
    solver: Solver | None = None,
    num_draws: int | None = None,
    num_held_out: int = 1000,
) -> Coreset:
    """Merge coresets that were built from different rows of one model.

    Only their weighted rows and their proxies are used, with draws from the Laplace approximation
    of their joint posterior. If one of them has a proxy, the result may have one.

    Args:
        coresets: at least one; row numbers of the result count through their data in this order.
        size: the maximum number of rows.
        key: a JAX random key or an integer seed; the same key gives the same coreset.
        solver: the solver, such as one with a constraint on these rows; the default solver if left
            out, whatever the coresets were built with.
        num_draws: the number of draws for the solver; four times the size and at least 500 if left
            out.
        num_held_out: the number of further draws, which measure the error with importance weights.

    Returns:
        The coreset. The `kl` of its report is the sum of those of the coresets and of the error of
        the reduction, since errors of separate blocks are assumed to be uncorrelated. It is
        infinite if that of a coreset is, as after an `update` whose error is not known, or if the
        further draws are worth too few of the posterior to measure the error of the reduction, see
        `Report.history`.

    Raises:
        ValueError: if there are no coresets, they are of different models, their arguments differ
            in more than the rows, or the posterior has no mode.
        ModelError: if a row's log-likelihood depends on other rows.
    """
    size = check_int("size", size, 1)
    num_held_out = check_int("num_held_out", num_held_out, 8)
    if not coresets:
        raise ValueError("coresets is empty; expected at least one.")
    if any(one.grouping is not None for one in coresets):
        raise ValueError(
            "one of the coresets is a coreset of groups; expected coresets of rows. Add new "
            "groups to it with its method update, or build a coreset of all groups."
        )
    is_exact = any(one.report.precision == "float64" for one in coresets)

    def run(context: PassContext) -> Coreset:
        return _merge(coresets, size, as_key(key), context, solver, num_draws, num_held_out)

    precision = "float64" if is_exact else "float32"
    return in_enough_precision(run, precision, coresets[0].full_model)


def _merge(
    coresets: Sequence[Coreset],
    size: int,
    key: PRNGKeyArray,
    context: PassContext,
    solver: Solver | None,
    num_draws: int | None,
    num_held_out: int,
) -> Coreset:
    """See `merge`; JAX has the precision of the context."""
    first, clock = coresets[0], Clock()
    for other in coresets[1:]:
        _check_alike(first, other)
    columns, codes = _columns(coresets), codes_of_all(coresets)
    # Collect all the weighted rows, with their row numbers among all the data.
    # Without any, one row stands for the data, which counts for nothing.
    num_rows = sum(map(len, coresets))
    data = [
        _joined(coresets, leaves) if num_rows else np.asarray(leaves[0])
        for leaves in zip(*(one.arguments.data for one in coresets), strict=True)
    ]
    starts = np.cumsum([0, *(one.report.num_data for one in coresets)])
    indices = np.concatenate(
        [one.indices + start for one, start in zip(coresets, starts, strict=False)]
    )
    weights = np.concatenate([np.asarray(one.weights, np.float64) for one in coresets])
    size = min(size, max(weights.size, 1))
    num_draws = None if num_draws is None else check_int("num_draws", num_draws, 2)
    num_draws = num_draws or max(MIN_DRAWS, DRAWS_PER_ROW * size)
    # Draw from the Laplace approximation of their joint posterior, and evaluate the rows there.
    with clock.stage("model"):
        arguments = first.arguments.with_data(data)
        args, kwargs = arguments.call
        axes = arguments.axes
        likelihood = model_likelihood(
            first.full_model, args, kwargs, data_axes=axes, context=context
        )
        for other in {id(one.full_model): one for one in coresets}.values():
            _check_same_values(likelihood, other, first)
    with clock.stage("weighting"):
        proxies = [one.proxy for one in coresets]
        parts = [np.asarray(one.weights, np.float64) for one in coresets]
        joint = JointLikelihood(likelihood, parts, proxies)
        has_proxy = any(proxy is not None for proxy in proxies)
        if has_proxy:
            start = next(proxy.center for proxy in proxies if proxy is not None)
            approximation = joint.laplace(start)
        else:
            approximation = LaplaceFitter(likelihood)(weights=weights)
    pool = DrawPool(likelihood, ExhaustedSource(), key)
    pool.set_outside_candidates(indices if num_rows else np.zeros(1, np.int64), likelihood.data)
    with clock.stage("embedding"):
        draws = approximation.draws(key, num_draws + num_held_out)
        values = matrix_of_weighted(likelihood, draws, likelihood.data, weights.sum())
        if has_proxy:
            total = np.asarray(joint.totals(draws))
        else:
            total = (weights @ np.asarray(values, np.float64)).astype(values.dtype)
        parts = split(draws, total, values, (num_draws, num_held_out))
        uses: tuple[Use, ...] = "solver", "selection"
        for use, part in zip(uses, parts, strict=True):
            pool.parts(use).append(part)
    other_modes = [one.report.other_mode for one in coresets]
    if has_proxy:
        assert approximation.expansion is not None
        pool.expansion = reaching_out(joint, approximation.expansion)
        other_modes.append(pool.expansion.other_mode)
    selection = solve_and_select(pool, size, clock, solver=solver, key=key)
    check_selection(pool, selection)
    # The draws are of a Gaussian, so they are weighted by the posterior's density over its own.
    log_weights = log_weights_of(pool, pool.parts("selection"), approximation)
    assert log_weights is not None
    joined = np.concatenate(log_weights)
    relative_ess, weighted = reweighted(pool, selection, np.exp(joined - log_sum_exp(joined)))
    before = [one.report for one in coresets]
    kl_of_parts = sum(report.kl for report in before)
    step = {
        "what": "merge",
        "num_coresets": len(coresets),
        "kl_of_parts": kl_of_parts,
        "relative_ess": relative_ess,
        "ess": relative_ess * num_held_out,
    }
    own = larger_estimate(selection.estimate, weighted, step)
    step["kl"] = own.kl
    if is_unreliable(step):
        warn_user(
            f"{num_held_out:,} draws of the Gaussian at the mode are worth {step['ess']:.1f} draws "
            f"of the posterior: {NEEDS_BUILD}.",
        )
    errors = [own.standard_error, *(report.kl_standard_error for report in before)]
    doubts = [f"before the merge, {one.doubt}" for one in before if one.doubt is not None]
    if relative_ess < CHECKED_ESS and _NEGLIGIBLE < own.upper < np.inf:
        # Few draws are in the tail, and none beyond it, so this error may still be too low.
        doubts.append(
            "the draws that measure the error are of the Gaussian at the mode, with an effective "
            f"sample size of {relative_ess:.0%}"
        )
    if doubts:
        step["doubt"] = doubts[0]
    spikes = [report.spike for report in before if report.spike is not None]
    found = coreset_of_selection(
        first.full_model,
        pool,
        selection,
        clock,
        approximation=approximation,
        baseline=GaussianBaseline.of(pool, approximation),
        estimate=KLEstimate(
            own.kl + kl_of_parts, float(np.hypot.reduce(errors)), own.relative_error
        ),
        num_data=int(starts[-1]),
        size=size,
        weighting="Laplace",
        other_mode=min((one for one in other_modes if one is not None), default=None),
        spike=max(spikes, default=None),
        history=[step],
    )
    found.columns, found.codes = columns, codes
    warn_if_bad(found.report)
    return found


def _columns(coresets: Sequence[Coreset]) -> dict[str, tuple[str, ...]]:
    """The columns of tables, which must be those of each coreset that knows them."""
    known: dict[str, tuple[str, ...]] = {}
    for one in coresets:
        for name, columns in one.columns.items():
            if known.setdefault(name, columns) != columns:
                raise ValueError(
                    f"the coresets were built from tables with other columns as argument {name}, "
                    f"or with the same in another order: {listed(known[name])}, and "
                    f"{listed(columns)}. Build each from a table with the same columns in the same "
                    "order."
                )
    return known


def _joined(coresets: Sequence[Coreset], leaves: Sequence) -> np.ndarray:
    """One data argument of all coresets; that of a coreset without rows holds one all the same."""
    kept = zip(coresets, leaves, strict=True)
    return np.concatenate([np.asarray(leaf)[: len(one)] for one, leaf in kept])


def _check_alike(first: Coreset, other: Coreset) -> None:
    positions = [(one.arguments.data_at, one.arguments.counts_at) for one in (first, other)]
    if first.data_dims != other.data_dims or positions[0] != positions[1]:
        raise ValueError(_DIFFERENT)
    first.arguments.check_same_constants(first.arguments.like(other.args, other.kwargs))


def _check_same_values(likelihood: ModelLikelihood, other: Coreset, first: Coreset) -> None:
    """Refuse a coreset of another model, by values of a few of its rows with both models."""
    if other.full_model is first.full_model:
        return
    rows = tuple(np.asarray(leaf)[:_FEW_ROWS] for leaf in other.arguments.data)
    args, kwargs = first.arguments.with_data(rows).call
    axes, context = first.arguments.axes, likelihood.rows.context
    theirs = model_likelihood(other.full_model, args, kwargs, data_axes=axes, context=context)
    shapes = [
        {name: np.shape(value) for name, value in one.init_params.items()}
        for one in (likelihood, theirs)
    ]
    if shapes[0] != shapes[1]:
        raise ValueError(_DIFFERENT)
    points = likelihood.points_apart()
    pairs = zip(likelihood.values_of(rows, points), theirs.values_of(rows, points), strict=True)
    for ours, other_values in pairs:
        for one, another in zip(ours, other_values, strict=True):
            if not np.allclose(one, another, rtol=1e-4, atol=1e-4, equal_nan=True):
                raise ValueError(_DIFFERENT)
