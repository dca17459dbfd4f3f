"""Every method on the papers' six small data sets: errors, divergences and seconds.

    python -m benchmarks.solvers.methods [--quick] [--data-dir DIR] [--output FILE.json]

n = S = 500; draws from the Laplace approximation of the full posterior, as in section 5.3 of Zhang
et al. (2021). "held-out" is the relative error on 4000 draws that no solver saw. The divergences,
in nats, are between the Laplace approximations of the full and the coreset posterior. Seconds are
those of one warm solve, and of SparseVI those of its whole path, compilation included. Medians over
the trials.
"""

import argparse
import functools
import statistics
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxcoreset as jc
from benchmarks import common
from jaxcoreset.diagnostics.gaussian import Divergence, laplace_divergence
from jaxcoreset.weighting.laplace import LaplaceApproximation, LaplaceFitter

SOLVERS: dict[str, jc.Solver] = {
    "Uniform": jc.UniformSampling(replace=True),
    "ImportanceSampling": jc.ImportanceSampling(),
    "FrankWolfe": jc.FrankWolfe(),
    "GIGA": jc.GIGA(),
    "IHT": jc.IHT(),
    "AIHT": jc.AIHT(),
    "AIHT2": jc.AIHT2(),
    "AIHT2, authors' steps": jc.AIHT2(step_fraction=0.5),
    "AIHT2, printed steps": jc.AIHT2(momentum_fraction=0.5),
    "StochasticAIHT": jc.StochasticAIHT(batch_size=0.2),
    "MatchingPursuit": jc.MatchingPursuit(),
    "SubspacePursuit": jc.SubspacePursuit(),
    "Recombination": jc.Recombination(),
    "ExchangePursuit": jc.ExchangePursuit(),
}
_COLUMNS = ["data", "k", "method", "relative error", "held-out", "forward", "reverse", "sym. KL"]


def divergence_of(
    fitter: LaplaceFitter, full: LaplaceApproximation, weights: np.ndarray
) -> Divergence:
    """Between the full posterior and that of weighted rows; NaN where that has no Laplace fit."""
    try:
        return laplace_divergence(full, fitter(weights=weights, start=full.params()))
    except ValueError:
        return Divergence(np.nan, np.nan, np.nan)


def run_one(
    name: str, data_dir: Path | None, ks: list[int], num_trials: int
) -> list[dict[str, Any]]:
    """The rows of one data set."""
    found = common.load(name, data_dir)
    if found is None:
        return []
    model, z, y = found
    likelihood = jc.model_likelihood(model, (z, y))
    fitter = LaplaceFitter(likelihood)
    full = fitter()
    held_out = jc.embed(
        likelihood.log_likelihood, full.draws(jax.random.key(99), 4000), likelihood.data
    )
    cells: dict[tuple[str, int], list[dict[str, float]]] = {}

    def note(method: str, k: int, weights: np.ndarray, relative_error: float, spent: float) -> None:
        kl = divergence_of(fitter, full, weights)
        residual = held_out.target - jnp.asarray(weights) @ held_out.atoms
        cells.setdefault((method, k), []).append(
            {
                "relative error": relative_error,
                "held-out": float(jnp.linalg.norm(residual) / jnp.linalg.norm(held_out.target)),
                "forward": kl.forward,
                "reverse": kl.reverse,
                "sym. KL": kl.symmetrised,
                "seconds": spent,
            }
        )

    for trial in range(num_trials):
        draws = full.draws(jax.random.key(trial), 500)
        problem = jc.embed(likelihood.log_likelihood, draws, likelihood.data)
        for method, solver in SOLVERS.items():
            for k in ks:
                key = jax.random.key(1000 + trial) if solver.needs_key else None
                solve = functools.partial(jc.solve, problem, k, solver, key)
                _, spent, solution = common.seconds(solve, 1)
                weights = np.asarray(solution.dense(problem.num_data))
                note(method, k, weights, float(solution.relative_error), spent)
        rival = jc.SparseVI(model, max(ks), progress_bar=False)
        start = time.perf_counter()
        try:
            path = rival.run_path(jax.random.key(trial), z, y)
        except ValueError as error:
            print(f"{name}: SparseVI has no result: {error}")
            continue
        spent = time.perf_counter() - start
        for k in ks:
            weights = np.zeros(problem.num_data, np.float32)
            weights[path[k].indices] = path[k].weights
            residual = problem.target - jnp.asarray(weights) @ problem.atoms
            error = float(jnp.linalg.norm(residual) / jnp.linalg.norm(problem.target))
            note("SparseVI", k, weights, error, spent)
    rows = []
    for (method, k), trials in cells.items():
        medians = {
            column: statistics.median(trial[column] for trial in trials) for column in trials[0]
        }
        rows.append({"data": name, "k": k, "method": method, **medians})
    return rows


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one trial, two sizes")
    parser.add_argument("--trials", type=int, default=3, help="trials a cell (3)")
    parser.add_argument("--data-dir", type=Path, help="folder of the papers' data sets")
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    options = parser.parse_args(arguments)
    ks, num_trials = ([10, 50], 1) if options.quick else ([10, 20, 50, 100], options.trials)
    rows: list[dict[str, Any]] = []
    for name in common.SIX:
        found = run_one(name, options.data_dir, ks, num_trials)
        rows += sorted(found, key=lambda row: row["k"])
        print(f"{name} done", flush=True)
        # Written as it grows: a run takes long.
        common.write(
            options.output,
            {
                "benchmark": "methods",
                "num_draws": 500,
                "num_held_out": 4000,
                "trials": num_trials,
                "environment": common.environment(),
                "rows": rows,
            },
        )
    print("\n" + common.table(rows, [*_COLUMNS, "seconds"]))


if __name__ == "__main__":
    main()
