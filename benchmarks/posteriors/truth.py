"""Part `truth`: NUTS on all rows in float64, and the Gaussian's distance from it.

What is stored for each case: 2,000 thinned draws of the unconstrained compared sites in float32,
the log-density at them, means, standard deviations and quantiles of the sites' own values from all
draws, R-hat and effective draws, and the distance of the Gaussian at the mode.
"""

import json
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.handlers import reparam
from numpyro.infer import MCMC, NUTS
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import initialize_model
from scipy.optimize import minimize

from benchmarks.posteriors.case import Case
from benchmarks.posteriors.density import FOLDER, Posterior
from benchmarks.posteriors.measure import divergence

CHAINS, KEPT = 4, 2000
QUANTILES = (0.05, 0.5, 0.95)
_JUDGED = 500


class Settings(NamedTuple):
    """How NUTS runs on all rows: draws of each chain, warm-up, acceptance, a dense mass matrix."""

    draws: int = 500
    warmup: int = 200
    accept: float = 0.8
    dense: bool = True


SETTINGS = {
    "cauchy": Settings(2000, 500, 0.9),
    "unidentifiable": Settings(1500, 500, 0.9),
    "mixture": Settings(2000, 800, 0.9),
    "horseshoe": Settings(3000, 1000, 0.99, dense=False),
    "rare-events": Settings(500, 150),
    "wide-logistic": Settings(500, 100),
    "item-response": Settings(3000, 400),
    "groups-5000": Settings(3000, 400, 0.9),
}


class Gaussian(NamedTuple):
    """The Gaussian at the mode of the unconstrained compared parameters."""

    mean: np.ndarray
    covariance: np.ndarray

    def log_density(self, flat: np.ndarray) -> np.ndarray:
        """Unnormalised, at draws of shape (s, D)."""
        white = np.linalg.solve(np.linalg.cholesky(self.covariance), (flat - self.mean).T)
        return -0.5 * np.sum(white**2, axis=0)

    def draws(self, num: int, seed: int = 0) -> np.ndarray:
        """Draws, shape (num, D)."""
        normal = np.random.default_rng(seed).normal(size=(num, len(self.mean)))
        return self.mean + normal @ np.linalg.cholesky(self.covariance).T


