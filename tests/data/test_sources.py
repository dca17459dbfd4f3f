"""Sources of rows, held to the arrays that they were made from and to what pyarrow itself reads."""

import importlib
import itertools
import os
import re
from pathlib import Path

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

from jaxcoreset.data.sources import SourceArray, SourceError, array, batches, npy, parquet

N = 1_003
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "big-data.md"


@pytest.fixture
def table() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "a": rng.normal(size=N).astype(np.float32),
        "b": rng.normal(size=N),
        "count": rng.integers(-5, 5, N),
        "late": rng.random(N) < 0.3,
    }


def write(path, table, *, group=100, first=0, last=N):
    columns = {name: values[first:last] for name, values in table.items()}
    pq.write_table(pa.table(columns), path, row_group_size=group)
    return path


@pytest.fixture
def folder(tmp_path, table):
    """Three files, one of them in a folder below, and things beside that are no data."""
    (tmp_path / "trips" / "later").mkdir(parents=True)
    write(tmp_path / "trips" / "0.parquet", table, last=400)
    write(tmp_path / "trips" / "1.parquet", table, first=400, last=401)
    write(tmp_path / "trips" / "later" / "0.parquet", table, first=401, group=1000)
    (tmp_path / "trips" / "_metadata.parquet").write_bytes(b"no rows")
    (tmp_path / "trips" / "notes.txt").write_text("nothing")
    return tmp_path / "trips"


def h5(tmp_path, table):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("X", data=matrix(table), chunks=(64, 2), compression="gzip")
    return array(h5py.File(tmp_path / "x.h5")["X"])


def matrix(table):
    return np.stack([table["a"], table["b"]], axis=1).astype(np.float32)


def uneven(values, sizes=(7, 0, 300, 1)):
    """Batches of changing sizes that are all the rows."""
    edges = np.minimum(np.cumsum([0, *sizes, *[97] * 20]), len(values))
    return [values[a:b] for a, b in itertools.pairwise(edges)]


def make(kind, tmp_path, table, folder):
    match kind:
        case "parquet":
            return parquet(folder, X=["a", "b"])
        case "hdf5":
            return h5(tmp_path, table)
        case "zarr":
            stored = zarr.create_array(
                store=str(tmp_path / "x.zarr"), shape=(N, 2), dtype="f4", chunks=(50, 1)
            )
            stored[:] = matrix(table)
            return array({"X": zarr.open_array(str(tmp_path / "x.zarr"), mode="r")})
        case _:
            return batches([{"X": part} for part in uneven(matrix(table))], N)


