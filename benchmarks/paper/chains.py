"""The three samplers of Campbell and Broderick (2018) on a weighted regression."""

import functools
import time
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import HMC, NUTS

from benchmarks.paper.glm import log_likelihood

Kind = Literal["NUTS", "HMC", "random-walk Metropolis"]
KINDS: tuple[Kind, ...] = ("NUTS", "HMC", "random-walk Metropolis")
_LEAPFROG_STEPS = 15
_ACCEPTANCE = 0.8
# The best acceptance of a random walk in many dimensions.
_RANDOM_WALK_ACCEPTANCE = 0.234


def chain(
    kind: Kind,
    rows: tuple[np.ndarray, np.ndarray, np.ndarray],
    counts: bool,
    start: np.ndarray,
    num_warmup: int,
    num_samples: int,
    key: jax.Array,
) -> tuple[np.ndarray, float]:
    """Draws of the posterior, and the seconds they took, compilation apart.

    Args:
        kind: NUTS; HMC with 15 leapfrog steps; or a random walk of the same spread in all
            directions. Steps are adapted in the warm-up.
        rows: z of shape (m, D), y (m,) and weights (m,); compiled once for a shape.
        counts: see `Regression`.
        start: shape (D,).
        num_warmup: steps of adaptation.
        num_samples: draws kept.
        key: a JAX random key.
    """
    run = _runner(kind, counts, num_warmup, num_samples)
    arrays = tuple(jnp.asarray(part, jnp.float32) for part in (start, *rows))
    compiled = _compiled(run, key, arrays)
    since = time.perf_counter()
    draws = np.asarray(jax.block_until_ready(compiled(key, *arrays)))
    return draws, time.perf_counter() - since


_PROGRAMS: dict[tuple, Callable] = {}


def _compiled(run: Any, key: jax.Array, arrays: tuple[jax.Array, ...]) -> Callable:
    """The program for arrays of these shapes."""
    name = run, tuple(array.shape for array in arrays)
    if name not in _PROGRAMS:
        _PROGRAMS[name] = run.lower(key, *arrays).compile()
    return _PROGRAMS[name]


@functools.cache
def _runner(kind: Kind, counts: bool, num_warmup: int, num_samples: int) -> Callable:
    """A function of a key, a start and weighted rows that makes a chain, all of it compiled."""

    @jax.jit
    def run(
        key: jax.Array, start: jax.Array, z: jax.Array, y: jax.Array, weights: jax.Array
    ) -> jax.Array:
        def energy(theta: jax.Array) -> jax.Array:
            return 0.5 * theta @ theta - weights @ log_likelihood(z @ theta, y, counts)

        if kind == "random-walk Metropolis":
            return _random_walk(energy, start, num_warmup, num_samples, key)
        if kind == "NUTS":
            kernel = NUTS(potential_fn=energy, target_accept_prob=_ACCEPTANCE)
        else:
            kernel = HMC(
                potential_fn=energy,
                num_steps=_LEAPFROG_STEPS,
                trajectory_length=None,  # type: ignore[arg-type]
                target_accept_prob=_ACCEPTANCE,
            )

        def sample(state: Any, _: None) -> tuple[Any, jax.Array]:
            state = kernel.sample(state, (), {})
            return state, state.z

        state = kernel.init(key, num_warmup, start, (), {})
        _, draws = jax.lax.scan(sample, state, length=num_warmup + num_samples)
        return draws[num_warmup:]

    return run


def _random_walk(
    energy: Callable, begin: jax.Array, num_warmup: int, num_samples: int, key: jax.Array
) -> jax.Array:
    def step(state: tuple, turn: tuple) -> tuple[tuple, jax.Array]:
        theta, here, log_scale = state
        index, key = turn
        move_key, accept_key = jax.random.split(key)
        proposal = theta + jnp.exp(log_scale) * jax.random.normal(move_key, theta.shape)
        there = energy(proposal)
        chance = jnp.minimum(1.0, jnp.exp(here - there))
        taken = jax.random.uniform(accept_key) < chance
        gain = jnp.where(index < num_warmup, (1.0 + index) ** -0.6, 0.0)
        log_scale = log_scale + gain * (chance - _RANDOM_WALK_ACCEPTANCE)
        theta, here = jnp.where(taken, proposal, theta), jnp.where(taken, there, here)
        return (theta, here, log_scale), theta

    total = num_warmup + num_samples
    turns = jnp.arange(total), jax.random.split(key, total)
    begin_scale = jnp.log(2.4 / jnp.sqrt(begin.size)) - 2
    _, draws = jax.lax.scan(step, (begin, energy(begin), begin_scale), turns)
    return draws[num_warmup:]
