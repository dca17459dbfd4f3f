"""Groups whose rows are read from files or batches are those of arrays in memory."""

from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import jaxcoreset as jc
from jaxcoreset import sources
from jaxcoreset.data import grouped, ragged
from jaxcoreset.data.grouped import gather, scan_labels
from jaxcoreset.likelihood.group_likelihood import group_likelihood
from tests.likelihood.group_models import frailties, means, normals

NUM_GROUPS = 60


def predicted(group, age, num_groups, y=None):
    """Normal means of groups, which a predictor of each group shifts."""
    slope: Any = numpyro.sample("slope", dist.Normal(0, 1))
    tau: Any = numpyro.sample("tau", dist.HalfNormal(1))
    with numpyro.plate("groups", num_groups):
        mean: Any = numpyro.sample("mean", dist.Normal(slope * age, tau))
    with numpyro.plate("rows", group.shape[0]):
        numpyro.sample("y", dist.Normal(mean[group], 0.5), obs=y)


SHARED = {"slope": np.float32(0.4), "tau": np.float32(0.8)}


def _table(is_sorted):
    group, y = means(NUM_GROUPS, most=20)
    order = np.argsort(group, kind="stable") if is_sorted else slice(None)
    age = np.linspace(-1, 1, NUM_GROUPS, dtype=np.float32)
    return 7 * group[order].astype(np.int32), age, y[order]


def _in_batches(group, age, y, starts=None, size=90):
    """The arguments, read in batches; `starts` gets an entry each time that reading begins."""
    starts = [] if starts is None else starts

    def batches():
        starts.append(0)
        for i in range(0, len(y), size):
            yield {"group": group[i : i + size], "y": y[i : i + size]}

    arrays = sources.batches(batches, num_rows=len(y)).arrays
    return arrays["group"], age, NUM_GROUPS, arrays["y"]


@pytest.fixture
def small(monkeypatch):
    """Windows of a few hundred rows, and groups of several lengths."""
    monkeypatch.setattr(grouped, "_WINDOW_BYTES", 400)
    monkeypatch.setattr(grouped, "BATCH_BYTES", 300)
    monkeypatch.setattr(ragged, "_PLACES_OF_LENGTH", 100)


def _values(likelihood):
    rows = likelihood.rows
    every = rows.places(np.arange(rows.num_rows))
    return np.asarray(likelihood.log_likelihood_constrained(SHARED, rows.take(every)))


@pytest.mark.parametrize("is_sorted", [True, False])
def test_groups_of_a_source_are_those_of_arrays(small, is_sorted):
    group, age, y = _table(is_sorted)
    whole = group_likelihood(predicted, (group, age, NUM_GROUPS, y), groups="group")
    starts = []
    read = group_likelihood(predicted, _in_batches(group, age, y, starts), groups="group")
    assert len(read.rows._runs.slices) > len(whole.rows._runs.slices) > 1
    np.testing.assert_allclose(_values(read), _values(whole), rtol=1e-5)
    # A pass evaluates each group once, under its place, and reads the source once.
    found, before = np.full(NUM_GROUPS, np.nan), len(starts)
    for first, num, values in read.rows.evaluate(_sizes, (), 1):
        numbers = read.rows.numbers(np.arange(first, first + num))
        found[numbers] = np.asarray(values).ravel()[:num]
    np.testing.assert_array_equal(found, np.bincount(group // 7))
    assert len(starts) <= before + 1
    assert read.rows.passes["labels"] == 1
    assert ("gathering" in read.rows.passes) is not is_sorted


def _sizes(args, rows, counted):
    group, _, _ = rows[0]
    return group.sum(axis=1)


def test_groups_of_a_source_have_the_names_of_its_categories(tmp_path):
    group, y = means(NUM_GROUPS, most=20)
    names = np.array([f"N{number:02d}" for number in range(NUM_GROUPS)])
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"plane": names[group], "y": y}), path)
    source = sources.parquet(path, group="plane", y="y", categories=["plane"])
    arrays = source.arrays
    found = group_likelihood(normals, (arrays["group"], NUM_GROUPS, arrays["y"]), groups="group")
    np.testing.assert_array_equal(found.model.names, names)


