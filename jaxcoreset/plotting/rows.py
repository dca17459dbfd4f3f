"""Figures of the coreset's rows over the data, and of their weights."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Num

from jaxcoreset.coreset.coreset import Coreset
from jaxcoreset.plotting.style import (
    CORESET,
    DASHES,
    FULL,
    GREY,
    clear_legend,
    new_axes,
    plain_log_axis,
    tidy,
)
from jaxcoreset.solvers.solution import Solution

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = Coreset | Solution | tuple[ArrayLike, ArrayLike]

_MAX_POINTS = 20_000
_MIN_RADIUS = 1.0  # in points


def plot_rows(
    points: Num[ArrayLike, "n d"],
    coreset: Rows,
    ax: "Axes | None" = None,
    *,
    names: Sequence[str] | None = None,
    max_radius: float = 11.0,
    color: str = "black",
    legend: bool = True,
) -> "Axes":
    """Plot the coreset's rows over all rows, with radii proportional to their weights.

    As in Figures 2, 6 and 7 of Zhang et al. (2021). To show the rows over the posterior, first draw
    `plot_contours` or `plot_surface` into the same axes.

    Args:
        points: the positions of all n rows, or groups, shape (n, d). If d > 2, they are projected
            on their two leading principal directions.
        coreset: a `Coreset`, a single `Solution`, or (indices, weights).
        ax: axes to draw into; by default new ones.
        names: the labels of the two axes.
        max_radius: the radius of the largest weight, in printer's points. Every radius is at least
            one point, so that each row is visible.
        color: the colour of the coreset's rows.
        legend: whether to add a legend for the radii.

    Returns:
        The axes, with two collections: all rows (a sample of 20,000 if there are more), and the
        coreset's rows.

    Raises:
        ValueError: if `points` is not a matrix of at least two columns, lacks rows of the coreset,
            or has another number of rows than the data of a `Coreset`.
    """
    points = np.asarray(points, np.float64)
    if points.ndim != 2 or points.shape[1] < 2:
        raise ValueError(
            f"points has the shape {points.shape}; expected (n, 2), or more columns to project."
        )
    indices, weights = _rows(coreset)
    unit = coreset.report.unit if isinstance(coreset, Coreset) else "rows"
    if isinstance(coreset, Coreset) and len(points) != coreset.report.num_data:
        raise ValueError(
            f"points has {len(points):,} positions, but the coreset was built from "
            f"{coreset.report.num_data:,} {unit}; expected one position for each of these {unit}, "
            "in the same order."
        )
    if indices.size and not 0 <= indices.min() <= indices.max() < len(points):
        raise ValueError(
            f"the coreset has rows from {indices.min()} to {indices.max()}, but points has "
            f"{len(points)}; expected the points of all rows that it was built from."
        )
    if points.shape[1] > 2:
        points = _project(points)
        names = names or ["principal direction 1", "principal direction 2"]
    ax = new_axes(ax, (5.2, 4.6))
    shown = points
    if len(points) > _MAX_POINTS:
        shown = points[np.random.default_rng(0).choice(len(points), _MAX_POINTS, replace=False)]
    dense = len(shown) > 2000
    ax.scatter(*shown.T, s=3 if dense else 9, color="0.6", alpha=0.35 if dense else 0.6, lw=0)
    largest = float(weights.max(initial=0.0)) or 1.0

    def area(weight: Any) -> Any:
        radius = np.maximum(max_radius * weight / largest, _MIN_RADIUS)
        return (2 * radius) ** 2

    order = np.argsort(-weights, kind="stable")  # draw small ones last, on top
    style = {"facecolor": color, "edgecolor": "white", "alpha": 0.8, "linewidth": 0.6}
    ax.scatter(*points[indices[order]].T, s=area(weights[order]), zorder=2.5, **style)
    if names is not None:
        ax.set(xlabel=names[0], ylabel=names[1])
    if legend and indices.size:
        # With two significant digits.
        marks = sorted({float(f"{largest * part:.2g}") for part in (0.25, 0.5, 1.0)})
        handles = [ax.scatter([], [], s=area(mark), **style) for mark in marks]
        for handle in handles:  # the legend's samples are not data
            handle.remove()
        ax.legend(
            handles,
            [f"{mark:,.3g}" if mark < 1000 else f"{mark:,.0f}" for mark in marks],
            title=f"weight ({len(indices):,} of {len(points):,} {unit})",
            loc="lower center",
            bbox_to_anchor=(0.5, 1.0),
            ncols=len(marks),
            frameon=False,
            handletextpad=0.8,
            columnspacing=2.0,
        )
    return ax


def plot_surface(
    x: Num[ArrayLike, " p"],
    y: Num[ArrayLike, " q"],
    values: Num[ArrayLike, "q p"],
    ax: "Axes | None" = None,
    *,
    label: str | None = None,
    limits: tuple[float, float] | None = None,
) -> "Axes":
    """Plot a function of two variables, such as a regression's posterior mean, as filled contours.

    As below the points in Figures 2 and 7 of Zhang et al. (2021).

    Args:
        x: p coordinates along the first axis.
        y: q coordinates along the second axis.
        values: the function at these coordinates, shape (q, p).
        ax: axes to draw into; by default new ones.
        label: the label of the colour bar, with the unit; by default there is no colour bar.
        limits: the values at the two ends of the colour map; use the same for panels to compare.

    Returns:
        The axes.
    """
    from matplotlib.ticker import MaxNLocator

    ax = new_axes(ax, (5.2, 4.6))
    values = np.asarray(values)
    low, high = limits or (float(values.min()), float(values.max()))
    levels = MaxNLocator(12, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    surface = np.asarray(x), np.asarray(y), values, levels
    extend = "both" if limits else "neither"
    filled = ax.contourf(*surface, cmap="cividis", extend=extend, alpha=0.75)
    ax.contour(*surface, colors="white", linewidths=0.5)
    if label is not None:
        figure = ax.get_figure()
        assert figure is not None
        figure.colorbar(filled, ax=ax, label=label)
    return ax


def plot_weights(coreset: Rows, ax: "Axes | None" = None, *, num_data: int | None = None) -> "Axes":
    """Plot the weights, largest first, and compare their sum with the number of rows.

    Args:
        coreset: a `Coreset`, a single `Solution`, or (indices, weights).
        ax: axes to draw into; by default new ones.
        num_data: n, the number of rows; by default that of a `Coreset`.

    Returns:
        The axes. Their first line has the sorted weights; the second, if n is known, has the height
        n/m of m equal weights.
    """
    _, weights = _rows(coreset)
    if not weights.size:
        raise ValueError("the coreset has no row with a positive weight, so nothing to plot.")
    if num_data is None and isinstance(coreset, Coreset):
        num_data = coreset.report.num_data
    ax = new_axes(ax)
    ranks = np.arange(1, weights.size + 1)
    ordered = np.sort(weights)[::-1]
    size = 3.5 if weights.size < 300 else 2
    ax.plot(ranks, ordered, "o-", color=CORESET, ms=size, lw=1, label="weight")
    total = f"sum of weights {weights.sum():{',.5g' if weights.sum() < 1e4 else ',.0f'}}"
    if num_data is not None:
        equal = num_data / weights.size
        label = f"n / m = {equal:,.4g}, equal weights"
        ax.axhline(equal, color=FULL, ls=DASHES[1], lw=1.4, label=label)
        total += f", n = {num_data:,} ({weights.sum() / num_data:.1%})"
    ax.set(xlabel="row, largest weight first", ylabel="weight (number of rows that it stands for)")
    ax.set_yscale("log")
    plain_log_axis(ax.yaxis, *ax.get_ylim())
    ax.set_title(total, fontsize=10, color=GREY, loc="left")
    tidy(ax)
    clear_legend(ax, loc="lower left")
    return ax


def _rows(coreset: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers and positive weights."""
    if isinstance(coreset, tuple):
        indices, weights = coreset
    else:
        indices, weights = coreset.indices, coreset.weights
    indices, weights = np.asarray(indices), np.asarray(weights, np.float64)
    if indices.ndim != 1 or indices.shape != weights.shape:
        raise ValueError(
            f"indices and weights have the shapes {indices.shape} and {weights.shape}; expected "
            "(m,) for both: select one solution of a batch."
        )
    used = weights > 0
    return indices[used], weights[used]


def _project(points: np.ndarray) -> np.ndarray:
    centred = points - points.mean(axis=0)
    _, directions = np.linalg.eigh(centred.T @ centred)
    leading = directions[:, ::-1][:, :2]
    # Fix the sign of each direction, which the eigensolver leaves open.
    signs = np.sign(leading[np.abs(leading).argmax(axis=0), [0, 1]])
    return centred @ (leading * signs)
