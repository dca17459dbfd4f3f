"""All problems at once, formulas, a named outcome, and rows with missing values."""

import numpy as np
import pandas as pd
import pytest

from jaxcoreset.command import export
from jaxcoreset.command import main as cli
from jaxcoreset.command.inputs import formula_inputs, model_inputs, regression_inputs
from jaxcoreset.command.problems import without_missing
from jaxcoreset.command.tables import Table, TableError, read_table
from tests.command.programs import prepared

RNG = np.random.default_rng(0)
N = 40
FRAME = pd.DataFrame(
    {
        "late": np.where(RNG.random(N) < 0.4, "yes", "no"),
        "distance": RNG.normal(500, 100, N),
        "carrier": RNG.choice(["AA", "DL", "UA"], N),
        "age": np.where(np.isin(np.arange(N), [3, 7]), np.nan, np.arange(N)),
    }
)


@pytest.fixture
def table(tmp_path):
    FRAME.to_csv(tmp_path / "flights.csv", index=False)
    return read_table(tmp_path / "flights.csv")


def test_all_problems_of_a_file_are_told_at_once(table):
    with pytest.raises(TableError) as told:
        regression_inputs(table, "logistic", "late")
    text = str(told.value)
    assert text.startswith("3 problems were found:\n  1. ")
    for place in ("line 2, column 'late': ", "column 'carrier': ", "line 5, column 'age': a value"):
        assert place in text
    with pytest.raises(TableError, match=r"'lat'.*(?s:.)*'foo'.*(?s:.)*'bar'"):
        regression_inputs(table, "logistic", "lat", ["foo", "bar"])
    with pytest.raises(TableError, match=r"(?s)2 problems.*'distanz'.*--positive maybe expects"):
        regression_inputs(table, "logistic", "late", ["distanz"], positive="maybe")


def test_all_mistakes_in_options_are_told_at_once(table, tmp_path, capsys):
    arguments = ["build", str(table.path), "--likelihood", "poisson", "--response", "late"]
    arguments += ["--positive", "yes", "--formula", "a ~ b", "--out", str(tmp_path / "x.doc")]
    assert cli.main(arguments) == 2
    told = capsys.readouterr().err
    arguments += ["--size", "3", "--max-size", "5"]
    assert cli.main(arguments) == 2
    assert "--max-size goes with --tol" in capsys.readouterr().err
    for mistake in ("--response does not go with", "--positive goes with", "--out is"):
        assert mistake in told


def test_positive_names_the_outcome_in_the_model_and_in_the_programs(table, tmp_path, monkeypatch):
    inputs = regression_inputs(table, "logistic", "late", ["distance"], positive="yes")
    np.testing.assert_array_equal(inputs.arguments["y"], FRAME["late"] == "yes")
    FRAME.assign(weight=1.0).to_csv(tmp_path / "core.csv", index=False)
    monkeypatch.chdir(tmp_path)
    found = export.programs(inputs, tmp_path / "core.csv")
    np.testing.assert_array_equal(prepared(found)["y"], inputs.arguments["y"])
    assert 'd[["late"]] <- as.integer(d[["late"]] == "yes")' in found["R, with brms"]
    with pytest.raises(TableError, match="did you mean 'yes'"):
        regression_inputs(table, "logistic", "late", ["distance"], positive="yess")
    with pytest.raises(TableError, match="has 3 different values, 'AA', 'DL', 'UA'"):
        regression_inputs(table, "logistic", "carrier", ["distance"], positive="AA")


