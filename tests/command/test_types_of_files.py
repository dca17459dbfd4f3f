"""Types of columns: the model gets the numbers of the file, and the output keeps its values."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from numpyro.infer.util import log_density

import jaxcoreset as jc
from jaxcoreset.command import export
from jaxcoreset.command import main as cli
from jaxcoreset.command.inputs import formula_inputs, model_inputs, regression_inputs
from jaxcoreset.command.tables import TableError, read_table
from tests.command.programs import prepared

RNG = np.random.default_rng(0)

SURVIVAL = """
import numpyro
import numpyro.distributions as dist

def survival(t, censored):
    rate = numpyro.sample("rate", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("rows", t.shape[0]):
        with numpyro.handlers.mask(mask=~censored):
            numpyro.sample("t", dist.Exponential(rate), obs=t)
        with numpyro.handlers.mask(mask=censored):
            numpyro.factor("later", -rate * t)

def matrix(X, t):
    pass
"""


def build(*arguments):
    return cli.main(["build", *map(str, arguments), "--no-progress"])


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_a_model_may_negate_a_column_of_true_and_false(suffix, tmp_path):
    """The log density of censored times has a closed form: d log(rate) - rate sum(t)."""
    t = RNG.exponential(1.0, 64)
    frame = pd.DataFrame({"t": np.minimum(t, 1.0), "censored": t > 1.0})
    model, file = tmp_path / f"survival_{suffix[1:]}.py", tmp_path / f"times{suffix}"
    model.write_text(SURVIVAL, encoding="utf-8")
    if suffix == ".npz":
        np.savez(file, t=frame["t"].to_numpy(), censored=frame["censored"].to_numpy())
    else:
        getattr(frame, f"to_{suffix[1:]}")(file, index=False)
    out = tmp_path / "coreset.npz"
    assert build(file, "--model", f"{model}:survival", "--size", 64, "--out", out) == 0
    coreset = jc.load(out, trust=True)
    at = [float(log_density(coreset.model, (), coreset.kwargs, {"rate": r})[0]) for r in (0.5, 2.0)]
    likelihood = np.log(4.0) * (t <= 1.0).sum() - 1.5 * frame["t"].sum()
    # The normal densities of log 2 and log 1/2 are equal, so the prior's differ by log 4.
    assert at[1] - at[0] == pytest.approx(likelihood - np.log(4.0), rel=1e-5)
    numbers = model_inputs(read_table(file), f"{model}:matrix", columns=["censored"])
    np.testing.assert_array_equal(numbers.arguments["X"][:, 0], (t > 1.0).astype(int))
    assert numbers.arguments["X"].dtype == np.int64


A, B = RNG.integers(-128, 128, (2, 60))
SMALL = pd.DataFrame({"a": A, "b": B, "half": RNG.normal(0, 8, 60).astype(np.float16)})
SMALL["late"] = RNG.integers(0, 2, 60)
EXPECTED = {
    "I(a ** 2)": A.astype(float) ** 2,
    "a - b": (A - B).astype(float),
    "a:b": (A * B).astype(float),
    "I(half ** 2)": SMALL["half"].astype(float).to_numpy() ** 2,
    "C(c)[T.3]": (np.abs(A) % 4 == 3).astype(float),
    "C(c // 2)[T.1]": (np.abs(A) % 4 >= 2).astype(float),
    "a:C(short)[1.5]": np.where(B > 0, A, 0.0),
    "huge:b": 2**50 * A.astype(float) * B,
}


@pytest.mark.parametrize("dtype", ["int8", "int16", "Int8", "float32", "int64"])
def test_a_formula_does_not_compute_in_the_types_of_the_file(dtype, tmp_path):
    """Compared with the same terms in float64. Categories keep the names of the file."""
    pytest.importorskip("formulaic")
    path = tmp_path / "small.parquet"
    written = SMALL.astype({"a": dtype, "b": dtype}).assign(huge=2**50 * A)
    written["c"] = (np.abs(A) % 4).astype(np.uint8)
    written["short"] = np.where(B > 0, 1.5, 0.5).astype(np.float32)
    written["id"] = 2**60 + np.arange(60) % 3
    written.to_parquet(path)
    terms = "I(a**2) + {a - b} + a:b + I(half**2) + C(c) + C(c // 2) + a:C(short) + huge:b + C(id)"
    found = formula_inputs(read_table(path), "logistic", f"late ~ {terms}", scale_columns=False)
    x = dict(zip(found.coefficients, found.arguments["x"].T, strict=True))
    for name, values in EXPECTED.items():
        np.testing.assert_allclose(x[name], values, rtol=1e-12, err_msg=name)
    np.testing.assert_array_equal(x[f"C(id)[T.{2**60 + 1}]"], np.arange(60) % 3 == 1)
    with pytest.raises(TableError, match=r"column 'id': float64 cannot tell 1152921504606846977"):
        formula_inputs(read_table(path), "logistic", "late ~ C(id) + I(id - 1)")


CHOSEN = ["--likelihood", "logistic", "--response", "late", "--columns", "x", "--size", 64]
IDS = [None if i % 5 == 0 else 2**60 + i for i in range(60)]
ROWS = pd.DataFrame({"x": RNG.normal(size=60), "late": RNG.integers(0, 2, 60)})


def test_columns_of_a_parquet_file_are_written_unchanged(tmp_path):
    """As many rows as there are: the Arrow columns are equal, types and missing values too."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "id": pa.array(IDS, pa.int64()),
        "unsigned": pa.array([None, *range(2**64 - 59, 2**64)], pa.uint64()),
        "code": pa.array([None if i is None else str(i) for i in IDS]).dictionary_encode(),
        "number": pa.array(IDS, pa.int64()).dictionary_encode(),
        "list": pa.array([[i, 1] for i in IDS], pa.list_(pa.int64())),
        "nan": pa.array([None if i % 3 else np.nan for i in range(60)], pa.float32()),
        "time": pa.array(range(60), pa.time64("us")),
    }
    frame = ROWS.set_index(pd.Index(np.arange(60) + 7, name="key"))
    source = pa.Table.from_pandas(frame, preserve_index=True)
    for name, values in columns.items():
        source = source.append_column(name, values)
    path, out = tmp_path / "rows.parquet", tmp_path / "out.parquet"
    pq.write_table(source, path)
    source = pq.read_table(path)
    assert build(path, *CHOSEN, "--out", out) == 0
    written = pq.read_table(out)
    assert written.column_names == ["row", "weight", "key", "x", "late", *columns]
    kept = source.take(written.column("row"))
    for name in written.column_names[2:]:
        assert written.column(name).type == kept.column(name).type
        equal = [str(value) for value in kept.column(name).to_pylist()]
        assert [str(value) for value in written.column(name).to_pylist()] == equal, name
    assert len(pd.read_parquet(out)) == len(written) > 40
    out = out.with_suffix(".csv")
    assert build(path, *CHOSEN, "--out", out) == 0
    texts = pd.read_csv(out, dtype=str, keep_default_na=False)
    for name in ("id", "number", "code", "unsigned", "key"):
        values = source.column(name).take(pa.array(texts["row"].astype(int))).to_pylist()
        assert texts[name].tolist() == ["" if value is None else str(value) for value in values]


