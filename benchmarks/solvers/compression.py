"""When shorter atoms pay: time and objective of solvers on compressed problems and on plain ones.

    python -m benchmarks.solvers.compression [--quick] [--data-dir DIR] [--output FILE.json]

Each problem is compressed with ``compress(problem, tol)`` and solved both ways, by one solve and by
a sweep. Times are wall seconds with everything compiled. "pays after" is how many such calls save
what the compression took; a dash where they save nothing. "objective change" is the largest
|‖y − Φw‖² − ‖y′ − Φ′w‖²| / ‖y‖² at the weights found on the compressed problem, evaluated in
float64 on both. "objective ratio" is the median over k of the objectives, on the plain problem, of
what was found on the compressed problem over what was found on the plain one.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxcoreset as jc
from benchmarks import common
from jaxcoreset.solvers.compression import CompressedProblem, compress

COLUMNS = (
    "data",
    "n",
    "S",
    "rank",
    "compress",
    "work",
    "plain",
    "compressed",
    "speedup",
    "pays after",
    "objective change",
    "objective ratio",
)


def objectives(problem: jc.CoresetProblem, weights: np.ndarray) -> np.ndarray:
    """‖y − Φw‖² of each row of weights, in float64."""
    residuals = np.float64(problem.target) - weights @ np.float64(problem.atoms)
    return np.sum(residuals**2, axis=-1)


def works(max_k: int) -> dict[str, Callable[[jc.CoresetProblem], jc.Solution]]:
    """What is asked of a problem."""
    ks = jnp.array([max_k // 4, max_k // 2, max_k])
    return {
        f"MatchingPursuit, k = {max_k}": lambda p: jc.solve(p, max_k, jc.MatchingPursuit()),
        f"AIHT2, three k to {max_k}": lambda p: jc.sweep(p, ks, jc.AIHT2()),
    }


def compare(
    name: str, problem: jc.CoresetProblem, tol: float, max_k: int, repeats: int
) -> list[dict[str, Any]]:
    """Rows of the table for one problem."""
    n, s = problem.atoms.shape
    _, spent, shorter = common.seconds(lambda: compress(problem, tol), repeats)
    print(f"  {name}: n = {n}, S = {s}, rank {shorter.rank} after {spent:.3g} s", flush=True)
    same = shorter.atoms.shape == problem.atoms.shape  # then any difference in time is chance
    rows = []
    for work, call in works(max_k).items():
        _, plain, expected = common.seconds(lambda call=call: call(problem), repeats)
        _, compressed, found = common.seconds(lambda call=call: call(shorter), repeats)
        rows.append(
            {
                "data": name,
                "n": n,
                "S": s,
                "rank": shorter.rank,
                "compress": spent,
                "work": work,
                "plain": plain,
                "compressed": compressed,
                "speedup": plain / compressed,
                "pays after": (
                    None
                    if same or compressed >= plain
                    else int(np.ceil(spent / (plain - compressed)))
                ),
                **differences(problem, shorter, expected, found),
            }
        )
        print(f"  {name}, {work}: {plain:.3g} s, compressed {compressed:.3g} s", flush=True)
    return rows


def differences(
    problem: jc.CoresetProblem,
    shorter: CompressedProblem,
    expected: jc.Solution,
    found: jc.Solution,
) -> dict[str, float]:
    """How far objectives of the two problems, and of what was found on them, are apart."""
    weights = np.atleast_2d(np.float64(found.dense(problem.num_data)))
    on_plain = objectives(problem, weights)
    change = np.abs(objectives(shorter, weights) - on_plain)
    plain_weights = np.atleast_2d(np.float64(expected.dense(problem.num_data)))
    ratio = on_plain / objectives(problem, plain_weights)
    return {
        "objective change": float(change.max() / np.sum(np.float64(problem.target) ** 2)),
        "objective ratio": float(np.median(ratio)),
    }


def problem_of(name: str, data_dir: Path | None, num_draws: int) -> jc.CoresetProblem | None:
    """One problem of a data set, or None where it is missing."""
    batch = common.problems(name, data_dir, num_draws, 1)
    return None if batch is None else jax.tree.map(lambda x: x[0], batch)


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, under two minutes")
    parser.add_argument("--data-dir", type=Path, help="folder of the papers' data sets")
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    parser.add_argument("--tol", type=float, default=1e-6, help="tolerance of the compression")
    options = parser.parse_args(arguments)
    max_k, repeats, num_draws = (20, 1, 500) if options.quick else (100, 3, 1000)
    sets = ["biketrips_500"] if options.quick else [*common.SIX, "biketrips"]
    rows = []
    for name in sets:
        problem = problem_of(name, options.data_dir, num_draws)
        if problem is not None:
            rows += compare(name, problem, options.tol, max_k, repeats)
    if not rows:
        batch = common.synthetic_problems(500, num_draws, 1)
        problem = jax.tree.map(lambda x: x[0], batch)
        rows = compare("synthetic", problem, options.tol, max_k, repeats)
    print("\n" + common.table(rows, COLUMNS))
    common.write(
        options.output,
        {
            "benchmark": "compression",
            "tol": options.tol,
            "max_k": max_k,
            "repeats": repeats,
            "environment": common.environment(),
            "rows": rows,
        },
    )


if __name__ == "__main__":
    main()
