"""Part `wide`: tables with a hundred parameters and more."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

import jaxcoreset as jc
from benchmarks.proxy import data
from benchmarks.proxy.data import Case
from benchmarks.proxy.sweep import Sweep, cells
from jaxcoreset.likelihood.precision import Float32Error

CASES: dict[str, Callable[..., Case]] = {
    "logistic": data.wide_logistic,
    "Poisson": data.wide_poisson,
    "Student-t": data.wide_robust,
}
# The builds of which the time is taken in fresh processes.
_BUILDS = ("rows alone", "proxy + rows")


def measure(make: Callable[..., Case], quick: bool) -> dict[str, Any]:
    """Errors against size, and the seconds of builds in fresh processes."""
    case = make(1000, 20) if quick else make()
    ks = [5, 20] if quick else [10, 25, 100, 250]
    try:
        sweep = Sweep(case, max(ks), num_judging=500 if quick else 2000)
        curves = sweep.curves()
    except Float32Error as error:  # as the builder does
        print(f"   in float64: {error}", flush=True)
        with jax.enable_x64(True):
            sweep = Sweep(case, max(ks), num_judging=500 if quick else 2000)
            curves = sweep.curves()
    found: dict[str, Any] = {
        "data": case.name,
        "n": case.num_rows,
        "parameters": sweep.num_params,
        "cells": cells(case, curves, ks),
        "expansion alone": curves.none,
        "seconds": curves.seconds,
    }
    for cell in found["cells"]:
        print(f"   {cell}", flush=True)
    return found


def built(make: str, num_rows: int, num_columns: int, size: int) -> list[dict[str, Any]]:
    """Builds of a wide table, each in a fresh process."""
    return [_in_fresh_process([make, num_rows, num_columns, size, proxy]) for proxy in _BUILDS]


def _in_fresh_process(job: list[Any]) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.proxy.wide", json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{command} failed: {done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"   {found}", flush=True)
    return found


def build(make: str, num_rows: int, num_columns: int, size: int, proxy: str) -> dict[str, Any]:
    """One build: seconds, peak memory and the estimated error."""
    case = CASES[make](num_rows, num_columns)
    builder = jc.CoresetBuilder(
        case.model,
        size,
        # After a second round at D = 500 the draws are far from the posterior.
        rounds=1,
        proxy=None if proxy == _BUILDS[0] else jc.Taylor(),
        progress_bar=False,
    )
    begin = time.perf_counter()
    coreset = builder.run(jax.random.key(0), *case.args)
    spent = time.perf_counter() - begin
    report = coreset.report
    memory = report.peak_memory
    return {
        "data": case.name,
        "n": case.num_rows,
        "build": proxy,
        "rows": len(coreset),
        "estimated KL": report.kl,
        "Gaussian": report.gaussian_kl,
        "seconds": spent,
        "stages": report.seconds,
        "peak MB": None if memory is None else round(memory / 1e6),
    }


def jobs(quick: bool, data_dir: Path | None, only: str | None) -> dict[str, Callable[[], Any]]:
    """What is measured, by name."""
    del data_dir, only
    found: dict[str, Callable[[], Any]] = {
        name: lambda make=make: measure(make, quick) for name, make in CASES.items()
    }
    sizes = (1000, 20, 10) if quick else (100_000, 120, 100)
    found["builds, D = 120"] = lambda: built("logistic", *sizes)
    more = (1000, 30, 10) if quick else (20_000, 500, 100)
    found["builds, D = 500"] = lambda: built("logistic", *more)
    return found


if __name__ == "__main__":
    print(json.dumps(build(*json.loads(sys.argv[1])), default=float))
