"""Part `truth`: NUTS on all rows, in float64, against NUTS on coresets with a proxy and without.

With draws of both posteriors the symmetrised KL divergence is E_π[L − L_w] − E_w[L − L_w], which
needs no normalisers. Its Monte Carlo error is large where the divergence is below 0.1 or so. There
the variance of L − L_w over the draws of the full posterior is told beside it.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import initialize_model, log_density

import jaxcoreset as jc
from benchmarks.posteriors.density import in_float64
from benchmarks.proxy import data
from benchmarks.proxy.data import Case

CHAINS = 4
# Optimisations from outside start at these distances, in posterior standard deviations.
_DISTANCES = (3.0, 6.0, 12.0, 50.0)
_STARTS = 8
_SECOND_MODE = 0.5
_PROXIES = {"rows alone": None, "proxy + rows": jc.Taylor()}


class Chains:
    """Draws of one posterior, in float64.

    Args:
        model: a NumPyro model.
        args: its arguments.
        num_draws: of each chain.
        seed: of the random numbers.
        init: unconstrained parameters to start from.
    """

    def __init__(self, model: Callable, args: tuple, num_draws: int, seed: int, init: Any = None):
        begin = time.perf_counter()
        with jax.enable_x64(True):
            mcmc = MCMC(
                NUTS(model, dense_mass=True),
                num_warmup=num_draws // 2 + 200,
                num_samples=num_draws,
                num_chains=CHAINS,
                chain_method="vectorized",
                progress_bar=False,
            )
            if init is not None:
                init = jax.tree.map(
                    lambda x: jnp.broadcast_to(jnp.asarray(x, float), (CHAINS, *np.shape(x))), init
                )
            key = jax.random.key(seed)
            mcmc.run(key, *in_float64(args), init_params=init, extra_fields=("diverging",))
            by_chain = mcmc.get_samples(group_by_chain=True)
            self.divergent = int(np.sum(mcmc.get_extra_fields()["diverging"]))
            self.samples = {name: np.asarray(value) for name, value in by_chain.items()}
        self.seconds = time.perf_counter() - begin
        self.r_hat = max(float(np.max(split_gelman_rubin(x))) for x in self.samples.values())
        sizes = [np.min(effective_sample_size(x)) for x in self.samples.values()]
        self.effective = float(min(sizes))

    @property
    def joined(self) -> dict[str, np.ndarray]:
        """All chains' draws, by site."""
        return {k: v.reshape(-1, *v.shape[2:]) for k, v in self.samples.items()}

    def free(self, likelihood: jc.ModelLikelihood) -> np.ndarray:
        """The draws as flat unconstrained parameters, shape (s, D)."""
        with jax.enable_x64(True):
            found = jax.vmap(likelihood.unconstrain)(self.joined)
            parts = [np.asarray(found[name], float) for name in sorted(found)]
        return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def log_densities(
    model: Callable, args: tuple, kwargs: Mapping[str, Any], samples: dict[str, np.ndarray]
) -> np.ndarray:
    """Log p(data, θ) at draws of the constrained parameters, in float64."""
    with jax.enable_x64(True):
        given: tuple[tuple, dict] = in_float64(args), in_float64(dict(kwargs))

        @jax.jit
        def evaluate(samples: Any) -> jax.Array:
            return jax.lax.map(
                lambda one: log_density(model, *given, one)[0], samples, batch_size=50
            )

        return np.asarray(evaluate(jax.tree.map(jnp.asarray, samples)))


def moments_divergence(a: np.ndarray, b: np.ndarray) -> float:
    """The symmetrised KL divergence of the two Gaussians with the moments of draws."""
    first, second = np.atleast_2d(np.cov(a.T)), np.atleast_2d(np.cov(b.T))
    shift = a.mean(axis=0) - b.mean(axis=0)
    inverses = np.linalg.inv(first), np.linalg.inv(second)
    traces = np.trace(inverses[0] @ second) + np.trace(inverses[1] @ first) - 2 * len(shift)
    return float(0.5 * (traces + shift @ (inverses[0] + inverses[1]) @ shift))


def second_modes(coreset: jc.Coreset, mean: np.ndarray, sd: np.ndarray) -> dict[str, Any]:
    """Modes that Newton-like searches from outside find, and their distances, in sd of the truth.

    Args:
        coreset: the coreset.
        mean: of the full posterior, flat and unconstrained.
        sd: its standard deviations.
    """
    from jax.flatten_util import ravel_pytree
    from scipy.optimize import minimize

    with jax.enable_x64(True):
        args, kwargs = in_float64(coreset.args), in_float64(dict(coreset.kwargs))
        found = initialize_model(
            jax.random.key(0), coreset.model, model_args=args, model_kwargs=kwargs
        )
        _, unravel = ravel_pytree(found.param_info.z)
        potential = jax.jit(
            jax.value_and_grad(lambda u: found.potential_fn(unravel(mean + sd * u)))
        )
        rng = np.random.default_rng(0)
        ends, values = [], []
        for distance in (0.0, *_DISTANCES):
            for _ in range(_STARTS if distance else 1):
                direction = rng.normal(size=mean.size)
                start = distance * direction / np.linalg.norm(direction)
                end = minimize(
                    lambda u: tuple(np.asarray(x, float) for x in potential(u)),
                    start,
                    jac=True,
                    method="L-BFGS-B",
                    options={"maxiter": 2000, "maxfun": 4000},
                )
                ends.append(end.x)
                values.append(float(end.fun))
    apart = np.abs(np.stack(ends) - ends[0]).max(axis=1)
    others = np.flatnonzero((apart > _SECOND_MODE) & np.isfinite(values))
    return {
        "searches": len(ends),
        "farthest end, in sd": float(apart.max()),
        "second modes": int(others.size),
        "best of them less the mode, nats": float(values[0] - min(values[i] for i in others))
        if others.size
        else None,
    }


