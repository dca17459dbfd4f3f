"""Builds on several simulated devices, for tests/data/test_devices.py: prints JSON."""

import json

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from process_program import after_sampling, grouped, hierarchy, model, table

import jaxcoreset as jc
from jaxcoreset import sources

NUM_ROWS = 20_000


def main():
    x, y = table(NUM_ROWS)
    source = sources.batches([(x[:7000], y[:7000]), (x[7000:], y[7000:])], num_rows=NUM_ROWS)

    def mesh(count):
        return Mesh(np.array(jax.devices()[:count]), ("rows",))

    group, of_groups = grouped()
    order = np.random.default_rng(0).permutation(group.size)
    with jax.enable_x64(True):
        read = sources.array(group=group[order], y=of_groups[order]).arrays

    sharding = NamedSharding(mesh(8), PartitionSpec("rows"))
    cases = {
        **{str(count): (mesh(count), (x, y)) for count in (1, 2, 4, 8)},
        "default": (None, (x, y)),
        "source on 4": (mesh(4), source.arrays),
        "sharded by its user": (mesh(8), tuple(jax.device_put((x, y), sharding))),
        "with a proxy on 1": (mesh(1), (x, y)),
        "with a proxy on 8": (mesh(8), (x, y)),
        **{f"groups on {count}": (mesh(count), (group, 90, of_groups)) for count in (1, 8)},
        "groups of a source on 8": (mesh(8), (read["group"], 90, read["y"])),
    }
    found = {}
    for name, (devices, data) in cases.items():
        settings = {"num_draws": 100, "num_held_out": 100, "rounds": 1, "progress_bar": False}
        settings |= {"candidates": jc.Candidates(300, extra_passes=1)}
        if "groups" in name:
            settings |= {"groups": "group", "candidates": None}
        builder = jc.CoresetBuilder(
            hierarchy if "groups" in name else model,
            size=4 if "groups" in name else 6,
            execution=jc.Execution(devices),
            **settings,
            proxy=jc.Taylor() if "proxy" in name else None,
        )
        with jax.enable_x64("groups" in name):
            coreset = builder.run(jax.random.key(0), *data)
        found[name] = {
            "indices": coreset.indices.tolist(),
            "weights": coreset.weights.tolist(),
            "kl": coreset.report.kl,
            "searches": coreset.report.candidate_searches,
            "total": coreset.summary.parts[0].total.tolist(),
        }
        if name in ("1", "8"):
            found[name] |= after_sampling(coreset, *data)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
