"""The benchmark of scale: its table is what it says, and its parts measure what they should."""

import json

import numpy as np
import pytest

from benchmarks.scale import __main__ as scale
from benchmarks.scale import parts
from benchmarks.scale.data import BATCH, Table
from benchmarks.scale.work import build, measure


def rows_of(table: Table) -> tuple[np.ndarray, np.ndarray]:
    xs, ys = zip(*table, strict=True)
    return np.concatenate(xs), np.concatenate(ys)


def test_a_table_is_the_same_in_parts_and_in_every_pass():
    count = 4 * BATCH + 17
    x, y = rows_of(Table(count, 5))
    again, _ = rows_of(Table(count, 5))
    np.testing.assert_array_equal(x, again)
    rest, responses = rows_of(Table(count - 2 * BATCH, 5, first=2 * BATCH))
    np.testing.assert_array_equal(rest, x[2 * BATCH :])
    np.testing.assert_array_equal(responses, y[2 * BATCH :])
    assert len(x) == count


def test_no_two_rows_of_a_table_are_alike():
    x, _ = rows_of(Table(10 * BATCH, 5))
    assert len(np.unique(x, axis=0)) == len(x)
    np.testing.assert_array_equal(x[:, 0], 1)


def test_a_tables_responses_follow_a_logistic_regression():
    """The maximum likelihood estimate on one part predicts the other as well as it should."""
    x, y = rows_of(Table(4 * BATCH, 5))
    slopes = np.zeros(5)
    for _ in range(8):
        mean = 1 / (1 + np.exp(-x @ slopes))
        hessian = (x * (mean * (1 - mean))[:, None]).T @ x
        slopes += np.linalg.solve(hessian, x.T @ (y - mean))
    mean = 1 / (1 + np.exp(-x @ slopes))
    squares = np.mean((y - mean) ** 2 / (mean * (1 - mean)))
    assert squares == pytest.approx(1, abs=0.02)
    assert np.abs(slopes).max() > 0.3


def test_a_fold_is_right_where_adding_in_float32_is_not():
    constant, uniform, heavy = parts.sums(quick=True)
    for row in (constant, uniform, heavy):
        assert row["relative error"] < 1e-6
    assert constant["one after the other"] > 1e-4


def test_a_job_runs_in_a_process_of_its_own():
    sizes = {"rows": 20_000, "width": 4, "draws": 20, "held out": 20}
    found = measure({"what": "short formula", **sizes})
    assert found["seconds"] > 0
    assert 50 < found["peak MB"] < 2000
    with pytest.raises(RuntimeError, match="KeyError"):
        measure({})


@pytest.mark.slow
@pytest.mark.unoptimised
def test_processes_of_a_job_share_the_rows_and_count_their_exchanges():
    sizes = {"rows": 1 << 16, "width": 4, "draws": 50, "held out": 50, "size": 5}
    found = measure({"what": "build", **sizes}, processes=2)
    assert found["processes"] == 2
    assert found["meetings"] > 0
    assert found["passes"] == build(sizes)["passes"]


def test_the_command_writes_a_part_and_keeps_the_others(tmp_path):
    out = tmp_path / "scale.json"
    out.write_text(json.dumps({"quick": True, "rows": "kept", "environment": {"date": "then"}}))
    scale.main(["--quick", "--only", "sum", "--out", str(out)])
    result = json.loads(out.read_text())
    assert result["rows"] == "kept"
    assert result["environments"]["rows"] == {"date": "then"}
    assert result["environments"]["sum"] == result["environment"] != {"date": "then"}
    assert [row["terms"] for row in result["sum"]] == ["constant", "uniform", "log-normal"]
    with pytest.raises(SystemExit):
        scale.main(["--only", "sum", "--out", str(out)])
