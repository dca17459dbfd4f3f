"""Sums of log-likelihoods at draws, constant included, against float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxcoreset.likelihood.totals import log_likelihood_totals

DRAWS = np.linspace(0.5, 2.0, 40).astype(np.float32)
ROWS = np.random.default_rng(0).normal(size=1000).astype(np.float32)


def bounded(draw, rows):
    """A density with the support [−3 draw, ∞), far from zero."""
    return jnp.where(rows < -3 * draw, -jnp.inf, -50.0 - 0.5 * (rows / draw) ** 2)


def expected(rows, weights=1.0):
    rows, draws = np.float64(rows), np.float64(DRAWS)[:, None]
    values = -50.0 - 0.5 * (rows / draws) ** 2
    return np.sum(weights * np.where(rows < -3 * draws, -np.inf, values), axis=1)


@pytest.mark.parametrize("weights", [None, np.random.default_rng(1).uniform(1, 9, ROWS.size)])
@pytest.mark.parametrize("batch_size", [None, 7])
def test_totals_are_those_of_float64_whatever_the_chunks(weights, batch_size):
    wide = np.abs(ROWS)
    found = log_likelihood_totals(bounded, DRAWS, wide, weights, batch_size=batch_size)
    np.testing.assert_allclose(found, expected(wide, 1.0 if weights is None else weights), 1e-7)


@pytest.mark.parametrize("at", [0, 700])
@pytest.mark.parametrize("weights", [None, np.ones(ROWS.size)])
def test_a_row_without_probability_makes_its_draws_impossible(at, weights):
    # The first row also fills up the last block, where it does not count.
    rows = np.abs(ROWS)
    rows[at] = -4.0
    found = log_likelihood_totals(bounded, DRAWS, rows, weights)
    impossible = 3 * DRAWS < 4.0
    assert 0 < impossible.sum() < DRAWS.size
    np.testing.assert_array_equal(found == -np.inf, impossible)
    np.testing.assert_allclose(found, expected(rows), 1e-7)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_that_are_not_numbers_are_named(bad):
    rows = ROWS.copy()
    rows[[3, 999]] = bad

    def signed(draw, rows):
        return draw * rows

    with pytest.raises(ValueError, match=r"2 of 1000 rows, the first of them \[3, 999\]"):
        log_likelihood_totals(signed, DRAWS, rows)


@pytest.mark.parametrize("weights", [None, np.ones(ROWS.size)])
def test_draws_so_far_away_that_float32_overflows_are_impossible(weights):
    """Log-likelihoods of −1e30 to −1e40 at every draw, of which float32 holds some as −inf."""
    rows = np.full(1000, 2.0, np.float32)
    draws = np.linspace(69.0, 92.0, 40).astype(np.float32)

    def counts(draw, rows):
        return rows * draw - jnp.exp(draw)

    found = log_likelihood_totals(counts, draws, rows, weights)
    exact = rows.size * (2 * np.float64(draws) - np.exp(np.float64(draws)))
    large = exact < -1e38
    assert large.any()
    assert (found[large] == -np.inf if weights is None else found[large] < -1e37).all()
    small = exact > -1e36
    assert 0 < small.sum() < draws.size
    np.testing.assert_allclose(found[small], exact[small], 1e-4)
    assert (found[~small] <= -1e35).all()


def test_a_chain_that_is_stuck_where_float32_nearly_overflows_has_no_probability():
    draws, rows = np.full(40, 88.0, np.float32), np.full(1000, 2.0, np.float32)
    found = log_likelihood_totals(lambda draw, rows: rows * draw - jnp.exp(draw), draws, rows)
    np.testing.assert_array_equal(found, -np.inf)


@pytest.mark.parametrize("far", [40.0, 1e3, 1e5, 1e7])
@pytest.mark.parametrize("weights", [None, np.ones(ROWS.size)])
def test_a_draw_far_away_takes_no_digits_from_the_others(far, weights):
    draws = np.append(np.full(8, far, np.float32), DRAWS)

    def normal(draw, rows):
        return -0.5 * (rows - draw) ** 2

    found = log_likelihood_totals(normal, draws, ROWS, weights)
    exact = -0.5 * ((np.float64(ROWS) - np.float64(draws)[:, None]) ** 2).sum(axis=1)
    np.testing.assert_allclose(found[8:], exact[8:], atol=0.0005, rtol=0)
    np.testing.assert_allclose(found[:8], exact[:8], rtol=1e-5)


def test_a_row_of_weight_zero_does_not_count_where_it_has_no_probability():
    rows = np.append(np.abs(ROWS), np.float32(-4.0))
    weights = np.append(np.ones(ROWS.size), 0.0)
    found = log_likelihood_totals(bounded, DRAWS, rows, weights)
    np.testing.assert_allclose(found, expected(np.abs(ROWS)), 1e-7)


def test_a_sum_that_overflows_upwards_is_told_from_a_row():
    with pytest.raises(
        ValueError, match="in each of 1000 rows, but its sum over them is too large"
    ):
        log_likelihood_totals(lambda draw, rows: 0 * rows + 3e38 * draw, DRAWS / 2, ROWS)


def test_large_log_likelihoods_leave_small_differences_exact():
    # Every value is a float32 exactly; sums of a few hundred of them are not.
    rng = np.random.default_rng(4)
    x = rng.integers(-8, 9, size=200_000).astype(np.float32) / 8
    draws = np.array([1, 2, -3], np.float32) / 64

    found = log_likelihood_totals(lambda draw, rows: draw * rows - 1000.0, draws, x)
    np.testing.assert_allclose(found, draws * x.sum(dtype=float) - 1000 * x.size, atol=0.02, rtol=0)
