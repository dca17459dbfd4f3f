"""Saving and loading a coreset, without pickle and whole or not at all."""

import dataclasses
import functools
import html
import json
import os
import pickle
import sys
import xml.etree.ElementTree
from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.infer.util import log_density

import jaxcoreset as jc
from jaxcoreset.command.regressions import poisson
from jaxcoreset.likelihood.arguments import arguments_by_length
from tests.models import logistic_model as logistic


@pytest.fixture(scope="module")
def coreset():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 2)), rng.integers(0, 2, 300)
    settings = {"num_draws": 50, "num_held_out": 50, "rounds": 1, "progress_bar": False}
    builder = jc.CoresetBuilder(logistic, size=5, **settings, proxy=None)
    return builder.run(jax.random.key(0), x, y=jnp.asarray(y))


def with_header(path, change):
    """The file, with another header. It has no pickled objects."""
    with np.load(path, allow_pickle=False) as contents:
        arrays = dict(contents)
    header = change(json.loads(arrays["header"].tobytes()))
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(path, **arrays)
    return path


def of_one_row(args, report):
    arguments = arguments_by_length(logistic, args, {}, 1)
    return jc.Coreset(
        logistic, np.zeros(1, int), np.ones(1), arguments, report, data_dims={"y": -1}
    )


def test_loaded_coreset_is_the_saved_one(coreset, tmp_path):
    path = coreset.save(tmp_path / "rows")
    assert path.name == "rows.npz"
    loaded = jc.load(tmp_path / "rows", trust=True)  # the ending may be left out
    np.testing.assert_array_equal(loaded.indices, coreset.indices)
    np.testing.assert_array_equal(loaded.weights, coreset.weights)
    np.testing.assert_array_equal(loaded.args[0], coreset.args[0])
    assert isinstance(loaded.args[0], np.ndarray)
    assert isinstance(loaded.kwargs["y"], jax.Array)
    assert str(loaded.report) == str(coreset.report)
    pd.testing.assert_frame_equal(loaded.to_frame(), coreset.to_frame())
    beta = {"beta": jnp.array([0.3, -0.1])}
    for model in (loaded.model, jc.load(path, model=logistic).model):
        value, _ = log_density(model, loaded.args, loaded.kwargs, beta)
        expected, _ = log_density(coreset.model, coreset.args, coreset.kwargs, beta)
        np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_notebooks_show_the_coreset_and_its_report_as_escaped_tables(coreset):
    shown = coreset._repr_html_()
    assert f"5 of 300 rows, KL {coreset.report.kl:.2g}</caption>" in shown
    assert html.escape(coreset.report.verdict) in shown
    report = dataclasses.replace(coreset.report, solver="<b>x")
    names = [line[2:].split("  ")[0] for line in str(report).splitlines()[1:]]
    tags = xml.etree.ElementTree.fromstring(report._repr_html_())
    assert [cell.text for cell in tags.iter("th")] == names
    assert "<b>x" in [cell.text for cell in tags.iter("td")]


def test_nested_arguments_survive(coreset, tmp_path):
    nested = {"a": [1, 2.5, None, "text", True], "b": (np.arange(3), {"c": np.ones((2, 2))})}
    whole = of_one_row((nested,), coreset.report)
    (loaded,) = jc.load(whole.save(tmp_path / "nested.npz")).args
    assert loaded["a"] == nested["a"]
    assert isinstance(loaded["b"], tuple)
    np.testing.assert_array_equal(loaded["b"][1]["c"], np.ones((2, 2)))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float8_e5m2, jnp.int4])
def test_types_that_numpy_cannot_store_survive(coreset, tmp_path, dtype):
    values = np.arange(-3, 3).astype(dtype)
    args = (values, jnp.asarray(values), values[1], values.reshape(2, 3).T)
    whole = of_one_row(args, coreset.report)
    loaded = jc.load(whole.save(tmp_path / "types.npz")).args
    assert isinstance(loaded[1], jax.Array)
    for before, after in zip(args, loaded, strict=True):
        assert after.dtype == dtype
        np.testing.assert_array_equal(np.asarray(after, float), np.asarray(before, float))


def test_integers_saved_with_x64_do_not_wrap_when_they_are_loaded_without(coreset, tmp_path):
    with jax.enable_x64(True):
        path = of_one_row((jnp.asarray([2**40]),), coreset.report).save(tmp_path / "wide.npz")
        assert jc.load(path).args[0][0] == 2**40
    with pytest.raises(ValueError, match=r"args\.0\[0\] is 1099511627776, which int32 cannot hold"):
        jc.load(path)


def of_model(model, coreset):
    """The same rows and weights, of another model."""
    parts = coreset.indices, coreset.weights, coreset.arguments, coreset.report
    return jc.Coreset(model, *parts, data_dims=coreset.data_dims)


