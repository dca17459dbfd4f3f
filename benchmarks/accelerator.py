"""What an accelerator makes of it: limits of the card, embedding, solves, batches and precision.

    python -m benchmarks.accelerator [--quick] [--only NAME ...] [--out FILE.json]

Parts, of which ``--only`` picks some:

- ``limits``: what the device does at best here: bytes copied per second, and float32 products, at
  full precision and at the device's default, which is TF32 on a GPU and bfloat16 on a TPU.
- ``embed``: log-likelihoods of a logistic regression per second, as a matrix and as a sum, with the
  bytes and operations that they need at least, as parts of the limits.
- ``solves``: one problem, one k: the first call with its compilation, and the further ones.
- ``sweeps``: all k up to the largest in one call.
- ``batches``: many problems at once under ``vmap``, all k.
- ``nnls``: thousands of small systems.
- ``precision``: what the device's default precision of products costs: correlations of the atoms
  with a residual, and the objective of a solution, against float64 on the host.
- ``builds``: whole builds from NumPy arrays with ``tol=0.01``, cold and warm, with the estimate of
  the certificate after NUTS on the coreset, and NUTS on all rows for comparison: a logistic
  regression, and a robust one.
- ``groups``: the same for a model whose intercept varies by group.

Every part runs on a CPU too; ``--quick`` is small enough for that. Times are medians of warm calls.
Results are committed from real devices only, with card, driver, versions and date.
"""

import argparse
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import MCMC, NUTS

import jaxcoreset as jc
from benchmarks import common
from benchmarks.groups.models import bernoulli
from benchmarks.proxy.data import robust
from jaxcoreset.likelihood.embedding import log_likelihood_matrix, log_likelihood_sum
from jaxcoreset.solvers.numerics import HIGHEST

Rows = list[dict[str, Any]]

_REPEATS = 5
SOLVERS = {
    "default": None,
    "MatchingPursuit": jc.MatchingPursuit(),
    "AIHT2": jc.AIHT2(),
    "GIGA": jc.GIGA(),
}
BUILDS = ("logistic", "robust")


def driver() -> str | None:
    """The card's name, driver and memory as its own tool tells them; None without one."""
    query = "--query-gpu=name,driver_version,memory.total"
    try:
        told = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip().splitlines()[0]


def limits(quick: bool, so_far: dict[str, Any]) -> Rows:
    """Copies and products, as fast as they go."""
    del so_far
    numbers, side = (1 << 22, 512) if quick else (1 << 28, 8192)
    source = jnp.ones(numbers, jnp.float32)
    copy = jax.jit(lambda x: x + 1)
    rows = [
        {
            "what": "copy",
            "seconds": (spent := common.seconds(lambda: copy(source), _REPEATS)[1]),
            "GB/s": 8e-9 * numbers / spent,
        }
    ]
    one = jax.random.normal(jax.random.key(0), (side, side))
    for name, precision in (("float32 products", HIGHEST), ("products by default", None)):
        product = jax.jit(lambda x, p=precision: jnp.matmul(x, x, precision=p))
        spent = common.seconds(lambda f=product: f(one), _REPEATS)[1]
        rows.append({"what": name, "seconds": spent, "GFLOP/s": 2e-9 * side**3 / spent})
    print(common.table(rows, ["what", "seconds", "GB/s", "GFLOP/s"]))
    return rows


def embed(quick: bool, so_far: dict[str, Any]) -> Rows:
    """Log-likelihoods of rows that are on the device, at draws."""
    num_rows, width, num_draws = (20_000, 5, 200) if quick else (1_000_000, 20, 1000)
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (num_rows, width))
    y = jax.random.bernoulli(keys[1], 0.5, (num_rows,)).astype(jnp.float32)
    draws = jax.random.normal(keys[2], (num_draws, width)) / np.sqrt(width)

    def log_likelihood(draw: Any, data: Any) -> Any:
        z = data[0] @ draw
        return data[1] * z - jax.nn.softplus(z)

    best = {row["what"]: row for row in so_far.get("limits", [])}
    rows = []
    for name, evaluate in (("matrix", log_likelihood_matrix), ("sum", log_likelihood_sum)):
        some = num_rows // 10 if name == "matrix" else num_rows  # the matrix is kept
        data = (x[:some], y[:some])
        cold, warm, _ = common.seconds(
            lambda f=evaluate, d=data: f(log_likelihood, draws, d), _REPEATS
        )
        entries = some * num_draws
        least = 4e-9 * (entries if name == "matrix" else some * (width + 1))
        row = {
            "what": name,
            "rows": some,
            "draws": num_draws,
            "compile s": cold - warm,
            "seconds": warm,
            "entries/s": entries / warm,
            "GB/s": least / warm,
            "GFLOP/s": 2e-9 * entries * width / warm,
        }
        if best:
            row["of bandwidth"] = row["GB/s"] / best["copy"]["GB/s"]
            row["of products"] = row["GFLOP/s"] / best["float32 products"]["GFLOP/s"]
        rows.append(row)
    columns = ["what", "rows", "draws", "compile s", "seconds", "entries/s", "GB/s", "GFLOP/s"]
    print(common.table(rows, [*columns, "of bandwidth", "of products"]))
    return rows


