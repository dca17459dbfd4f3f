"""What a build takes is said before it is begun, and does not grow with the rows."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jaxcoreset as jc
from tests.models import logistic_model as model


def printed(*arguments, **variables):
    """What a Python program of its own prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **variables},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def planned_and_built(num_rows, **variables):
    return json.loads(printed("-m", "tests.selection.plan_program", str(num_rows), **variables)[-1])


@pytest.mark.slow
def test_memory_and_passes_are_those_of_the_plan_and_memory_does_not_grow_with_the_rows():
    # With one arena: in others glibc keeps what threads once had there, more by chance or less.
    few, many = (planned_and_built(n, MALLOC_ARENA_MAX="1") for n in (100_000, 10_000_000))
    assert few["peak"] < 1.2 * few["planned"]
    assert few["planned"] < 1.6 * few["peak"]
    assert few["passes"] == few["planned_passes"]
    assert few["text"].startswith("Plan\n  rows         100,000 of 20 bytes")
    assert many["peak"] < many["planned"]
    assert many["peak"] < 1.2 * few["peak"]
    assert many["peak"] < 10_000_000 * 20 + few["peak"]


@pytest.mark.slow
def test_memory_of_many_batches_is_within_the_plan():
    found = planned_and_built(3_000_000)
    assert found["peak"] < 1.1 * found["planned"]
    assert found["planned"] < 1.6 * found["peak"]


def test_a_plan_names_the_batches_and_candidates():
    x = np.random.default_rng(0).normal(size=(30_000, 2)).astype(np.float32)
    execution = jc.Execution(batch_size=3000)
    builder = jc.CoresetBuilder(model, size=10, candidates=700, execution=execution, proxy=None)
    plan = builder.plan(x, np.ones(30_000, np.float32))
    assert plan.num_candidates == 700
    assert plan.num_draws == 1500
    assert 3000 <= plan.batch_size < 4000
    assert plan.passes == {"Laplace": 8, "target": 1}
    assert all(spent > 0 for spent in plan.seconds.values())
    assert "MiB at most" in str(plan)
    assert plan.further_passes == 4
    assert "if needed, up to 4 (" in str(plan)
    everything = jc.CoresetBuilder(model, size=10, candidates=30_000, proxy=None)
    assert everything.plan(x, np.ones(30_000, np.float32)).further_passes == 0


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="needs Linux")
def test_the_peak_is_not_that_of_the_process_that_started_this_one():
    held = np.ones(100_000_000)  # 800 MB, which Linux counts as a child's own in `getrusage`
    code = (
        "from jaxcoreset.data.utils import peak_memory; print(peak_memory());"
        "held = bytearray(b'1') * 10**9; print(peak_memory())"
    )
    before, after = map(int, printed("-c", code))
    assert before < held.nbytes < after - before + 1e8
