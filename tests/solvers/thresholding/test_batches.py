"""The batches of stochastic hard thresholding, and the estimators that read them."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcoreset as jc
from jaxcoreset.solvers.thresholding.batches import draw_batch, estimate_correlations, second_batch
from jaxcoreset.solvers.thresholding.stochastic import StochasticAIHT
from tests.solvers.thresholding.helpers import KEY, batches_of, point, rows_of


def masks(n, size):
    """Every batch of so many rows, as masks."""
    rows = np.array(list(itertools.combinations(range(n), size)))
    out = np.zeros((len(rows), n), bool)
    np.put_along_axis(out, rows, True, axis=1)
    return out


@functools.cache
def estimates(estimator, size=3):
    """The estimate for every batch, or every pair of batches, at `point`."""
    atoms, weights, residual, exact = point()
    n = len(atoms)
    in_batch = in_image_batch = masks(n, size)
    if estimator == "double":
        count = len(in_batch)
        in_batch = np.repeat(in_batch, count, axis=0)
        in_image_batch = np.tile(in_image_batch, (count, 1))
    with jax.enable_x64(True):
        problem = jc.CoresetProblem(atoms)

        @jax.jit
        @jax.vmap
        def estimate(b, c):
            return estimate_correlations(
                problem, jnp.asarray(weights), jnp.asarray(residual), b, n, estimator, c
            )

        found = estimate(in_batch, in_image_batch)
    return np.asarray(found), exact


@pytest.mark.parametrize("estimator", ["double", "batch", "support"])
def test_estimator_is_unbiased_over_all_batches(estimator):
    found, exact = estimates(estimator)
    np.testing.assert_allclose(found.mean(0), exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("estimator", ["double", "support"])
def test_estimator_is_unbiased_over_many_keys(estimator):
    atoms, weights, residual, exact = point()
    n, draws = len(atoms), 5_000

    def estimate(key):
        first, second = jax.random.split(key)
        batch = draw_batch(first, n, 3)
        in_batch = jnp.zeros(n, bool).at[batch.rows].set(True)
        in_image_batch = second_batch(second, n, batch)
        at = jnp.asarray(weights), jnp.asarray(residual)
        return estimate_correlations(problem, *at, in_batch, n, estimator, in_image_batch)

    with jax.enable_x64(True):
        problem = jc.CoresetProblem(atoms)
        found = np.asarray(jax.jit(jax.vmap(estimate))(jax.random.split(KEY, draws)))
    # Five standard errors of the mean of so many draws; rows that are always read have none.
    error = 5 * found.std(0) / np.sqrt(draws) + 1e-10
    assert (np.abs(found.mean(0) - exact) <= error).all()


def test_each_refinement_of_the_estimator_has_less_variance():
    variance = {e: estimates(e)[0].var(0).sum() for e in ("double", "batch", "support")}
    assert variance["support"] < variance["batch"] < variance["double"]


def test_pool_is_the_gradient_on_the_rows_read_and_zero_elsewhere():
    found, exact = estimates("pool")
    read = masks(len(exact), 3) | (point()[1] != 0)
    np.testing.assert_allclose(found, np.where(read, exact, 0), rtol=1e-12)


@pytest.mark.parametrize("estimator", ["double", "batch", "support", "pool"])
def test_estimator_with_all_rows_is_the_gradient(estimator):
    found, exact = estimates(estimator, size=8)
    np.testing.assert_allclose(found, np.broadcast_to(exact, found.shape), rtol=1e-12)


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


def test_independent_batches_hold_distinct_rows_all_equally_often():
    draw = jax.jit(jax.vmap(lambda key: draw_batch(key, 10, 4).rows))
    rows = np.asarray(draw(jax.random.split(KEY, 5000)))
    assert (np.diff(np.sort(rows, axis=1), axis=1) > 0).all()
    frequency = np.bincount(rows.ravel(), minlength=10) / 5000
    # Binomial with p = 0.4: five standard errors.
    np.testing.assert_allclose(frequency, 0.4, atol=5 * np.sqrt(0.24 / 5000))


def test_independent_batches_need_not_cover_the_rows():
    solver = StochasticAIHT(batch_size=5, reshuffle=False)
    (epoch,), _ = batches_of(solver, 20, 4)
    assert all(len(rows_of(batch)) == 5 for batch in epoch)
    assert len(set(np.concatenate([rows_of(b) for b in epoch]).tolist())) < 20
