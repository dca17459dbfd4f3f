"""Utilities of the host: random choices, progress bars, clocks, checks of settings, files."""

import contextlib
import errno
import io
import os
import stat
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

from jaxcoreset.data.progress import progress_bar as progress_bar
from jaxcoreset.data.progress import stage_shown


def host_generator(key: PRNGKeyArray) -> np.random.Generator:
    """A NumPy generator that is a function of a JAX key, for choices among rows on the host."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())


def peak_memory() -> int | None:
    """The peak resident memory of this process so far, in bytes; None if unknown."""
    # On Linux `getrusage` counts what the process that started this one held at that time.
    with contextlib.suppress(OSError), open("/proc/self/status", "rb") as file:
        for line in file:
            if line.startswith(b"VmHWM:"):
                return 1024 * int(line.split()[1])
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
    """Wall time by stage, in seconds; if a stage repeats, its times add up.

    Args:
        show: whether stages that take long are shown while they run.

    Attributes:
        seconds: the times.
        current: the stage that began last.
    """

    def __init__(self, show: bool = False) -> None:
        self.seconds: dict[str, float] = {}
        self.current = ""
        self._show = show

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time of a block to the stage `name`."""
        start, self.current = time.perf_counter(), name
        with stage_shown(name) if self._show else contextlib.nullcontext():
            yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def check_int(name: str, value: Any, lowest: int) -> int:
    """A setting as an integer.

    Raises:
        ValueError: if it is not an integer of at least `lowest`.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < lowest:
        raise ValueError(f"{name} is {value!r}; expected a whole number of at least {lowest}.")
    return int(value)


def write_whole(path: str | os.PathLike, write: Callable[[IO[bytes]], Any]) -> Path:
    """Write a file under another name and rename it, so that it is never incomplete.

    A link is followed, and a file that is replaced keeps its mode and owner. A pipe or a device is
    written to.

    Args:
        path: the file.
        write: called with the open file.

    Returns:
        The path, as it was given.

    Raises:
        OSError: if it cannot be written; it names `path`, and an earlier file is unchanged.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such directory", str(path.parent))
    try:
        if path.exists() and (not path.is_file() or str(path).startswith(("/dev/", "/proc/"))):
            buffer = io.BytesIO()
            write(buffer)
            with open(path, "wb") as file:
                file.write(buffer.getbuffer())
        else:
            _write_and_rename(Path(os.path.realpath(path)), write)
    except OSError as error:
        number, reason = error.errno or errno.EIO, error.strerror or str(error)
        raise OSError(number, reason, str(path)) from error
    return path


def _write_and_rename(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    status = path.stat() if path.exists() else None
    if status is not None and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "the file is write-protected", str(path))
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        with open(temporary, "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if status is not None:
            with contextlib.suppress(OSError, AttributeError):  # only root gives files away
                os.chown(temporary, status.st_uid, status.st_gid)
            os.chmod(temporary, stat.S_IMODE(status.st_mode))
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
