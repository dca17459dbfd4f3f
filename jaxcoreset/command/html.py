"""A report of a coreset as one HTML file that needs no other file, for people without JAX.

The text is in ``templates/report.html.j2``. Figures are embedded as PNG, so you can mail, archive
and print the file.
"""

import base64
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from jaxcoreset.command.render import render
from jaxcoreset.coreset.coreset import Coreset
from jaxcoreset.coreset.report import Report
from jaxcoreset.coreset.report_table import rows_for_goals
from jaxcoreset.data.messages import require
from jaxcoreset.likelihood.from_model import model_likelihood
from jaxcoreset.plotting.style import legend_below, literal
from jaxcoreset.selection.estimate import LOWER_BOUND_KL
from jaxcoreset.weighting.laplace import LaplaceApproximation, laplace_approximation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_PANELS, _MAX_PARAMETERS, _MAX_SIZES = 20, 300, 60
_RESOLVED = 1e-3  # standard deviations: the root of the Newton decrement in `laplace`


@dataclass(frozen=True)
class Comparison:
    """The Laplace approximations of the posterior of all rows and of the coreset posterior.

    Attributes:
        full: the approximation for all rows.
        small: the approximation for the weighted rows.
        names: readable names of the D parameters.
    """

    full: LaplaceApproximation
    small: LaplaceApproximation
    names: Sequence[str]

    @property
    def shifts(self) -> np.ndarray:
        """The differences of the means, in posterior standard deviations, shape (D,)."""
        return (self.small.mode - self.full.mode) / self.full.sd

    @property
    def ratios(self) -> np.ndarray:
        """The standard deviations of the coreset divided by those of all rows, shape (D,)."""
        return self.small.sd / self.full.sd

    @property
    def worst_name(self) -> str:
        """The parameter whose means differ most."""
        return self.names[int(np.abs(self.shifts).argmax())]

    @property
    def largest_shift(self) -> str:
        """Its difference as text; the mode is only found to a thousandth of an sd."""
        largest = np.abs(self.shifts).max()
        return f"{largest:.2g}" if largest > _RESOLVED else "below 0.001"

    def most_different(self, number: int) -> list[int]:
        """The positions of the parameters whose means differ most, increasing."""
        return sorted(np.argsort(-np.abs(self.shifts), kind="stable")[:number].tolist())


