"""The best solution seen at each size, in a run of `jaxcoreset.solvers.ExchangePursuit`."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxcoreset.solvers.exchange.support import Support


class Path(eqx.Module):
    """Rows and weights by size and slot.

    Attributes:
        rows: of the atoms in use; the last line is for what was not to be kept.
        weights: of the scaled atoms for the scaled target, zero in slots that are free; likewise.
        objective: one, that of no atoms, where nothing better was seen.
    """

    rows: Int[Array, "l p"]
    weights: Float[Array, "l p"]
    objective: Float[Array, " k"]

    @classmethod
    def empty(cls, num_sizes: int, num_slots: int, dtype: Any) -> "Path":
        """Nothing seen.

        Args:
            num_sizes: sizes from 1 on; where there is only one, it stands for any.
            num_slots: how many atoms may be in use.
            dtype: of the weights.
        """
        return cls(
            jnp.zeros((num_sizes + 1, num_slots), jnp.int32),
            jnp.zeros((num_sizes + 1, num_slots), dtype),
            jnp.ones(num_sizes, dtype),
        )

    def _place(self, size: Int[Array, ""]) -> Int[Array, ""]:
        return jnp.clip(size - 1, 0, self.objective.shape[0] - 1)

    def known(self, size: Int[Array, ""]) -> Float[Array, ""]:
        """The objective of the best solution of this size."""
        return jax.lax.dynamic_index_in_dim(self.objective, self._place(size), keepdims=False)

    def record(
        self, support: Support, objective: Float[Array, ""], wanted: Bool[Array, ""]
    ) -> "Path":
        """Keep the least-squares weights if that is wanted and they are the best of their size."""
        place = self._place(support.size)
        known = self.known(support.size)
        better = wanted & (objective < known)
        line = jnp.where(better, place, self.objective.shape[0])

        put = jax.lax.dynamic_update_index_in_dim
        return Path(
            put(self.rows, support.rows, line, 0),
            put(self.weights, support.aim, line, 0),
            put(self.objective, jnp.where(better, objective, known), place, 0),
        )

    def joined(self, small: "Path") -> "Path":
        """The better solution of each size, of this run and of one to smaller sizes."""
        num_sizes, num_slots = small.objective.shape[0], self.rows.shape[1]
        better = small.objective < self.objective[:num_sizes]

        def join(ours: Array, theirs: Array) -> Array:
            if ours.ndim == 1:
                return ours.at[:num_sizes].set(jnp.where(better, theirs, ours[:num_sizes]))
            theirs = jnp.pad(theirs[:num_sizes], [(0, 0), (0, num_slots - theirs.shape[1])])
            taken = jnp.where(better[:, None], theirs, ours[:num_sizes])
            return ours.at[:num_sizes].set(taken)

        return jax.tree.map(join, self, small)

    def best(self, k: Int[Array, ""]) -> Int[Array, ""]:
        """Where the best of the solutions with at most k rows is, and the smallest of those."""
        sizes = jnp.arange(1, self.objective.shape[0] + 1)
        return jnp.argmin(jnp.where(sizes <= k, self.objective, jnp.inf))
