"""How the objective falls per atom read: stochastic hard thresholding beside the full methods.

    python -m benchmarks.solvers.stochastic [--quick] [--data-dir DIR] [--output FILE.json]

The unit is a pass, n rows of Φ. Counted is what an iteration gathers, each row once, at its most:
n for a full method; B + 2k for a batch, with the supports of the last two iterates; for SVRG 2k
more for the step, and n at each snapshot. Not counted: one pass for the norms where a solver asks
for them. Given is the best ‖y − Φw‖ / ‖y‖ seen after so many passes, the median over keys, and wall
seconds of a compiled run of all the passes. All runs go on to the end: no stopping rule.
"""

import argparse
import dataclasses
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxcoreset as jc
from benchmarks import common
from jaxcoreset.solvers.thresholding.epochs import Stochastic
from jaxcoreset.solvers.thresholding.hard import AIHT, AIHT2, HardThresholding
from jaxcoreset.solvers.thresholding.stochastic import SVRGIHT, ProjectedOptax, StochasticAIHT

_FOREVER = 10**6
_PASSES = (1, 3, 10, 30, 60)
# Name of a file, rows taken of it, k.
_PROBLEMS = (
    ("phishing_500", 500, 20),
    ("biketrips_500", 500, 20),
    ("ds1_500", 500, 50),
    ("ds1", 5000, 100),
)
_QUICK = _PROBLEMS[:1]

Variant = HardThresholding | Stochastic


def variants(atoms: np.ndarray, k: int) -> dict[str, Variant]:
    """What is compared; the length of the runs is set later."""
    one, two = AIHT(tol=0.0), AIHT2(tol=0.0)
    typical_weight = len(atoms) / k
    descent = float(1 / np.linalg.norm(atoms, 2) ** 2)
    found: dict[str, Variant] = {
        "AIHT, all rows": one,
        "AIHT2, all rows": two,
        "AIHT2, all rows, normalise": StochasticAIHT(two, batch_size=1.0, normalise=True),
        "AIHT, 0.2, double (the paper)": StochasticAIHT(one, estimator="double"),
        "AIHT, 0.2, pool": StochasticAIHT(one),
        "AIHT2, 0.2, double": StochasticAIHT(two, estimator="double"),
        "AIHT2, 0.2, batch": StochasticAIHT(two, estimator="batch"),
        "AIHT2, 0.2, support": StochasticAIHT(two, estimator="support"),
        "AIHT2, 0.2, pool": StochasticAIHT(two),
        "AIHT2, 0.2, pool, independent": StochasticAIHT(two, reshuffle=False),
        "AIHT2, 0.02, pool": StochasticAIHT(two, batch_size=0.02),
        "AIHT2, 0.2, pool, normalise": StochasticAIHT(two, normalise=True),
        "AIHT2, 0.02, pool, normalise": StochasticAIHT(two, batch_size=0.02, normalise=True),
        "AIHT2, 0.02, pool, normalise, 3 steps": StochasticAIHT(
            two, batch_size=0.02, normalise=True, steps_per_batch=3
        ),
        "SVRG AIHT2, 0.2, support": SVRGIHT(two),
        "SVRG AIHT2, 0.2, pool": SVRGIHT(two, estimator="pool"),
        "Adam, 0.2, pool": ProjectedOptax(optax.adam(0.1 * typical_weight), tol=0.0),
        "gradient descent, 0.2, pool": ProjectedOptax(optax.sgd(descent), tol=0.0),
    }
    return found


