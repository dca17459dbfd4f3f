"""Hierarchical models, where a group is a datum: sizes, truth, customers, calibration.

    python -m benchmarks.groups PART [--quick] [--limit S] [--only N ...] [--out FILE.json]

Parts:

- ``sizes``: 100 to 100,000 groups of normal, Bernoulli and Poisson rows, and with two effects for
  each group, against NUTS on everything and R's lme4; --limit ends each of the latter two.
- ``planes-truth``: NUTS on all flights with the effects of all aircraft: four chains, whose draws
  are kept in --draws.
- ``planes``: the demonstration of the aircraft in a fresh process, against that truth.
- ``lifetime``: a model of a million customers.
- ``calibration``: simulation-based calibration, for as many further data sets as --num says, whose
  ranks are kept in --draws.

``--quick`` makes each part take about a minute or less, and writes only where --out says.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import jax

from benchmarks import common
from benchmarks.groups import calibration, lifetime, lme4, planes, sizes, truth

RESULT = Path(__file__).parents[1] / "results" / "groups.json"
TRUTH = RESULT.with_name("planes_truth.json")
_COLUMNS = ["model", "groups", "rows", "groups kept", "KL", "certified KL", "build s"]


def _sizes(options: argparse.Namespace, before: dict[str, Any]) -> list[dict[str, Any]]:
    cells = sizes.QUICK if options.quick else sizes.CELLS
    found = {} if options.quick else {_cell(row): row for row in before.get("sizes", [])}
    for i, cell in enumerate(cells):
        if options.only is not None and i not in options.only:
            continue
        row = sizes.measure(cell, options.quick, 60.0 if options.quick else options.limit)
        row["date"] = common.environment()["date"]
        found[_cell(row)] = row
        print(common.table([row], _COLUMNS), flush=True)
        _keep(options, {"sizes": list(found.values())})
    return list(found.values())


def _cell(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["model"], row["groups"], row["rows"]


def _truth(options: argparse.Namespace) -> None:
    """Four chains, after those that are there, and the summary of all."""
    jax.config.update("jax_enable_x64", True)
    first = len(sorted(options.draws.glob("chain*.npz")))
    num_warmup, num_samples = (50, 50) if options.quick else (200, options.num or 1000)
    numbers = range(first, first + (1 if options.quick else 4))
    truth.sample(options.draws, numbers, num_warmup, num_samples)
    common.write(options.out or (None if options.quick else TRUTH), truth.summary(options.draws))


def _calibration(options: argparse.Namespace, before: dict[str, Any]) -> dict[str, Any]:
    path = options.draws / "ranks.jsonl"
    first = len(path.read_text().splitlines()) if path.is_file() else 0
    calibration.run(path, first, first + (2 if options.quick else options.num or 200))
    return calibration.summary(path)


def _keep(options: argparse.Namespace, found: dict[str, Any]) -> None:
    """Add parts to the file of results, where there is one."""
    path = options.out or (None if options.quick else RESULT)
    if path is None:
        return
    before = json.loads(path.read_text()) if path.is_file() else {}
    environment = common.environment()
    if lme4.version() and "sizes" in found:
        environment["versions"]["lme4"] = lme4.version()
    environments = before.get("environments", {}) | dict.fromkeys(found, environment)
    common.write(path, before | found | {"environment": environment, "environments": environments})


def main(arguments: list[str] | None = None) -> None:
    """Measure one part."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.groups",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ["sizes", "planes-truth", "planes", "lifetime", "calibration"]
    parser.add_argument("part", choices=names)
    parser.add_argument("--quick", action="store_true", help="a minute at most")
    parser.add_argument(
        "--limit", type=float, default=120.0, help="CPU seconds of NUTS, and of lme4"
    )
    parser.add_argument("--only", type=int, nargs="+", help="numbers of the cells of sizes")
    parser.add_argument("--num", type=int, help="draws of a chain, or data sets")
    parser.add_argument(
        "--draws", type=Path, default=Path("groups-draws"), help="the folder of draws and ranks"
    )
    parser.add_argument("--out", type=Path, help="the file of results")
    options = parser.parse_args(arguments)
    path = options.out or RESULT
    before = json.loads(path.read_text()) if path.is_file() else {}
    if options.part == "planes-truth":
        return _truth(options)
    if options.part == "sizes":
        return _keep(options, {"sizes": _sizes(options, before)})
    if options.part == "planes":
        return _keep(options, {"planes": planes.measure(json.loads(TRUTH.read_text()))})
    if options.part == "lifetime":
        return _keep(options, {"lifetime": lifetime.measure(20_000 if options.quick else 10**6)})
    return _keep(options, {"calibration": _calibration(options, before)})


if __name__ == "__main__":
    main()
