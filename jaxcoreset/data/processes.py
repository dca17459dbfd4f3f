"""The processes of one build: each has a part of the rows, and all of them run the same program.

They are those of `jax.distributed`. What they exchange is small: sums over rows, a few rows, the
best rows of a pass. Before each exchange every process reports through JAX's coordination service
that it has arrived, or what went wrong. So if a process dies or is late, every other
process raises an error that names it, within the timeout, and no process enters a collective
operation that another one never reaches.

When a process ends, in any way, it tells the other processes and waits for them, because JAX aborts
the other processes if one of them leaves its service early.
"""

import atexit
import contextlib
import functools
import ipaddress
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

# JAX's variables for the coordinator's address, and for where it listens.
_ADDRESS, _BIND_ADDRESS = "JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_BIND_ADDRESS"
# Numbers the barriers of this process, all groups together.
BARRIERS = itertools.count()
# What a process reports that has not failed begins with this.
_OK = "ok "
# Marks an error that was reported to the other processes.
_REPORTED = "_reported_to_the_other_processes"
# Seconds that JAX waits for the other processes at exit, when all leave, see `_leave`; and after
# which it aborts all of them if one is dead: by default later than the build's own error.
_TIMEOUTS: dict[str, Any] = {"shutdown_timeout_seconds": 15, "heartbeat_timeout_seconds": 900}
# Seconds between two looks at the other processes on exit, and after which the reason is shown.
_LOOK, _SHOWN = 2.0, 10.0
# The processes that are dead or late, as far as this one knows.
_LOST: set[int] = set()


def initialize_processes(**options: Any) -> tuple[int, int]:
    """Connect the processes of a build; call it in each of them before any other use of JAX.

    `jax.distributed.initialize` finds the processes by itself if they are started by Open MPI's
    ``mpirun`` or by SLURM's ``srun``, and on Cloud TPUs and Kubernetes. Elsewhere, for instance
    under Ray, pass `coordinator_address`, `num_processes` and `process_id`. A second call changes
    nothing.

    The first process opens a port, where JAX's coordination service listens on all addresses of the
    machine. Anyone who can reach the port can end the build or change what the processes exchange.
    If `coordinator_address` is local, such as 127.0.0.1, the service listens only there.

    Args:
        **options: arguments of `jax.distributed.initialize`.

    Returns:
        The number of this process, counted from 0, and the number of processes.

    Raises:
        ValueError: if JAX does not find the processes and `options` do not name them.
    """
    if not jax.distributed.is_initialized():
        address = options.get("coordinator_address") or os.environ.get(_ADDRESS, "")
        if _is_loopback(address) and _BIND_ADDRESS not in os.environ:
            options = {"coordinator_bind_address": address, **options}
        try:
            jax.distributed.initialize(**(_TIMEOUTS | options))
        except ValueError as error:
            raise ValueError(
                f"initialize_processes does not know the processes of this build: {error} Start "
                "the script with mpirun or srun, or pass coordinator_address ('host:port'), "
                "num_processes and process_id."
            ) from error
    _leave_on_exit()
    return jax.process_index(), jax.process_count()


@functools.cache
def _leave_on_exit() -> None:
    """Call `_leave` before JAX's own function at exit, once."""
    atexit.register(_leave)


def _leave() -> None:
    """Tell the other processes that this one ends, and why, and wait until all of them do.

    An error that nothing has caught reaches the other processes at their next exchange, also if it
    was raised before the build.
    """
    from jax._src.distributed import global_state

    client: Any = global_state.client
    if client is None or jax.process_count() == 1:
        return
    error = getattr(sys, "last_value", None)
    why = "it ended before the build did" if error is None else f"{type(error).__name__}: {error}"
    own, others = jax.process_index(), {*range(jax.process_count())} - {jax.process_index()} - _LOST
    with contextlib.suppress(Exception):
        client.key_value_set(f"jaxcoreset/{next(BARRIERS)}/{own}", why)
        client.key_value_set(f"jaxcoreset/left/{own}", "")
    if not _LOST or own == 0:  # the first process coordinates the other ones
        _wait_for(client, others)
    if _LOST:
        # JAX would wait for the lost ones and abort.
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(_LOOK if own == 0 else 0)
        os._exit(1)


def _wait_for(client: Any, processes: set[int]) -> None:
    """Wait until these processes leave; a line says so if it takes long."""
    start, is_shown = time.monotonic(), False
    for process in sorted(processes):
        while True:
            try:
                client.blocking_key_value_get(f"jaxcoreset/left/{process}", int(1000 * _LOOK))
                break
            except Exception as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    return  # the service is gone
            if not is_shown and time.monotonic() - start > _SHOWN:
                print("jaxcoreset: waiting for the other processes to end.", file=sys.stderr)
                is_shown = True


def _is_loopback(address: str) -> bool:
    """True if an address, host:port, is one that only the machine itself can reach."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class ProcessError(RuntimeError):
    """Another process of the build failed, died or is late; the message names it."""


class ProcessGroup:
    """The processes of one build; an instance of this class is a group of one process.

    Attributes:
        count: the number of processes.
        index: the number of this process.
    """

    count: int = 1
    index: int = 0

    def gather(self, state: Mapping[str, Any]) -> list[dict[str, np.ndarray]]:
        """The arrays of every process, in the processes' order; all have the same shapes."""
        return [dict(state)]

    def first(self, state: dict[str, Any]) -> dict[str, Any]:
        """The arrays of the first process."""
        return state

    def agree(self, settings: Mapping[str, str]) -> None:
        """Raise an error if the processes have different settings, given as text by name."""

    @contextlib.contextmanager
    def all_or_none(self, what: str) -> Iterator[None]:
        """A stage that each process runs by itself; it fails in all processes or in none."""
        yield


