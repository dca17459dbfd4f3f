"""Codes of categories stand for the same values in all sources, or are refused."""

import json

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import jaxcoreset as jc
from jaxcoreset import sources
from jaxcoreset.coreset.codes import as_built, codes_as_text
from jaxcoreset.data.messages import DataError
from jaxcoreset.likelihood.arguments import codes_of_call

QUIET = {"progress_bar": False}
NAMES = ["AA", "B6", "UA"]
EFFECTS = dict(zip(NAMES, [-0.8, -0.4, 0.5], strict=True))
OTHER = r"argument carrier has codes of the categories 'B6', 'UA' .* categories=coreset.categories"


def model(carrier, x, y=None):
    effect = numpyro.sample("effect", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(effect[carrier] + slope * x, 0.5), obs=y)


def month(path, names, num_rows, seed):
    rng = np.random.default_rng(seed)
    carrier, x = rng.choice(names, num_rows), rng.normal(size=num_rows).astype(np.float32)
    noise = 0.5 * rng.normal(size=num_rows)
    y = np.array([EFFECTS[name] for name in carrier]) + x + noise
    pq.write_table(pa.table({"carrier": carrier, "x": x, "y": y.astype(np.float32)}), path)
    return path


def read(path, categories=("carrier",), **columns):
    columns = {"carrier": "carrier", "x": "x", "y": "y"} | columns
    return sources.parquet(path, categories=categories, **columns).arrays


@pytest.fixture(scope="module")
def months(tmp_path_factory):
    folder = tmp_path_factory.mktemp("months")
    first = month(folder / "january.parquet", NAMES, 400, 0)
    return first, month(folder / "february.parquet", NAMES[1:], 100, 1)


@pytest.fixture(scope="module")
def builder():
    return jc.CoresetBuilder(model, size=40, proxy=None, **QUIET)


@pytest.fixture(scope="module")
def coreset(builder, months):
    return builder.run(jax.random.key(0), **read(months[0]))


@pytest.fixture(scope="module")
def draws():
    rng = np.random.default_rng(2)
    effect = np.array(list(EFFECTS.values())) + 0.05 * rng.normal(size=(100, 3))
    return {"effect": effect, "slope": 1 + 0.05 * rng.normal(size=100)}


def test_values_given_are_numbered_in_their_order_and_others_are_told(months, tmp_path):
    codes = read(months[1], {"carrier": NAMES})["carrier"]
    own = read(months[1])["carrier"]
    np.testing.assert_array_equal(codes[:], own[:] + 1)
    assert read(months[1], {"carrier": None})["carrier"][:].tolist() == own[:].tolist()
    with pytest.raises(
        DataError, match=r"'carrier' has the value 'AA', .* 2 categories, 'UA', 'B6'"
    ):
        read(months[0], {"carrier": ["UA", "B6"]})["carrier"][:]
    for wrong in ([], ["AA", "AA"], ["AA", 1], "AA"):
        with pytest.raises(DataError, match="expected the different values of this column"):
            read(months[0], {"carrier": wrong})
    with pytest.raises(DataError, match="text is not compared with numbers"):
        read(months[0], {"carrier": [1, 2]})["carrier"][:]
    numbers = pa.table({"engines": pa.array([4, 2, 2], pa.int8())})
    pq.write_table(numbers, tmp_path / "engines.parquet")
    found = sources.parquet(tmp_path, engines="engines", categories={"engines": [2.0, 1.0, 4.0]})
    np.testing.assert_array_equal(found.arrays["engines"][:], [2, 0, 0])


def test_values_given_are_those_of_folders(tmp_path):
    for name in ("01", "1"):
        (tmp_path / f"code={name}").mkdir()
        pq.write_table(pa.table({"a": [0.0]}), tmp_path / f"code={name}" / "t.parquet")
    found = sources.parquet(tmp_path / "code=1", a="a")
    assert found.num_rows == 1
    found = sources.parquet(tmp_path, code="code", categories={"code": ["1", "0", "01"]})
    np.testing.assert_array_equal(found.arrays["code"][:], [2, 0])
    with pytest.raises(DataError, match="'code' has the value '1', which is not among its 1"):
        sources.parquet(tmp_path, code="code", categories={"code": ["01"]}).arrays["code"][:]


