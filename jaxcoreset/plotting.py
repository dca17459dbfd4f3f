"""Pictures of a coreset, by matplotlib. Each function draws into axes and returns them.

Colours are Okabe and Ito's, which survive colour blindness; lines differ in dashes too, which
survives printing.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.typing import ArrayLike

from jaxcoreset.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FULL, CORESET, EXTRA = "#0072B2", "#D55E00", "#009E73"


def plot_error(report: Report, ax: "Axes | None" = None) -> "Axes":
    """The error against the number of rows: on the solver's draws, and on draws it did not see.

    Args:
        report: of a coreset built with a solver that holds a whole path.
        ax: axes to draw into; new ones if left out.
    """
    ax = _axes(ax)
    curve = report.curve
    rows = curve["num_used"]
    ax.plot(rows, curve["relative_error"], "--", color=FULL, label="draws the solver saw")
    ax.plot(rows, curve["held_out_error"], "o-", ms=3.5, color=CORESET, label="held-out draws")
    spread = curve["held_out_error"] * curve["kl_standard_error"] / np.maximum(curve["kl"], 1e-300)
    ax.fill_between(
        rows,
        curve["held_out_error"] - spread,
        curve["held_out_error"] + spread,
        color=CORESET,
        alpha=0.25,
        lw=0,
        label="± 2 standard errors",
    )
    ax.set(xscale="log", yscale="log", xlabel="rows in the coreset")
    ax.set_ylabel("relative error  ‖y − Φw‖ / ‖y‖")
    ax.grid(True, which="major", alpha=0.3)
    ax.legend(frameon=False)
    return ax


def plot_marginals(
    samples: Mapping[str, ArrayLike] | ArrayLike,
    mean: ArrayLike,
    sd: ArrayLike,
    names: Sequence[str],
    axes: "Sequence[Axes] | np.ndarray | None" = None,
) -> np.ndarray:
    """Marginals of draws from the coreset posterior over Gaussian ones of the full posterior.

    Args:
        samples: draws of shape (draws, D), or a dictionary of one site with that shape.
        mean: shape (D,), the full posterior's means.
        sd: shape (D,), its standard deviations.
        names: D titles.
        axes: D axes; a grid of new ones if left out.

    Returns:
        The D axes, an object array.
    """
    if isinstance(samples, Mapping):
        (samples,) = samples.values()
    draws, mean, sd = np.asarray(samples), np.asarray(mean), np.asarray(sd)
    if axes is None:
        import matplotlib.pyplot as plt

        columns = min(5, mean.size)
        rows = -(-mean.size // columns)
        _, grid = plt.subplots(
            rows, columns, figsize=(2.2 * columns, 1.7 * rows), layout="constrained", squeeze=False
        )
        for ax in grid.flat[mean.size :]:
            ax.set_visible(False)
        axes = grid.flat[: mean.size]
    axes = np.asarray(axes, dtype=object)
    for i, ax in enumerate(axes):
        ax.hist(
            draws[:, i], bins=40, density=True, color=CORESET, alpha=0.45, label="coreset, NUTS"
        )
        grid = mean[i] + sd[i] * np.linspace(-4, 4, 200)
        density = np.exp(-0.5 * ((grid - mean[i]) / sd[i]) ** 2) / (sd[i] * np.sqrt(2 * np.pi))
        ax.plot(grid, density, color=FULL, lw=1.6, label="all rows, Laplace")
        ax.set_title(names[i], fontsize=9)
        ax.set_yticks([])
        ax.tick_params(labelsize=7)
        ax.spines[["top", "left", "right"]].set_visible(False)
    return axes


def _axes(ax: Any) -> "Axes":
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(5, 3.6), layout="constrained")[1]
