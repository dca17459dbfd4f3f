"""Rows left out by --drop-missing: as if the file had never had them."""

import numpy as np
import pandas as pd
import pytest

from jaxcoreset.command import export
from jaxcoreset.command import main as cli
from jaxcoreset.command.inputs import formula_inputs, model_inputs, regression_inputs
from jaxcoreset.command.tables import read_table

RNG = np.random.default_rng(0)
N = 60
BIG = 1_000_000_000_000_000_000
WHOLE = pd.DataFrame(
    {
        "late": RNG.integers(0, 2, N),
        "big": BIG + RNG.integers(1, 4, N),
        "small": RNG.integers(1, 4, N),
        "code": RNG.choice(["01", "1", "2", "two\nlines, quoted"], N),
        "mixed": RNG.choice(["1", "1.0", "2"], N),
        "truth": RNG.choice([True, False], N),
        "weight_kg": RNG.normal(size=N),
        "count": RNG.integers(0, 50, N),
        "day": pd.to_datetime("2013-01-01") + pd.to_timedelta(RNG.integers(0, 3, N), "D"),
    }
)
CATEGORIES = ["big", "small", "code", "mixed", "day"]
COLUMNS = list(WHOLE.columns[1:])
# One cell of each column is missing, in a row of its own.
HOLES = {name: 5 * i + 2 for i, name in enumerate(WHOLE.columns)}
KEPT = np.setdiff1d(np.arange(N), list(HOLES.values()))


def write(folder, kind, names=tuple(WHOLE)):
    """The table with holes in some columns, and the same without these rows."""
    kept = np.setdiff1d(np.arange(N), [HOLES[name] for name in names])
    with_holes = WHOLE.astype(str) if kind == "csv" else WHOLE.convert_dtypes()
    for name in names:
        with_holes.loc[HOLES[name], name] = "" if kind == "csv" else pd.NA
    paths = []
    for name, frame in {"holes": with_holes, "clean": WHOLE.iloc[kept]}.items():
        path = folder / name / f"table.{kind}"
        path.parent.mkdir()
        paths.append(path)
        if kind == "csv":
            frame.to_csv(path, index=False)
            continue
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        # Other programs do not write the notes of pandas on its types.
        written = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()
        pq.write_table(written, path)
    return [read_table(path, CATEGORIES) for path in paths]


def assert_same(found, expected):
    for name in ("title", "response", "columns", "levels", "kinds", "classes", "outcomes"):
        assert getattr(found, name) == getattr(expected, name), name
    assert found.scaling == expected.scaling
    assert found.coefficients == expected.coefficients
    assert found.arguments.keys() == expected.arguments.keys()
    for name, value in expected.arguments.items():
        assert np.asarray(found.arguments[name]).dtype == np.asarray(value).dtype
        np.testing.assert_array_equal(found.arguments[name], value)
    pd.testing.assert_frame_equal(found.table.frame, expected.table.frame)
    np.testing.assert_array_equal(found.table.rows, KEPT)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_left_out_rows_do_not_change_the_types_of_the_other_rows(kind, tmp_path):
    holes, clean = write(tmp_path, kind)
    given = "logistic", "late", COLUMNS, CATEGORIES
    found = regression_inputs(holes, *given, positive="1", drop_missing=True)
    expected = regression_inputs(clean, *given, positive="1")
    assert_same(found, expected)
    assert found.levels["big"] == [str(BIG + i) for i in (1, 2, 3)]
    assert found.levels["small"] == ["1", "2", "3"]
    assert found.levels["code"] == ["01", "1", "2", "two\nlines, quoted"]
    assert found.levels["mixed"] == ["1", "1.0", "2"]
    assert found.kinds["big"] == "whole number"
    assert "truth" not in found.scaling
    for tool, text in export.programs(expected, tmp_path / f"core.{kind}").items():
        assert export.programs(found, tmp_path / f"core.{kind}")[tool] == text


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_classes_models_and_formulas_take_what_is_left_as_it_is(kind, tmp_path):
    holes, clean = write(tmp_path, kind)
    classes = "categorical", "big", [name for name in COLUMNS if name != "big"]
    others = [name for name in CATEGORIES if name != "big"]
    # Here the response has missing values, and "late" is not used.
    found = regression_inputs(holes, *classes, others, drop_missing=True)
    expected = regression_inputs(clean, *classes, others)
    assert found.classes == expected.classes == [str(BIG + i) for i in (1, 2, 3)]
    assert found.kinds == expected.kinds

    model_file = tmp_path / f"model_of_{kind}.py"
    names = ", ".join(name for name in WHOLE.columns if name != "day")
    model_file.write_text(f"def model({names}):\n    pass\n", encoding="utf-8")
    given = f"{model_file}:model", None, None, ["big", "small", "code", "mixed"]
    found = model_inputs(holes, *given, drop_missing=True)
    expected = model_inputs(clean, *given)
    assert found.levels == expected.levels
    for name, dtype in {"truth": np.bool_, "count": np.int64, "late": np.int64}.items():
        assert found.arguments[name].dtype == expected.arguments[name].dtype == dtype

    pytest.importorskip("formulaic")
    formula = "late ~ C(big) + C(small) + truth + count + weight_kg"
    found = formula_inputs(holes, "logistic", formula, drop_missing=True)
    expected = formula_inputs(clean, "logistic", formula)
    assert found.coefficients == expected.coefficients
    assert f"C(big)[T.{BIG + 2}]" in found.coefficients


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_coreset_is_that_of_the_file_without_these_rows(kind, tmp_path):
    names, written = ["late", "big", "truth", "count"], []
    tables = write(tmp_path, kind, names)
    for table, more in zip(tables, (["--drop-missing"], []), strict=True):
        out = table.path.with_name(f"core.{kind}")
        options = ["--likelihood", "logistic", "--response", "late", "--size", "30"]
        options += ["--columns", ",".join(names[1:]), "--categorical", "big"]
        options += ["--no-progress", *more, "--out", str(out)]
        assert cli.main(["build", str(table.path), *options]) == 0
        written.append(pd.read_csv(out) if kind == "csv" else pd.read_parquet(out))
    found, expected = written
    kept = np.setdiff1d(np.arange(N), [HOLES[name] for name in names])
    np.testing.assert_array_equal(found.pop("row"), kept[expected.pop("row")])
    pd.testing.assert_frame_equal(found, expected)


def test_a_range_that_is_the_index_stays_a_column(tmp_path):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"x": [1.0, np.nan, 3.0, 4.0]})
    frame.index = pd.RangeIndex(10, 50, 10, name="id")
    frame.to_parquet(tmp_path / "table.parquet")
    found = read_table(tmp_path / "table.parquet").with_rows(np.array([0, 2, 3])).frame
    assert found.to_dict("list") == {"id": [10, 30, 40], "x": [1.0, 3.0, 4.0]}


def test_text_in_a_row_that_is_left_out_does_not_make_text_of_a_column(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("y,x,n\n0,1.5,1\n,see note,2.5\n1,2.5,3\n0,0.5,4\n1,1,7\n", encoding="utf-8")
    found = regression_inputs(read_table(path), "logistic", "y", ["x", "n"], drop_missing=True)
    assert found.table.frame["n"].dtype == np.int64
    assert found.table.frame["x"].tolist() == [1.5, 2.5, 0.5, 1.0]
