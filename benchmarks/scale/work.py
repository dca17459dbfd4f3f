"""One measurement of `benchmarks.scale`, in a process of its own: so is its peak memory.

    python -m benchmarks.scale.work '{"what": "build", "rows": 200000, ...}'

Prints a line that begins with FOUND and goes on as JSON. `measure` runs it from another process.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_MARK = "FOUND "
# Rows of a block of the plain loop: on two cores the fastest of 128 to 2,048 at 2,000 draws.
_PLAIN_BLOCK = 512


def measure(
    job: Mapping[str, Any], *, devices: int = 1, processes: int | None = None
) -> dict[str, Any]:
    """Run a job in a fresh process, or in several that know of each other.

    Args:
        job: "what", "build" or the name of a plain loop, and its sizes.
        devices: how many devices the host is to make believe that it has.
        processes: the number of processes, each with its part of the rows; if left out, one that
            knows of no others.

    Returns:
        What the process found, or the first of several; "peak MB" being the largest.

    Raises:
        RuntimeError: if it failed; the message has what it printed.
    """
    from benchmarks.common import free_port  # not at the top, as it imports JAX

    flags = f"--xla_force_host_platform_device_count={devices}" if devices > 1 else ""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    variables = {"XLA_FLAGS": flags, "PYTHONPATH": path}
    command = [sys.executable, "-m", "benchmarks.scale.work"]
    port = free_port()
    each: list[dict[str, Any]] = (
        [{}]
        if processes is None
        else [
            {
                "coordinator_address": f"127.0.0.1:{port}",
                "num_processes": processes,
                "process_id": i,
            }
            for i in range(processes)
        ]
    )
    start = time.perf_counter()
    running = [
        subprocess.Popen(
            [*command, json.dumps({**job, "process": one})],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **variables},
        )
        for one in each
    ]
    texts = [one.communicate()[0] for one in running]
    found = [
        json.loads(line.partition(_MARK)[2])
        for text in texts
        for line in text.splitlines()
        if _MARK in line
    ]
    codes = [one.returncode for one in running]
    if any(codes) or not found:
        raise RuntimeError(f"{job} ended with {codes}:\n{''.join(texts)}")
    peaks = [one["peak MB"] for one in found]
    peak = None if None in peaks else max(peaks)
    return {**found[0], "peak MB": peak, "seconds, whole process": time.perf_counter() - start}


def build(job: Mapping[str, Any]) -> dict[str, Any]:
    """A coreset of a table that is read in batches; of its part, where there are processes."""
    import jax

    import jaxcoreset as jc
    from benchmarks.scale.data import Table, logistic
    from jaxcoreset.data.processes import BARRIERS

    index, count = 0, 1
    if job.get("process"):
        index, count = jc.initialize_processes(**job["process"])
    first, last = (job["rows"] * at // count for at in (index, index + 1))
    table = Table(last - first, job["width"], first)
    mesh = None
    if "mesh" in job:
        mesh = jax.sharding.Mesh(jax.local_devices()[: job["mesh"]], ("rows",))
    builder = jc.CoresetBuilder(
        logistic,
        size=job["size"],
        num_draws=job["draws"],
        num_held_out=job["held out"],
        rounds=1,
        candidates=jc.Candidates(extra_passes=job.get("pricing passes", 0)),
        execution=jc.Execution(mesh, processes=jc.Processes() if count > 1 else None),
        progress_bar=False,
        proxy=None,
    )
    clock = _Clock()
    coreset = builder.run(jax.random.key(0), *table.source().arrays)
    found, report = clock.read(), coreset.report
    return {
        **found,
        "stages": report.seconds,
        "passes": report.passes,
        "indices": coreset.indices.tolist(),
        "weights": coreset.weights.tolist(),
        "relative error": report.relative_error,
        "held-out error": report.held_out_error,
        "estimated KL": report.kl,
        "devices": len(jax.local_devices()) if mesh is None else mesh.size,
        "processes": count,
        "meetings": next(BARRIERS),
    }


def exchange(job: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds of one exchange of as many numbers as a sum over the rows has."""
    import numpy as np

    import jaxcoreset as jc
    from jaxcoreset.data.processes import DistributedProcesses

    jc.initialize_processes(**job["process"])
    processes = DistributedProcesses()
    state = {"total": np.zeros(job["draws"] + job["held out"])}
    processes.gather(state)  # compiled
    clock = _Clock()
    for _ in range(job["repeats"]):
        processes.gather(state)
    found = clock.read()
    return {**found, "seconds each": found["seconds"] / job["repeats"]}