KINDS = ("parquet", "hdf5", "zarr", "batches")


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_hands_on_the_rows_that_were_written(kind, tmp_path, table, folder):
    source, wanted = make(kind, tmp_path, table, folder), matrix(table)
    (x,) = jax.tree.leaves(source.arrays)
    assert isinstance(x, SourceArray)
    assert (x.shape, x.dtype, len(x), x.ndim) == ((N, 2), np.float32, N, 2)
    assert (x.size, x.nbytes) == (2 * N, 8 * N)
    assert jax.tree.structure(source.arrays) == source.tree
    for first in (0, 1, 400, 777, N - 1, N):
        at = 0
        for start, (leaf,) in source.batches(first):
            assert at == 0 or at == start
            assert start + len(leaf) > first
            np.testing.assert_array_equal(leaf, wanted[start : start + len(leaf)])
            at = start + len(leaf)
        assert at == (N if first < N else 0)
    rows = np.array([1002, 0, 5, 5, 400, 401, 399, 0])
    np.testing.assert_array_equal(source.take(rows)[0], wanted[rows])
    np.testing.assert_array_equal(x[rows], wanted[rows])
    np.testing.assert_array_equal(x[390:405], wanted[390:405])
    np.testing.assert_array_equal(x[:], wanted)
    assert x[5:5].shape == x[np.array([], int)].shape == (0, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fingerprint_stays_and_differs_where_the_data_do(kind, tmp_path, table, folder):
    one = make(kind, tmp_path, table, folder)
    before = one.fingerprint()
    assert one.fingerprint() == before
    if kind in ("zarr", "batches"):  # no files with a time of change
        table["a"][3] += 1
        if kind == "zarr":
            for file in (tmp_path / "x.zarr").rglob("*"):
                os.chmod(file, 0o777)
            zarr.open_array(str(tmp_path / "x.zarr"), mode="a")[3, 0] = 9
            assert one.fingerprint() != before
            return
        assert make(kind, tmp_path, table, folder).fingerprint() != before
        data = [np.ones(3)]
        assert batches(data, 3).fingerprint() != batches(data, 3, fingerprint="v2").fingerprint()
        return
    file = folder / "1.parquet" if kind == "parquet" else tmp_path / "x.h5"
    os.utime(file, ns=(1, 1))
    again = parquet(folder, X=["a", "b"]) if kind == "parquet" else array(h5py.File(file)["X"])
    assert again.fingerprint() != before


def test_columns_keep_their_kind_alone_and_are_real_together(tmp_path, table):
    path = write(tmp_path / "t.parquet", table)
    source = parquet(path, a="a", b="b", count="count", late="late", both=["count", "late"])
    arrays = source.arrays
    kinds = {name: np.dtype(x.dtype).name for name, x in arrays.items()}
    assert kinds == {
        "a": "float32",
        "b": "float32",
        "count": "int32",
        "late": "bool",
        "both": "float32",
    }
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
    with pytest.raises(
        SourceError, match=r"t\.parquet, rows 0 to 2: column 'gaps' has 2 missing .*row 1;"
    ):
        parquet(path, y="gaps").arrays["y"][:]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, r"not told which columns .* The columns are 'a', 'day', 'text', 'who'"),
        ({"y": "A"}, r"no column 'A'; did you mean 'a'\?"),
        ({"y": "text"}, r"'text' is of type .*string.* Encode"),
        ({"y": "day"}, r"'day' is of type timestamp.* number of days"),
        ({"y": "who"}, r"'who' is of type text in the folder's name, 'me'; expected real numbers"),
        ({"X": []}, r"X is \[\]; expected a column's name"),
    ],
)
def test_columns_that_cannot_be_used_are_refused_at_the_door(tmp_path, columns, message):
    data = {"a": [1.0], "day": np.array(["2013-01-01"], "M8[ns]"), "text": ["x"]}
    (tmp_path / "who=me").mkdir()
    pq.write_table(pa.table(data), tmp_path / "who=me" / "t.parquet")
    with pytest.raises(SourceError, match=message):
        parquet(tmp_path, **columns)


def test_names_of_folders_are_columns(tmp_path, table):
    for year, share, first, last in ((9, "0.5", 0, 400), (10, "1", 400, N)):
        (tmp_path / f"year={year}" / f"share={share}").mkdir(parents=True)
        write(
            tmp_path / f"year={year}" / f"share={share}" / "0.parquet",
            table,
            first=first,
            last=last,
        )
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


def test_files_of_other_file_systems_are_read(folder, table):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.put(str(folder), "/trips", recursive=True)
    try:
        local = parquet(folder, X=["a", "b"], y="late")
        for source in (
            parquet("memory://trips", X=["a", "b"], y="late"),
            parquet("trips/", filesystem=memory, X=["a", "b"], y="late"),
            parquet(f"file://{folder}", X=["a", "b"], y="late"),
        ):
            assert source.num_rows == N
            for (start, found), (same, wanted) in zip(
                source.batches(450), local.batches(450), strict=True
            ):
                assert start == same
                for one, other in zip(found, wanted, strict=True):
                    np.testing.assert_array_equal(one, other)
        with pytest.raises(SourceError, match=r"memory://trip; did you mean 'trips'"):
            parquet("memory://trip", y="a")
        remote = parquet("memory://trips", y="a")
        memory.rm("/trips/1.parquet")
        with pytest.raises(SourceError, match=r"1\.parquet was changed after"):
            list(remote.batches())
    finally:
        memory.rm("/trips", recursive=True)
    with pytest.raises(SourceError, match=r"Install fsspec|known"):
        parquet("nowhere://trips", y="a")


