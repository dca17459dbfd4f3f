"""What is shown while something runs, with and without a terminal."""

import contextlib
import io
import logging
import time
from types import SimpleNamespace

import pytest

from jaxcoreset.data import progress
from jaxcoreset.data.utils import Clock, progress_bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    written = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=written))
    monkeypatch.setattr(progress, "_SHORT_SECONDS", 0.01)
    return written


@pytest.fixture
def log_file(monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=written))
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.05)
    return written


def until(written, text):
    for _ in range(200):
        if text in written.getvalue():
            return True
        time.sleep(0.02)
    return False


def test_counted_work_is_a_line_now_and_then_in_a_log_file(log_file):
    with progress_bar(2000, "Target", show=True) as bar:
        bar.update(500)
        assert until(log_file, "left")
    line = log_file.getvalue().splitlines()[0]
    assert line.startswith("jaxcoreset: Target: 500 of 2,000 rows (25%), 0:00 so far, about 0:00")
    assert "\r" not in log_file.getvalue()


def test_stages_are_lines_unless_something_within_is_shown(log_file):
    clock = Clock(show=True)
    with clock.stage("solve"):
        assert until(log_file, "jaxcoreset: solve: 0:00 so far")
        with progress_bar(10, "Target", show=True) as bar:
            log_file.truncate(0)
            assert until(log_file, "Target")
            assert "solve" not in log_file.getvalue()
            bar.update(10)
    assert clock.seconds["solve"] > 0


def test_lines_go_to_logging_where_it_is_set_up(log_file, caplog):
    with caplog.at_level(logging.INFO, "jaxcoreset"), progress_bar(None, "x", show=True, unit="y"):
        for _ in range(200):
            if caplog.messages:
                break
            time.sleep(0.02)
    assert caplog.messages[0].startswith("x: 0 y, 0:00 so far")
    assert not log_file.getvalue()


def test_nothing_is_shown_of_what_is_short_or_not_to_be_shown(log_file, terminal):
    with Clock(show=False).stage("solve"), progress_bar(5, "Target", show=False):
        time.sleep(0.1)
    assert not terminal.getvalue()
    assert not log_file.getvalue()


def test_bars_of_work_that_ends_early_end_full(terminal):
    with progress_bar(50, "Steps", show=True) as bar:
        bar.update(2)
    last = terminal.getvalue().rstrip("\n").split("\r")[-1]
    assert last.startswith("Steps: 100%")
    with contextlib.suppress(KeyError), progress_bar(50, "Steps", show=True) as bar:
        bar.update(2)
        raise KeyError
    assert "4%" in terminal.getvalue().rstrip("\n").split("\r")[-1]


def test_long_stages_are_shown_on_a_terminal(terminal):
    with Clock(show=True).stage("solve"):
        assert until(terminal, "solve: 00:0")
    assert terminal.getvalue().endswith("\n")


def test_a_notebook_is_as_good_as_a_terminal(monkeypatch):
    class OutStream(io.StringIO):  # as ipykernel has it: it is no terminal
        __module__ = "ipykernel.iostream"

    written = OutStream()
    assert not written.isatty()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=written))
    assert progress.on_terminal()
    with progress_bar(10, "Target", show=True) as bar:
        bar.update(10)
    assert "Target: 100%" in written.getvalue()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=io.StringIO()))
    assert not progress.on_terminal()


def test_times_have_hours_where_they_need_them():
    assert [progress.clock_time(x) for x in (9.6, 61.0, 3661.0)] == ["0:10", "1:01", "1:01:01"]
