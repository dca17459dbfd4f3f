"""NUTS on weighted rows: on a uniform subset as π̂, and on a coreset to improve a π̂."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
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

from jaxcoreset.data.compiling import quick_jit
from jaxcoreset.data.dtypes import default_float, widened
from jaxcoreset.data.utils import check_int, host_generator
from jaxcoreset.likelihood.expansion import Proxy
from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params
from jaxcoreset.likelihood.precision import MAX_ENERGY_ERROR, energy_error
from jaxcoreset.solvers.numerics import HIGHEST
from jaxcoreset.weighting.base import DrawSource, Weighting
from jaxcoreset.weighting.chains import Transitions, mixing_trouble
from jaxcoreset.weighting.errors import UnusableWeightingError
from jaxcoreset.weighting.jit_chains import map_chains

# Maximum number of parameters for a dense mass matrix; beyond, only its diagonal is adapted.
_DENSE = 100
_JITTER = 0.1
_STEPS_PER_CALL = 50
# The number of points at which rounding is measured.
_NUM_POINTS = 8
# How often chains that have not mixed continue.
_MAX_EXTENSIONS = 3
# The number of models and settings whose compiled chains are kept for later builds.
_MOST_KERNELS = 16

# The position, whether a transition diverged, and the energy, of each step and chain.
Steps = tuple[Array, Array, Array]


class SubsampleNUTS(Weighting):
    """π̂ as the posterior of a uniform subset of m rows, each counted n/m times, by NUTS.

    It is about as wide as the full posterior, and its centre is off by about √(n/m) of the full
    posterior's standard deviations; further rounds correct this. It needs no mode.

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
        draws = sampler.run(key, indices, np.full(size, n / size), starts)
        if draws.trouble is not None:
            raise UnusableWeightingError(
                f"the chains of SubsampleNUTS on {size:,} rows have not mixed: {draws.trouble}. "
                "Raise num_warmup or num_rows, write the model so that NUTS mixes (a non-centred "
                "hierarchy, tighter priors, scaled parameters), or pass draws of your own: "
                "weighting=Draws(samples).",
                f"its chains on {size:,} rows have not mixed ({draws.trouble})",
            )
        return draws


@functools.lru_cache(maxsize=_MOST_KERNELS)
def _kernel(
    program: ModelLikelihood, num_warmup: int, max_tree_depth: int
) -> tuple[Callable, Callable]:
    """The start of a batch of chains, and some steps of it, compiled."""

    def potential(
        data: tuple, weights: Array, centre: Array, scale: Array, proxy: Proxy | None
    ) -> Callable:
        def energy(z: Array) -> Float[Array, ""]:
            flat = centre + jnp.matmul(scale, z, precision=HIGHEST)
            params = program.unravel(flat)
            values = program.log_likelihood(params, data)
            values = jnp.where(weights > 0, values, 0)  # of slots that are not used
            total = jnp.vdot(weights, values, precision=HIGHEST)
            total = total if proxy is None else proxy.log_likelihood(flat, total)
            return -total - program.log_prior(params)

        return energy

    begin, move = hmc(potential_fn_gen=potential, algo="NUTS")
    settings = {"dense_mass": program.num_params <= _DENSE, "max_tree_depth": max_tree_depth}

    @quick_jit
    def start(keys: Array, z: Array, args: tuple) -> HMCState:
        def start_one(given: tuple[Array, Array]) -> HMCState:
            key, at = given
            return begin(at, num_warmup, model_args=args, rng_key=key, **settings)

        return map_chains(start_one)((keys, z))

    @quick_jit
    def advance(state: HMCState, args: tuple) -> tuple[HMCState, Steps]:
        def step(one: HMCState, _: None) -> tuple[HMCState, Steps]:
            one = move(one, args)
            return one, (one.z, one.diverging, one.energy)

        def steps(one: HMCState) -> tuple[HMCState, Steps]:
            return jax.lax.scan(step, one, None, length=_STEPS_PER_CALL)

        state, by_chain = map_chains(steps)(state)
        return state, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), by_chain)

    return start, advance


