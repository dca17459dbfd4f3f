"""A plan and then the build in a process of their own, for `test_plan`; prints JSON."""

import json
import sys

import jax
import numpy as np

import jaxcoreset as jc
from jaxcoreset import sources
from tests.models import logistic_model

BATCH = 1 << 15


def rows(num_rows):
    """Batches of as many rows, made as they are read."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH, 4)).astype(np.float32)
    y = (rng.random(BATCH) < 1 / (1 + np.exp(-x.sum(1)))).astype(np.float32)

    def load():
        for number, first in enumerate(range(0, num_rows, BATCH)):
            count = min(BATCH, num_rows - first)
            yield x[:count] * np.float32(1 + 0.1 * np.sin(number)), y[:count]

    return sources.batches(load, num_rows=num_rows)


def main(num_rows):
    arrays = rows(num_rows).arrays
    builder = jc.CoresetBuilder(
        logistic_model,
        size=20,
        num_draws=200,
        num_held_out=200,
        candidates=jc.Candidates(extra_passes=1),
        progress_bar=False,
        proxy=None,
    )
    plan = builder.plan(*arrays)
    report = builder.run(jax.random.key(0), *arrays).report
    found = {
        "text": str(plan),
        "planned": plan.host_bytes,
        "peak": report.peak_memory,
        "planned_passes": plan.passes,
        "passes": report.passes,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]))
