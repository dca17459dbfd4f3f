"""The benchmark for accelerators runs at small sizes on any device."""

import json

import jaxcoreset as jc
from benchmarks import accelerator


def test_every_part_runs_and_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(accelerator, "SOLVERS", {"GIGA": jc.GIGA()})
    monkeypatch.setattr(accelerator, "BUILDS", ("logistic",))
    out = tmp_path / "accelerator.json"
    parts = [part for part in accelerator.PARTS if part != "groups"]  # takes minutes
    accelerator.main(["--quick", "--only", *parts, "--out", str(out)])
    found = json.loads(out.read_text())
    assert all(found[part] for part in parts)
    assert {"card", "date", "versions", "device"} <= set(found["environment"])
    embed = {row["what"]: row for row in found["embed"]}
    assert embed["sum"]["entries/s"] > 0
    assert embed["matrix"]["of bandwidth"] > 0
    assert "entries/s" in capsys.readouterr().out
    for part in ("solves", "sweeps", "batches"):
        (row,) = found[part]
        assert row["seconds"] > 0
    # Full precision is right to float32.
    full = {row["precision"]: row for row in found["precision"]}["full"]
    assert full["correlations, worst"] < 1e-5
    assert abs(full["relative error found"] / full["relative error, exact"] - 1) < 0.05
    for row in found["builds"]:
        assert row["KL"] < 0.02
        assert row["NUTS on all rows, s"] > 0