SINGLE_PROCESS = ProcessGroup()


@dataclass
class DistributedProcesses(ProcessGroup):
    """The processes of `jax.distributed`, which has to be initialized.

    Args:
        timeout: maximum time to wait for the other processes, in seconds.

    Raises:
        RuntimeError: if neither `initialize_processes` nor JAX's own function was called before.
    """

    timeout: float = 600.0

    def __post_init__(self) -> None:
        from jax._src.distributed import global_state

        if global_state.client is None:
            raise RuntimeError(
                "the processes of a distributed build are not connected; call "
                "jaxcoreset.initialize_processes() in each of them before any other use of JAX."
            )
        _leave_on_exit()
        self._client: Any = global_state.client
        self.count, self.index = jax.process_count(), jax.process_index()

    def gather(self, state: Mapping[str, Any]) -> list[dict[str, np.ndarray]]:
        """See `ProcessGroup.gather`.

        Raises:
            ProcessError: if another process failed, did not arrive within the timeout, or has
                arrays of other names, types or shapes.
        """
        arrays = {name: np.asarray(value) for name, value in state.items()}
        form = {name: f"{array.dtype} {array.shape}" for name, array in arrays.items()}
        found = self._barrier("", form)
        if differing := self._differing(found, form):
            raise ProcessError(
                f"the processes do not have the same kind of arrays. {differing}. Expected parts "
                "of one table: the same columns, types and settings in all processes."
            )
        return self._all(arrays)

    def first(self, state: dict[str, Any]) -> dict[str, Any]:
        """See `ProcessGroup.first`."""
        return self.gather(state)[0]

    def agree(self, settings: Mapping[str, str]) -> None:
        """See `ProcessGroup.agree`.

        Raises:
            ProcessError: if they differ; the message names the setting and the process.
        """
        if differing := self._differing(self._barrier("", settings), settings):
            raise ProcessError(
                f"the processes have different settings. {differing}. Expected the same settings "
                "and arguments in all processes, except for the rows."
            )

    @contextlib.contextmanager
    def all_or_none(self, what: str) -> Iterator[None]:
        """See `ProcessGroup.all_or_none`.

        Raises:
            ProcessError: if the stage failed in another process.
        """
        try:
            yield
        except ProcessError:
            raise  # the other processes know, or cannot be reached
        except Exception as error:
            if not getattr(error, _REPORTED, False):
                text = f"{what}: {type(error).__name__}: {error}"
                with contextlib.suppress(ProcessError):
                    self._barrier(text)
                with contextlib.suppress(AttributeError):
                    setattr(error, _REPORTED, True)
            raise
        self._barrier("")

    def _differing(self, found: dict[int, dict[str, str]], own: Mapping[str, str]) -> str:
        """How this process and the first one with other settings differ; empty if none does."""
        for process, other in found.items():
            names = [name for name in sorted({*own, *other}) if own.get(name) != other.get(name)]
            if names:
                listed = "; ".join(
                    f"{name}: {_short(own.get(name))} here, {_short(other.get(name))} there"
                    for name in names[:3]
                )
                return f"Process {self.index} and process {process} differ in {listed}"
        return ""

    def _all(self, state: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
        from jax.experimental.multihost_utils import process_allgather

        # As bytes, since JAX may shorten float64 and int64.
        packed = {name: np.frombuffer(like.tobytes(), np.uint8) for name, like in state.items()}
        try:
            found = process_allgather(packed)
        except Exception as error:
            raise ProcessError(
                f"process {self.index} of {self.count} lost the connection to the other processes "
                f"during an exchange of arrays: {error}"
            ) from error
        return [
            {
                name: np.frombuffer(found[name][i].tobytes(), like.dtype).reshape(like.shape)
                for name, like in state.items()
            }
            for i in range(self.count)
        ]

    def _barrier(self, failure: str, form: Mapping[str, str] | None = None) -> dict[int, dict]:
        """Wait for all other processes; raise an error if one reports a failure or does not arrive.

        Returns:
            What each of the other processes reports of itself, as `form` does of this one.
        """
        number = next(BARRIERS)
        prefix = f"jaxcoreset/{number}"
        own = failure or _OK + json.dumps(dict(form or {}))
        self._client.key_value_set(f"{prefix}/{self.index}", own)
        deadline = time.monotonic() + self.timeout
        failures, late, found = {}, [], {}
        for process in range(self.count):
            if process == self.index:
                continue
            left = max(0.01, deadline - time.monotonic())
            try:
                said = self._client.blocking_key_value_get(f"{prefix}/{process}", int(1000 * left))
            except Exception as error:
                late.append((process, error))
                continue
            if said.startswith(_OK):
                found[process] = json.loads(said.removeprefix(_OK))
            else:
                failures[process] = said
        if failures:
            texts = "; ".join(f"process {at}: {said}" for at, said in failures.items())
            raise ProcessError(f"another process of the build failed. {texts}")
        if late:
            _LOST.update(process for process, _ in late)
            names = ", ".join(str(process) for process, _ in late)
            raise ProcessError(
                f"process {names} of {self.count} did not arrive within {self.timeout:g} seconds: "
                "it died, hangs, or has many more rows to read. Look at its own output, and start "
                "all processes again; a build with a checkpoint resumes."
            ) from late[0][1]
        if number > 1:  # all processes have passed the last barrier but one
            with contextlib.suppress(Exception):
                self._client.key_value_delete(f"jaxcoreset/{number - 2}/{self.index}")
        return found


def _short(text: str | None) -> str:
    return "nothing" if text is None else text if len(text) < 80 else f"{text[:77]}..."
