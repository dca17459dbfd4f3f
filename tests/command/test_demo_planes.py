"""The demonstration of an effect of each aircraft, on a part of them."""

import functools
import os

import numpy as np
import pytest

import jaxcoreset as jc
from jaxcoreset.command import demo_planes, flights
from jaxcoreset.command import main as cli


def test_planes_are_those_of_the_flights():
    features, plane, late, names, codes = flights.load_planes()
    assert features.shape == (325_724, len(names))
    assert plane.shape == late.shape == (325_724,)
    assert len(codes) == plane.max() + 1 == len(np.unique(plane)) == 4037


@pytest.mark.slow
@pytest.mark.unoptimised
def test_planes_demo_finds_the_late_aircraft(monkeypatch, tmp_path, capsys):
    rng = np.random.default_rng(0)
    plane = rng.integers(0, 30, 1500).astype(np.int32)
    features = np.column_stack([np.ones(1500), rng.normal(size=1500)]).astype(np.float32)
    effect = rng.normal(0, 0.8, 30)
    late = rng.random(1500) < 1 / (1 + np.exp(1 - features[:, 1] - effect[plane]))
    codes = [f"N{i}" for i in range(30)]
    found = features, plane, late.astype(np.int32), ["intercept", "x"], codes
    monkeypatch.setattr(demo_planes, "load_planes", lambda: found)
    # The expansion of integrals takes most of the time to compile; tests/builders has it.
    rows_alone = functools.partial(jc.CoresetBuilder, proxy=None)
    monkeypatch.setattr(demo_planes, "CoresetBuilder", rows_alone)
    for name in ("_NUM_WARMUP", "_NUM_SAMPLES", "_NUM_EFFECTS"):
        monkeypatch.setattr(demo_planes, name, 100)
    result = demo_planes.run_planes_demo(size=12, out=tmp_path / "out", show_progress=False)
    printed = capsys.readouterr().out
    assert sorted(os.listdir(tmp_path / "out")) == ["planes.npz", "planes.png"]
    assert result["effects"].shape == (100, 30)
    # Fifty flights tell an effect to about a third, and thirty effects their sd to a tenth.
    assert np.corrcoef(result["effects"].mean(axis=0), effect)[0, 1] > 0.85
    assert abs(result["shared"]["sd_planes"].mean() - 0.8) < 0.3
    assert "The sd between aircraft is" in printed
    assert codes[int(np.argmax(result["effects"].mean(axis=0)))] in printed


def test_nuts_on_all_rows_is_refused_with_planes(capsys):
    assert cli.main(["demo", "planes", "--full-nuts"]) == 2
    assert "--full-nuts is an option of demo flights" in capsys.readouterr().err
