"""Columns of tables are known by name, in whichever order a later table has them."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import jaxcoreset as jc
from jaxcoreset.data.messages import DataError

pd = pytest.importorskip("pandas")
QUIET = {"progress_bar": False}
NAMES = ["a", "b", "c"]


def model(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    x = pd.DataFrame(rng.normal(size=(400, 3)), columns=NAMES)
    return x, (2 * x["a"] - x["c"] + rng.normal(size=400)).to_numpy()


@pytest.fixture(scope="module")
def builder():
    return jc.CoresetBuilder(model, size=40, proxy=None, **QUIET)


@pytest.fixture(scope="module")
def coreset(builder, table):
    return builder.run(jax.random.key(0), *table)


@pytest.fixture(scope="module")
def draws(table):
    x, y = table
    precision = x.T.to_numpy() @ x.to_numpy() + np.eye(3)
    mean = np.linalg.solve(precision, x.T.to_numpy() @ y)
    noise = np.random.default_rng(1).normal(size=(200, 3))
    return {"beta": mean + noise @ np.linalg.cholesky(np.linalg.inv(precision)).T}


def polars_of(frame):
    return pytest.importorskip("polars").DataFrame({name: frame[name] for name in frame})


def arrow_of(frame):
    return pytest.importorskip("pyarrow").table({name: frame[name] for name in frame})


@pytest.mark.parametrize("kind", [lambda frame: frame, polars_of, arrow_of])
def test_table_to_predict_may_have_its_columns_in_another_order(coreset, draws, table, kind):
    x = table[0][:50]
    settings = {"key": 0, "reweight": False, "sites": ["y"], **QUIET}
    expected = jc.predict(coreset, draws, x, **settings).mean["y"]
    found = jc.predict(coreset, draws, kind(x[["c", "a", "b"]]), **settings).mean["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(found, 2 * x["a"] - x["c"], atol=1.0)
    # An array has no names.
    found = jc.predict(coreset, draws, x.to_numpy(), **settings).mean["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_other_columns_are_refused_by_name(coreset, draws, table):
    x, y = table
    with pytest.raises(DataError, match=r"x has no column 'b'; expected .* 'a', 'b', 'c'"):
        jc.predict(coreset, draws, x[["a", "c"]], key=0, reweight=False, **QUIET)
    with pytest.raises(DataError, match="a column 'd' in addition"):
        jc.certify(coreset, draws, x.assign(d=1.0), y, **QUIET)
    with pytest.raises(DataError, match="no column 'a' and a column 'd' in addition"):
        coreset.update(0, x.rename(columns={"a": "d"}), y)


def test_all_rows_may_be_given_again_in_another_order(coreset, draws, table, tmp_path):
    x, y = table
    expected = jc.certify(coreset, draws, **QUIET).log_ratios
    loaded = jc.load(coreset.save(tmp_path / "rows"), model)
    found = jc.certify(loaded, draws, x[["c", "b", "a"]], y, **QUIET).log_ratios
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_update_puts_columns_in_order_and_keeps_their_names(coreset, table):
    x, y = table
    expected = coreset.update(0, x[:100], y[:100])
    found = coreset.update(0, x[["b", "c", "a"]][:100], y[:100])
    assert found.columns == {"x": tuple(NAMES)}
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_array_equal(found.weights, expected.weights)


def test_coresets_with_columns_in_another_order_are_not_merged(builder, coreset, table):
    x, y = table
    swapped = builder.run(jax.random.key(1), x[["b", "a", "c"]], y)
    with pytest.raises(ValueError, match="'a', 'b', 'c', and 'b', 'a', 'c'"):
        jc.merge([coreset, swapped], 40, jax.random.key(0))
    unnamed = builder.run(jax.random.key(1), x.to_numpy(), y)
    with pytest.raises(ValueError, match="'a', 'b', 'c', and 'b', 'a', 'c'"):
        jc.merge([unnamed, coreset, swapped], 40, jax.random.key(0))
    same = builder.run(jax.random.key(1), x, y)
    assert jc.merge([coreset, same], 40, jax.random.key(0)).columns == {"x": tuple(NAMES)}


def test_pickles_of_earlier_versions_have_no_columns(coreset):
    state = coreset.__getstate__()
    del state["columns"]
    earlier = object.__new__(jc.Coreset)
    vars(earlier).update(state)
    assert dict(earlier.columns) == {}


def test_table_whose_column_names_the_groups_is_known_by_its_names():
    def of_table(table, num_groups, y=None):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("groups", num_groups):
            effect = numpyro.sample("effect", dist.Normal(mean, 1.0))
        with numpyro.plate("rows", table["x"].shape[0]):
            at = effect[table["site"]] + table["x"]
            numpyro.sample("y", dist.Normal(at, 1.0), obs=y)

    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": np.repeat(np.arange(20), 5), "x": rng.normal(size=100)})
    y = rng.normal(size=100)
    builder = jc.CoresetBuilder(of_table, size=20, groups="table['site']", **QUIET)
    coreset = builder.run(jax.random.key(0), frame, 20, y)
    assert coreset.columns == {}
    draws = {"mean": rng.normal(size=100)}
    effects = [
        coreset.group_effects(jax.random.key(0), draws, frame[names], 20, y)["effect"]
        for names in (["site", "x"], ["x", "site"])
    ]
    np.testing.assert_array_equal(*effects)