def test_pickle_needs_a_model_that_it_can_name(coreset, tmp_path):
    there = pickle.loads(pickle.dumps(coreset))
    assert isinstance(there.kwargs["y"], jax.Array)
    pd.testing.assert_frame_equal(there.to_frame(), coreset.to_frame())
    # This one knows its model by name only.
    loaded = jc.load(coreset.save(tmp_path / "rows"), trust=True)
    assert pickle.loads(pickle.dumps(loaded)).model == coreset.model
    local = of_model(lambda x, y: logistic(x, y), coreset)
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        pickle.dumps(local)


@pytest.mark.parametrize(
    "name", ["os:system", "jaxcoreset.data.utils:os.system", "builtins:exec", "no name at all"]
)
def test_a_file_runs_nothing_that_it_names(coreset, tmp_path, name):
    path = with_header(coreset.save(tmp_path / "rows"), lambda header: header | {"model": name})
    loaded = jc.load(path)
    with pytest.raises(ValueError, match=r"would be imported and run: .*load\(path, trust=True\)"):
        loaded.model  # noqa: B018
    assert jc.load(path, logistic).full_model is logistic
    assert pickle.loads(pickle.dumps(loaded)).to_frame().equals(coreset.to_frame())


def test_the_packages_own_models_and_those_of_files_to_trust_are_imported(coreset, tmp_path):
    path = coreset.save(tmp_path / "rows")
    assert jc.load(path, trust=True).full_model is logistic
    own = with_header(path, lambda header: header | {"model": f"{poisson.__module__}:poisson"})
    assert jc.load(own).full_model is poisson


def test_files_that_are_no_coreset_are_refused(coreset, tmp_path):
    path = coreset.save(tmp_path / "rows.npz")
    content = path.read_bytes()
    for written, message in ((b"hello", "not a coreset"), (content[:200], "truncated")):
        path.write_bytes(written)
        with pytest.raises(ValueError, match=message):
            jc.load(path)
    path.write_bytes(content)
    with pytest.raises(ValueError, match="newer version"):
        jc.load(with_header(path, lambda header: header | {"format": 99}))
    with pytest.raises(FileNotFoundError, match="other"):
        jc.load(tmp_path / "other")
    with pytest.raises(FileNotFoundError, match=r"no such directory.*nowhere'"):
        coreset.save(tmp_path / "nowhere" / "some.npz")


def test_what_cannot_be_saved_is_refused_and_leaves_no_file(coreset, tmp_path):
    odd = of_one_row(({1, 2},), coreset.report)
    with pytest.raises(TypeError, match=r"args\.0 holds a set"):
        odd.save(tmp_path / "odd.npz")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("write", "broken"), [("save", (np, "savez_compressed")), ("to_csv", (pd.DataFrame, "to_csv"))]
)
def test_failed_write_leaves_the_old_file(coreset, tmp_path, monkeypatch, write, broken):
    def full(*args, **kwargs):
        raise OSError("disk full")

    path = getattr(coreset, write)(tmp_path / "rows.npz")
    before = path.read_bytes()
    monkeypatch.setattr(*broken, full)
    with pytest.raises(OSError, match="disk full"):
        getattr(coreset, write)(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["rows.npz"]


def test_frame_has_rows_weights_and_the_models_arguments(coreset):
    frame = coreset.to_frame()
    assert list(frame.columns) == ["row", "weight", "x[0]", "x[1]", "y"]
    np.testing.assert_array_equal(frame["row"], coreset.indices)
    np.testing.assert_array_equal(frame["weight"], coreset.weights)
    np.testing.assert_array_equal(frame[["x[0]", "x[1]"]], coreset.args[0])
    np.testing.assert_array_equal(frame["y"], coreset.kwargs["y"])


def test_frame_of_a_table_has_its_rows_and_leaves_it_alone(coreset):
    table = pd.DataFrame({"id": np.arange(300) * 7, "name": [f"n{i}" for i in range(300)]})
    table.index = table.index + 1000
    frame = coreset.to_frame(table)
    assert list(table.columns) == ["id", "name"]
    assert list(frame.columns) == ["row", "weight", "id", "name"]
    np.testing.assert_array_equal(frame["id"], 7 * coreset.indices)
    np.testing.assert_array_equal(frame.index, coreset.indices + 1000)
    assert frame["name"].tolist() == [f"n{i}" for i in coreset.indices]


def test_arguments_that_happen_to_be_as_long_as_the_coreset_are_no_columns(coreset):
    """A vector of prior scales, of the length that the coreset will have, is not data."""

    def model(X, scales, y=None):
        beta = numpyro.sample("beta", dist.Normal(0, scales).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.Normal(X @ beta, 1.0), obs=y)

    x, y = np.ones((60, 3)), np.zeros(60)
    arguments = jc.model_likelihood(model, (x, jnp.ones(3)), {"y": y}).arguments
    arguments = arguments.with_data((x[:3], y[:3]))
    small = jc.Coreset(
        model, np.arange(3), np.ones(3), arguments, coreset.report, data_dims={"y": -1}
    )
    assert list(small.to_frame().columns) == ["row", "weight", "X[0]", "X[1]", "X[2]", "y"]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: lambda X, y: model(X, y),
        lambda model: numpyro.handlers.scale(model, scale=0.1),
        lambda model: numpyro.handlers.substitute(model, data={"intercept": 0.0}),
        lambda model: functools.wraps(model)(lambda *args: model(*args)),
    ],
)
def test_a_model_without_a_name_of_its_own_must_be_given_on_loading(coreset, tmp_path, wrap):
    """One that is wrapped is not taken for the one inside."""
    path = of_model(wrap(logistic), coreset).save(tmp_path / "wrapped.npz")
    loaded = jc.load(path)
    with pytest.raises(ValueError, match=r"without the name.*load\(path, model=model\)"):
        loaded.model  # noqa: B018
    pd.testing.assert_frame_equal(loaded.to_frame(), coreset.to_frame())
    assert jc.load(path, model=logistic).model is not None


