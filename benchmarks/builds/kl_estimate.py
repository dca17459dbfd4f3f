"""The held-out estimate of the symmetrised KL against what draws from the true posterior say.

For each of the six small data sets, NUTS on all rows gives draws of the posterior π. At them the
differences L_w − L of the two log-likelihoods are log importance ratios of the coreset posterior
π_w, so that both KL divergences are averages over the draws, as in a certificate with π and π_w
exchanged. No Gaussian approximation is involved, as it is in the third figure, the KL between two
Laplace approximations. Importance sampling holds where its k-hat is below 0.7; elsewhere the two
posteriors are too far apart for it.

Run as ``python -m benchmarks.builds.kl_estimate``; ``--quick`` takes two data sets and two sizes.
"""

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS

import jaxcoreset as jc
from benchmarks import common
from jaxcoreset.diagnostics.gaussian import laplace_divergence
from jaxcoreset.diagnostics.measurement import certificate_of
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.weighting.laplace import LaplaceFitter
from jaxcoreset.weighting.psis import MAX_KHAT

# Above this many nats the estimate is reported as a lower bound.
_BOUND = 0.3
# Below this many, differences are rounding of the log-likelihoods in float32.
_LEAST = 1e-8


def posterior_draws(model: Any, args: tuple, num_draws: int) -> tuple[dict[str, jax.Array], float]:
    """Unconstrained draws of the posterior of all rows, and the least effective number of them."""
    mcmc = MCMC(
        NUTS(model, dense_mass=True), num_warmup=1000, num_samples=num_draws, progress_bar=False
    )
    mcmc.run(jax.random.key(5), *args)
    theta = mcmc.get_samples()["theta"]  # the models' only site, and unconstrained
    return {"theta": theta}, float(effective_sample_size(np.asarray(theta)[None]).min())


def differences(
    likelihood: ModelLikelihood, coreset: jc.Coreset, draws: dict[str, jax.Array]
) -> np.ndarray:
    """L − L_w at the draws, added in float64."""

    @jax.jit
    def rows(draw: dict[str, jax.Array]) -> jax.Array:
        return likelihood.log_likelihood(draw, likelihood.data)

    weights = np.ones(likelihood.num_data)
    weights[coreset.indices] -= np.asarray(coreset.weights, np.float64)
    values = [
        np.asarray(rows({name: value[i] for name, value in draws.items()}), np.float64)
        for i in range(len(draws["theta"]))
    ]
    return np.stack(values) @ weights


def measure(
    name: str, data_dir: Path | None, ks: list[int], num_draws: int
) -> list[dict[str, Any]] | None:
    """One row per size for one data set; None where it is missing."""
    found = common.load(name, data_dir)
    if found is None:
        return None
    model, *args = found
    likelihood = jc.model_likelihood(model, tuple(args))
    draws, effective = posterior_draws(model, tuple(args), num_draws)
    draws = {site: jnp.asarray(value) for site, value in draws.items()}
    fit = LaplaceFitter(likelihood)
    full = fit()
    rows = []
    for k in ks:
        coreset = jc.CoresetBuilder(model, k, progress_bar=False, proxy=None).run(
            jax.random.key(k), *args
        )
        estimate, error = coreset.report.kl, coreset.report.kl_standard_error
        truth = certificate_of(
            -differences(likelihood, coreset, draws)[None],
            effective / num_draws,
            num_data=likelihood.num_data,
            num_rows=len(coreset),
        )
        dense = np.zeros(likelihood.num_data)
        dense[coreset.indices] = coreset.weights
        laplace = laplace_divergence(full, fit(weights=dense, start=full.params()))
        rows.append(
            {
                "data": name,
                "k": k,
                "estimate": estimate,
                "standard error": error,
                "true KL": truth.kl,
                "its standard error": truth.kl_standard_error,
                "k-hat": truth.khat,
                "estimate / true": estimate / truth.kl,
                "Laplace KL": laplace.symmetrised,
                "effective draws": effective,
                "lower bound": estimate >= _BOUND,
            }
        )
        print(f"  {name}, k = {k}: {estimate:.3g}, true {truth.kl:.3g}", flush=True)
    return rows


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two data sets, two sizes")
    parser.add_argument("--data-dir", type=Path, help="folder of the papers' data sets")
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    options = parser.parse_args()
    names = common.SIX[:2] if options.quick else common.SIX
    ks, num_draws = ([20, 50], 500) if options.quick else ([10, 20, 50, 100], 4000)
    rows: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    for name in names:
        rows += measure(name, options.data_dir, ks, num_draws) or []
        # What importance sampling can judge, and float32's rounding of log-likelihoods leaves.
        judged = [
            r
            for r in rows
            if r["k-hat"] < MAX_KHAT and r["true KL"] >= _LEAST and not r["lower bound"]
        ]
        ratios = [r["estimate / true"] for r in judged]
        summary = {
            "cells between 1e-8 and 0.3 nats": len(judged),
            "within a factor of two": sum(0.5 <= r <= 2 for r in ratios),
            "least and largest ratio": [min(ratios), max(ratios)] if ratios else None,
        }
        common.write(
            options.output,
            {
                "benchmark": "kl_estimate",
                "quick": options.quick,
                "environment": common.environment(),
                "summary": summary,
                "rows": rows,
            },
        )
    columns = ["data", "k", "estimate", "standard error", "true KL", "k-hat", "estimate / true"]
    print("\n" + common.table(rows, [*columns, "Laplace KL"]))
    for key, value in summary.items():
        print(f"{key}: {value}")


if __name__ == "__main__":
    main()