def gaussian(posterior: Posterior) -> Gaussian | None:
    """The Gaussian at the mode; None where there is no mode or the Hessian is not definite."""
    arrays = posterior.arrays

    def potential(flat: Any, arrays: Any) -> Any:
        return -posterior.log_density(posterior.split(flat), arrays)

    value_and_grad = jax.jit(jax.value_and_grad(potential))

    @jax.jit
    def hessian(flat: Any, arrays: Any) -> Any:
        def column(direction: Any) -> Any:
            return jax.jvp(lambda u: jax.grad(potential)(u, arrays), (flat,), (direction,))[1]

        return jax.lax.map(column, jnp.eye(len(flat)))

    def at(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = value_and_grad(jnp.asarray(flat), arrays)
        return float(value), np.asarray(slope, float)

    start = 0.1 * np.random.default_rng(0).normal(size=posterior.dims)
    for _ in range(3):
        options = {"maxiter": 500, "maxfun": 1500, "ftol": 1e-15, "gtol": 1e-6}
        start = minimize(at, start, jac=True, method="L-BFGS-B", options=options).x
    matrix = np.eye(posterior.dims)
    for _ in range(20):  # Newton's steps from there
        matrix = np.asarray(hessian(jnp.asarray(start), arrays))
        value, slope = at(start)
        if not np.isfinite(matrix).all() or np.linalg.eigvalsh(matrix)[0] <= 0:
            return None
        step = np.linalg.solve(matrix, slope)
        size = 1.0
        while size > 1e-3 and not at(start - size * step)[0] <= value:
            size /= 2
        start = start - size * step
        if slope @ step < 1e-12:
            break
    covariance = np.linalg.inv(matrix)
    return Gaussian(start, (covariance + covariance.T) / 2)


def sample(case: Case, posterior: Posterior, start: Gaussian | None, settings: Settings) -> Any:
    """NUTS on all rows; the samples by chain, and facts."""
    args, kwargs = posterior.args, posterior.kwargs
    config: Any = {name: LocScaleReparam(much) for name, much in (case.centred or {}).items()}
    model = reparam(posterior.model, config=config)
    sites = list(posterior.shapes)
    mass: dict[str, Any] = {"dense_mass": [tuple(sites)] if settings.dense else False}
    init: Any = None
    if start is not None and settings.dense:
        rng = np.random.default_rng(1)
        around = start.mean + np.sqrt(np.diag(start.covariance)) * rng.uniform(
            -1, 1, (CHAINS, posterior.dims)
        )
        init = {k: jnp.asarray(v) for k, v in posterior.split(around).items()}
        if case.centred is None and settings.dense:
            # NUTS lays sites side by side by their names.
            by_name = sorted(sites)
            position = posterior.split(np.arange(posterior.dims))
            order = np.concatenate([position[name].ravel() for name in by_name])
            mass["inverse_mass_matrix"] = {
                tuple(by_name): jnp.asarray(start.covariance[np.ix_(order, order)])
            }
            mass["dense_mass"] = [tuple(by_name)]
    if init is not None and case.groups is not None:
        found = initialize_model(
            jax.random.key(3), model, model_args=args, model_kwargs=kwargs
        ).param_info.z
        init = {
            name: init.get(name, jnp.zeros((CHAINS, *jnp.shape(value))))
            for name, value in found.items()
        }
    kernel = NUTS(model, target_accept_prob=settings.accept, **mass)
    mcmc = MCMC(
        kernel,
        num_warmup=settings.warmup,
        num_samples=settings.draws,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    begin, cpu = time.perf_counter(), time.process_time()
    fields = ("diverging", "num_steps")
    mcmc.run(jax.random.key(2), *args, **kwargs, init_params=init, extra_fields=fields)
    samples = jax.block_until_ready(mcmc.get_samples(group_by_chain=True))
    extra = mcmc.get_extra_fields()
    facts = {
        "draws": CHAINS * settings.draws,
        "warmup": settings.warmup,
        "seconds": time.perf_counter() - begin,
        "CPU s": time.process_time() - cpu,
        "gradients per draw": float(np.mean(extra["num_steps"])),
        "divergent": int(np.sum(extra["diverging"])),
    }
    return {name: np.asarray(samples[name]) for name in case.parameters}, facts


def _num_rows(case: Case) -> int:
    return max(len(x) for x in case.make()[0] if np.ndim(x))


def measure(case: Case) -> None:
    """Sample the truth of a case and store it."""
    posterior = Posterior(case)
    begin = time.perf_counter()
    start = gaussian(posterior)
    print(f"{case.name}: the mode in {time.perf_counter() - begin:.0f} s", flush=True)
    settings = SETTINGS.get(case.name, Settings())
    samples, facts = sample(case, posterior, start, settings)
    facts["R-hat"] = max(float(np.max(split_gelman_rubin(x))) for x in samples.values())
    facts["effective"] = min(float(np.min(effective_sample_size(x))) for x in samples.values())
    joined = {name: x.reshape(-1, *x.shape[2:]) for name, x in samples.items()}
    own = case.flat(joined)
    thin = np.linspace(0, len(own) - 1, KEPT).round().astype(int)
    free = posterior.flat(posterior.unconstrain({k: v[thin] for k, v in joined.items()}))
    free = free.astype(np.float32)
    log_density = posterior.log_densities(free.astype(float))
    facts |= {"name": case.name, "rows": _num_rows(case), "parameters": posterior.dims}
    if start is None:
        facts["Gaussian"] = None
    else:
        theirs = start.draws(_JUDGED)
        with np.errstate(over="ignore"):
            facts["Gaussian"] = divergence(
                log_density - start.log_density(free.astype(float)),
                posterior.log_densities(theirs) - start.log_density(theirs),
            )
    FOLDER.mkdir(parents=True, exist_ok=True)
    np.savez(
        FOLDER / f"truth_{case.name}.npz",
        unconstrained=free,
        log_density=log_density,
        mean=own.mean(axis=0),
        sd=own.std(axis=0),
        quantiles=np.quantile(own, QUANTILES, axis=0),
        facts=json.dumps(facts),
    )
    print(json.dumps(facts), flush=True)