def _problems(quick: bool, count: int) -> jc.CoresetProblem:
    size = 120 if quick else 500
    return common.synthetic_problems(size, size, count)


def _largest(quick: bool) -> int:
    return 10 if quick else 100


def solves(quick: bool, so_far: dict[str, Any]) -> Rows:
    """One problem and one k."""
    del so_far
    problem = jax.tree.map(lambda leaf: leaf[0], _problems(quick, 1))
    k, rows = _largest(quick), []
    for name, solver in SOLVERS.items():
        cold, warm, found = common.seconds(
            lambda s=solver: jc.solve(problem, k, s), 1 if quick else _REPEATS
        )
        row = {"solver": name, "n": problem.num_data, "S": problem.num_draws, "k": k}
        row |= {"compile s": cold - warm, "seconds": warm}
        rows.append(row | {"relative error": float(found.relative_error)})
    print(common.table(rows, list(rows[0])))
    return rows


def sweeps(quick: bool, so_far: dict[str, Any]) -> Rows:
    """All k in one call."""
    del so_far
    problem = jax.tree.map(lambda leaf: leaf[0], _problems(quick, 1))
    ks, rows = jnp.arange(1, _largest(quick) + 1), []
    for name, solver in SOLVERS.items():
        cold, warm, _ = common.seconds(
            lambda s=solver: jc.sweep(problem, ks, s), 1 if quick else _REPEATS
        )
        rows.append(
            {"solver": name, "k": len(ks), "compile s": cold - warm, "seconds": warm}
            | {"solutions/s": len(ks) / warm}
        )
    print(common.table(rows, list(rows[0])))
    return rows


def batches(quick: bool, so_far: dict[str, Any]) -> Rows:
    """All k of many problems in one call."""
    del so_far
    counts = (2,) if quick else (1, 20, 200)
    ks, rows = jnp.arange(1, _largest(quick) + 1), []
    few = _problems(quick, min(counts[-1], 20))
    for count in counts:
        repeats = -(-count // few.atoms.shape[0])
        problems = jax.tree.map(lambda leaf, r=repeats: jnp.concatenate([leaf] * r), few)
        problems = jax.tree.map(lambda leaf, c=count: leaf[:c], problems)
        for name, solver in SOLVERS.items():
            batch = jax.jit(jax.vmap(lambda problem, s=solver: jc.sweep(problem, ks, s)))
            cold, warm, _ = common.seconds(lambda f=batch, p=problems: f(p), 1 if quick else 3)
            rows.append(
                {"solver": name, "problems": count, "k": len(ks)}
                | {"compile s": cold - warm, "seconds": warm}
                | {"solutions/s": count * len(ks) / warm}
            )
    print(common.table(rows, list(rows[0])))
    return rows


def nnls(quick: bool, so_far: dict[str, Any]) -> Rows:
    """Small systems, thousands at a time."""
    del so_far
    shapes = ((8, 10, 40),) if quick else ((4096, 20, 200), (1024, 100, 500))
    batch = jax.jit(jax.vmap(jc.nnls))
    rows = []
    for count, num_atoms, length in shapes:
        keys = jax.random.split(jax.random.key(0))
        atoms = jax.random.normal(keys[0], (count, num_atoms, length))
        targets = jnp.einsum(
            "bms,bm->bs", atoms, jax.random.normal(keys[1], (count, num_atoms)), precision=HIGHEST
        )
        cold, warm, _ = common.seconds(lambda a=atoms, t=targets: batch(a, t), _REPEATS)
        rows.append(
            {"systems": count, "atoms": num_atoms, "S": length}
            | {"compile s": cold - warm, "seconds": warm, "systems/s": count / warm}
        )
    print(common.table(rows, list(rows[0])))
    return rows


def precision(quick: bool, so_far: dict[str, Any]) -> Rows:
    """The error of products at the default precision and at the full one, against float64."""
    del so_far
    problem = jax.tree.map(lambda leaf: leaf[0], _problems(quick, 1))
    solution = jc.solve(problem, _largest(quick))
    atoms = np.asarray(problem.atoms, np.float64)
    target = np.asarray(problem.target, np.float64)
    weights = np.asarray(solution.dense(problem.num_data), np.float64)
    residual = target - weights @ atoms
    exact = atoms @ residual
    scale = np.linalg.norm(atoms, axis=1) * np.linalg.norm(residual)
    rows = []
    for name, how in (("full", HIGHEST), ("default", jax.lax.Precision.DEFAULT)):
        dense = jnp.asarray(weights, problem.atoms.dtype)
        combined = jnp.matmul(dense, problem.atoms, precision=how)
        found = jnp.matmul(problem.atoms, jnp.asarray(residual, problem.atoms.dtype), precision=how)
        error = np.linalg.norm(target - np.asarray(combined, np.float64))
        rows.append(
            {
                "precision": name,
                "correlations, worst": float(np.max(np.abs(np.asarray(found) - exact) / scale)),
                "relative error found": float(error / np.linalg.norm(target)),
                "relative error, exact": float(np.linalg.norm(residual) / np.linalg.norm(target)),
            }
        )
    print(common.table(rows, list(rows[0])))
    return rows


def _models(quick: bool) -> dict[str, tuple[Callable, tuple, dict[str, Any]]]:
    """Models with their arguments, and settings of the builder."""
    num_rows, num_groups = (4000, 20) if quick else (1_000_000, 1000)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, 4 if quick else 20)).astype(np.float32)
    x[:, 0] = 1.0
    beta = (rng.normal(size=x.shape[1]) / np.sqrt(x.shape[1])).astype(np.float32)
    group = rng.integers(num_groups, size=num_rows).astype(np.int32)
    mean = x @ beta

    def positive(logits: np.ndarray) -> np.ndarray:
        return (rng.random(num_rows) < 1 / (1 + np.exp(-logits))).astype(np.int32)

    effects = 0.7 * rng.normal(size=num_groups)
    return {
        "logistic": (common.logistic, (x, positive(mean)), {}),
        "robust": (robust, (x, (mean + rng.standard_t(4, num_rows)).astype(np.float32)), {}),
        "groups": (
            bernoulli,
            (x[:, 1:5], group, num_groups, positive(effects[group] + x[:, 1:5] @ beta[1:5])),
            {"groups": "group"},
        ),
    }