def test_files_that_do_not_fit_the_first_are_refused(tmp_path):
    for name, dtype in (("0", np.float32), ("1", np.float64)):
        pq.write_table(pa.table({"a": np.ones(3, dtype)}), tmp_path / f"{name}.parquet")
    with pytest.raises(
        SourceError, match=r"1\.parquet: column 'a' is of type float64; expected float32"
    ):
        parquet(tmp_path, y="a")
    os.rename(tmp_path / "0.parquet", tmp_path / "2.parquet")
    assert parquet(tmp_path, y="a").num_rows == 6


def test_a_file_that_is_missing_cut_short_or_replaced_is_told(tmp_path, table, folder):
    with pytest.raises(
        SourceError, match=r"there is no file or folder .*tripz; did you mean 'trips'"
    ):
        parquet(tmp_path / "tripz", y="a")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=r"no file below .* ends in \.parquet"):
        parquet(tmp_path / "empty", y="a")
    source = parquet(folder, y="a")
    passing = source.batches()
    next(passing)
    write(folder / "1.parquet", table, first=100, last=105)
    with pytest.raises(SourceError, match=r"1\.parquet was changed after the source was made"):
        list(passing)
    content = (folder / "0.parquet").read_bytes()
    (folder / "0.parquet").write_bytes(content[: len(content) // 2])
    with pytest.raises(SourceError, match=r"0\.parquet was changed"):
        source.take(np.array([3]))
    with pytest.raises(SourceError, match=r"0\.parquet cannot be read as Parquet"):
        parquet(folder, y="a")


def test_a_damaged_page_is_an_error_of_the_source(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": np.arange(9000.0)}), path, use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[4:400] = bytes(396)
    path.write_bytes(content)
    with pytest.raises(SourceError, match="cannot be read"):
        list(parquet(path, y="a").batches())


def test_a_dataset_of_a_closed_file_or_a_changed_one_is_told(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["y"] = np.arange(9.0)
    with h5py.File(tmp_path / "x.h5") as file:
        source = array(y=file["y"])
        assert source.random_access
        np.testing.assert_array_equal(source.arrays["y"][:], np.arange(9))
    with pytest.raises(SourceError, match="Keep the file open"):
        source.arrays["y"][:]
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        file["z"] = np.arange(3.0)
    with pytest.raises(SourceError, match=r"x\.h5 was changed"):
        source.arrays["y"][:]


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (None, "given no array; wanted one"),
        ({}, "nothing with arrays in it"),
        ("text", "given a str; wanted arrays"),
        (np.float32(3), "a single number"),
        ((np.ones(3), np.ones(4)), r"\(3,\), \(4,\); wanted as many rows"),
        (np.ones((0, 2)), "0 rows"),
        (np.array(["a"]), "is of type <U1; wanted real numbers"),
        (np.array([1j]), "complex128; wanted real"),
    ],
)
def test_arrays_that_are_none_are_refused(dataset, message):
    with pytest.raises(SourceError, match=message):
        array(dataset)


def test_a_numpy_file_is_mapped(tmp_path):
    x = np.random.default_rng(0).normal(size=(7, 3))
    np.save(tmp_path / "x.npy", x)
    mapped = npy(tmp_path / "x.npy")
    assert isinstance(mapped, np.memmap)
    np.testing.assert_array_equal(mapped, x)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.array(["a", None], object), "of type .O; wanted real numbers"),
        (np.array(3.0), "no axes"),
        (np.ones((0, 3)), "0 rows"),
        (np.ones(3, ">f8"), "byte order"),
        (np.array(["a"]), "wanted real numbers"),
    ],
)
def test_numpy_files_of_no_use_are_refused(tmp_path, content, message):
    np.save(tmp_path / "x.npy", content)
    with pytest.raises(SourceError, match=message):
        npy(tmp_path / "x.npy")


def test_a_numpy_file_that_is_missing_or_cut_short_is_refused(tmp_path):
    with pytest.raises(SourceError, match="there is no file"):
        npy(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.ones((1000, 3)))
    content = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(content[:-12_000])
    with pytest.raises(SourceError, match=r"cut short: .* about 500 rows"):
        npy(tmp_path / "x.npy")
    (tmp_path / "x.npy").write_bytes(b"PK no numpy")
    with pytest.raises(SourceError, match="cannot be read"):
        npy(tmp_path / "x.npy")


