"""The one command for the programs of robustness, and the numerical cases, hold on small runs."""

import dataclasses
import json

import numpy as np
import pytest
from scipy import stats

from benchmarks.robustness import __main__ as command
from benchmarks.robustness import conjugate, numerical


def test_the_command_runs_a_program_whose_case_is_held_and_writes_a_row(tmp_path, monkeypatch):
    one = dataclasses.replace(command.PROGRAMS["numerical"], quick=("--only", "normal: 10 rows"))
    monkeypatch.setitem(command.PROGRAMS, "numerical", one)
    out = tmp_path / "all.json"
    status = command.main(["--quick", "--only", "numerical", "--output", str(out)])
    (row,) = json.loads(out.read_text())["rows"]
    assert (status, row["trials"], row["held"]) == (0, 1, 1)
    assert len(numerical.CASES) == 48


@pytest.mark.parametrize(
    ("one", "other", "laws", "limits"),
    [
        (
            conjugate.Gamma(np.array([3.0]), np.array([2.0])),
            conjugate.Gamma(np.array([4.0]), np.array([1.0])),
            (stats.gamma(3, scale=1 / 2), stats.gamma(4, scale=1)),
            (1e-9, 60),
        ),
        (
            conjugate.Dirichlet(np.array([3.0, 2.0])),
            conjugate.Dirichlet(np.array([2.0, 4.0])),
            (stats.beta(3, 2), stats.beta(2, 4)),
            (1e-9, 1 - 1e-9),
        ),
        (
            conjugate.Gaussian(np.array([1.0]), np.array([[2.0]])),
            conjugate.Gaussian(np.array([0.5]), np.array([[3.0]])),
            (stats.norm(1, 1 / 2), stats.norm(0.5, 1 / 3)),
            (-3, 60),
        ),
    ],
    ids=["gamma", "Dirichlet", "Gaussian"],
)
def test_the_exact_divergence_is_the_integral(one, other, laws, limits):
    at = np.linspace(*limits, 200_001)
    p, q = (np.maximum(law.pdf(at), 1e-300) for law in laws)
    expected = np.trapezoid((p - q) * np.log(p / q), at)
    np.testing.assert_allclose(conjugate.divergence(one, other), expected, rtol=1e-4)


def test_a_program_that_crashes_is_told_of_in_the_table(tmp_path, monkeypatch):
    crash = command.Program("crashes", command.PROGRAMS["files"].parts)
    monkeypatch.setitem(command.PROGRAMS, "no_such_program", crash)
    out = tmp_path / "all.json"
    assert command.main(["--quick", "--only", "no_such_program", "--output", str(out)]) == 1
    result = json.loads(out.read_text())
    assert (result["num_broken"], result["rows"][0]["held"]) == (1, 0)
    assert "status 1" in result["rows"][0]["outcome"]


def test_results_that_are_there_are_not_measured_again(tmp_path):
    rows = [{"kills": 20, "held": True}, {"kills": 20, "held": False}]
    kept = {"environment": {"date": "2026-01-01"}, "rows": rows, "wall seconds": 1.0}
    (tmp_path / "kills.json").write_text(json.dumps(kept))
    assert command.main(["--only", "kills", "--parts", str(tmp_path)]) == 1
    (row,) = command.run("kills", tmp_path / "kills.json", quick=False)
    assert (row["trials"], row["held"], row["date"]) == (40, 20, "2026-01-01")