def compare(
    case: Case, full: Chains, likelihood: jc.ModelLikelihood, coreset: jc.Coreset, num_draws: int
) -> dict[str, Any]:
    """NUTS on a coreset against NUTS on all rows."""
    free = full.free(likelihood)
    mean, sd = free.mean(axis=0), free.std(axis=0)
    # From far starts the chains of a bad coreset would not come back; the truth's mean is fair.
    begin = dict(coreset.init_params())
    own = Chains(coreset.model, (*coreset.args,), num_draws, 2, begin)
    theirs = own.free(likelihood)
    here, there = full.joined, own.joined
    both = {name: np.concatenate([here[name], there[name]]) for name in here}
    differences = log_densities(case.model, case.args, {}, both) - log_densities(
        coreset.model, coreset.args, coreset.kwargs, both
    )
    under, over = np.split(differences, [len(free)])
    error = np.sqrt(under.var() / full.effective + over.var() / own.effective)
    return {
        "sKL from both samples": float(under.mean() - over.mean()),
        "its standard error": float(error),
        "variance under the truth": float(under.var()),
        "sKL of moments": moments_divergence(free, theirs),
        "largest error of a mean, in sd": float(np.max(np.abs(theirs.mean(axis=0) - mean) / sd)),
        "sd ratio": [float(f(theirs.std(axis=0) / sd)) for f in (np.min, np.max)],
        "farthest draw, in sd": float(np.max(np.abs(theirs - mean) / sd)),
        "farthest draw of the truth, in sd": float(np.max(np.abs(free - mean) / sd)),
        "divergent": own.divergent,
        "R-hat": own.r_hat,
        "effective draws": own.effective,
        **second_modes(coreset, mean, sd),
    }


def measure(case: Case, ks: list[int], num_draws: int) -> list[dict[str, Any]]:
    """The rows of one case."""
    full = Chains(case.model, case.args, num_draws, 1)
    likelihood = jc.model_likelihood(case.model, case.args)
    print(f"   {case.name}: NUTS {full.seconds:.0f} s, R-hat {full.r_hat:.4f}", flush=True)
    rows = []
    for k in ks:
        for name, proxy in _PROXIES.items():
            if proxy is None and k != ks[0]:
                continue
            builder = jc.CoresetBuilder(case.model, k, proxy=proxy, progress_bar=False)
            coreset = builder.run(jax.random.key(k), *case.args)
            row: dict[str, Any] = {
                "data": case.name,
                "n": case.num_rows,
                "k": k,
                "what": name,
                "rows": len(coreset),
                "Gaussian": coreset.report.gaussian_kl,
                "estimate": coreset.report.kl,
                "estimate's error": coreset.report.kl_standard_error,
                "rounds": len(coreset.report.rounds),
                "R-hat of the truth": full.r_hat,
                "effective draws of the truth": full.effective,
            }
            row |= compare(case, full, likelihood, coreset, num_draws)
            rows.append(row)
            print("  ", {k: v for k, v in row.items() if k != "n"}, flush=True)
    return rows


def jobs(quick: bool, data_dir: Path | None, only: str | None) -> dict[str, Callable[[], Any]]:
    """What is measured, by name."""
    if quick:
        return {"rare events": lambda: measure(data.rare_events(), [5], 200)}
    ours = {"rare events": data.rare_events(), "few rows, Student-t": data.few_and_robust()}
    sets: dict[str, tuple[Case | None, list[int]]] = {
        name: (case, [5, 10]) for name, case in ours.items()
    }
    named: list[tuple[str, int | None, list[int]]] = [
        ("ds1_500", None, [10, 20, 50]),
        ("ds1", 4000, [10]),
        ("airportdelays_500", None, [10]),
        ("biketrips_500", None, [5]),
        ("phishing_500", None, [5]),
    ]
    for name, num_rows, ks in named:
        shown = name if num_rows is None else f"{name} ({num_rows:,})"
        if only in (None, shown):
            sets[shown] = data.paper_case(name, data_dir, num_rows), ks
    return {
        name: lambda case=case, ks=ks: measure(case, ks, 1000)
        for name, (case, ks) in sets.items()
        if case is not None
    }