def stream(parts, num_rows, **settings):
    """All rows of batches, by the front door."""
    return [leaves for _, leaves in batches(parts, num_rows, **settings).batches()]


X, Y = np.ones((5, 2), np.float32), np.zeros(5, np.int32)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            [(X, Y), (X, Y[:4])],
            r"batch 1, rows 5 to 9: .*array 0 \(5, 2\), array 1 \(4,\); wanted as",
        ),
        ([(X, Y), (X[:0], Y)], r"batch 1, rows 5 to 9: .*\(0, 2\), array 1 \(5,\); wanted as many"),
        ([(X, Y), {"X": X, "y": Y}], r"batch 1, rows from 5: the structure is PyTreeDef\({"),
        ([(X, Y), (X[:, :1], Y)], r"batch 1, .* array 0 have the shape \(1,\); wanted \(2,\)"),
        ([(X, Y), (X.astype(float), Y)], r"array 0 is of type float64, and was of type float32 at"),
        ([(X, Y), (X, Y + 0.5)], r"array 1 is of type float64, and was of type int32"),
        ([(X, Y), (X, Y.astype(str))], r"array 1 is of type <U11, and was of type int32"),
        ([(X, Y), (X, Y), (X, Y)], r"batch 2, rows 10 to 14: there are more than the 10 rows"),
        ([(X, Y), (X[:4], Y[:4])], r"ended after 9 rows; wanted 10, in every pass"),
        (
            [(X, Y), (X * np.nan, Y)],
            r"batch 1, rows 5 to 9: array 0\[row, 0\] is nan in row 5 and 9",
        ),
        ([(X, Y), (np.float32(1), 1)], r"batch 1, .*array 0 \(\), array 1 \(\)"),
    ],
)
def test_batches_that_are_not_like_the_first_are_told_by_place(parts, message):
    with pytest.raises(SourceError, match="batches.*" + message):
        stream(parts, 10)


class Masking:
    """What netCDF4 does: an array whose slices are masked arrays."""

    def __init__(self, values, mask):
        self.shape, self.dtype = values.shape, values.dtype
        self._values = np.ma.masked_array(values, mask)

    def __getitem__(self, rows):
        return self._values[rows]


@pytest.mark.parametrize("kind", ["batches", "array"])
@pytest.mark.parametrize("allow_nonfinite", [False, True])
def test_what_is_masked_is_never_data(kind, allow_nonfinite):
    values = np.arange(20, dtype=np.float32).reshape(10, 2)
    mask = np.zeros((10, 2), bool)

    def masked():
        settings = {"allow_nonfinite": allow_nonfinite}
        if kind == "array":
            return array(X=Masking(values, mask), y=np.arange(10), **settings)
        parts = [
            {"X": np.ma.masked_array(values[rows], mask[rows]), "y": np.arange(10)[rows]}
            for rows in (slice(0, 4), slice(4, 10))
        ]
        return batches(parts, 10, **settings)

    read = masked().arrays["X"][:]
    assert type(read) is np.ndarray
    np.testing.assert_array_equal(read, values)
    mask[6, 1] = mask[8] = True
    place = r"rows 4 to 9: " if kind == "batches" else r"rows 0 to 9: "
    message = place + r"array X has 3 masked entries, the first array X\[row, 1\] in row 6; wanted"
    with pytest.raises(SourceError, match=message):
        list(masked().batches())
    with pytest.raises(SourceError, match=r"the first .* in row 6"):
        masked().take(np.array([5, 6, 7]))


def test_a_masked_buffer_may_serve_all_batches():
    buffer = np.ma.masked_array(np.zeros(2), mask=False)

    def load():
        for start in (0, 2):
            buffer[:] = start, start + 1
            yield buffer

    kept = [leaves[0] for _, leaves in batches(load, 4).batches()]
    np.testing.assert_array_equal(np.concatenate(kept), np.arange(4))


