"""Quality on small and whole data sets, and ablation: three parts of `benchmarks.solvers`."""

import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import jaxcoreset as jc
from benchmarks import common
from benchmarks.solvers.kept import Kept

# Relative errors below this are rounding in float32.
FLOOR = 3e-5

# Each with its paper's settings, and the hard-thresholding ones with every convention for the
# steps: that of the paper's text, that of its algorithms, and that of the authors' code.
RIVALS = {
    "IHT": jc.IHT(),
    "IHT, half step": jc.IHT(step_fraction=0.5),
    "AIHT": jc.AIHT(),
    "AIHT, half momentum": jc.AIHT(momentum_fraction=0.5),
    "AIHT, half step": jc.AIHT(step_fraction=0.5),
    "AIHT2": jc.AIHT2(),
    "AIHT2, half momentum": jc.AIHT2(momentum_fraction=0.5),
    "AIHT2, half step": jc.AIHT2(step_fraction=0.5),
    "GIGA": jc.GIGA(),
    "FrankWolfe": jc.FrankWolfe(),
    "MatchingPursuit": jc.MatchingPursuit(),
    "SubspacePursuit": jc.SubspacePursuit(),
    "Recombination": jc.Recombination(),
}
DEFAULT = "default"

ABLATION = {
    "ExchangePursuit": jc.ExchangePursuit(),
    "no exchanges": jc.ExchangePursuit(exchanges_down=0),
    "no overshoot": jc.ExchangePursuit(overshoot=0.0),
    "no further starts": jc.ExchangePursuit(num_starts=0),
    "exchanges to the last": jc.ExchangePursuit(exchanges_down=50, min_gain=1e-4),
    "MatchingPursuit": jc.MatchingPursuit(),
}

# They take minutes for a thousand rows of these sets, and are run up to 200 there.
_COSTLY = ("SubspacePursuit", "Recombination")
_KS = (1, 2, 5, 10, 20, 50, 100, 200)
_WHOLE = ("airportdelays", "phishing", "biketrips", "ds1")


@dataclass(frozen=True)
class _Case:
    """One data set: draws S, trials and sizes."""

    data: str
    num_draws: int
    num_trials: int
    ks: tuple[int, ...]


def quality(
    data_dir: Path | None, quick: bool, earlier: dict[str, Any] | None = None
) -> dict[str, Any]:
    """How the default compares with the best of all methods, on data sets of 500 rows.

    With earlier results of this benchmark, the errors of the others are taken from them.
    """
    if quick:
        cases = [_Case(name, 500, 1, (2, 5, 10, 20)) for name in common.SIX]
        names = ("AIHT2", "GIGA", "MatchingPursuit")
        return _compare(cases, data_dir, {name: RIVALS[name] for name in names})
    cases = [_Case(name, draws, 20, _KS) for draws in (500, 2000) for name in common.SIX]
    return _compare(cases, data_dir, RIVALS, earlier, "quality")


def whole(
    data_dir: Path | None,
    quick: bool,
    earlier: dict[str, Any] | None = None,
    num_trials: Sequence[int] = (20, 20),
    kept: Kept | None = None,
) -> dict[str, Any]:
    """The same on all rows of four data sets, of 7,580 to 26,733 rows, up to k = 1000.

    Args:
        data_dir: folder of the data sets.
        quick: one small problem.
        earlier: results to take the other methods' errors from.
        num_trials: draws of the parameters with S = 500, and with S = 2000.
        kept: problems that are done.
    """
    if quick:
        cases = [_Case("airportdelays", 100, 1, (5, 20))]
        some = {name: RIVALS[name] for name in ("GIGA", "MatchingPursuit")}
        return _compare(cases, data_dir, some, None, "whole", kept)
    cases = [
        _Case(name, draws, trials, (*_KS, 500, 1000))
        for draws, trials in zip((500, 2000), num_trials, strict=True)
        for name in _WHOLE
    ]
    return _compare(cases, data_dir, RIVALS, earlier, "whole", kept)


def _sizes(case: _Case, problem: jc.CoresetProblem) -> list[int]:
    return [k for k in case.ks if k <= problem.num_data]


