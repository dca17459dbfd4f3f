"""The six small regressions: divergences, seconds, batch gradients, distances of the modes."""

import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import jaxcoreset as jc
from benchmarks import common
from benchmarks.common import markdown
from benchmarks.paper import charts, methods, peers
from benchmarks.paper.glm import Regression
from benchmarks.paper.runner import Settings, significant

TITLE = (
    "Six logistic and Poisson regressions (Zhang et al. 2021, section 5.3 and appendix G; "
    "Figures 3, 8, 9, 10 and 11)"
)
MEASURES = ("forward", "reverse", "map")
_PRIOR = "Prior"
_BATCH = (methods.BATCH_AIHT.name, methods.OWN_BATCH.name)
_PEERS = tuple(peer.name for peer in peers.PEERS)


def run(settings: Settings) -> dict[str, Any] | None:
    """See `runner`."""
    names = settings.of(common.SIX[:1], common.SIX, common.SIX)
    num_draws = settings.of(50, 500, 500)
    num_trials = settings.num_trials(2, 2, 20)
    slow_trials = settings.num_slow(num_trials)
    vi_trials = settings.of(1, 0, slow_trials)
    ks = settings.of(
        [1, 5, 10],
        [5, 20],
        [1, 2, 3, 5, 7, 10, 15, 20, 25, 30, 35, 40, 45, 50, 60, 70, 80, 90, 100],
    )
    timed_ks = settings.of([10], [20], [1, 10, 20, 50, 100])
    others = peers.available()
    cells: list[dict[str, Any]] = []
    start = time.perf_counter()
    for name in names:
        loaded = common.load(name, settings.data_dir)
        problems = common.problems(name, settings.data_dir, num_draws, num_trials)
        if loaded is None or problems is None:
            continue
        model, z, y = loaded
        regression = Regression(z, y, model is common.poisson)
        everything = (*methods.PAPER, methods.BATCH_AIHT, methods.OWN_BATCH, *methods.OURS)
        for method in everything:
            part = methods.take(problems, slice(slow_trials if method.is_slow else None))
            cells.append(_of_method(name, method, part, regression, ks, timed_ks))
        for peer in others:
            rows = np.c_[z[:, :-1], y]
            try:
                cells.append(_of_peer(name, peer, problems, regression, rows, ks))
            except Exception as error:  # somebody else's program must not end a long run
                print(f"  {name}: {peer.name} failed: {error}", flush=True)
        if vi_trials:
            cells.append(_of_sparse_vi(name, (model, z, y), regression, ks, vi_trials))
        prior = regression.prior()
        cells.append(
            {"data": name, "method": _PRIOR, "ks": [0]}
            | {measure: significant([[prior[measure]]]) for measure in MEASURES}
        )
        print(f"  {name}, after {time.perf_counter() - start:.0f} s", flush=True)
    if not cells:
        return None
    return {
        "settings": {
            "draws": num_draws,
            "trials": num_trials,
            "trials of SubspacePursuit, Recombination and stochastic methods": slow_trials,
            "trials of SparseVI": vi_trials,
            "k": ks,
            "weighting": "the Laplace approximation",
        },
        "cells": cells,
    }


def _of_method(
    name: str,
    method: methods.Method,
    problems: jc.CoresetProblem,
    regression: Regression,
    ks: Sequence[int],
    timed_ks: Sequence[int],
) -> dict[str, Any]:
    solutions, spent = methods.solve_all(problems, ks, method)
    found = regression.of_solutions(solutions)
    return {
        "data": name,
        "method": method.name,
        "ks": list(ks),
        **{measure: significant(found[measure]) for measure in MEASURES},
        "timed ks": list(timed_ks),
        "seconds": significant(
            methods.seconds_per_solve(methods.take(problems, 0), timed_ks, method), 3
        ),
        # All k of a trial in one call, as the divergences were made.
        "seconds of a sweep": significant(spent, 3),
    }


