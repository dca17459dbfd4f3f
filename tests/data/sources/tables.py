"""A table, and the files that the sources are tested on."""

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxcoreset.data.sources import SourceError, array, batches

N = 1_003


def told(message):
    """A block that ends with an error of a source."""
    return pytest.raises(SourceError, match=message)


def in_batches(leaves, size):
    """The leaves of a source of arrays, in batches of a size."""
    num_rows = len(leaves[0])
    parts = [tuple(x[a : a + size] for x in leaves) for a in range(0, num_rows, size)]
    return batches(parts, num_rows).arrays


def write(path, table, *, group=100, first=0, last=N):
    columns = {name: values[first:last] for name, values in table.items()}
    pq.write_table(pa.table(columns), path, row_group_size=group)
    return path


def matrix(table):
    return np.stack([table["a"], table["b"]], axis=1).astype(np.float32)


def h5(tmp_path, table):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("X", data=matrix(table), chunks=(64, 2), compression="gzip")
    return array(h5py.File(tmp_path / "x.h5")["X"])
