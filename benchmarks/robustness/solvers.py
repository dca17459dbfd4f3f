"""10,080 random problems over all solvers, in float32 and float64: what every solution keeps to.

    python -m benchmarks.robustness.solvers [--quick] [--json FILE.json]

Each of sixteen solvers gets 315 problems in each precision: 21 of each of fifteen kinds, among them
atoms of norm zero, duplicates, scales that are huge or very different, targets that are not the sum
of the atoms, and targets that no atom points towards. Each problem is solved for every k from 1 to
n in a vmapped sweep, and alone. A violation is a problem with a solution that does not keep to one
of `CLAIMS`, evaluated in float64 by NumPy. The allowance is rounding: 64 units of it, of the target
and of the weighted atoms.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxcoreset as jc
from benchmarks import common
from jaxcoreset.solvers.constraints import SimplexTopK
from jaxcoreset.solvers.solution import Solution
from jaxcoreset.solvers.thresholding.stochastic import SVRGIHT, ProjectedOptax, StochasticAIHT

COLUMNS = ("solver", "dtype", "violations", "other_rows", "other_errors", "largest_difference")
NUM_DATA, NUM_DRAWS, PER_KIND = 10, 7, 21
TOTAL = 20.0
KEY = jax.random.key(3)
# The allowance in units of rounding; solvers stop at as many, see `numerics.resolution`.
_UNITS = 64
# The difference of a batch from single solves that the documentation names, in norms of the target.
_APART = 1e-3

SOLVERS: dict[str, jc.Solver] = {
    "IHT": jc.IHT(),
    "AIHT": jc.AIHT(),
    "AIHT2": jc.AIHT2(),
    "StochasticAIHT": StochasticAIHT(jc.AIHT2(max_iters=200)),
    "StochasticAIHT, SimplexTopK": StochasticAIHT(
        jc.AIHT2(max_iters=200, constraint=SimplexTopK(TOTAL))
    ),
    "SVRGIHT": SVRGIHT(jc.AIHT2(max_iters=200)),
    "ProjectedOptax": ProjectedOptax(optax.adam(1.0), max_iters=100),
    "GIGA": jc.GIGA(),
    "FrankWolfe": jc.FrankWolfe(),
    "ImportanceSampling": jc.ImportanceSampling(),
    "UniformSampling": jc.UniformSampling(),
    "MatchingPursuit": jc.MatchingPursuit(),
    "SubspacePursuit": jc.SubspacePursuit(),
    "Recombination": jc.Recombination(),
    "ExchangePursuit": jc.ExchangePursuit(),
    "ExhaustiveSearch": jc.ExhaustiveSearch(),
}
# Solvers whose solutions for more rows are no worse.
MONOTONE = (
    "GIGA",
    "FrankWolfe",
    "MatchingPursuit",
    "SubspacePursuit",
    "ExchangePursuit",
    "ExhaustiveSearch",
)
# Methods whose gradient steps may be far from each other after a threshold has decided a near tie.
THRESHOLDING = (
    "IHT",
    "AIHT",
    "AIHT2",
    "StochasticAIHT",
    "StochasticAIHT, SimplexTopK",
    "SVRGIHT",
    "ProjectedOptax",
)
CLAIMS = {
    "finite": "weights and errors are finite",
    "not negative": "weights are at least zero",
    "size": "at most k rows, each of them once, with numbers from 0 to n − 1",
    "no zeros": "no atom of norm zero is chosen",
    "error": "relative_error is that of the weights",
    "no worse than none": "the error is at most that of no rows (not of sums and samples)",
    "total": "the weights have the total that the constraint asks for",
    "monotone": "the error does not rise with k along a path of one run",
    "global": "no solver is below ExhaustiveSearch",
    "batch": "a batch has the error of single solves within 0.001 ‖y‖ (not by thresholding)",
}

Problems = tuple[np.ndarray, np.ndarray]


def _kinds(rng: np.random.Generator, num: int) -> dict[str, Problems]:
    """Atoms of shape (num, n, S) and targets of shape (num, S), by kind."""
    shape, n = (num, NUM_DATA, NUM_DRAWS), NUM_DATA

    def plain() -> np.ndarray:
        return rng.normal(size=shape)

    def summed(atoms: np.ndarray, weights: np.ndarray | float = 1.0) -> Problems:
        weights = np.broadcast_to(weights, (num, n))
        return atoms, np.einsum("bn,bns->bs", weights, atoms)

    def spread(orders: float, *size: int) -> np.ndarray:
        return 10.0 ** rng.uniform(-orders, orders, size=size)

    zeros, one, doubled, near = plain(), plain(), plain(), plain()
    zeros[:, ::2] = 0
    one[:, 1:] = 0
    doubled[:, n // 2 :] = doubled[:, : n // 2]
    near[:, n // 2 :] = near[:, : n // 2] + 1e-3 * near[:, n // 2 :]
    some = np.zeros((num, n))
    some[:, :2] = 1
    low_rank = rng.normal(size=(num, n, 3)) @ rng.normal(size=(num, 3, NUM_DRAWS))
    positive, opposed = np.abs(plain()), np.abs(plain())
    units = np.where(np.arange(num) % 2, 1e12, 1e-12)[:, None, None]
    return {
        "sum of the atoms": summed(plain() + 0.3),
        "weighted sum": summed(plain(), rng.exponential(size=(num, n))),
        "two atoms": summed(plain(), some),
        "zero atoms": summed(zeros),
        "one atom": summed(one),
        "duplicates": summed(doubled),
        "near duplicates": summed(near),
        "positive": summed(positive),
        "no positive correlation": (opposed, -opposed.sum(axis=1)),
        "target outside the cone": (plain(), rng.normal(size=(num, NUM_DRAWS))),
        "huge and tiny units": summed(plain() * units),
        "zero target": (plain(), np.zeros((num, NUM_DRAWS))),
        "rows of unequal norms": summed(plain() * spread(3, num, n, 1)),
        "draws of unequal sizes": summed(plain() * spread(2, num, 1, NUM_DRAWS)),
        "low rank": summed(low_rank, rng.exponential(size=(num, n))),
    }


def make_problems(num: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The kinds, atoms and targets of all problems; their entries are float32 numbers."""
    kinds = _kinds(np.random.default_rng(0), num)
    atoms, targets = (np.concatenate(arrays) for arrays in zip(*kinds.values(), strict=True))
    return np.repeat(list(kinds), num), atoms.astype(np.float32), targets.astype(np.float32)


