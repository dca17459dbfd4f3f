"""Lists of different lengths in few shapes."""

import numpy as np
import pytest

from jaxcoreset.data.ragged import (
    Ragged,
    Runs,
    choose_lengths,
    fewest_lengths,
    mean_length,
    num_bytes,
    of_one_length,
    order_by_length,
    padded_alike,
)


def _places(sizes: np.ndarray, lengths: tuple[int, ...]) -> int:
    return int(np.take(lengths, np.searchsorted(lengths, np.maximum(sizes, 1))).sum())


def test_few_lengths_leave_few_places_empty():
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.uniform(0, np.log(1e5), 2000)).astype(int)
    lengths = choose_lengths(sizes)
    assert len(lengths) <= 8
    assert max(lengths) >= sizes.max()
    assert _places(sizes, lengths) < 3 * sizes.sum()


def test_lists_of_about_one_length_get_a_single_one():
    sizes = np.random.default_rng(0).poisson(100, 5000)
    assert choose_lengths(sizes) == (sizes.max(),)


def test_more_lengths_are_worth_their_programs_with_more_lists():
    sizes = np.exp(np.random.default_rng(0).uniform(0, np.log(600), 4000)).astype(int)
    few, many = choose_lengths(sizes), choose_lengths(sizes.repeat(100))
    assert 1 < len(few) < len(many) <= 8


def test_a_single_long_list_does_not_multiply_the_places():
    sizes = np.r_[np.full(10_000, 5), 100_000]
    assert _places(sizes, choose_lengths(sizes)) == 150_000


def test_the_fewest_lengths_leave_half_of_the_places_empty_or_few():
    rng = np.random.default_rng(0)
    for sizes in (rng.permutation(np.r_[np.ones(59, int), 100_000]), rng.pareto(0.7, 300) * 20):
        sizes = sizes.astype(int)
        lengths = fewest_lengths(sizes)
        assert _places(sizes, lengths) <= 2 * np.maximum(sizes, 1).sum()
        assert 2 <= len(lengths) <= 8
    assert fewest_lengths(rng.integers(100, 201, 1000)) == (200,)
    assert fewest_lengths(np.r_[np.ones(3, int), 1000]) == (1000,)


def test_lists_of_several_lengths_are_put_in_their_order():
    starts, sizes = np.zeros(4, int), np.array([5, 2, 0, 4])
    lists = (np.arange(4), Ragged(np.arange(5), starts, sizes, (2, 5)))
    np.testing.assert_array_equal(order_by_length(lists), [1, 2, 0, 3])
    assert order_by_length((lists[1].select(np.array([0, 3])),)) is None
    assert order_by_length((np.arange(4),)) is None


def test_indexing_pads_and_masks():
    values, starts, sizes = np.arange(10.0), np.array([0, 1, 3]), np.array([1, 2, 7])
    array, mask = (Ragged(x, starts, sizes, (2, 7)) for x in (values, None))
    assert array.shape == (3, 7)
    np.testing.assert_array_equal(array[:2], [[0, 0], [1, 2]])
    np.testing.assert_array_equal(mask[:2], [[True, False], [True, True]])
    np.testing.assert_array_equal(array[np.array([2])][0], np.arange(3.0, 10))
    assert Runs((array, mask), 3).slices == [slice(0, 2), slice(2, 3)]
    assert mean_length((array, mask)) == 10 / 3
    assert mean_length((values,)) == 1


def test_batches_of_two_lengths_are_padded_to_the_longer():
    short, long = np.array([[1, 2]]), np.array([[1, 2, 3]])
    one, other = padded_alike((short, short > 0), (long, long > 0))
    np.testing.assert_array_equal(one[0], [[1, 2, 2]])
    np.testing.assert_array_equal(one[1], [[True, True, False]])
    assert other[0].shape == (1, 3)


@pytest.mark.parametrize("sizes", [[0, 0], [1], [5, 5, 5]])
def test_small_and_empty_lists_have_a_length(sizes):
    assert choose_lengths(np.array(sizes)) == (max(max(sizes), 1),)


def test_rows_are_divided_by_length_and_their_places_counted():
    lists = Ragged(np.zeros((9, 2), np.float32), np.array([0, 1, 2]), np.array([1, 7, 1]), (2, 8))
    of_groups = np.zeros(3, np.float64)
    parts = of_one_length((lists, of_groups), np.array([2, 1, 0]))
    assert [part.tolist() for part in parts] == [[2, 0], [1]]
    assert num_bytes((lists, of_groups), np.array([2, 1, 0])) == (2 + 2 + 8) * 2 * 4 + 3 * 8
    assert num_bytes((lists, of_groups), np.array([0])) == 2 * 2 * 4 + 8
    assert [part.tolist() for part in of_one_length((of_groups,), np.array([2, 0]))] == [[2, 0]]