def test_a_model_of_a_script_must_be_given_on_loading(coreset, tmp_path, monkeypatch):
    """In the script that loads it, the same name is another function."""

    def model(X, y):
        return logistic(X, y)

    model.__module__, model.__qualname__ = "__main__", "model"
    monkeypatch.setattr(sys.modules["__main__"], "model", model, raising=False)
    path = of_model(model, coreset).save(tmp_path / "script.npz")
    with pytest.raises(ValueError, match=r"without the name.*load\(path, model=model\)"):
        jc.load(path, trust=True).model  # noqa: B018
    # Files of earlier versions have the name.
    with_header(path, lambda header: header | {"model": "__main__:model"})
    with pytest.raises(ValueError, match=r"function of the script that saved .* model=model"):
        jc.load(path, trust=True).model  # noqa: B018
    assert jc.load(path, model=model).full_model is model


def test_files_of_the_first_version_without_names_are_read(coreset, tmp_path):
    def first(header):
        return {key: header[key] for key in header if key not in ("data_names", "count_places")}

    path = with_header(coreset.save(tmp_path / "rows"), first)
    pd.testing.assert_frame_equal(jc.load(path, logistic).to_frame(), coreset.to_frame())


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_written_table_is_the_frame(coreset, kind, tmp_path):
    table = pd.DataFrame({"x": np.linspace(0, 1, 300), "town": ["Bodø, N", 'say "hi"', "c"] * 100})
    path = tmp_path / f"rows.{kind}"
    write, read = (
        (coreset.to_csv, pd.read_csv) if kind == "csv" else (coreset.to_parquet, pd.read_parquet)
    )
    assert write(path, table) == path
    expected = coreset.to_frame(table).reset_index(drop=True)
    pd.testing.assert_frame_equal(read(path), expected, check_dtype=False)
    assert os.listdir(tmp_path) == [path.name]


def test_tables_that_do_not_fit_are_refused(coreset):
    table = pd.DataFrame({"weight": np.zeros(300)})
    with pytest.raises(ValueError, match="weight is 'weight', and there is another column"):
        coreset.to_frame(table)
    assert "w" in coreset.to_frame(table, weight="w")
    with pytest.raises(ValueError, match=r"299 rows; expected the 300"):
        coreset.to_frame(pd.DataFrame({"a": np.zeros(299)}))
    with pytest.raises(TypeError, match="expected a pandas DataFrame"):
        coreset.to_frame({"a": np.zeros(300)})


@pytest.mark.parametrize("package", ["pandas", "pyarrow"])
def test_missing_package_names_the_extra(coreset, package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'jaxcoreset\[tables\]'"):
        coreset.to_parquet(tmp_path / "rows.parquet")


def ordered_model(batch):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", batch["x"].shape[0]):
        numpyro.sample("y", dist.Normal(slope * batch["x"], 1.0), obs=batch["c"])


def test_columns_of_an_ordered_dictionary_are_saved_in_their_order(tmp_path):
    rng = np.random.default_rng(0)
    batch = OrderedDict(x=rng.normal(size=12), c=5 + rng.normal(size=12))
    builder = jc.CoresetBuilder(ordered_model, size=12, progress_bar=False)
    coreset = builder.run(jax.random.key(0), batch)
    path = coreset.save(tmp_path / "rows")
    loaded = jc.load(path, ordered_model)
    pd.testing.assert_frame_equal(loaded.to_frame(), coreset.to_frame())
    assert jax.tree.structure(loaded.args) == jax.tree.structure(coreset.args)

    # Earlier versions saved a dictionary in the order of its keys.
    def as_before(header):
        (batch,) = header["args"]["list"]
        batch["dict"] = batch.pop("ordered")
        return header

    with_header(path, as_before)
    pd.testing.assert_frame_equal(jc.load(path, ordered_model).to_frame(), coreset.to_frame())
