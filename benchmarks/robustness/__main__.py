"""What was tried to break the package: all programs of this folder, and one table of what held.

    python -m benchmarks.robustness [--quick] [--only PROGRAM ...] [--parts FOLDER]
                                    [--output FILE.json]

Each program runs in a process of its own, one after the other, so that one that crashes is told of
in the table. With ``--parts`` each program's own result is kept in a folder, and a program whose
result is there already does not run again. ``--quick`` takes a few minutes, all of it half an hour.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import common

COLUMNS = ("program", "what it tries", "trials", "held", "seconds")
# The loop is held if its memory grows by no more than this for each build, of 12 MB of data, in the
# second half.
_MB_PER_BUILD = 1.0
# The second build takes at most this many times what later ones take.
_SECOND_BUILD = 1.3

SOLVERS = "random problems over all solvers, float32 and float64"
KILLS = "kills of builds from NumPy, Parquet and generators"
LOOP = "builds in a loop: memory, data, compilation, time"
THREADS = "builds in eight threads at once"
NUMERICAL = "hard numbers, with the exact answer"
FILES = "malformed coreset files and checkpoints"
PROCESSES = "faults of the processes of one build"

Part = tuple[str, int, int]


@dataclass(frozen=True)
class Program:
    """A program of this folder.

    Attributes:
        what: what it does, in words.
        parts: from its result, what was tried, how often, and how often it held.
        quick: its arguments for a quick run.
    """

    what: str
    parts: Callable[[dict[str, Any]], list[Part]]
    quick: tuple[str, ...] = ("--quick",)


def _cases(what: str) -> Callable[[dict[str, Any]], list[Part]]:
    return lambda result: [(what, result["num_cases"], result["num_held"])]


def _solvers(result: dict[str, Any]) -> list[Part]:
    violations = min(result["num_violations"], result["num_problems"])
    return [(SOLVERS, result["num_problems"], result["num_problems"] - violations)]


def _kills(result: dict[str, Any]) -> list[Part]:
    kills = sum(row["kills"] for row in result["rows"])
    return [(KILLS, kills, sum(row["kills"] for row in result["rows"] if row["held"]))]


def _builds(result: dict[str, Any]) -> list[Part]:
    """A build of the loop is held if its data are gone and nothing compiles.

    The first build that keeps some number of rows may compile programs for that number.
    """
    loop, threads = result["loop"], result["threads"]
    rows, held, sizes = loop["builds"], 0, set()
    for row in rows:
        is_first = row["rows kept"] not in sizes
        sizes.add(row["rows kept"])
        held += not row["data in memory"] and (is_first or not row["programs compiled"])
    is_flat = loop["MB per build in the second half"] <= _MB_PER_BUILD or len(rows) < 10
    is_second_fast = (
        loop["second build, in medians of later ones"] <= _SECOND_BUILD or len(rows) < 10
    )
    at_once = threads["builds"] - threads["failed"] - threads["different"]
    return [
        (LOOP, len(rows), (held - (not is_second_fast)) if is_flat else 0),
        (THREADS, threads["builds"], at_once),
    ]


PROGRAMS = {
    "solvers": Program(SOLVERS, _solvers),
    "numerical": Program(NUMERICAL, _cases(NUMERICAL)),
    "files": Program(FILES, _cases(FILES), ()),
    "kills": Program(KILLS, _kills),
    "processes": Program(PROCESSES, _cases(PROCESSES), ("--only", "fails in a pass")),
    "builds": Program(f"{LOOP}; in threads", _builds),
}


def run(name: str, path: Path, quick: bool) -> list[dict[str, Any]]:
    """Run one program, or read its result if it is there; rows of the table.

    Args:
        name: the program's module.
        path: where its result is, or goes.
        quick: whether the run is a small one.
    """
    program, start, said = PROGRAMS[name], time.monotonic(), ""
    if not path.is_file():
        flags = program.quick if quick else ()
        command = [sys.executable, "-m", f"benchmarks.robustness.{name}", *flags]
        done = subprocess.run(
            [*command, "--json", str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        said = f"status {done.returncode}: {done.stdout[-2000:]}"
        if done.returncode == 0 and path.is_file():
            result = json.loads(path.read_text())
            common.write(path, result | {"wall seconds": time.monotonic() - start})
    if not path.is_file():
        row = {"program": name, "what it tries": program.what, "trials": None, "held": 0}
        return [row | {"seconds": time.monotonic() - start, "outcome": said}]
    result = json.loads(path.read_text())
    shared: dict[str, Any] = {"program": name, "date": result["environment"]["date"]}
    times = [result.get("wall seconds", result.get("seconds")), None]
    return [
        shared | {"what it tries": what, "trials": trials, "held": held, "seconds": seconds}
        for (what, trials, held), seconds in zip(program.parts(result), times, strict=False)
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run the programs, print the table and write the JSON; 1 if something did not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few trials of each program")
    parser.add_argument("--only", nargs="+", choices=list(PROGRAMS), help="some programs")
    parser.add_argument("--parts", type=Path, help="folder of the programs' own results")
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    options = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.parts or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in options.only or PROGRAMS:
            print(f"{name}: {PROGRAMS[name].what}", flush=True)
            rows += run(name, folder / f"{name}.json", options.quick)
    print("\n" + common.table(rows, COLUMNS))
    broken = [row for row in rows if row["held"] != row["trials"]]
    for row in broken:
        print(f"not held: {row['program']}: {row.get('outcome', 'see its own result')}")
    result = {
        "benchmark": "robustness",
        "environment": common.environment(),
        "quick": options.quick,
        "num_trials": sum(row["trials"] or 0 for row in rows),
        "num_broken": sum((row["trials"] or 1) - row["held"] for row in rows),
        "rows": rows,
    }
    common.write(options.output, result)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
