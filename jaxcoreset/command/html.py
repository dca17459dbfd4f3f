"""A report of a coreset as one HTML file that needs nothing else, for people without JAX.

Figures are embedded as PNG, so the file can be mailed, archived and printed.
"""

import base64
import io
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxcoreset.command.html_page import MEANING, TOO_LARGE, USE, definitions, page, table
from jaxcoreset.coreset.coreset import Coreset
from jaxcoreset.coreset.report import Report
from jaxcoreset.data.host import write_whole
from jaxcoreset.data.messages import require
from jaxcoreset.likelihood.likelihood import model_likelihood
from jaxcoreset.likelihood.weighted import WeightedModel
from jaxcoreset.weighting.laplace import LaplaceApproximation, laplace_approximation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_PANELS, _MOST_PARAMETERS = 20, 300
_LOWER_BOUND_NATS = 0.3  # see `Report.kl`
_NOT_KNOWN = (
    "Here there is no estimate: rows came since the draws were made by which the posterior changed "
    "so much that they tell nothing of the error. It may be of any size. Build the coreset anew "
    "from all rows."
)
_RESOLVED = 1e-3  # standard deviations: the root of the Newton decrement in `laplace`


@dataclass(frozen=True)
class Comparison:
    """The Laplace approximations of the posterior of all rows and of the coreset posterior.

    Attributes:
        full: that of all rows.
        small: that of the weighted rows.
        names: the D parameters' names, for people.
    """

    full: LaplaceApproximation
    small: LaplaceApproximation
    names: Sequence[str]

    @property
    def shifts(self) -> np.ndarray:
        """Differences of the means, in posterior standard deviations, shape (D,)."""
        return (self.small.mode - self.full.mode) / self.full.sd

    @property
    def ratios(self) -> np.ndarray:
        """Ratios of the standard deviations, coreset over all rows, shape (D,)."""
        return self.small.sd / self.full.sd


def compare_laplace(
    coreset: Coreset, name: Callable[[str], str] = str, data_axes: Any = None
) -> Comparison | None:
    """Compare the two posteriors by their Laplace approximations.

    Args:
        coreset: a coreset that was just built.
        name: from a parameter's name, such as ``beta[2]``, to what people call it.
        data_axes: as of `model_likelihood`.

    Returns:
        The comparison; None where the coreset has no approximation of the posterior of all rows,
        or its own has none.
    """
    full = coreset.approximation
    if full is None:
        return None
    weighted = coreset.model
    assert isinstance(weighted, WeightedModel)
    try:
        likelihood = model_likelihood(
            weighted.model, coreset.args, coreset.kwargs, data_axes=data_axes
        )
        small = laplace_approximation(likelihood, weights=coreset.weights, start=full.params())
    except ValueError:  # too few rows for a mode: the numbers of the report say so themselves
        return None
    return Comparison(full, small, [name(parameter) for parameter in full.names])


def write_html_report(path: str | os.PathLike, coreset: Coreset, **sections: Any) -> Path:
    """Write `html_report` to a file, whole or not at all.

    Args:
        path: where to.
        coreset: the coreset.
        **sections: what else `html_report` takes.

    Returns:
        The path written.
    """
    text = html_report(coreset, **sections)
    return write_whole(path, lambda file: file.write(text.encode()))


def html_report(
    coreset: Coreset,
    *,
    title: str = "Coreset report",
    facts: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
    tol: float | None = None,
    comparison: Comparison | None = None,
    scaling: Mapping[str, tuple[float, float]] | None = None,
    programs: Mapping[str, str] | None = None,
) -> str:
    """A report of a coreset as a complete HTML page with its figures in it.

    Args:
        coreset: the coreset.
        title: of the page.
        facts: where it came from, by name: the file, the model, the command.
        notes: what was done with the table, sentences.
        tol: the tolerance that was asked for, in nats.
        comparison: of the two posteriors, by `compare_laplace`.
        scaling: for each standardised column its mean and standard deviation.
        programs: how to use the coreset elsewhere: programs by the tool's name.

    Raises:
        ModuleNotFoundError: if matplotlib is not installed; the extra ``tables`` brings it.
    """
    require("matplotlib")
    report = coreset.report
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="lead">{escape(verdict(report))}</p>',
        definitions(facts or {}),
        "".join(f"<p>{escape(note)}</p>" for note in notes),
        "<h2>The numbers</h2>",
        _numbers(report),
        _meaning(report),
    ]
    if 0 < report.kl < math.inf:
        parts += ["<h2>Error against size</h2>", _figure(*_error_figure(coreset, tol))]
    if comparison is not None:
        parts += ["<h2>The posterior, from the coreset and from all rows</h2>"]
        parts += [_comparison(comparison), _figure(*_marginal_figure(comparison))]
    parts += ["<h2>How to use it</h2>", USE]
    if scaling:
        parts.append(_scaling(scaling))
    for tool, program in (programs or {}).items():
        parts.append(
            f"<details><summary>{escape(tool)}</summary><pre>{escape(program)}</pre></details>"
        )
    if not math.isinf(report.kl):
        parts.append("<h2>The curve in numbers</h2>" + _curve(report))
    return page(title, "\n".join(parts))


