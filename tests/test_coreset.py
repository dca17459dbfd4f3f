"""Saving and loading a coreset, without pickle and whole or not at all."""

import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer.util import log_density

import jaxcoreset as jc
from tests.test_builder import logistic


@pytest.fixture(scope="module")
def coreset():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 2)), rng.integers(0, 2, 300)
    builder = jc.CoresetBuilder(logistic, size=5, num_draws=50, num_held_out=50)
    return builder.run(jax.random.key(0), x, y=jnp.asarray(y))


def test_loaded_coreset_is_the_saved_one(coreset, tmp_path):
    path = coreset.save(tmp_path / "rows")
    assert path.name == "rows.npz"
    loaded = jc.load(path)
    np.testing.assert_array_equal(loaded.indices, coreset.indices)
    np.testing.assert_array_equal(loaded.weights, coreset.weights)
    np.testing.assert_array_equal(loaded.args[0], coreset.args[0])
    assert isinstance(loaded.args[0], np.ndarray)
    assert isinstance(loaded.kwargs["y"], jax.Array)
    assert str(loaded.report) == str(coreset.report)
    beta = {"beta": jnp.array([0.3, -0.1])}
    for model in (loaded.model, jc.load(path, model=logistic).model):
        value, _ = log_density(model, loaded.args, loaded.kwargs, beta)
        expected, _ = log_density(coreset.model, coreset.args, coreset.kwargs, beta)
        np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_nested_arguments_survive(coreset, tmp_path):
    nested = {"a": [1, 2.5, None, "text", True], "b": (np.arange(3), {"c": np.ones((2, 2))})}
    whole = jc.Coreset(
        logistic, np.zeros(1, int), np.ones(1), (nested,), {}, coreset.report, data_dims={"y": -1}
    )
    (loaded,) = jc.load(whole.save(tmp_path / "nested.npz")).args
    assert loaded["a"] == nested["a"]
    assert isinstance(loaded["b"], tuple)
    np.testing.assert_array_equal(loaded["b"][1]["c"], np.ones((2, 2)))


def test_model_without_a_name_must_be_given_on_loading(coreset, tmp_path):
    local = jc.Coreset(
        lambda x, y: logistic(x, y),
        coreset.indices,
        coreset.weights,
        coreset.args,
        coreset.kwargs,
        coreset.report,
        data_dims={"y": -1},
    )
    path = local.save(tmp_path / "local.npz")
    with pytest.raises(ValueError, match="load"):
        _ = jc.load(path).model
    assert jc.load(path, model=logistic).model is not None


def test_what_cannot_be_saved_is_refused_and_leaves_no_file(coreset, tmp_path):
    odd = jc.Coreset(
        logistic, np.zeros(1, int), np.ones(1), ({1, 2},), {}, coreset.report, data_dims={"y": -1}
    )
    with pytest.raises(TypeError, match=r"args\.0 holds a set"):
        odd.save(tmp_path / "odd.npz")
    assert os.listdir(tmp_path) == []


def test_failed_write_leaves_the_old_file(coreset, tmp_path, monkeypatch):
    path = coreset.save(tmp_path / "rows.npz")
    before = path.read_bytes()

    def broken(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", broken)
    with pytest.raises(OSError, match="disk full"):
        coreset.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["rows.npz"]


def test_files_that_are_no_coreset_are_refused(coreset, tmp_path):
    with pytest.raises(FileNotFoundError):
        jc.load(tmp_path / "missing.npz")
    text = tmp_path / "text.npz"
    text.write_text("hello")
    with pytest.raises(ValueError, match="no coreset"):
        jc.load(text)
    cut = tmp_path / "cut.npz"
    cut.write_bytes(coreset.save(tmp_path / "rows.npz").read_bytes()[:200])
    with pytest.raises(ValueError, match="cut short"):
        jc.load(cut)


def test_newer_format_is_refused(coreset, tmp_path):
    path = coreset.save(tmp_path / "rows.npz")
    with np.load(path) as contents:
        arrays = dict(contents)
    header = json.loads(arrays["header"].tobytes()) | {"format": 99}
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match="newer version"):
        jc.load(path)


def test_saved_file_holds_no_pickle(coreset, tmp_path):
    path: Path = coreset.save(tmp_path / "rows.npz")
    with np.load(path, allow_pickle=False) as contents:
        assert all(contents[name].dtype != object for name in contents.files)
