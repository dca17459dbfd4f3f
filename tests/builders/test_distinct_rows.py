"""Equal rows are one row: the distinct rows with their counts are exact, and are what is chosen."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import jaxcoreset as jc
from jaxcoreset.command.html import verdict
from jaxcoreset.coreset.report import Report
from jaxcoreset.data.sources import batches
from tests.datasets import _laplace
from tests.models import logistic_model

KEY = jax.random.key(0)
SETTINGS = {"progress_bar": False, "num_draws": 200, "num_held_out": 200}
NUM_ROWS = 5000


def table(num_rows=NUM_ROWS, seed=0):
    """Four binary covariates and a binary response: 32 distinct rows."""
    rng = np.random.default_rng(seed)
    x = rng.integers(2, size=(num_rows, 4)).astype(np.float32)
    logits = x @ [1, -1, 0.5, 0] - 0.3
    return x, (rng.random(num_rows) < 1 / (1 + np.exp(-logits))).astype(np.int32)


def build(data, **settings):
    return jc.CoresetBuilder(logistic_model, **SETTINGS | settings, proxy=None).run(KEY, *data)


def log_likelihood(beta, x, y, weights=1.0):
    return np.sum(weights * -np.logaddexp(0, -(2 * y - 1) * (x @ beta)))


def spread(coreset, x, y):
    """The variance of the difference of the log-likelihoods under the posterior of all rows."""
    mode, precision = _laplace(x, 2 * y - 1, counts=False)
    betas = np.random.default_rng(7).multivariate_normal(mode, np.linalg.inv(precision), 100)
    args = [*map(np.asarray, coreset.args), coreset.weights]
    return np.var([log_likelihood(b, x, y) - log_likelihood(b, *args) for b in betas])


def check_exact(coreset, x, y):
    """The rows are NumPy's distinct ones, and the log-likelihood is that of all rows, in nats."""
    joined = np.column_stack([x, y])
    _, first, counts = np.unique(joined, axis=0, return_index=True, return_counts=True)
    order = np.argsort(first)
    np.testing.assert_array_equal(coreset.indices, first[order])
    np.testing.assert_array_equal(coreset.weights, counts[order])
    for got, given in zip(coreset.args, (x, y), strict=True):
        np.testing.assert_array_equal(got, given[first[order]])

    for beta in np.random.default_rng(1).normal(size=(5, x.shape[1])):
        some = log_likelihood(beta, *map(np.asarray, coreset.args), coreset.weights)
        np.testing.assert_allclose(some, log_likelihood(beta, x, y), rtol=1e-9)


@pytest.mark.parametrize("settings", [{"size": 32}, {"size": 100}, {"tol": 0.01}])
def test_few_distinct_rows_are_the_coreset_without_draws_or_solver(settings):
    x, y = table()
    coreset = build((x, y), **settings)
    check_exact(coreset, x, y)
    report = coreset.report
    assert (report.kl, report.kl_standard_error, report.num_draws) == (0.0, 0.0, 0)
    assert report.solver == "distinct rows"
    assert (report.num_used, report.num_distinct, report.num_data) == (32, 32, NUM_ROWS)
    assert report.passes == {}
    assert report.is_within_tol is (True if "tol" in settings else None)
    assert "32 of 5,000 (32 distinct)" in str(report)
    assert report.verdict.startswith("good")
    assert "all 32 distinct rows of 5,000" in verdict(report)
    earlier = report.to_dict()  # as versions without the number of distinct rows wrote it
    del earlier["num_distinct"]
    assert Report.from_dict(earlier).num_distinct is None


def test_fewer_rows_than_distinct_ones_are_chosen_among_these():
    x, y = table()
    coreset = build((x, y), size=11)
    _, first = np.unique(np.column_stack([x, y]), axis=0, return_index=True)
    assert np.isin(coreset.indices, first).all()
    report = coreset.report
    assert report.num_candidates == 32
    assert report.num_distinct == 32
    assert report.kl < 1e-3
    assert "11 of 5,000 (32 distinct)" in str(report)
    assert spread(coreset, x, y) < 1e-3  # nat²: the sum is still over all rows
    again = coreset.update(jax.random.key(1), *table(seed=5))
    assert again.report.num_data == 2 * NUM_ROWS
    assert again.report.num_distinct is None


def test_no_row_twice_is_as_before_and_counted(monkeypatch):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(400, 3)).astype(np.float32)
    y = rng.integers(2, size=400).astype(np.int32)
    coreset = build((x, y), size=12)
    assert coreset.report.num_distinct == coreset.report.num_candidates == 400
    assert "12 of 400 (12 allowed)" in str(coreset.report)
    monkeypatch.setattr("jaxcoreset.builders.builder.find_distinct", lambda rows, **_: None)
    expected = build((x, y), size=12)
    assert expected.report.num_distinct is None
    np.testing.assert_array_equal(coreset.indices, expected.indices)
    np.testing.assert_array_equal(coreset.weights, expected.weights)
    assert coreset.report.kl == expected.report.kl


