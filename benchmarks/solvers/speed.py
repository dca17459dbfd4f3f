"""Speed, size and scaling, three parts of `benchmarks.solvers`."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import jaxcoreset as jc
from benchmarks import common
from jaxcoreset.solvers.exchange import pursuit as exchange_pursuit

# What takes less than a third of this many seconds is timed more than three times.
_AT_LEAST = 5.0

SOLVERS = {
    "MatchingPursuit": jc.MatchingPursuit(),
    "default": None,
    "AIHT2": jc.AIHT2(),
}


def numpy_aiht2(
    atoms: np.ndarray, target: np.ndarray, k: int, tol: float = 1e-5, max_iters: int = 300
) -> np.ndarray:
    """A-IHT II as a NumPy user would write it from the paper: dense vectors, whole products.

    Args:
        atoms: shape (n, S).
        target: shape (S,).
        k: the number of rows allowed.
        tol: the paper's.
        max_iters: the paper's.

    Returns:
        The weights, shape (n,).
    """
    phi = np.ascontiguousarray(atoms.T)
    n = len(atoms)

    def project(v: np.ndarray) -> np.ndarray:
        top = np.argpartition(-v, k - 1)[:k]
        out = np.zeros_like(v)
        out[top] = np.maximum(v[top], 0)
        return out

    def ratio(a: Any, b: Any) -> Any:
        return a / b if b > 0 else 0.0

    w = z = np.zeros(n, atoms.dtype)
    for _ in range(max_iters):
        gradient = phi.T @ (target - phi @ z)
        support = z != 0
        outside = np.where(support, 0, np.abs(gradient))
        support[np.argpartition(-outside, k - 1)[:k]] = True
        restricted = np.where(support, gradient, 0)
        image = phi @ restricted
        x = project(z + ratio(restricted @ restricted, image @ image) * gradient)
        restricted = np.where(x > 0, phi.T @ (target - phi @ x), 0)
        image = phi @ restricted
        new = np.maximum(x + ratio(restricted @ restricted, image @ image) * restricted, 0)
        change = new - w
        image = phi @ change
        z = new + ratio((target - phi @ new) @ image, image @ image) * change
        stop = np.linalg.norm(change) <= tol * np.linalg.norm(new)
        w = new
        if stop:
            break
    return w


def _numpy_seconds(
    problem: jc.CoresetProblem, ks: np.ndarray, samples: int
) -> tuple[float, dict[int, float]]:
    """Seconds for all of `ks`, from some of them where there are many; and those ones' errors."""
    atoms = np.asarray(problem.atoms, np.float64)
    target = np.asarray(problem.target, np.float64)
    some = np.unique(np.linspace(0, len(ks) - 1, min(samples, len(ks))).round().astype(int))
    spent, errors = [], {}
    for k in ks[some].tolist():
        start = time.perf_counter()
        w = numpy_aiht2(atoms, target, k)
        spent.append(time.perf_counter() - start)
        errors[k] = float(np.linalg.norm(target - w @ atoms) / np.linalg.norm(target))
    return float(np.interp(ks, ks[some], spent).sum()), errors


def _batched(
    solver: jc.solvers.Solver | None, ks: np.ndarray
) -> Callable[[jc.CoresetProblem], jc.Solution]:
    """A sweep of each problem of a batch."""
    return jax.vmap(lambda problem: jc.sweep(problem, ks, solver))


def _spread(
    solver: jc.solvers.Solver | None, ks: np.ndarray, batch: jc.CoresetProblem, num_devices: int
) -> Callable[[], jc.Solution]:
    """The same with the batch shared out among devices, each of which goes on by itself."""
    along = PartitionSpec("problems")
    mesh = jax.make_mesh((num_devices,), ("problems",))
    placed = jax.device_put(batch, NamedSharding(mesh, along))
    shared = jax.shard_map(
        _batched(solver, ks), mesh=mesh, in_specs=along, out_specs=along, check_vma=False
    )
    call = jax.jit(shared)
    return lambda: call(placed)


