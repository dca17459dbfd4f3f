"""Parquet files as a source, held to the table that they were written from."""

import importlib
import os

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxcoreset.data.sources import batches, parquet
from tests.data.sources.tables import N, told, write


def test_columns_keep_their_kind_alone_and_are_real_together(tmp_path, table):
    path = write(tmp_path / "t.parquet", table)
    source = parquet(path, a="a", b="b", count="count", late="late", both=["count", "late"])
    arrays = source.arrays
    kinds = {name: np.dtype(x.dtype).name for name, x in arrays.items()}
    expected = dict.fromkeys(("a", "b", "both"), "float32") | {"count": "int32", "late": "bool"}
    assert kinds == expected
    for name in ("a", "b", "count", "late"):
        np.testing.assert_array_equal(arrays[name][:], table[name].astype(kinds[name]))
    both = np.stack([table["count"], table["late"]], axis=1)
    np.testing.assert_array_equal(arrays["both"][:], both)
    asked = parquet(path, dtype=np.float16, late="late", x=["a"]).arrays
    assert {str(x.dtype) for x in asked.values()} == {"float16"}
    assert asked["x"].shape == (N, 1)


def test_with_x64_nothing_is_shortened(tmp_path, table):
    path = write(tmp_path / "t.parquet", table)
    with jax.enable_x64(True):
        arrays = parquet(path, b="b", count="count").arrays
        listed = batches([table["b"]], N).arrays
    assert (arrays["b"].dtype, arrays["count"].dtype) == (np.float64, np.int64)
    np.testing.assert_array_equal(arrays["b"][:], table["b"])
    np.testing.assert_array_equal(listed[:], table["b"])


def test_taking_reads_only_the_row_groups_that_hold_wanted_rows(folder, table, monkeypatch):
    asked = []
    original = pq.ParquetFile.iter_batches

    def spy(self, *args, **kwargs):
        asked.append((kwargs["row_groups"], kwargs["columns"]))
        return original(self, *args, **kwargs)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spy)
    (taken,) = parquet(folder, y="count").take(np.array([399, 10, 300]))
    np.testing.assert_array_equal(taken, table["count"][[399, 10, 300]])
    assert asked == [([0], ["count"]), ([3], ["count"])]


def test_a_huge_row_group_is_read_in_parts(tmp_path, monkeypatch):
    # The package's attribute of this name is the function.
    module = importlib.import_module("jaxcoreset.data.sources.parquet")
    monkeypatch.setattr(module, "BATCH_BYTES", 8_000)
    values = np.arange(10_000.0)
    pq.write_table(pa.table({"a": values}), tmp_path / "t.parquet", row_group_size=10_000)
    parts = list(parquet(tmp_path / "t.parquet", y="a").batches(5_500))
    assert max(len(leaf) for _, (leaf,) in parts) <= 1_000
    np.testing.assert_array_equal(np.concatenate([x for _, (x,) in parts])[-4500:], values[5500:])


def test_decimals_are_numbers_and_missing_values_are_told_by_place(tmp_path):
    price = pa.array([1, 2, 3], pa.decimal128(8, 2))
    gaps = pa.array([1.0, None, None])
    pq.write_table(pa.table({"price": price, "gaps": gaps}), tmp_path / "t.parquet")
    path = tmp_path / "t.parquet"
    np.testing.assert_array_equal(parquet(path, y="price").arrays["y"][:], [1, 2, 3])
    with told(r"t\.parquet, rows 0 to 2: column 'gaps' has 2 missing .*row 1;"):
        parquet(path, y="gaps").arrays["y"][:]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, r"not given the columns .* The columns are 'a', 'day', 'text', 'who'"),
        ({"y": "A"}, r"no column 'A'; did you mean 'a'\?"),
        ({"y": "text"}, r"'text' is of type .*string.* categories=\['text'\]"),
        ({"y": "day"}, r"'day' is of type timestamp.* number of days"),
        ({"y": "who"}, r"'who' is of type text in the folder's name, 'me'; expected real numbers"),
        ({"y": "a", "categories": ["b"]}, r"categories names 'b', .* expected some of 'a'"),
        ({"y": "day", "categories": "day"}, r"'day' is of type timestamp.* text or numbers"),
        ({"X": []}, r"X is \[\]; expected a column's name"),
    ],
)
def test_columns_that_cannot_be_used_are_refused_at_the_door(tmp_path, columns, message):
    data = {"a": [1.0], "day": np.array(["2013-01-01"], "M8[ns]"), "text": ["x"]}
    (tmp_path / "who=me").mkdir()
    pq.write_table(pa.table(data), tmp_path / "who=me" / "t.parquet")
    with told(message):
        parquet(tmp_path, **columns)


