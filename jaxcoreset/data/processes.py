"""The processes of one build: each has a part of the rows, and all of them go the same way.

They are those of `jax.distributed`. Whatever they hand each other is small: sums over rows, a few
rows, the best of a pass. Before anything is handed on, each says through JAX's coordination service
that it is there, or what went wrong with it; so a process that died, or is late, is an error that
names it on every other one, within a stated time, and no collective is entered that somebody does
not reach.
"""

import contextlib
import itertools
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

BARRIERS = itertools.count()
# What a process says that has not failed begins so.
_OK = "ok "
# Marks an error that the other processes were told of.
_REPORTED = "_reported_to_the_other_processes"


class ProcessError(RuntimeError):
    """Another process of the build failed, died or is late; the message says which one."""


class ProcessGroup:
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

    def agree(self, settings: Mapping[str, str]) -> None:
        """Raise where the processes were called with other settings, texts by name."""

    @contextlib.contextmanager
    def all_or_none(self, what: str) -> Iterator[None]:
        """A stage that each process goes through by itself, and that fails on all or on none."""
        yield


SINGLE_PROCESS = ProcessGroup()


@dataclass
class DistributedProcesses(ProcessGroup):
    """The processes of `jax.distributed`, which has to be initialised.

    Args:
        timeout: how long to wait for the others, in seconds.

    Raises:
        RuntimeError: if neither `initialize_processes` nor JAX's own function was called.
    """

    timeout: float = 600.0
    _number: Any = field(default=BARRIERS, repr=False)

    def __post_init__(self) -> None:
        from jax._src.distributed import global_state

        if global_state.client is None:
            raise RuntimeError(
                "distributed=True, but the processes do not know of each other; call "
                "jaxcoreset.initialize_processes() in each of them before anything else of JAX."
            )
        self._client: Any = global_state.client
        self.count, self.index = jax.process_count(), jax.process_index()

    def gather(self, state: Mapping[str, Any]) -> list[dict[str, np.ndarray]]:
        """See `ProcessGroup.gather`.

        Raises:
            ProcessError: if another process failed, did not come within the time, or has arrays of
                other names, types or shapes.
        """
        arrays = {name: np.asarray(value) for name, value in state.items()}
        form = {name: f"{array.dtype} {array.shape}" for name, array in arrays.items()}
        found = self._barrier("", form)
        if differing := self._differing(found, form):
            raise ProcessError(
                f"the processes do not have the same kind of arrays. {differing}. Wanted parts of "
                "one table: columns of one type and width in all of them, and the same settings."
            )
        return self._all(arrays)

    def first(self, state: dict[str, Any]) -> dict[str, Any]:
        """See `ProcessGroup.first`."""
        return self.gather(state)[0]

    def agree(self, settings: Mapping[str, str]) -> None:
        """See `ProcessGroup.agree`.

        Raises:
            ProcessError: if they were; the message says which setting differs, and where.
        """
        if differing := self._differing(self._barrier("", settings), settings):
            raise ProcessError(
                f"the processes were not called alike. {differing}. Wanted the same in all of them "
                "but for the rows."
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
            raise  # the others know, or cannot be reached
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
        """What differs between this process and the first other one that does, in words."""
        for process, other in found.items():
            names = [name for name in sorted({*own, *other}) if own.get(name) != other.get(name)]
            if names:
                listed = "; ".join(
                    f"{name}: {_short(own.get(name))} here, {_short(other.get(name))} there"
                    for name in names[:3]
                )
                return f"Process {self.index} and process {process} differ in {listed}"
        return ""

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

    def _barrier(self, failure: str, form: Mapping[str, str] | None = None) -> dict[int, dict]:
        """Wait for all the others; raise where one of them reports a failure, or does not come.

        Returns:
            What each of the others said of itself, as `form` does of this one.
        """
        number = next(self._number)
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
            names = ", ".join(str(process) for process, _ in late)
            raise ProcessError(
                f"process {names} of {self.count} did not come within {self.timeout:g} seconds: it "
                "died, or hangs, or has much more to do than the others. Look at its own output; "
                "start all processes again, with a checkpoint to go on from."
            ) from late[0][1]
        if number > 1:  # everybody is past the one before the last
            with contextlib.suppress(Exception):
                self._client.key_value_delete(f"jaxcoreset/{number - 2}/{self.index}")
        return found


def _short(text: str | None) -> str:
    return "nothing" if text is None else text if len(text) < 80 else f"{text[:77]}..."
