"""The processes of one build: each has a part of the rows, and all of them go the same way.

They are those of `jax.distributed`. Whatever they hand each other is small: sums over rows, a few
rows, the best of a pass. Before anything is handed on, each says through JAX's coordination service
that it is there, or what went wrong with it; so a process that died, or is late, is an error that
names it on every other one, within a stated time, and no collective is entered that somebody does
not reach.
"""

import contextlib
import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

_COUNTER = itertools.count()


class ProcessError(RuntimeError):
    """Another process of the build failed, died or is late; the message says which one."""


class Processes:
    """One process alone: there is nothing to wait for, and nothing to hand on.

    Attributes:
        count: how many processes there are.
        index: which one this is.
    """

    count: int = 1
    index: int = 0

    def gather(self, state: Mapping[str, Any]) -> list[dict[str, np.ndarray]]:
        """The arrays of every process, in their order; shapes and types are the same on all."""
        return [dict(state)]

    def first(self, state: dict[str, Any]) -> dict[str, Any]:
        """The arrays of the first process."""
        return state

    @contextlib.contextmanager
    def together(self, what: str) -> Iterator[None]:
        """A stage that each process goes through by itself, and that fails on all or on none."""
        yield


ALONE = Processes()


@dataclass
class DistributedProcesses(Processes):
    """The processes of `jax.distributed`, which has to be initialised.

    Args:
        timeout: how long to wait for the others, in seconds.

    Raises:
        RuntimeError: if `jax.distributed.initialize` was not called.
    """

    timeout: float = 600.0
    _number: Any = field(default=_COUNTER, repr=False)

    def __post_init__(self) -> None:
        from jax._src.distributed import global_state

        if global_state.client is None:
            raise RuntimeError(
                "distributed=True, but the processes do not know of each other; call "
                "jax.distributed.initialize() in each of them before anything else of JAX."
            )
        self._client: Any = global_state.client
        self.count, self.index = jax.process_count(), jax.process_index()

    def gather(self, state: Mapping[str, Any]) -> list[dict[str, np.ndarray]]:
        """See `Processes.gather`.

        Raises:
            ProcessError: if another process failed, or did not come within the time.
        """
        self._meet("")
        return self._all(state)

    def first(self, state: dict[str, Any]) -> dict[str, Any]:
        """See `Processes.first`."""
        return self.gather(state)[0]

    @contextlib.contextmanager
    def together(self, what: str) -> Iterator[None]:
        """See `Processes.together`.

        Raises:
            ProcessError: if the stage failed in another process.
        """
        try:
            yield
        except Exception as error:
            text = f"{what}: {type(error).__name__}: {error}"
            with contextlib.suppress(ProcessError):
                self._meet(text)
            raise
        self._meet("")

    def _all(self, state: Mapping[str, Any]) -> list[dict[str, np.ndarray]]:
        from jax.experimental.multihost_utils import process_allgather

        # As bytes: float64 and int64 are to pass whatever JAX's default types are.
        names = sorted(state)
        arrays = {name: np.asarray(state[name]) for name in names}
        packed = np.concatenate(
            [np.frombuffer(arrays[name].tobytes(), np.uint8) for name in names]
            or [np.zeros(0, np.uint8)]
        )
        try:
            everything = np.asarray(process_allgather(packed)).reshape(self.count, -1)
        except Exception as error:
            raise ProcessError(
                f"process {self.index} of {self.count} lost the others while they exchanged "
                f"arrays: {error}"
            ) from error
        found = []
        for row in everything:
            at, one = 0, {}
            for name in names:
                like = arrays[name]
                one[name] = np.frombuffer(row[at : at + like.nbytes].tobytes(), like.dtype)
                one[name] = one[name].reshape(like.shape)
                at += like.nbytes
            found.append(one)
        return found

    def _meet(self, failure: str) -> None:
        """Wait for all the others; raise where one of them reports a failure, or does not come."""
        number = next(self._number)
        prefix = f"jaxcoreset/{number}"
        self._client.key_value_set(f"{prefix}/{self.index}", failure or "ok")
        deadline = time.monotonic() + self.timeout
        failures, late = {}, []
        for process in range(self.count):
            if process == self.index:
                continue
            left = max(0.01, deadline - time.monotonic())
            try:
                said = self._client.blocking_key_value_get(f"{prefix}/{process}", int(1000 * left))
            except Exception as error:
                late.append((process, error))
                continue
            if said != "ok":
                failures[process] = said
        if failures:
            texts = "; ".join(f"process {at}: {said}" for at, said in failures.items())
            raise ProcessError(f"another process of the build failed. {texts}")
        if late:
            names = ", ".join(str(process) for process, _ in late)
            raise ProcessError(
                f"process {names} of {self.count} did not come within {self.timeout:g} seconds: it "
                "died, or hangs, or has much more to do than the others. Look at its own output; "
                "start all processes again, with a checkpoint to go on from."
            ) from late[0][1]
        if number > 1:  # everybody is past the one before the last
            with contextlib.suppress(Exception):
                self._client.key_value_delete(f"jaxcoreset/{number - 2}/{self.index}")
