"""The figure of the calibration: how far the ranks' distribution functions are from uniform."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.calibration.bands import limits
from benchmarks.calibration.models import MODELS
from benchmarks.calibration.run import NUM_RANKS, SETTINGS
from benchmarks.calibration.tables import KINDS

_COLORS = {"plain": "#d55e00", "corrected": "#0072b2"}
_LABELS = {"plain": "draws of the coreset", "corrected": "corrected draws"}
_TITLES = {"0.1": "tol = 0.1", "0.01": "tol = 0.01", "small": "too few rows"}


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw a panel for each cell, one line for each quantity, and the bands around zero."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    cells = {(cell["model"], cell["setting"]): cell for cell in result["cells"]}
    models = [name for name in MODELS if any(key[0] == name for key in cells)]
    settings = [one for one in SETTINGS if any(key[1] == one for key in cells)]
    size = (2.9 * len(settings) + 0.4, 1.6 * len(models) + 0.6)
    figure, axes = plt.subplots(
        len(models), len(settings), figsize=size, sharex=True, squeeze=False, layout="constrained"
    )
    uniform = np.arange(1, NUM_RANKS + 1) / (NUM_RANKS + 1)
    for row, name in zip(axes, models, strict=True):
        for ax, setting in zip(row, settings, strict=True):
            cell = cells.get((name, setting))
            ax.tick_params(labelsize=7)
            if cell is None:
                ax.set_axis_off()
                continue
            num = cell["data sets"]
            low, high = limits(num, NUM_RANKS + 1, 0.95)
            ax.fill_between(uniform, low / num - uniform, high / num - uniform, color="#dddddd")
            for kind in KINDS:
                if 2 * sum(next(iter(cell[kind].values()), [])) < num:
                    continue  # the bands are those of all data sets
                for counts in cell[kind].values():
                    share = np.cumsum(counts)[:-1] / sum(counts)
                    ax.plot(uniform, share - uniform, color=_COLORS[kind], lw=0.7)
            ax.set_title(f"{MODELS[name].title}, {_TITLES[setting]}", fontsize=7)
    for kind in KINDS:
        axes[0, 0].plot([], [], color=_COLORS[kind], label=_LABELS[kind])
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=8
    )
    figure.supylabel("distribution function of the ranks less the uniform one", fontsize=8)
    figure.supxlabel("rank of the true value, as a fraction", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    print(f"wrote {path}")