def _known(part: dict[str, Any]) -> dict[tuple[str, int, int], dict[str, Any]]:
    """Cells of earlier results by data set, number of draws and trial."""
    cells = part.get("cells", [])
    return {(cell["data"], cell["num_draws"], cell["trial"]): cell for cell in cells}


def _compare(
    cases: list[_Case],
    data_dir: Path | None,
    rivals: dict[str, jc.Solver],
    earlier: dict[str, Any] | None = None,
    part: str = "",
    kept: Kept | None = None,
) -> dict[str, Any]:
    """Relative errors of all methods, and how the default compares with the best of the others.

    Only how many problems are left, where those are other processes' and not done.
    """
    kept = kept or Kept()
    before = (earlier or {}).get(part, {})
    known, num_left = _known(before), 0
    # Of the oldest of them, where those were taken from earlier results themselves.
    measured = None
    if earlier is not None:
        then = earlier.get("environments", {}).get(part, earlier["environment"])
        measured = before["others"]["environment"] if "others" in before else then
    cells: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    dates: list[str] = []
    numbers = itertools.count()
    for case in cases:
        loaded = common.load(case.data, data_dir)
        if loaded is None:
            continue
        start = time.perf_counter()
        problems = common.each_trial(*loaded, case.num_draws, case.num_trials)
        for trial, problem in enumerate(problems):
            number, name = next(numbers), f"{part}-{case.data}-{case.num_draws}-{trial}"
            found = kept.find(name)
            if found is not None and found["cell"]["ks"] == _sizes(case, problem):
                dates.append(found["date"])
            elif kept.is_mine(number):
                there = known.get((case.data, case.num_draws, trial))
                cell = _cell(case, trial, problem, rivals, there)
                taken = there is not None and there["ks"] == cell["ks"]
                found = {"cell": cell, "others": measured if taken else None}
                kept.keep(name, found)
            else:
                num_left += 1
                continue
            cells.append(found["cell"])
            if found["others"] is not None:
                others.append(found["others"])
        spent = time.perf_counter() - start
        print(f"  {case.data}, S = {case.num_draws}: {spent:.0f} s", flush=True)
    if num_left:
        print(f"\n{num_left} problems are left to other processes")
        return {"left": num_left}
    result: dict[str, Any] = {"summary": summarize(cells), "cells": cells}
    if dates:
        result["kept"] = {"problems": len(dates), "date": min(dates)}
    if others:
        oldest = min(others, key=lambda environment: environment["date"])
        result["others"] = {"problems": len(others), "environment": oldest}
    return result


