"""Many builds in one process: memory and time of each, and builds in eight threads.

    python -m benchmarks.robustness.builds [--quick] [--output FILE.json]

Parts:

- ``loop``: 100 builds of one model, each from new rows: the resident memory after each, how many of
  the builds' data are still in memory, the time, that of the processors, which other programs on
  the machine change less, and how many programs JAX compiled.
- ``threads``: builds in eight threads at once against the same builds one after the other: how many
  failed, and how many gave another coreset.
"""

import argparse
import concurrent.futures
import gc
import statistics
import time
import weakref
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import jaxcoreset as jc
from benchmarks import common

_THREADS = 8
_COMPILED = "/jax/core/compile/backend_compile_duration"
# Of the loop's builds, those that the table shows.
_SHOWN = (1, 2, 3, 5, 10, 20, 50, 100)


def model(x: Any, y: Any = None) -> None:
    """Logistic regression."""
    slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ slopes), obs=y)


def table(seed: int, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a logistic regression with five slopes of one half."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(num_rows, 5)).astype(np.float32)
    y = generator.random(num_rows) < 1 / (1 + np.exp(-0.5 * x.sum(axis=1)))
    return x, y.astype(np.int32)


def build(seed: int, x: np.ndarray, y: np.ndarray) -> jc.Coreset:
    """A coreset of 20 rows."""
    builder = jc.CoresetBuilder(model, size=20, progress_bar=False, proxy=None)
    return builder.run(jax.random.key(seed), x, y)


def resident() -> float:
    """The resident memory of this process now, in MB; NaN where the system does not tell it."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return float("nan")
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("VmRSS"))


def loop(count: int, num_rows: int) -> dict[str, Any]:
    """Builds one after the other."""
    compiled = [0]

    def count_programs(event: str, duration_secs: float, **_: Any) -> None:
        compiled[0] += event == _COMPILED

    jax.monitoring.register_event_duration_secs_listener(count_programs)
    rows, kept = [], []
    for number in range(count):
        x, y = table(number, num_rows)
        kept.append(weakref.ref(x))
        before, start, start_cpu = compiled[0], time.perf_counter(), time.process_time()
        num_kept = len(build(number, x, y))
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
        del x, y
        gc.collect()
        rows.append(
            {
                "build": number + 1,
                "seconds": seconds,
                "CPU seconds": cpu_seconds,
                "rows kept": num_kept,
                "programs compiled": compiled[0] - before,
                "resident MB": resident(),
                "data in memory": sum(one() is not None for one in kept),
            }
        )
    return {
        "rows of data": num_rows,
        "MB of data": num_rows * 24 / 1e6,
        "MB per build in the second half": _growth(rows),
        "second build, in medians of later ones": _second_build(rows),
        "builds": rows,
    }


def _growth(rows: list[dict[str, Any]]) -> float:
    """The slope of the resident memory over the second half of the builds.

    In the first ones the allocator's arenas still grow.
    """
    later = rows[len(rows) // 2 :]
    if len(later) < 2:
        return float("nan")
    return float(np.polyfit(range(len(later)), [row["resident MB"] for row in later], 1)[0])


def _second_build(rows: list[dict[str, Any]]) -> float:
    """The CPU time of the second build over the median of those after it, which compile nothing."""
    later = [row["CPU seconds"] for row in rows[2:]]
    return rows[1]["CPU seconds"] / statistics.median(later) if later else float("nan")


def threads(count: int, num_rows: int) -> dict[str, Any]:
    """Builds in eight threads at once, and the same ones alone."""
    tables = [table(seed, num_rows) for seed in range(count)]
    alone = [build(seed, *data) for seed, data in enumerate(tables)]
    failed, different = [], 0
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        futures = [pool.submit(build, seed, *data) for seed, data in enumerate(tables)]
        for one, future in zip(alone, futures, strict=True):
            if (error := future.exception()) is not None:
                failed.append(f"{type(error).__name__}: {error}"[:200])
                continue
            other = future.result()
            different += not (
                np.array_equal(one.indices, other.indices)
                and np.array_equal(one.weights, other.weights)
            )
    return {
        "threads": _THREADS,
        "builds": count,
        "failed": len(failed),
        "different": different,
        "errors": failed,
    }


def main(arguments: list[str] | None = None) -> None:
    """Run both parts, print their tables and write the JSON."""
    parser = argparse.ArgumentParser(description="Many builds in one process, and in threads.")
    parser.add_argument("--quick", action="store_true", help="few builds of few rows")
    parser.add_argument("--json", "--output", type=Path, dest="output", help="where the JSON goes")
    options = parser.parse_args(arguments)
    result: dict[str, Any] = {
        "benchmark": "robustness: builds",
        "quick": options.quick,
        "environment": common.environment(),
    }
    result["loop"] = loop(*((5, 5_000) if options.quick else (100, 500_000)))
    shown = [row for row in result["loop"]["builds"] if row["build"] in _SHOWN]
    print(common.table(shown, list(shown[0])))
    growth = result["loop"]["MB per build in the second half"]
    print(f"{growth:.2f} MB per build in the second half")
    ratio = result["loop"]["second build, in medians of later ones"]
    print(f"the second build takes {ratio:.2f} times the CPU seconds of later ones")
    result["threads"] = threads(*((8, 2_000) if options.quick else (92, 20_000)))
    print(common.table([result["threads"]], ["threads", "builds", "failed", "different"]))
    common.write(options.output, result)


if __name__ == "__main__":
    main()
