"""The result of a solver: a weighted subset, padded to a static length, and its error."""

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from jaxcoreset.solvers.problem import CoresetProblem


class Solution(eqx.Module):
    """Weights on at most k of the data, a pytree of arrays.

    A sweep or a vmapped solve gives every array the leading axes of the batch, shown as ``*b``.

    Attributes:
        indices: shape (*b, k), the chosen rows in increasing order, then 0 in unused slots.
        weights: shape (*b, k), positive in used slots and 0 in unused ones.
        objective: shape (*b,), ‖y − Φw‖².
        relative_error: shape (*b,), ‖y − Φw‖ / ‖y‖.
        num_iters: shape (*b,), the solver's iterations.
        converged: shape (*b,), whether the solver stopped by its own rule rather than by a limit.
            It is false if the solver's rows were worse than none, so that it returns none.
        history: shape (*b, max_iters), the objective after each iteration, its last value repeated
            after the stop; ``None`` if it was not requested.
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
        """The number of rows with a non-zero weight."""
        return jnp.sum(self.weights > 0, axis=-1)

    def dense(self, n: int) -> Float[Array, "*b n"]:
        """The weights as a vector over all n data, zero for rows that were not chosen.

        Args:
            n: the number of data, `CoresetProblem.num_data`.
        """
        dense = jnp.vectorize(
            lambda i, w: jnp.zeros(n, w.dtype).at[i].add(w), signature="(k),(k)->(n)"
        )
        return dense(self.indices, self.weights)

    def or_none(self, problem: CoresetProblem) -> "Solution":
        """The same where the objective is at most ‖y‖²; elsewhere no rows, not converged."""
        at_zero = jnp.vdot(problem.target, problem.target)
        # Without rows, rounding would decide. False also where the objective is not a number.
        empty = ~(self.weights > 0).any(axis=-1) & jnp.isfinite(self.objective)
        better = (self.objective <= at_zero) | empty
        kept = better[..., None]
        return dataclasses.replace(
            self,
            indices=jnp.where(kept, self.indices, 0),
            weights=jnp.where(kept, self.weights, 0),
            objective=jnp.where(better & ~empty, self.objective, at_zero),
            relative_error=jnp.where(better & ~empty, self.relative_error, at_zero > 0),
            converged=self.converged & better,
        )


def make_solution(
    problem: CoresetProblem,
    indices: Int[Array, " p"],
    weights: Float[Array, " p"],
    objective: Float[Array, ""],
    num_iters: Int[Array, ""],
    converged: Bool[Array, ""],
    *,
    solver: str = "",
    history: Float[Array, " t"] | None = None,
    length: int | None = None,
) -> Solution:
    """A `Solution` in its canonical order, from a solver's final rows and weights.

    Args:
        problem: the problem that was solved.
        indices: the chosen rows in any order; those of slots with weight zero are ignored.
        weights: their weights, zero in unused slots.
        objective: ‖y − Φw‖².
        num_iters: the number of iterations.
        converged: whether the solver's own rule stopped it.
        solver: the solver's name; by default that of its class, set by `solve` and `sweep`.
        history: the objective by iteration, if recorded.
        length: the length of the solution, if there are unused slots beyond it.
    """
    used = weights > 0
    order = _ascending(jnp.where(used, indices, problem.num_data), problem.num_data)[:length]
    target_norm = jnp.linalg.norm(problem.target)
    error = jnp.sqrt(objective)
    return Solution(
        indices=jnp.where(used, indices, 0)[order].astype(jnp.int32),
        weights=jnp.where(used, weights, 0)[order],
        objective=objective,
        relative_error=error / jnp.where(target_norm > 0, target_norm, 1),
        num_iters=jnp.asarray(num_iters, jnp.int32),
        converged=jnp.asarray(converged),
        history=history,
        solver=solver,
    )


class History(eqx.Module):
    """The objective after each iteration, if it is recorded; otherwise `values` is None."""

    values: Float[Array, " t"] | None

    @classmethod
    def empty(cls, solver: Any, dtype: DTypeLike) -> "History":
        """An empty one for a solver with `record_history` and `max_iters`."""
        return cls(jnp.zeros(solver.max_iters, dtype) if solver.record_history else None)

    def record(self, position: Int[Array, ""], objective: Float[Array, ""]) -> "History":
        """With the objective after an iteration; positions count from 0."""
        return History(None if self.values is None else self.values.at[position].set(objective))

    def filled(
        self, num_iters: Int[Array, ""], last: Float[Array, ""]
    ) -> Float[Array, " t"] | None:
        """The values, with `last` after the end of the run."""
        if self.values is None:
            return None
        return jnp.where(jnp.arange(self.values.shape[0]) < num_iters, self.values, last)


def _ascending(rows: Int[Array, " p"], largest: int) -> Int[Array, " p"]:
    """The stable order that sorts rows with numbers from 0 to `largest`.

    Row and position are sorted as one integer if 32 bits hold both, since on a CPU XLA sorts plain
    numbers six times as fast as pairs.
    """
    num_positions = rows.shape[0]
    if (largest + 1) * num_positions > 2**32:
        return jnp.argsort(rows, stable=True)
    positions = jnp.arange(num_positions, dtype=jnp.uint32)
    both = rows.astype(jnp.uint32) * jnp.uint32(num_positions) + positions
    return (jnp.sort(both) % jnp.uint32(num_positions)).astype(jnp.int32)
