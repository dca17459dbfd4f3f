"""Tables from files: what they hold, and errors that name the line and the column."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxcoreset.command.inputs import import_model, model_inputs, regression_inputs
from jaxcoreset.command.problems import without_missing
from jaxcoreset.command.regressions import REGRESSIONS
from jaxcoreset.command.tables import Table, TableError, read_table

FRAME = pd.DataFrame(
    {
        "age": [31.5, 40.0, 22.25, 58.0],
        "visits": [0, 3, 1, 2],
        "member": [True, False, True, True],
        "town": ["Oslo", "Bergen", "Oslo", "Bodø"],
    }
)


def write(folder, text, name="people.csv"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def table_of(columns):
    """A table that came from a Parquet file, so that rows are counted from 1."""
    return Table(Path("people.parquet"), pd.DataFrame(columns))


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".npz"])
def test_table_read_is_the_table_written(suffix, tmp_path):
    path = tmp_path / f"people{suffix}"
    if suffix == ".parquet":
        FRAME.to_parquet(path)
    elif suffix == ".npz":
        arrays = {name: FRAME[name].to_numpy() for name in ("age", "visits", "member")}
        np.savez(path, town=np.array(FRAME["town"].tolist()), **arrays)
    else:
        FRAME.to_csv(path, sep="," if suffix == ".csv" else "\t", index=False)
    table = read_table(path)
    assert sorted(table.columns) == sorted(FRAME.columns)
    for name in ("age", "visits", "member"):
        np.testing.assert_array_equal(table.numbers(name), FRAME[name].astype(float))
    assert table.numbers("visits").dtype == np.int64
    codes, levels = table.labels("town")
    assert [levels[code] for code in codes] == FRAME["town"].tolist()
    assert levels == sorted(levels)


def test_categories_and_rows_have_the_text_of_the_file(tmp_path):
    path = tmp_path / "codes.csv"
    path.write_text("code,grade,id,x\n01,1,007,1.50\n1,2,008,2\n10,10,009,NA\n01,2,010,\n")
    table = read_table(path, ["code", "grade"])
    numbers, names = table.labels("code")
    assert (numbers.tolist(), names) == ([0, 1, 2, 0], ["01", "1", "10"])
    assert table.labels("grade")[1] == ["1", "2", "10"]
    written = table.as_written(np.array([0, 2, 3]))
    assert written.to_numpy().tolist() == [
        ["01", "1", "007", "1.50"],
        ["10", "10", "009", "NA"],
        ["01", "2", "010", ""],
    ]
    with pytest.raises(TableError, match=r"line 4, column 'x': .* \(written 'NA'\).*another way"):
        table.column("x")
    kept, (note,) = without_missing(table, ["x"])
    assert "Left out 2 of 4 rows, with missing values in 'x'. Cells with 'NA' count as" in note
    assert kept.as_written(np.array([1]))["id"].tolist() == ["008"]


def test_semicolons_and_a_byte_order_mark_are_understood(tmp_path):
    path = tmp_path / "people.csv"
    path.write_bytes("\ufeffage;town\n1.5;Oslo, N\n2;Bergen\n".encode())
    table = read_table(path)
    np.testing.assert_array_equal(table.numbers("age"), [1.5, 2.0])
    assert table.labels("town")[1] == ["Bergen", "Oslo, N"]


def test_matrix_in_npz_becomes_numbered_columns(tmp_path):
    matrix = np.arange(6.0).reshape(3, 2)
    np.savez(tmp_path / "m.npz", X=matrix, y=np.arange(3))
    table = read_table(tmp_path / "m.npz")
    assert table.matrix_columns("X") == ["X[0]", "X[1]"]
    assert table.matrix_columns("y") == []
    np.testing.assert_array_equal(table.numbers("X[1]"), matrix[:, 1])


def test_lines_are_counted_as_an_editor_does(tmp_path):
    """The header is line 1, a quoted value may span lines, and an empty line is no row."""
    text = 'age,note\n1,"two\nlines"\n\n2,fine\n   \nold,bad\n'
    lines = text.split("\n")
    path = write(tmp_path, text)
    bad_line = lines.index("old,bad") + 1
    with pytest.raises(TableError, match=rf"people.csv, line {bad_line}, column 'age': 'old' is"):
        read_table(path).numbers("age")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "age\n1\nx\n3\n?\n5\n-\n*\n#\n",
            r"line 3, column 'age': 'x' is text .*lines 5, 7, 8 and 1 .*number\. Do this\.$",
        ),
        ("age;b\n1,5;2\n2,5;3\n", "decimals with a point"),
        ("age,b\n1,2\n,3\nNA,4\n", r"line 3, column 'age': a value is missing .*line 4"),
        ({"age": [1.0, np.nan]}, r"row 2, column 'age': a value is missing"),
        ({"age": [1.0, np.inf]}, r"row 2, column 'age': the value is infinite"),
        ({"age": pd.to_datetime(["2013-01-01"])}, "dates or times"),
        ("Age,income\n1,2\n", r"no column 'age'; did you mean 'Age'\?"),
        ("zzz,income\n1,2\n", r"no column 'age'\. Its columns are 'zzz', 'income'"),
    ],
)
def test_columns_without_numbers_are_refused_by_line_or_row(text, message, tmp_path):
    table = read_table(write(tmp_path, text)) if isinstance(text, str) else table_of(text)
    with pytest.raises(TableError, match=message):
        table.numbers("age", "Do this.")


def test_missing_categories_and_files_are_told(tmp_path):
    with pytest.raises(TableError, match=r"row 1, column 'town': a value is missing"):
        table_of({"town": [None, "Oslo"]}).labels("town")
    write(tmp_path, "age")
    with pytest.raises(TableError, match=r"no file .*poeple.csv; did you mean 'people.csv'\?"):
        read_table(tmp_path / "poeple.csv")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "is empty"),
        ("a.csv", b"x,y\n", "no rows"),
        ("a.csv", b"x,x\n1,2\n", "line 1: the column name 'x' occurs more than once"),
        ("a.csv", b"x,y\n1,2\n1,2,3\n", "line 3 has 3 values, and the header has 2 names"),
        ("a.csv", b"x,y\n1,2,3\n1,2,3\n", "line 2 has 3 values, and the header has 2 names"),
        ("a.csv", "x\nBodø\n".encode("latin1"), "not text in UTF-8"),
        ("a.xlsx", b"PK", "Save a spreadsheet as CSV"),
        ("a.parquet", b"hello", "cannot be read as Parquet"),
        ("a.npz", b"\x93NUMPY\x01\x00", r"not an NPZ file, .*numpy\.savez((?!pickle).)*$"),
        ("a.csv", "\ufeffage,b\n1,2\n".encode("utf-16-le"), "iconv -f utf-16 -t utf-8"),
        ("a.csv", "\ufeffage,b\n1,2\n".encode("utf-16-be"), "iconv -f utf-16 -t utf-8"),
    ],
)
def test_files_that_are_no_table_are_refused(name, content, message, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(TableError, match=message):
        read_table(path)


def test_a_parquet_file_whose_notes_for_pandas_are_damaged_is_refused(tmp_path):
    table = pa.table(FRAME).replace_schema_metadata({b"pandas": b'{"index_columns": [{}]}'})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(TableError, match="cannot be read as Parquet"):
        read_table(tmp_path / "a.parquet")


def test_arrays_that_make_no_table_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(3), y=np.zeros(4))
    with pytest.raises(TableError, match="different numbers of rows: 'x' 3, 'y' 4"):
        read_table(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x=np.zeros((3, 2, 2)))
    with pytest.raises(TableError, match="shape"):
        read_table(tmp_path / "b.npz")


def test_missing_package_names_the_extra(monkeypatch, tmp_path):
    path = write(tmp_path, "a\n1\n")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'jaxcoreset\[tables\]'"):
        read_table(path)


def test_standardised_values_have_mean_zero_and_sd_one():
    for values in np.random.default_rng(0).normal([[5], [3e-13]], [[3], [1e-13]], (2, 200)):
        scaled, mean, sd = table_of({}).standardised("x", values)
        assert scaled.mean() == pytest.approx(0, abs=1e-12)
        assert scaled.std() == pytest.approx(1)
        np.testing.assert_allclose(scaled * sd + mean, values)


@pytest.mark.parametrize(
    ("likelihood", "values", "message"),
    [
        ("logistic", [0, 1, 2, 1], r"row 3, column 'y': found 2\. .*0 and 1"),
        ("logistic", ["yes", "no", "no", "yes"], r"row 1, column 'y': 'yes' is text.*recode"),
        ("poisson", [0, 1, 2, -3], r"row 4, column 'y': found -3\. .*counts"),
        ("negative_binomial", [0, 1.5, 2, 3], r"row 2, column 'y': found 1\.5\. .*counts"),
        ("student_t", [1.0, 1.0, 1.0, 1.0], r"'y' has the same value in every row"),
        ("categorical", ["a", "a", "a", "a"], r"'y' has 1 different values"),
    ],
)
def test_response_that_does_not_fit_is_refused(likelihood, values, message):
    with pytest.raises(TableError, match=message):
        regression_inputs(table_of({"age": FRAME["age"], "y": values}), likelihood, "y")


def test_regression_has_standardised_numbers_and_plain_categories():
    inputs = regression_inputs(table_of(FRAME), "poisson", "visits", categorical=["town"])
    assert inputs.coefficients == ["age", "member", "town = Bodø", "town = Oslo"]
    x = inputs.arguments["x"]
    age = FRAME["age"].to_numpy()
    np.testing.assert_allclose(x[:, 0], (age - age.mean()) / age.std())
    np.testing.assert_array_equal(x[:, 1], [1, 0, 1, 1])
    np.testing.assert_array_equal(x[:, 2:], [[0, 1], [0, 0], [0, 1], [1, 0]])
    np.testing.assert_array_equal(inputs.arguments["y"], FRAME["visits"])
    assert inputs.scaling == {"age": (pytest.approx(age.mean()), pytest.approx(age.std()))}
    assert inputs.parameter_name("beta[3]") == "town = Oslo"
    assert inputs.parameter_name("intercept") == "intercept"


def test_linear_regressions_standardise_the_response_unless_told_not_to():
    table = table_of({"x": [1.0, 2.0, 4.0], "y": [10.0, 30.0, 20.0]})
    scaled = regression_inputs(table, "normal", "y")
    assert scaled.arguments["y"].std() == pytest.approx(1)
    assert set(scaled.scaling) == {"x", "y"}
    plain = regression_inputs(table, "normal", "y", scale_columns=False)
    np.testing.assert_array_equal(plain.arguments["y"], [10, 30, 20])
    np.testing.assert_array_equal(plain.arguments["x"][:, 0], [1, 2, 4])
    assert plain.scaling == {}


def test_classes_are_named_against_the_first():
    table = table_of({"x": [1.0, 2.0, 4.0], "y": ["c", "a", "b"]})
    inputs = regression_inputs(table, "categorical", "y")
    np.testing.assert_array_equal(inputs.arguments["y"], [2, 0, 1])
    assert inputs.arguments["num_classes"] == 3
    assert inputs.parameter_name("beta[0,1]") == "x → c"
    assert inputs.parameter_name("intercept[0]") == "intercept → b"


SHOP = {"x": [1.0, 2.0, 3.0], "one": [7, 7, 7], "c": list("abc"), "y": [0, 1, 0]}


@pytest.mark.parametrize(
    ("columns", "categorical", "message"),
    [
        (None, [], "--categorical c"),
        (["x", "one"], [], "'one' has the same value in every row"),
        (["x", "y"], [], "'y', which the model already takes"),
        (["x", "x"], [], "'x' more than once"),
        (["x"], ["c"], "'c', which is not an explanatory column"),
        ([], ["c"], "'c', which is not an explanatory column"),
        (None, ["c", "y"], "'y', which is the response"),
        (["c", "c = b"], ["c"], r"would be called 'c = b', .*Rename a column"),
    ],
)
def test_columns_that_cannot_explain_are_refused(columns, categorical, message):
    table = table_of(SHOP | {"c = b": [1.0, 2.0, 4.0]})
    with pytest.raises(TableError, match=message):
        regression_inputs(table, "logistic", "y", columns, categorical)


def test_columns_of_one_value_are_left_out():
    inputs = regression_inputs(table_of(SHOP), "logistic", "y", categorical=["c"])
    assert inputs.coefficients == ["x", "c = b", "c = c"]
    assert any("'one' is left out" in note for note in inputs.notes)


def test_row_numbers_that_r_writes_explain_nothing(tmp_path):
    path = write(tmp_path, '"","x","y"\n"1",0.5,0\n"2",1.5,1\n"3",0.7,1\n')
    assert regression_inputs(read_table(path), "logistic", "y").coefficients == ["x"]


MODELS = """
import numpyro

