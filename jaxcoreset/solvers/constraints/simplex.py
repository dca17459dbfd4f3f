"""At most k rows whose weights sum to a given total."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from jaxcoreset.solvers.arguments import is_concrete
from jaxcoreset.solvers.constraints.base import Constraint, Sparse, TopK
from jaxcoreset.solvers.numerics import project_simplex


class SimplexTopK(Constraint):
    """At most k entries, none negative, that sum to `total`: {w ≥ 0, ‖w‖₀ ≤ k, Σw = total}.

    With ``total=n`` the coreset has the total weight of the data, so that its posterior is about as
    wide as the full posterior even with few rows.

    The projection takes the k largest entries, of either sign, and projects them onto the simplex
    (Kyrillidis, Becker, Cevher and Koch 2013, "Sparse projections onto the simplex", Algorithm 1,
    which they prove exact). Equal entries go to the lower index.

    Args:
        total: the sum of the weights, a positive number. May be traced; then all weights are zero
            if it is not positive.

    Raises:
        ValueError: if `total` is not a single number, positive and finite.
    """

    total: Float[Array, ""]

    def __init__(self, total: ArrayLike):
        total = jnp.asarray(total)
        if total.ndim != 0:
            raise ValueError(f"total has shape {total.shape}; expected a single number.")
        is_float = jnp.issubdtype(total.dtype, jnp.floating)
        # With a fixed type, so that 3.0, 3 and an array share one compiled program.
        self.total = jnp.asarray(total, total.dtype if is_float else jnp.result_type(float))
        if is_concrete(self.total) and not (0 < self.total < jnp.inf):
            raise ValueError(
                f"total is {self.total}; expected a positive number, the sum of the weights, for "
                "instance the number of rows of data."
            )

    @property
    def holds_zero(self) -> bool:
        """False: zero does not have the total."""
        return False

    def project(self, vector: Float[Array, " n"], k: Int[Array, ""], max_k: int) -> Sparse:
        """See `Constraint.project`."""
        values, indices = jax.lax.top_k(vector, max_k)
        member = (jnp.arange(max_k) < k) & (values > -jnp.inf)
        return Sparse(indices, project_simplex(values, member, self.total))

    def project_on_support(self, sparse: Sparse, support: Bool[Array, " k"]) -> Sparse:
        """See `Constraint.project_on_support`."""
        return Sparse(sparse.indices, project_simplex(sparse.values, support, self.total))

    def expand(
        self,
        magnitude: Float[Array, " n"],
        support: Bool[Array, " n"],
        k: Int[Array, ""],
        max_k: int,
    ) -> Sparse:
        """See `Constraint.expand`; the total does not restrict where a step may go."""
        return TopK().expand(magnitude, support, k, max_k)

    def tangent(self, gradient: Float[Array, " m"], member: Bool[Array, " m"]) -> Array:
        """See `Constraint.tangent`; the mean is removed, so that a step keeps the sum."""
        mean = jnp.sum(gradient, where=member) / jnp.maximum(jnp.sum(member), 1)
        return jnp.where(member, gradient - mean, 0)
