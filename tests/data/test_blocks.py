"""Rows in blocks: each once and in its place, with the same values in all groups and devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcoreset.data.bad_rows import BadRows
from jaxcoreset.data.blocks import (
    block_rows,
    column_sums,
    evaluate_blocks,
    group_blocks,
    pairwise_sum,
)
from jaxcoreset.data.rows import PassContext, Rows
from jaxcoreset.likelihood.embedding import log_likelihood_sum

NUM_ROWS = 1003


def data():
    x = np.random.default_rng(0).normal(size=(NUM_ROWS, 3)).astype(np.float32)
    return x, np.arange(NUM_ROWS, dtype=np.int32)


def as_they_are(args, rows, counted):
    return rows[1], counted


@pytest.mark.parametrize(("block", "batch_size"), [(8, None), (64, 100), (64, 640), (2048, None)])
@pytest.mark.parametrize("first", [0, 2])
def test_every_row_is_seen_once_and_in_its_place(block, batch_size, first):
    seen, shapes = [], set()
    rows = data() if first else jax.tree.map(jnp.asarray, data())  # on the host or the device
    groups = evaluate_blocks(
        as_they_are, (), rows, block, first=first * block, batch_size=batch_size
    )
    for at, num, (numbers, counted) in groups:
        shapes.add(numbers.shape)
        numbers, counted = np.asarray(numbers).ravel(), np.asarray(counted).ravel()
        assert numbers[0] == at
        np.testing.assert_array_equal(counted, np.arange(counted.size) < num)
        seen.extend(numbers[:num].tolist())
        assert (numbers[num:] < NUM_ROWS).all()  # filled up by rows that the model knows
    assert seen == list(range(first * block, NUM_ROWS))
    assert len(shapes) <= 1


def test_groups_of_many_devices_are_shared_out_evenly():
    rows = data()
    for devices in (1, 2, 3, 8):
        blocks = group_blocks(rows, 16, devices)
        assert blocks % devices == 0
        assert 16 * blocks < NUM_ROWS + 16 * devices


@pytest.mark.parametrize("width", [1, 20, 500, 2000, 10**7])
def test_blocks_are_powers_of_two(width):
    assert np.log2(block_rows(width)) % 1 == 0


def test_sums_of_equal_float32_numbers_keep_six_digits():
    """Added one after the other, float32 is 1e-4 off here; the error of a block does not cancel."""
    values = jnp.full((1 << 15, 2), 0.1, jnp.float32)
    exact = np.asarray(values, np.float64).sum(0)
    np.testing.assert_allclose(np.asarray(pairwise_sum(values), np.float64), exact, rtol=1e-6)
    in_columns = np.asarray(jnp.sum(column_sums(values.T), axis=-1), np.float64)
    np.testing.assert_allclose(in_columns, exact, rtol=1e-6)


def test_a_sum_does_not_depend_on_the_batch_size_in_any_bit():
    """Nor on the devices: see `test_devices`."""
    x, _ = data()
    draws = jax.random.normal(jax.random.key(0), (40, 3))

    def log_likelihood(draw, x):
        return jnp.sin(x @ draw)

    whole, *others = (
        log_likelihood_sum(log_likelihood, draws, Rows(x, PassContext(batch_size=batch_size)))
        for batch_size in (None, 1, 300, 5000)
    )
    for other in others:
        np.testing.assert_array_equal(other, whole)


def test_rows_that_do_not_exist_are_refused():
    with pytest.raises(IndexError, match="the data has the rows 0 to 1,002"):
        Rows(data()).take(np.array([1003]))


def test_bad_rows_are_counted_over_groups_and_the_first_five_named():
    bad = np.zeros(NUM_ROWS, bool)
    bad[[3, 501, 502, 700, 701, 702, 1002]] = True
    state = BadRows.start()
    for first in range(0, NUM_ROWS, 500):
        state = BadRows.add(state, bad[first : first + 500], first, len(bad[first : first + 500]))
    assert BadRows.merged([state]) == (7, [3, 501, 502, 700, 701])
    assert BadRows.merged([BadRows.start()]) == (0, [])