def summarize(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Print how the default compares with the best of the others, and return it in numbers."""
    rows = [_row(cell, i) for cell in cells for i in range(len(cell["ks"]))]
    columns = ["data", "n", "S", "k", DEFAULT, "best other", "which", "MatchingPursuit", "ratio"]
    print("\n" + common.table([r for r in rows if r["trial"] == 0], columns))
    # Where both are rounding there is nothing to compare; where one is, there is.
    ratios = [r["ratio"] for r in rows if max(r["best other"], r[DEFAULT]) > FLOOR]
    pursuit = [r["to pursuit"] for r in rows if r["MatchingPursuit"] > FLOOR]
    if not ratios:
        return {}
    summary = {
        "cells": len(ratios),
        "worst objective ratio to the best other": max(ratios),
        "cells above 1.02": sum(r > 1.02 for r in ratios),
        "median objective ratio to the best other": statistics.median(ratios),
        "median objective ratio to MatchingPursuit": statistics.median(pursuit),
    }
    print("\nratio: objective of the default over that of the best other\n")
    for key, value in summary.items():
        print(f"{key}: {value:.4g}")
    for row in rows:
        if row["ratio"] > 1.02:
            where = f"{row['data']}, S = {row['S']}, trial {row['trial']}, k = {row['k']}"
            print(f"above: {where}: {row['ratio']:.4g} of {row['which']}")
    return summary


def _cell(
    case: _Case,
    trial: int,
    problem: jc.CoresetProblem,
    rivals: dict[str, jc.Solver],
    known: dict[str, Any] | None,
) -> dict[str, Any]:
    """Relative errors of the default and of others at each size, None where one was not run."""
    ks = np.array(_sizes(case, problem))
    errors = {}
    found_before = {}
    if known is not None and known["ks"] == ks.tolist():
        found_before = known["relative_error"]
    for method, solver in ({DEFAULT: None} | rivals).items():
        if method != DEFAULT and method in found_before:
            errors[method] = found_before[method]
            continue
        found = [
            float(f"{error:.5g}")
            for some in _sweeps(ks, method, solver)
            for error in np.asarray(jc.sweep(problem, some, solver).relative_error)
        ]
        errors[method] = found + [None] * (len(ks) - len(found))
    return {
        "data": case.data,
        "n": problem.num_data,
        "num_draws": case.num_draws,
        "trial": trial,
        "ks": ks.tolist(),
        "relative_error": errors,
    }


def _sweeps(ks: np.ndarray, method: str, solver: jc.Solver | None) -> list[np.ndarray]:
    """The sizes that a method is run for, those that go in one sweep together."""
    small, large = ks[ks <= _KS[-1]], ks[ks > _KS[-1]]
    if method in _COSTLY or not len(large):
        return [small]
    # Side by side, all sizes gather as many rows as the largest: with n = 26,733 and S = 2000 one
    # sweep of all takes A-IHT II 53 s on one core, two sweeps take 19.
    return [small, large] if isinstance(solver, jc.IHT | jc.AIHT) else [ks]


def _row(cell: dict[str, Any], at: int) -> dict[str, Any]:
    errors = {
        method: values[at]
        for method, values in cell["relative_error"].items()
        if values[at] is not None
    }
    others = {method: error for method, error in errors.items() if method != DEFAULT}
    best = min(others, key=lambda method: others[method])
    return {
        "data": cell["data"],
        "n": cell["n"],
        "S": cell["num_draws"],
        "trial": cell["trial"],
        "k": cell["ks"][at],
        **errors,
        "best other": others[best],
        "which": best,
        "ratio": _ratio(errors[DEFAULT], others[best]),
        "to pursuit": _ratio(errors[DEFAULT], errors["MatchingPursuit"]),
    }


def _ratio(ours: float, theirs: float) -> float:
    return float(max(ours, FLOOR) / max(theirs, FLOOR)) ** 2


def ablation(data_dir: Path | None, quick: bool) -> list[dict[str, Any]]:
    """What each part of ExchangePursuit brings and costs, on the six small data sets at S = 500."""
    ks = np.array([2, 5, 10, 20] if quick else [k for k in _KS if k > 1])
    names = common.SIX[1:3] if quick else common.SIX
    trials = 1 if quick else 20
    variants = dict(list(ABLATION.items())[:3]) if quick else ABLATION
    loaded = [data for name in names if (data := common.load(name, data_dir)) is not None]
    found = [list(common.each_trial(*data, 500, trials)) for data in loaded]
    problems = [problem for each in found for problem in each]
    if not problems:
        return []
    pursuit = [np.asarray(jc.sweep(p, ks, jc.MatchingPursuit()).relative_error) for p in problems]
    rows = []
    for name, solver in variants.items():
        ratios, warm, moves = [], 0.0, 0
        for problem, theirs in zip(problems, pursuit, strict=True):
            path = jc.sweep(problem, ks, solver)
            ours = np.asarray(path.relative_error)
            ratios += [_ratio(a, b) for a, b in zip(ours, theirs, strict=True) if b > FLOOR]
            moves += int(jnp.max(path.num_iters))
        for first, *_ in found:
            warm += common.seconds(lambda p=first, s=solver: jc.sweep(p, ks, s), 3)[1]
        rows.append(
            {
                "variant": name,
                "objective ratio": float(np.exp(np.mean(np.log(ratios)))),
                "median ratio": statistics.median(ratios),
                "worst ratio": max(ratios),
                "above 1.02": sum(ratio > 1.02 for ratio in ratios),
                "moves": moves // len(problems),
                "seconds": warm / len(found),
            }
        )
        print(f"  {name}: {warm:.3g} s", flush=True)
    columns = ["variant", "objective ratio", "median ratio", "worst ratio", "above 1.02"]
    print("\n" + common.table(rows, [*columns, "moves", "seconds"]))
    print(
        "\nobjective ratio: objective over MatchingPursuit's, geometric mean over cells; moves and "
        "seconds: of a sweep over all k"
    )
    return rows
