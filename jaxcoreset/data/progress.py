"""Progress: bars on a terminal and in notebooks, and elsewhere a line every half minute.

In a log file or under a scheduler there is no terminal. The lines then go to the logger
"jaxcoreset", at the level INFO, if logging is set up for that level, and to the standard error
otherwise.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm.auto import tqdm

_LINE_SECONDS = 30.0
# A stage that takes longer than this is shown on a terminal.
_SHORT_SECONDS = 2.0

# What is shown now, the innermost last: only that is.
_shown: list[object] = []


def on_terminal() -> bool:
    """True if the standard error is a terminal or the output of a notebook."""
    stream = sys.stderr
    if stream is None:
        return False
    # The stream of a kernel says that it is no terminal.
    return type(stream).__module__.partition(".")[0] == "ipykernel" or stream.isatty()


class Progress:
    """Work that is counted.

    Args:
        total: the amount of work; None if it is not known.
        what: the name of the work.
        unit: the unit of work, in the plural.
        show: whether to show it.
    """

    def __init__(self, total: int | None, what: str, unit: str, show: bool) -> None:
        self.total, self.what, self.unit = total, what, unit
        self.done = 0
        self._show = show
        self._bar: Any = None
        self._start = time.monotonic()

    def update(self, num: int = 1) -> None:
        """Count more work as done."""
        self.done += num
        if self._bar is not None:
            self._bar.update(num)

    def __str__(self) -> str:
        spent = time.monotonic() - self._start
        if self.total is None:
            return f"{self.what}: {self.done:,} {self.unit}, {clock_time(spent)} so far"
        text = f"{self.what}: {self.done:,} of {self.total:,} {self.unit}"
        text += f" ({self.done / max(self.total, 1):.0%}), {clock_time(spent)} so far"
        left = spent * (self.total - self.done) / self.done if self.done else None
        return text if left is None else f"{text}, about {clock_time(left)} left"

    @contextmanager
    def shown(self) -> Iterator["Progress"]:
        """Show the work while a block runs."""
        if not self._show:
            yield self
        elif on_terminal():
            settings = {
                "file": sys.stderr,
                "desc": self.what,
                "unit": f" {self.unit}",
                "unit_scale": (self.total or 0) > 9999,
            }
            with _innermost(self), tqdm(total=self.total, **settings) as self._bar:
                yield self
                # Work that is done before its bound is reached has ended, too.
                self._bar.total = self._bar.n
                if (widgets := getattr(self._bar, "container", None)) is not None:
                    widgets.children[1].max = max(self._bar.n, 1)  # a notebook's bar keeps its own
                self._bar.refresh()
        else:
            with _innermost(self), repeated(lambda: _say(str(self)), _LINE_SECONDS):
                yield self


def progress_bar(total: int | None, what: str, *, show: bool, unit: str = "rows") -> Any:
    """A context manager that shows counted work; see `Progress`."""
    return Progress(total, what, unit, show).shown()


@contextmanager
def stage_shown(name: str) -> Iterator[None]:
    """Show that a stage is still running while a block runs, if nothing within it is shown."""
    start, stage = time.monotonic(), object()
    terminal = on_terminal()
    bars: list[Any] = []

    def tick() -> None:
        spent = time.monotonic() - start
        if _shown[-1] is not stage:
            return
        if not terminal:
            _say(f"{name}: {clock_time(spent)} so far")
            return
        if not bars:
            bars.append(tqdm(file=sys.stderr, desc=name, bar_format="{desc}: {elapsed}"))
            bars[0].start_t -= spent
        bars[0].refresh()

    seconds = (1.0, _SHORT_SECONDS) if terminal else (_LINE_SECONDS, _LINE_SECONDS)
    with _innermost(stage):
        try:
            with repeated(tick, *seconds):
                yield
        finally:
            for bar in bars:
                bar.close()


@contextmanager
def repeated(
    call: Callable[[], None], seconds: float, first: float | None = None
) -> Iterator[None]:
    """Call a function in a thread at fixed intervals while a block runs."""
    ended = threading.Event()

    def run() -> None:
        wait = seconds if first is None else first
        while not ended.wait(wait):
            call()
            wait = seconds

    thread = threading.Thread(target=run, name="jaxcoreset progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def clock_time(seconds: float) -> str:
    """A time as minutes and seconds, or with hours."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


@contextmanager
def _innermost(what: object) -> Iterator[None]:
    _shown.append(what)
    try:
        yield
    finally:
        _shown.remove(what)


def _say(text: str) -> None:
    logger = logging.getLogger("jaxcoreset")
    if logger.hasHandlers() and logger.isEnabledFor(logging.INFO):
        logger.info(text)
    elif sys.stderr is not None:
        print(f"jaxcoreset: {text}", file=sys.stderr, flush=True)