def test_nan_is_not_a_category(tmp_path):
    pq.write_table(pa.table({"code": [1.0, np.nan, 2.0, np.nan]}), tmp_path / "t.parquet")
    source = parquet(tmp_path, categories=["code"], code="code")
    assert source.categories["code"].tolist() == [1, 2]
    with told("value nan, which is not among its 2 categories"):
        source.arrays["code"][:]
    with told("expected the different values"):
        parquet(tmp_path, categories={"code": [1.0, 2.0, np.nan]}, code="code")


def test_categories_become_the_places_of_their_sorted_values(tmp_path):
    rng = np.random.default_rng(0)
    tail, engines = rng.choice(["N9", "N10", "Ü"], 300), rng.choice([4, 1, 2], 300)
    for i, carrier in enumerate(["UA", "AA"]):  # the second one with a dictionary of its own
        (tmp_path / f"carrier={carrier}").mkdir()
        rows = slice(150 * (1 - i), 150 * (2 - i))  # AA comes first
        kept = pa.array(tail[rows])
        data = {"tail": kept.dictionary_encode() if i else kept, "engines": engines[rows]}
        pq.write_table(pa.table(data), tmp_path / f"carrier={carrier}" / "t.parquet")
    coded = ["tail", "carrier", "engines"]
    source = parquet(tmp_path, categories=coded, **{name: name for name in coded})
    arrays = {name: array[:] for name, array in source.arrays.items()}
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.int32)}
    carrier = np.repeat(["AA", "UA"], 150)
    for name, values in {"tail": tail, "carrier": carrier, "engines": engines}.items():
        names, numbers = np.unique(values, return_inverse=True)
        np.testing.assert_array_equal(source.categories[name], names)
        np.testing.assert_array_equal(arrays[name], numbers)
    assert source.fingerprint() != parquet(tmp_path, y="engines").fingerprint()


def test_names_of_folders_are_columns(tmp_path, table):
    for year, share, first, last in ((9, "0.5", 0, 400), (10, "1", 400, N)):
        (at := tmp_path / f"year={year}" / f"share={share}").mkdir(parents=True)
        write(at / "0.parquet", table, first=first, last=last)
    source = parquet(tmp_path, X=["year", "a"], year="year", share="share", by=["share", "year"])
    assert {str(leaf.dtype) for leaf in source.leaves} == {"float32", "int32"}
    # In the order of the names as text: 10 comes before 9.
    rows = np.concatenate([np.arange(400, N), np.arange(400)])
    year = np.where(rows < 400, 9, 10)
    np.testing.assert_array_equal(source.arrays["year"][:], year)
    np.testing.assert_array_equal(source.arrays["share"][:], np.where(rows < 400, 0.5, 1))
    x = np.stack([year, table["a"][rows]], axis=1).astype(np.float32)
    np.testing.assert_array_equal(source.arrays["X"][np.array([5, 900])], x[[5, 900]])
    np.testing.assert_array_equal(parquet(tmp_path, y="year").arrays["y"][:], year)


def test_a_folder_named_by_a_number_of_any_size_is_a_column_or_told(tmp_path):
    for text in ("9" * 30, "3000000000"):
        (tmp_path / text / f"id={text}").mkdir(parents=True)
        pq.write_table(pa.table({"a": [1.0]}), tmp_path / text / f"id={text}" / "t.parquet")
    assert parquet(tmp_path / ("9" * 30), y="id").arrays["y"][:] == np.float32(1e30)
    with told("column 'id' is 3000000000 in row 0, which int32"):
        parquet(tmp_path / "3000000000", y="id").arrays["y"][:]


def test_files_of_other_file_systems_are_read(folder, table):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.put(str(folder), "/journeys", recursive=True)
    try:
        local = parquet(folder, X=["a", "b"], y="late")
        for source in (
            parquet("memory://journeys", X=["a", "b"], y="late"),
            parquet("journeys/", filesystem=memory, X=["a", "b"], y="late"),
            parquet(f"file://{folder}", X=["a", "b"], y="late"),
        ):
            assert source.num_rows == N
            for name in ("X", "y"):
                np.testing.assert_array_equal(source.arrays[name][450:], local.arrays[name][450:])
        with told(r"memory://journey; did you mean 'journeys'"):
            parquet("memory://journey", y="a")
        remote = parquet("memory://journeys", y="a")
        memory.rm("/journeys/1.parquet")
        with told(r"1\.parquet was changed after"):
            list(remote.batches())
    finally:
        memory.rm("/journeys", recursive=True)
    with told(r"Install fsspec|known"):
        parquet("nowhere://trips", y="a")


