"""The demonstration of an effect of each aircraft, on a part of them."""

import os

import numpy as np
import pytest

from jaxcoreset.command import demo_planes, flights
from jaxcoreset.command import main as cli


def test_planes_are_those_of_the_flights():
    features, plane, late, names, codes = flights.load_planes()
    assert features.shape == (325_724, len(names))
    assert plane.shape == late.shape == (325_724,)
    assert len(codes) == plane.max() + 1 == len(np.unique(plane)) == 4037


@pytest.mark.slow
def test_planes_demo_finds_the_late_aircraft(monkeypatch, tmp_path, capsys):
    rng = np.random.default_rng(0)
    plane = rng.integers(0, 60, 3000).astype(np.int32)
    features = np.column_stack([np.ones(3000), rng.normal(size=3000)]).astype(np.float32)
    effect = rng.normal(0, 0.8, 60)
    late = rng.random(3000) < 1 / (1 + np.exp(1 - features[:, 1] - effect[plane]))
    codes = [f"N{i}" for i in range(60)]
    found = features, plane, late.astype(np.int32), ["intercept", "x"], codes
    monkeypatch.setattr(demo_planes, "load_planes", lambda: found)
    monkeypatch.setattr(demo_planes, "_NUM_SAMPLES", 200)
    result = demo_planes.run_planes_demo(size=15, out=tmp_path / "out", show_progress=False)
    printed = capsys.readouterr().out
    assert sorted(os.listdir(tmp_path / "out")) == ["planes.npz", "planes.png"]
    assert result["effects"].shape == (200, 60)
    # Fifty flights tell an effect to about a third, and the sd of sixty effects to a tenth.
    assert np.corrcoef(result["effects"].mean(axis=0), effect)[0, 1] > 0.85
    assert abs(result["shared"]["sd_planes"].mean() - 0.8) < 0.3
    assert "The sd between aircraft is" in printed
    assert codes[int(np.argmax(result["effects"].mean(axis=0)))] in printed


def test_nuts_on_all_rows_is_refused_with_planes(capsys):
    assert cli.main(["demo", "planes", "--full-nuts"]) == 2
    assert "--full-nuts is an option of demo flights" in capsys.readouterr().err
