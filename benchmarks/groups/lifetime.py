"""Part `lifetime`: a million customers, each with a purchase rate and a dropout probability.

The model is the BG/NBD of Fader, Hardie and Lee (2005, Marketing Science 24(2)): a customer buys
at a rate λ ~ Gamma(r, α) until they drop out, with probability p ~ Beta(a, b) after each purchase.
Both are integrated out in closed form, so that customers are rows. α depends on a predictor.
"""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS

import jaxcoreset as jc

TRUTH = {"a": 0.8, "alpha": 4.4, "b": 2.5, "r": 0.9, "gamma": 0.3}


class BetaGeometric(dist.Distribution):
    """Repeat purchases x and the time of the last one of a customer who is watched for a time T.

    Args:
        r: the shape of the gamma distribution of purchase rates.
        alpha: its rate.
        a: the first parameter of the beta distribution of dropout probabilities.
        b: the second one.
        duration: the time T.
    """

    support: Any = dist.constraints.independent(dist.constraints.real, 1)
    pytree_data_fields = ("r", "alpha", "a", "b", "duration")

    def __init__(self, r: Any, alpha: Any, a: Any, b: Any, duration: Any):
        self.r, self.alpha, self.a, self.b, self.duration = r, alpha, a, b, duration
        super().__init__(jnp.broadcast_shapes(jnp.shape(alpha), jnp.shape(duration)), (2,))

    def log_prob(self, value: Any, intermediates: Any = None) -> Any:
        """Equation (6) of the paper, in logarithms."""
        x, last = value[..., 0], value[..., 1]
        r, alpha, a, b = self.r, self.alpha, self.a, self.b
        rates = gammaln(r + x) - gammaln(r) + r * jnp.log(alpha)
        dropout = gammaln(b + x) - gammaln(b) + gammaln(a + b) - gammaln(a + b + x)
        alive = -(r + x) * jnp.log(alpha + self.duration)
        gone = jnp.log(a) - jnp.log(b + jnp.maximum(x, 1) - 1) - (r + x) * jnp.log(alpha + last)
        return rates + dropout + jnp.where(x > 0, jnp.logaddexp(alive, gone), alive)


def customers(group: Any, duration: Any, purchases: Any = None) -> None:
    """The model: `group` is a predictor of α, and `purchases` holds x and the last one's time."""
    r, alpha, a, b = (
        numpyro.sample(name, dist.LogNormal(0.0, 1.0)) for name in ("r", "alpha", "a", "b")
    )
    gamma: Any = numpyro.sample("gamma", dist.Normal(0.0, 1.0))
    with numpyro.plate("customers", group.shape[0]):
        own = BetaGeometric(r, alpha * jnp.exp(-gamma * group), a, b, duration)
        numpyro.sample("purchases", own, obs=purchases)


def simulate(num: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The arguments of `customers`, with the parameters of `TRUTH` and weeks of a year."""
    rng = np.random.default_rng(seed)
    group = rng.normal(size=num)
    duration = rng.uniform(10, 52, num)
    alpha = TRUTH["alpha"] * np.exp(-TRUTH["gamma"] * group)
    rate = rng.gamma(TRUTH["r"], 1 / alpha)
    most = rng.geometric(np.maximum(rng.beta(TRUTH["a"], TRUTH["b"], num), 1e-9))
    bought = rng.poisson(rate * duration)
    x = np.minimum(bought, most)
    # The x-th of `bought` times that are uniform in the duration.
    last = duration * rng.beta(np.maximum(x, 1), bought - x + 1) * (x > 0)
    purchases = np.column_stack([x, last]).astype(np.float32)
    return group.astype(np.float32), duration.astype(np.float32), purchases


def measure(num: int, tol: float = 0.01, num_held_out: int = 250) -> dict[str, Any]:
    """A coreset of that many customers, NUTS on it, and what was recovered."""
    args = simulate(num)
    begin, cpu = time.perf_counter(), time.process_time()
    builder = jc.CoresetBuilder(customers, tol=tol, num_held_out=num_held_out, progress_bar=False)
    coreset = builder.run(jax.random.key(0), *args)
    seconds, build_cpu = time.perf_counter() - begin, time.process_time() - cpu
    begin = time.perf_counter()
    mcmc = MCMC(NUTS(coreset.model), num_warmup=500, num_samples=1000, progress_bar=False)
    init = coreset.init_params()
    mcmc.run(jax.random.key(1), *coreset.args, **coreset.kwargs, init_params=init)
    draws = {name: np.asarray(x, float) for name, x in mcmc.get_samples().items()}
    nuts_seconds = time.perf_counter() - begin
    certificate = jc.certify(coreset, mcmc, num_draws=200, progress_bar=False)
    report = coreset.report
    return {
        "customers": num,
        "rows": report.num_used,
        "precision": report.precision,
        "KL": report.kl,
        "KL of a Gaussian": report.gaussian_kl,
        "certified KL": certificate.kl,
        "build s": seconds,
        "build CPU s": build_cpu,
        "NUTS s": nuts_seconds,
        "CPU s": time.process_time() - cpu,
        "parameters": [
            {
                "parameter": name,
                "simulated with": TRUTH[name],
                "mean": float(x.mean()),
                "sd": float(x.std()),
                "error, sd": float((x.mean() - TRUTH[name]) / x.std()),
                "effective": float(effective_sample_size(x[None])),
            }
            for name, x in sorted(draws.items())
        ],
    }
