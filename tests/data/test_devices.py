"""The same coreset on one, four and eight devices, from memory and from a source."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxcoreset as jc
from jaxcoreset.data.rows import PassContext, Rows
from jaxcoreset.likelihood.embedding import log_likelihood_sum
from tests.data.process_program import after_sampling, builder_of, grouped, rows_of, table

NUM_ROWS = 20_000

# Eight builds, each compiled for its devices.
pytestmark = [pytest.mark.slow, pytest.mark.unoptimised]


def mesh(count):
    return Mesh(np.array(jax.devices()[:count]), ("rows",))


def sums():
    """A sum over rows on 1, 2, 4 and 8 devices; XLA at its best may change the order."""
    x, _ = table(1003)
    draws = jax.random.normal(jax.random.key(0), (40, 3))
    jax.config.update("jax_disable_most_optimizations", False)
    found = []
    for devices in (None, mesh(2), mesh(4), mesh(8)):
        rows = Rows(x, PassContext(mesh=devices))
        found.append(log_likelihood_sum(lambda d, x: jnp.sin(x @ d), draws, rows).tolist())
    return found


def build(name, devices, data):
    has_groups = "groups" in name
    builder = builder_of(
        has_groups,
        candidates=None if has_groups else jc.Candidates(300, extra_passes=1),
        execution=jc.Execution(devices),
        proxy=jc.Taylor() if "proxy" in name else None,
    )
    with jax.enable_x64(has_groups):
        coreset = builder.run(jax.random.key(0), *data)
    found = rows_of(coreset) | {
        "searches": coreset.report.candidate_searches,
        "total": coreset.summary.parts[0].total.tolist(),
        "devices": [len(x.devices()) for x in coreset.args if isinstance(x, jax.Array)],
    }
    return found | (after_sampling(coreset, *data) if name in ("1", "all 8") else {})


def program():
    """What a process with eight devices finds, as JSON."""
    x, y = table(NUM_ROWS)
    source = jc.sources.batches([(x[:7000], y[:7000]), (x[7000:], y[7000:])], num_rows=NUM_ROWS)
    group, of_groups = grouped()
    order = np.random.default_rng(0).permutation(group.size)
    with jax.enable_x64(True):
        read = jc.sources.array(group=group[order], y=of_groups[order]).arrays
    sharding = NamedSharding(mesh(8), PartitionSpec("rows"))
    cases = {
        "1": (mesh(1), (x, y)),
        "all 8": (None, (x, y)),
        "source on 4": (mesh(4), source.arrays),
        "sharded by its user": (mesh(8), tuple(jax.device_put((x, y), sharding))),
        "with a proxy on 1": (mesh(1), (x, y)),
        "with a proxy on 8": (mesh(8), (x, y)),
        "groups on 1": (mesh(1), (group, 90, of_groups)),
        "groups of a source on 8": (mesh(8), (read["group"], 90, read["y"])),
    }
    found = {name: build(name, *given) for name, given in cases.items()}
    return json.dumps(found | {"sums": sums()})


@pytest.fixture(scope="module")
def found():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("name", "of", "of_weights", "of_kl"),
    [
        ("source on 4", "1", 1e-3, 1e-3),
        ("all 8", "1", 1e-3, 1e-3),
        ("sharded by its user", "all 8", 1e-3, 1e-3),
        ("with a proxy on 8", "with a proxy on 1", 0.02, 0.02),
        ("groups of a source on 8", "groups on 1", 1e-3, 1e-2),
    ],
)
def test_devices_build_the_same_coreset(found, name, of, of_weights, of_kl):
    one, other = found[of], found[name]
    assert other["indices"] == one["indices"]
    assert other["weights"] == pytest.approx(one["weights"], rel=of_weights)
    assert other["kl"] == pytest.approx(one["kl"], rel=of_kl)
    assert set(other["devices"]) <= {1}
    assert "proxy" not in name or one["kl"] < 0.01 * found["1"]["kl"]


def test_more_than_one_device_changes_no_bit_of_the_sums(found):
    one, *others = found["sums"]
    assert all(other == one for other in others)
    assert found["source on 4"]["total"] == found["all 8"]["total"]
    assert found["source on 4"]["weights"] == found["all 8"]["weights"]


def test_rows_are_found_alike_on_all_devices(found):
    assert found["all 8"]["searches"] == found["source on 4"]["searches"]
    assert found["1"]["searches"][0]["num_added"] > 0


def test_devices_share_the_passes_after_sampling(found):
    one, eight = found["1"], found["all 8"]
    assert eight["num_loo"] == one["num_loo"]
    assert eight["loo"] == pytest.approx(one["loo"], rel=1e-4)
    assert eight["predicted"] == pytest.approx(one["predicted"], abs=0.03)


if __name__ == "__main__":
    print(program())
