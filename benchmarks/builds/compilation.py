"""How long a user waits for XLA's compiler, and what shortens it on a CPU.

    python -m benchmarks.builds.compilation [--quick] [--output FILE.json]

Each line is measured in processes of their own, in turn, medians of them:

- ``demo``: the seconds that the demonstration of the package's command takes, from start to end;
- ``program``: the seconds in which the default solver's sweep over all k up to 100, on 500 rows and
  500 draws, is traced and compiled;
- ``run``: the seconds of that sweep when it is;
- ``batch``, ``batch run``: the same of 20 such problems, shared out among the cores, each of which
  is a device.

Variants: XLA as it comes; with its older emitters of kernels, which jaxcoreset's own tests use; and
with JAX's cache of programs on disk, when it is empty and when it is not.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import OLDER_EMITTERS, common

COLUMNS = ("variant", "demo", "program", "run", "batch", "batch run")

_PROGRAM = """
import json, sys, time
import jax, jax.numpy as jnp
import jaxcoreset as jc

size, largest, num_problems, num_devices = map(int, sys.argv[1:])
jax.config.update("jax_num_cpu_devices", num_devices)
linear = jax.random.normal(jax.random.key(0), (num_problems, size, 40))
linear = linear @ jax.random.normal(jax.random.key(1), (40, size)) / 40**0.5
problems = [jc.CoresetProblem(atoms) for atoms in linear - linear**2]
ks = jnp.arange(1, largest + 1)
sweep = lambda problem: jc.sweep(problem, ks)
if num_problems == 1:
    problem = problems[0]
else:
    along = jax.sharding.PartitionSpec("problems")
    mesh = jax.make_mesh((num_devices,), ("problems",))
    problem = jax.tree.map(lambda *each: jnp.stack(each), *problems)
    problem = jax.device_put(problem, jax.sharding.NamedSharding(mesh, along))
    sweep = jax.shard_map(
        jax.vmap(sweep), mesh=mesh, in_specs=along, out_specs=along, check_vma=False
    )
jax.block_until_ready((problem, ks))
start = time.perf_counter()
sweep = jax.jit(sweep).lower(problem).compile()
spent = time.perf_counter() - start
warm = []
for _ in range(4):
    start = time.perf_counter()
    jax.block_until_ready(sweep(problem))
    warm.append(time.perf_counter() - start)
print(json.dumps({"compiled": spent, "run": min(warm)}))
"""
# Problems of a batch.
_BATCH = 20


def _variables(variant: str, cache: str) -> dict[str, str]:
    """The variables of a variant's processes; options for XLA that the user has set are kept."""
    variables = dict(os.environ)
    variables.pop("JAX_COMPILATION_CACHE_DIR", None)
    if variant == "older emitters":
        flags = f"{variables.get('XLA_FLAGS', '')} {OLDER_EMITTERS}"
        variables["XLA_FLAGS"] = flags.strip()
    if variant.startswith("cache"):
        variables["JAX_COMPILATION_CACHE_DIR"] = cache
        variables["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
    return variables


def _demo(variables: dict[str, str], size: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "jaxcoreset", "demo", "--no-progress"]
        command += ["--size", str(size), "--out", folder]
        start = time.perf_counter()
        subprocess.run(command, env=variables, check=True, capture_output=True)
        return {"demo": time.perf_counter() - start}


def _program(
    variables: dict[str, str], size: int, largest: int, num_problems: int = 1, num_devices: int = 1
) -> dict[str, float]:
    """Seconds in which a sweep is compiled, and those it runs for.

    Args:
        variables: of the process.
        size: rows and draws of a problem.
        largest: the sweep is over all k from 1 to this.
        num_problems: how many problems are solved.
        num_devices: among which they are shared out.
    """
    command = [sys.executable, "-c", _PROGRAM]
    command += map(str, (size, largest, num_problems, num_devices))
    done = subprocess.run(command, env=variables, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    names = ("program", "run") if num_problems == 1 else ("batch", "batch run")
    return dict(zip(names, (found["compiled"], found["run"]), strict=True))


def measure(quick: bool) -> list[dict[str, Any]]:
    """Medians of some rounds, in each of which every variant has its turn."""
    rounds, demo_size, size, largest = (1, 20, 100, 10) if quick else (3, 250, 500, 100)
    cores = common.num_cores()
    num_problems = _BATCH - _BATCH % cores
    variants = ("as it comes", "older emitters", "cache, empty", "cache, filled")
    found: dict[str, dict[str, list[float]]] = {variant: {} for variant in variants}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            for variant in variants:
                variables = _variables(variant, cache)
                row = _demo(variables, demo_size) | _program(variables, size, largest)
                row |= _program(variables, size, largest, num_problems, cores)
                for what, spent in row.items():
                    found[variant].setdefault(what, []).append(spent)
                print(f"  {variant}: {row}", flush=True)
    return [
        {"variant": variant} | {what: statistics.median(each) for what, each in row.items()}
        for variant, row in found.items()
    ]


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, one round")
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    options = parser.parse_args(arguments)
    rows = measure(options.quick)
    print("\n" + common.table(rows, COLUMNS))
    result = {"benchmark": "compilation", "environment": common.environment()}
    common.write(options.output, result | {"quick": options.quick, "rows": rows})


if __name__ == "__main__":
    main()
