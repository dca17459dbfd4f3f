"""Draws from the posterior of weighted rows, inside a compiled program; `SparseVI` uses them.

A `PosteriorSampler` carries a state from call to call, so that a posterior that has moved little is
cheap to sample again. `LaplaceSampler` works for any model whose likelihood is twice
differentiable.
"""

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params
from jaxcoreset.solvers.numerics import HIGHEST

# The Newton decrement, in nats, below which one more full step is enough; the step lengths to try.
_DECREMENT = 1e-2
_STEP_LENGTHS = 2.0 ** -np.arange(0, 16, 2)

Sampler = Callable[[Array, PyTree, PRNGKeyArray, int], Params]


class PosteriorSampler(eqx.Module):
    """A way to draw from the coreset posterior, with a state that the next draws start from.

    Its methods are traced: they may use no Python control flow that depends on values.
    """

    @abc.abstractmethod
    def start(self, likelihood: ModelLikelihood) -> PyTree:
        """The state before the first draw, a pytree of arrays."""

    def place(
        self,
        likelihood: ModelLikelihood,
        state: PyTree,
        weights: Float[Array, " k"],
        rows: PyTree,
        key: PRNGKeyArray,
    ) -> PyTree:
        """The state for a first posterior of weighted rows; arguments as in `draw`."""
        return state

    @abc.abstractmethod
    def draw(
        self,
        likelihood: ModelLikelihood,
        state: PyTree,
        weights: Float[Array, " k"],
        rows: PyTree,
        key: PRNGKeyArray,
        num: int,
    ) -> tuple[Params, PyTree, Bool[Array, ""]]:
        """Draw from the posterior of weighted rows.

        Args:
            likelihood: the model's likelihood, whose own data are two rows only.
            state: what `start` or the last call of `draw` returned.
            weights: shape (k,); a row of weight 0 does not count.
            rows: the k rows, laid out as `ModelLikelihood.data`.
            key: a JAX random key.
            num: how many draws.

        Returns:
            `num` draws, as a dictionary of unconstrained parameters with that leading axis; the new
            state; and True if the draws are reliable.
        """


class LaplaceSampler(PosteriorSampler):
    """Draws from the Laplace approximation of the coreset posterior.

    Newton's method starts at the previous mode, so that it takes one or two steps while the weights
    change little. Each step has the best of several lengths. If the Hessian is not positive
    definite, its eigenvalues are replaced by their absolute values.

    Args:
        max_iters: the maximum number of Newton steps per call.
    """

    max_iters: int = 50

    def start(self, likelihood: ModelLikelihood) -> Float[Array, " d"]:
        """The starting point of the model."""
        return ravel_pytree(likelihood.init_params)[0]

    def draw(
        self,
        likelihood: ModelLikelihood,
        state: Float[Array, " d"],
        weights: Float[Array, " k"],
        rows: PyTree,
        key: PRNGKeyArray,
        num: int,
    ) -> tuple[Params, Float[Array, " d"], Bool[Array, ""]]:
        """See `PosteriorSampler.draw`; the state is the mode."""
        log_density, unravel = log_density_of(likelihood, weights, rows)
        mode, factor, converged = find_mode(log_density, state, self.max_iters)
        return jax.vmap(unravel)(laplace_draws(mode, factor, key, num)), mode, converged


class Stateless(PosteriorSampler):
    """A user's function as a sampler without a state."""

    function: Sampler

    def start(self, likelihood: ModelLikelihood) -> tuple:
        """Return the empty state."""
        return ()

    def draw(
        self,
        likelihood: ModelLikelihood,
        state: PyTree,
        weights: Float[Array, " k"],
        rows: PyTree,
        key: PRNGKeyArray,
        num: int,
    ) -> tuple[Params, PyTree, Bool[Array, ""]]:
        """See `PosteriorSampler.draw`; the draws always count as reliable."""
        return self.function(weights, rows, key, num), (), jnp.array(True)


def log_density_of(
    likelihood: ModelLikelihood, weights: Float[Array, " k"], rows: PyTree
) -> tuple[Callable[[Array], Array], Callable[[Array], Params]]:
    """The log-density of the posterior of weighted rows, up to a constant.

    Returns:
        The function of flat unconstrained parameters, and what makes a dictionary of these.
    """
    _, unravel = ravel_pytree(likelihood.init_params)

    def log_density(flat: Array) -> Float[Array, ""]:
        params = unravel(flat)
        terms = likelihood.log_likelihood(params, rows)
        return jnp.vdot(weights, terms, precision=HIGHEST) + likelihood.log_prior(params)

    return log_density, unravel


def laplace_draws(
    mode: Float[Array, " d"], factor: Float[Array, "d d"], key: PRNGKeyArray, num: int
) -> Float[Array, "num d"]:
    """Draws of the normal distribution of a mode and the Cholesky factor of a precision."""
    normal = jax.random.normal(key, (num, mode.size), mode.dtype)
    return mode + solve_triangular(factor, normal.T, trans=1, lower=True).T


def find_mode(
    log_density: Callable[[Array], Array], start: Float[Array, " d"], max_iters: int
) -> tuple[Float[Array, " d"], Float[Array, "d d"], Bool[Array, ""]]:
    """The mode of a log-density, the Cholesky factor of its precision, and if it converged."""

    def energy(position: Array) -> Array:
        return -log_density(position)

    def is_far(state: tuple) -> Array:
        _, _, decrement, iteration = state
        # Written so that a decrement that is not a number ends the search.
        return (decrement > _DECREMENT) & (iteration < max_iters)

    def slope(position: Array) -> tuple[Array, Array]:
        gradient = jax.grad(energy)(position)
        return gradient, gradient

    def move(state: tuple) -> tuple:
        position, _, _, iteration = state
        hessian, gradient = jax.jacfwd(slope, has_aux=True)(position)
        factor = _factor(hessian)
        half = solve_triangular(factor, -gradient, lower=True)
        step = solve_triangular(factor, half, trans=1, lower=True)
        decrement = jnp.vdot(half, half)

        def best_length() -> Array:
            lengths = jnp.asarray(_STEP_LENGTHS, position.dtype)
            values = jax.vmap(lambda length: energy(position + length * step))(lengths)
            return lengths[jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf))]

        is_near = decrement <= _DECREMENT
        length = jax.lax.cond(is_near, lambda: jnp.ones((), position.dtype), best_length)
        moved = position + length * step
        # Where a derivative is not finite, as near an unbounded density, the search stays.
        moved = jnp.where(jnp.isfinite(moved).all(), moved, position)
        return moved, factor, decrement, iteration + 1

    nothing = jnp.zeros((start.size, start.size), start.dtype)
    position, factor, decrement, _ = jax.lax.while_loop(
        is_far, move, (start, nothing, jnp.full((), jnp.inf, start.dtype), jnp.array(0))
    )
    return position, factor, decrement <= _DECREMENT


def _factor(hessian: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """The Cholesky factor of a Hessian, which is made positive definite first if necessary."""
    factor = jnp.linalg.cholesky(hessian)

    def repaired() -> Array:
        values, vectors = jnp.linalg.eigh(hessian)
        smallest = jnp.finfo(values.dtype).eps * jnp.max(jnp.abs(values))
        values = jnp.maximum(jnp.abs(values), smallest)
        return jnp.linalg.cholesky(
            jnp.matmul(vectors * values, vectors.T, precision=HIGHEST)
            + smallest * jnp.eye(values.size, dtype=values.dtype)
        )

    return jax.lax.cond(jnp.isfinite(factor).all(), lambda: factor, repaired)
