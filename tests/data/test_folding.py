"""Passes that only add rows up evaluate equal rows once: sums, errors and plans as of all rows."""

from types import SimpleNamespace

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import scipy.special

import jaxcoreset as jc
from jaxcoreset.data.distinct import DistinctRows, find_distinct
from jaxcoreset.data.folding import folding_of
from jaxcoreset.likelihood.embedding import log_likelihood_sum
from jaxcoreset.likelihood.from_model import model_likelihood
from jaxcoreset.likelihood.totals import log_likelihood_totals
from jaxcoreset.selection.reach import PosteriorOfRows
from jaxcoreset.weighting.laplace import LaplaceFitter
from jaxcoreset.weighting.log_posterior import LogPosterior
from tests.data.sources.tables import in_batches

LEVELS, NUM_ROWS = 10, 5_000


def levels(level, y=None):
    effect = numpyro.sample("effect", dist.Normal(0, 1).expand([LEVELS]).to_event(1))
    with numpyro.plate("rows", level.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=effect[level] - 1), obs=y)


def table():
    rng = np.random.default_rng(0)
    level = rng.integers(LEVELS, size=NUM_ROWS).astype(np.int32)
    return level, (rng.random(NUM_ROWS) < 0.3).astype(np.int32)


def folded(*args):
    likelihood = model_likelihood(levels, args)
    rows = likelihood.rows
    rows.folding = folding_of(rows, find_distinct(rows))
    assert rows.folding.first.size == 2 * LEVELS
    return likelihood


def exact(effect, level, y):
    """The log-likelihood and its gradient in float64."""
    logits = effect[level] - 1.0
    value = np.sum(-np.logaddexp(0, -(2 * y - 1) * logits))
    return value, np.bincount(level, y - scipy.special.expit(logits), LEVELS)


def test_sums_are_those_of_all_rows():
    level, y = table()
    likelihood = folded(level, y)
    effects = 0.3 * np.random.default_rng(1).normal(size=(20, LEVELS))
    expected = [exact(effect, level, y) for effect in effects]
    values, gradients = map(np.array, zip(*expected, strict=True))
    given, done = (likelihood.program.log_likelihood, {"effect": effects}, likelihood.rows), []
    found = log_likelihood_totals(*given, on_rows=done.append)
    np.testing.assert_allclose(found, values, atol=0.02)
    assert sum(done) == NUM_ROWS
    target = log_likelihood_sum(*given)
    np.testing.assert_allclose(target - target.mean(), values - values.mean(), atol=0.02)
    slopes = PosteriorOfRows(likelihood, likelihood.rows, effects[0]).gradients(effects)
    np.testing.assert_allclose(slopes, gradients - effects, rtol=1e-4, atol=0.01)
    terms = LaplaceFitter(likelihood).terms_at(effects[0])
    np.testing.assert_allclose(terms.value, values[0], atol=0.02)
    np.testing.assert_allclose(terms.gradient, gradients[0], rtol=1e-4, atol=0.01)
    passes = ("log-likelihoods at draws", "target", "tails", "Laplace")
    assert likelihood.rows.passes == dict.fromkeys(passes, 1)


def test_sums_at_many_draws_are_in_their_order():
    level, y = table()
    effects = 0.3 * np.random.default_rng(1).normal(size=(1250, LEVELS))
    values = np.array([exact(effect, level, y)[0] for effect in effects])
    likelihood = folded(level, y)
    target = log_likelihood_sum(
        likelihood.program.log_likelihood, {"effect": effects}, likelihood.rows
    )
    np.testing.assert_allclose(target - target[0], values - values[0], atol=0.02)


def test_a_draw_far_away_takes_no_digits_from_sums_over_distinct_rows():
    level, y = table()
    likelihood = folded(level, y)
    effects = 0.3 * np.random.default_rng(1).normal(size=(20, LEVELS))
    effects[3] = -1e6
    values = np.array([exact(effect, level, y)[0] for effect in effects])
    target = log_likelihood_sum(
        likelihood.program.log_likelihood, {"effect": effects}, likelihood.rows
    )
    near = np.arange(20) != 3
    np.testing.assert_allclose((target - target[0])[near], (values - values[0])[near], atol=0.02)


def test_bad_rows_are_counted_and_named_as_rows_of_the_data():
    level, y = table()
    likelihood = folded(level, y)
    objective = LogPosterior(LaplaceFitter(likelihood).model, likelihood.rows)
    position = np.zeros(LEVELS)
    position[5] = np.nan
    objective(position)
    count, shown = objective.bad_rows
    assert count == np.sum(level == 5)
    assert shown == sorted(np.flatnonzero((level == 5) & (y == one))[0] for one in (0, 1))


def test_few_repeats_and_rows_of_other_processes_are_not_folded():
    level, y = table()
    rows = model_likelihood(levels, (level, y)).rows
    distinct = find_distinct(rows)
    assert folding_of(rows, distinct) is not None
    shared = SimpleNamespace(is_local=False, num_rows=rows.num_rows, data=rows.data)
    assert folding_of(shared, distinct) is None
    many = np.arange(NUM_ROWS // 2)
    assert folding_of(rows, DistinctRows(many, np.full(many.size, 2))) is None
    assert folding_of(rows, None) is None


def test_a_build_finds_the_mode_of_all_rows_and_reads_distinct_rows_of_a_source_once():
    """Levels are independent, so that Newton's method finds the mode of each by itself."""
    level, y = table()

    settings = {"num_draws": 100, "num_held_out": 100, "rounds": 1, "progress_bar": False}
    builder = jc.CoresetBuilder(levels, size=12, proxy=jc.Taylor(), **settings)
    coreset = builder.run(jax.random.key(0), *in_batches((level, y), 1000))
    mode = np.zeros(LEVELS)
    for _ in range(20):  # Newton steps
        chance = scipy.special.expit(mode[level] - 1)
        precision = 1 + np.bincount(level, chance * (1 - chance), LEVELS)
        mode += (exact(mode, level, y)[1] - mode) / precision
    assert np.abs((coreset.approximation.mode - mode) * np.sqrt(precision)).max() < 0.01
    np.testing.assert_allclose(coreset.approximation.sd, precision**-0.5, rtol=1e-3)
    assert coreset.report.num_data == NUM_ROWS
    passes = coreset.report.passes
    assert (passes["distinct rows"], passes["candidates"]) == (1, 1)
    assert coreset.report.kl < 0.05
