"""The benchmark of many builds runs, and finds what the package promises."""

import json

import pytest

from benchmarks.robustness import builds


@pytest.mark.slow
@pytest.mark.unoptimised
def test_builds_in_a_loop_and_in_threads_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(builds, "loop", lambda *sizes, loop=builds.loop: loop(2, 1000))
    monkeypatch.setattr(builds, "threads", lambda *sizes, part=builds.threads: part(2, 1000))
    out = tmp_path / "builds.json"
    builds.main(["--quick", "--output", str(out)])
    result = json.loads(out.read_text())
    assert [row["data in memory"] for row in result["loop"]["builds"]] == [0, 0]
    assert result["loop"]["builds"][0]["programs compiled"] > 0
    assert result["threads"]["failed"] == result["threads"]["different"] == 0
    assert result["environment"]["versions"]
