"""NUTS on weighted rows: on a uniform subset as π̂, and on a coreset to repair a π̂."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PRNGKeyArray
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS

from jaxcoreset.host import at_least, host_generator
from jaxcoreset.laplace import Params
from jaxcoreset.likelihood import ModelLikelihood
from jaxcoreset.problem import HIGHEST
from jaxcoreset.weighting.base import DrawSource, Weighting

# Up to so many parameters the whole mass matrix is adapted, beyond its diagonal.
_DENSE = 100
_JITTER = 0.1


class SubsampleNUTS(Weighting):
    """π̂ as the posterior of a uniform subset of m rows, each counted n/m times, by NUTS.

    It has about the width of the full posterior, and its centre is about √(n/m) of the full
    posterior's standard deviations off; rounds mend that. It needs no mode.

    Args:
        num_rows: rows of the subset, m; all where there are no more.
        num_warmup: steps of adaptation of each chain.
        num_samples: draws that are made at a time; chains go on where more are wanted.
        num_chains: chains, run as one batch.
    """

    num_rows: int = 1000
    num_warmup: int = 500
    num_samples: int = 1000
    num_chains: int = 4

    def __check_init__(self):
        for name in ("num_rows", "num_warmup", "num_chains"):
            at_least(name, getattr(self, name), 1)
        at_least("num_samples", self.num_samples, 8 * self.num_chains)

    def fit(
        self, likelihood: ModelLikelihood, key: PRNGKeyArray, *, show_progress: bool = False
    ) -> "ChainDraws":
        """See `Weighting.fit`."""
        rows_key, jitter_key, key = jax.random.split(key, 3)
        n = likelihood.num_data
        size = min(self.num_rows, n)
        rows = np.sort(host_generator(rows_key).choice(n, size, replace=False))
        flat, _ = ravel_pytree(likelihood.init_params)
        shape = (self.num_chains, flat.size)
        starts = flat + jax.random.uniform(jitter_key, shape, flat.dtype, -_JITTER, _JITTER)
        sampler = CoresetSampler(
            likelihood,
            num_chains=self.num_chains,
            num_warmup=self.num_warmup,
            num_samples=self.num_samples,
        )
        return sampler.run(key, rows, np.full(size, n / size), starts)


class CoresetSampler:
    """NUTS on the posterior of weighted rows, compiled once for all weights and rows of one shape.

    It moves in coordinates z with θ = centre + scale · z, so that what is known of the posterior
    is a warm start of its mass matrix.

    Args:
        likelihood: the model's likelihood and data.
        num_chains: chains, run as one batch.
        num_warmup: steps of adaptation of each chain.
        num_samples: draws that are made at a time, of all chains together.
    """

    def __init__(
        self,
        likelihood: ModelLikelihood,
        *,
        num_chains: int = 4,
        num_warmup: int = 300,
        num_samples: int = 1000,
    ):
        self.likelihood = likelihood
        self.num_chains = num_chains
        flat, self.unravel = ravel_pytree(likelihood.init_params)

        def model(data: tuple, weights: Array, centre: Array, scale: Array) -> None:
            real = dist.constraints.real_vector
            z = numpyro.sample("z", dist.ImproperUniform(real, (), (flat.size,)))
            params = self.unravel(centre + jnp.matmul(scale, z, precision=HIGHEST))
            values = likelihood.log_likelihood(params, data)
            numpyro.factor("likelihood", jnp.vdot(weights, values, precision=HIGHEST))
            numpyro.factor("prior", likelihood.log_prior(params))

        self.mcmc = MCMC(
            NUTS(model, dense_mass=flat.size <= _DENSE),
            num_warmup=num_warmup,
            num_samples=max(8, -(-num_samples // num_chains)),
            num_chains=num_chains,
            chain_method="vectorized",
            progress_bar=False,
            jit_model_args=True,
        )

    def run(
        self,
        key: PRNGKeyArray,
        rows: Int[np.ndarray, " m"],
        weights: ArrayLike,
        starts: Float[ArrayLike, "c d"],
        covariance: Float[ArrayLike, "d d"] | None = None,
    ) -> "ChainDraws":
        """Adapt, and draw for the first time.

        Args:
            key: a JAX random key.
            rows: row numbers, shape (m,).
            weights: shape (m,).
            starts: a starting point for each chain, flat and unconstrained.
            covariance: what is known of the posterior's covariance, positive definite.
        """
        starts = jnp.asarray(starts)
        if covariance is None:
            scale = jnp.eye(starts.shape[1], dtype=starts.dtype)
        else:
            scale = jnp.asarray(np.linalg.cholesky(np.asarray(covariance, np.float64)))
            scale = scale.astype(starts.dtype)
        centre = starts[0]
        data = tuple(jnp.asarray(leaf) for leaf in self.likelihood.take(rows))
        args = (data, jnp.asarray(weights, starts.dtype), centre, scale)
        z = jax.scipy.linalg.solve_triangular(scale, (starts - centre).T, lower=True).T
        self.mcmc.post_warmup_state = None
        self.mcmc.run(key, *args, init_params={"z": z})
        return ChainDraws(self, key, args)

    def draws(self, args: tuple) -> Float[np.ndarray, "c s d"]:
        """The draws of the last run, flat and unconstrained, by chain."""
        _, _, centre, scale = args
        z = self.mcmc.get_samples(group_by_chain=True)["z"]
        return np.asarray(centre + jnp.einsum("csd,ed->cse", z, scale, precision=HIGHEST))


class ChainDraws(DrawSource):
    """Draws of chains that go on when more are wanted.

    Attributes:
        r_hat: the largest split Gelman–Rubin statistic of a parameter in the first run.
        num_divergent: divergent transitions in the first run.
    """

    def __init__(self, sampler: CoresetSampler, key: PRNGKeyArray, args: tuple):
        self._sampler, self._key, self._args = sampler, key, args
        self._state = sampler.mcmc.last_state
        first = sampler.draws(args)
        self._parts = [_interleave(first)]
        self.r_hat = float(np.max(split_gelman_rubin(first.astype(np.float64))))
        self.num_divergent = int(np.sum(sampler.mcmc.get_extra_fields()["diverging"]))
        effective = np.min(effective_sample_size(first.astype(np.float64)))
        num = first.shape[0] * first.shape[1]
        self._inefficiency = float(num / np.clip(effective, 1, num))

    @property
    def inefficiency(self) -> float:
        """See `DrawSource.inefficiency`; by the parameter with the smallest effective size."""
        return self._inefficiency

    def take(self, key: PRNGKeyArray, start: int, num: int) -> Params:
        """See `DrawSource.take`; the chains have a key of their own, and `key` is not used."""
        while sum(map(len, self._parts)) < start + num:
            self._go_on()
        flat = np.concatenate(self._parts)[start : start + num]
        return jax.vmap(self._sampler.unravel)(jnp.asarray(flat))

    def _go_on(self) -> None:
        mcmc = self._sampler.mcmc
        mcmc.post_warmup_state = self._state
        mcmc.run(jax.random.fold_in(self._key, len(self._parts)), *self._args)
        self._state = mcmc.last_state
        self._parts.append(_interleave(self._sampler.draws(self._args)))


def _interleave(draws: Float[np.ndarray, "c s d"]) -> Float[np.ndarray, "n d"]:
    """Draws of several chains in turn, so that any part of the sequence has all of them."""
    return np.swapaxes(draws, 0, 1).reshape(-1, draws.shape[-1])
