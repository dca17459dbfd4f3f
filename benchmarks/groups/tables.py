"""The tables of `benchmarks.groups`, as Markdown."""

from collections.abc import Callable
from typing import Any

from benchmarks.common import markdown, text_of


def _sizes(result: dict[str, Any]) -> str:
    rows = []
    for found in result["sizes"]:
        everything, lme4 = found["NUTS on everything"], found["lme4"]
        bound = f"> {found['limit']:.0f}"
        ratios = found.get("sd ratios")
        rows.append(
            {
                "model": found["model"],
                "groups": f"{found['groups']:,}",
                "rows": f"{found['rows']:,}",
                "kept": found["groups kept"],
                "KL": found["KL"],
                "Gaussian": found["KL of a Gaussian"],
                "certified": found["certified KL"],
                "build, CPU s": found["build CPU s"],
                "with NUTS and certificate, CPU s": found["CPU s"],
                "NUTS on everything, CPU s": everything["CPU s"] if everything else bound,
                "its least effective draws": everything and everything["least effective"],
                "error of a mean, sd": found.get("mean error, sd"),
                "sd ratio": ratios and " to ".join(f"{x:.2f}" for x in ratios),
                "lme4, CPU s": lme4["seconds"] if lme4 else bound,
                "lme4 from the mean, sd": found.get("lme4 from the mean, sd"),
            }
        )
    return markdown(rows, list(rows[0]))


def _planes(result: dict[str, Any]) -> str:
    return markdown(result["planes"]["shared"], list(result["planes"]["shared"][0]))


def _planes_time(result: dict[str, Any]) -> str:
    found = result["planes"]
    rows = [{"stage": name, "s": value} for name, value in found["stages"].items()]
    rows += [{"stage": f"build: {name}", "s": x} for name, x in found["build stages"].items()]
    return markdown(rows, ["stage", "s"])


def _lifetime(result: dict[str, Any]) -> str:
    found = result["lifetime"]
    head = ", ".join(
        f"{name} {text_of(found[name])}"
        for name in ("KL", "KL of a Gaussian", "certified KL", "build CPU s", "CPU s")
    )
    columns = ["parameter", "simulated with", "mean", "sd", "error, sd", "effective"]
    counts = f"{found['customers']:,} customers, {found['rows']:,} rows kept: {head}."
    return f"{counts}\n\n{markdown(found['parameters'], columns)}"


def _calibration(result: dict[str, Any]) -> str:
    return markdown(
        result["calibration"]["quantities"], ["quantity", "p", "within the bands", "mean rank"]
    )


_MAKERS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "groups_sizes": ("sizes", _sizes),
    "groups_planes": ("planes", _planes),
    "groups_planes_time": ("planes", _planes_time),
    "groups_lifetime": ("lifetime", _lifetime),
    "groups_calibration": ("calibration", _calibration),
}
# By table the result that it is made of, and what makes it.
TABLES = {name: ("groups", make) for name, (_, make) in _MAKERS.items()}
# What a table needs to have been measured.
PARTS = {name: [part] for name, (part, _) in _MAKERS.items()}
