"""Fill the tables of the documentation from the committed results.

    python -m benchmarks.pages

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``, a single number in running
text between ``<!-- value: RESULT > key > key; FORMAT -->`` and ``<!-- end -->``: RESULT is a file
of `benchmarks/results/`, keys lead into it (a number counts in a list), and FORMAT is Python's,
such as ``.2g``. Nothing else is touched.
"""

import argparse
import json
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import common, compilation

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs"

_NEAREST = ("default", "MatchingPursuit", "GIGA")
_FAMILIES = ("IHT", "AIHT", "AIHT2")


def markdown(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    """Rows of values as a Markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(_cell(row.get(c)) for c in columns) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


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
        f"- {key}: {_cell(value)}" for key, value in result[part]["summary"].items()
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


def _rounds(result: dict[str, Any]) -> str:
    columns = ["model", "size", "start", "round", "true KL", "estimate", "own estimate", "stops"]
    return markdown([row for row in result["rows"] if "round" in row], columns)


def _kl(result: dict[str, Any]) -> str:
    columns = ["data", "k", "estimate", "standard error", "true KL", "k-hat", "estimate / true"]
    found = result["summary"]
    low, high = found["least and largest ratio"]
    summary = (
        f"Between 1e-8 and 0.3 nats there are {found['cells between 1e-8 and 0.3 nats']} cells; "
        f"{found['within a factor of two']} of them are within a factor of two, and the ratio is "
        f"{_cell(low)} to {_cell(high)}."
    )
    return markdown(result["rows"], [*columns, "Laplace KL"]) + f"\n\n{summary}"


_LIMITS = ("n", "parameters", "D(D+3)/2", "coordinates", "rows", "estimated KL")


def _compilation(result: dict[str, Any]) -> str:
    return markdown(result["rows"], compilation.COLUMNS)


def _limits_parameters(result: dict[str, Any]) -> str:
    return markdown(result["parameters"], [*_LIMITS, "seconds to build"])


def _limits_rows(result: dict[str, Any]) -> str:
    columns = ["seconds to build", "seconds of NUTS on the coreset", "seconds of NUTS on all rows"]
    return markdown(result["rows"], [*_LIMITS, *columns])


def _limits_wide(result: dict[str, Any]) -> str:
    return markdown(result["wide"], ["k", "held-out error", "estimated KL", "standard error"])


def _flights(result: dict[str, Any]) -> str:
    columns = ["method", "seconds", "draws", "effective draws", "effective draws per second"]
    columns += ["largest error of a mean, in sd", "its Monte Carlo error, in sd"]
    rows = [result[part] for part in ("full", "coreset", "hmcecs") if part in result]
    text = markdown(rows, columns)
    if "coreset" in result:
        found = result["coreset"]
        certificate = found["certificate"]
        text += (
            f"\n\nWith tol = {found['tol']} the builder chose {found['rows']} of "
            f"{result['rows']:,} rows and estimated {_cell(found['estimated KL'])} ± "
            f"{_cell(found['its standard error'])} nats; the certificate says "
            f"{_cell(certificate['kl'])} ± {_cell(certificate['kl_standard_error'])} nats, k-hat "
            f"{_cell(certificate['khat'])}."
        )
    if "truth" in result:
        known = result["truth"]
        text += (
            f" Errors are against {known['how']}: R-hat {known['largest R-hat']:.4f}, "
            f"{known['effective draws'][0]:.0f} effective draws at least."
        )
    return text


def _warm_start(result: dict[str, Any]) -> str:
    columns = ["method", "warm-up", "warm-up gradients", "sampling gradients", "least ESS"]
    columns += ["ESS per 1000", "error in sd", "seconds"]
    spent = result["on the coreset"]["coreset gradients"]
    return (
        f"{result['rows']:,} rows, a coreset of {result['size']}.\n\n"
        + markdown(result["results"], columns)
        + f"\n\nNUTS on the coreset came to {spent:.0f} passes over all rows."
    )


def _scale_build(result: dict[str, Any]) -> str:
    found = result["build"]
    columns = ["what", "seconds", "processor seconds", "microseconds per further row", "peak MB"]
    stages = ", ".join(f"{k} {_cell(v)}" for k, v in found["build"][1]["stages"].items())
    passes = ", ".join(f"{what} {count}" for what, count in found["build"][1]["passes"].items())
    ratios = "\n".join(f"- {key}: {_cell(value)}" for key, value in found["ratios"].items())
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

TABLES: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "quality": ("solvers", _quality),
    "whole": ("solvers", _whole),
    "optimum": ("solvers", _optimum),
    "ablation": ("solvers", _ablation),
    "speed": ("solvers", _speed),
    "large": ("solvers", _large),
    "scaling": ("solvers", _scaling),
    "methods": ("methods", _methods),
    "claims": ("methods", _claims),
    "rounds": ("rounds", _rounds),
    "kl": ("kl_estimate", _kl),
    "flights": ("flights", _flights),
    "compilation": ("compilation", _compilation),
    "warm_start": ("warm_start", _warm_start),
    "limits_parameters": ("limits", _limits_parameters),
    "limits_rows": ("limits", _limits_rows),
    "limits_wide": ("limits", _limits_wide),
    "scale_build": ("scale", _scale_build),
    "scale_rows": ("scale", _scale_rows),
    "scale_shared": ("scale", _scale_shared),
    "scale_sum": ("scale", _scale_sum),
    "scale_pricing": ("scale", _scale_pricing),
    "scale_model": ("scale", _scale_model),
    "scale_merge": ("scale", _scale_merge),
}

# What a table of `benchmarks.scale` needs to have been measured.
_SCALE_PARTS = {
    "scale_build": ["build"],
    "scale_rows": ["rows"],
    "scale_shared": ["devices", "processes"],
    "scale_sum": ["sum"],
    "scale_pricing": ["pricing"],
    "scale_model": ["model"],
    "scale_merge": ["merge"],
}


def _paper(name: str) -> str:
    """A table of `benchmarks.paper`: its experiment's, or another function of its module."""
    from benchmarks.paper import runner  # which needs this module

    found = [one for one in runner.NAMES if name.startswith(one)]
    source, part = found[0], name.removeprefix(found[0]).lstrip("_") or "table"
    path = RESULTS / "paper" / f"{source}.json"
    if not path.is_file():
        return f"Not measured yet: `python -m benchmarks.paper {source} --full` makes it."
    result = json.loads(path.read_text())
    return f"{getattr(runner.experiment(source), part)(result)}\n\n{runner.measured(result)}"


def table(name: str) -> str:
    """The table of that name, with what it was measured on."""
    if name.startswith("paper_"):
        return _paper(name.removeprefix("paper_"))
    source, make = TABLES[name]
    path = RESULTS / f"{source}.json"
    if not path.is_file():
        return f"Not measured yet: `python -m benchmarks.{source}` makes it."
    result = json.loads(path.read_text())
    parts = {"solvers": [name], "scale": _SCALE_PARTS.get(name, [])}.get(source, [])
    if any(part not in result for part in parts):
        return f"Not measured yet: `python -m benchmarks.{source}` makes it."
    at = result["environment"]
    if parts:
        at = result.get("environments", {}).get(parts[0], at)
    versions = ", ".join(f"{key} {value}" for key, value in at["versions"].items())
    head = f"Measured {at['date']} on {common.cores(at)} ({at['device']}): {versions}."
    if source == "methods":
        head += f" Medians over {result['trials']} trials."
    return make(result) + "\n\n" + head


def value(path: str, form: str) -> str:
    """One number of a result, as text.

    Args:
        path: the result's name and the keys that lead to the number, with " > " between.
        form: how to write it, a format specification of Python.
    """
    source, *keys = path.split(" > ")
    found = json.loads((RESULTS / f"{source}.json").read_text())
    for key in keys:
        found = found[int(key)] if isinstance(found, list) else found[key]
    return format(found, form)


def pages() -> list[Path]:
    """The pages of the documentation."""
    return sorted(DOCS.rglob("*.md"))


def fill(page: str) -> str:
    """The text of a page with its tables and numbers made anew."""
    page = re.sub(
        r"(<!-- value: ([^;]+); (\S+) -->).*?(<!-- end -->)",
        lambda match: f"{match[1]}{value(match[2], match[3])}{match[4]}",
        page,
    )
    return re.sub(
        r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)",
        lambda match: f"{match[1]}\n{table(match[2])}\n\n{match[3]}",
        page,
        flags=re.DOTALL,
    )


def main() -> None:
    """Write the pages."""
    argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__).parse_args()
    for path in pages():
        text = path.read_text()
        filled = fill(text)
        if filled != text:
            path.write_text(filled)
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
