"""Utilities of the host: random choices, progress bars, clocks, checks of settings, files."""

import errno
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray
from tqdm.auto import tqdm


def host_generator(key: PRNGKeyArray) -> np.random.Generator:
    """A NumPy generator that is a function of a JAX key, for choices among rows on the host."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())


def progress_bar(total: int, what: str, *, show: bool, unit: str = "rows") -> tqdm:
    """A progress bar, silent if `show` is false or the output is not a terminal.

    Args:
        total: the amount of work.
        what: the text before the bar.
        show: whether to show the bar.
        unit: the unit of work.
    """
    return tqdm(
        total=total, desc=what, unit=f" {unit}", unit_scale=True, disable=None if show else True
    )


def peak_memory() -> int | None:
    """The peak resident memory of this process so far, in bytes; None if unknown."""
    try:
        import resource
    except ImportError:
        return None
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def available_memory() -> int | None:
    """The available memory of this machine, in bytes; None if unknown."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        return 1024 * int(fields["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return None


class Clock:
    """Wall time by stage, in seconds; a stage that comes again adds to its time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time of a block to the stage `name`."""
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def check_int(name: str, value: Any, lowest: int) -> int:
    """A setting as an integer.

    Raises:
        ValueError: if it is not a whole number of at least `lowest`.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < lowest:
        raise ValueError(f"{name} is {value!r}; expected a whole number of at least {lowest}.")
    return int(value)


def write_whole(path: str | os.PathLike, write: Callable[[IO[bytes]], Any]) -> Path:
    """Write a file under another name and rename it, so that it is never incomplete."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such directory", str(path.parent))
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        with open(temporary, "xb") as file:
            write(file)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path
