"""What a coreset's warm start saves NUTS on all rows: warm-up iterations and gradients.

    python -m benchmarks.builds.warm_start [--rows 20000] [--warm-up 1000] [--output FILE.json]

The flights data, or a random subset of `--rows` of them. "cold" is NumPyro's NUTS with its
defaults; "cold, dense" the same with a dense metric to adapt; "warm" starts from
``coreset.warm_start(mcmc)`` after NUTS on the coreset and adapts its step size only, for
`--short-warm-up` iterations. Gradients are leapfrog steps, each a pass over the rows; those of NUTS
on the coreset are a pass over the coreset only, and stand in "coreset gradients" as what they come
to in passes over all rows. The least effective sample size per thousand gradients says whether the
metric is as good as one adapted for long.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS

import jaxcoreset as jc
from benchmarks import common
from jaxcoreset.command.flights import late_arrival, load_flights

_COLUMNS = (
    "method",
    "warm-up",
    "warm-up gradients",
    "sampling gradients",
    "least ESS",
    "ESS per 1000",
    "step size",
    "accepted",
    "error in sd",
    "seconds",
)


def chain(
    name: str, kernel: NUTS, num_warmup: int, num_samples: int, args: tuple, init_params: Any = None
) -> tuple[dict[str, Any], np.ndarray, MCMC]:
    """One chain: a row of the table, its draws, and the sampler."""
    start = time.perf_counter()
    mcmc = MCMC(kernel, num_warmup=num_warmup, num_samples=num_samples, progress_bar=False)
    fields = ("num_steps", "accept_prob")
    mcmc.warmup(
        jax.random.key(1), *args, extra_fields=fields, collect_warmup=True, init_params=init_params
    )
    warm_up = int(np.sum(mcmc.get_extra_fields()["num_steps"]))
    assert mcmc.post_warmup_state is not None
    mcmc.run(mcmc.post_warmup_state.rng_key, *args, extra_fields=fields)
    return _row(name, num_warmup, warm_up, mcmc, start)


def _row(
    name: str, num_warmup: int, warm_up: int, mcmc: MCMC, start: float
) -> tuple[dict[str, Any], np.ndarray, MCMC]:
    assert mcmc.last_state is not None
    extra, draws = mcmc.get_extra_fields(), np.asarray(mcmc.get_samples()["beta"], np.float64)
    gradients = int(np.sum(extra["num_steps"]))
    least = float(np.min(effective_sample_size(draws[None])))
    row = {
        "method": name,
        "warm-up": num_warmup,
        "warm-up gradients": warm_up,
        "sampling gradients": gradients,
        "least ESS": least,
        "ESS per 1000": 1000 * least / gradients,
        "step size": float(mcmc.last_state.adapt_state.step_size),
        "accepted": float(np.mean(extra["accept_prob"])),
        "seconds": time.perf_counter() - start,
    }
    print(f"{name}: {row['seconds']:.0f} s", flush=True)
    return row, draws, mcmc


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, help="a random subset of so many flights; all of them")
    parser.add_argument("--size", type=int, default=250, help="rows of the coreset")
    parser.add_argument("--warm-up", type=int, default=1000, help="of the cold chains")
    parser.add_argument("--short-warm-up", type=int, default=50, help="of the warm chain")
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    options = parser.parse_args(arguments)
    features, late, _ = load_flights()
    if options.rows is not None:
        rows = np.random.default_rng(0).choice(len(late), options.rows, replace=False)
        features, late = features[np.sort(rows)], late[np.sort(rows)]
    args = (jax.numpy.asarray(features), jax.numpy.asarray(late))
    print(f"{len(late):,} flights")
    start = time.perf_counter()
    coreset = jc.CoresetBuilder(late_arrival, options.size, proxy=None).run(
        jax.random.key(0), features, late
    )
    build = time.perf_counter() - start
    small, _, mcmc = chain("on the coreset", NUTS(coreset.model), 1000, 1000, coreset.args)
    certificate = jc.certify(coreset, mcmc)
    print(certificate)
    ws = coreset.warm_start(mcmc)
    settings = [
        ("cold", NUTS(late_arrival), options.warm_up, None),
        ("cold, dense", NUTS(late_arrival, dense_mass=True), options.warm_up, None),
        ("warm", ws.kernel(late_arrival), options.short_warm_up, ws.init_params),
        ("warm, no warm-up", ws.kernel(late_arrival, adapt_step_size=False), 0, ws.init_params),
    ]
    found = []
    for name, kernel, num_warmup, init_params in settings:
        found.append(
            chain(name, kernel, num_warmup, options.samples, args, init_params)
            if num_warmup
            else _without_warm_up(name, kernel, options.samples, args, init_params)
        )
    full = coreset.approximation
    assert full is not None
    for row, draws, _ in found:
        row["error in sd"] = float(np.max(np.abs(draws.mean(0) - full.mode) / full.sd))
    share = len(coreset) / len(late)
    gradients = (small["warm-up gradients"] + small["sampling gradients"]) * share
    table = [row for row, _, _ in found]
    print("\n" + common.table(table, _COLUMNS))
    print(f"coreset gradients: {gradients:.0f} in passes over all rows; built in {build:.1f} s")
    common.write(
        options.output,
        {
            "benchmark": "warm_start",
            "rows": len(late),
            "size": len(coreset),
            "environment": common.environment(),
            "build seconds": build,
            "certificate": certificate.scalars(),
            "on the coreset": small | {"coreset gradients": gradients},
            "results": table,
        },
    )


def _without_warm_up(
    name: str, kernel: NUTS, num_samples: int, args: tuple, init_params: Any
) -> tuple[dict[str, Any], np.ndarray, MCMC]:
    start = time.perf_counter()
    mcmc = MCMC(kernel, num_warmup=0, num_samples=num_samples, progress_bar=False)
    fields = ("num_steps", "accept_prob")
    mcmc.run(jax.random.key(1), *args, extra_fields=fields, init_params=init_params)
    return _row(name, 0, 0, mcmc, start)


if __name__ == "__main__":
    main()
