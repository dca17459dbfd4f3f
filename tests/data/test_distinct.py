"""Distinct rows are those that `numpy.unique` finds, whatever the hash and the source."""

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import numpy as np
import pytest

from jaxcoreset.data import distinct
from jaxcoreset.data.distinct import find_distinct
from jaxcoreset.data.processes import ProcessGroup
from jaxcoreset.data.rows import PassContext, Rows
from tests.data.sources.tables import in_batches


def table(num_rows=3000, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.integers(3, size=(num_rows, 2)).astype(np.float32)
    return x, rng.integers(2, size=num_rows).astype(np.int32), rng.random(num_rows) < 0.3


def expected(*leaves):
    """The lowest numbers of the distinct rows, and their counts, by NumPy's lexical sorting."""
    columns = [np.asarray(leaf).reshape(len(leaf), -1).astype(float) for leaf in leaves]
    _, first, counts = np.unique(
        np.concatenate(columns, axis=1), axis=0, return_index=True, return_counts=True
    )
    order = np.argsort(first)
    return first[order], counts[order]


def check(found, *leaves):
    first, counts = expected(*leaves)
    np.testing.assert_array_equal(found.first, first)
    np.testing.assert_array_equal(found.counts, counts)
    assert found.num == first.size


def test_distinct_rows_are_those_of_numpy():
    leaves = table()
    check(find_distinct(Rows(leaves)), *leaves)
    check(find_distinct(Rows((jnp.asarray(leaves[0]), *leaves[1:]))), *leaves)


def test_wide_rows_and_empty_leaves_count():
    rng = np.random.default_rng(1)
    wide = rng.integers(2, size=(50, 3, 2000)).astype(np.float64)[rng.integers(50, size=300)]
    none = np.zeros((300, 0))
    check(find_distinct(Rows((wide, none))), wide.reshape(300, -1))


@pytest.mark.parametrize("modulus", [1, 3])
def test_a_hash_that_collides_changes_nothing(modulus):
    leaves = table(500)

    def bad_hash(words):
        return words[:, 0] % np.uint64(modulus)

    check(find_distinct(Rows(leaves), hash_words=bad_hash), *leaves)
    x = np.random.default_rng(2).normal(size=(200, 2))  # no row occurs twice
    found = find_distinct(Rows((x,)), hash_words=bad_hash)
    assert found.num == 200
    assert not found.has_repeats


def test_the_hash_tells_simple_numbers_apart():
    """Doubles of small integers differ in their highest bits only, and by the same amounts."""
    grid = np.stack(np.meshgrid(*[np.arange(32.0)] * 3), axis=-1).reshape(-1, 3)
    words = distinct._words([grid], slice(None))
    assert np.unique(distinct.hash_words(words)).size == len(grid)


def test_negative_zero_is_zero_and_close_numbers_are_not_equal():
    x = np.array([0.0, -0.0, 1.0, np.nextafter(1, 2), 1.0])
    found = find_distinct(Rows((x,)))
    np.testing.assert_array_equal(found.first, [0, 2, 3])
    np.testing.assert_array_equal(found.counts, [2, 2, 1])


def test_a_source_whose_head_has_few_repeats_is_not_read(monkeypatch):
    monkeypatch.setattr(distinct, "_HEAD_ROWS", 200)
    x = np.arange(1000.0, dtype=np.float32)
    x[100:119] = x[:19]  # 9.5% of the head
    rows = Rows(in_batches((x,), 250))
    assert find_distinct(rows) is None
    assert "distinct rows" not in rows.passes
    x[119] = x[19]  # a tenth
    rows = Rows(in_batches((x,), 250))
    check(find_distinct(rows), x)
    assert rows.passes == {"distinct rows": 1}
    assert find_distinct(rows, may_read=False) is None


@pytest.mark.parametrize("batch_size", [None, 70])
def test_a_source_is_counted_in_chunks(batch_size):
    leaves = table(2000)
    check(find_distinct(Rows(in_batches(leaves, 250), PassContext(batch_size=batch_size))), *leaves)


def test_a_source_with_too_many_distinct_rows_is_given_up(monkeypatch):
    monkeypatch.setattr(distinct, "_HEAD_ROWS", 100)
    monkeypatch.setattr(distinct, "_MOST_BYTES", 8 * 500)
    x = np.concatenate([np.zeros(100), np.arange(1000.0)]).astype(np.float32)
    assert find_distinct(Rows(in_batches((x,), 250), PassContext(batch_size=100))) is None


def in_threads(leaves, count, **settings):
    """What each of several processes finds, run as threads that exchange their arrays."""
    barrier, box = threading.Barrier(count, timeout=20), [{}] * count

    class Group(ProcessGroup):
        def __init__(self, index):
            self.count, self.index = count, index

        def gather(self, state):
            box[self.index] = {name: np.asarray(value).copy() for name, value in state.items()}
            barrier.wait()
            found = [dict(one) for one in box]
            barrier.wait()
            forms = [{name: value.shape for name, value in one.items()} for one in found]
            assert all(form == forms[0] for form in forms)
            return found

    def run(index):
        part = tuple(np.array_split(leaf, count)[index] for leaf in leaves)
        context = dataclasses.replace(PassContext(), processes=Group(index))
        return find_distinct(Rows(part, context), **settings)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


@pytest.mark.parametrize("modulus", [None, 1])
def test_processes_find_what_one_finds(modulus):
    leaves = table(700)
    settings = {} if modulus is None else {"hash_words": lambda words: words[:, 0] * 0}
    for found in in_threads(leaves, 3, **settings):
        check(found, *leaves)


def test_processes_with_too_many_distinct_rows_do_not_exchange_them(monkeypatch):
    monkeypatch.setattr(distinct, "_MOST_SHARED", 5)
    assert in_threads(table(100), 2) == [None, None]
