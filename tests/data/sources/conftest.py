"""The table of these tests, and a folder with its rows in three files."""

import numpy as np
import pytest

from tests.data.sources.tables import N, write


@pytest.fixture
def table() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "a": rng.normal(size=N).astype(np.float32),
        "b": rng.normal(size=N),
        "count": rng.integers(-5, 5, N),
        "late": rng.random(N) < 0.3,
    }


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
