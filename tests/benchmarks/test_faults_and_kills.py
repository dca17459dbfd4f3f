"""The benchmarks of processes that fail and of builds that are killed run, and hold."""

import json

import pytest

from benchmarks.robustness import kills, processes


def test_there_are_thirteen_faults():
    assert len(processes.FAULTS) == 13


@pytest.mark.slow
@pytest.mark.unoptimised
def test_a_fault_of_a_process_is_held(tmp_path):
    out = tmp_path / "processes.json"
    processes.main(["--only", "fails in a pass", "--output", str(out)])
    result = json.loads(out.read_text())
    assert (result["num_cases"], result["num_held"]) == (1, 1)
    assert "the disk is gone" in result["rows"][0]["outcome"]


@pytest.mark.slow
@pytest.mark.unoptimised
def test_a_build_that_is_killed_is_held(tmp_path):
    out = tmp_path / "kills.json"
    kills.main(["--quick", "--output", str(out)])
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["held"], row["kills"]) == (True, 2)
