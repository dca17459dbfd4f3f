"""Figures of the error by number of rows, of one solver or several, and of convergence."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.typing import ArrayLike

from jaxcoreset.coreset.report import Report
from jaxcoreset.plotting.style import (
    COLOURS,
    CORESET,
    DASHES,
    EXTRA,
    FULL,
    clear_legend,
    count_axis,
    log_band,
    new_axes,
    tidy,
)
from jaxcoreset.selection.comparison import Comparison
from jaxcoreset.selection.estimate import LOWER_BOUND_KL
from jaxcoreset.solvers.solution import Solution

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The maximum number of sizes of a sweep that are drawn.
_MOST_SIZES = 5


def plot_error(report: Report, ax: "Axes | None" = None) -> "Axes":
    """Plot the error by number of rows, on the solver's draws and on held-out draws.

    Args:
        report: the report of a coreset whose solver returns a whole path.
        ax: axes to draw into; by default new ones.

    Returns:
        The axes.
    """
    ax = new_axes(ax)
    curve = _positive(report, "held_out_error")
    rows, held_out = curve["num_used"], curve["held_out_error"]
    ax.plot(rows, curve["relative_error"], ls=DASHES[1], color=FULL, label="the solver's draws")
    # The error is the root of the divergence, so its relative standard error is half as large.
    spread = held_out * curve["kl_standard_error"] / np.maximum(curve["kl"], 1e-300)
    _draw_curve(ax, rows, held_out, spread, "held-out draws")
    _finish(ax, "relative error  ‖y − Φw‖ / ‖y‖")
    return ax


def plot_kl(report: Report, ax: "Axes | None" = None, tol: float | None = None) -> "Axes":
    """Plot the estimated symmetrised KL divergence, in nats, by number of rows.

    A horizontal line shows what a Gaussian alone reaches, without any rows. Above 0.3 nats, shaded
    grey, the estimate is only a lower bound. If the coreset's own error is not known, it is not
    marked: the curve then uses draws from before the last update.

    Args:
        report: the report of a coreset whose solver returns a whole path.
        ax: axes to draw into; by default new ones.
        tol: a tolerance to mark, in nats, such as that of the builder.

    Returns:
        The axes.
    """
    ax = new_axes(ax)
    curve = _positive(report, "kl")
    rows, kl = curve["num_used"], curve["kl"]
    _draw_curve(ax, rows, kl, 2 * curve["kl_standard_error"], "estimate, held-out draws")
    if report.gaussian_kl is not None and report.gaussian_kl > 0:
        label = f"a Gaussian alone, {report.gaussian_kl:.2g} nats"
        ax.axhline(report.gaussian_kl, color=COLOURS[2], ls=DASHES[2], lw=1.3, label=label)
    if tol is not None:
        ax.axhline(tol, color=FULL, ls=DASHES[1], lw=1.3, label=f"tolerance, {tol:g} nats")
    if 0 < report.kl < np.inf:
        style = {"ms": 7, "mfc": "none", "mec": EXTRA, "mew": 1.8, "ls": "none"}
        label = f"this coreset, {report.num_used:,} rows"
        ax.plot([report.num_used], [report.kl], "D", label=label, **style)
    _finish(ax, "symmetrised KL divergence (nats)")
    top = ax.get_ylim()[1]
    if top > LOWER_BOUND_KL:
        ax.axhspan(LOWER_BOUND_KL, top, color="0.93", lw=0, zorder=0)
        ax.set_ylim(top=top)
        ax.annotate(
            "lower bound only",
            (0.99, LOWER_BOUND_KL),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=8,
            color="0.35",
        )
    return ax


def plot_comparison(comparison: Comparison, ax: "Axes | None" = None) -> "Axes":
    """Plot the relative error of several solvers by size k.

    Args:
        comparison: what `jaxcoreset.compare` returns. With a held-out problem its errors are drawn,
            and those on the solvers' own draws as thin lines of the same colour.
        ax: axes to draw into; by default new ones.

    Returns:
        The axes.
    """
    ax = new_axes(ax, (6.6, 3.8))
    order = np.argsort(comparison.ks)
    for i, (label, errors) in enumerate(comparison.error.items()):
        style = {"color": COLOURS[i % len(COLOURS)], "ls": DASHES[i % len(DASHES)]}
        ax.plot(comparison.ks[order], errors[order], marker="o", ms=3, lw=1.7, label=label, **style)
        if comparison.held_out_error is not None:
            seen = np.asarray(comparison.solutions[label].relative_error)
            ax.plot(comparison.ks[order], seen[order], lw=0.7, alpha=0.6, **style)
    where = "" if comparison.held_out_error is None else ", held-out draws"
    ax.set(yscale="log", xlabel="size k", ylabel=f"relative error  ‖y − Φw‖ / ‖y‖{where}")
    count_axis(ax)
    tidy(ax)
    _legend_beside(ax)
    return ax


def plot_convergence(
    solutions: Mapping[str, Solution | ArrayLike] | Sequence[Solution] | Solution,
    ax: "Axes | None" = None,
) -> "Axes":
    """Plot the objective ‖y − Φw‖² after each iteration, for one or more solvers.

    As in Figure 5 of Zhang et al. (2021), a solver without a history, such as `GIGA`, is a
    horizontal line at its final objective. Of a sweep, each size has a line; of more than five,
    five are drawn.

    Args:
        solutions: solutions or sweeps by label, or a sequence of them, which are labelled by their
            solvers, or one of them. `IHT`, `AIHT` and `AIHT2` record a history with
            ``record_history=True``. A dictionary may also hold plain histories, arrays of shape
            (iterations,).
        ax: axes to draw into; by default new ones.

    Returns:
        The axes.

    Raises:
        ValueError: if there is no solution, or one has more than one leading axis.
    """
    if isinstance(solutions, Solution):
        solutions = [solutions]
    if not isinstance(solutions, Mapping):
        solutions = {solution.solver: solution for solution in solutions}
    if not solutions:
        raise ValueError("solutions is empty; expected at least one Solution.")
    solutions = {
        name: one
        for label, solution in solutions.items()
        for name, one in _single(label, solution).items()
    }
    ax = new_axes(ax, (6.6, 3.8))
    histories = {label: _history(label, solution) for label, solution in solutions.items()}
    longest = max(values.size for values in histories.values())
    for i, (label, values) in enumerate(histories.items()):
        style = {"color": COLOURS[i % len(COLOURS)], "ls": DASHES[i % len(DASHES)], "lw": 1.7}
        if values.size == 1:
            ax.axhline(values[0], label=f"{label} (final)", **style)
            continue
        ax.plot(np.arange(1, values.size + 1), values, label=label, **style)
        if values.size < longest:
            ax.plot(values.size, values[-1], "o", ms=4.5, color=style["color"])
    ax.set(yscale="log", xlabel="iteration", ylabel="objective  ‖y − Φw‖²")
    ax.set_xlim(left=0, right=max(longest * 1.03, 2))
    tidy(ax)
    _legend_beside(ax)
    return ax


def _legend_beside(ax: "Axes") -> None:
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=9)


def _draw_curve(
    ax: "Axes", rows: np.ndarray, values: np.ndarray, spread: np.ndarray, label: str
) -> None:
    """Draw values by number of rows, with a band of the given half width around them."""
    ax.plot(rows, values, "o-", ms=3.5, color=CORESET, label=label)
    band = log_band(values, spread)
    ax.fill_between(rows, *band, color=CORESET, alpha=0.25, lw=0, label="± 2 standard errors")


def _finish(ax: "Axes", ylabel: str) -> None:
    ax.set(yscale="log", xlabel="rows in the coreset", ylabel=ylabel)
    count_axis(ax)
    tidy(ax)
    clear_legend(ax, loc="lower left")


def _single(label: str, solution: Solution | ArrayLike) -> dict[str, Solution | ArrayLike]:
    """A solution by its label; of a sweep the single ones, labelled by their numbers of rows."""
    if not isinstance(solution, Solution) or np.ndim(solution.objective) == 0:
        return {label: solution}
    if np.ndim(solution.objective) > 1:
        raise ValueError(
            f"solution {label!r} is a batch of shape {np.shape(solution.objective)}; expected a "
            "single one or a sweep: select it with jax.tree.map(lambda leaf: leaf[i], solution)."
        )
    _, distinct = np.unique(np.asarray(solution.size), return_index=True)
    shown = np.unique(np.linspace(0, distinct.size - 1, _MOST_SIZES).round().astype(int))
    return {
        f"{label}, {int(solution.size[i]):,} rows": jax.tree.map(
            lambda leaf, i=i: leaf[i], solution
        )
        for i in distinct[shown]
    }


def _history(label: str, solution: Solution | ArrayLike) -> np.ndarray:
    """The objective by iteration up to the stop; only the final one if there is no history."""
    if not isinstance(solution, Solution):
        values = np.atleast_1d(np.asarray(solution, np.float64))
    elif solution.history is None:
        values = np.asarray(solution.objective, np.float64)[None]
    else:
        stop = max(int(solution.num_iters), 1)
        values = np.asarray(solution.history, np.float64)[:stop]
    if values.ndim != 1 or not values.size:
        raise ValueError(
            f"history {label!r} has the shape {values.shape}; expected (iterations,), at least one."
        )
    return values


def _positive(report: Report, name: str) -> dict[str, np.ndarray]:
    """The part of the curve with positive values, which a logarithmic axis can show."""
    keep = np.asarray(report.curve[name]) > 0
    if not keep.any():
        raise ValueError(
            f"report.curve[{name!r}] has no positive value: a coreset of all rows has no error to "
            "plot. Build one with fewer rows."
        )
    return {key: np.asarray(values)[keep] for key, values in report.curve.items()}