def passes_read(solver: Variant, n: int, k: int, num_iters: int) -> np.ndarray:
    """Passes read after each of so many iterations, at their most."""
    iteration = np.arange(1, num_iters + 1)
    if isinstance(solver, HardThresholding):
        return iteration.astype(float)
    rows = min(n, solver.num_rows(n) + 2 * k)
    if not isinstance(solver, SVRGIHT):
        return iteration * rows / n
    snapshots = -(-iteration // solver.num_batches(n))
    return (iteration * (rows + 2 * k)) / n + snapshots


def with_length(solver: Variant, num_iters: int) -> Variant:
    """The solver, made to run so many iterations and to keep their objectives."""
    if isinstance(solver, StochasticAIHT | SVRGIHT):
        base = dataclasses.replace(solver.base, max_iters=num_iters, record_history=True)
        return dataclasses.replace(solver, base=base, patience=_FOREVER)
    solver = dataclasses.replace(solver, max_iters=num_iters, record_history=True)
    if isinstance(solver, Stochastic):
        return dataclasses.replace(solver, patience=_FOREVER)
    return solver


def measure(
    problem: jc.CoresetProblem, k: int, solver: Variant, passes: tuple[int, ...], num_keys: int
) -> dict[str, Any]:
    """Relative error after so many passes, and the seconds of the run."""
    n = problem.num_data
    guess = passes_read(solver, n, k, 60 * n)
    num_iters = int(np.searchsorted(guess, passes[-1], side="right"))
    solver, read = with_length(solver, num_iters), guess[:num_iters]

    def solve(seed: int) -> Callable[[], jc.Solution]:
        return lambda: jc.solve(problem, k, solver, key=jax.random.key(seed))

    random = isinstance(solver, Stochastic) and solver.num_rows(n) < n
    curves, times = [], []
    target = float(jnp.linalg.norm(problem.target))
    for seed in range(num_keys if random else 1):
        _, warm, solution = common.seconds(solve(seed), repeats=1 if seed == 0 else 0)
        best = np.minimum.accumulate(np.asarray(solution.history, np.float64))
        at = np.searchsorted(read, passes, side="right") - 1
        curves.append(np.where(at >= 0, np.sqrt(best[np.maximum(at, 0)]) / target, 1.0))
        times.append(warm)  # only the first run compiles, and it is timed when that is done
    errors = np.median(curves, axis=0)
    row: dict[str, Any] = {f"{p} passes": float(e) for p, e in zip(passes, errors, strict=True)}
    return {**row, "iterations": num_iters, "seconds": statistics.median(times)}


def make_problem(
    name: str, n: int, num_draws: int, data_dir: Path | None
) -> jc.CoresetProblem | None:
    """Atoms of the first n rows of a data set in a random order, or None where it is missing."""
    found = common.load(name, data_dir)
    if found is None:
        return None
    model, z, y = found
    rows = np.random.default_rng(0).permutation(len(z))[:n]
    return jax.tree.map(lambda x: x[0], common.trials(model, z[rows], y[rows], num_draws, 1))


def main() -> None:
    """Run the comparison and print a table for each problem."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one data set, fewer passes and keys")
    parser.add_argument("--data-dir", type=Path, help="folder of the data sets' .npz files")
    parser.add_argument("--output", type=Path, help="where to write the results as JSON")
    options = parser.parse_args()
    passes = _PASSES[:3] if options.quick else _PASSES
    num_keys = 2 if options.quick else 5
    num_draws = 200 if options.quick else 500

    problems: list[tuple[str, int, jc.CoresetProblem]] = []
    for name, n, k in _QUICK if options.quick else _PROBLEMS:
        problem = make_problem(name, n, num_draws, options.data_dir)
        if problem is not None:
            problems.append((name, k, problem))
    if not problems:
        print("no data: a synthetic problem instead, n = 500, k = 20")
        made = common.synthetic_problems(500, num_draws, 1)
        problems.append(("synthetic", 20, jax.tree.map(lambda x: x[0], made)))

    result: dict[str, Any] = {"environment": common.environment(), "keys": num_keys, "results": []}
    for name, k, problem in problems:
        rows = []
        for label, solver in variants(np.asarray(problem.atoms), k).items():
            row = {"solver": label, **measure(problem, k, solver, passes, num_keys)}
            rows.append(row)
            result["results"].append(
                {"data": name, "n": problem.num_data, "S": problem.num_draws, "k": k, **row}
            )
        shape = f"n = {problem.num_data}, S = {problem.num_draws}, k = {k}"
        print(
            f"\n{name}: {shape}; ‖y − Φw‖ / ‖y‖ after so many passes, median of {num_keys} keys\n"
        )
        print(common.table(rows, list(rows[0])), flush=True)
        common.write(options.output, result)


if __name__ == "__main__":
    main()
