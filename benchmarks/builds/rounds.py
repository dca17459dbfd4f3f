"""How rounds mend a bad weighting: error by round, from starts that are off, on four models.

    python -m benchmarks.builds.rounds [--quick] [--data-dir DIR] [--output FILE.json]
                                       [--figure FILE.png]

Every start is built, sampled and built again until the builder stops by itself, at most five
times: ``CoresetBuilder(rounds=5)``. The starts: draws of the full posterior (NUTS on all rows), in
one round, to say what can be reached; the Laplace approximation; draws whose mean is three of the
posterior's standard deviations off in every parameter, and twice as wide; and the prior.

The error is the symmetrised KL divergence between full and coreset posterior, in nats. Without
normalisers it is E_π[L − L_w] − E_{π_w}[L − L_w], here by NUTS on all rows and on the coreset.
Below 0.3 nats that difference drowns in Monte Carlo error, and the variance of L − L_w over the
draws of the *full* posterior, which only the reference was built with, is taken instead.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS, Predictive

import jaxcoreset as jc
from benchmarks import common
from jaxcoreset.likelihood.embedding import log_likelihood_matrix, log_likelihood_sum
from jaxcoreset.weighting.nuts import CoresetSampler

ROUNDS = 5
_TRUSTED = 0.3
_COLUMNS = ["model", "start", "round", "true KL", "estimate", "own estimate", "stops"]


def hierarchical(group: Any, y: Any = None, num_groups: int = 50) -> None:
    """Group means about a common one; not centred, for a funnel has no mode to start from."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with numpyro.plate("groups", num_groups):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", group.shape[0]):
        numpyro.sample("y", dist.Normal(jnp.asarray(mu + tau * z)[group], sigma), obs=y)


def robust(x: Any, y: Any = None) -> None:
    """Student-t regression; its degrees of freedom are skewed."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([x.shape[1]]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    nu = numpyro.sample("nu", dist.Gamma(2.0, 0.1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.StudentT(nu, x @ beta, scale), obs=y)


def gamma(x: Any, y: Any = None) -> None:
    """Gamma regression with a logarithmic link and a positive shape."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    shape = numpyro.sample("shape", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Gamma(shape, shape * jnp.exp(-x @ beta)), obs=y)


def _covariates(rng: np.random.Generator, n: int, width: int) -> np.ndarray:
    return np.hstack([rng.normal(size=(n, width - 1)), np.ones((n, 1))]).astype(np.float32)


def cases(data_dir: Path | None) -> dict[str, tuple[Callable, tuple, int]]:
    """From a name to a model, its arguments, and the rows that a coreset may have."""
    rng = np.random.default_rng(0)
    found = {}
    logistic = common.load("ds1_500", data_dir)
    if logistic is not None:
        found["logistic, ds1_500"] = (logistic[0], logistic[1:], 75)
    group = np.repeat(np.arange(50), 5)
    y = 0.4 * rng.normal(size=50)[group] + rng.normal(size=group.size)
    found["hierarchical, 50 groups"] = (hierarchical, (group, y.astype(np.float32)), 90)
    x = _covariates(rng, 2000, 5)
    y = x @ np.array([1.0, -0.5, 0.3, 0.0, 2.0]) + 0.5 * rng.standard_t(4, size=2000)
    found["Student-t regression"] = (robust, (x, y.astype(np.float32)), 30)
    x = _covariates(rng, 1000, 4)
    y = rng.gamma(3.0, np.exp(x @ np.array([0.5, -0.3, 0.1, 1.0])) / 3.0)
    found["gamma, positive shape"] = (gamma, (x, y.astype(np.float32)), 20)
    return found


def full_posterior(model: Callable, args: tuple, num: int) -> dict[str, np.ndarray]:
    """Draws of NUTS on all rows, constrained."""
    mcmc = MCMC(
        NUTS(model),
        num_warmup=500,
        num_samples=num // 4,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(10), *args)
    samples = mcmc.get_samples(group_by_chain=True)
    # In turn, so that any part of them has all the chains.
    return {
        name: np.swapaxes(np.asarray(value), 0, 1).reshape(-1, *value.shape[2:])
        for name, value in samples.items()
    }


def starts(
    model: Callable, args: tuple, likelihood: jc.ModelLikelihood, full: dict[str, np.ndarray]
) -> dict[str, jc.Laplace | jc.Draws]:
    """The weightings to start from."""
    free = jax.vmap(likelihood.unconstrain)({name: full[name] for name in likelihood.init_params})
    shifted = jax.tree.map(
        lambda x: x.mean(0) + 3 * x.std(0) + 2 * (x - x.mean(0)),
        free,
    )
    prior = Predictive(model, num_samples=4000)(jax.random.key(11), *args)
    return {
        "posterior": jc.Draws(full),
        "Laplace": jc.Laplace(),
        "3 sd off, twice as wide": jc.Draws(jax.vmap(likelihood.constrain)(shifted)),
        "prior": jc.Draws({name: prior[name] for name in likelihood.init_params}),
    }


class Judge:
    """The true divergence of coresets of one model from its full posterior."""

    def __init__(self, likelihood: jc.ModelLikelihood, full: dict[str, np.ndarray]):
        self.likelihood = likelihood
        self.sampler = CoresetSampler(likelihood, num_samples=2000)
        self.draws = jax.vmap(likelihood.unconstrain)(
            {name: full[name] for name in likelihood.init_params}
        )

    def difference(self, draws: Any, coreset: jc.Coreset) -> np.ndarray:
        """L − L_w at draws, up to the same constant for any draws evaluated together."""
        evaluate = self.likelihood.log_likelihood
        total = log_likelihood_sum(evaluate, draws, self.likelihood.data)
        values = log_likelihood_matrix(evaluate, draws, self.likelihood.take(coreset.indices))
        return np.asarray(total, np.float64) - coreset.weights @ np.asarray(values, np.float64)

    def __call__(self, coreset: jc.Coreset, size: int) -> dict[str, float]:
        """The divergence by both ways, and the one that is to be trusted."""
        at = np.zeros((self.sampler.num_chains, 1)) + np.concatenate(
            [np.ravel(self.draws[name][0]) for name in sorted(self.draws)]
        )
        padding = size - len(coreset)
        rows = np.pad(coreset.indices, (0, padding))
        weights = np.pad(coreset.weights, (0, padding))
        own = self.sampler.run(jax.random.key(12), rows, weights, at).take(
            jax.random.key(0), 0, 2000
        )
        both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), self.draws, own)
        values = self.difference(both, coreset)
        here, there = np.split(values, [len(values) - 2000])
        variance, exact = float(np.var(here)), float(here.mean() - there.mean())
        return {
            "variance": variance,
            "difference": exact,
            "true KL": variance if variance < _TRUSTED else max(exact, 0.0),
        }


