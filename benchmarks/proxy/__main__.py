"""The Gaussian baseline, a proxy with rows, and rows alone: errors, truth, time.

    python -m benchmarks.proxy [--quick] [--parts NAME ...] [--only CASE] [--out FILE.json]

Parts, of which ``--parts`` picks some; what others found is kept in the file that is written:

- ``kl``: symmetrised KL against the number of rows, on the six small sets of the papers, on four
  whole ones and on the flights.
- ``tol``: the rows that a build to 0.01 nats takes, with a proxy and without.
- ``wide``: three tables of 100,000 rows and at least 100 parameters, and one of 500 parameters.
- ``truth``: NUTS on all rows, in float64, against NUTS on coresets.
- ``ablation``: the radius of the fade, precision, the point of the expansion, and a regression of
  what the expansion leaves.
- ``time``: builds of the flights in fresh processes, with a proxy and without.

``--only`` measures one case of each part again.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.proxy import ablation, kl, timing, truth, wide

RESULT = Path(__file__).parents[1] / "results" / "proxy.json"

# From (quick, data_dir, only) to the cases' names and the functions that measure them.
Jobs = Callable[[bool, Path | None, str | None], dict[str, Callable[[], Any]]]


def _of_cases(measure: Callable[..., Any]) -> Jobs:
    def jobs(quick: bool, data_dir: Path | None, only: str | None) -> dict[str, Callable[[], Any]]:
        return {
            case.name: lambda case=case: measure(case, quick)
            for case in kl.cases(quick, data_dir, only)
        }

    return jobs


PARTS: dict[str, Jobs] = {
    "kl": _of_cases(kl.measure),
    "tol": _of_cases(kl.tolerance),
    "wide": wide.jobs,
    "truth": truth.jobs,
    "ablation": ablation.jobs,
    "time": timing.jobs,
}


def summary(result: dict[str, Any]) -> dict[str, float]:
    """What the page says in one line, of the part `kl`."""
    found = result.get("kl", {}).values()
    ratios = [one for row in found for one in row["rows / auto, k to 20"]]
    largest = [row["largest ratio of auto to the better"] for row in found]
    within = [ratio <= 1.05 for ratio in largest]
    if not ratios:
        return {}
    return {
        "sets": len(largest),
        "sets within 1.05": sum(within),
        "largest ratio of auto to the better": max(largest),
        "median of rows / auto, k to 20": float(np.median(ratios)),
    }


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, a few minutes")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--only", help="the name of a case; its other results are kept")
    parser.add_argument("--data-dir", type=Path, help="folder of the papers' data sets")
    parser.add_argument("--out", type=Path, help=f"JSON to write or to add to ({RESULT})")
    options = parser.parse_args(arguments)
    out = options.out
    if not options.quick:  # a quick run leaves the committed results alone
        out = out or RESULT
    result: dict[str, Any] = {"benchmark": "proxy"}
    if out is not None and out.is_file():
        result |= json.loads(out.read_text())
        if result["quick"] != options.quick:
            parser.error(f"{out} is of a run with another --quick; write to another file.")
    environment = common.environment()
    environments = result.get("environments", {})
    result |= {"quick": options.quick, "environment": environment, "environments": environments}
    for part in options.parts:
        print(part, flush=True)
        jobs = PARTS[part](options.quick, options.data_dir, options.only)
        for name, job in jobs.items():
            if options.only in (None, name):
                result.setdefault(part, {})[name] = job()
                environments[part] = environment
                result["summary"] = summary(result)
                common.write(out, result)


if __name__ == "__main__":
    main()