def verdict(report: Report) -> str:
    """How good the coreset is, in a sentence or three for people who do not know KL divergences."""
    rows = f"{report.num_used:,} weighted rows stand for {report.num_data:,}."
    if report.num_used == report.num_data:
        return f"All {report.num_data:,} rows are kept, with weight 1: there is no error."
    if math.isinf(report.kl):
        return (
            f"{rows} How well is not known, as the draws that it is judged by are worth too few "
            "since rows were added. Do not use this coreset for conclusions; build it anew from "
            "all rows."
        )
    upper = report.kl + 2 * report.kl_standard_error
    if upper > _LOWER_BOUND_NATS:
        return (
            f"{rows} They are too few: the estimated symmetrised KL divergence is at least "
            f"{report.kl:.2g} nats, where the estimate is no longer more than a lower bound. Do "
            "not use this coreset for conclusions; build one with more rows."
        )
    return (
        f"{rows} The estimated symmetrised KL divergence between their posterior and that of all "
        f"rows is {report.kl:.2g} ± {report.kl_standard_error:.1g} nats. If both are nearly "
        f"normal, no posterior mean is then off by more than about {np.sqrt(upper):.2g} of its "
        "standard deviation."
    )


def _numbers(report: Report) -> str:
    lower = " (a lower bound)" if report.kl >= _LOWER_BOUND_NATS else ""
    kl = f"{report.kl:.2g} ± {report.kl_standard_error:.1g} nats{lower}"
    rows = [
        ("rows kept", f"{report.num_used:,} of {report.num_data:,}", "each has a weight"),
        (
            "estimated KL divergence",
            "not known" if math.isinf(report.kl) else kl,
            "symmetrised, so both directions added; with one standard error",
        ),
        (
            "held-out error",
            f"{report.held_out_error:.2e}",
            "of the log-likelihood, relative, at parameters that the search did not see",
        ),
        ("error seen", f"{report.relative_error:.2e}", "the same at those that it saw; flatters"),
        (
            "candidates",
            f"{report.num_candidates:,}",
            "rows that could be chosen; all rows count in what they are compared with",
        ),
        (
            "parameters compared at",
            f"{report.num_draws:,} + {report.num_held_out:,}",
            f"draws from {report.weighting}: for the search, and held out",
        ),
        (
            "search",
            report.solver,
            "stopped by its own rule" if report.converged else "stopped at its limit",
        ),
        (
            "seconds",
            f"{sum(report.seconds.values()):.1f}",
            ", ".join(f"{name} {spent:.1f}" for name, spent in report.seconds.items()),
        ),
    ]
    return table([], rows, head_row=False)


def _meaning(report: Report) -> str:
    if report.kl < _LOWER_BOUND_NATS:
        return MEANING
    caution = _NOT_KNOWN if math.isinf(report.kl) else TOO_LARGE
    return f"{MEANING}<p><strong>{escape(caution)}</strong></p>"


