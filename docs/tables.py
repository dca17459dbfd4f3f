"""Fill the tables of the documentation from the committed results.

    python -m docs.tables

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``, a single number in running
text between ``<!-- value: RESULT > key > key; FORMAT -->`` and ``<!-- end -->``: RESULT is a file
of `benchmarks/results/`, keys lead into it (a number counts in a list), and FORMAT is Python's,
such as ``.2g``. Nothing else is touched.
"""

import argparse
import json
import re
from pathlib import Path

from benchmarks import common
from benchmarks.builds import tables as builds
from benchmarks.calibration import tables as calibration
from benchmarks.groups import tables as groups
from benchmarks.paper import runner
from benchmarks.posteriors import tables as posteriors
from benchmarks.proxy import tables as proxy
from benchmarks.robustness import tables as robustness
from benchmarks.scale import tables as scale
from benchmarks.solvers import tables as solvers

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs"

_TABLES = {
    **solvers.TABLES,
    **builds.TABLES,
    **scale.TABLES,
    **robustness.TABLES,
    **proxy.TABLES,
    **groups.TABLES,
    **calibration.TABLES,
    **posteriors.TABLES,
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
    found = [one for one in runner.NAMES if name.startswith(one)]
    source, part = found[0], name.removeprefix(found[0]).lstrip("_") or "table"
    path = RESULTS / "paper" / f"{source}.json"
    if not path.is_file():
        return (
            f"Not measured yet: `python -m benchmarks.paper {source} --full` makes it."
        )
    result = json.loads(path.read_text())
    return f"{getattr(runner.experiment(source), part)(result)}\n\n{runner.measured(result)}"


def table(name: str) -> str:
    """The table of that name, with what it was measured on."""
    if name.startswith("paper_"):
        return _paper(name.removeprefix("paper_"))
    source, make = _TABLES[name]
    path = RESULTS / f"{source.rpartition('.')[2]}.json"
    missing = f"Not measured yet: `python -m benchmarks.{source}` makes it."
    if not path.is_file():
        return missing
    result = json.loads(path.read_text())
    parts = {
        "solvers": [name],
        "scale": _SCALE_PARTS.get(name, []),
        "proxy": proxy.PARTS.get(name, []),
        "groups": groups.PARTS.get(name, []),
    }.get(source, [])
    if any(part not in result for part in parts):
        return missing
    at = result["environment"]
    if parts:
        at = result.get("environments", {}).get(parts[0], at)
    versions = ", ".join(f"{key} {value}" for key, value in at["versions"].items())
    head = f"Measured {at['date']} on {common.cores(at)} ({at['device']}): {versions}."
    if source == "solvers.methods":
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
    argparse.ArgumentParser(
        prog="python -m docs.tables", description=__doc__
    ).parse_args()
    for path in pages():
        text = path.read_text()
        filled = fill(text)
        if filled != text:
            path.write_text(filled)
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
