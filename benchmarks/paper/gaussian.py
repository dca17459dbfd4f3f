"""A Gaussian mean in 200 dimensions, where everything is known in closed form."""

import time
from typing import Any

import jax
import numpy as np

import jaxcoreset as jc
from benchmarks.common import markdown
from benchmarks.paper import charts, methods
from benchmarks.paper.exact_vi import GaussianMean, sparse_vi
from benchmarks.paper.runner import Settings, significant

TITLE = "Synthetic Gaussian posterior (Zhang et al. 2021, section 5.1; Figures 1a, 5 and 6)"


def generate(seed: int, n: int, size: int) -> GaussianMean:
    """x_n ~ N(θ, I) with θ ~ N(0, I)."""
    random = np.random.default_rng(seed)
    theta = random.normal(size=size)
    return GaussianMean(theta + random.normal(size=(n, size)))


def run(settings: Settings) -> dict[str, Any]:
    """See `runner`."""
    size, n = settings.of((6, 60), (50, 200), (200, 600))
    num_trials = settings.num_trials(2, 2, 10)
    vi_trials = min(num_trials, settings.of(1, 2, 10))
    slow_trials = settings.num_slow(num_trials)
    ks = settings.of(
        [1, 4, 7, 10],
        [1, 2, 5, 10, 20, 30, 40, 50, 60, 75],
        [1, 2, 5, *range(10, 201, 10), 202, 204, 208, 216, *range(220, 301, 20)],
    )
    convergence_k = settings.of(5, 40, 200)
    shown = settings.of([0, 4, 10], [0, 10, 30, 60], [0, 20, 50, 100])
    start = time.perf_counter()
    data = [generate(seed, n, size) for seed in range(num_trials)]
    cells: list[dict[str, Any]] = []
    convergence: dict[str, Any] = {"k": convergence_k}

    def note(name: str, ks: list[int], weights: np.ndarray) -> None:
        found = [[data[t].divergence(w) for w in row] for t, row in enumerate(weights)]
        cells.append(
            {
                "method": name,
                "ks": ks,
                "reverse": significant([[one.reverse for one in row] for row in found]),
                "forward": significant([[one.forward for one in row] for row in found]),
            }
        )
        print(f"  {name}, after {time.perf_counter() - start:.0f} s", flush=True)

    # In float64, as otherwise the rounding of the atoms is what is seen beyond k = D + 1.
    with jax.enable_x64(True):
        problems = jax.vmap(jc.CoresetProblem)(np.stack([one.atoms() for one in data]))
        first = methods.take(problems, 0)
        for method in (*methods.PAPER, *methods.OURS):
            # Those that take their lanes one by one are run for a part of them.
            some = ks[::4] if method.is_slow else ks
            part = methods.take(problems, slice(slow_trials if method.is_slow else None))
            note(method.name, some, methods.dense(methods.solve_all(part, some, method)[0], n))
            last = jc.solve(first, convergence_k, method.solver, jax.random.key(0))
            convergence[method.name] = significant(last.objective)
        for method, solver in (
            (methods.AIHT, jc.AIHT(record_history=True)),
            (methods.AIHT2, jc.AIHT2(record_history=True)),
        ):
            path = jc.solve(first, convergence_k, solver)
            convergence[method.name] = significant(path.history)
        pictures = {
            method.name: [_picture(first, k, method.solver) for k in shown]
            for method in (methods.AIHT2, methods.DEFAULT)
        }
    largest = max(*ks, convergence_k)
    paths = np.stack([sparse_vi(one, largest) for one in data[:vi_trials]])
    note(methods.SPARSE_VI, ks, paths[:, np.array(ks) - 1])
    residual = data[0].atoms().sum(axis=0) - paths[0, convergence_k - 1] @ data[0].atoms()
    convergence[methods.SPARSE_VI] = significant(residual @ residual)
    return {
        "settings": {
            "dimensions": size,
            "rows": n,
            "trials": num_trials,
            "trials of SparseVI": vi_trials,
            "trials of SubspacePursuit and Recombination": slow_trials,
            "k": ks,
            "atoms": "exact, without draws",
            "float": "float64",
        },
        "cells": cells,
        "convergence": convergence,
        "pictures": {"sizes": shown, "x": significant(data[0].x[:, :2]), **pictures},
    }


