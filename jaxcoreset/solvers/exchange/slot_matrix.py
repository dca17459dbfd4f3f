"""Matrices with a row for each slot, of which mostly only the first ones are in use.

There are as many slots as there may ever be atoms in use, and mostly far fewer are, while a pass
over a matrix costs as much as if they all were. Slots are filled from the first one on. So such a
matrix comes in parts, the first slots and the others, and a part whose slots are all free is left
out. The parts are arrays of their own, as a slice of one array is copied before it is used.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from jaxcoreset.solvers.exchange.tree_reductions import any_of
from jaxcoreset.solvers.nnls import any_lane, product

# Where the parts end, as fractions of all slots: for k = 100 the first is what further starts need.
_ENDS = (0.2, 1)
# Matrices with fewer entries are one part: each more takes a tenth of a second to compile.
_FEW = 40_000


def _ends(num_slots: int, num_columns: int) -> tuple[int, ...]:
    """Where the parts of such a matrix end, on the platform of JAX's default device.

    On a GPU, where deciding takes longer than passing over all slots, there is one.
    """
    if num_slots * num_columns < _FEW or jax.default_backend() != "cpu":
        return (num_slots,)
    return tuple(max(1, round(end * num_slots)) for end in _ENDS)


class SlotMatrix(eqx.Module):
    """A matrix with a row for each slot; those of free slots are zero.

    Attributes:
        parts: its rows, the first ones first.
    """

    parts: tuple[Float[Array, "_ c"], ...]

    @classmethod
    def of(cls, matrix: Float[Array, "p c"]) -> "SlotMatrix":
        """From an array."""
        ends = _ends(*matrix.shape)
        starts = (0, *ends[:-1])
        return cls(tuple(matrix[start:end] for start, end in zip(starts, ends, strict=True)))

    @classmethod
    def zeros(cls, num_slots: int, num_columns: int, dtype: Any) -> "SlotMatrix":
        """With all slots free."""
        return cls.of(jnp.zeros((num_slots, num_columns), dtype))

    def whole(self) -> Float[Array, "p c"]:
        """As one array."""
        return jnp.concatenate(self.parts)

    def row(self, slot: Int[Array, ""]) -> Float[Array, " c"]:
        """The row of a slot."""
        first, *others = self.parts
        found, start = jax.lax.dynamic_index_in_dim(first, slot, keepdims=False), len(first)
        for part in others:
            own = jax.lax.dynamic_index_in_dim(part, jnp.maximum(slot - start, 0), keepdims=False)
            found, start = jnp.where(slot < start, found, own), start + len(part)
        return found

    def columns(self, indices: Int[Array, "..."]) -> Float[Array, "p ..."]:
        """Some of its columns."""
        # Told that they are in range, the compiler need not ask for each of them.
        return jnp.concatenate(
            [jnp.take(part, indices, axis=1, mode="clip") for part in self.parts]
        )

    def dot(
        self, columns: Float[Array, "c ..."], active: Bool[Array, " p"]
    ) -> Float[Array, "p ..."]:
        """The product with a vector or matrix; `active` says which slots are in use."""
        return jnp.concatenate(
            [
                product(part, columns)
                if used is None
                else jax.lax.cond(
                    used,
                    lambda part: product(part, columns),
                    lambda part: jnp.zeros((len(part), *columns.shape[1:]), part.dtype),
                    part,
                )
                for part, used in zip(self.parts, self._in_use(active), strict=True)
            ]
        )

    def combine(
        self, weights: Float[Array, "*q p"], active: Bool[Array, " p"]
    ) -> Float[Array, "*q c"]:
        """The sum of its rows with these weights."""
        return self._sum(lambda part, own: product(own, part), weights, active)

    def squares(self, active: Bool[Array, " p"]) -> Float[Array, " c"]:
        """The sum of the squares in each column."""
        return self._sum(lambda part, _: jnp.sum(part**2, axis=0), active, active)

    def put(
        self, slot: Int[Array, ""], row: Float[Array, " c"], wanted: Bool[Array, ""]
    ) -> "SlotMatrix":
        """The same with another row for a slot, if that is wanted."""
        parts, start = [], 0
        for part in self.parts:
            here = wanted & (slot >= start) & (slot < start + len(part))
            place = jnp.clip(slot - start, 0, len(part) - 1)
            old = jax.lax.dynamic_index_in_dim(part, place, keepdims=False)
            new = jnp.where(here, row, old)
            parts.append(jax.lax.dynamic_update_index_in_dim(part, new, place, 0))
            start += len(part)
        return SlotMatrix(tuple(parts))

    def changed(
        self,
        change: Callable[..., Array],
        by_slot: tuple[Array, ...],
        active: Bool[Array, " p"],
        wanted: Bool[Array, ""],
    ) -> "SlotMatrix":
        """The same with other entries.

        Args:
            change: given a part, and of each of `by_slot` what belongs to it, the part anew.
            by_slot: arrays with an entry for each slot.
            active: shape (p,), slots in use before or after.
            wanted: whether there is anything to change.
        """
        in_use = self._in_use(active)

        def changed(place: int, part: Array, values: tuple[Array, ...]) -> Array:
            # Sliced in the branch, so that it costs nothing where that is not taken.
            return change(part, *(self._own(place, v) for v in values))

        return SlotMatrix(
            tuple(
                # In a branch, or the compiler evaluates what is broadcast anew for every entry.
                jax.lax.cond(
                    wanted if used is None else wanted & used,
                    functools.partial(changed, place),
                    lambda part, _: part,
                    part,
                    by_slot,
                )
                for place, (part, used) in enumerate(zip(self.parts, in_use, strict=True))
            )
        )

    def _own(self, place: int, values: Shaped[Array, "*b p"]) -> Shaped[Array, "*b _"]:
        """Of an array whose last axis is over the slots what belongs to a part."""
        start = sum(map(len, self.parts[:place]))
        return jax.lax.slice_in_dim(values, start, start + len(self.parts[place]), axis=-1)

    def _in_use(self, active: Bool[Array, " p"]) -> list[Array | None]:
        """For each part but the first whether any of its slots is, in any lane under `vmap`."""
        others = range(1, len(self.parts))
        return [None, *(any_lane(any_of(self._own(place, active))) for place in others)]

    def _sum(
        self, of_part: Callable[[Array, Array], Array], by_slot: Array, active: Bool[Array, " p"]
    ) -> Array:
        """The sum over the parts in use of something made of each, and of what belongs to it."""
        total = of_part(self.parts[0], self._own(0, by_slot))

        def added(place: int, total: Array, part: Array, by_slot: Array) -> Array:
            return total + of_part(part, self._own(place, by_slot))

        for place, used in enumerate(self._in_use(active)):
            if used is not None:
                total = jax.lax.cond(
                    used,
                    functools.partial(added, place),
                    lambda total, part, by_slot: total,
                    total,
                    self.parts[place],
                    by_slot,
                )
        return total