def run_one(
    name: str, model: Callable, args: tuple, size: int, quick: bool
) -> list[dict[str, Any]]:
    """The rows of one model."""
    begin = time.perf_counter()
    likelihood = jc.model_likelihood(model, args)
    full = full_posterior(model, args, 1000 if quick else 4000)
    judge = Judge(likelihood, full)
    print(f"{name}: NUTS on all rows, {time.perf_counter() - begin:.0f} s", flush=True)
    rows = []
    for start, weighting in starts(model, args, likelihood, full).items():
        begin = time.perf_counter()
        most = 1 if start == "posterior" else 2 if quick else ROUNDS
        builder = jc.CoresetBuilder(
            model, size, weighting=weighting, rounds=most, progress_bar=False, proxy=None
        )
        try:
            coresets = builder.run_rounds(jax.random.key(13), *args)
        except ValueError as error:
            print(f"{name}, {start}: no result: {error}")
            rows.append({"model": name, "start": start, "error": str(error)})
            continue
        for number, coreset in enumerate(coresets, 1):
            found = coreset.report.rounds[-1]
            rows.append(
                {
                    "model": name,
                    "start": start,
                    "size": size,
                    "round": number,
                    **judge(coreset, size),
                    "estimate": found["kl"],
                    "estimate error": found["kl_standard_error"],
                    "own estimate": found["own_kl"],
                    "own estimate error": found["own_kl_standard_error"],
                    "stops": "yes" if found["agrees"] else "",
                    "r_hat": found["r_hat"],
                    "divergent": found["num_divergent"],
                }
            )
            print(
                "  ", {k: v for k, v in rows[-1].items() if k not in ("model", "size")}, flush=True
            )
        print(f"{name}, {start}: {time.perf_counter() - begin:.0f} s", flush=True)
    return rows


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """The figure: a panel for each model, a line for each start."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    styles = {
        "Laplace": ("#0072B2", "s-"),
        "3 sd off, twice as wide": ("#D55E00", "o--"),
        "prior": ("#009E73", "^:"),
    }
    names = list(dict.fromkeys(row["model"] for row in rows))
    figure, axes = plt.subplots(
        1, len(names), figsize=(3.2 * len(names), 3.6), layout="constrained", squeeze=False
    )
    for ax, name in zip(axes[0], names, strict=True):
        found = [row for row in rows if row["model"] == name and "round" in row]
        reached = [row["true KL"] for row in found if row["start"] == "posterior"]
        for value in reached:
            ax.axhline(value, color="black", lw=1.2, label="built with the posterior's own draws")
        for start, (colour, style) in styles.items():
            line = [row for row in found if row["start"] == start]
            ax.plot(
                [row["round"] for row in line],
                [row["true KL"] for row in line],
                style,
                color=colour,
                ms=5,
                label=f"from {start}",
            )
        size = next((row["size"] for row in found), None)
        ax.set(yscale="log", title=f"{name}\n{size} rows", xlabel="round", xticks=range(1, 6))
        ax.set_xlim(0.7, 5.3)
        ax.title.set_fontsize(10)
        ax.grid(True, which="major", alpha=0.3)
    axes[0, 0].set_ylabel("symmetrised KL divergence [nats]")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    print(f"wrote {path}")


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two rounds, fewer draws")
    parser.add_argument(
        "--only", help="only models whose name has this in it; the output's other rows are kept"
    )
    parser.add_argument("--data-dir", type=Path, help="folder of the papers' data sets")
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    parser.add_argument("--figure", type=Path, help="where the figure goes")
    parser.add_argument("--redraw", type=Path, help="draw the figure of this JSON, and no more")
    options = parser.parse_args(arguments)
    if options.redraw:
        draw(json.loads(options.redraw.read_text())["rows"], options.figure)
        return
    rows: list[dict[str, Any]] = []
    if options.only and options.output and options.output.is_file():
        rows = json.loads(options.output.read_text())["rows"]
    for name, (model, args, size) in cases(options.data_dir).items():
        if options.only and options.only not in name:
            continue
        rows = [row for row in rows if row["model"] != name]
        rows += run_one(name, model, args, size, options.quick)
        common.write(
            options.output,
            {"benchmark": "rounds", "environment": common.environment(), "rows": rows},
        )
    print("\n" + common.table(rows, _COLUMNS))
    if options.figure:
        draw(rows, options.figure)


if __name__ == "__main__":
    main()
