"""Part `time`: builds of the flights in fresh processes, with a proxy and without, in turn."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

import jaxcoreset as jc
from benchmarks.proxy import data

PROXIES = {"None": None, "Taylor": jc.Taylor(), "auto": "auto"}
_REPEATS = 3


def builds(proxy: str, setting: dict[str, Any], num_rows: int | None) -> dict[str, Any]:
    """The first build of this process and the second."""
    case = data.flights(num_rows)
    assert case is not None
    seconds, reports = [], []
    for seed in range(2):
        builder = jc.CoresetBuilder(
            case.model,
            **setting,
            proxy=PROXIES[proxy],  # pyright: ignore[reportArgumentType]
            progress_bar=False,
        )
        begin = time.perf_counter()
        coreset = builder.run(jax.random.key(seed), *case.args)
        seconds.append(time.perf_counter() - begin)
        reports.append(coreset.report)
    report = reports[-1]
    return {
        "cold": seconds[0],
        "warm": seconds[1],
        "rows": report.num_used,
        "stages": report.seconds,
    }


def measure(setting: dict[str, Any], proxies: list[str], quick: bool) -> list[dict[str, Any]]:
    """Medians over fresh processes that alternate, and their ratio to builds without a proxy."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in proxies}
    for _ in range(1 if quick else _REPEATS):
        for name in proxies:
            job = json.dumps([name, setting, 5000 if quick else None])
            command = [sys.executable, "-m", "benchmarks.proxy.timing", job]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise RuntimeError(f"{command} failed: {done.stderr[-2000:]}")
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
            print(f"   {name}: {found[name][-1]}", flush=True)
    rows = []
    for name, several in found.items():
        row: dict[str, Any] = {"proxy": name, "rows": several[0]["rows"]}
        for when in ("cold", "warm"):
            row[when] = statistics.median(one[when] for one in several)
            row[f"all, {when}"] = [one[when] for one in several]
        row["warm stages"] = several[-1]["stages"]
        rows.append(row)
    for row in rows:
        for when in ("cold", "warm"):
            row[f"{when}, ratio"] = row[when] / rows[0][when]
    return rows


def jobs(quick: bool, data_dir: Path | None, only: str | None) -> dict[str, Callable[[], Any]]:
    """What is measured, by name."""
    del data_dir, only
    size = 20 if quick else 100
    found: dict[str, tuple[dict[str, Any], list[str]]] = {
        f"size = {size}": ({"size": size}, ["None", "Taylor", "auto"])
    }
    if not quick:
        found["tol = 0.01"] = ({"tol": 0.01}, ["None", "auto"])
    return {
        name: lambda setting=setting, proxies=proxies: measure(setting, proxies, quick)
        for name, (setting, proxies) in found.items()
    }


if __name__ == "__main__":
    print(json.dumps(builds(*json.loads(sys.argv[1])), default=float))