def _of_peer(
    name: str,
    peer: peers.Peer,
    problems: jc.CoresetProblem,
    regression: Regression,
    rows: np.ndarray,
    ks: Sequence[int],
) -> dict[str, Any]:
    ks = [k for k in ks if k >= peer.min_k]
    trials = min(peer.max_trials, problems.target.shape[0])
    runs = [peer.run(methods.take(problems, trial), rows, ks) for trial in range(trials)]
    found = regression.of_dense(np.stack([weights for weights, _ in runs]))
    return {
        "data": name,
        "method": peer.name,
        "ks": list(ks),
        **{measure: significant(found[measure]) for measure in MEASURES},
        "timed ks": list(ks),
        "seconds": significant(np.median([seconds for _, seconds in runs], axis=0), 3),
    }


def _of_sparse_vi(
    name: str, arguments: tuple, regression: Regression, ks: Sequence[int], num_trials: int
) -> dict[str, Any]:
    model, z, y = arguments
    paths, seconds = [], []
    for trial in range(num_trials):
        rival = jc.SparseVI(model, max(ks), progress_bar=False)
        try:
            path = rival.run_path(jax.random.key(trial), z, y)
        except ValueError as error:
            print(f"  {name}: SparseVI has no result: {error}")
            continue
        weights = np.zeros((len(ks), len(z)))
        for at, k in enumerate(ks):
            if k in path:
                weights[at, path[k].indices] = path[k].weights
        paths.append(weights)
        seconds.append(path[max(path)].report.seconds["choices and weights"])
    cell: dict[str, Any] = {"data": name, "method": methods.SPARSE_VI, "ks": list(ks)}
    if not paths:
        nothing = [[None] * len(ks)]
        return cell | dict.fromkeys(MEASURES, nothing)
    found = regression.of_dense(np.stack(paths))
    spent = float(np.median(seconds))
    return cell | {
        **{measure: significant(found[measure]) for measure in MEASURES},
        # An iteration costs the same for every k.
        "timed ks": list(ks),
        "seconds": significant([spent * k / max(ks) for k in ks], 3),
        "seconds of a sweep": significant(spent, 3),
    }