def test_several_files_are_read_in_the_order_of_a_list(folder, table, monkeypatch, untyped):
    names = [folder / "later" / "0.parquet", str(folder / "1.parquet")]
    source = parquet(names, X=["a", "b"], y="late")
    expected = np.concatenate([table["late"][401:], table["late"][400:401]])
    np.testing.assert_array_equal(source.arrays["y"][:], expected)
    assert source.name == f"{names[0]} and 1 more"
    np.testing.assert_array_equal(
        parquet([folder], y="a").arrays["y"][:], parquet(folder, y="a").arrays["y"][:]
    )
    monkeypatch.chdir(folder)
    np.testing.assert_array_equal(parquet("[01].parquet", y="a").arrays["y"][:], table["a"][:401])
    for given, message in (
        ("x*.parquet", r"no file matches x\*\.parquet"),
        ([], "an empty list of files has no rows"),
        (folder.glob("*.parquet"), r"expected a file, a folder, or a list of them, such as sorted"),
        (["1.parquet", "2.parquet"], r"no file or folder 2\.parquet"),
        (f"file://{folder}/*.parquet", "a list of files instead of a pattern"),
    ):
        with told(message):
            parquet(given, y="a")


def test_files_that_do_not_fit_the_first_are_refused(tmp_path):
    for name, dtype in (("0", np.float32), ("1", np.float64)):
        pq.write_table(pa.table({"a": np.ones(3, dtype)}), tmp_path / f"{name}.parquet")
    with told(r"1\.parquet: column 'a' is of type float64; expected float32"):
        parquet(tmp_path, y="a")
    os.rename(tmp_path / "0.parquet", tmp_path / "2.parquet")
    assert parquet(tmp_path, y="a").num_rows == 6


def test_a_file_that_is_missing_cut_short_or_replaced_is_told(tmp_path, table, folder):
    with told(r"there is no file or folder .*tripz; did you mean 'trips'"):
        parquet(tmp_path / "tripz", y="a")
    (tmp_path / "empty").mkdir()
    with told(r"no file below .* ends in \.parquet"):
        parquet(tmp_path / "empty", y="a")
    source = parquet(folder, y="a")
    passing = source.batches()
    next(passing)
    write(folder / "1.parquet", table, first=100, last=105)
    with told(r"1\.parquet was changed after it was opened"):
        list(passing)
    content = (folder / "0.parquet").read_bytes()
    (folder / "0.parquet").write_bytes(content[: len(content) // 2])
    with told(r"0\.parquet was changed"):
        source.take(np.array([3]))
    with told(r"0\.parquet cannot be read as Parquet"):
        parquet(folder, y="a")


def test_a_damaged_page_is_an_error_of_the_source(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": np.arange(9000.0)}), path, use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[4:400] = bytes(396)
    path.write_bytes(content)
    with told("cannot be read"):
        list(parquet(path, y="a").batches())


def test_without_pyarrow_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r"jaxcoreset\[tables\]"):
        parquet(tmp_path, y="a")


def in_folders(root, name, values):
    for i, value in enumerate(values):
        (root / f"{name}={value}").mkdir(parents=True)
        pq.write_table(pa.table({"a": [float(i)]}), root / f"{name}={value}" / "t.parquet")
    return root


def test_text_of_folders_stays_text_unless_all_of_it_is_plain_numbers(tmp_path):
    codes = in_folders(tmp_path / "codes", "code", ["01", "1", "1_0"])
    source = parquet(codes, code="code", a="a", categories=["code"])
    assert source.categories["code"].tolist() == ["01", "1", "1_0"]
    taken = dict(zip(source.arrays["a"][:], source.arrays["code"][:], strict=True))
    assert taken == {0.0: 0, 1.0: 1, 2.0: 2}
    with told("'code' is of type text in the folder's name, '01'"):
        parquet(codes, code="code")
    months = in_folders(tmp_path / "months", "month", ["01", "02", "12"])
    np.testing.assert_array_equal(parquet(months, m="month").arrays["m"][:], [1, 2, 12])
    assert parquet(months, m="month", categories="month").categories["month"].tolist()[0] == "01"


def test_names_of_folders_are_decoded_and_a_missing_one_is_told(tmp_path):
    pd = pytest.importorskip("pandas")
    values = ["A B", "C/D", "ü", None]
    pd.DataFrame({"carrier": values[:3], "a": np.arange(3.0)}).to_parquet(
        tmp_path / "whole", partition_cols=["carrier"]
    )
    source = parquet(tmp_path / "whole", carrier="carrier", a="a", categories=["carrier"])
    assert source.categories["carrier"].tolist() == values[:3]
    names = source.categories["carrier"][source.arrays["carrier"][:]]
    np.testing.assert_array_equal(names[np.argsort(source.arrays["a"][:])], values[:3])
    pd.DataFrame({"carrier": values, "year": [1, 2, 3, None], "a": np.arange(4.0)}).to_parquet(
        tmp_path / "missing", partition_cols=["carrier", "year"]
    )
    with told("'carrier' has a missing value in all rows, .* named carrier=__HIVE"):
        parquet(tmp_path / "missing", carrier="carrier", categories=["carrier"])
    with told("'year' has a missing value"):
        parquet(tmp_path / "missing", year="year")
    assert parquet(tmp_path / "missing", a="a").num_rows == 4  # a column that is not read
