"""Coresets as sums of vectors: a Gaussian with ten data, and a million vectors in 50 dimensions."""

import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxcoreset as jc
from benchmarks.common import markdown
from benchmarks.paper import charts, methods
from benchmarks.paper.runner import Settings, significant

TITLE = "Gaussian inference and sums of vectors (Campbell and Broderick 2018; Figures 1 and 3)"
_METHODS = (methods.UNIFORM, methods.FRANK_WOLFE, methods.GIGA, methods.PURSUIT, methods.DEFAULT)
_NUM_DATA = 10


def run(settings: Settings) -> dict[str, Any]:
    """See `runner`."""
    n, dimensions = settings.of((500, 5), (20_000, 50), (1_000_000, 50))
    num_trials = settings.num_trials(1, 1, 20)
    ks = settings.of(
        [1, 4, 8],
        [1, 5, 10, 20, 50, 60, 100],
        [1, 2, 3, 5, 10, 20, 30, 40, 50, 60, 80, 100, 120, 150, 200, 300, 400, 600, 800, 1000],
    )
    replications = settings.of(20, 200, 1000)
    # Beyond as many rows as dimensions the pursuits are exact.
    most = {method.name: ks for method in _METHODS}
    for method in (methods.PURSUIT, methods.DEFAULT):
        most[method.name] = [k for k in ks if k <= 2 * dimensions]
    found: dict[str, dict[str, list]] = {
        method.name: {"error": [], "size": [], "seconds": []} for method in _METHODS
    }
    start = time.perf_counter()
    # The flat part of the figure is the precision of the numbers, which was double.
    with jax.enable_x64(True):
        variances = variance_errors(replications)
        for trial in range(num_trials):
            vectors = np.random.default_rng(trial).normal(size=(n, dimensions))
            problem = jc.CoresetProblem(vectors)
            batch = jax.tree.map(lambda leaf: leaf[None], problem)
            for method in _METHODS:
                solutions, seconds = methods.solve_all(batch, most[method.name], method, trial)
                here = found[method.name]
                one = methods.take(solutions, 0)
                here["error"].append(errors(vectors, one))
                here["size"].append(np.count_nonzero(np.asarray(one.weights), axis=1).tolist())
                here["seconds"].append(seconds)
                spent = time.perf_counter() - start
                print(f"  trial {trial}, {method.name}, after {spent:.0f} s", flush=True)
            del problem, batch
    return {
        "settings": {
            "vectors": n,
            "dimensions": dimensions,
            "trials": num_trials,
            "k": ks,
            "replications of Figure 1": replications,
            "float": "float64",
        },
        "variances": variances,
        "cells": [
            {
                "method": name,
                "ks": most[name],
                "error": significant(one["error"]),
                "size": one["size"],
                "seconds of a path": significant(one["seconds"], 3),
            }
            for name, one in found.items()
        ],
    }


def errors(vectors: np.ndarray, solutions: jc.Solution) -> np.ndarray:
    """‖y − Φw‖ for every k, from the weights alone."""
    target = vectors.sum(axis=0)
    weights, indices = np.asarray(solutions.weights), np.asarray(solutions.indices)
    return np.array(
        [
            np.linalg.norm(target - row @ vectors[at])
            for row, at in zip(weights, indices, strict=True)
        ]
    )


def variance_errors(replications: int, ks: Sequence[int] = (1, 2, 3, 5, 10)) -> dict[str, Any]:
    """Figure 1: the relative error of the posterior's variance, medians over replications.

    μ ~ N(0, 1) and ten y_n ~ N(μ, 1). In the weighted Fisher distance under the posterior N(m, s²)
    log-likelihood n has the coordinates (y_n − m, s), exactly.
    """
    random = np.random.default_rng(0)
    y = random.normal(size=(replications, 1)) + random.normal(size=(replications, _NUM_DATA))
    variance = 1 / (1 + _NUM_DATA)
    mean = variance * y.sum(axis=1, keepdims=True)
    atoms = np.stack([y - mean, np.full_like(y, np.sqrt(variance))], axis=-1)
    problems = jax.vmap(jc.CoresetProblem)(jnp.asarray(atoms))
    result: dict[str, Any] = {"ks": list(ks), "replications": replications}
    for method in (methods.FRANK_WOLFE, methods.GIGA, methods.PURSUIT):
        solutions, _ = methods.solve_all(problems, ks, method)
        total = np.asarray(solutions.weights).sum(axis=-1)
        relative = np.abs(1 / (1 + total) - variance) / variance
        result[method.name] = significant(np.median(relative, axis=0))
    return result


def table(result: dict[str, Any]) -> str:
    """See `runner`."""
    figure_1 = result["variances"]
    rows = [
        {"method": name} | dict(zip((f"k = {k}" for k in figure_1["ks"]), values, strict=True))
        for name, values in figure_1.items()
        if name not in ("ks", "replications")
    ]
    ks = [k for k in (1, 10, 50, 60, 100, 300, 1000) if k in result["settings"]["k"]]
    sums = charts.medians(result["cells"], "error", ks)
    for row, cell in zip(sums, result["cells"], strict=True):
        row["rows in the end"] = float(np.median(np.array(cell["size"])[:, -1]))
        row["seconds of the path"] = float(np.median(cell["seconds of a path"]))
    columns = ["method", *(f"k = {k}" for k in ks), "rows in the end", "seconds of the path"]
    return (
        "Figure 1: median relative error of the posterior's variance:\n\n"
        + markdown(rows, list(rows[0]))
        + "\n\nFigure 3: median ‖y − Φw‖ after k iterations; the path is that up to the largest k "
        "of the method:\n\n" + markdown(sums, columns)
    )


def figures(result: dict[str, Any]) -> dict[str, Any]:
    """See `runner`."""
    figure, axes = charts.panels(1, 2, 5.2, 4.0)
    for i, cell in enumerate(result["cells"]):
        charts.curve(axes[0, 0], cell["ks"], cell["error"], cell["method"], (25, 75), i, 1e-10)
        charts.curve(axes[0, 1], cell["ks"], cell["size"], cell["method"], (25, 75), i)
    axes[0, 0].set(xscale="log", yscale="log", xlabel="iterations", ylabel="error ‖y − Φw‖")
    axes[0, 1].set(xscale="log", yscale="log", xlabel="iterations", ylabel="rows with weight")
    axes[0, 0].set_title("Figure 3a", fontsize=10)
    axes[0, 1].set_title("Figure 3b", fontsize=10)
    return {"": charts.finish(figure, axes)}
