"""Which coreset of all rounds a build returns, and what its report says."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxcoreset.builders.settings import Tolerance
from jaxcoreset.builders.spikes import find_spike
from jaxcoreset.coreset.coreset import Coreset
from jaxcoreset.coreset.report import MAX_KL, Report
from jaxcoreset.coreset.report_table import needs_most_rows, rows_text
from jaxcoreset.selection.construction import Construction
from jaxcoreset.selection.draws import DrawPool
from jaxcoreset.selection.estimate import KLEstimate
from jaxcoreset.selection.rounds import CHECKED_ESS, Checker, Round
from jaxcoreset.selection.sizes import is_hopeless
from jaxcoreset.selection.tolerance import Selection

# If the relative error at held-out draws is this many times that at the solver's draws, more rows
# hardly help.
_UNLIKE = 10.0
# A coreset that goes wrong between its draws is built again with this multiple of them.
_MORE_DRAWS = 4
# An error is far worse than another one if it is this many times as large.
_FAR_WORSE = 10.0
# A round is worse than an earlier one if its error is this many times as large.
_FAR_BETTER = 1.5


def check_tolerance(tol: Tolerance, report: Report, pool: DrawPool) -> None:
    """Raise a ValueError that says what to do if the tolerance is not met."""
    if report.is_within_tol is not False:
        return
    reached = report.kl + 2 * report.kl_standard_error
    found = f"the estimated KL divergence plus two standard errors is still {reached:.3g} nats"
    if reached <= tol.kl and (shifts := report.curve.get("mean_shift")) is not None:
        found = (
            f"a posterior mean is still off by up to {np.min(shifts):.2g} standard deviations; "
            f"expected at most {tol.max_shift:.2g}"
        )
    tried = int(report.curve["size"][-1])
    advice = "Raise max_size, tol or candidates"
    if pool.is_exhausted and tried < tol.max_size:
        advice = f"The weighting has only {pool.source.limit} draws: pass more draws, or raise tol"
    elif report.held_out_error > _UNLIKE * report.relative_error:
        advice = (
            "The error is large only at draws that the solver did not see, so more rows hardly "
            "help: the posterior may have several modes, or the weighting may have long tails"
        )
    elif report.rows_needed is not None:
        remedy = "run NUTS on all rows" if needs_most_rows(report) else "raise max_size or tol"
        needed = rows_text(report)
        advice = f"The sizes that were tried suggest that it would take {needed}: {remedy}"
    elif report.rounds and report.rounds[-1]["agrees"] is False:
        advice = "The coreset's own posterior does not agree with π̂: raise rounds, or max_size"
    limit = f"max_size = {tried}" if tried == tol.max_size else str(tried)
    raise ValueError(
        f"tol is {tol.kl} nats, but with {limit} rows of {report.num_data}, {found}. {advice}; or "
        f"take the best coreset that was found, with tol=Tolerance({tol.kl}, throw=False), and "
        "weight its draws by jaxcoreset.correct."
    )


def look_for_spike(coreset: Coreset) -> None:
    """Note in the report if the weighted density has a mode of its own."""
    if coreset.likelihood is None or coreset.summary is None:
        return
    spike = find_spike(
        coreset.likelihood,
        coreset.arguments.data,
        coreset.weights,
        coreset.init_params(),
        coreset.proxy,
    )
    if spike is not None:
        coreset.report = dataclasses.replace(coreset.report, spike=spike)


def is_futile(
    construction: Construction,
    checker: Checker,
    selection: Selection,
    found: list[Coreset],
    had_all_sizes: bool,
) -> bool:
    """Return whether another round cannot help: it needs more rows or draws, or it got worse."""
    if with_more_draws(construction, found[-1]) is not None:
        return True
    if checker.were_alike and not selection.is_within:
        return had_all_sizes or is_hopeless(construction, selection)
    return len(found) > 1 and got_far_worse(found[-2].report, found[-1].report)


def got_far_worse(before: Report, after: Report) -> bool:
    """Return whether a round's coreset cannot be used, and is much worse than the one before."""
    return after.kl > max(MAX_KL, _FAR_WORSE * before.kl)


def has_escaped(last: Mapping[str, Any]) -> bool:
    """Return whether a coreset's own posterior goes where the error is far larger than under π̂.

    Args:
        last: a round, as `Report.rounds` has it.
    """
    own = last.get("own_kl")
    return own is not None and own > max(MAX_KL, _FAR_WORSE * last["kl"])


def with_more_draws(construction: Construction, coreset: Coreset) -> Construction | None:
    """The construction with more draws, if the coreset goes wrong between them, beside its proxy.

    It does if it has a second mode, or if its own posterior reaches where its error is far larger
    than at the draws. More of them mostly leave no room for that. None if it does not, or the user
    set the number of draws.
    """
    if coreset.proxy is None or construction.num_draws is not None:
        return None
    report = coreset.report
    if report.spike is None and not (report.rounds and has_escaped(report.rounds[-1])):
        return None
    return dataclasses.replace(construction, num_draws=_MORE_DRAWS * report.num_draws)


def up_to_best(found: list[Coreset]) -> list[Coreset]:
    """The coresets of rounds up to the best one, whose report lists all rounds.

    That is the last one, unless it misses the tolerance or there is none, and the error of an
    earlier one is far smaller.
    """
    last = found[-1].report
    errors = [one.report.kl for one in found]
    best = int(np.argmin(errors))
    if last.is_within_tol or not errors[best] * _FAR_BETTER < last.kl:
        return found
    found[best].report = dataclasses.replace(
        found[best].report,
        rounds=last.rounds,
        passes=last.passes,
        seconds=last.seconds,
        candidate_searches=last.candidate_searches,
    )
    return found[: best + 1]


def reported_estimate(estimate: KLEstimate, last: Round) -> KLEstimate:
    """The estimate under π̂, that under the coreset's posterior, or the mean of both.

    The symmetrised divergence is the integral of Var(L − L_w) along the path of densities
    proportional to π^t π_w^(1−t), so that the mean of the variances at its ends is more accurate
    than either. It is reported if the two are similar and were accepted. If π̂ is poor, or its
    held-out draws are not new, its variance is that of a coreset where it was built, and the one
    under the coreset's posterior is reported. If they differ, the larger one is.
    """
    if last.agrees is None or last.own_kl is None or last.own_kl_standard_error is None:
        return estimate
    own = dataclasses.replace(
        estimate,
        kl=last.own_kl,
        standard_error=last.own_kl_standard_error,
        mean_shift=last.own_mean_shift,
        mean_shift_standard_error=last.own_mean_shift_standard_error,
    )
    if not (last.agrees and last.alike):
        return own if own.kl > estimate.kl else estimate
    is_poor = last.relative_ess is not None and last.relative_ess < CHECKED_ESS
    if is_poor or last.has_repeats:
        return own
    with_larger_shift = max(estimate, own, key=lambda one: one.mean_shift or 0.0)
    return dataclasses.replace(
        with_larger_shift,
        kl=(estimate.kl + own.kl) / 2,
        standard_error=float(np.hypot(estimate.standard_error, own.standard_error)) / 2,
    )
