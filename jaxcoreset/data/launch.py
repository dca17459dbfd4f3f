"""Starts the processes of one build on a machine, and tells them of each other.

``jaxcoreset launch --processes 4 build.py`` runs four copies of a script, as torchrun does. In the
script, `initialize_processes` comes before anything else of JAX. Under SLURM, Open MPI or on a
cloud's TPUs the launcher is not needed: `jax.distributed` finds the processes by itself there.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import IO, Any

import jax

_COORDINATOR, _COUNT, _INDEX = (
    "JAXCORESET_COORDINATOR",
    "JAXCORESET_PROCESSES",
    "JAXCORESET_PROCESS",
)

_SHUTDOWN = 15


def initialize_processes(**options: Any) -> tuple[int, int]:
    """Let the processes of a build know of each other; to be called before any array is made.

    What ``jaxcoreset launch`` says is taken where there is such; else `jax.distributed.initialize`
    finds out by itself, as it does under SLURM and Open MPI. Calling it again changes nothing.

    Args:
        **options: further arguments of `jax.distributed.initialize`.

    Returns:
        The number of this process, and how many there are.

    Raises:
        ValueError: if neither the launcher nor the cluster says who the processes are.
    """
    if not jax.distributed.is_initialized():
        if _COORDINATOR in os.environ:
            options = {
                "coordinator_address": os.environ[_COORDINATOR],
                "num_processes": int(os.environ[_COUNT]),
                "process_id": int(os.environ[_INDEX]),
                **options,
            }
        # A process that failed does not wait long for the others on its way out.
        jax.distributed.initialize(**{"shutdown_timeout_seconds": _SHUTDOWN, **options})
    return jax.process_index(), jax.process_count()


def add_launch_parser(commands: Any) -> None:
    """Add ``launch`` to the command's parsers."""
    parser = commands.add_parser(
        "launch",
        help="run a script in several processes that build one coreset together",
        description=(
            "Runs copies of a script that build one coreset together, each from its part of the "
            "rows: CoresetBuilder(..., distributed=True). The script calls "
            "jaxcoreset.initialize_processes() first. On several machines, run it on each with its "
            "--node and the first machine's --coordinator."
        ),
    )
    parser.add_argument("--processes", type=int, default=2, help="processes on this machine (2)")
    parser.add_argument("--nodes", type=int, default=1, help="machines (1)")
    parser.add_argument("--node", type=int, default=0, help="this machine's number (0)")
    parser.add_argument(
        "--coordinator", help="host:port of process 0; a free port of this machine if left out"
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=30.0,
        help="seconds that the others have to end by themselves once one has failed (30)",
    )
    parser.add_argument("script", help="a Python script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what it is given")


def run_launch(options: argparse.Namespace) -> int:
    """Run the processes; the exit status is that of the first one that failed, else 0."""
    if options.processes < 1 or not 0 <= options.node < options.nodes:
        print(
            f"jaxcoreset launch: --processes is {options.processes}, --node {options.node} of "
            f"--nodes {options.nodes}; wanted at least one process, and a node's number below "
            "their count.",
            file=sys.stderr,
        )
        return 2
    if options.nodes > 1 and options.coordinator is None:
        print(
            "jaxcoreset launch: several machines need --coordinator, host:port of the first one.",
            file=sys.stderr,
        )
        return 2
    coordinator = options.coordinator or f"127.0.0.1:{_free_port()}"
    command = [sys.executable, options.script, *options.arguments]
    count = options.processes * options.nodes
    first = options.processes * options.node
    running = [
        _start(command, {_COORDINATOR: coordinator, _COUNT: str(count), _INDEX: str(index)})
        for index in range(first, first + options.processes)
    ]
    readers = [
        threading.Thread(target=_relay, args=(process.stdout, f"[{first + at}] "), daemon=True)
        for at, process in enumerate(running)
    ]
    for reader in readers:
        reader.start()
    try:
        status = _wait(running, options.grace)
    except KeyboardInterrupt:
        # Each gets the signal too, writes its checkpoint, and ends.
        _stop(running, signal.SIGINT, options.grace)
        status = 130
    for reader in readers:
        reader.join(timeout=5)
    return status


def _start(command: list[str], variables: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command,
        env={**os.environ, **variables, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def _relay(stream: IO[bytes] | None, prefix: str) -> None:
    """Pass a process's output on, each line with its number."""
    assert stream is not None
    for line in stream:
        sys.stdout.write(prefix + line.decode(errors="replace"))
        sys.stdout.flush()


def _wait(running: "list[subprocess.Popen[bytes]]", grace: float) -> int:
    """Until all have ended, or one has failed and the others had their time."""
    while True:
        codes = [process.poll() for process in running]
        failed = [code for code in codes if code]
        if failed:
            _stop(running, signal.SIGTERM, grace)
            return failed[0] if failed[0] > 0 else 128 - failed[0]
        if all(code == 0 for code in codes):
            return 0
        time.sleep(0.1)


def _stop(running: "list[subprocess.Popen[bytes]]", how: signal.Signals, grace: float) -> None:
    """Wait for the processes that still run, and end those that do not."""
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline and any(process.poll() is None for process in running):
        time.sleep(0.1)
    for process in running:
        if process.poll() is None:
            process.send_signal(how)
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
