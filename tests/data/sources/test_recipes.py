"""The recipes of the page on big data, with the packages or with stand-ins of their interfaces."""

import sys
import types
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from jaxcoreset.data import sources
from tests.markdown_pages import blocks

N = 25_000
RECIPES = {
    block.note.removeprefix("needs: "): block.text
    for block in blocks("docs/how-to/big-data.md")
    if block.note.startswith("needs: ")
}


@pytest.fixture
def trips(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "distance": rng.gamma(2, 3, N),
            "hour": rng.integers(0, 24, N),
            "late": rng.random(N) < 0.2,
        }
    )
    frame.to_parquet(tmp_path / "trips.parquet", row_group_size=4_000)
    monkeypatch.chdir(tmp_path)
    return frame


class DataSet:
    """The part of a data set of Hugging Face, and of Ray, that the recipes use."""

    def __init__(self, frame):
        self.frame = frame

    def __len__(self):
        return len(self.frame)

    count = __len__

    def select_columns(self, names):
        return DataSet(self.frame[names])

    def with_format(self, name):
        assert name == "numpy"
        return self

    def iter(self, batch_size):
        for start in range(0, len(self), batch_size):
            part = self.frame.iloc[start : start + batch_size]
            yield {name: part[name].to_numpy() for name in part.columns}

    def iter_batches(self, *, batch_size, batch_format):
        assert batch_format == "numpy"
        return self.iter(batch_size)


def stand_in(name, frame):
    """A module with the functions that a recipe calls."""
    module = types.ModuleType(name)
    if name == "datasets":
        module.load_dataset = lambda kind, data_files, split: DataSet(pd.read_parquet(data_files))
    elif name == "ray":
        options = types.SimpleNamespace(execution_options=types.SimpleNamespace())
        context = types.SimpleNamespace(get_current=lambda: options)
        read = lambda path: DataSet(pd.read_parquet(path))  # noqa: E731
        module.data = types.SimpleNamespace(DataContext=context, read_parquet=read)
    else:
        pytest.skip(f"{name} is not installed")
    return module


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_recipe_reads_the_rows_in_order(name, trips, monkeypatch):
    try:
        __import__(name)
    except ImportError:
        monkeypatch.setitem(sys.modules, name, stand_in(name, trips))
    namespace = {"sources": sources, "np": np}
    exec(RECIPES[name], namespace)
    source = namespace["source"]
    expected = trips[trips["distance"] < 20] if name == "polars" else trips
    assert source.num_rows == len(expected)
    indices = np.array([0, 12_345, source.num_rows - 1])
    for _ in range(2):  # it can be read again
        taken = source.take(indices)
        at = expected.iloc[indices]
        if name == "polars":
            scaled = at[["distance", "hour"]].to_numpy() / 24
            np.testing.assert_allclose(taken[0], scaled, rtol=1e-6)
        else:
            scale = 24 if name == "duckdb" else 1
            np.testing.assert_allclose(taken[0], at["distance"] / scale, rtol=1e-6)
        np.testing.assert_array_equal(taken[-1], at["late"])


def test_an_arrow_stream_and_tables_are_batches_of_columns():
    table = pa.table({"b": np.arange(100.0), "a": np.arange(100) % 2})

    class Relation:
        def __arrow_c_stream__(self, requested_schema=None):
            return table.to_reader(30).__arrow_c_stream__(requested_schema)

    frames = [table.slice(0, 40).to_pandas(), table.slice(40, 60).to_pandas()]
    for given in (lambda: Relation(), frames, lambda: table.to_batches(30)):
        source = sources.batches(given, 100)
        assert list(source.arrays) == ["a", "b"]
        np.testing.assert_array_equal(source.arrays["b"][[99, 3]], [99, 3])
    with pytest.raises(sources.SourceError, match="whose rows are in memory"):
        sources.batches(frames[0], 40)


def test_a_dataset_of_arrow_is_read_as_often_as_needed(trips):
    data = ds.dataset("trips.parquet")
    near = trips[trips["distance"] < 20]
    columns = {"hour": ds.field("hour"), "late": ds.field("late")}
    for given, expected in (
        (data, trips),
        (data.filter(ds.field("distance") < 20), near),
        (data.scanner(columns=columns), trips),
    ):
        source = sources.batches(given)
        assert source.num_rows == len(expected)
        for _ in range(2):
            found = np.concatenate([leaves[-2] for _, leaves in source.batches()])
            np.testing.assert_array_equal(found, expected["hour"])
        assert sources.batches(given, len(expected)).num_rows == len(expected)
    pages = blocks("docs/how-to/big-data.md")
    (recipe,) = (block.text for block in pages if "pyarrow.dataset" in block.text)
    namespace = {"sources": sources}
    exec(recipe, namespace)
    arrays: Any = namespace["source"]
    np.testing.assert_allclose(arrays.arrays["hour"][:], near["hour"] / 24, rtol=1e-6)
