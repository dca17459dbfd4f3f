"""Warnings about coresets that should not be used as they are."""

import math

from jaxcoreset.coreset.report import GOOD_KL, MAX_KL, Report
from jaxcoreset.data.messages import warn_user


def warn_if_bad(report: Report) -> None:
    """Warn of a coreset that is far from the full posterior, or whose error was not checked.

    An update or a merge whose own error is not known warns of that itself.
    """
    remedies = (
        "raise size (or lower tol), write the model so that NUTS mixes, or use another weighting, "
        "such as SubsampleNUTS() or Draws(samples)"
    )
    if report.history:
        remedies = "build a new coreset from all rows"
    last = report.history[-1] if report.history else {}
    is_said = math.isinf(report.kl) and (
        last.get("what") == "update" or math.isinf(last.get("kl", 0))
    )
    if (report.kl > MAX_KL and not is_said) or report.doubt is not None or report.is_bound_only:
        warn_user(f"{report.verdict} To fix this, {remedies}.")
    warn_of_integrals(report)
    if report.spike is not None:
        warn_user(
            "the density of the weighted rows has a mode that the full posterior does not have: a "
            "component may shrink onto one heavy row. Start the chains where the coreset was "
            "built, init_params=coreset.init_params(num_chains), or give the scale a prior that "
            "keeps it from zero.",
        )
    if report.other_mode is not None:
        warn_user(
            f"the posterior of all rows has another mode, about {report.other_mode:.0f} standard "
            "deviations from the first; kl covers the first mode only, and chains that start "
            "there may not find the other mode. Write the model so that it has one mode, for "
            "instance with ordered parameters, or pass draws that visit both, "
            "weighting=Draws(samples).",
        )


def warn_of_integrals(report: Report) -> None:
    """Warn of integrals over the effects of groups whose error is above the tolerance."""
    if (report.integral_kl or 0.0) > (report.tol or GOOD_KL):
        warn_user(
            f"the effects of groups are {report.integration}, and the error of these integrals "
            f"adds {report.integral_kl:.1g} nats, which kl does not include. Use "
            "integration=AdaptiveQuadrature() if a group's effects have one or two dimensions. "
            "Otherwise use fewer effects for each group, and make the other effects parameters "
            "that all groups share.",
        )
