"""What a solver returns: a weighted subset, padded to a static length, and how good it is."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxcoreset.solvers.problem import CoresetProblem


class Solution(eqx.Module):
    """Weights on at most k of the data, a pytree of arrays.

    A sweep or a vmapped solve gives every array the leading axes of the batch, shown as ``*b``.

    Attributes:
        indices: shape (*b, k), the chosen rows in increasing order, then 0 in slots not used.
        weights: shape (*b, k), positive in slots that are used and 0 in the others.
        objective: shape (*b,), ‖y − Φw‖².
        relative_error: shape (*b,), ‖y − Φw‖ / ‖y‖.
        num_iters: shape (*b,), the solver's iterations.
        converged: shape (*b,), whether the solver stopped by its own rule rather than by a limit.
        history: shape (*b, max_iters), the objective after each iteration, its last value repeated
            after the stop; ``None`` where it was not asked for.
        solver: the name of the solver that found it.
    """

    indices: Int[Array, "*b k"]
    weights: Float[Array, "*b k"]
    objective: Float[Array, "*b"]
    relative_error: Float[Array, "*b"]
    num_iters: Int[Array, "*b"]
    converged: Bool[Array, "*b"]
    history: Float[Array, "*b t"] | None = None
    solver: str = eqx.field(static=True, default="")

    @property
    def size(self) -> Int[Array, "*b"]:
        """How many rows have a weight that is not zero."""
        return jnp.sum(self.weights > 0, axis=-1)

    def dense(self, n: int) -> Float[Array, "*b n"]:
        """The weights as a vector over all n data, zero where a row was not chosen.

        Args:
            n: the number of data, `CoresetProblem.num_data`.
        """
        if self.weights.ndim == 1:
            return jnp.zeros(n, self.weights.dtype).at[self.indices].add(self.weights)
        dense = jnp.vectorize(
            lambda i, w: jnp.zeros(n, w.dtype).at[i].add(w), signature="(k),(k)->(n)"
        )
        return dense(self.indices, self.weights)


def make_solution(
    problem: CoresetProblem,
    indices: Int[Array, " p"],
    weights: Float[Array, " p"],
    objective: Float[Array, ""],
    num_iters: Int[Array, ""],
    converged: Bool[Array, ""],
    *,
    solver: str,
    history: Float[Array, " t"] | None = None,
    length: int | None = None,
) -> Solution:
    """A `Solution` in its canonical order, from what a solver has at its end.

    Args:
        problem: the problem solved.
        indices: the chosen rows in any order; those of slots with weight zero are not looked at.
        weights: their weights, zero in slots not used.
        objective: ‖y − Φw‖².
        num_iters: iterations done.
        converged: whether the solver's own rule stopped it.
        solver: the solver's name.
        history: the objective by iteration, if recorded.
        length: of the solution, where there are slots beyond it that are not needed.
    """
    used = weights > 0
    order = _ascending(jnp.where(used, indices, problem.num_data), problem.num_data)[:length]
    target_norm = jnp.linalg.norm(problem.target)
    error = jnp.sqrt(objective)
    return Solution(
        indices=jnp.where(used, indices, 0)[order].astype(jnp.int32),
        weights=jnp.where(used, weights, 0)[order],
        objective=objective,
        relative_error=jnp.where(
            target_norm > 0, error / jnp.where(target_norm > 0, target_norm, 1), error
        ),
        num_iters=jnp.asarray(num_iters, jnp.int32),
        converged=jnp.asarray(converged),
        history=history,
        solver=solver,
    )


def _ascending(rows: Int[Array, " p"], largest: int) -> Int[Array, " p"]:
    """The order of rows from 0 to `largest`, of equal ones the first one first.

    Row and place are sorted as one number, where there is one that holds both: of numbers alone
    XLA's sort on a CPU is six times as fast.
    """
    num_places = rows.shape[0]
    if (largest + 1) * num_places > 2**32:
        return jnp.argsort(rows, stable=True)
    places = jnp.arange(num_places, dtype=jnp.uint32)
    both = rows.astype(jnp.uint32) * jnp.uint32(num_places) + places
    return (jnp.sort(both) % jnp.uint32(num_places)).astype(jnp.int32)
