"""Sparse distributions on {0, 1}¹⁵: two objectives, against the best of all supports."""

import itertools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common import markdown
from benchmarks.paper import charts
from benchmarks.paper.runner import Settings, significant
from jaxcoreset import distributions as jd

TITLE = "Sparse distributions on a lattice (Zhang et al. 2019, section 4.1; Figure 2)"
_POSITIONS = 50
_RANDOM = "IHT"
_WARM = "IHT after Greedy"
_GREEDY = "Greedy"
_EXCHANGE = "DistributionExchange (ours)"


def target(seed: int, n: int, positive: bool) -> np.ndarray:
    """A distribution with mass at 50 random points; mixed with a little everywhere if `positive`.

    KL(q‖p) needs p > 0. The paper does not say how it was made so.
    """
    random = np.random.default_rng(seed)
    flat = np.zeros(2**n)
    count = min(_POSITIONS, 2**n // 4)
    flat[random.choice(flat.size, count, replace=False)] = random.random(count)
    flat /= flat.sum()
    if positive:
        everywhere = random.random(flat.size)
        flat = 0.5 * flat + 0.5 * everywhere / everywhere.sum()
    return flat.reshape((2,) * n)


def optimum(objective: jd.DistributionObjective, k: int, constant: float) -> float:
    """The minimum of F over all supports of k coordinates, by trying them all."""
    n = len(objective.lattice)
    supports = np.array(list(itertools.combinations(range(n), k)))
    strides = 2 ** np.arange(n - 1, -1, -1)
    bits = np.array(list(itertools.product((0, 1), repeat=k)))
    points = np.einsum("sk,pk->sp", strides[supports], bits)

    @jax.jit
    def scores(points: jax.Array) -> jax.Array:
        allowed = jnp.ones(points.shape[1], bool)
        return jax.lax.map(lambda at: objective.best_on(at, allowed)[1], points, batch_size=256)

    return float(jnp.min(scores(jnp.asarray(points)))) + constant


def run(settings: Settings) -> dict[str, Any]:
    """See `runner`."""
    n, k = settings.of((6, 3), (10, 4), (15, 7))
    num_trials = settings.num_trials(2, 4, 20)
    iterations = {
        "squared distance": settings.of(20, 200, 400),
        "KL divergence": settings.of(20, 300, 2000),
    }
    cells = []
    start = time.perf_counter()
    for name, count in iterations.items():
        is_kl = name.startswith("KL")
        make = jd.KLDivergence if is_kl else jd.SquaredDistance
        tables = [target(seed, n, is_kl) for seed in range(num_trials)]
        found: dict[str, list] = {}
        # As in the paper: no refit, and F of every iterate.
        iht = jd.DistributionIHT(max_iters=count, refit=False, record_history=True)
        warm = jd.DistributionIHT(start="greedy", max_iters=count, refit=False, record_history=True)
        best = []
        for seed, table in enumerate(tables):
            objective = make(jnp.asarray(table, jnp.float32))
            constant = 0.0 if is_kl else float(np.sum(table**2))
            key = jax.random.key(seed)
            best.append(optimum(objective, k, constant))
            for method, solver in (
                (_RANDOM, iht),
                (_WARM, warm),
                (_GREEDY, jd.DistributionGreedy()),
                (_EXCHANGE, jd.DistributionExchange(num_starts=settings.of(2, 8, 64))),
            ):
                solution = jd.learn_distribution(objective, k, solver, key)
                values = np.atleast_1d(
                    solution.objective if solution.history is None else solution.history
                )
                # The best on the way is what is returned.
                excess = np.minimum.accumulate(np.asarray(values, float)) - best[-1]
                found.setdefault(method, []).append(np.maximum(excess, 0))
            print(f"  {name}, trial {seed}, after {time.perf_counter() - start:.0f} s", flush=True)
        shown = np.unique(np.round(np.geomspace(1, count, 60)).astype(int))
        for method, values in found.items():
            array = np.stack(values)
            at = shown if array.shape[1] > 1 else np.array([1])
            cells.append(
                {
                    "objective": name,
                    "method": method,
                    "iterations": at.tolist(),
                    "excess": significant(array[:, at - 1]),
                    "optimum": significant(best),
                }
            )
    return {
        "settings": {
            "coordinates": n,
            "k": k,
            "trials": num_trials,
            "iterations": ", ".join(f"{count} ({name})" for name, count in iterations.items()),
        },
        "cells": cells,
    }


def table(result: dict[str, Any]) -> str:
    """See `runner`."""
    rows = []
    for cell in result["cells"]:
        last = np.array(cell["excess"], float)[:, -1]
        optimal = np.array(cell["optimum"], float)
        rows.append(
            {
                "objective": cell["objective"],
                "method": cell["method"],
                "mean excess": float(last.mean()),
                "standard deviation": float(last.std()),
                # Rounding apart.
                "optimum found": f"{int(np.sum(last <= 1e-4 * optimal))} of {len(last)}",
            }
        )
    return (
        "F over its minimum over all supports, in the end: mean and standard deviation over the "
        "trials:\n\n" + markdown(rows, list(rows[0]))
    )


def figures(result: dict[str, Any]) -> dict[str, Any]:
    """See `runner`."""
    names = list(dict.fromkeys(cell["objective"] for cell in result["cells"]))
    colours = {
        _RANDOM: ("#E69F00", "-"),
        _WARM: ("#D55E00", "--"),
        _GREEDY: ("#0072B2", "-."),
        _EXCHANGE: ("#000000", ":"),
    }
    figure, axes = charts.panels(1, len(names), 5.2, 4.0)
    for ax, name in zip(axes[0], names, strict=True):
        cells = [cell for cell in result["cells"] if cell["objective"] == name]
        longest = max(cell["iterations"][-1] for cell in cells)
        for cell in cells:
            values = np.array(cell["excess"], float)
            mean, spread = values.mean(axis=0), values.std(axis=0)
            at = np.array(cell["iterations"])
            if at.size == 1:
                at, mean, spread = np.array([1, longest]), np.repeat(mean, 2), np.repeat(spread, 2)
            colour, dash = colours[cell["method"]]
            ax.plot(at, mean, color=colour, ls=dash, lw=1.8, label=cell["method"])
            if cell["method"] in (_WARM, _GREEDY):
                ax.fill_between(at, mean - spread, mean + spread, color=colour, alpha=0.15, lw=0)
        ax.set(xlabel="iteration", ylabel="F[q] − F[q*]")
        ax.set_ylim(bottom=0)
        ax.set_title(name, fontsize=10)
    return {"": charts.finish(figure, axes)}
