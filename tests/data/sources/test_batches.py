"""Batches of the user as a source: what is handed on, and what is refused with its place."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcoreset.data.sources import array, batches
from tests.data.sources.tables import told


def stream(parts, num_rows, **settings):
    """All rows of batches, by the front door."""
    return [leaves for _, leaves in batches(parts, num_rows, **settings).batches()]


X, Y = np.ones((5, 2), np.float32), np.zeros(5, np.int32)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ((X, Y[:4]), r"1, rows 5 to 9: .*array 0 \(5, 2\), array 1 \(4,\); expected the same"),
        ((X[:0], Y), r"1, rows 5 to 9: .*\(0, 2\), array 1 \(5,\); expected the same number"),
        ({"X": X, "y": Y}, r"1, rows from 5: the structure is PyTreeDef\({"),
        ((X[:, :1], Y), r"1, .* array 0 have the shape \(1,\); expected \(2,\)"),
        ((X.astype(float), Y), r"1, .*array 0 is of type float64, but was of type float32 at"),
        ((X, Y + 0.5), r"1, .*array 1 is of type float64, but was of type int32"),
        ((X, Y.astype(str)), r"1, .*array 1 is of type <U11, but was of type int32"),
        ((X * np.nan, Y), r"1, rows 5 to 9: array 0\[row, 0\] is nan in row 5 and 9"),
        ((np.float32(1), 1), r"1, .*array 0 \(\), array 1 \(\)"),
    ],
)
def test_batches_that_are_not_like_the_first_are_told_by_place(second, message):
    with told("batches, batch " + message):
        stream([(X, Y), second], 10)


def test_more_or_fewer_rows_than_expected_are_told():
    with told("batches, batch 2, rows 10 to 14: there are more than the expected 10 rows"):
        stream([(X, Y)] * 3, 10)
    with told("batches ended after 9 rows; expected 10 in every pass"):
        stream([(X, Y), (X[:4], Y[:4])], 10)


class Masking:
    """What netCDF4 does: an array whose slices are masked arrays."""

    def __init__(self, values, mask):
        self.shape, self.dtype = values.shape, values.dtype
        self._values = np.ma.masked_array(values, mask)

    def __getitem__(self, rows):
        return self._values[rows]


@pytest.mark.parametrize("kind", ["batches", "array"])
@pytest.mark.parametrize("allow_nonfinite", [False, True])
def test_what_is_masked_is_never_data(kind, allow_nonfinite):
    values = np.arange(20, dtype=np.float32).reshape(10, 2)
    mask = np.zeros((10, 2), bool)

    def masked():
        settings = {"allow_nonfinite": allow_nonfinite}
        if kind == "array":
            return array(X=Masking(values, mask), y=np.arange(10), **settings)
        parts = [
            {"X": np.ma.masked_array(values[rows], mask[rows]), "y": np.arange(10)[rows]}
            for rows in (slice(0, 4), slice(4, 10))
        ]
        return batches(parts, 10, **settings)

    read = masked().arrays["X"][:]
    assert type(read) is np.ndarray
    np.testing.assert_array_equal(read, values)
    mask[6, 1] = mask[8] = True
    place = "rows 4 to 9: " if kind == "batches" else "rows 0 to 9: "
    what = r"array X has 3 masked entries, the first array X\[row, 1\] in row 6; expected"
    with told(place + what):
        list(masked().batches())
    with told(r"the first .* in row 6"):
        masked().take(np.array([5, 6, 7]))


def test_a_place_is_that_of_the_number():
    bad = np.ones((5, 2), np.float32)
    bad[3, 1] = -np.inf
    with told(r"rows 5 to 9: array X\[row, 1\] is -inf in row 8; expected"):
        stream([{"X": X}, {"X": bad}], 10)
    (_, (kept,)) = stream([{"X": X}, {"X": bad}], 10, allow_nonfinite=True)
    assert kept[3, 1] == -np.inf


def test_types_are_shortened_only_where_the_numbers_fit():
    (values,) = stream([np.array([1.0, 0.1])], 2)[0]
    assert values.dtype == np.float32
    assert values[1] == np.float32(0.1)
    with told(r"is 1e\+300 in row 1, which float32 cannot hold"):
        stream([np.array([1.0, 1e300])], 2)
    edge = np.array([2**31 - 1, -(2**31)])
    np.testing.assert_array_equal(stream([edge], 2)[0][0], edge)
    with told(r"is 2147483648 in row 0, which int32 cannot hold"):
        stream([edge + 1], 2)
    with told(r"is 4294967296 in row 0, which uint32 cannot"):
        stream([np.array([2**32], np.uint64)], 1)


def test_types_that_fit_the_first_are_cast():
    parts = [np.ones(2, np.float32), np.ones(2, np.float16), jnp.ones(1), np.ones(1, np.int8)]
    assert {leaf.dtype for (leaf,) in stream(parts, 6)} == {np.dtype(np.float32)}
    (leaf,) = stream([jnp.ones(3, jnp.bfloat16)], 3)[0]
    assert leaf.dtype == jnp.bfloat16


class Restarting:
    def __iter__(self):
        yield np.arange(3.0)
        yield np.arange(3.0, 5.0)


@pytest.mark.parametrize(
    "given",
    [
        [np.arange(3.0), np.arange(3.0, 5.0)],
        Restarting(),
        lambda: iter(Restarting()),
        lambda: [np.arange(5.0)],
    ],
)
def test_anything_that_starts_anew_hands_out_batches(given):
    source = batches(given, 5)
    for _ in range(3):
        np.testing.assert_array_equal(source.arrays[:], np.arange(5))


ONCE = (np.ones(2) for _ in range(3))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((np.ones(2) for _ in range(3)), "a generator, which can be read only once.*pass a list"),
        (lambda: ONCE, "returns the same iterator each time"),
        (lambda: 3, "returned a int; expected an iterator"),
        (7, "given a int; expected"),
        (np.ones((4, 2)), r"an array of shape \(4, 2\)"),
        ([], "yielded no batch"),
        ([{}], "has no arrays"),
        ([3.0], "found a number; expected an array"),
        ([(np.ones(2), "text")], "found a number|<U4; expected real numbers"),
        ([[np.array([object()])]], "of type object; expected"),
    ],
)
def test_what_cannot_be_read_again_is_refused_at_the_door(given, message, untyped):
    with told(message):
        batches(given, 6)


def test_a_number_of_rows_that_is_none_is_refused():
    with pytest.raises(ValueError, match="num_rows is 0"):
        batches([np.ones(2)], 0)
    with pytest.raises(ValueError, match="num_rows is missing"):
        batches([np.ones(2)])


def test_a_pass_that_is_shorter_than_the_last_is_told():
    passes = []

    def start():
        passes.append(1)
        return [np.ones(3), np.ones(3 if len(passes) < 5 else 2)]

    source = batches(start, 6)
    assert len(list(source.batches())) == 2
    with told("ended after 5 rows; expected 6"):
        list(source.batches())
    with told("ended before row 5"):
        source.take(np.array([0, 5]))


@pytest.mark.parametrize("x64", [False, True])  # with it no cast makes a copy
@pytest.mark.parametrize("buffer", [np.empty(2), np.ma.masked_array(np.zeros(2), mask=False)])
def test_one_buffer_may_serve_all_batches(buffer, x64):
    """Loaders fill one array again and again; what was handed on must not change."""

    def start():
        for i in range(3):
            buffer[:] = i
            yield buffer

    with jax.enable_x64(x64):
        kept = [leaf for _, (leaf,) in batches(start, 6).batches()]
    np.testing.assert_array_equal(np.concatenate(kept), [0, 0, 1, 1, 2, 2])


def test_an_error_of_the_users_loader_says_where_it_was():
    def start():
        yield np.ones(4)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone") as caught:
        list(batches(start, 8).batches())
    assert caught.value.__notes__ == ["This is from batch 1 of batches, at row 4."]
