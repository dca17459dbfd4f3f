"""The rows of the table that a report is shown as."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxcoreset.selection.estimate import LOWER_BOUND_KL

# The limits below which old draws are worth too little after an update, as a fraction of new ones
# and as their number. For normal posteriors in closed form, 3,500 random ones within both limits,
# the divergence was at most 1.3 times the estimate in 19 of 20 and 1.9 times in 99 of 100, and with
# a fraction from 0.1 to 0.3 it was 1.4 and 2.2. Outside it was more than six times in one of ten.
MIN_RELATIVE_ESS = 0.1
MIN_ESS = 20
# Above this fraction of the rows a coreset saves little.
_MOST_OF = 0.5
# The errors, in nats, for which a report names the number of rows.
_GOALS = (0.1, 0.01, 0.001)
NEEDS_BUILD = "too few to estimate the error, so build a new coreset from all rows"


def rows_of(report: Any) -> list[tuple[str, str]]:
    """The names and texts of a report's rows."""
    needed, memory = rows_for_goals(report), report.peak_memory
    passes = ", ".join(f"{what} {count}" for what, count in report.passes.items())
    rows = [
        (report.unit, _rows_text(report)),
        ("proxy of all rows", report.proxy),
        ("candidates", f"{report.num_candidates:,}"),
        ("draws", f"{report.num_draws:,} for the solver, {report.num_held_out:,} held out"),
        ("weighting", report.weighting),
        ("solver", report.solver + ("" if report.converged else " (did not converge)")),
        ("relative error", f"{report.relative_error:.2e}"),
        ("held-out error", f"{report.held_out_error:.2e}"),
        ("estimated KL", _estimate_text(report)),
        ("effects of groups", _integral_text(report)),
        ("Gaussian alone", _gaussian_text(report)),
        ("tolerance", _tolerance_text(report)),
        (f"{report.unit} needed", f"{needed} nats" if needed else None),
        ("rounding", _rounding_text(report)),
        ("spike", _spike_text(report)),
        *_round_rows(report),
        ("passes", passes or None),
        *_search_rows(report),
        *_history_rows(report),
        ("verdict", report.verdict),
        ("next", next_step(report)),
        ("seconds", ", ".join(f"{name} {spent:.1f}" for name, spent in report.seconds.items())),
        ("peak memory", None if memory is None else f"{memory / 2**20:,.0f} MiB"),
    ]
    return [(name, text) for name, text in rows if text is not None]


def _rows_text(report: Any) -> str:
    rows = f"{report.num_used:,} of {report.num_data:,}"
    if report.num_distinct is None or report.num_distinct == report.num_data:
        return f"{rows} ({report.size:,} allowed)"
    return f"{rows} ({report.num_distinct:,} distinct), {report.size:,} allowed"


def _estimate_text(report: Any) -> str:
    if math.isinf(report.kl):
        return "not known"
    # To first order, which says nothing about an estimate that is a lower bound.
    shift = ""
    if report.mean_shift is not None and report.kl < LOWER_BOUND_KL:
        shift = f"; no parameter's mean off by over {rounded_up(report.mean_shift)} sd"
    return f"{kl_text(report.kl, report.kl_standard_error)} nats, symmetrised{shift}"


def _integral_text(report: Any) -> str | None:
    if report.integration is None:
        return None
    error = f", which adds {report.integral_kl:.1g} nats" if report.integral_kl else ""
    return f"{report.integration}{error}"


def _gaussian_text(report: Any) -> str | None:
    text = report.gaussian_verdict
    if text is None:
        return None
    worth = f"effective sample size of its draws {report.gaussian_relative_ess:.0%}"
    shape = "" if report.gaussian_k_hat is None else f", k-hat {report.gaussian_k_hat:.2f}"
    return f"{text} ({worth}{shape})"


def _tolerance_text(report: Any) -> str | None:
    if report.tol is None:
        return None
    verdict = "not met: this is the best coreset" if report.is_within_tol is False else "met"
    if math.isinf(report.kl):
        verdict = "not known to be met"
    elif report.rows_needed is not None:
        verdict += f", and it would take {rows_text(report)}"
    return f"{report.tol:.2g} nats, {verdict}"


def rows_for_goals(report: Any) -> str:
    """The number of rows for 0.1, 0.01 and 0.001 nats on the curve; empty if there is no curve."""
    curve = report.curve
    if math.isinf(report.kl) or np.size(curve.get("kl", ())) < 2:
        return ""
    upper = curve["kl"] + 2 * curve["kl_standard_error"]
    rows = curve["num_used"].astype(int)
    found = [rows[upper <= goal] for goal in _GOALS]
    return ", ".join(
        f"{few.min():,} for {goal:g}" if few.size else f"more than {rows.max():,} for {goal:g}"
        for goal, few in zip(_GOALS, found, strict=True)
    )


