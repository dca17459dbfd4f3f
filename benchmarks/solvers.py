"""Time and objective of each solver, for one k and for all k, alone and on a batch of problems.

    python -m benchmarks.solvers [--quick] [--data-dir DIR] [--output FILE.json]

All in one run, beside a plain NumPy A-IHT II with the paper's settings that solves for each k in
turn. Times are wall seconds: "cold" is the first call, compilation included, "warm" the median of
further ones. "speedup" is the NumPy time for the same work over the warm time.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxcoreset as jc
from benchmarks import common

SOLVERS = {
    "IHT": jc.IHT(),
    "AIHT": jc.AIHT(),
    "AIHT2": jc.AIHT2(),
    "MatchingPursuit": jc.MatchingPursuit(),
}
_ONE_K = 50


def numpy_aiht2(
    atoms: np.ndarray, target: np.ndarray, k: int, tol: float = 1e-5, max_iters: int = 300
) -> tuple[np.ndarray, float]:
    """A-IHT II as a NumPy user would write it: supports by argpartition, gathered contiguous rows.

    Returns:
        The dense weights and the objective.
    """
    n = len(atoms)
    w = z = np.zeros(n, atoms.dtype)
    image = z_image = np.zeros_like(target)
    for _ in range(max_iters):
        g = atoms @ (target - z_image)
        outside = np.where(z != 0, -1, np.abs(g))
        grown = np.argpartition(-outside, k - 1)[:k] if k < n else np.arange(n)
        support = np.union1d(np.flatnonzero(z), grown)
        step_image = g[support] @ atoms[support]
        step = (g[support] @ g[support]) / max(step_image @ step_image, 1e-300)
        moved = z + step * g
        top = np.argpartition(-moved, k - 1)[:k] if k < n else np.arange(n)
        top = top[moved[top] > 0]
        rows, x = atoms[top], moved[top]
        g_top = rows @ (target - x @ rows)
        step_image = g_top @ rows
        step = (g_top @ g_top) / max(step_image @ step_image, 1e-300)
        new = np.zeros_like(w)
        new[top] = np.maximum(x + step * g_top, 0)
        new_image = new[top] @ rows
        change = new_image - image
        momentum = ((target - new_image) @ change) / max(change @ change, 1e-300)
        stop = np.linalg.norm(new - w) <= tol * np.linalg.norm(new)
        z, z_image = new + momentum * (new - w), new_image + momentum * change
        w, image = new, new_image
        if stop:
            break
    return w, float(np.sum((target - image) ** 2))


def numpy_times(atoms: np.ndarray, ks: np.ndarray) -> tuple[dict[int, float], dict[int, float]]:
    """Seconds and objective of `numpy_aiht2` for each k."""
    target = atoms.sum(0)
    times, objectives = {}, {}
    for k in ks.tolist():
        start = time.perf_counter()
        _, objectives[k] = numpy_aiht2(atoms, target, k)
        times[k] = time.perf_counter() - start
    return times, objectives


def calls(
    solver: Any, batch: jc.CoresetProblem, ks: jax.Array, one_k: int
) -> dict[str, Callable[[], jc.Solution]]:
    """The four ways a solver is asked."""
    first = jax.tree.map(lambda x: x[0], batch)
    one_each = jax.jit(jax.vmap(lambda p: jc.solve(p, one_k, solver)))
    all_each = jax.jit(jax.vmap(lambda p: jc.sweep(p, ks, solver)))
    return {
        "one k": lambda: jc.solve(first, one_k, solver),
        "one k, batch": lambda: one_each(batch),
        "all k": lambda: jc.sweep(first, ks, solver),
        "all k, batch": lambda: all_each(batch),
    }


def run(batch: jc.CoresetProblem, ks: np.ndarray, repeats: int) -> list[dict[str, Any]]:
    """Rows of the table for one batch of problems."""
    one_k = min(_ONE_K, int(ks.max()))
    num_problems = batch.atoms.shape[0]
    numpy_seconds, numpy_objectives = numpy_times(np.asarray(batch.atoms[0]), ks)
    # The NumPy loop is timed on one problem; a batch of them takes that times their number.
    numpy_work = {
        "one k": numpy_seconds[one_k],
        "one k, batch": numpy_seconds[one_k] * num_problems,
        "all k": sum(numpy_seconds.values()),
        "all k, batch": sum(numpy_seconds.values()) * num_problems,
    }
    rows: list[dict[str, Any]] = [
        {"solver": "NumPy A-IHT II", "work": work, "warm": spent, "speedup": 1.0}
        for work, spent in numpy_work.items()
    ]
    expected = np.array([numpy_objectives[k] for k in ks.tolist()])
    for name, solver in SOLVERS.items():
        for work, call in calls(solver, batch, jnp.asarray(ks), one_k).items():
            cold, warm, solution = common.seconds(call, repeats)
            row = {
                "solver": name,
                "work": work,
                "cold": cold,
                "warm": warm,
                "speedup": numpy_work[work] / warm,
            }
            if work == "all k":
                ratio = np.asarray(solution.objective) / expected
                row["objective ratio"] = float(np.median(ratio))
                row["worst ratio"] = float(ratio.max())
            rows.append(row)
            print(f"  {name}, {work}: {warm:.4g} s", flush=True)
    return rows


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, under two minutes")
    parser.add_argument("--data-dir", type=Path, help="folder of the papers' data sets")
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    options = parser.parse_args(arguments)
    num_problems, largest, repeats = (4, 20, 2) if options.quick else (20, 100, 3)
    ks = np.arange(1, largest + 1)
    batch = common.problems("phishing_500", options.data_dir, 500, num_problems)
    data = "phishing_500"
    if batch is None:
        batch, data = common.synthetic_problems(500, 500, num_problems), "synthetic"
    n, s = batch.atoms.shape[1:]
    print(f"{data}: n = {n}, S = {s}, k = 1 … {largest}, {num_problems} problems in a batch")
    rows = run(batch, ks, repeats)
    columns = ["solver", "work", "cold", "warm", "speedup", "objective ratio", "worst ratio"]
    print("\n" + common.table(rows, columns))
    print(f"\nobjective ratio: objective over NumPy A-IHT II's, median over k (k = 1 … {largest})")
    common.write(
        options.output,
        {
            "benchmark": "solvers",
            "data": data,
            "n": n,
            "num_draws": s,
            "ks": [1, largest],
            "batch": num_problems,
            "repeats": repeats,
            "environment": common.environment(),
            "median_numpy_seconds_per_k": statistics.median(
                row["warm"] / largest
                for row in rows
                if row["solver"] == "NumPy A-IHT II" and row["work"] == "all k"
            ),
            "rows": rows,
        },
    )


if __name__ == "__main__":
    main()
