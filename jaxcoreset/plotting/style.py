"""Colours, dashes, axes, ticks and legends that all figures share."""

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, without the yellow, which is too light for a line on white.
FULL, CORESET, EXTRA = "#0072B2", "#D55E00", "#009E73"
GREY = "#767676"
COLOURS = (CORESET, FULL, EXTRA, "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.3)), (0, (7, 2, 1.5, 2)), (0, (3, 1.2)))
_INCHES = (5.2, 3.8)


def new_axes(ax: Any, size: tuple[float, float] = _INCHES) -> "Axes":
    """Return the given axes, or those of a new figure."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=size, layout="constrained")[1]


def literal(name: str) -> str:
    """A name for matplotlib in which a dollar sign does not begin an equation."""
    return name.replace("$", r"\$")


def tidy(ax: "Axes") -> None:
    """Draw a light grid behind the data, and no box around them."""
    ax.grid(True, which="major", color="0.88", lw=0.7)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def plain_log_axis(axis: Any, low: float, high: float) -> None:
    """Label a logarithmic axis at 1, 2, 5, 10, ...; at fewer ticks if it is long."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    decades = np.log10(high / low)
    subs = (1, 2, 3, 5, 7) if decades < 1 else (1, 2, 5) if decades < 3.5 else (1,)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1000 else f"{value:.4g}")
    )
    axis.set_minor_formatter(NullFormatter())


def count_axis(ax: "Axes") -> None:
    """Make the x axis logarithmic, with ticks at integers; linear up to 1 if it has a zero."""
    # The x of a line that axhline made is not in data coordinates.
    lines = [line for line in ax.lines if line.get_transform() == ax.transData]
    counts = np.concatenate([np.ravel(line.get_xdata()) for line in lines])
    if counts.size and counts.min() > 0:
        ax.set_xscale("log")
        plain_log_axis(ax.xaxis, *ax.get_xlim())
        return
    ax.set_xscale("symlog", linthresh=1)
    most = int(counts.max(initial=0))
    ax.set_xlim(-0.5, max(1.5, 1.1 * most))
    ticks = [0, *(base * 10**power for power in range(8) for base in (1, 2, 5))]
    ax.set_xticks([tick for tick in ticks if tick <= max(most, 1)])
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.minorticks_off()


def clear_legend(ax: "Axes", *args: Any, **kwargs: Any) -> None:
    """Add a legend that stays legible over a line."""
    ax.legend(*args, frameon=True, framealpha=0.9, edgecolor="none", fontsize=9, **kwargs)


def legend_below(figure: Any, ax: "Axes") -> None:
    """Add a legend of what is in the axes below all panels of a figure."""
    handles = ax.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2, frameon=False)


def log_band(values: np.ndarray, spread: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A band around positive values that stays positive: their logarithms ± spread / values."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(values > 0, spread / values, 0.0)
    factor = np.exp(np.minimum(ratio, 20.0))
    return values / factor, values * factor