def test_other_values_are_refused_and_those_of_the_build_are_right(coreset, draws, months):
    given = read(months[1], coreset.categories)
    assert coreset.categories["carrier"].tolist() == NAMES
    with pytest.raises(DataError, match=OTHER):
        coreset.update(1, **read(months[1]))
    updated = coreset.update(1, **given)
    assert updated.categories["carrier"].tolist() == NAMES
    settings = {"key": 0, "reweight": False, "quantiles": (), **QUIET}
    with pytest.raises(DataError, match=OTHER):
        jc.predict(coreset, draws, **read(months[1]), **settings)
    table = pq.read_table(months[1])
    expected = (
        np.array([EFFECTS[name] for name in table["carrier"].to_pylist()]) + table["x"].to_numpy()
    )
    found = jc.predict(coreset, draws, **given, **settings).mean["y"]
    np.testing.assert_allclose(found, expected, atol=0.35)


@pytest.mark.parametrize("check", [jc.certify, jc.correct, jc.loo])
def test_all_rows_with_other_values_are_refused(coreset, draws, months, check):
    with pytest.raises(DataError, match="'UA', 'B6', 'AA' in column 'carrier'; expected those of"):
        check(coreset, draws, **read(months[0], {"carrier": NAMES[::-1]}), **QUIET)


def test_coresets_of_sources_with_other_values_are_not_merged(builder, coreset, months):
    other = builder.run(jax.random.key(1), **read(months[1]))
    with pytest.raises(DataError, match="numbers in argument carrier stand for"):
        jc.merge([coreset, other], 40, 0)
    same = builder.run(jax.random.key(1), **read(months[1], coreset.categories))
    assert jc.merge([coreset, same], 40, 0).categories["carrier"].tolist() == NAMES


def test_saved_coreset_keeps_the_values_and_earlier_files_load(coreset, months, tmp_path):
    path = coreset.save(tmp_path / "rows")
    loaded = jc.load(path, model)
    assert loaded.categories["carrier"].tolist() == NAMES
    with pytest.raises(DataError, match=OTHER):
        loaded.update(1, **read(months[1]))
    with np.load(path) as parts:
        arrays = dict(parts)
    header = json.loads(arrays["header"].tobytes())
    del header["codes"]
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(path, **arrays)
    assert jc.load(path, model).categories == {}


def test_numbers_that_one_source_reads_as_categories_are_refused(tmp_path):
    table = pa.table({"g": [4, 1, 2], "x": [0.0, 1.0, 2.0]})
    pq.write_table(table, tmp_path / "t.parquet")
    coded = sources.parquet(tmp_path, carrier="g", x="x", categories=["g"]).arrays
    plain = sources.parquet(tmp_path, carrier="g", x="x").arrays

    class Built:
        columns, full_model, codes = {}, staticmethod(model), codes_of_call(model, (), coded)

    with pytest.raises(DataError, match="plain numbers in column 'g'; expected codes"):
        as_built(Built, (), plain)
    Built.codes = codes_of_call(model, (), plain)
    with pytest.raises(DataError, match="codes of categories in column 'g'; expected plain"):
        as_built(Built, (), coded)


def test_processes_compare_the_values(months):
    texts = [codes_as_text(codes_of_call(model, (), read(path))) for path in months]
    assert texts[0].keys() == texts[1].keys()
    names = [name for name in texts[0] if texts[0][name] != texts[1][name]]
    (name,) = names
    assert "'carrier' in carrier" in name
    assert "pass categories=" in name
    # Groups are known by their labels, and each process has its own.
    assert not any(
        "'carrier'" in name
        for name in codes_as_text(codes_of_call(model, (), read(months[0]), "carrier"))
    )
