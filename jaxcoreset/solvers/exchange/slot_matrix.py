"""Matrices with a row for each slot, of which usually only the first ones are in use.

There is a slot for every atom that may ever be in use, and usually far fewer are, while a pass over
a matrix costs as much as if all of them were. Slots are filled from the first one on. So on a CPU
such a matrix is stored in parts, the first slots and the remaining ones, and operations skip a part
whose slots are all free. The parts are separate arrays, since XLA copies a slice of an array before
it is used.
"""

import functools
import itertools
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from jaxcoreset.solvers.numerics import any_in_batch, product

# The ends of the parts, as fractions of all slots: for k = 100 further starts need the first part.
_ENDS = (0.2, 1)
# Matrices with fewer entries have one part: each further part takes a tenth of a second to compile.
_MIN_ENTRIES = 40_000


class SlotMatrix(eqx.Module):
    """A matrix with a row for each slot; rows of free slots are zero.

    Attributes:
        parts: its rows, from the first one on.
    """

    parts: tuple[Float[Array, "_ c"], ...]

    @classmethod
    def of(cls, matrix: Float[Array, "p c"], in_parts: bool) -> "SlotMatrix":
        """Convert an array.

        Args:
            matrix: the array.
            in_parts: whether to store a large matrix in parts: on a CPU, but not on a GPU, where it
                takes longer to decide on a part than to pass over it.
        """
        if not in_parts or matrix.size < _MIN_ENTRIES:
            return cls((matrix,))
        return cls.split(matrix, [max(1, round(end * len(matrix))) for end in _ENDS])

    @classmethod
    def split(cls, matrix: Float[Array, "p c"], ends: Sequence[int]) -> "SlotMatrix":
        """Split an array into parts that end at these rows."""
        return cls(
            tuple(matrix[start:end] for start, end in zip((0, *ends[:-1]), ends, strict=True))
        )

    def replace(self, matrix: Float[Array, "p c"]) -> "SlotMatrix":
        """Another matrix of the same shape, in the same parts."""
        return SlotMatrix.split(matrix, list(itertools.accumulate(map(len, self.parts))))

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
        """The columns with these indices."""
        # With mode="clip", XLA does not check for each index whether it is in range.
        return jnp.concatenate(
            [jnp.take(part, indices, axis=1, mode="clip") for part in self.parts]
        )

    def dot(
        self, columns: Float[Array, "c ..."], active: Bool[Array, " p"]
    ) -> Float[Array, "p ..."]:
        """The product with a vector or matrix; `active` marks the slots in use."""

        def multiply(part: Array) -> Array:
            return product(part, columns)

        def zeros(part: Array) -> Array:
            return jnp.zeros((len(part), *columns.shape[1:]), part.dtype)

        first, *others = self.parts
        later = zip(self._in_use(active), others, strict=True)
        return jnp.concatenate(
            [multiply(first), *(jax.lax.cond(used, multiply, zeros, part) for used, part in later)]
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
        self, slot: Int[Array, ""], row: Float[Array, " c"], replaces: Bool[Array, ""]
    ) -> "SlotMatrix":
        """The matrix with another row for a slot, if `replaces` is set."""
        parts, start = [], 0
        for part in self.parts:
            here = replaces & (slot >= start) & (slot < start + len(part))
            position = jnp.clip(slot - start, 0, len(part) - 1)
            old = jax.lax.dynamic_index_in_dim(part, position, keepdims=False)
            new = jnp.where(here, row, old)
            parts.append(jax.lax.dynamic_update_index_in_dim(part, new, position, 0))
            start += len(part)
        return SlotMatrix(tuple(parts))

    def map_parts(
        self,
        function: Callable[..., Array],
        by_slot: tuple[Array, ...],
        active: Bool[Array, " p"],
        changes: Bool[Array, ""],
    ) -> "SlotMatrix":
        """Replace each part by a function of it.

        Args:
            function: maps a part, and its slots' entries of each of `by_slot`, to the new part.
            by_slot: arrays with an entry for each slot.
            active: shape (p,), slots in use before or after.
            changes: whether there is anything to change.
        """

        def new_part(i: int, part: Array, values: tuple[Array, ...]) -> Array:
            # Sliced in the branch, so that it costs nothing if that is not taken.
            return function(part, *(self._slots_of(i, v) for v in values))

        # In a branch, since otherwise XLA computes broadcast values again for every entry.
        flags = [changes, *(changes & used for used in self._in_use(active))]
        parts = []
        for i, part in enumerate(self.parts):
            change = functools.partial(new_part, i)
            parts.append(jax.lax.cond(flags[i], change, lambda part, _: part, part, by_slot))
        return SlotMatrix(tuple(parts))

    def _slots_of(self, i: int, values: Shaped[Array, "*b p"]) -> Shaped[Array, "*b _"]:
        """The entries of a part's slots, of an array whose last axis is over the slots."""
        start = sum(map(len, self.parts[:i]))
        return jax.lax.slice_in_dim(values, start, start + len(self.parts[i]), axis=-1)

    def _in_use(self, active: Bool[Array, " p"]) -> list[Array]:
        """For each part but the first: whether a slot is in use, in any element of a batch."""
        later = range(1, len(self.parts))
        return [any_in_batch(jnp.any(self._slots_of(i, active))) for i in later]

    def _sum(
        self, function: Callable[[Array, Array], Array], by_slot: Array, active: Bool[Array, " p"]
    ) -> Array:
        """The sum of a function of each part in use, and of its slots' entries of `by_slot`."""
        total = function(self.parts[0], self._slots_of(0, by_slot))

        def add(i: int, total: Array, part: Array, by_slot: Array) -> Array:
            return total + function(part, self._slots_of(i, by_slot))

        for i, used in enumerate(self._in_use(active), start=1):
            given = total, self.parts[i], by_slot
            total = jax.lax.cond(used, functools.partial(add, i), lambda total, *_: total, *given)
        return total
