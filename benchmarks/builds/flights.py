"""The flights data end to end: a coreset built to a tolerance, against NUTS on all rows and HMCECS.

Parts, of which `--parts` picks some; the others' results are kept in the file that is written:

- ``truth``: long NUTS on all rows in float64, several chains; only moments, their Monte Carlo
  errors and R-hat are stored. The other parts are compared with it.
- ``full``: NUTS on all rows in float32, as a user would run it, timed.
- ``coreset``: ``CoresetBuilder(late_arrival, size=20)`` and NUTS on the coreset, timed, with the
  same numbers of draws.
- ``alone``: the same with ``tol=0.01, proxy=None``, for a coreset of rows alone.
- ``hmcecs``: NumPyro's HMCECS with a Taylor proxy, at the settings of NumPyro's own example.

Parts compile programs that later parts use, so run one part in a process to time it.

Run as ``python -m benchmarks.builds.flights``; ``--quick`` takes 20,000 rows and few draws.
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
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import HMCECS, MCMC, NUTS, SVI, Trace_ELBO, autoguide

import jaxcoreset as jc
from benchmarks import common
from jaxcoreset.command.flights import late_arrival, load_flights

PARTS = ("truth", "full", "coreset", "alone", "hmcecs")
# The settings of NumPyro's example of HMCECS.
_SUBSAMPLE, _BLOCKS, _SVI_STEPS, _HMCECS_DRAWS = 1300, 100, 5000, 500


def truth(
    features: np.ndarray, late: np.ndarray, chains: int, warmup: int, draws: int
) -> dict[str, Any]:
    """Summary statistics of the posterior of all rows, by NUTS in float64."""
    with jax.enable_x64(True):
        start = time.perf_counter()
        mcmc = MCMC(
            NUTS(late_arrival),
            num_warmup=warmup,
            num_samples=draws,
            num_chains=chains,
            chain_method="sequential",
            progress_bar=False,
        )
        mcmc.run(jax.random.key(100), features.astype(float), late, extra_fields=("num_steps",))
        spent = time.perf_counter() - start
        found = np.asarray(mcmc.get_samples(group_by_chain=True)["beta"], np.float64)
        gradients = int(np.sum(mcmc.get_extra_fields()["num_steps"]))
    flat = found.reshape(-1, found.shape[-1])
    size = effective_sample_size(found)
    sd = flat.std(axis=0, ddof=1)
    return {
        "how": f"NumPyro NUTS, float64, {chains} chains of {warmup} warm-up and {draws} draws",
        "rows": len(late),
        "mean": flat.mean(axis=0).tolist(),
        "sd": sd.tolist(),
        "covariance": np.cov(flat.T).tolist(),
        "standard error of the mean": (sd / np.sqrt(size)).tolist(),
        "effective draws": [float(size.min()), float(size.max())],
        "largest R-hat": float(split_gelman_rubin(found).max()),
        "gradients after warm-up": gradients,
        "seconds": spent,
    }


def _sampled(
    name: str, draws: np.ndarray, seconds: float, known: dict[str, Any], **more: Any
) -> dict[str, Any]:
    """Time and accuracy of some draws, in the truth's standard deviations."""
    size = float(effective_sample_size(draws[None]).min())
    mean, sd = np.asarray(known["mean"]), np.asarray(known["sd"])
    ratios = draws.std(axis=0, ddof=1) / sd
    return {
        "method": name,
        "seconds": seconds,
        "draws": len(draws),
        "effective draws": size,
        "effective draws per second": size / seconds,
        "largest error of a mean, in sd": float(np.max(np.abs(draws.mean(axis=0) - mean) / sd)),
        "its Monte Carlo error, in sd": float(size**-0.5),
        "sd ratio": [float(ratios.min()), float(ratios.max())],
        **more,
    }


def _nuts(
    model: Callable, args: tuple, draws: int, seed: int, init: Any = None
) -> tuple[np.ndarray, float]:
    start = time.perf_counter()
    mcmc = MCMC(NUTS(model), num_warmup=draws, num_samples=draws, progress_bar=False)
    mcmc.run(jax.random.key(seed), *args, init_params=init)
    found = np.asarray(mcmc.get_samples()["beta"], np.float64)
    return found, time.perf_counter() - start


def full(features: np.ndarray, late: np.ndarray, draws: int, known: dict) -> dict[str, Any]:
    """NUTS on all rows as a user would run it."""
    found, spent = _nuts(late_arrival, (features, late), draws, seed=1)
    return _sampled("NUTS on all rows", found, spent, known)


