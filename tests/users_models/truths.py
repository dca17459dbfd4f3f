"""Find the true posteriors of the models, and write them to `truths.json`.

    python -m tests.users_models.truths [NAME ...] [--nuts]

For each model, or each one named: a mode of the posterior of all rows, then importance sampling in
float64 from a Student-t distribution, whose location and covariance follow the weighted draws. If
the weights cannot be trusted (k-hat of 0.5 or more), the same from the moments of NUTS in float64
on all rows, and otherwise the draws of NUTS are kept. With `--nuts` it runs for all models, from
dispersed starts, to see that there is no other mode.
"""

import argparse
import contextlib
import dataclasses
import json
import time

import jax
import numpy as np
import scipy.optimize
from jax.flatten_util import ravel_pytree
from numpyro.diagnostics import split_gelman_rubin
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import initialize_model

import jaxcoreset as jc
from jaxcoreset.weighting.psis import pareto_smooth
from tests.users_models.case import Case
from tests.users_models.models import POSTERIORS
from tests.users_models.truth import (
    FILE,
    Truth,
    in_64_bits,
    log_posterior,
    over_draws,
)

# Draws of a batch, and the batches of each round.
_NUM_DRAWS, _NUM_BATCHES = 2000, (1, 1, 10)
_MAX_KHAT, _MAX_RHAT = 0.5, 1.02
# Draws of NUTS that are written to the file.
_MOST_KEPT = 600


def start_of(case: Case) -> Truth:
    """The shapes of the parameters, with any location; call it with x64."""
    args, kwargs = in_64_bits((case.args, case.kwargs))
    key = jax.random.key(0)
    found = initialize_model(key, case.shared, model_args=args, model_kwargs=kwargs)
    start = found.param_info.z
    flat = np.asarray(ravel_pytree(start)[0])
    return Truth({name: x.shape for name, x in start.items()}, flat, np.eye(flat.size))


def at_mode(case: Case, start: Truth) -> Truth:
    """A Gaussian at a mode of the posterior; call it with x64."""
    evaluate = log_posterior(case.shared, case.args, case.kwargs, start)
    both = jax.jit(jax.value_and_grad(lambda flat: -evaluate(flat)))
    hessian = jax.jit(jax.hessian(lambda flat: -evaluate(flat)))
    mode = scipy.optimize.minimize(
        lambda flat: tuple(np.asarray(x, float) for x in both(flat)),
        0.1 * start.mean,
        jac=True,
        hess=lambda flat: np.asarray(hessian(flat)),
        method="trust-exact",
    ).x
    covariance = np.linalg.inv(np.asarray(hessian(mode)))
    np.linalg.cholesky(covariance)
    return Truth(start.shapes, mode, covariance)


def sampled(case: Case, guess: Truth) -> Truth:
    """The posterior by NUTS on all rows, with some draws; call it with x64."""
    evaluate = log_posterior(case.shared, case.args, case.kwargs, guess)
    mcmc = MCMC(
        NUTS(potential_fn=lambda flat: -evaluate(flat), target_accept_prob=0.9),
        num_warmup=600,
        num_samples=1500,
        num_chains=2,
        chain_method=jc.jit_chains,
        progress_bar=False,
    )
    starts = np.random.default_rng(2).uniform(-1, 1, size=(2, guess.mean.size))
    mcmc.run(jax.random.key(1), init_params=jax.numpy.asarray(starts))
    chains = np.asarray(mcmc.get_samples(group_by_chain=True))
    rhat = np.max(split_gelman_rubin(chains))
    if not rhat < _MAX_RHAT:
        raise RuntimeError(f"R-hat of NUTS is {rhat:.3f}; expected one below {_MAX_RHAT}")
    draws = chains.reshape(-1, chains.shape[-1])
    covariance = np.atleast_2d(np.cov(draws.T))
    kept = draws[:: -(-len(draws) // _MOST_KEPT)]
    return Truth(guess.shapes, draws.mean(0), covariance, ess=len(kept), draws=kept)


def refined(case: Case, truth: Truth) -> Truth:
    """The mean and covariance by importance sampling, in a few rounds; call it with x64."""
    evaluate = over_draws(log_posterior(case.shared, case.args, case.kwargs, truth))
    for number, num_batches in enumerate(_NUM_BATCHES, 1):
        seeds = [100 * number + batch for batch in range(num_batches)]
        batches = [truth.proposals(_NUM_DRAWS, seed) for seed in seeds]
        draws = np.concatenate([draws for draws, _ in batches])
        ratios = [np.asarray(evaluate(draws)) - density for draws, density in batches]
        log_weights, khat = pareto_smooth(np.concatenate(ratios))
        weights = np.exp(log_weights)
        mean = weights @ draws
        apart = draws - mean
        covariance = (apart.T * weights) @ apart
        truth = Truth(truth.shapes, mean, covariance, khat, 1 / (weights**2).sum())
    return truth


def find(case: Case, with_nuts: bool) -> Truth:
    """The true posterior: by importance sampling, or else by NUTS; a RuntimeError if both fail."""
    with jax.enable_x64(True):
        start = start_of(case)
        truth, nuts = start, None
        with contextlib.suppress(np.linalg.LinAlgError):
            truth = refined(case, at_mode(case, start))
        if with_nuts or not truth.khat < _MAX_KHAT:
            nuts = sampled(case, start)
            if not truth.khat < _MAX_KHAT:
                truth = refined(case, dataclasses.replace(nuts, draws=None))
    if nuts is None:
        return truth
    if not truth.khat < _MAX_KHAT:
        return nuts
    sd = np.sqrt(np.diag(truth.covariance))
    difference = float(np.max(np.abs(nuts.mean - truth.mean) / sd))
    return dataclasses.replace(truth, nuts=difference)


def as_json(truth: Truth) -> dict:
    """A truth in plain lists; of the covariance the lower triangle."""
    return {
        "shapes": {name: list(shape) for name, shape in truth.shapes.items()},
        "mean": _rounded(truth.mean),
        "covariance": _rounded(np.tril(truth.covariance)),
        "khat": None if np.isnan(truth.khat) else float(f"{truth.khat:.2g}"),
        "ess": round(truth.ess),
        **({} if truth.draws is None else {"draws": _rounded(truth.draws, 5)}),
        **({} if truth.nuts is None else {"nuts": float(f"{truth.nuts:.2g}")}),
    }


def _rounded(values: np.ndarray, digits: int = 6) -> list:
    if values.ndim > 1:
        return [_rounded(row, digits) for row in values]
    return [float(f"{x:.{digits}g}") for x in values]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--nuts", action="store_true")
    options = parser.parse_args()
    found = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in options.names or POSTERIORS:
        started = time.perf_counter()
        try:
            truth = find(POSTERIORS[name](), options.nuts)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        found[name] = as_json(truth)
        seconds = time.perf_counter() - started
        print(
            f"{name}: D {truth.mean.size}, k-hat {truth.khat:.2f}, ess {truth.ess:.0f}, "
            f"NUTS {truth.nuts} sd off, {seconds:.0f} s",
            flush=True,
        )
        lines = [
            f"{json.dumps(name)}: {json.dumps(found[name])}" for name in POSTERIORS if name in found
        ]
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
