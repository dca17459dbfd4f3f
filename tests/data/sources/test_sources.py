"""Sources of rows of each kind, held to the arrays that they were made from."""

import itertools
import os

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zarr

from jaxcoreset.data.sources import SourceArray, array, batches, parquet
from tests.data.sources.tables import N, h5, matrix, told


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
    if kind == "zarr":
        for file in (tmp_path / "x.zarr").rglob("*"):
            os.chmod(file, 0o777)
        zarr.open_array(str(tmp_path / "x.zarr"), mode="a")[3, 0] = 9
        again = one
    elif kind == "hdf5":
        os.utime(tmp_path / "x.h5", ns=(1, 1))
        again = array(h5py.File(tmp_path / "x.h5")["X"])
    else:  # of batches the values, of files the time of a change
        table["a"][3] += 1
        os.utime(folder / "1.parquet", ns=(1, 1))
        again = make(kind, tmp_path, table, folder)
    assert again.fingerprint() != before


def test_a_fingerprint_of_batches_differs_with_that_of_the_user():
    data = [np.ones(3)]
    assert batches(data, 3).fingerprint() != batches(data, 3, fingerprint="v2").fingerprint()


def test_no_rows_are_handed_on_of_a_file_that_was_changed(tmp_path, table):
    source = h5(tmp_path, table)
    passing = source.batches()
    next(passing)
    os.utime(tmp_path / "x.h5", ns=(1, 1))
    for read in (lambda: list(passing), lambda: next(source.batches()), lambda: source.take([0])):
        with told(r"x\.h5 was changed after"):
            read()


def test_a_source_array_is_never_read_whole_by_accident():
    x = batches([np.ones((4, 2))], 4).arrays
    for read in (np.asarray, jnp.asarray, np.sum):
        with pytest.raises(TypeError, match=r"read in batches and never whole .*array\[:1000\]"):
            read(x)
    for rows in (0, (slice(0, 2), 1), slice(None, None, 2), np.ones(4, bool), None):
        with pytest.raises(TypeError, match="expected a slice with step 1 or"):
            x[rows]
    for rows in ([4], [-1]):
        with pytest.raises(IndexError, match="has the rows 0 to 3"):
            x[rows]
    assert jax.tree.leaves([x]) == [x]  # a leaf, not a pytree of its own
    assert repr(x) == "SourceArray(the array of 'batches', (4, 2), float32)"
    assert "4 rows: the array (4, 2) float32" in repr(x.source)
