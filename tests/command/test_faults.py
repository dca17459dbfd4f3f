"""Faults of files, disks and pipes are one sentence of the command, without a traceback."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jaxcoreset.command import export
from jaxcoreset.command import main as cli
from jaxcoreset.command.html import Comparison, _marginal_figure
from jaxcoreset.command.inputs import model_inputs, regression_inputs
from jaxcoreset.command.tables import Table, TableError, read_table
from jaxcoreset.coreset.frame import as_text_cell
from jaxcoreset.weighting.laplace import LaplaceApproximation
from tests.command.programs import compiled, prepared


def table_of(columns):
    return Table(Path("people.parquet"), pd.DataFrame(columns))


def arguments_of(file, *arguments):
    """As many rows as there are, so that nothing is solved for."""
    options = ["--likelihood", "logistic", "--response", "y", "--size", "64", "--no-progress"]
    return ["build", str(file), *options, *map(str, arguments)]


def build(file, *arguments):
    return cli.main(arguments_of(file, *arguments))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rows.csv"
    pd.DataFrame({"x": np.arange(60.0), "y": [0, 1] * 30}).to_csv(path, index=False)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('x,note,y\n1,fine,0\n2,"open,1\n3,c,0\n', "line 3, column 2 'note': a quote is opened"),
        ('x,note,y\n1,"two\nlines",0\n2,"open', "line 4, column 2 'note': a quote is opened"),
        ('x,"y\n1,2\n', "line 1, column 2: a quote is opened and not closed"),
        ('"a\nb",y\n"c\nd",1\n"e\nf","1\n', "line 6, column 2 'y': a quote is opened"),
        ("x,y\n" + "1" * 200_000 + ",a,b\n", "line 2 has 3 values"),
    ],
)
def test_the_place_of_a_bad_line_is_told(text, message, tmp_path, capsys):
    (tmp_path / "rows.csv").write_text(text)
    assert build(tmp_path / "rows.csv", "--out", tmp_path / "out.csv") == 2
    error = capsys.readouterr().err
    assert f"rows.csv cannot be read as a table: {message}" in error
    assert "Traceback" not in error


def test_a_text_of_any_length_is_read_and_its_neighbours_are_told_by_line(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(f'x,note\n1,"{"a" * 200_000}"\nbad,b\n')
    with pytest.raises(TableError, match="line 3, column 'x': 'bad' is text"):
        read_table(path).numbers("x")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, 2.0, 1e200, 3.0], r"row 3, column 'x': found 1e\+200, which float32 cannot hold"),
        ([1e-200, 2e-200, 3e-200, 0.0], r"row 1, column 'x': found 1e-200, which float32 cannot"),
        (np.array([2**63, 2**63 + 1, 5, 6], np.uint64), r"row 2, column 'x': float64 cannot tell"),
    ],
)
@pytest.mark.parametrize("scale_columns", [True, False])
def test_numbers_that_would_become_others_are_refused(values, message, scale_columns):
    table = table_of({"x": values, "z": [1.0, 2, 3, 5], "y": [0, 1, 0, 1]})
    with pytest.raises(TableError, match=message):
        regression_inputs(table, "logistic", "y", scale_columns=scale_columns)


def test_a_value_that_hides_all_other_ones_is_noted():
    x = np.append(np.arange(99.0), 1e15)
    inputs = regression_inputs(table_of({"x": x, "y": np.arange(100) % 2}), "logistic", "y")
    assert "next to its largest value, 1e+15, most of its values" in inputs.notes[0]


@pytest.mark.parametrize(
    ("function", "columns", "message"),
    [
        ("by_name", {"count": [1, 13_000_000_000]}, r"row 2, column 'count': found 13000000000,"),
        (
            "matrix",
            {"X[0]": [1, 2], "X[1]": [2**31, 3]},
            r"row 1, column 'X\[1\]': found 2147483648",
        ),
        ("by_name", {"count": [1.0, 1e39]}, r"row 2, column 'count': found 1e\+39, which float32"),
    ],
)
def test_numbers_beyond_32_bits_do_not_wrap_on_their_way_to_a_model(
    function, columns, message, tmp_path
):
    model = tmp_path / "model_of_test_faults.py"
    model.write_text("def by_name(count):\n    pass\ndef matrix(X):\n    pass\n")
    with pytest.raises(TableError, match=message):
        model_inputs(table_of(columns), f"{model}:{function}")


def test_a_pipe_that_is_closed_is_no_traceback(file, monkeypatch, capsys):
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as output:  # closing it does not raise again
        monkeypatch.setattr("sys.stdout", output)
        assert build(file, "--out", file.with_name("out.csv")) == 2
    error = capsys.readouterr().err
    assert error == "jaxcoreset: cannot read or write the standard output: Broken pipe\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_disk_is_told_with_the_file(file, capsys):
    out = file.with_name("out.npz")
    out.symlink_to("/dev/full")
    assert build(file, "--out", out) == 2
    assert capsys.readouterr().err == (
        f"jaxcoreset: cannot read or write {out}: No space left on device\n"
    )


def test_an_interruption_is_told_in_a_word(file, monkeypatch, capsys):
    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxcoreset.command.build.read_table", interrupted)
    assert build(file, "--out", "out.csv") == 130
    assert capsys.readouterr().err == "jaxcoreset: interrupted; nothing further was written.\n"


AWKWARD = ["$a$ $b", "back`tick", 'say "hi"', "it's", "a\\b", "{x}", "if", "=1+1", "-a", "#% &<b>"]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_awkward_names_and_categories_work_in_all_programs(suffix, tmp_path, monkeypatch):
    numbers = {name: np.arange(10.0) ** i for i, name in enumerate(AWKWARD, 1)}
    frame = pd.DataFrame(numbers | {"=town": AWKWARD, "+y": AWKWARD})
    table = Table(tmp_path / "rows.csv", frame)
    inputs = regression_inputs(table, "categorical", "+y", categorical=["=town"])
    path = tmp_path / f"core's $rows{suffix}"
    weighted = frame.assign(**{"@w": 1.0})
    if suffix == ".csv":
        escaped = weighted.rename(columns=as_text_cell).map(as_text_cell)
        escaped.to_csv(path, index=False)
    else:
        weighted.to_parquet(path, index=False)
    monkeypatch.chdir(tmp_path)
    found = export.programs(inputs, path, "@w", is_escaped=suffix == ".csv")
    assert len(compiled(found)) == 3
    namespace = prepared(found)
    np.testing.assert_allclose(namespace["x"], inputs.arguments["x"], rtol=1e-6)
    np.testing.assert_array_equal(namespace["y"], inputs.arguments["y"])
    brms = found["R, with brms"]
    for name in (r"`back\`tick`", "`it's`", r"`a\\b`", "`if`", "`{x}`", "`$a$ $b`"):
        assert f" + {name}" in brms
    assert "$" not in found["Stan"]


def test_a_category_may_have_the_name_of_a_column_in_an_escaped_file():
    columns = {"c = b": list("pqpq"), "c": list("abba"), "x": [1.0, 2, 4, 3], "y": [0, 1, 1, 0]}
    inputs = regression_inputs(table_of(columns), "logistic", "y", categorical=["c = b", "c"])
    assert (
        export._escaped(inputs).coefficients == inputs.coefficients == ["c = b = q", "c = b", "x"]
    )


def test_dollars_in_names_are_drawn_as_they_are():
    approximation = LaplaceApproximation.__new__(LaplaceApproximation)
    for name, value in {"mode": np.zeros(2), "covariance": np.eye(2)}.items():
        object.__setattr__(approximation, name, value)
    comparison = Comparison(approximation, approximation, ["$a_$ $", "\\frac$x$"])
    assert _marginal_figure(comparison)["png"]


def test_formulas_are_text_in_a_csv_file_unless_asked_for(tmp_path):
    cells = ["=1+1", "@sum", "-x", "+y", "-5", "+3e2", "plain", "a=b"]
    frame = pd.DataFrame({"=x": np.arange(64.0), "text": cells * 8, "y": [0, 1] * 32})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    for options, expected in (
        ([], ["'=1+1", "'@sum", "'-x", "'+y", "-5", "+3e2", "plain", "a=b"]),
        (["--keep-formulas"], cells),
    ):
        out = tmp_path / "out.csv"
        given = [tmp_path / "rows.csv", "--columns", "=x", "--out", out, *options]
        assert build(*given) == 0
        written = pd.read_csv(out)
        assert list(written.columns)[2:] == ["=x" if options else "'=x", "text", "y"]
        kept = [expected[cells.index(text)] for text in frame["text"].iloc[written["row"]]]
        assert written["text"].tolist() == kept


@pytest.mark.slow
@pytest.mark.unoptimised
def test_a_write_that_stops_halfway_leaves_no_file(file, tmp_path):
    """A limit on the size of files, so that writing fails in the middle, as on a full disk."""
    program = (
        "import resource, sys; from jaxcoreset.command.main import main;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300)); sys.exit(main(sys.argv[1:]))"
    )
    out = tmp_path / "out.npz"
    command = [sys.executable, "-c", program, *arguments_of(file, "--out", out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert done.stderr == f"jaxcoreset: cannot read or write {out}: File too large\n"
    assert sorted(os.listdir(tmp_path)) == ["rows.csv"]


@pytest.mark.slow
@pytest.mark.unoptimised
def test_a_signal_interrupts_the_command(file):
    os.mkfifo(file.with_name("slow.csv"))
    arguments = arguments_of(file.with_name("slow.csv"), "--out", "out.csv")
    # A shell's background jobs, and what they start, ignore interruptions: a terminal's do not.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        command = [sys.executable, "-m", "jaxcoreset", *arguments]
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    # It waits for the file's first line: reading has begun once somebody can write.
    with open(file.with_name("slow.csv"), "w"):
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=60)[1].decode()
    assert error == "jaxcoreset: interrupted; nothing further was written.\n"
    assert process.returncode == 130
