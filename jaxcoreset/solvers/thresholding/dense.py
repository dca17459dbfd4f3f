"""Hard thresholding for many k at once on few rows, by dense vectors and the Gram matrix.

These are the iterations of `jaxcoreset.solvers.thresholding.hard` for the set of at most k rows,
with the iterates for all k as the columns of one matrix. With G = ΦᵀΦ and b = Φᵀy, every inner
product of an iteration is one of G w with a vector of length n, so that an iteration consists of a
few products of G with a matrix. The k largest entries of a column are found by bisection on their
bits: a vectorised count in place of a partial sort.

Rounding differs from that of single solves, so that in float32 a near tie may have another result.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxcoreset.solvers.numerics import any_in_batch, divide, product, tree_where, unit_of
from jaxcoreset.solvers.problem import CoresetProblem


class _DenseState(eqx.Module):
    weights: Float[Array, "n m"]
    previous: Float[Array, "n m"]
    image: Float[Array, "n m"]  # G w
    previous_image: Float[Array, "n m"]
    momentum: Float[Array, " m"]
    num_iters: Int[Array, " m"]
    stopped: Bool[Array, " m"]


def dense_path(
    problem: CoresetProblem, ks: Int[Array, " m"], solver: Any, debiases: bool
) -> tuple[Float[Array, "m n"], Int[Array, " m"], Bool[Array, " m"]]:
    """Iterate from w = 0 for each of `ks`.

    Args:
        problem: the problem.
        ks: the maximum numbers of rows.
        solver: `IHT`, `AIHT` or `AIHT2`.
        debiases: whether a second step is made on the support of each iterate.

    Returns:
        The weights, the numbers of iterations, and whether they ended by the stopping rule.
    """
    n, m, dtype = problem.num_data, ks.shape[0], problem.target.dtype
    gram = product(problem.atoms, problem.atoms.T)
    correlations = problem.correlate(problem.target)[:, None]
    usable = (problem.squared_norms() > 0)[:, None]
    nothing = jnp.zeros((n, m), dtype)
    state = _DenseState(
        weights=nothing,
        previous=nothing,
        image=nothing,
        previous_image=nothing,
        momentum=jnp.zeros(m, dtype),
        num_iters=jnp.zeros(m, jnp.int32),
        stopped=jnp.zeros(m, bool),
    )

    fixed_step = getattr(solver, "step", None)
    momentum_fraction = getattr(solver, "momentum_fraction", 0.0)

    def step_size(gradient: Array) -> Array:
        """The length of the step along each column: a fraction of the exact minimiser."""
        gradient = unit_of(gradient) * gradient
        image = product(gram, gradient)
        curvature = jnp.sum(gradient * image, axis=0)
        return solver.step_fraction * divide(jnp.sum(gradient**2, axis=0), curvature)

    def going(state: _DenseState) -> Array:
        return ~state.stopped & (state.num_iters < solver.max_iters)

    def iterate(state: _DenseState) -> _DenseState:
        """One pass of Algorithm 2's loop (lines 3 to 9), with the de-bias step of Algorithm 3."""
        momentum = state.momentum
        z = state.weights + momentum * (state.weights - state.previous)
        gradient = correlations - state.image - momentum * (state.image - state.previous_image)
        support = z != 0
        if fixed_step is None:
            grown = largest_positive(jnp.where(support, 0, jnp.abs(gradient)), ks)
            step = step_size(jnp.where(support | grown, gradient, 0))
        else:
            step = jnp.asarray(2 * fixed_step, dtype)
        moved = jnp.where(usable, z + step * gradient, 0)
        new = jnp.where(largest_positive(moved, ks), moved, 0)
        image = product(gram, new)
        if debiases:
            gradient = jnp.where(new > 0, correlations - image, 0)
            new = jnp.maximum(new + step_size(gradient) * gradient, 0)
            image = product(gram, new)

        change, image_change = new - state.weights, image - state.image
        slope = jnp.sum(change * (correlations - image), axis=0)
        squared, size = jnp.sum(change**2, axis=0), jnp.sum(new**2, axis=0)
        after = _DenseState(
            weights=new,
            previous=state.weights,
            image=image,
            previous_image=state.image,
            momentum=momentum_fraction * divide(slope, jnp.sum(change * image_change, axis=0)),
            num_iters=state.num_iters + 1,
            stopped=jnp.sqrt(squared) <= solver.tol * jnp.sqrt(size),
        )
        return tree_where(going(state), after, state)

    state = jax.lax.while_loop(lambda s: any_in_batch(jnp.any(going(s))), iterate, state)
    return state.weights.T, state.num_iters, state.stopped


def largest_positive(values: Float[Array, "n m"], ks: Int[Array, " m"]) -> Bool[Array, "n m"]:
    """Select the k largest positive entries of each column, with one k per column.

    Of equal entries those with the lower index are taken. Positive floats have the order of their
    bits, so that the k-th largest entry is found bit by bit, and so is the index up to which
    entries equal to it are taken.
    """
    n = values.shape[0]
    of_bits = {4: jnp.int32, 8: jnp.int64}[values.dtype.itemsize]
    bits = jnp.where(values > 0, jax.lax.bitcast_convert_type(values, of_bits), 0)

    def count(flags: Array) -> Array:
        return jnp.sum(flags, axis=0, dtype=jnp.int32)

    def find(num_bits: int, dtype: type, holds: Callable[[Array], Array]) -> Array:
        """The largest number of `num_bits` bits for which a monotone condition holds."""

        def set_bit(i: Array, number: Array) -> Array:
            larger = number | (jnp.ones((), dtype) << (num_bits - 1 - i).astype(dtype))
            return jnp.where(holds(larger), larger, number)

        return jax.lax.fori_loop(0, num_bits, set_bit, jnp.zeros(ks.shape, dtype))

    last = find(8 * values.dtype.itemsize - 1, of_bits, lambda b: count(bits >= b) >= ks)
    above, equal = bits > last, (bits == last) & (last > 0)
    left = ks - count(above)
    index = jnp.arange(n, dtype=jnp.int32)[:, None]
    end = find(n.bit_length(), jnp.int32, lambda e: count(equal & (index < e)) <= left)
    return above | (equal & (index < end))