def plain(job: Mapping[str, Any]) -> dict[str, Any]:
    """The log-likelihoods' sum at as many draws, by a loop that does nothing else.

    "NumPyro's formula" is `dist.Bernoulli`'s own; "short formula" leaves out its care for infinite
    logits and for responses that are neither 0 nor 1.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np
    import numpyro.distributions as dist

    from benchmarks.scale.data import BATCH, Table

    rows, width, num_draws = job["rows"], job["width"], job["draws"] + job["held out"]
    draws = 0.1 * jax.random.normal(jax.random.key(0), (num_draws, width))

    def numpyro_formula(logits: jax.Array, y: jax.Array) -> jax.Array:
        return dist.Bernoulli(logits=logits).log_prob(y)

    def short_formula(logits: jax.Array, y: jax.Array) -> jax.Array:
        return y * logits - jnp.maximum(logits, 0) - jnp.log1p(jnp.exp(-jnp.abs(logits)))

    formula: Callable = numpyro_formula if job["what"] == "NumPyro's formula" else short_formula

    @jax.jit
    def sums(draws: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        def block(rows: tuple[jax.Array, jax.Array]) -> jax.Array:
            logits = jnp.matmul(rows[0], draws.T, precision="highest")
            return jnp.sum(formula(logits, rows[1][:, None]), axis=0)

        blocks = x.reshape(-1, _PLAIN_BLOCK, width), y.reshape(-1, _PLAIN_BLOCK)
        return jax.lax.map(block, blocks)

    zeros = np.zeros((BATCH, width), np.float32), np.zeros(BATCH, np.float32)
    jax.block_until_ready(sums(draws, *zeros))  # compiled
    total, pending = np.zeros(num_draws), None
    clock = _Clock()
    for x, y in Table(rows, width):
        spare = -len(y) % _PLAIN_BLOCK  # rows of zeros, of the last batch only
        x = np.pad(x, ((0, spare), (0, 0))) if spare else x
        values = sums(draws, x, np.pad(y, (0, spare)) if spare else y)
        if pending is not None:
            total += np.asarray(pending).sum(axis=0, dtype=np.float64)
        pending = values
    total += np.asarray(pending).sum(axis=0, dtype=np.float64)
    assert np.isfinite(total).all()
    return clock.read()


def generate(job: Mapping[str, Any]) -> dict[str, Any]:
    """The table made, and read through the checks of a source, with nothing done to it."""
    from benchmarks.scale.data import Table

    clock = _Clock()
    for _ in Table(job["rows"], job["width"]):
        pass
    made = clock.read()
    for _ in Table(job["rows"], job["width"]).source().batches():
        pass
    both = clock.read()
    return {
        **both,
        "seconds": both["seconds"] - made["seconds"],
        "seconds to make": made["seconds"],
    }


class _Clock:
    """Wall and processor seconds since it was made, and the process's peak memory."""

    def __init__(self) -> None:
        self._wall, self._processor = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, Any]:
        return {
            "seconds": time.perf_counter() - self._wall,
            "processor seconds": time.process_time() - self._processor,
            "peak MB": _peak_megabytes(),
        }


def _peak_megabytes() -> float | None:
    """The most memory of this process, as Linux has it; None elsewhere.

    `resource.getrusage` counts what the process that started this one held at that moment.
    """
    status = Path("/proc/self/status")
    if not status.is_file():
        return None
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
    return int(found[1]) * 1024 / 1e6 if found else None


def main() -> None:
    job = json.loads(sys.argv[1])
    run = {"build": build, "generate": generate, "exchange": exchange}.get(job["what"], plain)
    print(_MARK + json.dumps(run(job)), flush=True)


if __name__ == "__main__":
    main()