def test_a_place_is_that_of_the_number():
    bad = np.ones((5, 2), np.float32)
    bad[3, 1] = -np.inf
    with pytest.raises(
        SourceError, match=r"rows 5 to 9: array X\[row, 1\] is -inf in row 8; wanted"
    ):
        stream([{"X": X}, {"X": bad}], 10)
    (_, (kept,)) = stream([{"X": X}, {"X": bad}], 10, allow_nonfinite=True)
    assert kept[3, 1] == -np.inf


def test_types_are_shortened_only_where_the_numbers_fit():
    (values,) = stream([np.array([1.0, 0.1])], 2)[0]
    assert values.dtype == np.float32
    assert values[1] == np.float32(0.1)
    with pytest.raises(SourceError, match=r"is 1e\+300 in row 1, which float32 cannot hold"):
        stream([np.array([1.0, 1e300])], 2)
    edge = np.array([2**31 - 1, -(2**31)])
    np.testing.assert_array_equal(stream([edge], 2)[0][0], edge)
    with pytest.raises(SourceError, match=r"is 2147483648 in row 0, which int32 cannot hold"):
        stream([edge + 1], 2)
    with pytest.raises(SourceError, match=r"is 4294967296 in row 0, which uint32 cannot"):
        stream([np.array([2**32], np.uint64)], 1)


def test_types_that_fit_the_first_are_cast():
    parts = [np.ones(2, np.float32), np.ones(2, np.float16), jnp.ones(1), np.ones(1, np.int8)]
    assert {leaf.dtype for (leaf,) in stream(parts, 6)} == {np.dtype(np.float32)}
    (leaf,) = stream([jnp.ones(3, jnp.bfloat16)], 3)[0]
    assert leaf.dtype == jnp.bfloat16


class Restarting:
    def __iter__(self):
        yield np.arange(3.0)
        yield np.arange(3.0, 5.0)


@pytest.mark.parametrize(
    "given",
    [
        [np.arange(3.0), np.arange(3.0, 5.0)],
        Restarting(),
        lambda: iter(Restarting()),
        lambda: [np.arange(5.0)],
    ],
)
def test_anything_that_starts_anew_hands_out_batches(given):
    source = batches(given, 5)
    for _ in range(3):
        np.testing.assert_array_equal(source.arrays[:], np.arange(5))


ONCE = (np.ones(2) for _ in range(3))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((np.ones(2) for _ in range(3)), "a generator, which can be read once.*pass a list"),
        (lambda: ONCE, "returns the same iterator each time"),
        (lambda: 3, "returned a int; wanted an iterator"),
        (7, "given a int; wanted"),
        (np.ones((4, 2)), r"an array of shape \(4, 2\)"),
        ([], "none to hand out"),
        ([{}], "has no arrays"),
        ([3.0], "a number stands where an array was wanted"),
        ([(np.ones(2), "text")], "a number stands|<U4; wanted real numbers"),
        ([[np.array([object()])]], "of type object; wanted"),
    ],
)
def test_what_cannot_be_read_again_is_refused_at_the_door(given, message, untyped):
    with pytest.raises(SourceError, match=message):
        batches(given, 6)


def test_a_number_of_rows_that_is_none_is_refused():
    with pytest.raises(ValueError, match="num_rows is 0"):
        batches([np.ones(2)], 0)


def test_a_pass_that_is_shorter_than_the_last_is_told():
    passes = []

    def start():
        passes.append(1)
        return [np.ones(3), np.ones(3 if len(passes) < 5 else 2)]

    source = batches(start, 6)
    assert len(list(source.batches())) == 2
    with pytest.raises(SourceError, match="ended after 5 rows; wanted 6"):
        list(source.batches())
    with pytest.raises(SourceError, match="ended before row 5"):
        source.take(np.array([0, 5]))


def test_one_buffer_may_serve_all_batches():
    """Loaders fill one array again and again; what was handed on must not change."""

    def start():
        buffer = np.empty(2)
        for i in range(3):
            buffer[:] = i
            yield buffer

    kept = [leaf for _, (leaf,) in batches(start, 6).batches()]
    np.testing.assert_array_equal(np.concatenate(kept), [0, 0, 1, 1, 2, 2])
    with jax.enable_x64(True):  # where no cast makes a copy
        kept = [leaf for _, (leaf,) in batches(start, 6).batches()]
    np.testing.assert_array_equal(np.concatenate(kept), [0, 0, 1, 1, 2, 2])