def _nuts(model: Callable, args: tuple, quick: bool, **settings: Any) -> tuple[MCMC, float]:
    """A chain of NUTS, and the seconds that it took with its compilation."""
    draws = 50 if quick else 500
    mcmc = MCMC(NUTS(model), num_warmup=draws, num_samples=draws, progress_bar=False)
    return mcmc, common.seconds(lambda: mcmc.run(jax.random.key(2), *args, **settings), 0)[0]


def builds(quick: bool, so_far: dict[str, Any]) -> Rows:
    """Whole builds, NUTS on their coresets and on all rows."""
    del so_far
    return _builds(quick, BUILDS)


def groups(quick: bool, so_far: dict[str, Any]) -> Rows:
    """A build of a model with groups."""
    del so_far
    return _builds(quick, ("groups",))


def _builds(quick: bool, names: Sequence[str]) -> Rows:
    rows: Rows = []
    for name in names:
        model, args, how = _models(quick)[name]
        builder = jc.CoresetBuilder(model, tol=0.01, progress_bar=False, **how)
        spent = []
        for key in (0, 1):
            clock = time.perf_counter()
            coreset = builder.run(jax.random.key(key), *args)
            spent.append(time.perf_counter() - clock)
        settings = coreset.kwargs | {"init_params": coreset.init_params()}
        mcmc, on_coreset = _nuts(coreset.model, coreset.args, quick, **settings)
        clock = time.perf_counter()
        certificate = jc.certify(coreset, mcmc)
        row = {
            "model": name,
            "rows": len(args[0]),
            "kept": len(coreset.weights),
            "cold s": spent[0],
            "warm s": spent[1],
            "NUTS on the coreset, s": on_coreset,
            "certify s": time.perf_counter() - clock,
            "KL": float(certificate.kl),
            "verdict": certificate.verdict,
        }
        print(row, flush=True)
        row["NUTS on all rows, s"] = _nuts(model, args, quick)[1]
        rows.append(row)
    print(common.table(rows, list(rows[0])))
    return rows


PARTS: dict[str, Callable[[bool, dict[str, Any]], Rows]] = {
    "limits": limits,
    "embed": embed,
    "solves": solves,
    "sweeps": sweeps,
    "batches": batches,
    "nnls": nnls,
    "precision": precision,
    "builds": builds,
    "groups": groups,
}


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Run the benchmark, print its tables, and hand back what it measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="sizes for a CPU")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--out", type=Path, help="JSON to write")
    options = parser.parse_args(arguments)
    result: dict[str, Any] = {
        "benchmark": "accelerator",
        "quick": options.quick,
        "environment": common.environment() | {"card": driver()},
    }
    print(result["environment"])
    for name in options.only:
        print(f"\n{name}", flush=True)
        result[name] = PARTS[name](options.quick, result)
        common.write(options.out, result)
    return result


if __name__ == "__main__":
    main()
