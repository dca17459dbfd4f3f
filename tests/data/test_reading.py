"""Chunks and rows of arrays in memory, mapped files and sources, held to slices of the arrays."""

import gc
import os
import subprocess
import sys
import threading
import time
import traceback

import jax.numpy as jnp
import numpy as np
import pytest

from jaxcoreset.data.reading import fingerprint, read_chunks, take_rows
from jaxcoreset.data.sources import batches, npy
from tests.data.sources.tables import in_batches, told

N = 101


@pytest.fixture
def plain() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    return tuple(rng.normal(size=(N, d)).astype(np.float32) for d in (2, 1, 3, 1, 2))


@pytest.fixture
def mixed(plain, tmp_path):
    """The same arrays, each kept in another way, two of them by one source."""
    np.save(tmp_path / "x.npy", plain[1])
    pair = in_batches(plain[2:4], 13)
    alone = batches([plain[4][:70], plain[4][70:]], N)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    return (jnp.asarray(plain[0]), mapped, *pair, alone.arrays)


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("read ahead")]


def wait_for(condition) -> bool:
    """Whether something comes true in time; threads need a moment to end."""
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


@pytest.mark.parametrize("prefetch", [0, 1, 2, 5])
@pytest.mark.parametrize(
    ("size", "first"), [(10, 0), (10, 20), (1, 97), (40, 3), (500, 0), (13, N)]
)
def test_chunks_are_slices_of_all_arrays_together(plain, mixed, size, first, prefetch):
    at = first
    for start, chunk in read_chunks(mixed, size, first, prefetch=prefetch):
        assert start == at
        for leaf, whole in zip(chunk, plain, strict=True):
            assert len(leaf) == min(size, N - start)
            np.testing.assert_array_equal(leaf, whole[start : start + size])
        at += len(chunk[0])
    assert at == N
    assert not readers()


def test_arrays_in_memory_are_cut_without_a_copy_or_a_thread(plain, monkeypatch):
    monkeypatch.setattr(threading, "Thread", None)
    for start, (one, other) in read_chunks((plain[0], jnp.asarray(plain[1])), 10):
        assert one.base is plain[0]
        np.testing.assert_array_equal(other, plain[1][start : start + 10])


def test_rows_are_taken_in_the_order_asked_for(plain, mixed):
    rows = np.array([100, 0, 0, 57, 12, 13])
    taken = take_rows(mixed, rows)
    for leaf, whole in zip(taken, plain, strict=True):
        np.testing.assert_array_equal(leaf, whole[rows])
    assert isinstance(taken[0], jnp.ndarray)
    assert all(type(leaf) is np.ndarray for leaf in taken[1:])
    for bad in ([N], [-1]):
        with pytest.raises(IndexError, match="has the rows 0 to 100"):
            take_rows(plain, np.array(bad))


def test_arrays_of_one_source_are_read_together():
    passes = []

    def start():
        passes.append(1)
        return [{"x": np.ones((3, 2)), "y": np.ones(3)}]

    arrays = batches(start, 3).arrays
    passes.clear()
    take_rows((arrays["x"], arrays["y"]), np.array([0, 2]))
    list(read_chunks((arrays["x"], arrays["y"]), 2))
    assert len(passes) == 2


def test_a_fingerprint_of_arrays_sees_each_number(plain, mixed, monkeypatch):
    assert fingerprint(mixed) == fingerprint(mixed)
    assert fingerprint(plain) == fingerprint([jnp.asarray(leaf) for leaf in plain])
    before = fingerprint(plain)
    plain[3][77] += 1
    assert fingerprint(plain) != before
    assert fingerprint(plain[:2]) != fingerprint(plain[1::-1])
    monkeypatch.setattr("jaxcoreset.data.reading._WHOLE_BYTES", 10)
    monkeypatch.setattr("jaxcoreset.data.reading._SAMPLE_ROWS", 10)
    before = fingerprint(plain)
    plain[0][50] += 1
    assert fingerprint(plain) != before


@pytest.mark.parametrize("number", [np.float32(3), np.array(3), jnp.array(3.0), np.array(True)])
def test_a_single_number_has_a_fingerprint(plain, number):
    assert fingerprint([*plain, number]) == fingerprint([*plain, number.copy()])
    assert fingerprint([*plain, number]) != fingerprint([*plain, number * 0])


@pytest.mark.parametrize("opened", [npy, lambda path: np.load(path, mmap_mode="r")])
def test_no_rows_are_handed_on_of_a_mapped_file_that_was_changed(plain, tmp_path, opened):
    path = tmp_path / "x.npy"
    np.save(path, plain[0])
    mapped = opened(path)
    before = mapped[:50]
    ((_, (first, _)),) = read_chunks((before, plain[0][:50]), 50)
    np.testing.assert_array_equal(first, plain[0][:50])
    passing = read_chunks((mapped,), 10, prefetch=0)
    next(passing)
    os.utime(path, ns=(1, 1))
    with told(r"x\.npy was changed after it was opened; expected the sam"):
        next(passing)
    for leaf in (mapped, before):  # a slice is of the same file
        with told(r"x\.npy was changed"):
            list(read_chunks((leaf,), 10))
        with told(r"x\.npy was changed"):
            take_rows((leaf,), np.array([0]))
    anew = opened(path)
    np.testing.assert_array_equal(take_rows((anew,), np.array([3]))[0], plain[0][[3]])
    path.unlink()  # still there for those who have mapped it
    np.testing.assert_array_equal(take_rows((anew,), np.array([3]))[0], plain[0][[3]])


