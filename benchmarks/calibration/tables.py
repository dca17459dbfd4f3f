"""Summaries of the files of ranks, and their table and figure."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.calibration.bands import coverage_interval, p_value
from benchmarks.calibration.models import MODELS
from benchmarks.calibration.run import NUM_RANKS, SETTINGS
from benchmarks.common import markdown

# Bands of fewer data sets are too wide to say anything.
_LEAST = 20
KINDS = ("plain", "corrected")
# A central interval of 90 % leaves out five values of a rank on either side.
_LOWEST = (NUM_RANKS + 1) // 20


def summary(folder: Path, least: int = _LEAST) -> list[dict[str, Any]]:
    """What is kept of each cell with enough data sets: facts, and how often each rank occurred."""
    cells = []
    for name in MODELS:
        for setting in SETTINGS:
            path = folder / f"{name}-{setting}.jsonl"
            lines = [json.loads(x) for x in path.read_text().splitlines()] if path.is_file() else []
            if len(lines) >= least:
                cells.append({"model": name, "setting": setting} | _cell(lines))
    return cells


def _cell(lines: list[dict[str, Any]]) -> dict[str, Any]:
    kl = np.array([line["KL"] for line in lines])
    tail = lines[len(lines) // 2 :]
    found: dict[str, Any] = {
        "data sets": len(lines),
        "rows": np.quantile([line["rows"] for line in lines], [0, 0.5, 1]).tolist(),
        "KL": np.quantile(kl, [0, 0.5, 1]).tolist(),
        "Gaussian KL": float(np.median([line["Gaussian KL"] for line in lines])),
        "called good": sum(line["verdict"] == "good" for line in lines),
        "not corrected": sum(line["corrected"] is None for line in lines),
        "CPU seconds": float(np.sum([line["CPU seconds"] for line in lines])),
        "median CPU seconds": float(np.median([line["CPU seconds"] for line in tail])),
        "programs compiled, second half": int(sum(len(x["programs compiled"]) for x in tail)),
    }
    for kind in KINDS:
        used = [line[kind] for line in lines if line[kind] is not None]
        names = list(used[0]) if used else []
        found[kind] = {
            one: np.bincount([x[one] for x in used], minlength=NUM_RANKS + 1).tolist()
            for one in names
        }
    return found


def verdict(counts: dict[str, list[int]]) -> dict[str, Any] | None:
    """Whether the ranks of a cell are uniform, from how often each occurred.

    The smallest p-value of a quantity is multiplied by the number of quantities.
    """
    if not counts:
        return None
    ranks = {name: np.repeat(np.arange(NUM_RANKS + 1), found) for name, found in counts.items()}
    p = {name: p_value(values, NUM_RANKS + 1) for name, values in ranks.items()}
    worst = min(p, key=lambda name: p[name])
    inside = {name: sum(found[_LOWEST:-_LOWEST]) for name, found in counts.items()}
    least = min(inside, key=lambda name: inside[name])
    num = sum(counts[least])
    return {
        "p": min(1.0, p[worst] * len(p)),
        "worst": worst,
        "coverage": sum(inside.values()) / (num * len(inside)),
        "least coverage": inside[least] / num,
        "least covered": least,
        # As sure for the least of the quantities as for a single one.
        "interval": coverage_interval(inside[least], num, 1 - 0.05 / len(inside)),
    }


def _table(result: dict[str, Any]) -> str:
    rows = []
    for cell in result["cells"]:
        plain, corrected = (verdict(cell[kind]) for kind in KINDS)
        small = cell["setting"] == "small"
        rows.append(
            {
                "model": MODELS[cell["model"]].title,
                "tol": f"{int(cell['rows'][2])} rows only" if small else cell["setting"],
                "data sets": cell["data sets"],
                "rows kept": _range(cell["rows"], "d"),
                "KL": _range(cell["KL"], ".2g"),
                "the report says good": f"{cell['called good']} of {cell['data sets']}",
                "p, of the coreset": plain and _p(plain),
                "coverage, of the coreset": plain and _coverage(plain),
                "not corrected": f"{cell['not corrected']} of {cell['data sets']}",
                "p, corrected": corrected and _p(corrected),
                "coverage, corrected": corrected and _coverage(corrected),
            }
        )
    return markdown(rows, list(rows[0]))


def _range(three: list[float], form: str) -> str:
    low, median, high = (f"{int(x) if form == 'd' else x:{form}}" for x in three)
    return median if low == high else f"{median} ({low} to {high})"


def _p(found: dict[str, Any]) -> str:
    text = f"{found['p']:.2g}" if found["p"] > 0.001 else "< 0.001"
    return text if found["p"] > 0.05 else f"**{text}** ({found['worst']})"


def _coverage(found: dict[str, Any]) -> str:
    return f"{found['coverage']:.0%} (least {found['least coverage']:.0%})"


def _time(result: dict[str, Any]) -> str:
    rows = [
        {
            "model": MODELS[cell["model"]].title,
            "tol": cell["setting"],
            "data sets": cell["data sets"],
            "CPU s, all": cell["CPU seconds"],
            "CPU s, median of the second half": cell["median CPU seconds"],
            "programs compiled in the second half": cell["programs compiled, second half"],
        }
        for cell in result["cells"]
    ]
    return markdown(rows, list(rows[0]))


TABLES = {"calibration": ("calibration", _table), "calibration_time": ("calibration", _time)}
