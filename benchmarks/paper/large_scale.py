"""Logistic regression on thousands of rows: divergence and seconds against k."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jaxcoreset as jc
from benchmarks import common
from benchmarks.common import markdown
from benchmarks.paper import charts, methods
from benchmarks.paper.glm import Regression
from benchmarks.paper.runner import Settings, significant
from jaxcoreset.weighting.laplace import laplace_approximation

TITLE = "Large data sets (Zhang et al. 2021, section 5.3; Figure 4)"
_SYNTHETIC, _PHISHING = "synthetic", "phishing"


def synthetic(n: int) -> tuple[Callable, np.ndarray, np.ndarray]:
    """The paper's synthetic logistic regression: x ~ N(0, I) in the plane, θ = (3, 3, 0)."""
    random = np.random.default_rng(0)
    z = np.hstack([random.normal(size=(n, 2)), np.ones((n, 1))]).astype(np.float32)
    chance = 1 / (1 + np.exp(-z @ np.array([3.0, 3.0, 0.0])))
    return common.logistic, z, (random.random(n) < chance).astype(np.int32)


def run(settings: Settings) -> dict[str, Any]:
    """See `runner`."""
    ks = settings.of([5, 20], [20, 50], [10, 25, 50, 100, 150, 200, 300, 400, 500])
    num_trials = settings.num_trials(1, 1, 10)
    draws = {_SYNTHETIC: settings.of(100, 200, 1000), _PHISHING: settings.of(100, 300, 3000)}
    max_iters = settings.of(20, 100, 500)
    chosen = [
        dataclasses.replace(one, lanes="k")
        for one in (
            methods.UNIFORM,
            methods.GIGA,
            dataclasses.replace(methods.AIHT, solver=jc.AIHT(max_iters=max_iters)),
            dataclasses.replace(methods.AIHT2, solver=jc.AIHT2(max_iters=max_iters)),
            methods.PURSUIT,
            methods.DEFAULT,
        )
    ]
    sets = {_SYNTHETIC: synthetic(settings.of(500, 3000, 9000))}
    if settings.scale != "tiny":
        phishing = common.load(_PHISHING, settings.data_dir)
        if phishing is not None:
            sets[_PHISHING] = phishing
    cells, sizes = [], {}
    for name, (model, z, y) in sets.items():
        sizes[name] = f"{z.shape[0]} × {z.shape[1] - 1}"
        cells += _of_set(name, model, z, y, chosen, ks, draws[name], num_trials)
    return {
        "settings": {
            **sizes,
            "draws": ", ".join(f"{draws[name]} ({name})" for name in sets),
            "trials": num_trials,
            "k": ks,
            "iterations of A-IHT": max_iters,
        },
        "cells": cells,
    }


def _of_set(
    name: str,
    model: Callable,
    z: np.ndarray,
    y: np.ndarray,
    chosen: list[methods.Method],
    ks: list[int],
    num_draws: int,
    num_trials: int,
) -> list[dict[str, Any]]:
    regression = Regression(z, y, counts=False)
    likelihood = jc.model_likelihood(model, (z, y))
    weighting = laplace_approximation(likelihood)
    found: dict[str, list] = {method.name: [] for method in chosen}
    seconds: dict[str, list[float]] = {}
    start = time.perf_counter()
    # One trial at a time: its atoms take much memory.
    for trial in range(num_trials):
        draws = weighting.draws(jax.random.key(trial), num_draws)
        problem = jc.embed(likelihood.log_likelihood, draws, likelihood.data)
        batch = jax.tree.map(lambda leaf: leaf[None], problem)
        for method in chosen:
            solutions, _ = methods.solve_all(batch, ks, method, seed=trial)
            found[method.name].append(regression.of_solutions(methods.take(solutions, 0)))
            if trial == 0:
                seconds[method.name] = methods.seconds_per_solve(problem, ks, method, repeats=1)
            spent = time.perf_counter() - start
            print(f"  {name}, trial {trial}, {method.name}, after {spent:.0f} s", flush=True)
    return [
        {
            "data": name,
            "method": method.name,
            "ks": ks,
            **{
                measure: significant([one[measure] for one in found[method.name]])
                for measure in ("forward", "reverse")
            },
            "seconds": significant(seconds[method.name], 3),
        }
        for method in chosen
    ]


def table(result: dict[str, Any]) -> str:
    """See `runner`."""
    parts = []
    for name in dict.fromkeys(cell["data"] for cell in result["cells"]):
        cells = _with_sum([cell for cell in result["cells"] if cell["data"] == name])
        ks = [k for k in (25, 50, 100, 200, 300, 500) if k in cells[0]["ks"]] or cells[0]["ks"]
        rows = charts.medians(cells, "symmetrised", ks)
        for row, cell in zip(rows, cells, strict=True):
            for k in (ks[0], ks[-1]):
                row[f"s, k = {k}"] = cell["seconds"][cell["ks"].index(k)]
        parts.append(f"**{name}**\n\n{markdown(rows, list(rows[0]))}")
    return (
        "Median symmetrised KL in nats, and the seconds of one solve from nothing:\n\n"
        + "\n\n".join(parts)
    )


def _with_sum(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        cell | {"symmetrised": np.array(cell["forward"], float) + np.array(cell["reverse"], float)}
        for cell in cells
    ]


def figures(result: dict[str, Any]) -> dict[str, Any]:
    """See `runner`."""
    names = list(dict.fromkeys(cell["data"] for cell in result["cells"]))
    figure, axes = charts.panels(len(names), 2, 5.2, 3.2)
    for row, name in enumerate(names):
        cells = _with_sum([cell for cell in result["cells"] if cell["data"] == name])
        for i, cell in enumerate(cells):
            charts.curve(
                axes[row, 0],
                cell["ks"],
                cell["symmetrised"],
                cell["method"],
                position=i,
                floor=1e-10,
            )
            axes[row, 1].plot(cell["ks"], cell["seconds"], **charts.look(cell["method"], i))
        size = result["settings"][name]
        axes[row, 0].set(yscale="log", xlabel="coreset size k", ylabel="symmetrised KL (nats)")
        axes[row, 1].set(yscale="log", xlabel="coreset size k", ylabel="seconds")
        axes[row, 0].set_title(f"{name}, {size}", fontsize=10)
    return {"": charts.finish(figure, axes)}
