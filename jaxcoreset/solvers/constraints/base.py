"""The interface of constraints, and the set of at most k rows."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int


class Sparse(eqx.Module):
    """A sparse vector: the entries ``values`` at ``indices``, which are distinct; the rest is 0."""

    indices: Int[Array, " k"]
    values: Float[Array, " k"]

    def dense(self, n: int) -> Float[Array, " n"]:
        """All n entries."""
        return jnp.zeros(n, self.values.dtype).at[self.indices].add(self.values)


class Constraint(eqx.Module):
    """A set of sparse non-negative vectors of length n."""

    @property
    def holds_zero(self) -> bool:
        """True if the vector zero is in the set, so that a solver may return no rows."""
        return True

    @abc.abstractmethod
    def project(self, vector: Float[Array, " n"], k: Int[Array, ""], max_k: int) -> Sparse:
        """The point of the set that is nearest to `vector` in Euclidean distance.

        An entry of −inf must stay zero.
        """

    def project_on_support(self, sparse: Sparse, support: Bool[Array, " k"]) -> Sparse:
        """The point of the set nearest to `sparse` among points that are zero outside `support`.

        Args:
            sparse: a sparse vector.
            support: the slots that may be used: those of a point of the set.
        """
        return Sparse(sparse.indices, jnp.where(support, jnp.maximum(sparse.values, 0), 0))

    def expand(
        self,
        magnitude: Float[Array, " n"],
        support: Bool[Array, " n"],
        k: Int[Array, ""],
        max_k: int,
    ) -> Sparse:
        """The entries outside `support` that a step within the set would add, by `magnitude`.

        The result's values are 1 for an added entry and 0 in an unused slot. An entry of magnitude
        zero is not added.
        """
        grown = self.project(jnp.where(support, 0, magnitude), k, max_k)
        return Sparse(grown.indices, (grown.values > 0).astype(magnitude.dtype))

    def tangent(self, gradient: Float[Array, " m"], member: Bool[Array, " m"]) -> Array:
        """The part of a gradient, on the entries in `member`, that lies in the set's tangent space.

        A line search moves along this part, since the projection undoes the remainder.
        """
        return jnp.where(member, gradient, 0)

    def check(self, num_data: int) -> None:
        """Raise a ValueError if the set does not fit vectors of length `num_data`."""

    def take(self, rows: Int[np.ndarray, " c"] | Int[Array, " c"]) -> "Constraint":
        """The same set for vectors that hold these rows only, such as candidates or a batch.

        Args:
            rows: row numbers; may be traced. A group may have no row among them.
        """
        return self

    def bind(self, labels: Callable[[str], np.ndarray]) -> "Constraint":
        """The same set with labels in place of the name of an argument, if it has such a name.

        Args:
            labels: from the name of an argument to its values, one for each row.
        """
        return self


def constraints_of(tree: Any) -> list[Constraint]:
    """The constraints in a pytree, such as a solver."""
    leaves = jax.tree.leaves(tree, is_leaf=_is_constraint)
    return [leaf for leaf in leaves if _is_constraint(leaf)]


def replace_constraints(tree: Any, function: Callable[[Constraint], Constraint]) -> Any:
    """A pytree, such as a solver, with `function` of each of its constraints in its place."""
    return jax.tree.map(
        lambda leaf: function(leaf) if _is_constraint(leaf) else leaf, tree, is_leaf=_is_constraint
    )


def _is_constraint(leaf: Any) -> bool:
    return isinstance(leaf, Constraint)


class TopK(Constraint):
    """At most k entries, none negative: {w ≥ 0, ‖w‖₀ ≤ k}.

    The projection keeps the k largest positive entries (Zhang et al. 2021, appendix B). Equal
    entries go to the lower index.
    """

    def project(self, vector: Float[Array, " n"], k: Int[Array, ""], max_k: int) -> Sparse:
        """See `Constraint.project`."""
        values, indices = jax.lax.top_k(vector, max_k)
        keep = (jnp.arange(max_k) < k) & (values > 0)
        return Sparse(indices, jnp.where(keep, values, 0))
