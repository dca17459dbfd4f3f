"""Figures in one style: a colour and a dash for every method, medians and bands of percentiles."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxcoreset.plotting.style import COLOURS, DASHES, tidy

# The papers' methods are thin and ours thick; both keep their colour through all figures.
_COLOURS = {
    "Uniform": "#767676",
    "GIGA": "#56B4E9",
    "Frank–Wolfe": "#CC79A7",
    "A-IHT": "#E69F00",
    "A-IHT II": "#D55E00",
    "A-IHT batch grad.": "#CC79A7",
    "SparseVI": "#009E73",
    "Prior": "#000000",
    "MatchingPursuit": "#0072B2",
    "SubspacePursuit": "#7A4FBF",
    "Recombination": "#8C6D1F",
    "StochasticAIHT": "#7A4FBF",
    "default (ExchangePursuit)": "#000000",
    "bayesiancoresets GIGA": "#1B5E7A",
    "authors' A-IHT II": "#7A2E00",
    "coreax herding": "#A0A000",
}
_OURS = ("MatchingPursuit", "SubspacePursuit", "Recombination", "default", "StochasticAIHT")


def look(name: str, position: int = 0) -> dict[str, Any]:
    """Colour, dash and width of a method's line."""
    names = list(_COLOURS)
    at = names.index(name) if name in names else position
    ours = name.startswith(_OURS)
    return {
        "color": _COLOURS.get(name, COLOURS[position % len(COLOURS)]),
        "ls": "-" if name.startswith("default") else DASHES[at % len(DASHES)],
        "lw": 2.0 if ours else 1.4,
        "label": name,
    }


def percentiles(values: Any, percent: Sequence[float]) -> np.ndarray:
    """Percentiles over the trials, the first axis; a trial without a value counts as infinite."""
    array = np.array(values, np.float64)  # None becomes NaN
    array = np.where(np.isnan(array), np.inf, array)
    return np.percentile(array, percent, axis=0, method="nearest")


def curve(
    ax: Any,
    ks: Sequence[float],
    values: Any,
    name: str,
    band: tuple[float, float] = (35, 65),
    position: int = 0,
    floor: float | None = None,
) -> None:
    """A method's median over trials against k, and a band between two percentiles.

    Args:
        ax: matplotlib axes.
        ks: shape (m,).
        values: shape (trials, m), with None where a trial has no value.
        name: the method.
        band: percentiles.
        position: decides the colour of a name that is not known.
        floor: values below count as it.
    """
    low, middle, high = percentiles(values, (band[0], 50, band[1]))
    if floor is not None:
        low, middle, high = (np.maximum(part, floor) for part in (low, middle, high))
    style = look(name, position)
    shown = np.isfinite(middle)
    x = np.asarray(ks, float)
    ax.plot(x[shown], middle[shown], **style)
    top = np.where(np.isfinite(high), high, middle)
    ax.fill_between(x[shown], low[shown], top[shown], color=style["color"], alpha=0.15, lw=0)


def panels(rows: int, columns: int, width: float = 3.9, height: float = 3.0) -> tuple[Any, Any]:
    """A figure with a grid of axes, always of shape (rows, columns)."""
    import matplotlib.pyplot as plt

    return plt.subplots(
        rows,
        columns,
        figsize=(width * columns, height * rows),
        layout="constrained",
        squeeze=False,
    )


def finish(figure: Any, axes: Any, columns: int = 4) -> Any:
    """Tidy all axes and put one legend for all of them below."""
    handles: dict[str, Any] = {}
    for ax in np.ravel(axes):
        tidy(ax)
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            ncol=min(columns, len(handles)),
            frameon=False,
            fontsize=9,
            handlelength=3.2,
        )
    return figure


def medians(cells: Sequence[Mapping[str, Any]], measure: str, ks: Sequence[int]) -> list[dict]:
    """Rows of a table: for each method the median of a measure at some k."""
    rows = []
    for cell in cells:
        row: dict[str, Any] = {"method": cell["method"]}
        middle = percentiles(cell[measure], (50,))[0]
        for k in ks:
            if k in cell["ks"]:
                value = float(middle[cell["ks"].index(k)])
                row[f"k = {k}"] = value if np.isfinite(value) else "no fit"
        rows.append(row)
    return rows
