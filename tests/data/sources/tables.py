"""A table, and the files that the sources are tested on."""

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jaxcoreset.data.sources import array

N = 1_003


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
