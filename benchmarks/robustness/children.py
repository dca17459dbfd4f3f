"""Small builds in processes of their own, for the benchmarks that fail and kill them."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist

NUM_ROWS = 4096


def model(x: Any, y: Any) -> None:
    """Linear regression with known noise."""
    slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ slopes, 1.0), obs=y)


def table(num_columns: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a linear regression."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_ROWS, num_columns)).astype(np.float32)
    return x, (x.sum(axis=1) + rng.normal(size=NUM_ROWS)).astype(np.float32)


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit status, less than zero for a signal, and what it printed."""

    status: int
    text: str


def start(module: str, *arguments: str, **environment: str) -> subprocess.Popen:
    """Start a module as a process on the CPU."""
    return subprocess.Popen(
        [sys.executable, "-m", module, "--child", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
    )


def finish(processes: Sequence[subprocess.Popen], timeout: float) -> list[Ended]:
    """Wait for all processes; those that still run after the timeout are killed, see `text`."""
    deadline, ended = time.monotonic() + timeout, []
    for process in processes:
        try:
            text, _ = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            text = process.communicate()[0] + "\nSTILL RUNNING"
        ended.append(Ended(process.returncode, text))
    return ended
