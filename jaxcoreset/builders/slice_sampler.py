"""Markov chains on the posterior of weighted rows, which follow it while the weights change.

A chain makes slice moves along random directions (hit-and-run; Bélisle, Romeijn and Smith 1993,
with Neal's slice sampling, 2003), as in the experiments of Chen and Campbell (2024). These need no
adaptation, so they are valid for any weights of the next call. The directions are drawn with the
covariance of the Laplace approximation at the first weights, from which the chains start.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from jaxcoreset.builders.posterior_sampler import (
    PosteriorSampler,
    find_mode,
    laplace_draws,
    log_density_of,
)
from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params

# The first interval, in standard deviations; how many more of them a slice may have; how often an
# interval shrinks before the chain stays; Newton steps before the first draw.
_WIDTH, _MAX_WIDTHS, _MAX_SHRINKS, _MAX_ITERS = 3.0, 30, 50, 50


class Chains(eqx.Module):
    """The positions of the chains, and the Cholesky factor of the precision of their moves."""

    positions: Float[Array, "c d"]
    factor: Float[Array, "d d"]


class SliceSampler(PosteriorSampler):
    """Draws by Markov chains that continue from call to call, with random slice moves.

    Args:
        num_chains: how many chains run side by side; each gives the same number of draws.
        num_moves: how many moves a chain makes for each draw.
    """

    num_chains: int = eqx.field(static=True, default=50)
    num_moves: int = eqx.field(static=True, default=10)

    def start(self, likelihood: ModelLikelihood) -> Chains:
        """Chains at the model's starting point, to be placed by `place`."""
        flat = ravel_pytree(likelihood.init_params)[0]
        positions = jnp.tile(flat, (self.num_chains, 1))
        return Chains(positions, jnp.eye(flat.size, dtype=flat.dtype))

    def place(
        self,
        likelihood: ModelLikelihood,
        state: Chains,
        weights: Float[Array, " k"],
        rows: PyTree,
        key: PRNGKeyArray,
    ) -> Chains:
        """Chains at draws of the Laplace approximation at these weights."""
        log_density, _ = log_density_of(likelihood, weights, rows)
        mode, factor, _ = find_mode(log_density, state.positions[0], _MAX_ITERS)
        return Chains(laplace_draws(mode, factor, key, self.num_chains), factor)

    def draw(
        self,
        likelihood: ModelLikelihood,
        state: Chains,
        weights: Float[Array, " k"],
        rows: PyTree,
        key: PRNGKeyArray,
        num: int,
    ) -> tuple[Params, Chains, Bool[Array, ""]]:
        """See `PosteriorSampler.draw`; they are reliable if every chain is at a finite place."""
        log_density, unravel = log_density_of(likelihood, weights, rows)

        def move(positions: Array, key: PRNGKeyArray) -> tuple[Array, None]:
            keys = jax.random.split(key, self.num_chains)
            step = jax.vmap(slice_move, in_axes=(None, 0, None, 0))
            return step(log_density, positions, state.factor, keys), None

        def next_draw(positions: Array, key: PRNGKeyArray) -> tuple[Array, Array]:
            positions, _ = jax.lax.scan(move, positions, jax.random.split(key, self.num_moves))
            return positions, positions

        keys = jax.random.split(key, -(-num // self.num_chains))
        positions, flat = jax.lax.scan(next_draw, state.positions, keys)
        draws = jax.vmap(unravel)(flat.reshape(-1, flat.shape[-1])[:num])
        return draws, Chains(positions, state.factor), jnp.isfinite(positions).all()


def slice_move(
    log_density: Callable[[Array], Array],
    position: Float[Array, " d"],
    factor: Float[Array, "d d"],
    key: PRNGKeyArray,
) -> Float[Array, " d"]:
    """One slice move along a random line; its intervals step out, then shrink (Neal 2003).

    Args:
        log_density: of a position, up to a constant; a value that is not a number is outside.
        position: where the chain is.
        factor: L of a precision LLᵀ, whose inverse is the covariance of the directions.
        key: a JAX random key.
    """
    keys = jax.random.split(key, 4)
    normal = jax.random.normal(keys[0], position.shape, position.dtype)
    unit = normal / jnp.linalg.norm(normal)
    direction = solve_triangular(factor, unit, trans=1, lower=True)
    level = log_density(position) - jax.random.exponential(keys[1], dtype=position.dtype)

    def is_inside(at: Array) -> Bool[Array, ""]:
        return log_density(position + at * direction) > level

    # All random numbers are drawn before the loops, which is faster than inside.
    uniform = jax.random.uniform(keys[2], (_MAX_SHRINKS + 1,), position.dtype)
    left = -_WIDTH * uniform[_MAX_SHRINKS]
    left_steps = jax.random.randint(keys[3], (), 0, _MAX_WIDTHS + 1)

    # What ends a loop is carried, not computed anew: under vmap a condition is evaluated twice, and
    # where rounding made the two differ the loop would not end.
    def step_out(end: Array, width: float, steps: Array) -> Array:
        def widen(state: tuple) -> tuple:
            end, steps, _ = state
            return end + width, steps - 1, is_inside(end + width)

        first = end, steps, is_inside(end)
        return jax.lax.while_loop(lambda s: (s[1] > 0) & s[2], widen, first)[0]

    right = step_out(left + _WIDTH, _WIDTH, _MAX_WIDTHS - left_steps)
    left = step_out(left, -_WIDTH, left_steps)

    def shrink(state: tuple) -> tuple:
        left, right, at, turn, _ = state
        left, right = jnp.where(at < 0, at, left), jnp.where(at < 0, right, at)
        at = left + (right - left) * uniform[turn]
        return left, right, at, turn + 1, is_inside(at)

    at = left + (right - left) * uniform[0]
    first = left, right, at, jnp.array(1), is_inside(at)
    found = jax.lax.while_loop(lambda s: (s[3] < _MAX_SHRINKS) & ~s[4], shrink, first)
    return jnp.where(found[4], position + found[2] * direction, position)