def test_text_of_a_file_is_not_written_as_another_number(tmp_path):
    pytest.importorskip("pyarrow")
    texts = {
        "zip": [f"{i:05d}" for i in range(60)],
        "id": ["" if i is None else str(i) for i in IDS],
        "wide": ["NA" if i is None else str(i) for i in range(2**63, 2**63 + 59)] + ["NA"],
        "version": ["1.10", "1.9"] * 30,
        "country": ["NA", "NO", ""] * 20,
        "count": [str(i) for i in range(60)],
        "share": [str(i / 7) for i in range(59)] + ["2"],
        "member": ["True", "", "False"] * 20,
    }
    path, out = tmp_path / "rows.csv", tmp_path / "out.parquet"
    ROWS.assign(**texts, x=[f"{i:03d}.50" for i in range(60)]).to_csv(path, index=False)
    assert build(path, *CHOSEN, "--out", out) == 0
    written = pd.read_parquet(out)
    for name in ("zip", "version", "country", "wide"):
        expected = [texts[name][row] or None for row in written["row"]]
        assert written[name].astype(object).where(written[name].notna(), None).tolist() == expected
    assert [None if i is pd.NA else i for i in written["id"]] == [IDS[i] for i in written["row"]]
    assert written["count"].tolist() == written["row"].tolist()
    assert written["share"].tolist() == [float(texts["share"][row]) for row in written["row"]]
    assert written["member"].map(str, na_action="ignore").fillna("").tolist() == [
        texts["member"][row] for row in written["row"]
    ]
    assert written["x"].tolist() == [row + 0.5 for row in written["row"]]  # used as a number


