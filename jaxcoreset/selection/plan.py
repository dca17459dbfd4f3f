"""An estimate, before a build, of its passes, memory and time.

Each kind of pass is run on the first batch of rows, which compiles it and measures its time. The
memory of the process is then that of the build except for the candidates' log-likelihoods and the
solver, which are added.
"""

import dataclasses
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcoreset.data.blocks import group_blocks, row_bytes
from jaxcoreset.data.messages import ShownAsTable, text_table
from jaxcoreset.data.ragged import lists_of
from jaxcoreset.data.reading import read_chunks
from jaxcoreset.data.rows import Rows
from jaxcoreset.data.utils import peak_memory
from jaxcoreset.likelihood.embedding import block_width, log_likelihood_sum
from jaxcoreset.likelihood.expansion import flat_draws
from jaxcoreset.likelihood.group_model import GroupModel
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.selection.construction import MOST_SEARCHES, Construction
from jaxcoreset.selection.look import FirstLook, first_look, time_pass
from jaxcoreset.selection.reach import MOST_PARAMS, NUM_STARTS, PosteriorOfRows
from jaxcoreset.weighting import Laplace, Weighting
from jaxcoreset.weighting.auto import AutoWeighting
from jaxcoreset.weighting.laplace import LaplaceFitter, warm_start_indices

# The memory of the compiled programs of the solver and of the estimates on a CPU.
_PROGRAMS = 350 << 20
# The memory that the C library of Linux keeps for threads that read ahead: 110 to 170 MB for ten
# million rows in batches of four megabytes, 30 to 90 MB for three million.
_READING = 160 << 20
# The number of matrices of the candidates' log-likelihoods at the solver's draws in memory: as
# evaluated, centred, and two copies of the solver.
_MATRICES = 4
# Passes of the Laplace approximation, from a start on some of the rows or without one.
_WARM_PASSES, _COLD_PASSES = 3, 8
# Passes that look how far the posterior reaches, where it is not far from a Gaussian; up to
# nine more are made where it is.
_TAIL_PASSES = 2
# How often rows are read or written by the passes that find and gather groups, and the number of
# rows by which the time of that is measured.
_READINGS, _TIMED_ROWS = {"labels": 1, "gathering": 4}, 1 << 16


@dataclass(frozen=True)
class Plan(ShownAsTable):
    """The passes, memory and time that a build is expected to take.

    Attributes:
        num_data: the number n of rows of this process.
        num_groups: the number of groups of this process, 0 if rows are chosen and not groups.
        row_bytes: bytes of a row on the device.
        batch_size: the number of rows that are read and moved to the devices at a time.
        num_devices: the number of devices that share them.
        passes: the number of passes over the rows by their purpose; for `Laplace` the usual number.
        seconds: the time of these passes, measured on one batch.
        host_bytes: the maximum memory of the process.
        device_bytes: the maximum memory of a device, 0 if devices share that of the host.
        num_candidates: the number of rows or groups to choose from.
        num_draws: the number of draws of π̂, those of the solver and those held out.
        further_passes: the maximum number of passes, not among `passes`, that are made if the
            candidates turn out to limit the error.
        further_seconds: the time of all of these.
        look: the number of parameters, and what to do instead if there are many.
        temporary_bytes: the size of the temporary files that the rows of groups are gathered in.
        may_pass_again: whether the target takes a second pass if rows are needed beside the proxy.
            The seconds contain the draws of both passes.
    """

    num_data: int
    row_bytes: int
    batch_size: int
    num_devices: int
    passes: dict[str, int]
    seconds: dict[str, float]
    host_bytes: int
    device_bytes: int
    num_candidates: int
    num_draws: int
    further_passes: int = 0
    further_seconds: float = 0.0
    look: FirstLook | None = None
    num_groups: int = 0
    temporary_bytes: int = 0
    may_pass_again: bool = False

    def __str__(self) -> str:
        total = sum(self.seconds.values())
        passes = ", ".join(f"{what} {count}" for what, count in self.passes.items())
        seconds = ", ".join(f"{what} {spent:.1f}" for what, spent in self.seconds.items())
        if self.further_passes:
            passes += (
                f"; for further candidates, if needed, up to {self.further_passes} "
                f"({self.further_seconds:.1f} s)"
            )
        if self.may_pass_again:
            passes += "; target 2 if the proxy alone does not meet tol"
        unit, count = "rows", f"{self.num_data:,}"
        if self.num_groups:
            unit, count = "groups", f"{self.num_groups:,} with {self.num_data:,} rows"
        lines = [
            (unit, f"{count} of {self.row_bytes} bytes, {self.batch_size:,} at a time"),
            ("devices", f"{self.num_devices}"),
        ]
        if self.num_draws:
            lines += [
                ("candidates", f"{self.num_candidates:,} at {self.num_draws:,} draws"),
                ("passes", passes),
                ("seconds", f"{total:.0f} ({seconds}), without solving"),
            ]
        else:
            kept = f"{self.num_candidates:,} {unit}, without error"
            lines.append(("coreset", f"{kept}; no search is needed"))
        lines.append(("host memory", f"{self.host_bytes / 2**20:,.0f} MiB at most"))
        if self.temporary_bytes:
            lines.append(("temporary files", f"{self.temporary_bytes / 2**20:,.0f} MiB"))
        if self.device_bytes:
            lines.append(("device memory", f"{self.device_bytes / 2**20:,.0f} MiB at most"))
        if self.look is not None:
            lines.append(("parameters", str(self.look)))
            if self.look.seconds is not None:
                lines.append(("expected", f"{self.look.time}. {self.look.advice}"))
        return text_table("Plan", lines)