def compare_laplace(coreset: Coreset, name: Callable[[str], str] = str) -> Comparison | None:
    """Compare the two posteriors by their Laplace approximations.

    Args:
        coreset: a coreset that was just built.
        name: function from a parameter's name, such as ``beta[2]``, to a readable one.

    Returns:
        The comparison; None if one of the two posteriors has no Laplace approximation, or if the
        coreset has a proxy, whose quadratic is that of all rows.
    """
    full = coreset.approximation
    if full is None or coreset.proxy is not None:
        return None
    try:
        likelihood = model_likelihood(
            coreset.full_model, coreset.args, coreset.kwargs, data_axes=coreset.arguments.axes
        )
        small = laplace_approximation(likelihood, weights=coreset.weights, start=full.params())
    except ValueError:  # too few rows for a mode, which the report's numbers show
        return None
    return Comparison(full, small, [name(parameter) for parameter in full.names])


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
        title: the title of the page.
        facts: where the coreset comes from, by name: the file, the model, the command.
        notes: sentences on what was done with the table.
        tol: the requested tolerance, in nats.
        comparison: the comparison of the two posteriors, by `compare_laplace`.
        scaling: for each standardised column its mean and standard deviation.
        programs: how to use the coreset elsewhere: programs by the tool's name.

    Raises:
        ModuleNotFoundError: if matplotlib or Jinja is not installed; the extra ``tables`` brings
            both.
    """
    require("matplotlib")
    report = coreset.report
    has_estimate = not math.isinf(report.kl)
    return render(
        "report.html.j2",
        title=title,
        verdict=verdict(report),
        facts=facts or {},
        notes=notes,
        report=report,
        has_estimate=has_estimate,
        is_lower_bound=report.kl >= LOWER_BOUND_KL,
        error_figure=_error_figure(coreset, tol) if 0 < report.kl < math.inf else None,
        comparison=comparison,
        comparison_rows=_comparison_rows(comparison) if comparison else [],
        marginal_figure=_marginal_figure(comparison) if comparison else None,
        scaling=scaling or {},
        programs=programs or {},
        curve=_curve(report) if has_estimate else [],
        rows_needed=rows_for_goals(report),
    )


def verdict(report: Report) -> str:
    """How good the coreset is, in a few sentences for people who do not know KL divergences."""
    rows = f"{report.num_used:,} weighted rows stand for {report.num_data:,}."
    if report.proxy is not None:
        used = (
            f"{report.num_used:,} weighted rows correct" if report.num_used else "no row corrects"
        )
        rows = f"A second-order expansion stands for all {report.num_data:,} rows; {used} it."
    if report.num_used == report.num_data:
        return f"The coreset has all {report.num_data:,} rows with weight 1: there is no error."
    if report.num_used == report.num_distinct and report.kl == 0:
        return (
            f"The coreset has all {report.num_used:,} distinct rows of {report.num_data:,}, each "
            "weighted by how often it occurs: there is no error."
        )
    if math.isinf(report.kl):
        return (
            f"{rows} The error is not known: rows were added that changed the posterior too much "
            "for the old draws to measure it. Do not draw conclusions from this coreset; build a "
            "new one from all rows."
        )
    upper = report.kl + 2 * report.kl_standard_error
    if upper > LOWER_BOUND_KL:
        return (
            f"{rows} That is not enough: the estimated symmetrised KL divergence is "
            f"{report.kl:.2g} ± {report.kl_standard_error:.1g} nats, and an estimate above "
            f"{LOWER_BOUND_KL} nats is only a lower bound. Do not draw conclusions from this "
            "coreset; build one with more rows."
        )
    other = (
        ""
        if report.other_mode is None
        else " This holds around one mode only: the posterior of all rows has another mode about "
        f"{report.other_mode:.0f} standard deviations away, and the number says nothing about that "
        "mode."
    )
    return (
        f"{rows} The estimated symmetrised KL divergence between the coreset's posterior and that "
        f"of all rows is {report.kl:.2g} ± {report.kl_standard_error:.1g} nats. If both are nearly "
        f"normal, no posterior mean is off by more than about {np.sqrt(upper):.2g} of its standard "
        f"deviation.{other}"
    )


def _comparison_rows(comparison: Comparison) -> list[tuple]:
    """For each parameter listed its name, both means and sds, their difference and their ratio."""
    full, small = comparison.full, comparison.small
    return [
        (
            comparison.names[i],
            full.mode[i],
            full.sd[i],
            small.mode[i],
            small.sd[i],
            round(float(comparison.shifts[i]), 3) + 0.0,  # no -0.000
            comparison.ratios[i],
        )
        for i in comparison.most_different(_MAX_PARAMETERS)
    ]


def _curve(report: Report) -> list[tuple]:
    """The errors by number of rows; of a long curve only 40 sizes, with increasing gaps."""
    keys = ("num_used", "kl", "kl_standard_error", "held_out_error")
    rows = list(zip(*(report.curve[key].tolist() for key in keys), strict=True))
    # Solutions of several sizes may use as many rows; the last one is what a larger size gives.
    rows = list({row[0]: row for row in rows}.values())
    if len(rows) > _MAX_SIZES:
        rows = [rows[i] for i in np.unique(np.geomspace(1, len(rows), 40).astype(int) - 1)]
    return rows


def _error_figure(coreset: Coreset, tol: float | None) -> dict[str, str]:
    from matplotlib.figure import Figure

    from jaxcoreset.plotting import plot_kl, plot_weights

    caption = "the estimated KL divergence in nats against the number of rows."
    if not len(coreset):
        figure = Figure(figsize=(5.2, 3.9), layout="constrained")
        plot_kl(coreset.report, figure.subplots(), tol)
        return _embedded(figure, caption[0].upper() + caption[1:])
    figure = Figure(figsize=(10.4, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    plot_kl(coreset.report, left, tol)
    plot_weights(coreset, right)
    return _embedded(figure, f"Left: {caption} Right: the weights, largest first.")


def _marginal_figure(comparison: Comparison) -> dict[str, str]:
    from matplotlib.figure import Figure

    from jaxcoreset.plotting import plot_marginals

    shown = comparison.most_different(_MAX_PANELS)
    columns = min(5, len(shown))
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(10.4, 1.7 * rows + 0.5), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).reshape(-1)
    for ax in grid[len(shown) :]:
        ax.set_visible(False)
    axes = plot_marginals(
        _marginal(comparison.small, shown),
        _marginal(comparison.full, shown),
        names=[_shortened(comparison.names[i]) for i in shown],
        axes=grid[: len(shown)],
    )
    legend_below(figure, axes[0])
    caption = "Marginal posteriors, from the coreset (area) and from all rows (line)."
    if len(shown) < len(comparison.names):
        caption += f" Shown are the {len(shown)} parameters that differ most."
    return _embedded(figure, caption)


def _marginal(
    approximation: LaplaceApproximation, shown: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    return approximation.mode[shown], approximation.covariance[np.ix_(shown, shown)]


def _shortened(name: str) -> str:
    """A name for a figure, in which dollars are dollars and begin no equation."""
    return literal(name if len(name) <= 24 else name[:22] + "…")


def _embedded(figure: "Figure", caption: str) -> dict[str, str]:
    """A figure for the template: its caption, and the PNG in base 64."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return {"caption": caption, "png": base64.b64encode(buffer.getvalue()).decode()}