def next_step(report: Any) -> str:
    """What to do with a coreset after its verdict, in a sentence."""
    word = report.verdict.partition(":")[0]
    if report.num_draws == 0 and report.kl == 0:
        return "run NUTS on coreset.model with init_params(); there is no error to certify."
    if word == "good":
        return "run NUTS on coreset.model with init_params(), then certify(coreset, mcmc)."
    if word == "not known":
        return "build a new coreset from all rows."
    if word == "not checked":
        return "run longer chains on coreset.model with init_params(), then certify(coreset, mcmc)."
    if word == "one mode only":
        return "give the model one mode, or pass draws from all modes: weighting=Draws(samples)."
    larger = "raise size" if report.tol is None else "raise max_size or tol"
    if report.rows_needed is not None and needs_most_rows(report):
        larger = "run NUTS on all rows"
    if word == "don't use":
        return f"{larger}, or draw from a better approximation: rounds or weighting."
    return (
        f"run NUTS on coreset.model with init_params(), then correct(coreset, mcmc); or {larger}."
    )


def needs_most_rows(report: Any) -> bool:
    """Return whether the tolerance would take so many rows that a coreset saves little."""
    return report.rows_needed > _MOST_OF * report.num_data


def rows_text(report: Any) -> str:
    """How many rows the tolerance would take, in words."""
    if needs_most_rows(report):
        return f"more than half of all {report.unit}"
    digits = 10 ** max(0, len(str(report.rows_needed)) - 2)
    return f"about {round(report.rows_needed / digits) * digits:,} {report.unit}"


def _rounding_text(report: Any) -> str | None:
    if report.rounding is None:
        return None
    return f"{report.rounding:.1g} nats of the log-density in float32: use in_float64()"


def _spike_text(report: Any) -> str | None:
    if report.spike is None:
        return None
    return f"a mode that is {report.spike:.2g} nats too high: start chains at init_params()"


def _search_rows(report: Any) -> list[tuple[str, str]]:
    rows = []
    for one in report.candidate_searches:
        text = f"the best further row lowers the objective by {one['largest_decrease']:.1%}"
        if one["num_added"]:
            change = one["objective_after"] / one["objective"]
            text += f"; {one['num_added']:,} rows joined, and it fell to {change:.1%}"
        rows.append(("candidate search", text))
    return rows


def _history_rows(report: Any) -> list[tuple[str, str]]:
    rows = []
    for step in report.history:
        if step["what"] == "merge":
            of_parts = f"whose errors add up to {step['kl_of_parts']:.2g} nats"
            if math.isinf(step["kl_of_parts"]):
                of_parts = "at least one of which has an unknown error"
            reduction = f"the error of the reduction is {step['kl']:.2g} nats"
            if math.isinf(step["kl"]):
                ess = f"{step['relative_ess']:.0%} of the draws of the Gaussian"
                reduction = f"the effective sample size is {ess}: {NEEDS_BUILD}"
            text = f"of {step['num_coresets']} coresets, {of_parts}; {reduction}"
        else:
            text = (
                f"{step['num_rows']:,} rows were added; the effective sample size "
                f"of the old draws is {step['relative_ess']:.0%}"
            )
            if is_unreliable(step):
                text += f": {NEEDS_BUILD}"
        rows.append((step["what"], text))
    return rows


def _round_rows(report: Any) -> list[tuple[str, str]]:
    rows = []
    for number, one in enumerate(report.rounds, 1):
        text = f"KL {kl_text(one['kl'], one['kl_standard_error'])} under {one['weighting']}"
        if one["own_kl"] is not None:
            own = kl_text(one["own_kl"], one["own_kl_standard_error"])
            text += f", {own} under its own posterior: {_verdict_on(one)}"
        elif len(report.rounds) == 1:
            continue
        elif one.get("trouble"):
            text += f"; the chains on the coreset have not mixed: {one['trouble']}"
        rows.append((f"round {number}", text))
    return rows


def _verdict_on(one: Mapping[str, Any]) -> str:
    """What the two estimates of a round say about each other."""
    is_alike = one.get("alike")
    if one["agrees"]:
        return "both are within the tolerance" if is_alike is False else "they agree"
    return "they are similar" if is_alike else "they differ"


def is_unreliable(step: dict[str, Any]) -> bool:
    """True if the old draws were worth too little in an update, a step of a report's history."""
    # Reports of earlier versions do not have the number.
    return step["relative_ess"] < MIN_RELATIVE_ESS or step.get("ess", MIN_ESS) < MIN_ESS


def rounded_up(value: float) -> str:
    """A number of at least 0 to one digit, not below it."""
    if not value > 0:
        return f"{value:.1g}"
    digit = 10.0 ** math.floor(math.log10(value))
    return f"{math.ceil(value / digit - 1e-9) * digit:.1g}"


def kl_text(kl: float, standard_error: float) -> str:
    """An estimate with its standard error; a large one is a lower bound."""
    text = f"{kl:.2g} ± {standard_error:.1g}"
    return text if kl < LOWER_BOUND_KL else f"at least {text}"