def plan_build(
    likelihood: ModelLikelihood, construction: Construction, weighting: Weighting
) -> Plan:
    """Run each kind of pass on the first rows, and add up.

    Args:
        likelihood: the model's likelihood and data.
        construction: how coresets are built.
        weighting: how π̂ is found.
    """
    rows = likelihood.rows
    size = construction.first_size
    counts = construction.draw_counts(size, with_proxy=construction.may_expand)
    num_draws = sum(counts.values())
    candidates = construction.candidates(size)
    num_candidates = rows.num_rows if candidates is None else candidates.size
    context = dataclasses.replace(rows.context, checkpoint=None)
    devices = 1 if context.mesh is None else context.mesh.size
    block = rows.block(block_width(num_draws))
    batch = group_blocks(rows.data, block, devices, context.batch_size)
    batch_size = min(batch * block, rows.num_local)

    one, lists = row_bytes(rows.data), lists_of(rows.data)
    entry = sum(row_bytes(leaf.values) for leaf in lists if leaf.values is not None)
    if lists:
        one = entry * max(1, int(lists[0].sizes.mean()))
    table: dict[str, Any] = {
        "num_data": int(lists[0].sizes.sum()) if lists else rows.num_local,
        "num_groups": rows.num_local if isinstance(likelihood.model, GroupModel) else 0,
        "row_bytes": entry if lists else one,
        "batch_size": batch_size,
        "num_devices": devices,
    }
    if (num := construction.num_exact) is not None:  # these are the coreset, without any draws
        return Plan(
            **table,
            passes={},
            seconds={},
            host_bytes=(peak_memory() or 0) + 2 * one * num,
            device_bytes=0,
            num_candidates=num,
            num_draws=0,
        )
    draws = _spread(likelihood, num_draws)
    passes, seconds = dict(rows.passes), {}  # so far those that find and gather groups
    if passes:
        once = _reading_time(rows)
        seconds = {what: once * _READINGS[what] for what in passes}
    if not (rows.is_local and rows.has_random_access):
        passes["candidates"] = 1

    def timed(what: str, count: int, evaluate: Callable[[Rows], Any]) -> None:
        passes[what] = count
        seconds[what] = count * time_pass(rows, context, batch_size, evaluate)

    started_on = warm_start_indices(rows.num_rows, jax.random.key(0))
    if isinstance(weighting, Laplace | AutoWeighting):
        fitter, start = LaplaceFitter(likelihood), likelihood.init_params
        count = _COLD_PASSES if started_on is None else _WARM_PASSES
        timed("Laplace", count, lambda some: fitter.at(some, start))
    if construction.may_expand and likelihood.num_params <= MOST_PARAMS:
        timed("tails", _TAIL_PASSES, lambda some: _far_out(likelihood, some))
    further = 0, 0.0
    if candidates is not None:
        log_likelihood = likelihood.program.log_likelihood
        timed("target", 1, lambda some: log_likelihood_sum(log_likelihood, draws, some))
        one_search = counts["solver"] / num_draws * seconds["target"]
        asked, has_path = construction.extra_passes, construction.has_path
        if asked == "auto" and has_path and num_candidates < rows.num_rows:
            further = MOST_SEARCHES, MOST_SEARCHES * one_search
        elif isinstance(asked, int) and asked:
            passes["candidate search"], seconds["candidate search"] = asked, asked * one_search
    itemsize = jax.dtypes.canonicalize_dtype(float).itemsize
    matrices = itemsize * num_candidates * (_MATRICES * counts["solver"] + num_draws)
    if construction.may_expand:  # the remainders, which are evaluated in float64
        matrices += num_candidates * (itemsize * num_draws + 8 * counts["solver"])
    kept = 2 * one * (num_candidates + (0 if started_on is None else started_on.size))
    on_host = jax.default_backend() == "cpu"
    host = (peak_memory() or 0) + kept + _PROGRAMS + (matrices if on_host else 0)
    if rows.is_streamed and batch_size < rows.num_local and sys.platform == "linux":
        host += _READING
    device = 0 if on_host else matrices + 4 * one * batch_size + itemsize * 4 * num_draws * 4096
    return Plan(
        **table,
        passes=passes,
        seconds=seconds,
        host_bytes=host,
        device_bytes=device,
        num_candidates=num_candidates,
        num_draws=num_draws,
        further_passes=further[0],
        further_seconds=further[1],
        look=first_look(likelihood, construction.most_rows, may_search=construction.may_search),
        temporary_bytes=rows.num_entries * (entry + 4) if "gathering" in passes else 0,
        may_pass_again=construction.may_expand and "confirmation" in counts,
    )


def _far_out(likelihood: ModelLikelihood, rows: Rows) -> np.ndarray:
    """A pass of those that look how far the posterior reaches; its time is that at any points."""
    spread = _spread(likelihood, NUM_STARTS)
    start = flat_draws({name: jnp.asarray(value) for name, value in spread.items()})
    return PosteriorOfRows(likelihood, rows, start[0]).gradients(start)


def _spread(likelihood: ModelLikelihood, num: int) -> dict[str, Any]:
    """Parameters around the starting point; their values do not change the time."""
    generator = np.random.default_rng(0)
    return {
        name: np.asarray(value) + 0.01 * generator.normal(size=(num, *np.shape(value)))
        for name, value in likelihood.init_params.items()
    }


def _reading_time(rows: Rows) -> float:
    """The time of reading all rows of groups once, from the first ones."""
    column = next(leaf.values for leaf in lists_of(rows.data) if leaf.values is not None)
    leaves, num = column.rows.leaves, min(len(column), _TIMED_ROWS)
    start = time.perf_counter()
    next(read_chunks(leaves, num, prefetch=0))
    return (time.perf_counter() - start) * len(column) / num