def _with_both(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cells with the symmetrised divergence too."""
    result = []
    for cell in cells:
        both = np.array(cell["forward"], float) + np.array(cell["reverse"], float)
        result.append(cell | {"symmetrised": both})
    return result


def table(result: dict[str, Any]) -> str:
    """See `runner`."""
    ks = [k for k in (10, 20, 50, 100) if k in result["settings"]["k"]] or result["settings"]["k"]
    parts = []
    for name in dict.fromkeys(cell["data"] for cell in result["cells"]):
        cells = _with_both([cell for cell in result["cells"] if cell["data"] == name])
        rows = charts.medians(cells, "symmetrised", ks)
        distances = charts.medians(cells, "map", ks)
        last = f"k = {ks[-1]}"
        for row, distance, cell in zip(rows, distances, cells, strict=True):
            row[f"modes apart, {last}"] = distance.get(last)
            if "seconds" in cell:
                row[f"ms, {last}"] = 1e3 * cell["seconds"][-1]
            if cell["method"] == _PRIOR:
                row[last] = float(cell["symmetrised"][0, 0])
        columns = ["method", *(f"k = {k}" for k in ks), f"modes apart, {last}", f"ms, {last}"]
        parts.append(f"**{name}**\n\n{markdown(rows, columns)}")
    return (
        "Median symmetrised KL in nats, the distance of the modes, and the milliseconds of one "
        "solve from nothing:\n\n" + "\n\n".join(parts)
    )


def claims(result: dict[str, Any]) -> str:
    """In how many cells (data, k) one method has the lower median, and the ratio's median."""
    order = [
        ("A-IHT II", "GIGA"),
        ("A-IHT II", "SparseVI"),
        ("A-IHT", "GIGA"),
        ("A-IHT II", "A-IHT"),
        ("A-IHT batch grad.", "A-IHT"),
        ("StochasticAIHT", "A-IHT II"),
        ("default (ExchangePursuit)", "A-IHT II"),
        ("default (ExchangePursuit)", "SparseVI"),
        ("default (ExchangePursuit)", "MatchingPursuit"),
        ("default (ExchangePursuit)", "SubspacePursuit"),
        ("default (ExchangePursuit)", "Recombination"),
        ("bayesiancoresets GIGA", "GIGA"),
        ("authors' A-IHT II", "A-IHT II"),
        ("default (ExchangePursuit)", "coreax herding"),
    ]
    middle: dict[tuple[str, str, str], dict[int, float]] = {}
    for cell in result["cells"]:
        for measure in MEASURES:
            values = charts.percentiles(cell[measure], (50,))[0]
            key = cell["method"], cell["data"], measure
            middle[key] = dict(zip(cell["ks"], values, strict=True))
    names = list(dict.fromkeys(cell["data"] for cell in result["cells"]))
    rows = []
    for better, worse in order:
        row: dict[str, Any] = {"lower": better, "than": worse}
        for measure in MEASURES:
            pairs = []
            for name in names:
                one = middle.get((better, name, measure), {})
                two = middle.get((worse, name, measure), {})
                pairs += [(one[k], two[k]) for k in one if k in two]
            pairs = [(a, b) for a, b in pairs if np.isfinite(a) and np.isfinite(b)]
            if pairs:
                row[measure] = f"{sum(a < b for a, b in pairs)} of {len(pairs)}"
                row[f"{measure}, ratio"] = float(np.median([b / a for a, b in pairs]))
        if len(row) > 2:
            rows.append(row)
    columns = ["lower", "than"]
    for measure in MEASURES:
        columns += [measure, f"{measure}, ratio"]
    return markdown(rows, columns)


def figures(result: dict[str, Any]) -> dict[str, Any]:
    """See `runner`."""
    names = list(dict.fromkeys(cell["data"] for cell in result["cells"]))
    figure, axes = charts.panels(len(names), 3, 4.0, 2.5)
    for row, name in enumerate(names):
        cells = [c for c in result["cells"] if c["data"] == name]
        for i, cell in enumerate(cells):
            if cell["method"] in (_PRIOR, *_BATCH):
                continue
            for ax, measure in zip(axes[row], ("forward", "reverse"), strict=False):
                charts.curve(ax, cell["ks"], cell[measure], cell["method"], position=i, floor=1e-10)
            if "seconds" in cell:
                style = charts.look(cell["method"], i)
                axes[row, 2].plot(cell["timed ks"], cell["seconds"], **style)
        axes[row, 0].set(ylabel=f"{name}\nforward KL (nats)")
        axes[row, 1].set(ylabel="reverse KL (nats)")
        axes[row, 2].set(ylabel="seconds")
        for ax in axes[row]:
            ax.set(yscale="log", xlabel="coreset size k" if row == len(names) - 1 else None)
    wide = -(-len(names) // 2) if len(names) > 1 else 1
    return {
        "kl": charts.finish(figure, axes),
        "batch_gradients": _grid(result, names, wide, "symmetrised", "symmetrised KL (nats)", True),
        "map": _grid(result, names, wide, "map", "ℓ2 distance of the modes", False),
    }


def _grid(
    result: dict[str, Any],
    names: Sequence[str],
    columns: int,
    measure: str,
    label: str,
    batch: bool,
) -> Any:
    figure, axes = charts.panels(-(-len(names) // columns), columns, 4.0, 3.0)
    shown = {"A-IHT", "A-IHT II", "GIGA", "SparseVI", "Uniform", _PRIOR, methods.DEFAULT.name}
    shown |= set(_BATCH) if batch else set()
    for ax, name in zip(np.ravel(axes), names, strict=False):
        for i, cell in enumerate(_with_both([c for c in result["cells"] if c["data"] == name])):
            if cell["method"] == _PRIOR:
                value = float(np.array(cell[measure], float)[0, 0])
                ax.axhline(value, **(charts.look(_PRIOR) | {"lw": 1, "color": "0.5"}))
            elif cell["method"] in shown:
                charts.curve(ax, cell["ks"], cell[measure], cell["method"], position=i, floor=1e-10)
        ax.set(yscale="log", xlabel="coreset size k", ylabel=label)
        ax.set_title(name, fontsize=10)
    return charts.finish(figure, axes)