def test_rows_with_missing_values_are_left_out_and_lines_stay_those_of_the_file(table, tmp_path):
    kept, notes = without_missing(table, ["late", "age"])
    assert notes == [f"Left out 2 of {N} rows, with missing values in 'age'."]
    np.testing.assert_array_equal(kept.rows, np.flatnonzero(FRAME["age"].notna()))
    assert kept.places([0, 3, 6]) == [2, 6, 10]
    assert without_missing(table, ["late"])[0] is table
    inputs = regression_inputs(table, "logistic", "late", ["age"], positive="no", drop_missing=True)
    assert len(inputs.table) == len(inputs.arguments["y"]) == N - 2

    model_file = tmp_path / "model_of_a_column.py"
    model_file.write_text("def model(age):\n    pass\n", encoding="utf-8")
    found = model_inputs(table, f"{model_file}:model", drop_missing=True)
    np.testing.assert_array_equal(found.arguments["age"], FRAME["age"].dropna())
    with pytest.raises(TableError, match="no row with a value"):
        without_missing(Table(table.path, FRAME.assign(age=np.nan)), ["age"])


def test_row_numbers_of_the_output_are_those_of_the_file(table, tmp_path):
    out = tmp_path / "core.csv"
    options = ["--likelihood", "logistic", "--response", "late", "--positive", "yes"]
    options += ["--columns", "age,distance", "--drop-missing", "--size", "38", "--no-progress"]
    assert cli.main(["build", str(table.path), *options, "--out", str(out)]) == 0
    written = pd.read_csv(out)
    assert not written["row"].isin([3, 7]).any()
    np.testing.assert_allclose(written["age"], FRAME["age"].iloc[written["row"]])


def test_a_formula_makes_the_matrix(table):
    pytest.importorskip("formulaic")
    formula = "late ~ distance * C(carrier) + log(age + 1)"
    inputs = formula_inputs(table, "logistic", formula, positive="yes", drop_missing=True)
    kept = FRAME.dropna()
    logs = np.log(kept["age"] + 1)
    x = dict(zip(inputs.coefficients, inputs.arguments["x"].T, strict=True))
    np.testing.assert_allclose(x["log(age + 1)"], (logs - logs.mean()) / logs.std(ddof=0))
    np.testing.assert_array_equal(x["C(carrier)[T.UA]"], kept["carrier"] == "UA")
    assert "distance:C(carrier)[T.DL]" in x
    assert "Intercept" not in x
    np.testing.assert_array_equal(inputs.arguments["y"], kept["late"] == "yes")
    assert list(inputs.table.frame.columns) == list(FRAME.columns)


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("distance", "expected a response and its terms"),
        ("late + ", "cannot be read"),
        ("late ~ distnace + foo", "2 problems .*(?s:.)*did you mean 'distance'"),
        ("log(age) ~ distance", "explains log.age.; expected one column"),
        ("distance ~ 0 + carrier", "no intercept, and the regressions always have one"),
        ("distance ~ age", "line 5, column 'age': a value is missing"),
        ("distance ~ log(carrier)", "cannot be evaluated"),
        ("distance ~ distance", "by itself"),
        ("distance ~ carrier | origin", "several parts"),
        ("distance ~ .", "'.' is not known; name the columns"),
        ("distance ~ log(distance - 900)", "line 2, column 'log.distance - 900.': the term is inf"),
        ("distance ~ C(carrier, levels=['UA', 'AA'])", "values that the levels lack: 'DL'"),
    ],
)
def test_formulas_that_do_not_fit_are_told(formula, message, table):
    pytest.importorskip("formulaic")
    with pytest.raises(TableError, match=message):
        formula_inputs(table, "normal", formula)


@pytest.mark.parametrize("term", ["C(distance)", "late"])
def test_formulas_have_few_categories(term, table, monkeypatch):
    pytest.importorskip("formulaic")
    monkeypatch.setattr("jaxcoreset.command.formulas.MAX_LEVELS", 1)
    with pytest.raises(TableError, match=r"has .* different values; expected at most 1"):
        formula_inputs(table, "normal", f"distance ~ {term}")


def test_a_missing_formulaic_names_the_extra(table, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "formulaic", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'jaxcoreset\[formula\]'"):
        formula_inputs(table, "normal", "distance ~ age")