def solve_all(
    name: str, atoms: np.ndarray, targets: np.ndarray, ks: np.ndarray
) -> tuple[Solution, Solution]:
    """Vmapped sweeps for all k, and what is found alone: sweeps, or solves for the k of `ks`."""
    solver = SOLVERS[name]
    problems = jax.vmap(jc.CoresetProblem)(jnp.asarray(atoms), jnp.asarray(targets))

    def path(problem: jc.CoresetProblem) -> Solution:
        return jc.sweep(problem, np.arange(1, NUM_DATA + 1), solver, KEY)

    def one(problem: jc.CoresetProblem, k: jax.Array) -> Solution:
        return jc.solve(problem, k, solver, KEY, max_k=NUM_DATA)

    paths = jax.jit(jax.vmap(path))(problems)
    alone = jax.jit(path if name in MONOTONE else one)
    further = () if name in MONOTONE else (jnp.asarray(ks, jnp.int32),)
    singles = [
        jax.tree.map(np.asarray, alone(*jax.tree.map(lambda x, i=i: x[i], (problems, *further))))
        for i in range(len(ks))
    ]
    return jax.tree.map(np.asarray, paths), jax.tree.map(lambda *x: np.stack(x), *singles)


class Judge:
    """Solutions of the same problems beside what NumPy computes from their weights in float64."""

    def __init__(self, atoms: np.ndarray, targets: np.ndarray, eps: float):
        self.atoms, self.targets = atoms.astype(np.float64), targets.astype(np.float64)
        self.norms = np.linalg.norm(self.atoms, axis=2)
        self.target_norms = np.linalg.norm(self.targets, axis=1)
        self.eps = eps

    def dense(self, found: Solution) -> np.ndarray:
        """The weights of all rows: (b, n), or (b, k, n) of paths."""
        indices = np.clip(found.indices, 0, NUM_DATA - 1)
        dense = np.zeros((*found.weights.shape[:-1], NUM_DATA))
        for at in np.ndindex(found.weights.shape):
            dense[(*at[:-1], indices[at])] += float(found.weights[at])
        return dense

    def errors(self, dense: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """‖y − Φw‖ and the rounding to allow for, for paths."""
        images = np.einsum("bkn,bns->bks", dense, self.atoms)
        error = np.linalg.norm(self.targets[:, None] - images, axis=2)
        size = self.target_norms[:, None] + np.einsum("bkn,bn->bk", dense, self.norms)
        return error, _UNITS * self.eps * size

    def violations(self, name: str, found: Solution) -> dict[str, np.ndarray]:
        """By claim, which problems have a path that does not keep to it."""
        dense = self.dense(found)
        error, allowed = self.errors(dense)
        used = found.weights > 0
        ks = np.arange(1, NUM_DATA + 1)
        in_range = ((found.indices >= 0) & (found.indices < NUM_DATA)).all(axis=2)
        distinct = np.sum(dense > 0, axis=2) == np.sum(used, axis=2)
        told = found.relative_error * np.where(self.target_norms > 0, self.target_norms, 1)[:, None]
        finite = np.isfinite(found.weights).all(axis=2) & np.isfinite(found.relative_error)
        broken = {
            "finite": ~(finite & np.isfinite(found.objective)),
            "not negative": (found.weights < 0).any(axis=2),
            "size": ~in_range | ~distinct | (np.sum(used, axis=2) > ks),
            "no zeros": ((dense > 0) & (self.norms == 0)[:, None]).any(axis=2),
            "error": ~(np.abs(told - error) <= allowed),
        }
        if SOLVERS[name].may_return_none:
            broken["no worse than none"] = error > self.target_norms[:, None] + allowed
        if "Simplex" in name:
            broken["total"] = ~(np.abs(dense.sum(axis=2) - TOTAL) <= 1e-5 * TOTAL)
        if name in MONOTONE:
            broken["monotone"] = np.diff(error, axis=1) > allowed[:, 1:] + allowed[:, :-1]
        return {claim: flags.any(axis=1) for claim, flags in broken.items()}

    def batch(self, many: Solution, single: Solution) -> tuple[np.ndarray, dict[str, Any]]:
        """Which problems have errors that differ too much, and how many beyond rounding."""
        both = [self.dense(found) for found in (many, single)]
        (ours, allowed), (theirs, allowed_too) = map(self.errors, both)
        apart = np.abs(ours - theirs)
        scale = np.where(self.target_norms > 0, self.target_norms, 1)[:, None]
        beyond = apart > allowed + allowed_too
        return np.asarray((beyond & (apart > _APART * scale)).any(axis=1)), {
            "other_rows": int(((both[0] > 0) != (both[1] > 0)).any(axis=(1, 2)).sum()),
            "other_errors": int(beyond.any(axis=1).sum()),
            "largest_difference": float((apart / scale)[beyond].max(initial=0)),
        }


def measure(
    num: int,
    names: Sequence[str] = tuple(SOLVERS),
    report: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """One row for each solver and precision, with the violations by claim.

    Args:
        num: the number of problems of each kind.
        names: the solvers, with ExhaustiveSearch.
        report: is called with a line of text after each solver.
    """
    kinds, atoms, targets = make_problems(num)
    ks = 1 + np.arange(len(atoms)) % NUM_DATA
    rows = []
    for dtype in (np.float32, np.float64):
        errors = {}
        judge = Judge(atoms, targets, float(np.finfo(dtype).eps))
        with jax.enable_x64(dtype == np.float64):
            for name in names:
                path, single = solve_all(name, atoms.astype(dtype), targets.astype(dtype), ks)
                broken = judge.violations(name, path)
                errors[name] = judge.errors(judge.dense(path))
                if name not in MONOTONE:
                    at = (np.arange(len(ks)), ks - 1)
                    path = jax.tree.map(lambda x, at=at: x[at][:, None], path)
                    single = jax.tree.map(lambda x: x[:, None], single)
                apart, batch = judge.batch(path, single)
                if name not in THRESHOLDING:
                    broken["batch"] = apart
                row = {"solver": name, "dtype": dtype.__name__, "broken": broken, **batch}
                rows.append(row)
                report(f"{name}, {dtype.__name__}: {_counts(broken)}, {batch}")
        best, allowed = errors["ExhaustiveSearch"]
        for row in rows[-len(names) :]:
            error, allowed_too = errors[row["solver"]]
            row["broken"]["global"] = (error + allowed + allowed_too < best).any(axis=1)
    for row in rows:
        broken = row.pop("broken")
        row["violations"] = _counts(broken)
        row["kinds"] = {
            claim: sorted(set(kinds[flags].tolist()))
            for claim, flags in broken.items()
            if flags.any()
        }
        row["num_problems"] = len(atoms)
    return rows


def _counts(broken: dict[str, np.ndarray]) -> dict[str, int]:
    return {claim: int(flags.sum()) for claim, flags in broken.items() if flags.any()}


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one problem of each kind")
    parser.add_argument("--json", "--output", type=Path, dest="output", help="where the JSON goes")
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    rows = measure(1 if options.quick else PER_KIND)
    seconds = time.perf_counter() - start
    print(common.table(rows, COLUMNS))
    num_problems = sum(row["num_problems"] for row in rows)
    num_violations = sum(sum(row["violations"].values()) for row in rows)
    print(f"\n{num_problems} problems, {num_violations} violations, {seconds:.0f} s")
    result = {
        "benchmark": "robustness: solvers",
        "environment": common.environment(),
        "claims": CLAIMS,
        "num_problems": num_problems,
        "num_violations": num_violations,
        "seconds": seconds,
        "rows": rows,
    }
    common.write(options.output, result)


if __name__ == "__main__":
    main()