def test_an_error_of_the_users_loader_says_where_it_was():
    def start():
        yield np.ones(4)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone") as caught:
        list(batches(start, 8).batches())
    assert caught.value.__notes__ == ["This is from batch 1 of batches, at row 4."]


def test_a_source_array_is_never_read_whole_by_accident():
    x = batches([np.ones((4, 2))], 4).arrays
    for read in (np.asarray, jnp.asarray, np.sum):
        with pytest.raises(TypeError, match=r"read in batches and never whole .*array\[:1000\]"):
            read(x)
    for rows in (0, (slice(0, 2), 1), slice(None, None, 2), np.ones(4, bool), None):
        with pytest.raises(TypeError, match="wanted a slice with step 1 or"):
            x[rows]
    for rows in ([4], [-1]):
        with pytest.raises(IndexError, match="has the rows 0 to 3"):
            x[rows]
    assert jax.tree.leaves([x]) == [x]  # a leaf, not a pytree of its own
    assert repr(x) == "SourceArray(the array of 'batches', (4, 2), float32)"
    assert "4 rows: the array (4, 2) float32" in repr(x.source)


def test_without_pyarrow_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r"jaxcoreset\[tables\]"):
        parquet(tmp_path, y="a")


def test_a_batch_is_whole_chunks_unless_they_are_huge(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxcoreset.data.sources.arrays.BATCH_BYTES", 1_000)
    x = np.arange(3_000, dtype=np.float32).reshape(1_000, 3)
    sizes = {}
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for rows in (30, 200, 1_000):
            file.create_dataset(f"x{rows}", data=x, chunks=(rows, 3))
        file.create_dataset("y", data=x[:, 0], chunks=(1_000,))
    with h5py.File(tmp_path / "x.h5") as file:
        for rows in (30, 200, 1_000):
            source = array(x=file[f"x{rows}"], y=file["y"])
            parts = [leaves for _, leaves in source.batches()]
            np.testing.assert_array_equal(np.concatenate([part[0] for part in parts]), x)
            rows_taken = np.array([999, 0, 500, 499, 500])
            np.testing.assert_array_equal(source.take(rows_taken)[1], x[rows_taken, 0])
            sizes[rows] = len(parts[0][0])
    assert sizes == {30: 60, 200: 200, 1_000: 62}  # 62 rows are 992 bytes


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    _, section = PAGE.read_text(encoding="utf-8").split("## Data that do not fit\n")
    blocks = re.findall(r"```python\n(.*?)```", section.split("\n## ")[0], re.DOTALL)
    assert len(blocks) == 5
    namespace = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), namespace)
    trips = namespace["trips"]
    wanted = trips[["distance", "hour"]].to_numpy(np.float32)
    np.testing.assert_allclose(namespace["X"][:], wanted / 24, rtol=1e-6)
    np.testing.assert_array_equal(namespace["y"][:], trips["late"])
    printed = capsys.readouterr().out
    for line in re.findall(
        r"print\(.*?\) +# (Source.*|batches.*); \.\.\.|# (SourceArray.*)", section
    ):
        assert "".join(line) in printed
    namespace["file"].close()


@pytest.mark.parametrize("kind", ["parquet", "hdf5"])
def test_no_rows_are_handed_on_of_a_file_that_was_changed(kind, tmp_path, table):
    if kind == "parquet":
        path = write(tmp_path / "t.parquet", table)
        source = parquet(path, y="a")
    else:
        path, source = tmp_path / "x.h5", h5(tmp_path, table)
    passing = source.batches()
    next(passing)
    os.utime(path, ns=(1, 1))
    with pytest.raises(SourceError, match=f"{path.name} was changed after"):
        list(passing)
    with pytest.raises(SourceError, match=f"{path.name} was changed after"):
        next(source.batches())
    with pytest.raises(SourceError, match=f"{path.name} was changed after"):
        source.take(np.array([0]))
