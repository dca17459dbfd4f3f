"""Coresets of whole data sets: the Fisher distance against size and time, with three samplers."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jaxcoreset as jc
from benchmarks import common
from benchmarks.common import markdown
from benchmarks.paper import charts, methods
from benchmarks.paper.chains import KINDS, chain
from benchmarks.paper.glm import Regression
from benchmarks.paper.large_scale import synthetic
from benchmarks.paper.runner import Settings, significant
from jaxcoreset.diagnostics.gaussian import fisher_distance
from jaxcoreset.plotting.style import plain_log_axis

TITLE = "Fisher distance and sampling time (Campbell and Broderick 2018; Figure 4)"
_SETS = ("synthetic", "phishing", "ds1", "synth_poiss", "biketrips", "airportdelays")
_METHODS = (methods.UNIFORM, methods.FRANK_WOLFE, methods.GIGA, methods.PURSUIT, methods.DEFAULT)


def run(settings: Settings) -> dict[str, Any]:
    """See `runner`."""
    names = settings.of(_SETS[:1], _SETS, _SETS)
    limit = settings.of(300, 1500, None)
    num_trials = settings.num_trials(1, 1, 20)
    chain_trials = settings.num_slow(num_trials)
    ks = settings.of([2, 10], [5, 25, 100], [1, 3, 10, 30, 100, 300, 1000])
    num_warmup, num_samples = settings.of((20, 30), (100, 200), (1000, 5000))
    num_features = settings.of(50, 200, 500)
    cells, full = [], []
    start = time.perf_counter()
    for name in names:
        loaded = synthetic(10_000) if name == "synthetic" else None
        loaded = loaded or common.load(name, settings.data_dir)
        if loaded is None:
            continue
        model, z, y = loaded
        if limit is not None and len(z) > limit:
            rows = np.random.default_rng(0).choice(len(z), limit, replace=False)
            z, y = z[rows], y[rows]
        of_set = _Set(name, model, z, y, num_warmup, num_samples, num_features)
        for trial in range(num_trials):
            cells += of_set.distances(trial, ks, with_chains=trial < chain_trials)
            print(f"  {name}, trial {trial}, after {time.perf_counter() - start:.0f} s", flush=True)
        full.append({"data": name, "rows": len(z), "seconds": significant(of_set.full_seconds, 3)})
    return {
        "settings": {
            "trials": num_trials,
            "trials with chains": chain_trials,
            "k": ks,
            "features": num_features,
            "warm-up and draws": f"{num_warmup} and {num_samples}",
            "rows at most": limit or "all",
        },
        "samplers": list(KINDS),
        "full": full,
        "cells": _merged(cells),
    }


class _Set:
    """A data set: its full posterior's draws and chains' seconds, and coresets of it."""

    def __init__(
        self,
        name: str,
        model: Callable,
        z: np.ndarray,
        y: np.ndarray,
        num_warmup: int,
        num_samples: int,
        num_features: int,
    ):
        self.name, self.lengths = name, (num_warmup, num_samples)
        self.num_features = num_features
        self.counts = model is common.poisson
        self.regression = Regression(z, y, self.counts)
        self.likelihood = jc.model_likelihood(model, (z, y))
        everything = np.arange(len(z)), np.ones(len(z))
        runs = [self.chain(kind, *everything) for kind in range(len(KINDS))]
        self.full_seconds = [seconds for _, seconds in runs]
        draws = runs[0][0]
        self.draws = {"theta": draws[:: max(1, len(draws) // 200)]}

    def chain(self, kind: int, rows: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, float]:
        """A chain on weighted rows; some may have the weight 0, so that few shapes are compiled."""
        at = self.regression
        data = at.z[rows], at.y[rows], weights
        # Where the chain on a coreset would start in practice, as on the full data.
        mode = at.full.mode
        return chain(KINDS[kind], data, self.counts, mode, *self.lengths, jax.random.key(kind))

    def distances(self, trial: int, ks: list[int], with_chains: bool) -> list[dict[str, Any]]:
        """A cell for each method: the distance for each k, and seconds where asked for."""
        draws = self.regression.draws(trial, self.num_features).astype(np.float32)
        problem = jc.embed(
            self.likelihood.log_likelihood,
            {"theta": draws},
            self.likelihood.data,
            norm="fisher",
            num_features=self.num_features,
            key=jax.random.key(trial),
        )
        ks = [k for k in ks if k < problem.num_data]
        batch = jax.tree.map(lambda leaf: leaf[None], problem)
        cells = []
        for method in _METHODS:
            solutions, seconds = methods.solve_all(batch, ks, method, trial)
            rows, weights = np.asarray(solutions.indices)[0], np.asarray(solutions.weights)[0]
            distance = [
                fisher_distance(
                    self.likelihood.log_likelihood,
                    self.draws,
                    self.likelihood.data,
                    one[weight > 0],
                    weight[weight > 0],
                )
                for one, weight in zip(rows, weights, strict=True)
            ]
            cell = {"data": self.name, "method": method.name, "ks": ks, "distance": distance}
            cell["path"] = seconds
            if with_chains:
                cell["chains"] = [
                    [self.chain(kind, one[:k], weight[:k])[1] for kind in range(len(KINDS))]
                    for k, one, weight in zip(ks, rows, weights, strict=True)
                ]
            cells.append(cell)
        return cells


def _merged(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One cell for a data set and method, with its trials."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for cell in cells:
        groups.setdefault((cell["data"], cell["method"]), []).append(cell)
    return [
        {
            "data": name,
            "method": method,
            "ks": group[0]["ks"],
            "distance": significant([cell["distance"] for cell in group]),
            "seconds of the path": significant([cell["path"] for cell in group], 3),
            # By k and sampler.
            "seconds of chains": significant(
                np.median([cell["chains"] for cell in group if "chains" in cell], axis=0), 3
            ),
        }
        for (name, method), group in groups.items()
    ]


def _normalised(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Distances over the median distance of uniform sampling at the same k, as in the paper."""
    uniform = next(cell for cell in cells if cell["method"] == methods.UNIFORM.name)
    scale = np.median(np.array(uniform["distance"], float), axis=0)
    return [cell | {"relative": np.array(cell["distance"], float) / scale} for cell in cells]


