"""The benchmark for accelerators runs at small sizes on any device."""

import json

from benchmarks import accelerator


def test_every_part_runs_and_is_written(tmp_path, capsys):
    out = tmp_path / "accelerator.json"
    parts = ["limits", "embed", "nnls", "precision"]
    accelerator.main(["--quick", "--out", str(out), "--only", *parts])
    found = json.loads(out.read_text())
    assert all(found[part] for part in parts)
    assert {"card", "date", "versions", "device"} <= set(found["environment"])
    embed = {row["what"]: row for row in found["embed"]}
    assert embed["sum"]["entries/s"] > 0
    assert embed["matrix"]["of bandwidth"] > 0
    assert "entries/s" in capsys.readouterr().out


def test_full_precision_is_right_to_float32():
    rows = {row["precision"]: row for row in accelerator.precision(True, {})}
    assert rows["full"]["correlations, worst"] < 1e-5
    assert (
        abs(rows["full"]["relative error found"] / rows["full"]["relative error, exact"] - 1) < 0.05
    )


def test_solvers_are_measured_by_one_and_by_many(monkeypatch):
    monkeypatch.setattr(accelerator, "SOLVERS", {"default": None})
    for part in (accelerator.solves, accelerator.sweeps, accelerator.batches):
        (row,) = part(True, {})
        assert row["seconds"] > 0
