"""Thirteen faults of the processes of one build: each ends all of them, with the reason, in time.

    python -m benchmarks.robustness.processes [--only FAULT] [--output FILE.json]

A build runs in two processes over loopback, and one of them is at fault: it fails or ends before
the build, in it or after it, is killed, is late, never starts, or has another model, other data or
other settings. A case is held if the other process ends in time and says why, with the status of a
Python error and without a trace of JAX's coordination service, or finishes where nothing keeps it
from that. If the first process is killed, JAX aborts the other one, since the first coordinates.
"""

import argparse
import os
import re
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxcoreset as jc
from benchmarks import common
from benchmarks.robustness import children
from jaxcoreset.data import rows as rows_module

COLUMNS = ("fault", "held", "statuses", "seconds")
_MODULE = "benchmarks.robustness.processes"
# Seconds that a process waits for the other one where that is killed or late, and in other cases.
_SHORT, _LONG = 8.0, 120.0
# The status of a process that SIGKILL ends, and of one that JAX aborts.
_KILLED, _ABORTED = -int(signal.SIGKILL), -int(signal.SIGABRT)


@dataclass(frozen=True)
class Fault:
    """What one process does wrong.

    Attributes:
        said: a pattern in what the other process prints.
        statuses: exit statuses of the process at fault and of the other one; None for any.
        is_first: True if the first process is at fault, which coordinates, not the second.
        timeout: seconds that the processes wait for each other.
    """

    said: str
    statuses: tuple[int | None, int] = (1, 1)
    is_first: bool = False
    timeout: float = _LONG


_FAILED = "ProcessError: another process of the build failed. process "
_DIFFERS = "different settings.*differ in "
FAULTS = {
    "fails before the build": Fault(_FAILED + "1: FileNotFoundError"),
    "first fails before the build": Fault(_FAILED + "0: FileNotFoundError", is_first=True),
    "ends before the build": Fault(_FAILED + "1: it ended", (3, 1)),
    "fails in the model": Fault("ModelError: another process found no starting point"),
    "fails in a pass": Fault(_FAILED + "1: target: OSError: the disk"),
    "fails after the build": Fault("BUILT", (1, 0)),
    "goes on after the build": Fault("BUILT", (0, 0), is_first=True),
    "is killed": Fault("process 1 of 2 did not arrive within 8 s", (_KILLED, 1), timeout=_SHORT),
    "first is killed": Fault("another task died", (_KILLED, _ABORTED), is_first=True),
    "is late": Fault("process 1 of 2 did not arrive within 8 s", (None, 1), timeout=_SHORT),
    "has other columns": Fault("do not have the same kind of arrays|" + _DIFFERS),
    "has another key": Fault(_DIFFERS + "key"),
    "has JAX's x64 on": Fault(_DIFFERS),
}


def child(name: str, port: str, index: str) -> None:
    """One of the two processes."""
    fault = FAULTS[name]
    is_faulty = (index == "0") == fault.is_first
    does = name.removeprefix("first ") if is_faulty else ""
    if does == "has JAX's x64 on":
        jax.config.update("jax_enable_x64", True)
    jc.initialize_processes(
        coordinator_address=f"127.0.0.1:{port}", num_processes=2, process_id=int(index)
    )
    x, y = children.table(3 if does == "has other columns" else 2)
    half = slice(int(index) * children.NUM_ROWS // 2, (int(index) + 1) * children.NUM_ROWS // 2)
    x, y = x[half], y[half].copy()
    if does == "fails before the build":
        np.load("/no/such/rows.npy")
    if does == "ends before the build":
        sys.exit(3)
    if does == "is late":
        time.sleep(3 * _SHORT)
    if does == "fails in the model":
        y[:] = np.nan
    if does in ("fails in a pass", "is killed"):
        _end_in_the_target("kill" if does == "is killed" else "raise")
    builder = jc.CoresetBuilder(
        children.model,
        size=5,
        num_draws=60,
        num_held_out=60,
        candidates=200,
        rounds=1,
        execution=jc.Execution(processes=jc.Processes(fault.timeout)),
        progress_bar=False,
        proxy=None,
    )
    builder.run(jax.random.key(1 if does == "has another key" else 0), x, y)
    if does == "fails after the build":
        raise ValueError("after the build")
    if does == "goes on after the build":
        time.sleep(20)
    print("BUILT", flush=True)


def _end_in_the_target(how: str) -> None:
    """Let the pass for the target raise an error, or kill the process."""

    def end(*args: Any, **kwargs: Any) -> Any:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError("the disk is gone")

    reduce = rows_module.Rows.map_reduce

    def map_reduce(self: Any, *args: Any, what: str, **kwargs: Any) -> Any:
        if what == "target":
            rows_module.evaluate_blocks = end
        return reduce(self, *args, what=what, **kwargs)

    rows_module.Rows.map_reduce = map_reduce


def measure(name: str) -> dict[str, Any]:
    """Run one fault."""
    fault, port = FAULTS[name], str(common.free_port())
    start = time.monotonic()
    started = [children.start(_MODULE, name, port, str(index)) for index in range(2)]
    ended = children.finish(started, 200)
    seconds = time.monotonic() - start
    at_fault, other = ended if fault.is_first else ended[::-1]
    expected, expected_other = fault.statuses
    is_told = re.search(fault.said, other.text.replace("\n", " ")) is not None
    is_clean = "coordination_service" not in other.text or expected_other == _ABORTED
    held = (
        is_told
        and is_clean
        and other.status == expected_other
        and expected in (None, at_fault.status)
        and "STILL RUNNING" not in at_fault.text + other.text
    )
    last = next((line for line in reversed(other.text.splitlines()) if line.strip()), "")
    return {
        "fault": name,
        "held": held,
        "statuses": f"{at_fault.status}, {other.status}",
        "seconds": seconds,
        "outcome": last[:160] if held else (at_fault.text + other.text)[-2000:],
    }


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=list(FAULTS), help="one fault")
    parser.add_argument("--json", "--output", type=Path, dest="output", help="where the JSON goes")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        child(*options.child)
        return
    rows = [measure(name) for name in ([options.only] if options.only else FAULTS)]
    print(common.table(rows, COLUMNS))
    held = sum(row["held"] for row in rows)
    print(f"\n{held} of {len(rows)} held")
    for row in rows:
        if not row["held"]:
            print(f"not held: {row['fault']}: {row['outcome']}")
    result = {"benchmark": "robustness: processes", "environment": common.environment()}
    common.write(options.output, result | {"num_cases": len(rows), "num_held": held, "rows": rows})


if __name__ == "__main__":
    main()
