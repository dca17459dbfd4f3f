"""The same coreset on one, two, four and eight devices, from memory and from a source."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "device_program.py"

pytestmark = pytest.mark.slow  # nine builds, each compiled for its devices


@pytest.fixture(scope="module")
def found():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, str(PROGRAM)],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["2", "4", "8", "default", "source on 4"])
def test_devices_build_the_same_coreset(found, name):
    assert found[name]["indices"] == found["1"]["indices"]
    assert found[name]["weights"] == pytest.approx(found["1"]["weights"], rel=1e-3)
    assert found[name]["kl"] == pytest.approx(found["1"]["kl"], rel=1e-3)


def test_devices_build_the_same_coreset_with_a_proxy(found):
    one, eight = found["with a proxy on 1"], found["with a proxy on 8"]
    assert eight["indices"] == one["indices"]
    assert eight["weights"] == pytest.approx(one["weights"], rel=0.02)
    assert eight["kl"] == pytest.approx(one["kl"], rel=0.02)
    assert one["kl"] < 0.01 * found["1"]["kl"]


def test_more_than_one_device_changes_no_bit_of_the_sums(found):
    assert found["2"]["total"] == found["4"]["total"] == found["8"]["total"]
    assert found["2"]["weights"] == found["8"]["weights"] == found["source on 4"]["weights"]


def test_rows_are_found_alike_on_all_devices(found):
    assert found["8"]["searches"] == found["2"]["searches"]
    assert found["1"]["searches"][0]["num_added"] > 0


def test_sharded_arrays_of_the_user_give_the_same(found):
    assert found["sharded by its user"]["indices"] == found["8"]["indices"]


def test_devices_share_the_passes_after_sampling(found):
    one, eight = found["1"], found["8"]
    assert eight["num_loo"] == one["num_loo"]
    assert eight["loo"] == pytest.approx(one["loo"], rel=1e-4)
    assert eight["predicted"] == pytest.approx(one["predicted"], abs=0.03)


@pytest.mark.parametrize("name", ["groups on 8", "groups of a source on 8"])
def test_devices_share_groups(found, name):
    one = found["groups on 1"]
    assert found[name]["indices"] == one["indices"]
    assert found[name]["weights"] == pytest.approx(one["weights"], rel=1e-3)
    assert found[name]["kl"] == pytest.approx(one["kl"], rel=1e-2)
