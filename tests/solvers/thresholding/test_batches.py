"""The batches of stochastic hard thresholding, and the estimators that read them."""

from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcoreset as jc
from jaxcoreset.solvers.thresholding.batches import draw_batch, estimate_correlations, second_batch
from jaxcoreset.solvers.thresholding.stochastic import StochasticAIHT
from tests.solvers.thresholding.helpers import KEY, batches_of, point, rows_of


def estimates(estimator, size=3):
    """The estimate for every batch of so many rows, or every pair of batches, and their rows."""
    atoms, weights, residual, _ = point()
    n = len(atoms)
    batches = np.array([np.isin(range(n), rows) for rows in combinations(range(n), size)])
    in_batch, in_image_batch = batches, None
    if estimator == "double":
        in_batch = np.repeat(batches, len(batches), axis=0)
        in_image_batch = np.tile(batches, (len(batches), 1))
    with jax.enable_x64(True):
        problem = jc.CoresetProblem(atoms)

        @jax.jit
        @jax.vmap
        def estimate(b, c):
            at = jnp.asarray(weights), jnp.asarray(residual)
            return estimate_correlations(problem, *at, b, n, estimator, c)

        return np.asarray(estimate(in_batch, in_image_batch)), batches


def test_estimators_are_unbiased_over_all_batches_with_less_variance_by_each_refinement():
    _, weights, _, exact = point()
    variances = []
    for estimator in ("double", "batch", "support"):
        found, _ = estimates(estimator)
        np.testing.assert_allclose(found.mean(0), exact, rtol=1e-12, atol=1e-12)
        variances.append(found.var(0).sum())
    assert (np.diff(variances) < 0).all()
    # "pool" is the gradient on the rows read and zero elsewhere.
    found, batches = estimates("pool")
    np.testing.assert_allclose(found, np.where(batches | (weights != 0), exact, 0), rtol=1e-12)


def test_batches_that_are_drawn_make_an_unbiased_estimate():
    atoms, weights, residual, exact = point()
    n, draws = len(atoms), 5_000

    def estimate(key):
        first, second = jax.random.split(key)
        batch = draw_batch(first, n, 3)
        in_batch = jnp.zeros(n, bool).at[batch.rows].set(True)
        in_image_batch = second_batch(second, n, batch)
        at = jnp.asarray(weights), jnp.asarray(residual)
        return estimate_correlations(problem, *at, in_batch, n, "double", in_image_batch)

    with jax.enable_x64(True):
        problem = jc.CoresetProblem(atoms)
        found = np.asarray(jax.jit(jax.vmap(estimate))(jax.random.split(KEY, draws)))
    # Five standard errors of the mean of so many draws; rows that are always read have none.
    error = 5 * found.std(0) / np.sqrt(draws) + 1e-10
    assert (np.abs(found.mean(0) - exact) <= error).all()


@pytest.mark.parametrize(("n", "batch_size"), [(10, 3), (7, 7), (23, 0.3), (3, 0.01)])
def test_epoch_without_replacement_reads_every_row_once(n, batch_size):
    solver = StochasticAIHT(batch_size=batch_size)
    (first, second), _ = batches_of(solver, n, 2 * solver.num_batches(n))
    for epoch in (first, second):
        rows = [rows_of(batch) for batch in epoch]
        assert sorted(np.concatenate(rows).tolist()) == list(range(n))
        sizes = [len(r) for r in rows]
        assert max(sizes) <= solver.num_rows(n)
        assert max(sizes) - min(sizes) <= 1
    if solver.num_batches(n) > 1 and n > 5:
        assert rows_of(first[0]).tolist() != rows_of(second[0]).tolist()


def test_independent_batches_hold_distinct_rows_and_need_not_cover_all():
    solver = StochasticAIHT(batch_size=5, reshuffle=False)
    (epoch,), _ = batches_of(solver, 20, 4)
    rows = [set(rows_of(batch).tolist()) for batch in epoch]
    assert [len(one) for one in rows] == [5] * 4
    assert len(set().union(*rows)) < 20
