"""The regression of what an expansion leaves, against NumPy's least squares and brute force."""

import numpy as np
import pytest

from jaxcoreset.likelihood.expansion import Expansion
from jaxcoreset.likelihood.quadratic import Regression, least_draws, num_features

WIDTH, NUM_ROWS = 3, 5


@pytest.fixture(scope="module")
def setting():
    """An expansion, draws of its Gaussian in two blocks, and cubic remainders of rows there."""
    random = np.random.default_rng(0)
    root = random.normal(size=(WIDTH, WIDTH)) + 2 * np.eye(WIDTH)
    precision = root @ root.T
    center = random.normal(size=WIDTH)
    start = Expansion(center, -3.0, random.normal(size=WIDTH), 0.5 - precision, precision)
    covariance = np.linalg.inv(precision)
    draws = [random.multivariate_normal(center, covariance, num) for num in (900, 600)]
    directions = random.normal(size=(NUM_ROWS, WIDTH))

    def remainders(flat):
        along = (flat - center) @ directions.T
        return (np.sin(along) - along).T

    return start, draws, remainders


def fit(setting):
    start, draws, remainders = setting
    # A block's total is known up to a constant.
    totals = [remainders(block).sum(axis=0) + 10.0 * at for at, block in enumerate(draws)]
    return Regression.of(start, draws, totals)


def _at_rows(found, coefficients, flat):
    """What is added for each row."""
    return -np.asarray(found.less_rows(np.zeros((NUM_ROWS, len(flat))), coefficients, flat))


def test_the_regression_is_nearly_least_squares_where_draws_are_many(setting):
    start, draws, remainders = setting
    fresh = np.random.default_rng(1).multivariate_normal(
        start.center, np.linalg.inv(start.precision), 4000
    )
    found = fit(setting)
    first, second = np.triu_indices(WIDTH)

    def design(flat):
        delta = flat - start.center
        return np.hstack([np.ones((len(flat), 1)), delta, delta[:, first] * delta[:, second]])

    joined = np.concatenate(draws)
    expected, *_ = np.linalg.lstsq(design(joined), remainders(joined).sum(axis=0), rcond=None)
    total = remainders(fresh).sum(axis=0)
    least = np.var(total - design(fresh) @ expected)
    assert np.var(total - found.at(fresh)) < 1.05 * least
    assert least < 0.7 * np.var(total)  # so there was something to gain
    # The new expansion is the old one plus what was added.
    gained = found.expansion.at(fresh) - start.at(fresh)
    np.testing.assert_allclose(gained, found.at(fresh), rtol=1e-8, atol=1e-10)


def test_the_rows_additions_sum_to_that_of_all_rows_and_are_quadratics(setting):
    start, draws, remainders = setting
    found = fit(setting)
    faded = [start.fade(block) * remainders(block) for block in draws]
    coefficients = np.asarray(found.of_rows(faded), np.float64)
    assert coefficients.shape == (NUM_ROWS, 1 + num_features(WIDTH))
    flat = draws[0][:50]
    rows = _at_rows(found, coefficients, flat) / start.fade(flat)
    difference = rows.sum(axis=0) - found.at(flat)
    # Equal but for the fade, since the total is known up to a constant only.
    np.testing.assert_allclose(
        difference - difference.mean(), 0, atol=1e-3 * np.ptp(found.at(flat))
    )
    # What is left of each row has mean zero under the draws, so that nothing steps where it fades.
    left = sum(
        (one - _at_rows(found, coefficients, block)).sum(axis=1)
        for one, block in zip(faded, draws, strict=True)
    )
    np.testing.assert_allclose(left, 0, atol=1e-2)
    for row in range(NUM_ROWS):
        terms = found.terms(coefficients[row])
        values = [terms.at(point - start.center) for point in flat]
        np.testing.assert_allclose(values, rows[row], rtol=1e-4, atol=1e-4)


def test_a_pass_over_rows_subtracts_the_same(setting):
    start, draws, remainders = setting
    found = fit(setting)
    later = [*draws, draws[0][:100] + 0.01]
    faded = [start.fade(block) * remainders(block) for block in later]
    first, second = map(np.asarray, found.removed(later))
    coefficients = found.of_rows(faded[:2])
    expected = [_at_rows(found, coefficients, block) for block in later]
    # Constants are of no account there, and the search is in JAX's precision.
    expected = np.concatenate([one - one.mean(axis=1, keepdims=True) for one in expected], axis=1)
    np.testing.assert_allclose(np.concatenate(faded, axis=1) @ first @ second, expected, atol=2e-3)


def test_a_sum_that_would_not_be_proper_is_refused(setting):
    start, draws, _ = setting
    upwards = [np.sum(((block - start.center) @ start.precision) ** 2, axis=1) for block in draws]
    assert Regression.of(start, draws, upwards) is None


def test_it_needs_twice_as_many_draws_as_features():
    assert num_features(20) == 230
    assert least_draws(20) == 461