def coreset(
    features: np.ndarray, late: np.ndarray, draws: int, known: dict, name: str, **settings: Any
) -> dict[str, Any]:
    """A coreset, NUTS on it, and its certificate."""
    start = time.perf_counter()
    built = jc.CoresetBuilder(late_arrival, progress_bar=False, **settings).run(
        jax.random.key(0), features, late
    )
    build = time.perf_counter() - start
    found, spent = _nuts(built.model, built.args, draws, seed=2, init=built.init_params())
    start = time.perf_counter()
    certificate = jc.certify(built, {"beta": found}, progress_bar=False)
    report = built.report
    return _sampled(
        name,
        found,
        build + spent,
        known,
        **{
            "settings": {name: value or repr(value) for name, value in settings.items()},
            "rows": len(built.indices),
            "Gaussian": report.gaussian_kl,
            "estimated KL": report.kl,
            "its standard error": report.kl_standard_error,
            "certificate": certificate.scalars(),
            "seconds to build": build,
            "seconds of NUTS": spent,
            "seconds of the certificate": time.perf_counter() - start,
        },
    )


def _subsampled(features: Any, late: Any, subsample_size: int | None) -> None:
    """`late_arrival`, in the form that HMCECS takes."""
    n, d = features.shape
    beta = numpyro.sample("beta", dist.Normal(jnp.zeros(d), jnp.ones(d)).to_event(1))
    with numpyro.plate("flights", n, subsample_size=subsample_size):
        x = numpyro.subsample(features, event_dim=1)
        y = numpyro.subsample(late, event_dim=0)
        numpyro.sample("late", dist.Bernoulli(logits=jnp.matmul(x, beta)), obs=y)


def hmcecs(features: np.ndarray, late: np.ndarray, known: dict, quick: bool) -> dict[str, Any]:
    """NumPyro's HMCECS, at the settings of its example."""
    svi_steps, draws = (200, 50) if quick else (_SVI_STEPS, _HMCECS_DRAWS)
    data = jnp.asarray(features), jnp.asarray(late)
    svi_key, key = jax.random.split(jax.random.key(3))
    start = time.perf_counter()
    svi = SVI(_subsampled, autoguide.AutoDelta(_subsampled), numpyro.optim.Adam(1e-3), Trace_ELBO())
    fitted = svi.run(svi_key, svi_steps, *data, _SUBSAMPLE, progress_bar=False).params
    proxy = HMCECS.taylor_proxy({"beta": fitted["beta_auto_loc"]})
    kernel = HMCECS(NUTS(_subsampled), num_blocks=_BLOCKS, proxy=proxy)
    mcmc = MCMC(kernel, num_warmup=draws, num_samples=draws, progress_bar=False)
    mcmc.run(key, *data, _SUBSAMPLE)
    found = np.asarray(mcmc.get_samples()["beta"], np.float64)
    return _sampled("HMCECS", found, time.perf_counter() - start, known)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="20,000 rows and few draws")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--tol", type=float, default=0.01, help="for rows alone")
    parser.add_argument("--output", type=Path, help="a JSON file to write or to add to")
    options = parser.parse_args()

    features, late, names = load_flights()
    draws, chains, warmup, long_draws = 1000, 2, 500, 1500
    if options.quick:
        rows = np.random.default_rng(0).choice(len(late), 20_000, replace=False)
        features, late = features[rows], late[rows]
        draws, chains, warmup, long_draws = 200, 1, 200, 300
    result: dict[str, Any] = {"benchmark": "flights", "quick": options.quick}
    if options.output and options.output.is_file():
        result |= json.loads(options.output.read_text())
    result |= {"environment": common.environment(), "parameters": names, "rows": len(late)}

    for part in PARTS:
        if part not in options.parts:
            continue
        if part == "truth":
            result[part] = truth(features, late, chains, warmup, long_draws)
        elif part == "full":
            result[part] = full(features, late, draws, result["truth"])
        elif part == "coreset":
            name = "build, and NUTS on the coreset"
            result[part] = coreset(features, late, draws, result["truth"], name, size=20)
        elif part == "alone":
            name, settings = "the same, of rows alone", {"tol": options.tol, "proxy": None}
            result[part] = coreset(features, late, draws, result["truth"], name, **settings)
        else:
            result[part] = hmcecs(features, late, result["truth"], options.quick)
        common.write(options.output, result)
        print(json.dumps({k: v for k, v in result[part].items() if k != "covariance"}, indent=1))
    columns = [
        "method",
        "seconds",
        "effective draws",
        "effective draws per second",
        "largest error of a mean, in sd",
        "its Monte Carlo error, in sd",
    ]
    rows_found = [result[part] for part in PARTS[1:] if part in result]
    print("\n" + common.table(rows_found, columns))


if __name__ == "__main__":
    main()