def by_name(age, y, member=None, scale=2.0):
    pass

def matrix(X, visits):
    pass

number = 3
"""


@pytest.fixture
def models(tmp_path):
    return write(tmp_path, MODELS, "models_of_test_tables.py")


def test_models_arguments_are_columns_of_their_names(models):
    inputs = model_inputs(table_of(FRAME), f"{models}:by_name", "visits")
    assert sorted(inputs.arguments) == ["age", "member", "y"]
    np.testing.assert_array_equal(inputs.arguments["y"], FRAME["visits"])
    np.testing.assert_array_equal(inputs.arguments["age"], FRAME["age"])


def test_models_matrix_is_the_columns_left(models):
    table = table_of(FRAME)
    inputs = model_inputs(table, f"{models}:matrix", categorical=[], columns=["member", "age"])
    np.testing.assert_array_equal(inputs.arguments["X"], FRAME[["member", "age"]].astype(float))
    rest = model_inputs(table_of(FRAME.drop(columns="town")), f"{models}:matrix")
    np.testing.assert_array_equal(rest.arguments["X"], FRAME[["age", "member"]].astype(float))
    numbered = table_of({"X[0]": [1, 2], "X[1]": [3, 4], "visits": [0, 1], "other": [5, 6]})
    matrix = model_inputs(numbered, f"{models}:matrix").arguments["X"]
    np.testing.assert_array_equal(matrix, [[1, 3], [2, 4]])


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("by_nam", {"response": "visits"}, r"no function 'by_nam'; did you mean 'by_name'\?"),
        ("number", {}, "no function 'number'"),
        ("by_name", {}, "argument 'y'.* or name it with --response"),
        ("by_name", {"response": "visits", "columns": ["town"]}, "--columns names 'town', which"),
        ("matrix", {"response": "age"}, "--response names 'age', which"),
        ("matrix", {"columns": ["age"], "categorical": ["town"]}, "--categorical names 'town'"),
        ("matrix", {}, "'Oslo' is text"),
    ],
)
def test_models_that_do_not_fit_the_table_are_refused(spec, options, message, models):
    with pytest.raises(TableError, match=message):
        model_inputs(table_of(FRAME), f"{models}:{spec}", **options)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("models", "module:function"),
        ("absent_for_test_tables.py:model", "there is no file"),
        ("not_there_at_all:model", "no module 'not_there_at_all'"),
        ("broken_for_test_tables.py:model", "ZeroDivisionError"),
    ],
)
def test_models_that_cannot_be_imported_are_told(spec, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "import numpyro\n1 / 0\n", "broken_for_test_tables.py")
    with pytest.raises(TableError, match=message):
        import_model(spec)


@pytest.mark.parametrize(
    ("values", "levels"),
    [
        (["02", "NA", "01"], ["01", "02", "NA"]),
        ([10, 9, 10], ["9", "10"]),
        (np.array([0.1, 1e-5], np.float32), ["1e-05", "0.1"]),
        ([True, False], ["False", "True"]),
        (pd.array([True, False], dtype="boolean"), ["False", "True"]),
        (pd.Categorical(["b", "a"], categories=["b", "a"]), ["a", "b"]),
        (pd.to_datetime(["2020-01-02", "2020-01-01"]), ["2020-01-01", "2020-01-02"]),
        (
            [pd.Timestamp("2020-01-01"), pd.Timestamp("2020-01-01 12:00")],
            ["2020-01-01", "2020-01-01 12:00:00"],
        ),
        (["a", 2, "a"], ["2", "a"]),
    ],
)
def test_categories_are_named_as_the_coreset_file_has_them(values, levels):
    codes, found = table_of({"c": values}).labels("c")
    assert found == levels
    if not isinstance(values[0], pd.Timestamp):
        assert [found[code] for code in codes] == [str(value) for value in values]


def test_numbers_beyond_int64_stay_positive():
    values = np.array([1, 2**63, 2**64 - 1], np.uint64)
    np.testing.assert_array_equal(table_of({"a": values}).numbers("a"), values.astype(float))
    assert table_of({"a": values[:1]}).numbers("a").dtype == np.int64


@pytest.mark.parametrize("values", [np.full(4, 1e6), 1e6 + np.array([0, 1e-9, 0, 1e-9])])
def test_values_that_differ_only_by_rounding_are_refused(values):
    with pytest.raises(TableError, match=r"people.parquet, column 'x': .*differ only by rounding"):
        table_of({}).standardised("x", values)


def test_counts_that_jax_cannot_hold_are_refused():
    most = 2**31 - 1
    table = table_of({"x": [1.0, 2.0], "y": [0, most], "more": [0, most + 1]})
    counts = regression_inputs(table, "poisson", "y", ["x"]).arguments["y"]
    np.testing.assert_array_equal(counts, [0, most])
    with pytest.raises(TableError, match=r"row 2, column 'more': .*counts up to 2,147,483,647"):
        regression_inputs(table, "poisson", "more", ["x"])


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("y, age, size \n1,2,3\n", ["y", "age", "size"]),
        ("y, age,age\n1,2,3\n", ["y", " age", "age"]),  # or two would become equal
        ('"a, b, c";"say ""x"", y";z\n1;2;3\n', ["a, b, c", 'say "x", y', "z"]),
    ],
)
def test_names_are_read_without_spaces_around_them(text, names, tmp_path):
    assert read_table(write(tmp_path, text)).columns == names


def test_every_regression_has_a_title():
    assert len({regression.title for regression in REGRESSIONS.values()}) == len(REGRESSIONS) == 6