class CoresetSampler:
    """NUTS on the posterior of weighted rows, compiled once for all weights and rows of one shape.

    It moves in coordinates z with θ = centre + scale · z, so that a known covariance of the
    posterior is a warm start of the mass matrix. Chains are a batch in one compiled function. They
    run in float64 where float32 rounds the log-density too coarsely, see `likelihood.precision`.

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
        self._start, self._advance = _kernel(likelihood.program, self.num_warmup, max_tree_depth)

    def run(
        self,
        key: PRNGKeyArray,
        indices: Int[np.ndarray, " m"],
        weights: ArrayLike,
        starts: ArrayLike,
        covariance: ArrayLike | None = None,
        proxy: Proxy | None = None,
    ) -> "ChainDraws":
        """Adapt the chains and make the first draws.

        Args:
            key: a JAX random key.
            indices: the row numbers, shape (m,).
            weights: the rows' weights, shape (m,).
            starts: a starting point for each chain, flat and unconstrained, shape (chains, D).
            covariance: an estimate of the posterior's covariance, shape (D, D), positive definite.
            proxy: the approximation of all rows that these rows correct, if there is one.
        """
        data = self.likelihood.take(indices)
        points = np.asarray(starts, np.float64)
        if covariance is not None:
            generator = np.random.default_rng(0)
            points = generator.multivariate_normal(points[0], np.asarray(covariance), _NUM_POINTS)
        exact = self._needs_float64(points, data, np.asarray(weights))
        with _precision(exact):
            starts = jnp.asarray(starts, default_float())
            width = starts.shape[1]
            known = np.eye(width) if covariance is None else np.asarray(covariance, np.float64)
            scale = jnp.asarray(np.linalg.cholesky(known), starts.dtype)
            data = tuple(widened(jnp.asarray(leaf)) for leaf in data)
            weights = jnp.asarray(weights, starts.dtype)
            args = (data, weights, starts[0], scale, jax.tree.map(jnp.asarray, proxy))
            z = solve_triangular(scale, (starts - starts[0]).T, lower=True).T
            state = self._start(jax.random.split(key, self.num_chains), z, args)
            for _ in range(self.num_warmup // _STEPS_PER_CALL):
                state, _ = self._advance(state, args)
        return ChainDraws(self, state, args)

    def _needs_float64(self, points: np.ndarray, data: tuple, weights: np.ndarray) -> bool:
        if default_float() == np.float64:
            return False
        params = self.likelihood.unravel.all(points.astype(np.float32))
        error = energy_error(self.likelihood, params, data, weights)
        return not error <= MAX_ENERGY_ERROR

    def go_on(
        self, state: HMCState, args: tuple, num: int
    ) -> tuple[HMCState, Float[np.ndarray, "s c d"], Transitions]:
        """Continue the chains: the state, at least `num` draws in all, and how they moved."""
        parts: list[Any] = []
        _, _, centre, scale, _ = args
        while len(parts) * _STEPS_PER_CALL * self.num_chains < num:
            with _precision(centre.dtype == np.float64):
                state, steps = self._advance(state, args)
            parts.append(jax.device_get(steps))
        z, diverging, energy = (np.concatenate(one) for one in zip(*parts, strict=True))
        draws = np.asarray(centre) + z @ np.asarray(scale).T
        return state, draws, Transitions(int(diverging.sum()), np.swapaxes(energy, 0, 1))


class ChainDraws(DrawSource):
    """Draws of chains that continue if more are needed.

    Chains that have not mixed after the first run continue, up to three times as long again, and
    only their last run counts.

    Attributes:
        r_hat: the largest split Gelman–Rubin statistic of a parameter in that run.
        num_divergent: the number of divergent transitions in that run.
        inefficiency: that of the parameter with the smallest effective size.
        trouble: what shows that the chains have not mixed, in a few words; None if nothing does.
    """

    def __init__(self, sampler: CoresetSampler, state: HMCState, args: tuple):
        self._sampler, self._args = sampler, args
        num_runs = 0
        while True:
            state, draws, transitions = sampler.go_on(state, args, sampler.num_samples)
            by_chain = np.swapaxes(draws, 0, 1).astype(np.float64)
            self.trouble = mixing_trouble(by_chain, transitions)
            num_runs += 1
            if self.trouble is None or num_runs > _MAX_EXTENSIONS:
                break
        self._state, self._flat = state, _in_turn(draws)
        self.num_divergent = transitions.num_divergent
        with np.errstate(all="ignore"):
            self.r_hat = float(np.max(split_gelman_rubin(by_chain)))
            effective = np.nan_to_num(np.min(effective_sample_size(by_chain)))
        # All processes take the first one's word, since what follows reads rows together.
        own = {"mixed": np.asarray(self.trouble is None), "effective": np.asarray(effective)}
        first = sampler.likelihood.rows.context.processes.first(own)
        if first["mixed"]:
            self.trouble = None
        else:
            self.trouble = self.trouble or "those of the first process have not"
        num = len(self._flat)
        self.inefficiency = float(num / np.clip(first["effective"], 1, num))

    def take(self, key: PRNGKeyArray, start: int, num: int) -> Params:
        """See `DrawSource.take`; the chains have a key of their own, and `key` is not used."""
        missing = start + num - len(self._flat)
        if missing > 0:
            self._state, more, _ = self._sampler.go_on(self._state, self._args, missing)
            self._flat = np.concatenate([self._flat, _in_turn(more)])
        taken = jnp.asarray(self._flat[start : start + num], default_float())
        return self._sampler.likelihood.unravel.all(taken)


def _precision(exact: bool) -> AbstractContextManager:
    return jax.enable_x64(True) if exact else nullcontext()


def _in_turn(draws: Float[np.ndarray, "s c d"]) -> Float[np.ndarray, "n d"]:
    """Draws of the chains in turn, so that any part of the sequence has draws of all chains."""
    return draws.reshape(-1, draws.shape[-1])
