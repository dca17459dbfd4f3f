"""The figures of `benchmarks.scale`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxcoreset.plotting.style import plain_log_axis

_BLUE, _RED, _GREEN, _GREY = "#0072b2", "#d55e00", "#009e73", "#777777"


def draw(result: dict[str, Any], folder: Path) -> None:
    """Draw what there are results for.

    Args:
        result: what `benchmarks.scale` writes.
        folder: where to.
    """
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    figures: dict[str, tuple[tuple[str, ...], Callable]] = {
        "rows": (("rows",), _rows),
        "shared": (("devices", "processes"), _shared),
        "pricing": (("pricing",), _pricing),
    }
    for name, (needed, make) in figures.items():
        if all(result.get(part) for part in needed):
            path = folder / f"scale_{name}.png"
            figure = make(*(result[part] for part in needed))
            figure.savefig(path, dpi=150)
            print(f"wrote {path}")


def _panels(count: int, width: float = 4.2) -> tuple[Any, Any]:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, count, figsize=(width * count, 3.2), layout="constrained", squeeze=False
    )
    for panel in axes[0]:
        panel.grid(alpha=0.3)
    return figure, axes[0]


def _rows(rows: list[dict[str, Any]]) -> Any:
    figure, (left, right) = _panels(2)
    counts = [row["rows"] for row in rows]
    seconds = [row["seconds"] for row in rows]
    left.loglog(counts, seconds, "o-", color=_BLUE, label="build")
    solve = [row["stages"]["solve"] for row in rows]
    left.loglog(counts, solve, "s--", color=_RED, label="of it, the solver")
    left.set(xlabel="rows n", ylabel="seconds")
    plain_log_axis(left.yaxis, *left.get_ylim())
    left.legend(frameon=False, fontsize="small")
    megabytes = [row["peak MB"] for row in rows]
    right.semilogx(counts, megabytes, "o-", color=_BLUE, label="peak of the process")
    data = [4 * (row["width"] + 1) * row["rows"] / 1e6 for row in rows]
    top = 1.6 * max(megabytes)
    inside = [(n, mb) for n, mb in zip(counts, data, strict=True) if mb < top]
    right.semilogx(*zip(*inside, strict=True), "^:", color=_GREY, label="the rows, were they held")
    right.set(xlabel="rows n", ylabel="MB", ylim=(0, top))
    right.legend(frameon=False, fontsize="small", loc="upper left")
    return figure


def _shared(devices: list[dict[str, Any]], processes: list[dict[str, Any]]) -> Any:
    figure, panels = _panels(2)
    for panel, rows, name in zip(
        panels, (devices, processes), ("devices", "processes"), strict=True
    ):
        counts = [row[name] for row in rows]
        panel.plot(counts, [row["seconds"] for row in rows], "o-", color=_BLUE, label="build")
        passes = [row["stages"]["embedding"] + row["stages"]["weighting"] for row in rows]
        panel.plot(counts, passes, "s--", color=_RED, label="of it, passes over the rows")
        panel.set_xscale("log", base=2)
        panel.set_xticks(counts, labels=[str(count) for count in counts])
        panel.minorticks_off()
        panel.set(xlabel=f"{name} on one machine", ylabel="seconds")
        panel.set_ylim(bottom=0)
        panel.legend(frameon=False, fontsize="small")
    return figure


def _pricing(rows: list[dict[str, Any]]) -> Any:
    names = list(dict.fromkeys(row["data"] for row in rows))
    figure, panels = _panels(len(names))
    for panel, name in zip(panels, names, strict=True):
        of_name = [row for row in rows if row["data"] == name]
        counts = sorted({row["candidates"] for row in of_name})
        styles = [(_BLUE, "o-"), (_RED, "s--"), (_GREEN, "^:"), (_GREY, "d-.")]
        for count, (colour, style) in zip(counts, styles, strict=False):
            line = [row for row in of_name if row["candidates"] == count]
            panel.plot(
                [row["passes allowed"] for row in line],
                [row["held-out error"] for row in line],
                style,
                color=colour,
                ms=5,
                label=f"{count:,} candidates",
            )
        panel.set(
            yscale="log", xlabel="passes for further candidates", ylabel="held-out relative error"
        )
        panel.set_xticks(sorted({row["passes allowed"] for row in of_name}))
        low, high = panel.get_ylim()
        panel.set_ylim(low, high * (high / low) ** 0.4)  # room for the legend
        plain_log_axis(panel.yaxis, *panel.get_ylim())
        panel.set_title(f"{name}, {of_name[0]['rows']:,} rows, k = {of_name[0]['k']}", fontsize=10)
        panel.legend(frameon=False, fontsize="small")
    return figure
