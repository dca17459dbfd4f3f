"""Sums of log-likelihoods at draws, constant included, against float64."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

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
def test_totals_are_those_of_float64(weights):
    wide = np.abs(ROWS)
    found = log_likelihood_totals(bounded, DRAWS, wide, weights)
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


def test_totals_over_many_rows_are_right_to_a_fraction_of_a_nat():
    # 1.2 million rows, −4e5 nats in all: float32 sums would be off by tenths.
    rng = np.random.default_rng(2)
    n = 1_200_000
    x = rng.normal(size=(n, 2)).astype(np.float32)
    y = (rng.random(n) < scipy.special.expit(1 - 2 * x[:, 0])).astype(np.float32)
    draws = np.array([[1, -2, 0], [1.003, -2.004, 0.002], [0.998, -1.998, 0]], np.float32)

    def log_likelihood(draw, rows):
        logits = draw[0] + rows[0] @ draw[1:]
        return rows[1] * logits - jnp.logaddexp(0.0, logits)

    found = log_likelihood_totals(log_likelihood, draws, (x, y), batch_size=100_003)
    logits = draws[:, :1].astype(float) + draws[:, 1:].astype(float) @ x.T.astype(float)
    expected = (y * logits - np.logaddexp(0, logits)).sum(1)
    np.testing.assert_allclose(found - found[0], expected - expected[0], atol=0.01)
    np.testing.assert_allclose(found, expected, rtol=2e-7)


def test_large_log_likelihoods_leave_small_differences_exact():
    # Every value is a float32 exactly; sums of a few hundred of them are not.
    rng = np.random.default_rng(4)
    x = rng.integers(-8, 9, size=200_000).astype(np.float32) / 8
    draws = np.array([1, 2, -3], np.float32) / 64

    found = log_likelihood_totals(lambda draw, rows: draw * rows - 1000.0, draws, x)
    np.testing.assert_allclose(found, draws * x.sum(dtype=float) - 1000 * x.size, atol=0.02, rtol=0)


def test_chunks_do_not_change_totals_weighted_or_not():
    rng = np.random.default_rng(3)
    data, weights = rng.normal(size=(1000, 1)), rng.uniform(size=1000)
    draws = rng.normal(size=(5, 1))

    def log_likelihood(draw, rows):
        return -0.5 * (rows[:, 0] - draw[0]) ** 2

    expected = -0.5 * (data - draws.T) ** 2
    for batch_size in (None, 7, 1000):
        plain = log_likelihood_totals(log_likelihood, draws, data, batch_size=batch_size)
        np.testing.assert_allclose(plain, expected.sum(0), rtol=1e-6)
        weighted = log_likelihood_totals(
            log_likelihood, draws, data, weights, batch_size=batch_size
        )
        np.testing.assert_allclose(weighted, weights @ expected, rtol=1e-6)
