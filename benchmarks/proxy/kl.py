"""Parts `kl` and `tol`: errors against size, and the rows that a tolerance needs."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxcoreset as jc
from benchmarks import common
from benchmarks.proxy import data
from benchmarks.proxy.data import Case
from benchmarks.proxy.sweep import Sweep, cells, largest_ratio

WHOLE = ("biketrips", "airportdelays", "ds1", "phishing")
TRUNCATED = ("biketrips", "ds1")
TOL = 0.01
_PROXIES = {"rows alone": None, "proxy + rows": jc.Taylor(), "auto": "auto"}


def cases(quick: bool, data_dir: Path | None, only: str | None = None) -> Iterator[Case]:
    """The sets of the table, one after the other.

    Args:
        quick: whether to take only a small one, which needs no file.
        data_dir: the folder of the papers' data.
        only: part of a name; other sets are left out.
    """
    if quick:
        yield data.small()
        return
    names: list[tuple[str, int | None]] = [(name, None) for name in (*common.SIX, *WHOLE)]
    names += [(name, data.TRUNCATED) for name in TRUNCATED]
    for name, num_rows in names:
        shown = name if num_rows is None else f"{name} ({num_rows:,})"
        if only is None or only == shown:
            found = data.paper_case(name, data_dir, num_rows)
            if found is not None:
                yield found
    if only in (None, "flights"):
        found = data.flights()
        if found is not None:
            yield found


def sizes(case: Case, quick: bool) -> list[int]:
    """The sizes of the table for a set."""
    if quick:
        return [5, 20]
    return [5, 10, 20, 25, 50, 100, *([250] if case.name == "phishing" else [])]


def measure(case: Case, quick: bool) -> dict[str, Any]:
    """Errors of all approaches at the table's sizes, and the largest ratio at any size."""
    ks = sizes(case, quick)
    sweep = Sweep(case, max(ks), num_judging=500 if quick else 4000)
    curves = sweep.curves()
    ratio, at = largest_ratio(curves)
    few = curves.rows[:20] / curves.auto[:20]
    found = {
        "data": case.name,
        "n": case.num_rows,
        "parameters": sweep.num_params,
        "cells": cells(case, curves, ks),
        "expansion alone": curves.none,
        "largest ratio of auto to the better": ratio,
        "at k": at,
        "median of rows / auto, k to 20": float(np.median(few)),
        "rows / auto, k to 20": few.tolist(),
        "seconds": curves.seconds,
    }
    for cell in found["cells"]:
        print(
            f"   {case.name}, k = {cell['k']}: rows {cell['rows alone']:.2g}, Gaussian "
            f"{cell['Gaussian']:.2g}, proxy + rows {cell['proxy + rows']:.2g}, auto "
            f"{cell['auto']:.2g}",
            flush=True,
        )
    print(f"   largest ratio {ratio:.3g} at k = {at}", flush=True)
    return found


def tolerance(case: Case, quick: bool) -> dict[str, Any]:
    """The rows that a build to the tolerance takes, and its seconds."""
    row: dict[str, Any] = {"data": case.name, "n": case.num_rows, "tol": TOL}
    most = 64 if quick else 1000
    for name, proxy in _PROXIES.items():
        builder = jc.CoresetBuilder(
            case.model,
            tol=jc.Tolerance(TOL, max_size=most, throw=False),
            proxy=proxy,  # pyright: ignore[reportArgumentType]
            progress_bar=False,
        )
        begin = time.perf_counter()
        coreset = builder.run(jax.random.key(0), *case.args)
        spent = time.perf_counter() - begin
        report = coreset.report
        row[name] = len(coreset)
        row[f"KL, {name}"] = report.kl
        row[f"met, {name}"] = report.is_within_tol
        row[f"seconds, {name}"] = spent
        row["Gaussian"] = report.gaussian_kl
        print(f"   {case.name}, {name}: {len(coreset)} rows, {report.kl:.2g}", flush=True)
    return row