def test_a_tolerance_that_needs_more_rows_than_differ_gives_the_distinct_ones():
    """A saturated table of 40 cells, which no fewer rows stand for."""
    rng = np.random.default_rng(3)
    cell = rng.permutation(np.repeat(np.arange(40), 50))
    y = rng.normal(size=40).astype(np.float32)[cell]

    def model(cell, y=None):
        means = numpyro.sample("means", dist.Normal(0, 1).expand([40]).to_event(1))
        with numpyro.plate("rows", cell.shape[0]):
            numpyro.sample("y", dist.Normal(means[cell], 1.0), obs=y)

    tol = jc.Tolerance(1e-5, max_size=1000)
    coreset = jc.CoresetBuilder(model, tol=tol, **SETTINGS, proxy=None).run(KEY, cell, y)
    assert coreset.report.solver == "distinct rows"
    np.testing.assert_array_equal(coreset.weights, np.full(40, 50.0))


@pytest.mark.filterwarnings("ignore:don't use")  # so few rows a day are not enough
def test_constraints_are_kept_where_the_distinct_rows_break_them():
    x, y = table()
    day = np.random.default_rng(4).integers(3, size=NUM_ROWS)
    solver = jc.AIHT2(constraint=jc.StratifiedTopK(day, k_per_group=4))
    coreset = build((x, y), size=40, solver=solver)
    assert coreset.report.solver != "distinct rows"
    assert np.bincount(day[coreset.indices]).max() <= 4
    # Equal rows of other days are other rows to this constraint.
    assert coreset.report.num_candidates == NUM_ROWS
    total = build((x, y), size=40, solver=jc.AIHT2(constraint=jc.SimplexTopK(3000)))
    assert total.weights.sum() == pytest.approx(3000, rel=1e-4)


@pytest.mark.parametrize(
    "constraint",
    [
        lambda: jc.SimplexTopK(NUM_ROWS),
        lambda: jc.TopK(),
        lambda: jc.StratifiedTopK(np.arange(NUM_ROWS) % 2, reserved=2),
    ],
)
def test_constraints_that_allow_the_distinct_rows_do_not_hinder(constraint):
    x, y = table()
    coreset = build((x, y), size=40, solver=jc.AIHT2(constraint=constraint()))
    check_exact(coreset, x, y)


def test_candidates_are_distinct_rows_and_a_search_finds_distinct_ones():
    """A rare category without a candidate, in which every row occurs ten times."""
    rng = np.random.default_rng(5)
    x = np.zeros((500, 4), np.float32)
    x[:, :3] = rng.normal(size=(500, 3))
    x[495:, 3] = 1
    x, y = np.repeat(x, 10, axis=0), np.repeat(rng.integers(2, size=500), 10).astype(np.int32)
    first = 10 * np.arange(500)
    chosen = jc.Candidates(100, extra_passes=1)
    coreset = build((x, y), size=20, candidates=chosen)
    assert coreset.report.num_distinct == 500
    assert coreset.report.num_candidates > 100
    assert np.isin(coreset.summary.indices, first).all()
    builder = jc.CoresetBuilder(logistic_model, size=20, **SETTINGS, proxy=None)
    assert builder.plan(x, y).num_candidates == 500


def test_the_plan_of_an_exact_coreset_has_no_passes():
    x, y = table()
    plan = jc.CoresetBuilder(logistic_model, size=40, **SETTINGS, proxy=None).plan(x, y)
    assert (plan.num_candidates, plan.num_draws, plan.passes) == (32, 0, {})
    assert "32 rows, without error; no search is needed" in str(plan)
    # With a size of n all rows are kept, equal ones too.
    every = jc.CoresetBuilder(logistic_model, size=len(x), **SETTINGS, proxy=None)
    coreset = every.run(0, x, y)
    assert every.plan(x, y).num_candidates == len(coreset) == len(x)
    np.testing.assert_array_equal(coreset.weights, 1)
    assert (coreset.report.solver, coreset.report.num_distinct) == ("all rows", 32)


def test_distinct_rows_of_a_source_are_found_in_one_pass():
    x, y = table()

    def read():
        for at in range(0, NUM_ROWS, 3000):
            yield x[at : at + 3000], y[at : at + 3000]

    coreset = build(batches(read, num_rows=NUM_ROWS).arrays, size=40)
    check_exact(coreset, x, y)
    assert coreset.report.passes["distinct rows"] == 1
    assert "Laplace" not in coreset.report.passes


def test_an_exact_coreset_is_saved_certified_merged_and_says_that_it_cannot_be_updated(tmp_path):
    x, y = table()
    coreset = build((x, y), size=40)
    draws = {"beta": 0.3 * np.random.default_rng(6).normal(size=(200, 4))}
    certificate = jc.certify(coreset, draws, progress_bar=False)
    assert certificate.kl < 1e-6
    again = jc.load(coreset.save(tmp_path / "exact"), model=logistic_model)
    assert again.report.num_distinct == 32
    np.testing.assert_array_equal(again.weights, coreset.weights)
    with pytest.raises(ValueError, match="32 distinct ones of all 5,000 rows"):
        coreset.update(jax.random.key(1), x, y)
    # It has no draws to start at, but a mode.
    assert again.init_params(3)["beta"].shape == (3, 4)
    merged = jc.merge([coreset, coreset], 10, jax.random.key(2))
    assert merged.report.num_data == 2 * NUM_ROWS
    assert spread(merged, np.tile(x, (2, 1)), np.tile(y, 2)) < 2e-3


def test_a_build_in_float64_counts_the_same():
    x, y = table()
    with jax.enable_x64(True):
        coreset = build((jnp.asarray(x, jnp.float64), y), size=40)
    check_exact(coreset, x, y)
    assert coreset.weights.dtype == np.float64