def speed(data_dir: Path | None, quick: bool) -> list[dict[str, Any]]:
    """All k at once, alone and for a batch of problems, beside NumPy's A-IHT II for each k.

    A batch is solved under `vmap`; and, where there are several devices, shared out among them,
    which on a CPU are its cores.
    """
    cases = [("phishing_500", 20, 100, 25, SOLVERS)]
    if quick:
        cases = [("phishing_500", 4, 20, 10, SOLVERS)]
    else:
        pursuits = {name: SOLVERS[name] for name in ("MatchingPursuit", "default")}
        cases.append(("phishing", 1, 500, 6, pursuits))
    rows: list[dict[str, Any]] = []
    for name, num_problems, largest, samples, solvers in cases:
        batch = common.problems(name, data_dir, 500, num_problems)
        if batch is None:
            batch, name = common.synthetic_problems(500, 500, num_problems), "synthetic"
        one = jax.tree.map(lambda x: x[0], batch)
        ks = np.arange(1, largest + 1)
        numpy_seconds, numpy_errors = _numpy_seconds(one, ks, samples)
        head = {"data": name, "n": one.num_data, "S": one.num_draws, "k": f"1…{largest}"}
        rows.append(
            {
                **head,
                "problems": 1,
                "devices": 1,
                "solver": "NumPy A-IHT II",
                "warm": numpy_seconds,
            }
            | {"numpy ks timed": len(numpy_errors), "speedup": 1.0}
        )
        print(f"  {name}, NumPy: {numpy_seconds:.3g} s", flush=True)
        for solver_name, solver in solvers.items():
            # By the number of problems and of devices.
            calls: dict[tuple[int, int], Callable[[], jc.Solution]] = {
                (1, 1): lambda s=solver, p=one, ks=ks: jc.sweep(p, ks, s)
            }
            devices = jax.device_count()
            if num_problems > 1:
                together = jax.jit(_batched(solver, ks))
                calls[num_problems, 1] = lambda f=together, b=batch: f(b)
                if devices > 1 and num_problems % devices == 0 and solver_name != "AIHT2":
                    calls[num_problems, devices] = _spread(solver, ks, batch, devices)
            for (count, devices), call in calls.items():
                repeats, at_least = (2, 0.0) if quick else (3, _AT_LEAST)
                cold, warm, path = common.seconds(call, repeats, at_least)
                row = {**head, "problems": count, "devices": devices} | {
                    "solver": solver_name,
                    "cold": cold,
                    "warm": warm,
                    "speedup": numpy_seconds * count / warm,
                }
                if count == 1:
                    ours = np.asarray(path.relative_error)
                    ratios = [(ours[k - 1] / e) ** 2 for k, e in numpy_errors.items()]
                    row |= {
                        "median ratio": float(np.median(ratios)),
                        "worst ratio": float(max(ratios)),
                    }
                rows.append(row)
                label = f"{count} problems on {devices} devices"
                print(f"  {name}, {solver_name}, {label}: {warm:.3g} s", flush=True)
    columns = ["data", "n", "S", "k", "problems", "devices", "solver"]
    columns += ["cold", "warm", "speedup", "median ratio", "worst ratio"]
    print("\n" + common.table(rows, columns))
    print("\nratio: objective over NumPy A-IHT II's, float32 against float64")
    return rows


def _synthetic_atoms(key: jax.Array, n: int, num_draws: int) -> jax.Array:
    """Atoms as of a regression with 40 parameters: quadratics in the draws, and noise."""

    @jax.jit
    def make(key: jax.Array) -> jax.Array:
        left, right, noise = jax.random.split(key, 3)
        features = jax.random.normal(left, (n, 40)) / 40**0.5
        linear = features @ jax.random.normal(right, (40, num_draws))
        atoms = 0.3 * linear - 0.2 * linear**2
        atoms = atoms + 0.02 * jax.random.normal(noise, atoms.shape)
        return (atoms - atoms.mean(axis=1, keepdims=True)) / num_draws**0.5

    return make(key)


def _count_passes(run: Callable[[], Any]) -> tuple[Any, int]:
    """Run with the choices of candidates counted: each is a pass over all atoms."""
    passes = []
    choose = exchange_pursuit.choose_again

    def counted(*arguments: Any) -> Any:
        jax.debug.callback(lambda: passes.append(1))
        return choose(*arguments)

    exchange_pursuit.choose_again = counted
    try:
        result = jax.block_until_ready(run())
        jax.effects_barrier()
    finally:
        exchange_pursuit.choose_again = choose
    return result, len(passes)


