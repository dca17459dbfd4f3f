"""What the experiments share: settings, and a result as JSON, table and figures.

An experiment is a module with

- ``TITLE``: what it repeats;
- ``run(settings)``: its result, a dictionary for JSON, or None, with a message, where data are
  missing;
- ``table(result)``: that as Markdown;
- ``figures(result)``: figures in the layout of the paper's own, by the ending of their file's name.
"""

import importlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from benchmarks import common

NAMES = (
    "gaussian",
    "radial_basis",
    "regressions",
    "large_scale",
    "vector_sums",
    "fisher_distance",
    "distributions",
    "compression",
)
_DPI = 80

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """How large a run is, and where its data are.

    Args:
        scale: "full" for the papers' settings, "quick" for minutes, "tiny" for tests.
        data_dir: the folder of the data; that of JAXCORESET_DATA if left out.
        trials: trials of each cell, in place of the scale's own.
        slow_trials: at most so many trials of methods that take long.
    """

    scale: Literal["tiny", "quick", "full"] = "quick"
    data_dir: Path | None = None
    trials: int | None = None
    slow_trials: int | None = None

    def of(self, tiny: T, quick: T, full: T) -> T:
        """The one that belongs to the scale."""
        return {"tiny": tiny, "quick": quick, "full": full}[self.scale]

    def num_trials(self, tiny: int, quick: int, full: int) -> int:
        """The number of trials: as asked for, or the scale's."""
        return self.trials or self.of(tiny, quick, full)

    def num_slow(self, num_trials: int) -> int:
        """The number of trials of a method that takes long."""
        return min(num_trials, self.slow_trials or self.of(1, 1, num_trials))


class Experiment(Protocol):
    """A module of this folder; see above."""

    TITLE: str

    def run(self, settings: Settings) -> dict[str, Any] | None:
        """Its result."""
        ...

    def table(self, result: dict[str, Any]) -> str:
        """The result as Markdown."""
        ...

    def figures(self, result: dict[str, Any]) -> Mapping[str, Any]:
        """Figures by the ending of their names."""
        ...


def experiment(name: str) -> Experiment:
    """The module of an experiment."""
    return importlib.import_module(f"benchmarks.paper.{name}")  # type: ignore[return-value]


def run(
    name: str, settings: Settings, out: Path, pictures: Path | None = None
) -> dict[str, Any] | None:
    """Run one experiment and write what it found; None where its data are missing."""
    module = experiment(name)
    print(f"\n== {name}: {module.TITLE}", flush=True)
    start = time.perf_counter()
    result = module.run(settings)
    if result is None:
        print(f"{name} is skipped")
        return None
    head = {
        "benchmark": f"paper/{name}",
        "title": module.TITLE,
        "scale": settings.scale,
        "wall seconds": round(time.perf_counter() - start),
        "environment": common.environment(),
    }
    text = common.dumps(head | result, allow_nan=False)
    write_text(out / f"{name}.json", text)
    result = json.loads(text)
    draw(name, result, out, pictures)
    return result


def draw(name: str, result: dict[str, Any], out: Path, pictures: Path | None = None) -> None:
    """The table of a result, and its figures, which may have a folder of their own."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    module = experiment(name)
    text = module.table(result)
    write_text(out / f"{name}.md", f"# {module.TITLE}\n\n{text}\n\n{measured(result)}\n")
    print(text)
    for ending, figure in module.figures(result).items():
        path = (pictures or out) / (f"{name}_{ending}.png" if ending else f"{name}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written whole or not at all, as the JSON is.
        temporary = path.with_suffix(".part")
        figure.savefig(temporary, format="png", dpi=_DPI)
        temporary.replace(path)
        plt.close(figure)


def measured(result: Mapping[str, Any]) -> str:
    """When, on what and how: the line below a table."""
    at = result["environment"]
    versions = ", ".join(f"{key} {value}" for key, value in at["versions"].items())
    settings = "; ".join(f"{key}: {_plain(value)}" for key, value in result["settings"].items())
    return (
        f"Measured {at['date']} on {common.cores(at)} ({at['device']}) in "
        f"{result['wall seconds']} s: {versions}. {result['scale'].capitalize()} settings: "
        f"{settings}."
    )


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) if len(value) < 8 else f"{value[0]} … {value[-1]}"
    return str(value)


def significant(values: Any, digits: int = 4) -> Any:
    """Numbers with a few digits, as lists; what is not finite becomes None, which JSON knows."""
    array = np.asarray(values, np.float64)
    if array.ndim:
        return [significant(part, digits) for part in array]
    return float(f"{array:.{digits}g}") if np.isfinite(array) else None


def write_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(path.suffix + ".part")
    temporary.write_text(text)
    temporary.replace(path)
