"""The library's default, and its Gaussian."""

import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import potential_energy

import jaxcoreset as jc
from benchmarks.posteriors.case import Case
from benchmarks.posteriors.density import in_float64
from benchmarks.posteriors.outcome import Outcome
from jaxcoreset.diagnostics.correction import CorrectionError

TOL = 0.01
_CHAINS, _WARMUP = 4, 1000


def default(
    case: Case, args: tuple, kwargs: Mapping[str, Any], key: Any, num_draws: int
) -> Outcome:
    """A coreset to `tol=0.01` without other settings, NUTS on it, and the correction."""
    build_key, nuts_key = jax.random.split(key)
    begin = _now()
    tol = jc.Tolerance(TOL, throw=False)  # the best coreset where the tolerance cannot be met
    builder = jc.CoresetBuilder(case.model, tol=tol, progress_bar=False, groups=case.groups)
    coreset = builder.run(build_key, *args, **kwargs)
    built = _now()
    chain_method: Any = jc.jit_chains  # for NumPyro's types it is text
    mcmc = MCMC(
        NUTS(coreset.model),
        num_warmup=_WARMUP,
        num_samples=num_draws // _CHAINS,
        num_chains=_CHAINS,
        chain_method=chain_method,
        progress_bar=False,
    )
    mcmc.run(
        nuts_key,
        *coreset.args,
        **coreset.kwargs,
        init_params=coreset.init_params(_CHAINS),
        extra_fields=("diverging", "num_steps"),
    )
    samples = jax.block_until_ready(mcmc.get_samples())
    sampled = _now()
    log_weights, correction = _corrected(coreset, mcmc)
    report, extra = coreset.report, mcmc.get_extra_fields()

    def log_density(unconstrained: Mapping[str, Any]) -> Any:
        own_args, own_kwargs = in_float64((coreset.args, dict(coreset.kwargs)))
        return -potential_energy(coreset.model, own_args, own_kwargs, dict(unconstrained))

    return Outcome(
        {name: np.asarray(samples[name], float) for name in case.parameters},
        log_density,
        log_weights=log_weights,
        info={
            "rows": len(coreset),
            "units": report.unit,
            "proxy": report.proxy,
            "weighting": report.weighting,
            "rounds": len(report.rounds),
            "estimated KL": report.kl,
            "its error": report.kl_standard_error,
            "is within tol": report.is_within_tol,
            "rows needed": report.rows_needed,
            "verdict": report.verdict,
            "estimated Gaussian KL": report.gaussian_kl,
            "divergences": int(np.sum(extra["diverging"])),
            "gradients per draw": float(np.mean(extra["num_steps"])),
            **correction,
            **_spent("build", begin, built),
            **_spent("NUTS", built, sampled),
            **_spent("correction", sampled, _now()),
        },
    )


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _spent(stage: str, begin: tuple[float, float], end: tuple[float, float]) -> dict[str, float]:
    return {f"{stage} s": end[0] - begin[0], f"{stage} CPU s": end[1] - begin[1]}


def _corrected(coreset: jc.Coreset, mcmc: MCMC) -> tuple[np.ndarray | None, dict[str, Any]]:
    try:
        found = jc.correct(coreset, mcmc, progress_bar=False)
    except CorrectionError as error:
        return None, {"k-hat": error.certificate.khat, "certified KL": error.certificate.kl}
    stats = found["sample_stats"]
    log_weights = np.asarray(stats["log_weight"], float).ravel()
    attributes = stats.attrs
    return log_weights, {"k-hat": attributes["khat"], "certified KL": attributes["kl"]}


METHODS = {"ours": default}
TITLES = {"ours": "jaxcoreset, tol = 0.01"}
