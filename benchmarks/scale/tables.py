"""The tables of `benchmarks.scale`, as Markdown."""

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.common import markdown, text_of


def _scale_build(result: dict[str, Any]) -> str:
    found = result["build"]
    columns = ["what", "seconds", "processor seconds", "microseconds per further row", "peak MB"]
    stages = ", ".join(f"{k} {text_of(v)}" for k, v in found["build"][1]["stages"].items())
    passes = ", ".join(f"{what} {count}" for what, count in found["build"][1]["passes"].items())
    ratios = "\n".join(f"- {key}: {text_of(value)}" for key, value in found["ratios"].items())
    return (
        f"{found['rows']:,} rows, {found['width']} parameters, {found['draws']:,} draws and "
        f"{found['held out']:,} held out, k = {found['size']}:\n\n"
        + markdown(found["table"], columns)
        + f"\n\nThe build's seconds by stage: {stages}. Its passes: {passes}. The build over the "
        f"plain loops:\n\n{ratios}"
    )


def _scale_rows(result: dict[str, Any]) -> str:
    columns = ["rows", "seconds", "processor seconds", "solve", "peak MB", "estimated KL"]
    rows = [row | {"solve": row["stages"]["solve"]} for row in result["rows"]]
    return markdown(_with_commas(rows), columns)


def _scale_shared(result: dict[str, Any]) -> str:
    texts = []
    for name in ("devices", "processes"):
        rows = [
            row | {"passes, s": row["stages"]["embedding"] + row["stages"]["weighting"]}
            for row in result[name]
        ]
        columns = [name, "seconds", "passes, s", "same rows", "largest change of a weight"]
        columns += ["seconds of an exchange"] * (name == "processes") + ["peak MB"]
        texts.append(markdown(rows, columns))
        sizes = rows[0]
    return (
        f"{sizes['rows']:,} rows, {sizes['width']} parameters, {sizes['draws']} draws and "
        f"{sizes['held out']} held out, k = {sizes['size']}:\n\n" + "\n\n".join(texts)
    )


def _scale_sum(result: dict[str, Any]) -> str:
    columns = ["terms", "count", "relative error", "relative error, as float32"]
    return markdown(result["sum"], [*columns, "one after the other", "seconds"])


def _scale_pricing(result: dict[str, Any]) -> str:
    columns = ["data", "k", "candidates", "passes allowed", "passes made", "candidates at the end"]
    columns += ["relative error", "held-out error", "estimated KL", "seconds"]
    return markdown(result["pricing"], columns)


def _scale_merge(result: dict[str, Any]) -> str:
    columns = ["tree", "depth", "rows", "KL", "KL reported"]
    return markdown(result["merge"], columns)


def _scale_model(result: dict[str, Any]) -> str:
    found = result["model"]
    columns = ["rows", "hosts", "passes, s", "exchanges, s", "once, s", "seconds"]
    return (
        f"Computed, not measured, from {1e6 * found['seconds per row']:.3g} µs per row, "
        f"{found['seconds once']:.3g} s once, and {found['exchanges']} exchanges of "
        f"{1e3 * found['seconds of an exchange per host']:.3g} ms per host:\n\n"
        + markdown(_with_commas(found["table"]), columns)
    )


def _with_commas(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"rows": f"{row['rows']:,}"} for row in rows]


# The benchmark that a table is of, and the function that makes it from the result.
TABLES: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "scale_build": ("scale", _scale_build),
    "scale_rows": ("scale", _scale_rows),
    "scale_shared": ("scale", _scale_shared),
    "scale_sum": ("scale", _scale_sum),
    "scale_pricing": ("scale", _scale_pricing),
    "scale_model": ("scale", _scale_model),
    "scale_merge": ("scale", _scale_merge),
}