def _memory(field: str, *, forget_peak: bool = False) -> float | None:
    """The process's resident memory or its peak in GB, as Linux has it; None elsewhere."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return None
    if forget_peak:
        Path("/proc/self/clear_refs").write_text("5")
    found = re.search(rf"{field}:\s+(\d+) kB", status.read_text())
    return int(found[1]) / 1e6 if found else None


def large(quick: bool) -> dict[str, Any]:
    """A problem whose atoms take 1.6 GB."""
    n, num_draws, k = (20_000, 200, 50) if quick else (200_000, 2000, 1000)
    problem = jc.CoresetProblem(_synthetic_atoms(jax.random.key(0), n, num_draws))
    jax.block_until_ready(problem)
    before = _memory("VmRSS", forget_peak=True)
    start = time.perf_counter()
    solution, passes = _count_passes(lambda: jc.solve(problem, k, jc.ExchangePursuit()))
    spent = time.perf_counter() - start
    peak = _memory("VmHWM")
    _, pursuit_seconds, pursuit = common.seconds(
        lambda: jc.solve(problem, k, jc.MatchingPursuit()), 0
    )
    row = {
        "n": n,
        "S": num_draws,
        "k": k,
        "seconds, cold": spent,
        "atoms, GB": problem.atoms.nbytes / 1e9,
        "peak beyond the atoms, GB": None if peak is None or before is None else peak - before,
        "passes": passes + 1,
        "moves": int(solution.num_iters),
        "relative error": float(solution.relative_error),
        "MatchingPursuit, seconds, cold": pursuit_seconds,
        "MatchingPursuit, relative error": float(pursuit.relative_error),
    }
    for key, value in row.items():
        print(f"{key}: {value:.4g}" if isinstance(value, float) else f"{key}: {value}")
    return row


def scaling(quick: bool, figures: Path | None) -> list[dict[str, Any]]:
    """Seconds of a warm sweep as one size grows, and the exponent of the upper half of it."""
    base = {"n": 1000, "S": 500, "k": 50, "batch": 1}
    grids = {
        "n": [500, 1000, 2000, 4000, 16000, 64000],
        "S": [250, 500, 1000, 2000],
        "k": [12, 25, 50, 100, 200],
        "batch": [1, 2, 4, 8, 16],
    }
    if quick:
        base = {"n": 300, "S": 100, "k": 10, "batch": 1}
        grids = {"n": [300, 1200], "k": [10, 20]}
    rows = []
    for axis, values in grids.items():
        for name in ("MatchingPursuit", "default"):
            spent = []
            for value in values:
                size = base | {axis: value}
                atoms = jnp.stack(
                    [
                        _synthetic_atoms(jax.random.key(i), size["n"], size["S"])
                        for i in range(size["batch"])
                    ]
                )
                batch = jax.vmap(jc.CoresetProblem)(atoms)
                ks, solver = np.arange(1, size["k"] + 1), SOLVERS[name]
                call = jax.jit(jax.vmap(lambda p, ks=ks, s=solver: jc.sweep(p, ks, s)))
                spent.append(common.seconds(lambda f=call, b=batch: f(b), 2)[1])
            half = len(values) // 2
            exponent = float(
                np.polyfit(np.log(values[half - 1 :]), np.log(spent[half - 1 :]), 1)[0]
            )
            rows.append(
                {"against": axis, "solver": name, "values": values, "seconds": spent}
                | {"exponent": exponent, "others": base}
            )
            print(f"  {name} against {axis}: exponent {exponent:.2f}", flush=True)
        if figures is not None:
            _figure(axis, [row for row in rows if row["against"] == axis], figures)
    return rows


def _figure(axis: str, rows: list[dict[str, Any]], folder: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(4.5, 3.2), layout="constrained")
    for row, (colour, marker) in zip(rows, [("#0072b2", "o"), ("#d55e00", "s")], strict=True):
        label = f"{row['solver']}, exponent {row['exponent']:.2f}"
        axes.loglog(row["values"], row["seconds"], marker=marker, color=colour, label=label)
    names = {"n": "atoms n", "S": "draws S", "k": "largest k of the sweep", "batch": "problems"}
    others = ", ".join(f"{k} = {v}" for k, v in rows[0]["others"].items() if k != axis)
    axes.set(xlabel=names[axis], ylabel="seconds, warm")
    values = rows[0]["values"]
    axes.set_xticks(values, labels=[f"{value:,}" for value in values], fontsize="small")
    axes.minorticks_off()
    axes.set_title(others, fontsize="small")
    axes.legend(frameon=False, fontsize="small")
    axes.grid(alpha=0.3)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"solvers_{axis}.png", dpi=150)
    plt.close(figure)
