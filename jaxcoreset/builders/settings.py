"""The settings of a build that are more than a number: frozen, checked when they are made.

`Tolerance`, `Candidates` and `Taylor` change the coreset. `Execution`, `Processes` and `Checkpoint`
say how the work is done and do not change the result.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import numpy as np
from jax.sharding import Mesh

from jaxcoreset.data.utils import check_int
from jaxcoreset.selection.tolerance import largest_shift


@dataclass(frozen=True)
class Tolerance:
    """The required accuracy of the coreset's posterior, and the maximum size of the coreset.

    Args:
        kl: the largest symmetrised KL divergence that is accepted, in nats. The estimate plus two
            Monte Carlo standard errors is compared with it.
        max_size: the maximum number of rows to try.
        throw: True raises an error if the tolerance cannot be met with `max_size` rows; False
            returns the best coreset that was found, and its report says so.

    Raises:
        ValueError: if `kl` is not positive and finite, or `max_size` is less than 1.
    """

    kl: float
    max_size: int = 2000
    throw: bool = True

    def __post_init__(self) -> None:
        if not _is_real(self.kl) or not 0 < self.kl < np.inf:
            raise ValueError(
                f"tol is {self.kl!r}; expected a positive number of nats, such as 0.01."
            )
        check_int("max_size", self.max_size, 1)

    @property
    def max_shift(self) -> float:
        """The largest accepted shift of the mean of a parameter or deterministic site, in its sd.

        It is half the square root of `kl`, 0.05 for 0.01 nats; `kl` alone allows up to √kl. See
        `Report.mean_shift`.
        """
        return largest_shift(self.kl)


class Taylor(eqx.Module):
    """A proxy of all rows: the second-order expansion of their log-likelihood at a point.

    See `jaxcoreset.likelihood.expansion`.

    Args:
        center: constrained values of the model's latent sites, by name, as `MCMC.get_samples` has
            them; the posterior's mode by default, or where the weighting finds none the mean of its
            draws.
    """

    center: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Candidates:
    """The rows that the solver may choose from.

    The target is the sum over all rows; it does not depend on the candidates.

    Args:
        num: how many rows are drawn at random as candidates. By default all rows are candidates up
            to n = 10,000; beyond that 2,000 rows are, or eight times the size if that is more.
        extra_passes: the maximum number of passes over all rows that look for further candidates.
            Each pass adds the rows that would lower the error most, and the solver runs again. With
            `tol` this is the number for each size that is tried. "auto" makes up to four passes if
            the candidates seem to be what limits the error: if the error hardly falls from half the
            size on, and is above 0.001 nats, or above half of `tol`. That happens if a category has
            few rows.

    Raises:
        ValueError: if `num` is less than 1 or `extra_passes` is negative.
    """

    num: int | None = None
    extra_passes: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if self.num is not None:
            check_int("candidates", self.num, 1)
        if self.extra_passes != "auto":
            check_int("extra_passes", self.extra_passes, 0)


@dataclass(frozen=True)
class Processes:
    """The processes of `jax.distributed` build one coreset together.

    Each process is given its own part of the rows, and all of them get the same coreset. Row
    numbers count through the rows of all processes, in the order of the processes. Call
    `initialize_processes` first.

    Args:
        timeout: how many seconds a process waits for another one before it raises `ProcessError`.

    Raises:
        ValueError: if `timeout` is not positive.
    """

    timeout: float = 600.0

    def __post_init__(self) -> None:
        if not _is_real(self.timeout) or not self.timeout > 0:
            raise ValueError(f"timeout is {self.timeout!r}; expected a positive number of seconds.")


@dataclass(frozen=True)
class Execution:
    """Where the passes over the rows run. It changes no number.

    Args:
        mesh: the devices that share the rows, as a mesh with one axis; all local devices by
            default. Sums over rows are the same, bit for bit, on two devices and on more. On a
            single device XLA compiles another program, whose last bit may differ; if several
            coresets are nearly as good, another one may then be found.
        batch_size: how many rows are read and moved to the devices at a time. By default it follows
            from the memory that a row takes.
        processes: `Processes()` if several processes build one coreset together; by default this
            process builds alone.

    Raises:
        ValueError: if the mesh has more than one axis or `batch_size` is less than 1.
        TypeError: if `processes` is not a `Processes`.
    """

    mesh: Mesh | None = None
    batch_size: int | None = None
    processes: Processes | None = None

    def __post_init__(self) -> None:
        if self.mesh is not None and len(self.mesh.axis_names) != 1:
            raise ValueError(
                f"mesh has the axes {self.mesh.axis_names}; expected one axis, over which the rows "
                'are shared: jax.make_mesh((4,), ("rows",)).'
            )
        if self.batch_size is not None:
            check_int("batch_size", self.batch_size, 1)
        expected = "Processes(), or None for one process"
        check_type("processes", self.processes, Processes | None, expected)


@dataclass(frozen=True)
class Checkpoint:
    """A file from which an interrupted build resumes when it is called again.

    The results of passes over the rows are kept in it. A build of the same data and settings
    continues where the file ends, and its coreset is the same, bit for bit. The file stays when the
    build is done. Each one of several processes has its own file, with its number appended.
    A build that starts again in float64 keeps its passes in a second file, with ``.float64`` added.

    Args:
        path: the file.
        every: how many seconds lie between two writes within a pass. The end of a pass is always
            written.

    Raises:
        TypeError: if `path` is no path.
        ValueError: if `every` is negative.
    """

    path: str | os.PathLike
    every: float = 30.0

    def __post_init__(self) -> None:
        check_type("checkpoint", self.path, str | os.PathLike, "the path of a file")
        if not _is_real(self.every) or self.every < 0:
            raise ValueError(f"every is {self.every!r}; expected a number of seconds, 0 or more.")


def check_type(name: str, value: Any, kind: Any, expected: str) -> None:
    """Check the type of a setting.

    Raises:
        TypeError: if it is not an instance of `kind`; `expected` says what is.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {value!r}; expected {expected}.")


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
