"""Atoms and targets from log-likelihoods and their gradients: chunks, sums, and bad rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxcoreset as jc
from jaxcoreset.likelihood.densities import bernoulli_log_prob
from jaxcoreset.likelihood.embedding import (
    _by_columns,
    _by_products,
    log_likelihood_matrix,
    log_likelihood_sum,
)
from jaxcoreset.likelihood.fisher import fisher_features
from jaxcoreset.likelihood.passes import feature_matrix, feature_sum


def gaussian(draw, data):
    """log N(y; x·draw, 1) up to a constant."""
    x, y = data
    return -0.5 * (y - x @ draw) ** 2


@pytest.fixture(scope="module")
def problem_data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(40, 3)), (rng.normal(size=(1000, 3)), rng.normal(size=1000))


def expected_atoms(draws, data):
    x, y = data
    values = scipy.stats.norm.logpdf(y[:, None], x @ draws.T)
    return (values - values.mean(1, keepdims=True)) / np.sqrt(len(draws))


@pytest.mark.parametrize("batch_size", [None, 1, 300, 5000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_atoms_are_centred_log_likelihoods_whatever_the_chunks(problem_data, batch_size, dtype):
    draws, (x, y) = problem_data
    data = (x[:50], y[:50]) if batch_size == 1 else (x, y)
    with jax.enable_x64(dtype == np.float64):
        problem = jc.embed(gaussian, jnp.asarray(draws, dtype), data, batch_size=batch_size)
    assert problem.atoms.dtype == dtype
    expected, close = expected_atoms(draws, data), 2e-6 if dtype == np.float32 else 1e-14
    np.testing.assert_allclose(problem.atoms, expected, atol=close)
    np.testing.assert_allclose(problem.target, expected.sum(0), atol=100 * close)
    np.testing.assert_allclose(np.asarray(problem.atoms).sum(1), 0, atol=5 * close)


def test_sum_keeps_small_differences_under_a_large_constant():
    """A constant of 10⁴ a row would leave float32 nothing of the differences between draws."""
    draws, data = jnp.linspace(0, 1e-3, 50), np.linspace(0.5, 1.0, 20_000)
    total = log_likelihood_sum(lambda d, x: jnp.asarray(x) * d - 3.0, draws, data, batch_size=1000)
    expected = np.linspace(0, 1e-3, 50) * data.sum()
    np.testing.assert_allclose(total - total.mean(), expected - expected.mean(), atol=2e-3)


def test_a_draw_far_away_takes_no_digits_from_the_sum_at_the_others(problem_data):
    draws, (x, y) = problem_data
    with_far = np.concatenate([[[1e4, 0, 0]], 0.1 * draws])
    total = np.asarray(log_likelihood_sum(gaussian, jnp.asarray(with_far, jnp.float32), (x, y)))
    expected = scipy.stats.norm.logpdf(y[:, None], x @ with_far[1:].T).sum(axis=0)
    found = np.float64(total[1:]) - total[1]
    np.testing.assert_allclose(found, expected - expected[0], atol=0.01, rtol=0)


def many(draws, num):
    rng = np.random.default_rng(3)
    return (draws.mean(axis=0) + rng.normal(size=(num, draws.shape[1]))).astype(np.float32)


@pytest.mark.parametrize("num", [500, 1000, 1250])
def test_draws_that_are_evaluated_piece_by_piece_have_one_constant_for_each_row(problem_data, num):
    some, (x, y) = problem_data
    draws = many(some, num)
    expected = scipy.stats.norm.logpdf(y[:, None], np.float64(x) @ np.float64(draws).T)
    total = log_likelihood_sum(gaussian, jnp.asarray(draws), (x, y), batch_size=300)
    close = 1e-6 * np.abs(expected.sum(axis=0)).max()
    difference = total - expected.sum(axis=0)
    np.testing.assert_allclose(difference, difference[0], atol=close, rtol=0)
    values = log_likelihood_matrix(gaussian, jnp.asarray(draws), (x, y), batch_size=300)
    centred = expected - expected.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(values, centred, atol=2e-6 * np.abs(expected).max(), rtol=0)


def test_the_numbers_of_draws_and_of_rows_are_no_reason_to_compile_a_model_again(problem_data):
    some, (x, y) = problem_data
    calls = []

    def counted(draw, data):
        calls.append(draw)
        return gaussian(draw, data)

    def evaluate(num_draws, num_rows):
        draws, rows = jnp.asarray(many(some, num_draws)), (x[:num_rows], y[:num_rows])
        log_likelihood_sum(counted, draws, (x, y))
        log_likelihood_matrix(counted, draws, rows, block=256)
        return len(calls)

    first = evaluate(1000, 700)
    assert evaluate(3000, 700) == evaluate(1500, 1000) == evaluate(2000, 20) == first


@pytest.mark.parametrize("num", [10, 1000])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_named(problem_data, value, num):
    some, (x, y) = problem_data
    draws = some if num == 10 else many(some, num)
    y = y.copy()
    y[[17, 990]] = value
    with pytest.raises(ValueError, match=r"2 of 1000 rows, the first of them \[17, 990\]"):
        jc.embed(gaussian, jnp.asarray(draws), (x, y), batch_size=300)
    with pytest.raises(ValueError, match=r"\[17, 990\]"):
        log_likelihood_sum(gaussian, jnp.asarray(draws), (x, y), batch_size=300)


def test_a_row_that_is_not_finite_at_one_of_many_draws_is_named(problem_data):
    some, (x, y) = problem_data
    draws = jnp.asarray(many(some, 1250))
    bad_draw, bad_row = draws[700], y[17]

    def fails(draw, data):
        is_bad = jnp.all(draw == bad_draw) & (data[1] == jnp.asarray(bad_row, data[1].dtype))
        return jnp.where(is_bad, jnp.nan, gaussian(draw, data))

    for evaluate in (log_likelihood_sum, log_likelihood_matrix):
        with pytest.raises(ValueError, match=r"1 of 1000 rows, the first of them \[17\]"):
            evaluate(fails, draws, (x, y), batch_size=300)


def test_values_whose_sum_over_draws_overflows_are_finite(problem_data):
    some, data = problem_data
    draws = jnp.asarray(many(some, 1000))
    # Each half of the draws adds up to 2.5e38, and all of them to more than float32 holds.
    values = log_likelihood_matrix(lambda draw, rows: jnp.full(len(rows[1]), -5e35), draws, data)
    np.testing.assert_allclose(values, 0, atol=1e30)


def logistic(draw, data):
    x, y = data
    eta = x @ draw["slope"] + draw["intercept"]
    return y * eta - jax.nn.softplus(eta)


def gaussian_gradients(draws, data):
    """(y − x·θ) x, shape (n, S, D)."""
    x, y = data
    return (y[:, None] - x @ draws.T)[:, :, None] * x[:, None, :]


@pytest.mark.parametrize(("num_draws", "batch_size"), [(40, None), (40, 300), (1, 300)])
def test_fisher_atoms_are_gradients_at_the_draws(problem_data, num_draws, batch_size):
    draws, (x, y) = problem_data
    draws, y = draws[:num_draws], (y > 0).astype(float)
    tree = {"intercept": draws[:, 0], "slope": draws}  # in the order of ravelling
    with jax.enable_x64(True):
        problem = jc.embed(logistic, tree, (x, y), norm="fisher", batch_size=batch_size)
    assert problem.atoms.dtype == np.float64
    slope = y[:, None] - 1 / (1 + np.exp(-x @ draws.T - draws[:, 0]))
    full = np.concatenate([np.ones((1000, 1)), x], axis=1)
    expected = (slope[:, :, None] * full[:, None, :] / np.sqrt(num_draws)).reshape(1000, -1)
    np.testing.assert_allclose(problem.atoms, expected, atol=1e-13)
    np.testing.assert_allclose(problem.target, expected.sum(0), atol=1e-11)


@pytest.mark.parametrize("num_features", [1, 90])
def test_random_features_are_scaled_derivatives_of_their_pairs(problem_data, num_features):
    draws, data = problem_data
    key = jax.random.key(num_features)
    settings = {"batch_size": 300, "num_features": num_features, "key": key}
    problem = jc.embed(gaussian, draws.astype(np.float32), data, norm="fisher", **settings)
    features = fisher_features(draws.astype(np.float32), num_features, key)
    s, d = np.asarray(features.draw_indices), np.asarray(features.coordinates)
    expected = np.sqrt(3 / num_features) * gaussian_gradients(draws, data)[:, s, d]
    np.testing.assert_allclose(problem.atoms, expected, atol=2e-5 * np.sqrt(120 / num_features))


@pytest.mark.parametrize("num_features", [7, 40, 100, 120])
def test_pairs_differ_and_use_draws_and_coordinates_equally(problem_data, num_features):
    draws, _ = problem_data
    features = fisher_features(draws, num_features, jax.random.key(0))
    s, d = np.asarray(features.draw_indices), np.asarray(features.coordinates)
    assert len({*zip(s.tolist(), d.tolist(), strict=True)}) == num_features
    assert np.ptp(np.bincount(s, minlength=40)) <= 1
    # Up to one for each partial round of draws and of coordinates.
    assert np.ptp(np.bincount(d, minlength=3)) <= 1 + num_features // 40


@pytest.mark.parametrize("num_features", [10, 60])
def test_random_inner_products_are_unbiased(problem_data, num_features):
    """Their mean over keys is within Monte Carlo error; and the pairs' balance lowers their spread.

    The gradients are known, so that only the pairs are drawn here, for many keys at once.
    """
    draws, (x, y) = problem_data
    gradients = gaussian_gradients(draws, (x[:2], y[:2]))
    expected = np.mean(np.sum(gradients[0] * gradients[1], axis=-1))
    points = jnp.asarray(draws, jnp.float32)

    @jax.vmap
    def pairs(key):
        features = fisher_features(points, num_features, key)
        return features.draw_indices, features.coordinates

    s, d = map(np.asarray, pairs(jax.random.split(jax.random.key(3), 4000)))
    products = 3 / num_features * np.sum(gradients[0][s, d] * gradients[1][s, d], axis=1)
    error = products.std() / np.sqrt(len(products))
    assert abs(products.mean() - expected) < 4 * error
    independent = 3 * (gradients[0] * gradients[1]).std() / np.sqrt(num_features)
    assert products.std() < 1.05 * independent


@pytest.mark.parametrize("num_features", [None, 90])
def test_streamed_fisher_sum_equals_the_sum_of_atoms(problem_data, num_features):
    draws, data = problem_data
    features = fisher_features(draws.astype(np.float32), num_features, jax.random.key(0))
    rows = []
    total = feature_sum(gaussian, features, data, batch_size=300, on_rows=rows.append)
    atoms = np.asarray(feature_matrix(gaussian, features, data, batch_size=1000), float)
    np.testing.assert_allclose(total, atoms.sum(0), atol=2e-6 * np.abs(atoms).sum(0).max())
    assert sum(rows) == 1000


@pytest.mark.parametrize("num_features", [None, 90])
def test_last_chunks_are_not_compiled_again(problem_data, num_features):
    draws, data = problem_data
    features = fisher_features(draws.astype(np.float32), num_features, jax.random.key(0))
    shapes = []

    def counted(draw, data):
        shapes.append(data[1].shape)
        return gaussian(draw, data)

    feature_sum(counted, features, data, batch_size=300)
    feature_matrix(counted, features, data, batch_size=300)
    log_likelihood_sum(counted, jnp.asarray(draws), data, batch_size=300)
    # The last one at all draws, and at the few by which rows are centred.
    assert shapes == [(256,)] * 4


@pytest.mark.parametrize("num_features", [None, 60])
def test_rows_without_a_finite_gradient_are_named(num_features):
    """√x has a value at 0 and no derivative."""
    x = np.linspace(1, 2, 50)
    x[[3, 44]] = 0
    features = fisher_features(jnp.ones((30, 2)), num_features, jax.random.key(0))
    for evaluate in (feature_matrix, feature_sum):
        with pytest.raises(ValueError, match=r"or its gradient is not finite.*\[3, 44\]"):
            evaluate(lambda p, x: jnp.sqrt(x * p[0]) + p[1], features, x, batch_size=20)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_features": 0}, ValueError, "expected 1 ≤ num_features ≤ 120"),
        ({"num_features": 121}, ValueError, "num_features is 121"),
        ({"num_features": 5, "key": None}, ValueError, "key is missing"),
        ({"num_features": 5, "norm": "l2"}, ValueError, "pass norm='fisher'"),
        ({"norm": "l2", "data": (np.ones(5), np.ones(6))}, ValueError, r"axes \[5, 6\]"),
        ({"norm": "l2", "data": (np.ones((0, 3)), np.ones(0))}, ValueError, "no rows"),
        ({"norm": "l2", "draws": jnp.ones((1, 3))}, ValueError, "at least two"),
        ({"norm": "l2", "draws": jnp.ones((4, 3))}, ValueError, "every atom is zero"),
        ({"norm": "l3"}, ValueError, "norm is 'l3'; expected 'l2' or 'fisher'"),
        ({"draws": jnp.ones((4, 3), int)}, TypeError, "expected floating-point"),
        ({"draws": jnp.ones((0, 3))}, ValueError, "at least one"),
    ],
)
def test_bad_input_is_refused(problem_data, options, error, message):
    draws, data = problem_data
    given = {"draws": draws, "data": data, "norm": "fisher", "key": jax.random.key(0)}
    with pytest.raises(error, match=message):
        jc.embed(gaussian, **(given | options))


def test_a_log_likelihood_of_wrong_shape_is_refused(problem_data):
    draws, data = problem_data

    def summed(draw, data):
        return jnp.sum(gaussian(draw, data))

    features = fisher_features(draws)
    for refused in (
        lambda: jc.embed(summed, jnp.asarray(draws), data),
        lambda: feature_matrix(summed, features, data),
        lambda: feature_sum(summed, features, data),
    ):
        with pytest.raises(ValueError, match="log_likelihood returned shape"):
            refused()


@pytest.mark.slow  # as compiled at their best, where some programs lose what is no number
@pytest.mark.parametrize("at", [0, 777])
def test_a_value_that_is_no_number_at_a_few_draws_is_found_in_the_sum(at):
    draws = jnp.linspace(3, 1, 2000)
    x, y = np.zeros(1024, np.float32), np.ones(1024, np.float32)
    x[at] = -1.01

    def logistic(draw, rows):
        return bernoulli_log_prob(jnp.sqrt(rows[0] + draw), rows[1])

    with pytest.raises(ValueError, match=rf"1 of 1024 rows, the first of them \[{at}\]"):
        log_likelihood_sum(logistic, draws, (x, y))


@pytest.mark.parametrize("num_rows", [3, 512, 1239, 400_000])
def test_sums_of_columns_by_products_keep_the_digits_of_float32(num_rows):
    values = np.float32(0.3) + np.random.default_rng(0).normal(size=(4, num_rows)).astype("f4") / 10
    exact = values.astype(np.float64).sum(axis=1)
    for sums in (_by_products, _by_columns):  # the one on a CPU, and the one on accelerators
        found = np.asarray(jax.jit(sums)(values), np.float64)
        np.testing.assert_allclose(found, exact, rtol=7e-7)  # a single product loses more
