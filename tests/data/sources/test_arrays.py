"""Arrays in memory and in files as a source: HDF5, NumPy."""

import h5py
import numpy as np
import pytest

from jaxcoreset.data.sources import SourceArray, array, npy
from tests.data.sources.tables import told


def test_a_dataset_of_a_closed_file_is_told(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["y"] = np.arange(9.0)
    with h5py.File(tmp_path / "x.h5") as file:
        source = array(y=file["y"])
        assert source.random_access
        np.testing.assert_array_equal(source.arrays["y"][:], np.arange(9))
    with told("Keep the file open"):
        source.arrays["y"][:]


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (None, "given no array; expected one"),
        ({}, "a structure without arrays"),
        ("text", "given a str; expected arrays"),
        (np.float32(3), "a single number"),
        ((np.ones(3), np.ones(4)), r"\(3,\), \(4,\); expected the same number of rows"),
        (np.ones((0, 2)), "0 rows"),
        (np.array(["a"]), "is of type <U1; expected real numbers"),
        (np.array([1j]), "complex128; expected real"),
    ],
)
def test_arrays_that_are_none_are_refused(dataset, message):
    with told(message):
        array(dataset)


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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.array(["a", None], object), "of type .O; expected real numbers"),
        (np.array(3.0), "no axes"),
        (np.ones((0, 3)), "0 rows"),
        (np.ones(3, ">f8"), "byte order"),
        (np.array(["a"]), "expected real numbers"),
    ],
)
def test_numpy_files_of_no_use_are_refused(tmp_path, content, message):
    np.save(tmp_path / "x.npy", content)
    with told(message):
        npy(tmp_path / "x.npy")


def test_a_numpy_file_that_is_missing_or_cut_short_is_refused(tmp_path):
    with told("there is no file"):
        npy(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.ones((1000, 3)))
    content = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(content[:-12_000])
    with told(r"cut short: .* about 500 rows"):
        npy(tmp_path / "x.npy")
    # Another file, and a header that is no expression.
    for bad in (b"PK no numpy", content.replace(b"'shape': (", b"'shape': ((")):
        (tmp_path / "x.npy").write_bytes(bad)
        with told("cannot be read"):
            npy(tmp_path / "x.npy")


@pytest.fixture
def memory():
    """The file system of fsspec that is in memory, empty before and after."""
    memory = pytest.importorskip("fsspec").filesystem("memory")
    yield memory
    memory.rm("/arrays", recursive=True)


def saved(memory, name, x):
    memory.makedirs("/arrays", exist_ok=True)
    with memory.open(f"/arrays/{name}", "wb") as file:
        np.save(file, x)
    return f"memory://arrays/{name}"


def test_a_numpy_file_of_another_file_system_is_read_in_parts(memory, monkeypatch):
    monkeypatch.setattr("jaxcoreset.data.sources.remote_npy.BATCH_BYTES", 1_000)
    x = np.random.default_rng(0).normal(size=(1_000, 3)).astype(np.float32)
    url = saved(memory, "x.npy", x)
    remote, again = npy(url), npy(url)
    assert isinstance(remote, SourceArray)
    assert isinstance(again, SourceArray)
    np.testing.assert_array_equal(remote[:], x)
    np.testing.assert_array_equal(remote[[999, 0, 500]], x[[999, 0, 500]])
    assert {len(leaves[0]) for _, leaves in remote.source.batches()} == {83, 4}  # 996 bytes
    for rows in (np.arange(3) > 1, np.arange(5)):
        np.testing.assert_array_equal(npy(saved(memory, "y.npy", rows))[:], rows)
    x[7, 1] = np.nan  # let through, as of a mapped file, unless it is a source's
    np.testing.assert_array_equal(npy(saved(memory, "z.npy", x))[:], x)
    with told("nan in row 7"):
        list(array(npy("memory://arrays/z.npy")).batches())
    mark = remote.source.fingerprint()
    assert again.source.fingerprint() == mark
    saved(memory, "x.npy", x)
    new = npy(url)
    assert isinstance(new, SourceArray)
    assert new.source.fingerprint() != mark
    with told(r"memory://arrays/x\.npy was changed"):
        remote[:]


def test_remote_numpy_files_of_no_use_are_refused(memory):
    url = saved(memory, "x.npy", np.ones((1000, 3)))
    with told(r"there is no file memory://arrays/y\.npy"):
        npy("memory://arrays/y.npy")
    memory.pipe("/arrays/x.npy", memory.cat("/arrays/x.npy")[:-12_000])
    with told(r"cut short: .* about 500 rows"):
        npy(url)
    with told("stored column by column"):
        npy(saved(memory, "x.npy", np.ones((3, 1000)).T))
    with told(r"Install fsspec|known"):
        npy("nowhere://x.npy")
