"""SparseVI's time and divergence beside GIGA's whole path: what the paper's factor 10⁴ comes to.

    python -m benchmarks.builds.sparse_vi [--quick] [--data-dir DIR] [--output FILE.json]

Both give the solutions of every k up to the largest. "cold" is the first call, compilation
included, "warm" the median without it. SparseVI's is the time of its iterations alone, GIGA's that
of `sweep` on a problem that is there already: neither counts finding the Laplace approximation
that GIGA's draws and the divergences come from. "ratio" is over GIGA's warm time. Divergences are
Laplace to Laplace, in nats; "reverse" is KL(π_w‖π), which SparseVI makes small. The same on a
Gaussian mean, where the coreset posterior is known in closed form.
"""

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import jaxcoreset as jc
from benchmarks import common
from jaxcoreset.builders.sparse_vi import SparseVI
from jaxcoreset.solvers import GIGA
from jaxcoreset.weighting.laplace import LaplaceApproximation, laplace_approximation

_DIMENSION = 20
# What the papers do, and what is cheaper or better.
VARIANTS: dict[str, dict[str, Any]] = {
    "SparseVI": {},
    "SparseVI, redraw_every=10": {"redraw_every": 10},
    "SparseVI, redraw_every=10, 2/√t": {
        "redraw_every": 10,
        "learning_rate": lambda t: 2 / jnp.sqrt(t),
    },
}


def gaussian(x: Any) -> None:
    """The papers' Gaussian model: x_n ~ N(θ, I), θ ~ N(0, I)."""
    theta = numpyro.sample("theta", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("x", dist.Normal(theta, 1).to_event(1), obs=x)


def gaussian_posterior(weights: Any, rows: Any, key: Any, num: int) -> dict[str, jax.Array]:
    """Draws of the Gaussian model's posterior, in closed form."""
    variance = 1 / (1 + jnp.sum(weights))
    normal = jax.random.normal(key, (num, rows[0].shape[1]))
    return {"theta": variance * (weights @ rows[0]) + jnp.sqrt(variance) * normal}


def divergences(full: LaplaceApproximation, other: LaplaceApproximation) -> tuple[float, float]:
    """KL(other‖full) and KL(full‖other) of two Gaussians."""

    def kl(one: LaplaceApproximation, two: LaplaceApproximation) -> float:
        precision = np.linalg.inv(two.covariance)
        difference = two.mode - one.mode
        logs = np.linalg.slogdet(two.covariance)[1] - np.linalg.slogdet(one.covariance)[1]
        trace = np.trace(precision @ one.covariance) - len(one.mode)
        return float(0.5 * (trace + difference @ precision @ difference + logs))

    return kl(other, full), kl(full, other)


def vi_times(
    vi: SparseVI, arguments: tuple, repeats: int
) -> tuple[float, float, dict[int, jc.Coreset]]:
    """Cold and warm seconds of SparseVI's iterations, and its path."""
    compiled, warm, path = [], [], {}
    for _ in range(repeats):
        path = vi.run_path(jax.random.key(0), *arguments)
        seconds = path[max(path)].report.seconds
        compiled.append(seconds["compilation"])
        warm.append(seconds["choices and weights"])
    return compiled[0] + warm[0], statistics.median(warm), path


def run(
    model: Callable, arguments: tuple, size: int, num_draws: int, repeats: int, **sampler: Any
) -> list[dict[str, Any]]:
    """Rows of the table for one model and its data."""
    likelihood = jc.model_likelihood(model, arguments)
    full = laplace_approximation(likelihood)
    draws = full.draws(jax.random.key(1), 500)
    problem = jc.embed(likelihood.log_likelihood, draws, likelihood.data)
    ks = [k for k in (10, 20, 50, 100) if k <= size]

    def row(name: str, cold: float, warm: float, weights: dict[int, np.ndarray]) -> dict[str, Any]:
        result: dict[str, Any] = {"method": name, "cold": cold, "warm": warm}
        for k, dense in weights.items():
            small = laplace_approximation(likelihood, weights=dense, start=full.params())
            reverse, forward = divergences(full, small)
            result |= {f"reverse {k}": reverse, f"symmetrised {k}": reverse + forward}
        return result

    cold, giga_warm, path = common.seconds(
        lambda: jc.sweep(problem, jnp.arange(1, size + 1), GIGA()), max(repeats, 5)
    )
    dense = np.asarray(jax.vmap(lambda s: s.dense(likelihood.num_data))(path))
    rows = [row("GIGA", cold, giga_warm, {k: dense[k - 1] for k in ks})]
    for name, options in VARIANTS.items():
        vi = SparseVI(model, size, num_draws=num_draws, progress_bar=False, **options, **sampler)
        cold, warm, coresets = vi_times(vi, arguments, repeats)
        weights = {}
        for k in ks:
            weights[k] = np.zeros(likelihood.num_data)
            weights[k][coresets[k].indices] = coresets[k].weights
        rows.append(row(name, cold, warm, weights))
        print(f"  {name}: {warm:.3g} s", flush=True)
    for result in rows:
        result["ratio"] = result["warm"] / giga_warm
    return rows


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, under two minutes")
    parser.add_argument("--data-dir", type=Path, help="folder of the papers' data sets")
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    options = parser.parse_args(arguments)
    size, num_draws, repeats = (20, 50, 1) if options.quick else (50, 100, 3)
    results = {}
    found = common.load("phishing_500", options.data_dir)
    if found is not None:
        model, z, y = found
        print(f"phishing_500: n = {len(z)}, k = 1 … {size}, S = {num_draws}")
        results["phishing_500"] = run(model, (z, y), size, num_draws, repeats)
    if found is None or not options.quick:
        x = np.random.default_rng(0).normal(1.0, 1.0, size=(500, _DIMENSION)).astype(np.float32)
        name = f"Gaussian mean in {_DIMENSION} dimensions, closed form"
        print(f"{name}: n = {len(x)}, k = 1 … {size}, S = {num_draws}")
        results[name] = run(gaussian, (x,), size, num_draws, repeats, sampler=gaussian_posterior)
    for name, rows in results.items():
        print(f"\n{name}\n" + common.table(rows, list(dict.fromkeys(k for r in rows for k in r))))
    common.write(
        options.output,
        {
            "benchmark": "sparse_vi",
            "size": size,
            "num_draws": num_draws,
            "repeats": repeats,
            "environment": common.environment(),
            "rows": results,
        },
    )


if __name__ == "__main__":
    main()
