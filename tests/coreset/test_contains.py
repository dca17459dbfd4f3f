"""Whether a coreset was built from some data, where groups are laid out with empty places."""

import dataclasses

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import jaxcoreset as jc
from jaxcoreset.coreset.contains import check_contains


def model(is_new, group, num_groups, y=None):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("groups", num_groups):
        effect = numpyro.sample("effect", dist.Normal(mean, 1.0))
    with numpyro.plate("rows", is_new.shape[0]):
        numpyro.sample("y", dist.Normal(effect[group] + is_new, 1.0), obs=y)


def test_places_that_no_row_takes_are_not_compared():
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(6), [1, 2, 3, 4, 5, 6])
    is_new, y = rng.random(group.size) < 0.5, rng.normal(size=group.size)
    builder = jc.CoresetBuilder(model, size=6, groups="group", progress_bar=False)
    coreset = builder.run(jax.random.key(0), is_new, group, 6, y)
    likelihood, arguments = coreset.likelihood, coreset.arguments
    positions = coreset.grouping.positions
    is_row = np.asarray(arguments.leaves[positions.labels]) != 0
    at = next(i for i in positions.rows if np.asarray(arguments.leaves[i]).dtype == bool)

    def changed(where):
        leaves = list(arguments.leaves)
        leaves[at] = np.asarray(leaves[at]) ^ where
        coreset.arguments = dataclasses.replace(arguments, leaves=tuple(leaves))
        check_contains(coreset, likelihood.arguments, likelihood.rows)

    assert not is_row.all()
    changed(~is_row)
    only_one = np.zeros_like(is_row)
    only_one[-1, 0] = True
    with pytest.raises(ValueError, match="the data differ"):
        changed(only_one)


def regression(x, y, prior_scale, error_scale=1.0):
    beta = numpyro.sample("beta", dist.Normal(0.0, prior_scale).expand([2]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.StudentT(8.0, x @ beta, error_scale), obs=y)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 2)).astype(np.float32)
    return x, (x @ [1.0, -1.0] + rng.standard_t(8, 4000)).astype(np.float32)


@pytest.fixture(scope="module")
def proxy_alone(table):
    """A coreset without rows, and draws of its posterior."""
    builder = jc.CoresetBuilder(regression, tol=0.05, progress_bar=False)
    coreset = builder.run(jax.random.key(0), *table, 1.0)
    assert len(coreset) == 0
    return coreset, coreset.approximation.draws(jax.random.key(1), 200)


CHECKS = pytest.mark.parametrize("check", [jc.certify, jc.correct, jc.loo])


@CHECKS
def test_other_arguments_of_a_coreset_without_rows_are_refused(proxy_alone, table, check):
    coreset, draws = proxy_alone
    with pytest.raises(ValueError, match="the data differ"):
        check(coreset, draws, *table, 0.05, progress_bar=False)
    check(coreset, draws, *table, 1.0, progress_bar=False)


@CHECKS
def test_other_data_of_a_coreset_without_rows_are_refused(proxy_alone, table, check):
    coreset, draws = proxy_alone
    x, y = table
    moved = x + np.array([0.0, 0.02]) * np.random.default_rng(1).normal(size=x.shape)
    for other in (moved.astype(np.float32), x[::-1]):
        with pytest.raises(ValueError, match=r"the data differ .* nats at the point"):
            check(coreset, draws, other, y, 1.0, progress_bar=False)


def test_arrays_changed_in_place_are_noticed_without_rows(proxy_alone, table):
    coreset, draws = proxy_alone
    jc.certify(coreset, draws, progress_bar=False)
    _, y = table
    before = y.copy()
    y[:40] += 1
    try:
        with pytest.raises(ValueError, match="changed in place"):
            jc.certify(coreset, draws, progress_bar=False)
    finally:
        y[:] = before


def test_all_rows_of_an_update_and_of_a_merge_are_accepted(proxy_alone, table):
    coreset, _ = proxy_alone
    x, y = table
    updated = coreset.update(1, x[:500] + np.float32(0.1), y[:500], 1.0)
    rows = np.concatenate([x, x[:500] + np.float32(0.1)]), np.concatenate([y, y[:500]])
    draws = coreset.approximation.draws(jax.random.key(1), 200)
    jc.certify(updated, draws, *rows, 1.0, progress_bar=False)
    with pytest.raises(ValueError, match="the data differ"):
        jc.certify(updated, draws, rows[0], rows[1] * np.float32(1.01), 1.0, progress_bar=False)
    merged = jc.merge([coreset, coreset], 20, 0)
    twice = np.concatenate([x, x]), np.concatenate([y, y])
    jc.certify(merged, draws, *twice, 1.0, progress_bar=False)


def test_rounding_of_large_numbers_is_no_difference():
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(3000), rng.normal(size=3000)]).astype(np.float32)
    y = (x @ [1e4, 1.0] + rng.standard_t(8, 3000)).astype(np.float32)
    builder = jc.CoresetBuilder(regression, tol=0.05, progress_bar=False)
    coreset = builder.run(jax.random.key(0), x, y, 1e5)
    draws = coreset.approximation.draws(jax.random.key(1), 200)
    order = rng.permutation(3000)
    for rows in ((x, y), (x[order], y[order])) if not len(coreset) else ((x, y),):
        jc.certify(coreset, draws, *rows, 1e5, progress_bar=False)