def _picture(problem: jc.CoresetProblem, k: int, solver: Any) -> dict[str, Any]:
    if k == 0:
        return {"rows": [], "weights": []}
    solution = jc.solve(problem, k, solver)
    used = np.asarray(solution.weights) > 0
    return {
        "rows": np.asarray(solution.indices)[used].tolist(),
        "weights": significant(np.asarray(solution.weights)[used]),
    }


def table(result: dict[str, Any]) -> str:
    """See `runner`."""
    ks = result["settings"]["k"]
    shown = [k for k in (20, 60, 100, 140, 180, 204, 300) if k in ks] or ks
    columns = ["method", *(f"k = {k}" for k in shown)]
    reverse = markdown(charts.medians(result["cells"], "reverse", shown), columns)
    forward = markdown(charts.medians(result["cells"], "forward", shown), columns)
    return (
        f"Median reverse KL, KL(π_w‖π) in nats:\n\n{reverse}\n\n"
        f"Median forward KL, KL(π‖π_w) in nats:\n\n{forward}"
    )


def figures(result: dict[str, Any]) -> dict[str, Any]:
    """See `runner`."""
    figure, axes = charts.panels(1, 2, 5.2, 4.2)
    for i, cell in enumerate(result["cells"]):
        charts.curve(
            axes[0, 0], cell["ks"], cell["reverse"], cell["method"], (25, 75), i, floor=1e-14
        )
    axes[0, 0].set(yscale="log", xlabel="coreset size k", ylabel="reverse KL (nats)")
    axes[0, 0].set_title("Figure 1a: quality", fontsize=10)
    convergence = dict(result["convergence"])
    k = convergence.pop("k")
    for i, (name, values) in enumerate(convergence.items()):
        style = charts.look(name, i)
        values = np.maximum(np.atleast_1d(values), 2e-19)
        if values.size > 1:
            axes[0, 1].plot(np.arange(1, values.size + 1), values, **style)
        else:
            axes[0, 1].axhline(values[0], **style)
    axes[0, 1].set_ylim(bottom=1e-19)
    axes[0, 1].set(yscale="log", xlabel="iteration", ylabel="objective ‖y − Φw‖²")
    axes[0, 1].set_title(f"Figure 5: first trial, k = {k}", fontsize=10)
    return {"": charts.finish(figure, axes), "coresets": _figure_6(result["pictures"])}


def _figure_6(pictures: dict[str, Any]) -> Any:
    """The predictive distribution on the first two coordinates, and the rows chosen."""
    names = [name for name in pictures if name not in ("sizes", "x")]
    sizes = pictures["sizes"]
    figure, axes = charts.panels(len(names), len(sizes), 2.7, 2.7)
    x = np.array(pictures["x"])
    exact = GaussianMean(x).posterior(np.arange(len(x)), np.ones(len(x)))
    angle = np.linspace(0, 2 * np.pi, 200)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    for row, name in enumerate(names):
        for column, k in enumerate(sizes):
            ax, one = axes[row, column], pictures[name][column]
            weights, rows = np.array(one["weights"], float), np.array(one["rows"], int)
            found = GaussianMean(x).posterior(rows, weights)
            ax.scatter(*x.T, s=3, color="0.85", lw=0)
            scale = 60 / max(weights.max(initial=0), 1)
            ax.scatter(*x[rows].T, s=scale * weights, color="black", lw=0, alpha=0.7)
            for (mean, variance), colour, label in (
                (exact, "#0072B2", "exact"),
                (found, "#D55E00", "coreset"),
            ):
                ax.plot(
                    *(mean + 2 * np.sqrt(1 + variance) * circle).T,
                    color=colour,
                    lw=1.6,
                    label=label,
                )
            ax.set(aspect="equal", xticks=[], yticks=[])
            ax.set_title(f"{name}, {k} rows", fontsize=8)
    return charts.finish(figure, axes)
