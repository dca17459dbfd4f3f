"""The tables of `benchmarks.proxy`, as Markdown."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.common import markdown, text_of

_CELLS = ("k", "rows alone", "Gaussian", "proxy + rows", "auto", "rows / auto")
_TRUTH = (
    "data",
    "k",
    "what",
    "Gaussian",
    "estimate",
    "sKL from both samples",
    "± ",
    "variance under the truth",
    "sKL of moments",
    "error of a mean, sd",
    "sd ratio",
    "farthest draw, sd",
    "farthest mode, sd",
    "divergent",
)


def _kl(result: dict[str, Any]) -> str:
    rows = [
        {"parameters": found["parameters"], **cell}
        for found in result["kl"].values()
        for cell in found["cells"]
    ]
    return markdown(_with_commas(rows), ["data", "n", "parameters", *_CELLS])


def _checks(result: dict[str, Any]) -> str:
    """What is asked of auto at every size, and whether it holds."""
    rows = []
    for name, found in result["kl"].items():
        ratio = found["largest ratio of auto to the better"]
        rows.append(
            {
                "data": name,
                "largest ratio of auto to the better of both, k to 100": ratio,
                "at k": found["at k"],
                "at most 1.05": "yes" if ratio <= 1.05 else "no",
                "median of rows / auto, k to 20": found["median of rows / auto, k to 20"],
            }
        )
    ratios = [one for found in result["kl"].values() for one in found["rows / auto, k to 20"]]
    return markdown(rows, list(rows[0])) + (
        f"\n\nOver all sets and sizes to 20 the median of rows / auto is {np.median(ratios):.3g}."
    )


def _tol(result: dict[str, Any]) -> str:
    rows = []
    for found in result["tol"].values():
        row = {name: found[name] for name in ("data", "n", "Gaussian")}
        for name in ("rows alone", "proxy + rows", "auto"):
            met = "" if found[f"met, {name}"] else " (not met)"
            row[name] = f"{found[name]}{met}"
            row[f"seconds, {name}"] = found[f"seconds, {name}"]
        rows.append(row)
    return markdown(_with_commas(rows), list(rows[0]))


def _wide(result: dict[str, Any]) -> str:
    rows = [
        {"parameters": found["parameters"], **cell}
        for found in result["wide"].values()
        if isinstance(found, dict)
        for cell in found["cells"]
    ]
    return markdown(_with_commas(rows), ["data", "n", "parameters", *_CELLS])


def _wide_seconds(result: dict[str, Any]) -> str:
    rows = []
    for found in result["wide"].values():
        if isinstance(found, dict):
            row: dict[str, Any] = {"data": found["data"]}
            rows.append(row | {f"{name}, s": value for name, value in found["seconds"].items()})
    text = markdown(rows, list(rows[0])) if rows else ""
    builds = [one for found in result["wide"].values() if isinstance(found, list) for one in found]
    if builds:
        columns = ["data", "n", "build", "rows", "estimated KL", "Gaussian", "seconds", "peak MB"]
        text += "\n\nBuilds in fresh processes:\n\n" + markdown(_with_commas(builds), columns)
    return text


def _truth(result: dict[str, Any]) -> str:
    return markdown([_short(row) for rows in result["truth"].values() for row in rows], _TRUTH)


def _short(row: dict[str, Any]) -> dict[str, Any]:
    low, high = row["sd ratio"]
    return row | {
        "± ": row["its standard error"],
        "error of a mean, sd": row["largest error of a mean, in sd"],
        "farthest draw, sd": row["farthest draw, in sd"],
        "farthest mode, sd": row["farthest end, in sd"],
        "sd ratio": f"{low:.2f} to {high:.2f}",
    }


def _ablation(start: str, columns: Sequence[str] = ()) -> Callable[[dict[str, Any]], str]:
    """The table of the trials whose names start so; all columns if none are given."""

    def make(result: dict[str, Any]) -> str:
        found = [
            row
            for name, rows in result["ablation"].items()
            if name.startswith(f"{start},")
            for row in rows
        ]
        names = dict.fromkeys(name for row in found for name in row)
        return markdown(found, list(columns or names)) if found else "Not measured yet."

    return make


def _fade_by_nuts(result: dict[str, Any]) -> str:
    columns = ["data", "radius", *[name for name in _TRUTH[1:] if name not in _UNTOLD]]
    rows = [
        _short(row)
        for name, rows in result["ablation"].items()
        if name.startswith("fade by NUTS")
        for row in rows
    ]
    return markdown(rows, columns) if rows else "Not measured yet."


_UNTOLD = ("what", "Gaussian", "estimate")
_REGRESSION = (
    "data",
    "D",
    "features",
    "draws",
    "k",
    "expansion",
    "regression",
    "expansion / regression",
)


def _time(result: dict[str, Any]) -> str:
    texts = []
    columns = ["proxy", "rows", "cold", "cold, ratio", "warm", "warm, ratio"]
    for name, rows in result["time"].items():
        texts.append(f"{name}, seconds:\n\n" + markdown(rows, columns))
        stages = {row["proxy"]: row["warm stages"] for row in rows}
        told = "; ".join(
            f"{proxy}: " + ", ".join(f"{k} {text_of(v)}" for k, v in found.items())
            for proxy, found in stages.items()
        )
        texts.append(f"Seconds of the last warm builds by stage: {told}.")
    return "\n\n".join(texts)


def _with_commas(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"n": f"{row['n']:,}"} for row in rows]


# The part that a table is of, and the function that makes it from the result.
_MADE: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "proxy_kl": ("kl", _kl),
    "proxy_checks": ("kl", _checks),
    "proxy_tol": ("tol", _tol),
    "proxy_wide": ("wide", _wide),
    "proxy_wide_seconds": ("wide", _wide_seconds),
    "proxy_truth": ("truth", _truth),
    "proxy_fade": ("ablation", _ablation("fade")),
    "proxy_fade_by_nuts": ("ablation", _fade_by_nuts),
    "proxy_modes": ("ablation", _ablation("modes")),
    "proxy_precision": ("ablation", _ablation("precision")),
    "proxy_point": ("ablation", _ablation("point")),
    "proxy_draws": ("ablation", _ablation("draws")),
    "proxy_regression": ("ablation", _ablation("regression", _REGRESSION)),
    "proxy_time": ("time", _time),
}
PARTS = {name: [part] for name, (part, _) in _MADE.items()}
TABLES = {name: ("proxy", make) for name, (_, make) in _MADE.items()}
