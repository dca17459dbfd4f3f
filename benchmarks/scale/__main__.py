"""The streamed build at scale: time and memory against rows, devices and processes.

    python -m benchmarks.scale [--quick] [--only NAME ...] [--out FILE.json] [--figures DIR]

Parts, of which ``--only`` picks some; the others' results are kept in the file that is written:

- ``build``: 10⁷ rows of a logistic regression with 20 parameters, made as they are read, 2,000
  draws, 250 rows; beside a plain loop that evaluates the same log-likelihoods and does no more.
- ``rows``: 10⁵ to 10⁸ rows at 200 draws: time, and the peak memory of a fresh process.
- ``devices``: the host as 1 to 8 devices, and whether the coreset is the same.
- ``processes``: 1 to 4 processes over loopback with a part of the rows each.
- ``sum``: the error of a sum of 10⁸ float32 terms.
- ``pricing``: what passes for further candidates bring.
- ``merge``: coresets of blocks, merged in trees of several depths.
- ``model``: many hosts, from what the other parts measured: a model, not a measurement.

Peak memory is that of a process of its own. Times that are compared come from one run.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.scale import parts
from benchmarks.scale.figures import draw
from benchmarks.scale.work import measure

RESULT = Path(__file__).parents[1] / "results" / "scale.json"
FIGURES = Path(__file__).parents[2] / "docs" / "images"

Result = dict[str, Any]


def build(quick: bool, so_far: Result) -> Result:
    """A build beside plain loops over the same rows, at two sizes, so that fixed costs show."""
    del so_far
    rows = 200_000 if quick else 10**7
    sizes = {"width": 20, "size": 20 if quick else 250, "draws": 1000, "held out": 1000}
    found: dict[str, list[Result]] = {}
    for count in (rows // 10, rows):
        for what in ("NumPyro's formula", "build", "short formula", "generate"):
            job = {"what": what, "rows": count, **sizes}
            one = {"rows": count, **measure(job)}
            found.setdefault(what, []).append(one)
            print(f"   {what}, {count:,} rows: {one['seconds']:.3g} s", flush=True)
    table = []
    for what, (small, large) in found.items():
        table.append(
            {"what": what, "seconds": large["seconds"]}
            | {"processor seconds": large["processor seconds"], "peak MB": large["peak MB"]}
            | {
                "microseconds per further row": 1e6
                * (large["seconds"] - small["seconds"])
                / (large["rows"] - small["rows"])
            }
        )
    ours = found["build"][1]
    ratios = {
        f"{unit}, over {what}": ours[unit] / found[what][1][unit]
        for what in ("NumPyro's formula", "short formula")
        for unit in ("seconds", "processor seconds")
    }
    return {"rows": rows, **sizes, "table": table, "ratios": ratios, "build": found["build"]}


def rows(quick: bool, so_far: Result) -> list[Result]:
    """Time and peak memory as the rows grow, few draws."""
    del so_far
    counts = (10**5, 10**6) if quick else (10**5, 10**6, 10**7, 10**8)
    sizes = {"width": 5, "size": 20 if quick else 50, "draws": 100, "held out": 100}
    if not quick:
        sizes["draws"] = 200  # four times the size, as the builder takes of itself
    found = []
    for count in counts:
        one = measure({"what": "build", "rows": count, **sizes})
        found.append({"rows": count, **sizes, **_short(one)})
        print(f"   {count:,} rows: {one['seconds']:.3g} s, {one['peak MB']} MB", flush=True)
    return found


def devices(quick: bool, so_far: Result) -> list[Result]:
    """One host as several devices, of which some share the rows.

    All processes have as many devices: with their number XLA's threads change, and with these the
    last bits of products, wherever the rows are.
    """
    del so_far
    counts = [1, 4] if quick else [1, 2, 4, 8]
    return _shared(quick, counts, lambda n: {"devices": counts[-1]}, "devices")


def processes(quick: bool, so_far: Result) -> list[Result]:
    """Several processes on one host, and the time of one exchange among them."""
    del so_far
    counts = [1, 2] if quick else [1, 2, 4]
    found = _shared(quick, counts, lambda n: {"processes": n}, "processes")
    job = {"what": "exchange", "draws": 1000, "held out": 1000, "repeats": 20 if quick else 200}
    for one in found:
        count = one["processes"]
        one["seconds of an exchange"] = (
            measure(job, processes=count)["seconds each"] if count > 1 else 0.0
        )
    return found


def _shared(
    quick: bool, counts: Sequence[int], how: Callable[[int], dict[str, int]], name: str
) -> list[Result]:
    sizes = {"width": 10, "size": 50, "draws": 500, "held out": 500, "rows": 1 << 21}
    if quick:
        sizes |= {"size": 20, "draws": 200, "held out": 200, "rows": 1 << 17}
    found: list[Result] = []
    for count in counts:
        mesh = {"mesh": count} if name == "devices" else {}
        one = measure({"what": "build", **sizes, **mesh}, **how(count))
        first = found[0] if found else one
        same = one["indices"] == first["indices"]
        change = None
        if same:
            ours, theirs = np.asarray(one["weights"]), np.asarray(first["weights"])
            change = float(np.max(np.abs(ours / theirs - 1)))
        found.append(
            {**one, name: count, **sizes, "same rows": same, "largest change of a weight": change}
        )
        print(f"   {count} {name}: {one['seconds']:.3g} s, same rows: {same}", flush=True)
    return [_short(one) for one in found]


def _short(one: Result) -> Result:
    return {key: value for key, value in one.items() if key not in ("indices", "weights")}


def sums(quick: bool, so_far: Result) -> list[Result]:
    """See `parts.sums`."""
    del so_far
    return parts.sums(quick)


def pricing(quick: bool, so_far: Result) -> list[Result]:
    """See `parts.pricing`."""
    del so_far
    return parts.pricing(quick)


def merge(quick: bool, so_far: Result) -> list[Result]:
    """See `parts.merging`."""
    del so_far
    return parts.merging(quick)


def model(quick: bool, so_far: Result) -> Result | None:
    """Seconds of a build on many hosts like this one, from the measured parts.

    Rows are shared evenly; what is done once per build, the solve above all, is done by each; every
    exchange costs what it cost among the most processes measured, times the hosts per process.
    """
    del quick
    if "build" not in so_far or "processes" not in so_far:
        print("   the model needs the parts build and processes")
        return None
    small, large = so_far["build"]["build"]
    per_row = (large["seconds"] - small["seconds"]) / (large["rows"] - small["rows"])
    fixed = max(small["seconds"] - per_row * small["rows"], 0.0)
    most = so_far["processes"][-1]
    per_host = most["seconds of an exchange"] / most["processes"]
    found = []
    for num_rows in (10**8, 10**9, 10**10):
        for hosts in (1, 4, 16, 64, 256):
            exchanges = most["meetings"] * per_host * hosts if hosts > 1 else 0.0
            found.append(
                {
                    "rows": num_rows,
                    "hosts": hosts,
                    "passes, s": per_row * num_rows / hosts,
                    "exchanges, s": exchanges,
                    "once, s": fixed,
                    "seconds": per_row * num_rows / hosts + exchanges + fixed,
                }
            )
    return {
        "seconds per row": per_row,
        "seconds once": fixed,
        "seconds of an exchange per host": per_host,
        "exchanges": most["meetings"],
        "table": found,
    }


PARTS: dict[str, Callable[[bool, Result], Any]] = {
    "build": build,
    "rows": rows,
    "devices": devices,
    "processes": processes,
    "sum": sums,
    "pricing": pricing,
    "merge": merge,
    "model": model,
}


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, some two minutes")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--out", type=Path, help=f"JSON to write or to add to ({RESULT})")
    parser.add_argument("--figures", type=Path, help=f"a folder for figures ({FIGURES})")
    options = parser.parse_args(arguments)
    out, figures = options.out, options.figures
    if not options.quick:  # a quick run leaves the committed results alone
        out, figures = out or RESULT, figures or FIGURES

    result: Result = {"benchmark": "scale"}
    if out is not None and out.is_file():
        result |= json.loads(out.read_text())
        if result["quick"] != options.quick:
            parser.error(f"{out} is of a run with another --quick; write to another file.")
    # Each part has the environment of its own run.
    then = {name: result["environment"] for name in PARTS if name in result}
    environments = then | result.get("environments", {})
    environment = common.environment()
    result |= {"quick": options.quick, "environment": environment, "environments": environments}
    for name in PARTS:
        if name in options.only:
            print(name, flush=True)
            result[name] = PARTS[name](options.quick, result)
            environments[name] = environment
            common.write(out, result)
    if figures is not None:
        draw(result, figures)


if __name__ == "__main__":
    main()
