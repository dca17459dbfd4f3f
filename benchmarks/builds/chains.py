"""How long NUTS on a coreset takes by each of the ways in which NumPyro can run chains.

    python -m benchmarks.builds.chains [--quick] [--output FILE.json]

Two coresets are built and saved: the Student-t model of `benchmarks.posteriors`, of an expansion of
all rows and very few rows, and a logistic regression of rows alone. Each line is measured in
processes of its own, in turn, medians of them: the seconds from a loaded coreset to 4,000 draws
after 1,000 steps of warmup of each chain, compilation included.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

import jaxcoreset as jc
from benchmarks import common
from benchmarks.posteriors.cases import CASES

COLUMNS = ("coreset", "rows", "chains", "chain_method", "seconds", "processor seconds")
# The number of chains, and NumPyro's `chain_method`.
WAYS = ((1, "sequential"), (4, "sequential"), (4, "vectorized"), (4, "jit_chains"))


def logistic(x: Any, y: Any = None) -> None:
    """A logistic regression."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


MODELS: dict[str, Callable] = {"logistic": logistic, "robust": CASES["robust"].model}
TITLES = {"logistic": "logistic, rows alone", "robust": "Student-t, expansion and rows"}


def build(name: str, num_rows: int, size: int) -> jc.Coreset:
    """One of the coresets.

    Args:
        name: of the model.
        num_rows: how many rows the logistic regression has.
        size: how many of them its coreset keeps.
    """
    settings: dict[str, Any] = {"progress_bar": False}
    if name == "robust":
        args: tuple = CASES[name].make()[0]
        settings["tol"] = 0.01
    else:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(num_rows, 10)).astype(np.float32)
        y = rng.random(num_rows) < 1 / (1 + np.exp(-x @ np.linspace(-1, 1, 10)))
        args = (x, y.astype(np.float32))
        settings |= {"size": size, "proxy": None}
    return jc.CoresetBuilder(MODELS[name], **settings).run(jax.random.key(0), *args)


def once(name: str, path: str, num_chains: int, method: str, num_draws: int) -> dict[str, float]:
    """The seconds of one run, in this process.

    Args:
        name: of the model.
        path: of the saved coreset.
        num_chains: the number of chains.
        method: one of `WAYS`.
        num_draws: of all chains together.
    """
    coreset = jc.load(path, model=MODELS[name])
    start = coreset.init_params(num_chains)
    begin, cpu = time.perf_counter(), time.process_time()
    chain_method: Any = jc.jit_chains if method == "jit_chains" else method
    mcmc = MCMC(
        NUTS(coreset.model),
        num_warmup=num_draws // 4,
        num_samples=num_draws // num_chains,
        num_chains=num_chains,
        chain_method=chain_method,
        progress_bar=False,
    )
    mcmc.run(jax.random.key(1), *coreset.args, **coreset.kwargs, init_params=start)
    jax.block_until_ready(mcmc.get_samples())
    return {
        "seconds": time.perf_counter() - begin,
        "processor seconds": time.process_time() - cpu,
    }


def measure(quick: bool) -> list[dict[str, Any]]:
    """Medians of some rounds, in each of which every way has its turn."""
    names, rounds, num_draws = (list(MODELS), 3, 4000) if not quick else (["logistic"], 1, 40)
    num_rows, size = (500, 10) if quick else (20_000, 500)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            path = f"{folder}/{name}.npz"
            coreset = build(name, num_rows, size)
            coreset.save(path)
            found: dict[tuple[int, str], list[dict[str, float]]] = {way: [] for way in WAYS}
            for _ in range(rounds):
                for way in WAYS:
                    job = json.dumps([name, path, *way, num_draws])
                    command = [sys.executable, "-m", "benchmarks.builds.chains", "--job", job]
                    done = subprocess.run(command, check=True, capture_output=True, text=True)
                    found[way].append(json.loads(done.stdout.splitlines()[-1]))
                    print(f"  {name}, {way}: {found[way][-1]}", flush=True)
            for (chains, method), each in found.items():
                row = {"coreset": TITLES[name], "rows": len(coreset), "chains": chains}
                row |= {"chain_method": method}
                rows.append(row | {x: statistics.median(one[x] for one in each) for x in each[0]})
    return rows


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one small coreset, one round")
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.job is not None:
        print(json.dumps(once(*json.loads(options.job))))
        return
    rows = measure(options.quick)
    print("\n" + common.table(rows, COLUMNS))
    result = {"benchmark": "chains", "environment": common.environment()}
    common.write(options.output, result | {"quick": options.quick, "rows": rows})


if __name__ == "__main__":
    main()