def _comparison(comparison: Comparison) -> str:
    shifts, ratios = comparison.shifts, comparison.ratios
    worst = int(np.abs(shifts).argmax())
    # The mode of the coreset is looked for from that of all rows, and no closer than this.
    largest = f"{abs(shifts[worst]):.2g}" if abs(shifts[worst]) > _RESOLVED else "below 0.001"
    text = (
        f"<p>The largest difference of a mean is {largest} posterior standard "
        f"deviations ({escape(comparison.names[worst])}); the standard deviations' ratios are "
        f"{ratios.min():.3f} to {ratios.max():.3f}. Both columns are Laplace approximations "
        "(a normal distribution at the posterior's mode, on unconstrained parameters: the "
        "logarithm of a positive one). They check the coreset by means and spreads, and say "
        "nothing of how far a posterior is from normal.</p>"
    )
    order = np.argsort(-np.abs(shifts), kind="stable")[:_MOST_PARAMETERS]
    full, small = comparison.full, comparison.small
    rows = [
        [
            comparison.names[i],
            f"{full.mode[i]:.4g}",
            f"{full.sd[i]:.3g}",
            f"{small.mode[i]:.4g}",
            f"{small.sd[i]:.3g}",
            f"{round(float(shifts[i]), 3) + 0.0:.3f}",
            f"{ratios[i]:.3f}",
        ]
        for i in sorted(order.tolist())
    ]
    head = [
        "parameter",
        "all rows: mean",
        "sd",
        "coreset: mean",
        "sd",
        "difference / sd",
        "sd ratio",
    ]
    more = ""
    if len(shifts) > _MOST_PARAMETERS:
        more = (
            f"<p>Of {len(shifts):,} parameters the {_MOST_PARAMETERS} that differ most are "
            "listed.</p>"
        )
    return text + table(head, rows) + more


def _curve(report: Report) -> str:
    curve = report.curve
    rows = [
        [f"{used:,}", f"{kl:.3g}", f"{error:.1g}", f"{held_out:.3g}"]
        for used, kl, error, held_out in zip(
            *(curve[key] for key in ("num_used", "kl", "kl_standard_error", "held_out_error")),
            strict=True,
        )
    ]
    if len(rows) > 60:
        rows = [rows[i] for i in np.unique(np.geomspace(1, len(rows), 40).astype(int) - 1)]
    head = ["rows", "KL (nats)", "standard error", "held-out error"]
    return f"<details><summary>Error by size</summary>{table(head, rows)}</details>"


def _scaling(scaling: Mapping[str, tuple[float, float]]) -> str:
    rows = [[name, f"{mean:.10g}", f"{sd:.10g}"] for name, (mean, sd) in scaling.items()]
    return (
        "<p>These columns were standardised before the coreset was built: minus the mean, over the "
        "standard deviation, both of <em>all</em> rows. The file has them as they were. Scale them "
        "by these numbers, as the programs below do, not by those of the few rows.</p>"
        "<details><summary>Means and standard deviations</summary>"
        f"{table(['column', 'mean', 'standard deviation'], rows)}</details>"
    )


def _error_figure(coreset: Coreset, tol: float | None) -> tuple["Figure", str]:
    from matplotlib.figure import Figure

    from jaxcoreset.plotting import plot_kl, plot_weights

    figure = Figure(figsize=(10.4, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    plot_kl(coreset.report, left, tol)
    plot_weights(coreset, right)
    return figure, (
        "Left: the estimated KL divergence in nats against the number of rows. Right: the weights, "
        "largest first."
    )


def _marginal_figure(comparison: Comparison) -> tuple["Figure", str]:
    from matplotlib.figure import Figure

    from jaxcoreset.plotting import plot_marginals

    worst = np.argsort(-np.abs(comparison.shifts), kind="stable")[:_MOST_PANELS]
    shown = np.sort(worst)
    columns = min(5, shown.size)
    rows = -(-shown.size // columns)
    figure = Figure(figsize=(10.4, 1.7 * rows + 0.5), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).reshape(-1)
    for ax in grid[shown.size :]:
        ax.set_visible(False)
    axes = plot_marginals(
        _marginal(comparison.small, shown),
        _marginal(comparison.full, shown),
        names=[_shortened(comparison.names[int(i)]) for i in shown],
        axes=grid[: shown.size],
    )
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False
    )
    caption = "Marginal posteriors, from the coreset (area) and from all rows (line)."
    if shown.size < comparison.shifts.size:
        caption += f" Shown are the {shown.size} parameters that differ most."
    return figure, caption


def _marginal(
    approximation: LaplaceApproximation, shown: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    return approximation.mode[shown], approximation.covariance[np.ix_(shown, shown)]


def _shortened(name: str) -> str:
    return name if len(name) <= 24 else name[:22] + "…"


def _figure(figure: "Figure", caption: str) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    data = base64.b64encode(buffer.getvalue()).decode()
    return (
        f'<figure><img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )
