"""NUTS on weighted rows: on a uniform subset as π̂, and on a coreset to improve a π̂."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PRNGKeyArray
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer.hmc import HMCState, hmc

from jaxcoreset.data.dtypes import as_float64, default_float
from jaxcoreset.data.utils import check_int, host_generator
from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params
from jaxcoreset.likelihood.precision import needs_float64
from jaxcoreset.solvers.numerics import HIGHEST
from jaxcoreset.weighting.base import DrawSource, Weighting

# Maximum number of parameters for a dense mass matrix; beyond, only its diagonal is adapted.
_DENSE = 100
_JITTER = 0.1
_STEPS_PER_CALL = 50


class SubsampleNUTS(Weighting):
    """π̂ as the posterior of a uniform subset of m rows, each counted n/m times, by NUTS.

    It has about the width of the full posterior, and its centre is about √(n/m) of the full
    posterior's standard deviations off; further rounds correct that. It needs no mode.

    Args:
        num_rows: the number of rows of the subset, m; all rows if there are fewer.
        num_warmup: the number of adaptation steps of each chain.
        num_samples: the number of draws made at a time; chains continue if more are needed.
        num_chains: the number of chains, run as one batch.
    """

    num_rows: int = 1000
    num_warmup: int = 500
    num_samples: int = 1000
    num_chains: int = 4

    def __check_init__(self):
        for name in ("num_rows", "num_warmup", "num_chains"):
            check_int(name, getattr(self, name), 1)
        check_int("num_samples", self.num_samples, 8 * self.num_chains)

    def fit(
        self, likelihood: ModelLikelihood, key: PRNGKeyArray, *, show_progress: bool = False
    ) -> "ChainDraws":
        """See `Weighting.fit`."""
        rows_key, jitter_key, key = jax.random.split(key, 3)
        n = likelihood.num_data
        size = min(self.num_rows, n)
        indices = np.sort(host_generator(rows_key).choice(n, size, replace=False))
        flat, _ = ravel_pytree(likelihood.init_params)
        shape = (self.num_chains, flat.size)
        starts = flat + jax.random.uniform(jitter_key, shape, flat.dtype, -_JITTER, _JITTER)
        settings = {x: getattr(self, x) for x in ("num_chains", "num_warmup", "num_samples")}
        sampler = CoresetSampler(likelihood, **settings)
        return sampler.run(key, indices, np.full(size, n / size), starts)


class CoresetSampler:
    """NUTS on the posterior of weighted rows, compiled once for all weights and rows of one shape.

    It moves in coordinates z with θ = centre + scale · z, so that a known covariance of the
    posterior is a warm start of the mass matrix. Chains are a batch in one compiled function. For
    long tables they run in float64, see `likelihood.precision`.

    Args:
        likelihood: the model's likelihood and data.
        num_chains: the number of chains, run as one batch.
        num_warmup: the number of adaptation steps of each chain, rounded up to a multiple of 50.
        num_samples: the number of draws made at first, of all chains together, rounded up likewise.
        max_tree_depth: the maximum number of doublings of a trajectory.
    """

    def __init__(
        self,
        likelihood: ModelLikelihood,
        *,
        num_chains: int = 4,
        num_warmup: int = 300,
        num_samples: int = 1000,
        max_tree_depth: int = 10,
    ):
        self.likelihood = likelihood
        self.num_chains = num_chains
        self.num_warmup = -(-num_warmup // _STEPS_PER_CALL) * _STEPS_PER_CALL
        self.num_samples = num_samples
        self._in_float64 = needs_float64(likelihood, likelihood.num_data)
        flat, self.unravel = ravel_pytree(likelihood.init_params)
        with self._precision():
            _, unravel = ravel_pytree(self._exact(likelihood.init_params))

        def potential(data: tuple, weights: Array, centre: Array, scale: Array) -> Callable:
            def energy(z: Array) -> Float[Array, ""]:
                params = unravel(centre + jnp.matmul(scale, z, precision=HIGHEST))
                values = likelihood.log_likelihood(params, data)
                total = jnp.vdot(weights, values, precision=HIGHEST)
                return -total - likelihood.log_prior(params)

            return energy

        begin, move = hmc(potential_fn_gen=potential, algo="NUTS")

        settings = {"dense_mass": flat.size <= _DENSE, "max_tree_depth": max_tree_depth}

        @jax.jit
        def start(keys: Array, z: Array, args: tuple) -> HMCState:
            def start_one(key: Array, at: Array) -> HMCState:
                return begin(at, self.num_warmup, model_args=args, rng_key=key, **settings)

            return jax.vmap(start_one)(keys, z)

        @jax.jit
        def advance(state: HMCState, args: tuple) -> tuple[HMCState, tuple[Array, Array]]:
            def step(state: HMCState, _: None) -> tuple[HMCState, tuple[Array, Array]]:
                state = jax.vmap(lambda one: move(one, args))(state)
                return state, (state.z, state.diverging)

            return jax.lax.scan(step, state, None, length=_STEPS_PER_CALL)

        self._start, self._advance = start, advance

    def run(
        self,
        key: PRNGKeyArray,
        indices: Int[np.ndarray, " m"],
        weights: ArrayLike,
        starts: ArrayLike,
        covariance: ArrayLike | None = None,
    ) -> "ChainDraws":
        """Adapt the chains and make the first draws.

        Args:
            key: a JAX random key.
            indices: the row numbers, shape (m,).
            weights: the rows' weights, shape (m,).
            starts: a starting point for each chain, flat and unconstrained, shape (chains, D).
            covariance: an estimate of the posterior's covariance, shape (D, D), positive definite.
        """
        with self._precision():
            starts = jnp.asarray(starts, default_float())
            width = starts.shape[1]
            known = np.eye(width) if covariance is None else np.asarray(covariance, np.float64)
            scale = jnp.asarray(np.linalg.cholesky(known), starts.dtype)
            data = tuple(jnp.asarray(self._exact(leaf)) for leaf in self.likelihood.take(indices))
            args = (data, jnp.asarray(weights, starts.dtype), starts[0], scale)
            z = solve_triangular(scale, (starts - starts[0]).T, lower=True).T
            state = self._start(jax.random.split(key, self.num_chains), z, args)
            for _ in range(self.num_warmup // _STEPS_PER_CALL):
                state, _ = self._advance(state, args)
            return ChainDraws(self, state, args)

    def _precision(self) -> Any:
        return jax.enable_x64(True) if self._in_float64 else contextlib.nullcontext()

    def _exact(self, values: Any) -> Any:
        return jax.tree.map(as_float64, values) if self._in_float64 else values

    def go_on(
        self, state: HMCState, args: tuple, num: int
    ) -> tuple[HMCState, Float[np.ndarray, "s c d"], int]:
        """Continue the chains: the state, at least `num` draws in all, and how many diverged."""
        parts, divergent = [], 0
        while len(parts) * _STEPS_PER_CALL * self.num_chains < num:
            with self._precision():
                state, (z, diverging) = self._advance(state, args)
            parts.append(np.asarray(z))
            divergent += int(jnp.sum(diverging))
        _, _, centre, scale = args
        z = np.concatenate(parts)
        return state, np.asarray(centre) + z @ np.asarray(scale).T, divergent


class ChainDraws(DrawSource):
    """Draws of chains that continue if more are needed.

    Attributes:
        r_hat: the largest split Gelman–Rubin statistic of a parameter in the first run.
        num_divergent: the number of divergent transitions in the first run.
        inefficiency: that of the parameter with the smallest effective size.
    """

    def __init__(self, sampler: CoresetSampler, state: HMCState, args: tuple):
        self._sampler, self._args = sampler, args
        self._state, first, self.num_divergent = sampler.go_on(state, args, sampler.num_samples)
        self._flat = _in_turn(first)
        by_chain = np.swapaxes(first, 0, 1).astype(np.float64)
        self.r_hat = float(np.max(split_gelman_rubin(by_chain)))
        effective = np.nan_to_num(np.min(effective_sample_size(by_chain)))
        self.inefficiency = float(len(self._flat) / np.clip(effective, 1, len(self._flat)))

    def take(self, key: PRNGKeyArray, start: int, num: int) -> Params:
        """See `DrawSource.take`; the chains have a key of their own, and `key` is not used."""
        missing = start + num - len(self._flat)
        if missing > 0:
            self._state, more, _ = self._sampler.go_on(self._state, self._args, missing)
            self._flat = np.concatenate([self._flat, _in_turn(more)])
        return jax.vmap(self._sampler.unravel)(jnp.asarray(self._flat[start : start + num]))


def _in_turn(draws: Float[np.ndarray, "s c d"]) -> Float[np.ndarray, "n d"]:
    """Draws of the chains in turn, so that any part of the sequence has draws of all chains."""
    return draws.reshape(-1, draws.shape[-1])
