"""At most k rows whose weights sum to a given total."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from jaxcoreset.solvers.constraints.base import Constraint, Sparse, TopK
from jaxcoreset.solvers.problem import is_concrete


class SimplexTopK(Constraint):
    """At most k entries, none negative, that sum to `total`: {w ≥ 0, ‖w‖₀ ≤ k, Σw = total}.

    With ``total=n`` the coreset carries as much weight as the data, so that its posterior is about
    as wide as theirs however few rows it has.

    The projection takes the k largest entries, of either sign, and projects them onto the simplex
    (Kyrillidis, Becker, Cevher and Koch 2013, "Sparse projections onto the simplex", Algorithm 1,
    which they prove exact). Equal entries go to the lower index.

    Args:
        total: the sum of the weights, a positive number. May be traced; one that is not positive
            then gives weights that are all zero.

    Raises:
        ValueError: if `total` is not a single number, positive and finite.
    """

    total: Float[Array, ""]

    def __init__(self, total: ArrayLike):
        total = jnp.asarray(total)
        if total.ndim != 0:
            raise ValueError(f"total has shape {total.shape}; wanted a single number.")
        is_float = jnp.issubdtype(total.dtype, jnp.floating)
        # With a type of its own, so that 3.0, 3 and an array share one compiled program.
        self.total = jnp.asarray(total, total.dtype if is_float else jnp.result_type(float))
        if is_concrete(self.total) and not (0 < self.total < jnp.inf):
            raise ValueError(
                f"total is {self.total}; wanted a positive number, what the weights are to sum to, "
                "for instance the number of rows of data."
            )

    def project(self, vector: Float[Array, " n"], k: Int[Array, ""], max_k: int) -> Sparse:
        """See `Constraint.project`."""
        values, indices = jax.lax.top_k(vector, max_k)
        member = (jnp.arange(max_k) < k) & (values > -jnp.inf)
        return Sparse(indices, _project_on_simplex(values, member, self.total))

    def project_on_support(self, sparse: Sparse, support: Bool[Array, " k"]) -> Sparse:
        """See `Constraint.project_on_support`."""
        return Sparse(sparse.indices, _project_on_simplex(sparse.values, support, self.total))

    def expand(
        self,
        magnitude: Float[Array, " n"],
        support: Bool[Array, " n"],
        k: Int[Array, ""],
        max_k: int,
    ) -> Sparse:
        """See `Constraint.expand`; the total does not limit where a step may go."""
        return TopK().expand(magnitude, support, k, max_k)

    def tangent(self, gradient: Float[Array, " m"], member: Bool[Array, " m"]) -> Array:
        """See `Constraint.tangent`; a step by the same amount everywhere would change the sum."""
        mean = jnp.sum(gradient, where=member) / jnp.maximum(jnp.sum(member), 1)
        return jnp.where(member, gradient - mean, 0)


def _project_on_simplex(
    values: Float[Array, " k"], member: Bool[Array, " k"], total: Float[Array, ""]
) -> Float[Array, " k"]:
    """The nearest point with entries ≥ 0 that sum to `total`, zero where not a member.

    max(v − θ, 0) with θ such that the entries sum to the total: with u the members sorted, largest
    first, θ = (u_1 + … + u_ρ − total) / ρ for the last ρ at which u_ρ is above it.
    """
    total = total.astype(values.dtype)
    values = jnp.where(member, values, -jnp.inf)
    largest = jnp.max(values)
    # Only differences count, and those to the largest keep most digits.
    values = jnp.where(member, values - jnp.where(member.any(), largest, 0), -jnp.inf)
    falling = -jnp.sort(-values)
    present = falling > -jnp.inf
    sums = jnp.cumsum(jnp.where(present, falling, 0)) - total
    counts = jnp.arange(1, values.shape[0] + 1)
    above = present & (falling * counts > sums)
    rho = jnp.maximum(jnp.sum(above), 1)
    return jnp.maximum(values - sums[rho - 1] / rho, 0)
