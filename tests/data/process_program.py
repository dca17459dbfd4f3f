"""One process of several builds in a row, for `test_processes`: writes what it found as JSON.

python -m tests.data.process_program WHAT,...                        one process alone
python -m tests.data.process_program WHAT,... mpirun                 one of those of mpirun
python -m tests.data.process_program WHAT,... ADDRESS COUNT INDEX    one of COUNT processes

With "" as the address, JAX takes it from its variable.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pyarrow as pa
import pyarrow.parquet as pq

import jaxcoreset as jc
from jaxcoreset import sources
from jaxcoreset.data import rows
from jaxcoreset.weighting import auto
from jaxcoreset.weighting.errors import UnusableWeightingError
from tests.models import logistic_model

NUM_ROWS = 3 << 12


def table(num_rows=NUM_ROWS):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, 3)).astype(np.float32)
    y = (rng.random(num_rows) < 1 / (1 + np.exp(-x @ np.ones(3)))).astype(np.float32)
    return x, y


def hierarchy(group, num_groups, y):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    with numpyro.plate("groups", num_groups):
        mean = numpyro.sample("mean", dist.Normal(mu, tau))
    with numpyro.plate("rows", group.shape[0]):
        numpyro.sample("y", dist.Normal(mean[group], 0.5), obs=y)


def grouped(num_groups=90):
    """Groups of 1 to 60 rows, in order."""
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(num_groups), np.geomspace(1, 60, num_groups).astype(int))
    y = rng.normal(1, 0.7, num_groups)[group] + 0.5 * rng.normal(size=group.size)
    return group, y.astype(np.float32)


def grouped_part(what, index, count, num_groups=90):
    """The groups of one process, in the arguments of `hierarchy`."""
    group, y = grouped(num_groups)
    first, last = index * num_groups // count, (index + 1) * num_groups // count
    if what == "divided group":  # labels that are no numbers from 0 on, so that they tell
        mine = (group >= first) & (group <= last)
        names, own = 10 * group[mine], y[mine]
        return names, np.unique(names).size, own
    mine = (group >= first) & (group < last)
    return group[mine] - first, last - first, y[mine]


def after_sampling(coreset, x, y):
    """Leave-one-out over the rows of all processes, and predictions of those of this one."""
    draws = coreset.approximation.draws(jax.random.key(5), 200)
    settings = {"num_draws": None, "progress_bar": False}
    whole = jc.loo(coreset, draws, **settings)
    part = jc.loo(coreset, draws, subsample=2000, key=jax.random.key(6), **settings)
    given = {"key": jax.random.key(7), "quantiles": (), **settings}
    predicted = jc.predict(coreset, draws, x, y, **given)
    return {
        "loo": [float(one.elpd_loo if "elpd_loo" in one else one.elpd) for one in (whole, part)],
        "num_predicted": len(predicted.mean["y"]),
        "num_loo": int(whole.pareto_k.size),
        "predicted": np.asarray(predicted.mean["y"]).tolist(),
    }


def listening(port):
    """The addresses where Linux lists this port as open."""
    texts = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
    lines = [line.split() for text in texts for line in text.splitlines()]
    found = [words[1].split(":") for words in lines if words[3] == "0A"]
    return [address for address, at in found if int(at, 16) == port]


def start(where):
    """The number of this process, that of all processes, and what was found on the way."""
    if where == ("mpirun",):
        return *jc.initialize_processes(), {}
    if not where:
        try:
            jc.initialize_processes()
        except ValueError as error:
            return 0, 1, {"nothing started": {"error": str(error)}}
    given = {"coordinator_address": where[0]} if where[0] else {}
    index, count = jc.initialize_processes(
        num_processes=int(where[1]), process_id=int(where[2]), **given
    )
    address = where[0] or os.environ["JAX_COORDINATOR_ADDRESS"]
    is_listed = index == 0 and Path("/proc/net/tcp").is_file()
    return index, count, {"listens": listening(int(address.split(":")[1])) if is_listed else []}


def part_of(what, index, count):
    """The rows of one process, some of them as they should not be."""
    if "group" in what:
        return grouped_part(what, index, count)
    if what == "other categories":
        path = Path(tempfile.mkdtemp(), "part.parquet")
        categories = np.repeat([["AA", "UA"], ["B6", "UA"]][index], 50)
        pq.write_table(pa.table({"a": np.arange(100.0), "carrier": categories}), path)
        arrays = sources.parquet(path, x=["a"], y="carrier", categories=["carrier"]).arrays
        return arrays["x"], arrays["y"]
    x, y = table()
    own = slice(index * NUM_ROWS // count, (index + 1) * NUM_ROWS // count)
    x, y = x[own], y[own]
    if index == count - 1:
        if what == "bad rows":
            y[:] = np.nan
        if what == "other types":
            y = y.astype(np.int32)
        if what == "no rows":
            x, y = x[:0], y[:0]
    return x, y


def die(*args, **kwargs):
    os._exit(9)


class LaplaceInFirst(jc.Laplace):
    """It fails in the last process, which rounds otherwise."""

    def fit(self, likelihood, key, **options):
        found = super().fit(likelihood, key, **options)
        if jax.process_index() > 0:
            raise UnusableWeightingError("rounded otherwise here.")
        return found


def ways(likelihood):
    """Those of `AutoWeighting`, with short chains."""
    yield LaplaceInFirst()
    yield jc.SubsampleNUTS(num_rows=300, num_warmup=200, num_samples=200, num_chains=2)


def builder_of(has_groups, **settings):
    """A builder of few rows or groups, with few draws."""
    unit = {"groups": "group", "size": 4} if has_groups else {"size": 6}
    few = {"num_draws": 100, "num_held_out": 100, "rounds": 1, "progress_bar": False}
    return jc.CoresetBuilder(hierarchy if has_groups else logistic_model, **unit | few | settings)


def rows_of(coreset):
    return {
        "indices": coreset.indices.tolist(),
        "weights": coreset.weights.tolist(),
        "kl": coreset.report.kl,
    }


def build(what, index, count):
    has_groups, is_last = "group" in what, index == count - 1
    part = part_of(what, index, count)
    patches = contextlib.ExitStack()
    if (what == "dies" and is_last) or (what == "first dies" and index == 0):
        # In the middle of the pass over the rows, as a machine would.
        patches.enter_context(mock.patch.object(rows, "evaluate_blocks", die))
    if what == "no mode":
        patches.enter_context(mock.patch.object(auto, "_ways", ways))
    processes = jc.Processes(5 if what.endswith("dies") else 120) if count > 1 else None
    builder = builder_of(
        has_groups,
        candidates=jc.Candidates(500, extra_passes=1),
        execution=jc.Execution(processes=processes),
        proxy=jc.Taylor() if what == "proxy" else None,
        **({"size": 7} if what == "other size" and is_last else {}),
    )
    # Which of many groups that are alike are chosen depends on the rounding of float32; and without
    # a mode in float32 the builder would start again in float64.
    with patches, jax.enable_x64(has_groups or what == "no mode"):
        coreset = builder.run(jax.random.key(0), *part)
        found = rows_of(coreset) | {
            "rows": coreset.args[-1 if has_groups else 0].tolist(),
            "num_data": coreset.report.num_data,
            "num_local": len(part[0]),
            "weighting": coreset.report.weighting,
        }
        if what == "build and more":
            # Each process has draws of its own.
            own = coreset.approximation.draws(jax.random.key(index), 200)
            found["certified"] = jc.certify(coreset, own, progress_bar=False).kl
            found |= after_sampling(coreset, *part)
        if has_groups:
            # Each process has shared parameters of its own; those of the first one count.
            at = {"mu": np.full(8, 1 + index, np.float32), "tau": np.full(8, 0.7, np.float32)}
            effects = coreset.group_effects(jax.random.key(1), at, num_draws=8)
            found["effects"] = effects["mean"].mean(axis=0).tolist()
    return found


def leave(what, index):
    """How a process ends, or makes the other ones wait, before a build or after it."""
    if what == "first waits" and index == 0:
        time.sleep(20)  # longer than JAX waits at the end
    if (what, index) in (("first fails", 0), ("others end", 2)):
        np.load("/nowhere/rows.npy")
    if (what, index) == ("others end", 1):
        sys.exit()


def main(names, *where):
    index, count, found = start(where)
    for what in names.split(","):
        if what in ("first waits", "first fails", "others end"):
            leave(what, index)
            continue
        began = time.monotonic()
        try:
            found[what] = build(what, index, count)
        except Exception as error:
            found[what] = {"error": f"{type(error).__name__}: {error}"}
        found[what]["seconds"] = time.monotonic() - began
        Path(os.environ["FOUND_FOLDER"], f"{index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