def table(result: dict[str, Any]) -> str:
    """See `runner`."""
    rows = []
    for one in result["full"]:
        cells = _normalised([c for c in result["cells"] if c["data"] == one["data"]])
        for cell in cells:
            row = {"data": one["data"], "method": cell["method"]}
            middle = np.median(cell["relative"], axis=0)
            row |= {f"k = {k}": float(v) for k, v in zip(cell["ks"], middle, strict=True)}
            path = float(np.median(cell["seconds of the path"]))
            for i, sampler in enumerate(result["samplers"]):
                chains = cell["seconds of chains"][-1][i]
                row[f"{sampler}, time"] = (path + chains) / one["seconds"][i]
            rows.append(row)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    times = [column for column in columns if column.endswith("time")]
    columns = [column for column in columns if column not in times] + times
    return (
        "Median Fisher distance over that of uniform sampling at the same k; and the time of the "
        "whole path and a chain on the largest coreset over that of the chain on all rows:\n\n"
        + markdown(rows, columns)
    )


def figures(result: dict[str, Any]) -> dict[str, Any]:
    """See `runner`."""
    samplers = result["samplers"]
    figure, axes = charts.panels(len(result["full"]), 1 + len(samplers), 3.4, 2.3)
    for row, one in zip(axes, result["full"], strict=True):
        cells = _normalised([c for c in result["cells"] if c["data"] == one["data"]])
        for i, cell in enumerate(cells):
            charts.curve(row[0], cell["ks"], cell["relative"], cell["method"], position=i)
            middle = np.median(cell["relative"], axis=0)
            path = float(np.median(cell["seconds of the path"]))
            for at in range(len(samplers)):
                chains = np.array(cell["seconds of chains"], float)[:, at]
                # One run of a method holds all k, of which the last takes it all.
                spent = path * np.array(cell["ks"]) / cell["ks"][-1] + chains
                style = charts.look(cell["method"], i) | {"marker": "o", "ms": 3}
                row[1 + at].plot(spent / one["seconds"][at], middle, **style)
        row[0].set(ylabel=f"{one['data']}\nFisher distance / uniform", xlabel="coreset size k")
        for ax in row:
            ax.set(xscale="log", yscale="log")
        for ax, sampler in zip(row[1:], samplers, strict=True):
            ax.set(xlabel=f"time / that on all rows, {sampler}")
            plain_log_axis(ax.xaxis, *ax.get_xlim())
    for ax in axes.ravel():
        ax.xaxis.label.set_size(8)
        ax.yaxis.label.set_size(8)
        ax.tick_params(labelsize=7)
    return {"": charts.finish(figure, axes)}
