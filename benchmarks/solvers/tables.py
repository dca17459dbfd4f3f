"""The tables of the solvers' results, as Markdown."""

import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.common import markdown, text_of

_NEAREST = ("default", "MatchingPursuit", "GIGA")

_ORDER = (
    ("AIHT2", "GIGA"),
    ("AIHT2", "SparseVI"),
    ("AIHT2", "IHT"),
    ("GIGA", "FrankWolfe"),
    ("FrankWolfe", "ImportanceSampling"),
    ("ImportanceSampling", "Uniform"),
    ("MatchingPursuit", "AIHT2"),
    ("ExchangePursuit", "MatchingPursuit"),
)


def _quality(result: dict[str, Any], part: str = "quality") -> str:
    rows = []
    for cell in result[part]["cells"]:
        if cell["trial"] or cell["num_draws"] != 500:
            continue
        for i, k in enumerate(cell["ks"]):
            row = {"data": cell["data"], "k": k}
            for name, values in cell["relative_error"].items():
                family = name.split(",")[0]
                if values[i] is not None:
                    row[family] = min(values[i], row.get(family, float("inf")))
            rows.append(row)
    columns = [name for name in rows[0] if name not in ("data", "k", "default")]
    columns = ["data", "k", "default", *columns]
    summary = "\n".join(
        f"- {key}: {text_of(value)}" for key, value in result[part]["summary"].items()
    )
    trials = ", ".join(
        f"{1 + max(c['trial'] for c in result[part]['cells'] if c['num_draws'] == draws)} with "
        f"S = {draws}"
        for draws in sorted({cell["num_draws"] for cell in result[part]["cells"]})
    )
    head = f"Over all cells with an error above 3e-5 (draws of θ for each data set: {trials}):"
    text = f"{markdown(rows, columns)}\n\n{head}\n\n{summary}"
    problems = len(result[part]["cells"])
    kept, others = result[part].get("kept"), result[part].get("others")
    if kept is not None:
        text += (
            f"\n\n{kept['problems']} of {problems} problems were run on {kept['date']} or later."
        )
    if others is not None:
        text += (
            f"\n\nThe other methods' errors in {others['problems']} of {problems} problems are "
            f"those of {others['environment']['date']} or later."
        )
    return text


def _whole(result: dict[str, Any]) -> str:
    return _quality(result, "whole")


def _optimum(result: dict[str, Any]) -> str:
    columns = ["k", "data", "solver", "problems", "geometric mean", "worst", "optimal"]
    rows = sorted(result["optimum"], key=lambda row: row["k"])
    return markdown([row for row in rows if row["solver"] in _NEAREST], columns)


def _ablation(result: dict[str, Any]) -> str:
    columns = ["variant", "objective ratio", "worst ratio", "above 1.02", "moves", "seconds"]
    return (
        markdown(result["ablation"], columns)
        + "\n\nObjective over `MatchingPursuit`'s, six small data sets with 20 draws of 500 each, "
        "k = 2 … 200: geometric mean, worst, and in how many cells it is more than 1.02 times "
        "that. Moves and seconds are those of one sweep over all k."
    )


def _speed(result: dict[str, Any]) -> str:
    columns = ["data", "k", "problems", "devices", "solver"]
    columns += ["cold", "warm", "speedup", "median ratio", "worst ratio"]
    return markdown(result["speed"], columns)


def _large(result: dict[str, Any]) -> str:
    rows = [{"quantity": key, "value": value} for key, value in result["large"].items()]
    return "One large problem:\n\n" + markdown(rows, ["quantity", "value"])


def _scaling(result: dict[str, Any]) -> str:
    rows = [
        row | {"from": row["values"][0], "to": row["values"][-1], "seconds": row["seconds"][-1]}
        for row in result["scaling"]
    ]
    return markdown(rows, ["against", "solver", "from", "to", "seconds", "exponent"])


def _methods(result: dict[str, Any]) -> str:
    columns = ["data", "k", "method", "relative error", "held-out"]
    columns += ["forward", "reverse", "sym. KL", "seconds"]
    rows = [row for row in result["rows"] if row["k"] in (20, 100)]
    return markdown(rows, columns)


def _claims(result: dict[str, Any]) -> str:
    """In how many cells one method's divergence is below another's, and by how much."""
    cells: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
    for row in result["rows"]:
        cells.setdefault((row["data"], row["k"]), {})[row["method"]] = row
    rows = []
    for better, worse in _ORDER:
        pairs = [(c[better], c[worse]) for c in cells.values() if better in c and worse in c]
        if not pairs:
            continue
        row: dict[str, Any] = {"lower": better, "than": worse}
        for measure in ("forward", "reverse"):
            # A coreset posterior without a Laplace fit has no divergence.
            both = [(a[measure], b[measure]) for a, b in pairs]
            both = [(a, b) for a, b in both if a == a and b == b]
            row[measure] = f"{sum(a < b for a, b in both)} of {len(both)}"
            row[f"median ratio, {measure}"] = statistics.median(b / a for a, b in both)
        row["median ratio, seconds"] = statistics.median(
            b["seconds"] / a["seconds"] for a, b in pairs
        )
        rows.append(row)
    return markdown(rows, list(rows[0]))


# The benchmark that a table is of, and the function that makes it from the result.
TABLES: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "quality": ("solvers", _quality),
    "whole": ("solvers", _whole),
    "optimum": ("solvers", _optimum),
    "ablation": ("solvers", _ablation),
    "speed": ("solvers", _speed),
    "large": ("solvers", _large),
    "scaling": ("solvers", _scaling),
    "methods": ("solvers.methods", _methods),
    "claims": ("solvers.methods", _claims),
}
