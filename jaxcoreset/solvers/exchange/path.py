"""The best solution of each size that a run of `jaxcoreset.solvers.ExchangePursuit` has seen."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solution import Solution, make_solution


class Path(eqx.Module):
    """Rows and weights by size and slot.

    Attributes:
        indices: the rows of the atoms in use; the last line receives solutions that are not kept.
        weights: weights of the scaled atoms for the scaled target, zero in free slots; likewise.
        objective: the objective by size; one, that of no atoms, if no better solution was seen.
    """

    indices: Int[Array, "l p"]
    weights: Float[Array, "l p"]
    objective: Float[Array, " k"]

    @classmethod
    def empty(cls, num_sizes: int, num_slots: int, dtype: Any) -> "Path":
        """A path without solutions.

        Args:
            num_sizes: the number of sizes, from 1 on; if it is 1, the path has one entry for any
                size.
            num_slots: the maximum number of atoms in use.
            dtype: the type of the weights.
        """
        return cls(
            jnp.zeros((num_sizes + 1, num_slots), jnp.int32),
            jnp.zeros((num_sizes + 1, num_slots), dtype),
            jnp.ones(num_sizes, dtype),
        )

    def _position(self, size: Int[Array, ""]) -> Int[Array, ""]:
        return jnp.clip(size - 1, 0, self.objective.shape[0] - 1)

    def known(self, size: Int[Array, ""]) -> Float[Array, ""]:
        """The objective of the best solution of this size."""
        return jax.lax.dynamic_index_in_dim(self.objective, self._position(size), keepdims=False)

    def record(
        self,
        size: Int[Array, ""],
        indices: Int[Array, " p"],
        weights: Float[Array, " p"],
        objective: Float[Array, ""],
        eligible: Bool[Array, ""],
    ) -> "Path":
        """Keep the weights of a support if they are `eligible` and the best of their size."""
        position = self._position(size)
        known = self.known(size)
        better = eligible & (objective < known)
        line = jnp.where(better, position, self.objective.shape[0])

        put = jax.lax.dynamic_update_index_in_dim
        return Path(
            put(self.indices, indices, line, 0),
            put(self.weights, weights, line, 0),
            put(self.objective, jnp.where(better, objective, known), position, 0),
        )

    def merge(self, small: "Path") -> "Path":
        """The better solution of each size, of this run and of a run to smaller sizes."""
        num_sizes, num_slots = small.objective.shape[0], self.indices.shape[1]
        better = small.objective < self.objective[:num_sizes]

        def join(ours: Array, theirs: Array) -> Array:
            if ours.ndim == 1:
                return ours.at[:num_sizes].set(jnp.where(better, theirs, ours[:num_sizes]))
            theirs = jnp.pad(theirs[:num_sizes], [(0, 0), (0, num_slots - theirs.shape[1])])
            taken = jnp.where(better[:, None], theirs, ours[:num_sizes])
            return ours.at[:num_sizes].set(taken)

        return jax.tree.map(join, self, small)

    def best(self, k: Int[Array, ""]) -> Int[Array, ""]:
        """The position of the best solution with at most k rows; of equal ones, the smallest."""
        sizes = jnp.arange(1, self.objective.shape[0] + 1)
        return jnp.argmin(jnp.where(sizes <= k, self.objective, jnp.inf))


class RunResult(eqx.Module):
    """The result of a run.

    Attributes:
        path: the recorded solutions.
        scale: the reciprocal norm of every atom.
        num_moves: the number of moves.
        converged: whether the run ended before its limit on moves.
    """

    path: Path
    scale: Float[Array, " n"]
    num_moves: Int[Array, ""]
    converged: Bool[Array, ""]

    def merge(self, small: "RunResult") -> "RunResult":
        """The better solution of each size, of this run and of a run to smaller sizes."""
        return RunResult(
            self.path.merge(small.path),
            self.scale,
            self.num_moves + small.num_moves,
            self.converged & small.converged,
        )

    def solution(self, problem: CoresetProblem, position: Int[Array, ""], max_k: int) -> Solution:
        """The solution at a position of the path; its objective is computed from its weights."""
        indices, weights = self.path.indices[position], self.path.weights[position]
        weights = weights * self.scale[indices] * jnp.linalg.norm(problem.target)
        residual = problem.target - problem.combine(indices, weights)
        return make_solution(
            problem,
            indices,
            weights,
            jnp.vdot(residual, residual),
            self.num_moves,
            self.converged,
            length=max_k,
        )
