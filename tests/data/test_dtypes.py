"""Numbers that JAX would shorten: which its types hold, and where the first lies that none does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcoreset.data.dtypes import check_held, first_lost
from jaxcoreset.data.messages import DataError
from jaxcoreset.data.reading import read_chunks

HELD = [
    np.array([2**31 - 1, -(2**31)]),
    np.array([2**32 - 1, 0], np.uint64),
    np.array([1.0, 0.1, np.nan, np.inf, 3e38, 0.0, 1e-300]),
    np.array([np.nan, np.nan]),
    np.zeros(3),
    np.zeros((0, 2)),
    np.array([True, False]),
    np.array(["text"]),
    np.array([1.5], jnp.bfloat16),
    np.array(1e-300),
    5,
    1e-300,
    jnp.ones(2),
]


@pytest.mark.parametrize("values", HELD, ids=repr)
def test_numbers_that_jax_holds_are_let_through(values):
    check_held(values, "x")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([[1, 2], [3, 2**31]]), r"x\[1, 1\] is 2147483648, .* from -2,147,483,648 to 2,"),
        (np.array([0, 13_000_000_000]), r"x\[1\] is 13000000000, which int32 cannot hold"),
        (np.array([-(2**31) - 1]), r"x\[0\] is -2147483649"),
        (np.array([0, 2**63], np.uint64), r"x\[1\] is 9223372036854775808, which uint32"),
        (np.array([1.0, -1e200, np.inf]), r"x\[1\] is -1e\+200, which float32 cannot hold"),
        (np.array([np.nan, 3.5e38]), r"x\[1\] is 3.5e\+38"),
        (np.array([0.0, 1e-200, 2e-200]), r"x\[1\] is 1e-200, .* sizes from 1e-38"),
        (1e200, r"x is 1e\+200"),
        (2**40, r"x is 1099511627776"),
    ],
)
def test_numbers_that_jax_does_not_hold_are_told_by_place(values, message):
    with pytest.raises(DataError, match=message):
        check_held(values, "x")
    with jax.enable_x64(True):
        check_held(values, "x")


def test_a_mapped_file_is_checked_as_it_is_read(tmp_path):
    values = np.arange(100)
    values[57] = 2**40
    np.save(tmp_path / "x.npy", values)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    check_held(mapped, "x")
    with pytest.raises(DataError, match=r"x\.npy\[57\] is 1099511627776, which int32"):
        list(read_chunks((mapped,), 10))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.float16, np.float32, bool])
def test_the_first_number_that_is_lost_is_the_one_that_numpy_changes(dtype):
    """Held to a cast there and back, one number at a time."""
    values = np.random.default_rng(0).integers(-300, 300, 200) * 1000
    for first in range(0, 200, 20):
        part = values[first : first + 20] // 10 ** (first // 40)
        with np.errstate(over="ignore", invalid="ignore"):
            cast = part.astype(dtype)
            back = np.where(np.isfinite(cast), part, 0) if cast.dtype.kind == "f" else cast
        changed = np.flatnonzero(back != part)
        assert first_lost(part, dtype) == (changed[0] if changed.size else None)