def test_a_mapped_file_that_is_open_for_writing_may_be_written(plain, tmp_path):
    np.save(tmp_path / "x.npy", plain[0])
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r+")
    take_rows((mapped,), np.array([0]))
    mapped[0] = 7
    mapped.flush()
    os.utime(tmp_path / "x.npy", ns=(1, 1))
    np.testing.assert_array_equal(take_rows((mapped,), np.array([0]))[0], np.full((1, 2), 7))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_of_the_reader_is_raised_where_chunks_are_used(prefetch):
    def start():
        for _ in range(3):
            yield np.ones(10)
        raise RuntimeError("the line was cut")

    chunks = read_chunks((batches(start, 100).arrays,), 10, prefetch=prefetch)
    seen = []
    with pytest.raises(RuntimeError, match="the line was cut") as caught:
        seen.extend(start for start, _ in chunks)
    assert seen == [0, 10, 20]
    assert "in start" in "".join(traceback.format_tb(caught.value.__traceback__))
    assert wait_for(lambda: not readers())


@pytest.mark.parametrize("count", [9, 11])
def test_a_source_of_another_length_is_seen_before_its_last_chunk_is_used(count):
    seen = []
    chunks = read_chunks((batches([np.ones(10)] * count, 100).arrays,), 50)
    with told(r"expected 100|more than the 100"):
        seen.extend(start for start, _ in chunks)
    assert seen == [0]


class Loader:
    """Batches without an end that count themselves, and say when they are closed."""

    def __init__(self) -> None:
        self.made, self.closed = 0, 0

    def __call__(self):
        try:
            while True:
                self.made += 1
                yield np.ones(10)
        finally:
            self.closed += 1


def test_the_reader_is_ahead_by_no_more_than_asked():
    loader = Loader()
    chunks = read_chunks((batches(loader, 10_000).arrays,), 10, prefetch=3)
    made = loader.made
    next(chunks)
    # the one in hand and three further ones
    assert wait_for(lambda: loader.made - made == 4)
    time.sleep(0.05)
    assert loader.made - made == 4
    chunks.close()


@pytest.mark.parametrize("how", ["close", "forget", "raise"])
def test_the_reader_ends_with_a_consumer_that_stops_half_way(how):
    loader = Loader()
    leaf = batches(loader, 10_000).arrays
    closed = loader.closed
    chunks = read_chunks((leaf,), 10)
    next(chunks)
    assert readers()
    match how:
        case "close":
            chunks.close()
        case "forget":
            del chunks
        case _:
            with pytest.raises(KeyboardInterrupt):
                chunks.throw(KeyboardInterrupt)
    gc.collect()
    assert loader.closed == closed + 1
    assert wait_for(lambda: not readers())


def test_chunks_that_are_never_asked_for_start_no_reader(mixed):
    read_chunks(mixed, 10)
    assert not readers()


def test_a_reader_that_hangs_does_not_hold_up_the_consumer(monkeypatch):
    monkeypatch.setattr("jaxcoreset.data.reading._CLOSE_SECONDS", 0.05)
    release = threading.Event()

    def start():
        yield np.ones(10)
        release.wait(20)
        yield np.ones(10)

    chunks = read_chunks((batches(start, 20).arrays,), 10)
    next(chunks)
    begin = time.monotonic()
    chunks.close()
    assert time.monotonic() - begin < 5
    release.set()
    assert wait_for(lambda: not readers())


def test_reading_and_working_overlap():
    """Sleeps stand for both, so that the numbers of cores do not matter."""

    def start():
        for _ in range(12):
            time.sleep(0.03)
            yield np.ones(10)

    leaf = batches(start, 120).arrays

    def seconds(prefetch):
        begin = time.perf_counter()
        for _ in read_chunks((leaf,), 10, prefetch=prefetch):
            time.sleep(0.03)
        return time.perf_counter() - begin

    assert seconds(0) > 12 * 0.06
    assert seconds(2) < 12 * 0.06 * 0.85


def test_settings_and_lengths_are_checked_before_the_first_chunk(plain):
    for leaves, settings, message in (
        (plain, {"size": 0}, "size is 0"),
        (plain, {"size": 1, "first": -1}, "first is -1"),
        (plain, {"size": 1, "prefetch": -1}, "prefetch is -1"),
        ((plain[0], plain[0][1:]), {"size": 1}, "leading axes"),
    ):
        with pytest.raises(ValueError, match=message):
            read_chunks(leaves, **settings)


def test_a_program_ends_with_chunks_half_way_and_while_it_waits():
    """By itself, and after a signal that comes while the reader hangs."""
    program = """
import signal, sys, threading, time
import numpy as np
from jaxcoreset.data.sources import batches
from jaxcoreset.data import reading

# A shell that starts its tests in the background has it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
reading._CLOSE_SECONDS = 0.1
hang = False

def load():
    yield np.ones(10)
    while hang:
        time.sleep(0.01)
    yield np.ones(999_990)

leaf = batches(load, 1_000_000).arrays
chunks = reading.read_chunks((leaf,), 10)
next(chunks)
hang = True
held = reading.read_chunks((leaf,), 10)
next(held)
main = threading.main_thread().ident
threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGINT)).start()
try:
    next(held)
except KeyboardInterrupt:
    print("interrupted")
hang = False  # Python waits at its end for the read that goes on
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "interrupted\n"
    assert not done.stderr