ZIPS = ["02139", "10115", "00089", "94105", "60601", "73301"] * 10


@pytest.mark.parametrize("kind", ["str", "string", "category", "npz", "bytes", "response"])
def test_text_of_digits_is_no_number_in_a_file_with_types(kind, tmp_path):
    path = tmp_path / ("rows.npz" if kind in ("npz", "bytes") else "rows.parquet")
    if path.suffix == ".npz":
        zips = np.array(ZIPS, "S" if kind == "bytes" else "U")
        np.savez(path, zip=zips, x=ROWS["x"].to_numpy(), late=ROWS["late"].to_numpy())
    elif kind == "response":
        ROWS.assign(late=ROWS["late"].astype(str)).to_parquet(path)
    else:
        ROWS.assign(zip=pd.Series(ZIPS, dtype=kind)).to_parquet(path)
    table = read_table(path)
    name, digits = ("late", str(ROWS["late"][0])) if kind == "response" else ("zip", "02139")
    message = rf"row 1, column '{name}': .*{digits}.* is text.*Save '{name}' as numbers if"
    with pytest.raises(TableError, match=message):
        regression_inputs(table, "logistic", "late")
    if kind != "response":
        found = regression_inputs(table, "logistic", "late", categorical=["zip"])
        assert len(found.levels["zip"]) == 6


def test_decimals_and_text_files_still_have_numbers(tmp_path):
    pytest.importorskip("pyarrow")
    frame = ROWS.assign(price=[Decimal(i) / 4 for i in range(60)], zip=ZIPS)
    frame.to_parquet(tmp_path / "rows.parquet")
    frame.to_csv(tmp_path / "rows.csv", index=False)
    price = read_table(tmp_path / "rows.parquet").numbers("price")
    np.testing.assert_array_equal(price, np.arange(60) / 4)
    zips = read_table(tmp_path / "rows.csv").numbers("zip")
    np.testing.assert_array_equal(zips, [int(text) for text in ZIPS])


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_programs_scale_short_floats_as_the_build_does(suffix, tmp_path, monkeypatch):
    """Years in float16 and sums in float32, whose deviations are small next to their mean."""
    pytest.importorskip("pyarrow")
    frame = ROWS.assign(
        year=RNG.integers(1990, 2024, 60).astype(np.float16),
        total=RNG.normal(1e5, 3, 60).astype(np.float32),
        price=[Decimal(i) / 4 for i in range(60)],
    )
    frame.to_parquet(tmp_path / "rows.parquet")
    found = regression_inputs(read_table(tmp_path / "rows.parquet"), "logistic", "late")
    assert set(found.scaling) == {"x", "year", "total", "price"}
    out = tmp_path / f"out{suffix}"
    monkeypatch.chdir(tmp_path)
    given = ["--likelihood", "logistic", "--response", "late", "--size", 64]
    assert build("rows.parquet", *given, "--out", out) == 0
    namespace = prepared(export.programs(found, out))
    written = pd.read_csv(out) if suffix == ".csv" else pd.read_parquet(out)
    expected = found.arguments["x"][written["row"]]
    np.testing.assert_allclose(namespace["x"], expected, rtol=1e-9, atol=1e-9)
