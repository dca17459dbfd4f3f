"""One process of a distributed build, for `test_processes`: writes what it found as JSON.

process_program.py WHAT                        one process alone
process_program.py WHAT mpirun                 one of those that mpirun started
process_program.py WHAT ADDRESS COUNT INDEX    one of COUNT processes
"""

import json
import os
import sys
import time
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import jaxcoreset as jc

NUM_ROWS = 1 << 14


def model(x, y):
    slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ slopes), obs=y)


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
    """Groups of 1 to 600 rows, in order."""
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(num_groups), np.geomspace(1, 600, num_groups).astype(int))
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


def main(what, *where):
    index, count = 0, 1
    if where == ("mpirun",):
        index, count = jc.initialize_processes()
    elif where:
        index, count = jc.initialize_processes(
            coordinator_address=where[0], num_processes=int(where[1]), process_id=int(where[2])
        )
    if (what == "no file" and index == count - 1) or (what == "no first file" and index == 0):
        np.load("/nowhere/rows.npy")
    if what == "ends" and index == count - 1:
        return
    x, y = table()
    first, last = index * NUM_ROWS // count, (index + 1) * NUM_ROWS // count
    part = x[first:last], y[first:last]
    last_process, has_groups = index == count - 1, "group" in what
    if has_groups:  # which of many alike are chosen depends on the rounding of float32
        jax.config.update("jax_enable_x64", True)
        part = grouped_part(what, index, count)
    if what == "bad rows" and last_process:
        part[1][:] = np.nan
    if what == "other types" and last_process:
        part = part[0], part[1].astype(np.int32)
    if what == "no rows" and last_process:
        part = part[0][:0], part[1][:0]
    if (what == "dies" and last_process) or (what == "first dies" and index == 0):
        # In the middle of the pass over the rows, as a machine would.
        from jaxcoreset.data import rows

        rows.evaluate_blocks = lambda *args, **kwargs: os._exit(9)
    if what == "no mode" and last_process:
        from jaxcoreset.weighting.errors import UnusableWeightingError
        from jaxcoreset.weighting.gaussian import Laplace

        fit = Laplace.fit

        def failing(*args, **kwargs):
            fit(*args, **kwargs)
            raise UnusableWeightingError("rounded otherwise here.")

        Laplace.fit = failing
    builder = jc.CoresetBuilder(
        hierarchy if has_groups else model,
        groups="group" if has_groups else None,
        size=4 if has_groups else 7 if what == "other size" and last_process else 6,
        num_draws=100,
        num_held_out=100,
        candidates=jc.Candidates(500, extra_passes=1),
        execution=jc.Execution(
            processes=jc.Processes(5 if what.endswith("dies") else 120) if count > 1 else None
        ),
        rounds=1,
        progress_bar=False,
        proxy=jc.Taylor() if what == "proxy" else None,
    )
    coreset = builder.run(jax.random.key(0), *part)
    found = {
        "indices": coreset.indices.tolist(),
        "weights": coreset.weights.tolist(),
        "rows": coreset.args[-1].tolist() if has_groups else coreset.args[0].tolist(),
        "kl": coreset.report.kl,
        "num_data": coreset.report.num_data,
        "num_local": len(part[0]),
        "weighting": coreset.report.weighting,
    }
    if what == "build and certify":  # each with draws of its own
        own = coreset.approximation.draws(jax.random.key(index), 200)
        found["certified"] = jc.certify(coreset, own, progress_bar=False).kl
    if what in ("build", "build and certify") and count < 4:
        found |= after_sampling(coreset, *part)
    if has_groups:
        at = {"mu": np.ones(8, np.float32), "tau": np.full(8, 0.7, np.float32)}
        effects = coreset.group_effects(jax.random.key(1), at, num_draws=8)
        found["effects"] = effects["mean"].mean(axis=0).tolist()
    if what == "goes on" and index == 0:
        time.sleep(20)
    if what == "fails after" and index == count - 1:
        raise ValueError("after the build")
    Path(os.environ["FOUND_FOLDER"], f"{index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
