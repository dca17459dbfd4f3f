"""Constraint sets on the weights, as what hard thresholding needs to know of them.

A constraint is a set of non-negative, sparse vectors. A solver asks it for the Euclidean projection
of a vector onto the set, and for the directions that it would let a vector grow into. `k` may be
traced; `max_k` is its static upper bound and the length of what comes back.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Sparse(eqx.Module):
    """A sparse vector: the entries ``values`` at ``indices``, which are distinct; the rest is 0."""

    indices: Int[Array, " k"]
    values: Float[Array, " k"]


class Constraint(eqx.Module):
    """A set of sparse non-negative vectors of length n."""

    @abc.abstractmethod
    def project(self, vector: Float[Array, " n"], k: Int[Array, ""], max_k: int) -> Sparse:
        """The point of the set that is nearest to `vector` in Euclidean distance."""

    @abc.abstractmethod
    def project_on_support(self, sparse: Sparse) -> Sparse:
        """The nearest point of the set among those with the support of `sparse`."""

    @abc.abstractmethod
    def expand(
        self,
        magnitude: Float[Array, " n"],
        support: Bool[Array, " n"],
        k: Int[Array, ""],
        max_k: int,
    ) -> Sparse:
        """The entries outside `support` that a k-sparse step would take, by largest `magnitude`.

        The values that come back are 1 for an entry that is taken and 0 for a slot not used.
        """


class TopK(Constraint):
    """At most k entries, none negative: {w ≥ 0, ‖w‖₀ ≤ k}.

    The projection keeps the k largest positive entries (Zhang et al. 2021, appendix B). Equal
    entries go to the lower index.
    """

    def project(self, vector: Float[Array, " n"], k: Int[Array, ""], max_k: int) -> Sparse:
        values, indices = jax.lax.top_k(vector, max_k)
        keep = (jnp.arange(max_k) < k) & (values > 0)
        return Sparse(indices, jnp.where(keep, values, 0))

    def project_on_support(self, sparse: Sparse) -> Sparse:
        return Sparse(sparse.indices, jnp.maximum(sparse.values, 0))

    def expand(
        self,
        magnitude: Float[Array, " n"],
        support: Bool[Array, " n"],
        k: Int[Array, ""],
        max_k: int,
    ) -> Sparse:
        values, indices = jax.lax.top_k(jnp.where(support, -1, magnitude), max_k)
        take = (jnp.arange(max_k) < k) & (values >= 0)
        return Sparse(indices, take.astype(magnitude.dtype))
