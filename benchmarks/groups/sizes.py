"""Part `sizes`: coresets of groups by the number of groups and of rows in each, by model.

Each build and each run of NUTS on all rows with all effects is a process of its own. NUTS is ended
after --limit seconds of processor time, and so is lme4; what had not finished by then is told as a
bound.
"""

import json
import resource
import sys
import time
from typing import Any

import jax
import numpy as np
from numpyro.diagnostics import effective_sample_size
from numpyro.handlers import reparam
from numpyro.infer import MCMC, NUTS
from numpyro.infer.reparam import LocScaleReparam

import jaxcoreset as jc
from benchmarks.groups import lme4
from benchmarks.groups.models import BETA, MODELS, SIGMA, TAU, simulate
from jaxcoreset.data.utils import peak_memory

TOL = 0.01
# The kind, the number of groups, and the mean number of rows in each.
CELLS = [
    ("normal", 100, 1000),
    ("normal", 1_000, 50),
    ("normal", 10_000, 10),
    ("Bernoulli", 100, 1000),
    ("Bernoulli", 1_000, 50),
    ("Bernoulli", 10_000, 10),
    ("Bernoulli", 100_000, 5),
    ("Poisson", 100, 200),
    ("Poisson", 1_000, 50),
    ("Poisson", 10_000, 10),
    ("slopes", 100, 200),
    ("slopes", 1_000, 50),
]
QUICK = [("normal", 60, 10)]
# From this number of rows on, effects are sampled as they are, and otherwise standardised.
_CENTRED = 50
_DRAWS = {False: (500, 1000), True: (100, 100)}


def _flat(samples: dict[str, Any]) -> dict[str, np.ndarray]:
    """Draws of the shared parameters by name, one entry for each number."""
    found = {}
    for name, values in sorted(samples.items()):
        if name.startswith("effect"):
            continue
        flat = np.asarray(values, float).reshape(len(values), -1)
        for i, column in enumerate(flat.T):
            found[name if flat.shape[1] == 1 else f"{name}[{i}]"] = column
    return found


def _moments(samples: dict[str, Any]) -> dict[str, Any]:
    flat = _flat(samples)
    return {
        "mean": {name: float(x.mean()) for name, x in flat.items()},
        "sd": {name: float(x.std()) for name, x in flat.items()},
        "least effective": min(float(effective_sample_size(x[None])) for x in flat.values()),
    }


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def build(kind: str, num_groups: int, rows_each: int, quick: bool) -> dict[str, Any]:
    """A coreset, NUTS on it, and the certificate."""
    data = simulate(kind, num_groups, rows_each)
    num_warmup, num_samples = _DRAWS[quick]
    key, nuts_key = jax.random.split(jax.random.key(0))
    settings: dict[str, Any] = {"size": 8, "num_held_out": 200} if quick else {"tol": TOL}
    builder = jc.CoresetBuilder(MODELS[kind], groups="group", progress_bar=False, **settings)
    begin, cpu = time.perf_counter(), _cpu()
    coreset = builder.run(key, *data.args)
    seconds, build_cpu = time.perf_counter() - begin, _cpu() - cpu
    begin = time.perf_counter()
    kernel = NUTS(coreset.model)
    mcmc = MCMC(kernel, num_warmup=num_warmup, num_samples=num_samples, progress_bar=False)
    init = coreset.init_params()
    mcmc.run(nuts_key, *coreset.args, **coreset.kwargs, init_params=init)
    samples = jax.block_until_ready(mcmc.get_samples())
    nuts_seconds = time.perf_counter() - begin
    certificate = jc.certify(coreset, mcmc, num_draws=200, progress_bar=False)
    report = coreset.report
    return {
        "groups kept": len(coreset.indices),
        "rows kept": int(np.bincount(data.group)[coreset.indices].sum()),
        "KL": report.kl,
        "KL of a Gaussian": report.gaussian_kl,
        "certified KL": certificate.kl,
        "integrals": report.integration,
        "KL of the integrals": report.integral_kl,
        "is within": report.is_within_tol,
        "build s": seconds,
        "build CPU s": build_cpu,
        "NUTS s": nuts_seconds,
        "CPU s": _cpu() - cpu,
        "peak MB": (peak_memory() or 0) / 2**20,
        **_moments(samples),
    }


def all_rows(kind: str, num_groups: int, rows_each: int, quick: bool) -> dict[str, Any]:
    """NUTS on all rows with all effects, as they are in large groups and else standardised."""
    data = simulate(kind, num_groups, rows_each)
    num_warmup, num_samples = _DRAWS[quick]
    centred = 1.0 if rows_each >= _CENTRED else 0.0
    model = reparam(MODELS[kind], config={"effect": LocScaleReparam(centred)})
    begin, cpu = time.perf_counter(), _cpu()
    mcmc = MCMC(NUTS(model), num_warmup=num_warmup, num_samples=num_samples, progress_bar=False)
    mcmc.run(jax.random.key(1), *data.args)
    samples = jax.block_until_ready(mcmc.get_samples())
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "CPU s": _cpu() - cpu, **_moments(samples)}


_JOBS: dict[str, Any] = {"build": build, "all_rows": all_rows}


def _child(what: str, cell: tuple, quick: bool, limit: float | None) -> dict[str, Any] | None:
    """What a process of its own finds; None if that takes longer than the limit."""
    if quick:
        return _JOBS[what](*cell, quick)
    job = json.dumps([what, *cell, quick])
    command = [sys.executable, "-m", "benchmarks.groups.sizes", job]
    printed = lme4.within(command, limit)
    return None if printed is None else json.loads(printed.splitlines()[-1])


def measure(cell: tuple[str, int, int], quick: bool, limit: float) -> dict[str, Any]:
    """One cell: the coreset, NUTS on everything, and lme4."""
    kind, num_groups, _ = cell
    found = _child("build", cell, quick, None)
    assert found is not None
    data = simulate(*cell)
    row: dict[str, Any] = {"model": kind, "groups": num_groups, "rows": len(data.y), **found}
    tau = np.atleast_1d(TAU[kind])
    truth = {f"beta[{i}]": float(value) for i, value in enumerate(BETA)}
    truth |= {"tau" if len(tau) == 1 else f"tau[{i}]": float(x) for i, x in enumerate(tau)}
    truth |= {"sigma": SIGMA} if kind == "normal" else {}
    row["simulated with, sd"] = _largest(found, truth)
    row["limit"] = limit
    everything = _child("all_rows", cell, quick, limit)
    row["NUTS on everything"] = everything
    if everything is not None:
        row["mean error, sd"] = _largest(everything, found["mean"])
        ratios = [found["sd"][name] / sd for name, sd in everything["sd"].items()]
        row["sd ratios"] = [min(ratios), max(ratios)]
    row["lme4"] = lme4.estimate(data, limit) if lme4.version() else None
    if row["lme4"] is not None:
        row["lme4 from the mean, sd"] = _largest(found, row["lme4"]["estimates"])
    return row


def _largest(posterior: dict[str, Any], point: dict[str, float]) -> float:
    """The largest distance of a point from posterior means, in standard deviations."""
    mean, sd = posterior["mean"], posterior["sd"]
    return max(abs(point[name] - mean[name]) / sd[name] for name in mean)


if __name__ == "__main__":
    what, *given = json.loads(sys.argv[1])
    print(json.dumps(_JOBS[what](*given)))