def test_gathered_rows_are_those_of_a_stable_sort(small):
    rng = np.random.default_rng(0)
    labels, x = rng.integers(-40, 40, 3000), rng.normal(size=(3000, 2))
    scan = scan_labels(labels)
    names, counts = np.unique(labels, return_counts=True)
    np.testing.assert_array_equal(scan.names, names)
    np.testing.assert_array_equal(scan.sizes, counts)
    assert not scan.is_sorted
    (gathered,), after = gather([x], labels, scan)
    np.testing.assert_array_equal(gathered, x[np.argsort(labels, kind="stable")])
    np.testing.assert_array_equal(after.starts, np.cumsum(counts) - counts)
    assert scan_labels(np.sort(labels)[::-1]).is_sorted


def test_a_full_disk_is_told_before_rows_are_written(monkeypatch):
    group, age, y = _table(is_sorted=False)
    usage = type("usage", (), {"free": 10})
    monkeypatch.setattr(grouped.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(ValueError, match="sort the rows by group, or set TMPDIR"):
        group_likelihood(predicted, _in_batches(group, age, y), groups="group")


def test_rows_of_a_source_may_be_groups_of_their_own():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=300).astype(np.float32), rng.poisson(2, 300)
    arrays = sources.array(x=x, y=y).arrays
    shared = {"beta": np.float32(0.3), "shape": np.float32(2)}
    found = [
        likelihood.log_likelihood_constrained(shared, likelihood.rows.take(np.arange(300)))
        for likelihood in (
            group_likelihood(frailties, args) for args in ((arrays["x"], arrays["y"]), (x, y))
        )
    ]
    np.testing.assert_array_equal(found[0], found[1])


def test_the_plan_gathers_nothing_and_says_what_that_takes():
    group, age, y = _table(is_sorted=False)
    builder = jc.CoresetBuilder(predicted, size=5, groups="group", proxy=None)
    plan = builder.plan(*_in_batches(group, age, y))
    assert (plan.num_data, plan.num_groups) == (len(y), NUM_GROUPS)
    assert plan.passes["labels"] == plan.passes["gathering"] == 1
    assert plan.temporary_bytes >= y.nbytes + group.nbytes / 2
    assert f"{NUM_GROUPS} with {len(y)} rows" in str(plan)
    assert "temporary files" in str(plan)


@pytest.mark.slow
@pytest.mark.unoptimised
def test_an_interrupted_build_of_groups_resumes_bit_for_bit(small, tmp_path, monkeypatch):
    args = _in_batches(*_table(is_sorted=False))
    settings = {"num_draws": 40, "num_held_out": 40, "rounds": 1, "progress_bar": False}

    def build(checkpoint=None):
        given = {"size": 4, "groups": "group", "proxy": None, "checkpoint": checkpoint}
        return jc.CoresetBuilder(predicted, **given, **settings).run(jax.random.key(0), *args)

    whole = build()
    evaluate, done = jc.data.rows.evaluate_blocks, []

    def interrupted(*args, **kwargs):
        for step in evaluate(*args, **kwargs):
            done.append(step)
            if len(done) == 8:  # within a pass, between runs of groups of several lengths
                raise KeyboardInterrupt
            yield step

    monkeypatch.setattr(jc.data.rows, "evaluate_blocks", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build(jc.Checkpoint(tmp_path / "build", every=0.0))
    again = build(jc.Checkpoint(tmp_path / "build", every=0.0))
    np.testing.assert_array_equal(again.indices, whole.indices)
    np.testing.assert_array_equal(again.weights, whole.weights)
    assert again.report.kl == whole.report.kl
