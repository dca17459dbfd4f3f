"""Archives: the one format of coresets and checkpoints."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import jaxcoreset as jc
from jaxcoreset.data.arrays import load_archive, save_archive

SAVED = Path(__file__).parents[1] / "coreset" / "saved"


def test_an_archive_holds_json_and_arrays(tmp_path):
    arrays = {"a": np.arange(3.0), "b": np.zeros((), np.int64)}
    for compress in (True, False):
        path = save_archive(tmp_path / "x", {"kind": [1, None]}, arrays, compress=compress)
        header, found = load_archive(path, "kind", "is another file")
        assert header == {"kind": [1, None]}
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)
            assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
    with pytest.raises(ValueError, match="is another file"):
        load_archive(path, "format", "is another file")
    with pytest.raises(FileNotFoundError):
        load_archive(tmp_path / "y", "format", "is another file")


def test_a_changed_byte_of_an_array_is_noticed(tmp_path):
    path = save_archive(tmp_path / "x", {"kind": 1}, {"a": np.full(1000, 7.0)}, compress=False)
    content = path.read_bytes()
    at = content.index(np.full(2, 7.0).tobytes()) + 11
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    with pytest.raises(ValueError, match="is damaged"):
        load_archive(path, "kind", "is damaged")


def test_a_coreset_that_an_older_version_saved_is_read():
    """The file was written before coresets and checkpoints had one format."""
    coreset = jc.load(SAVED / "version_0_1.npz", lambda x, y, scale: None)
    assert coreset.indices.tolist() == [0, 98, 202, 206, 230]
    np.testing.assert_allclose(
        coreset.weights, [45.167648, 69.675140, 86.842873, 14.339255, 18.152435], rtol=1e-6
    )
    assert coreset.args[0].dtype == jnp.bfloat16
    np.testing.assert_allclose(coreset.args[1][:2], [-1.1568301, -0.16840987], rtol=1e-6)
    assert coreset.kwargs == {"scale": 1.5}
    assert coreset.report.num_data == 300
    assert coreset.summary is not None
