"""Sparse distributions on a lattice: few coordinates that vary, the others held at zero.

Zhang, Khanna, Kyrillidis and Koyejo, "Learning sparse distributions using iterative hard
thresholding" (NeurIPS 2019). A distribution p on X = {0, …, m−1}ⁿ is a table of shape (m,)·n, entry x
its probability. For a set S of coordinates, X_S holds the x with x_i = 0 for all i outside S, and P_S
the distributions supported on X_S. The paper's k-sparse distributions are D_k = ∪_{|S| ≤ k} P_S (its
Definition 1): a distribution of D_k is told by mᵏ numbers instead of mⁿ. Sought is

    min F[q]   subject to   q ∈ D_k

for a convex F: `SquaredDistance`, `KLDivergence` or `ExpectationDistance`. `DistributionGreedy` is
the paper's Algorithm 3, `DistributionIHT` its Algorithm 1, `sparse_projection` its Algorithm 2, and
`learn_distribution` the front door. `compress_distribution` keeps the expectations of given functions.

Sparsity of a distribution's own entries (the paper's appendix A) is another matter: there the
distribution is a vector of weights on the simplex, see `jaxcoreset.kernel`.
"""

import abc
import math
import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxcoreset.nnls import nnls
from jaxcoreset.problem import HIGHEST, is_concrete

# Entries of a table are found by an int32, and a table of this size takes 8 GB in float32.
_MAX_ENTRIES = 2**31 - 1


class DistributionObjective(eqx.Module):
    """A convex functional F of distributions on one lattice.

    A subclass says what F is, what its gradient is, and where its minimum over P_S lies. `scale` is
    the curvature that step sizes are measured by: the smoothness constant β where F has one.
    """

    @property
    @abc.abstractmethod
    def lattice(self) -> tuple[int, ...]:
        """The shape of a table, (m,)·n."""

    @abc.abstractmethod
    def __call__(self, table: Float[Array, "*lattice"]) -> Float[Array, ""]:
        """F[q] for the distribution q of the table."""

    @abc.abstractmethod
    def gradient(self, table: Float[Array, "*lattice"]) -> Float[Array, "*lattice"]:
        """The variational derivative δF/δq (the paper's Definition 3)."""

    @abc.abstractmethod
    def scale(self, size: int) -> Float[Array, ""]:
        """The curvature of F on an X_S of `size` points."""

    @abc.abstractmethod
    def best_on(
        self, points: Int[Array, " p"], allowed: Bool[Array, " p"]
    ) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """The minimum of F among the distributions on some points of the lattice.

        Args:
            points: places in the flattened table.
            allowed: which of them there are.

        Returns:
            The probabilities of the points, and F but for a term that is the same for all points.
        """


class SquaredDistance(DistributionObjective):
    """F[q] = ‖q − p‖², summed over the lattice.

    Args:
        target: p, a table of shape (m,)·n. Need not be a distribution.

    Raises:
        ValueError: if the target has another shape or entries that are not finite.
    """

    target: Float[Array, "*lattice"]

    def __init__(self, target: ArrayLike):
        self.target = _table("target", target)

    @property
    def lattice(self) -> tuple[int, ...]:
        """See `DistributionObjective.lattice`."""
        return self.target.shape

    def __call__(self, table: Float[Array, "*lattice"]) -> Float[Array, ""]:
        """See `DistributionObjective`."""
        return jnp.sum((table - self.target) ** 2)

    def gradient(self, table: Float[Array, "*lattice"]) -> Float[Array, "*lattice"]:
        """See `DistributionObjective.gradient`."""
        return 2 * (table - self.target)

    def scale(self, size: int) -> Float[Array, ""]:
        """See `DistributionObjective.scale`."""
        return jnp.full((), 2, self.target.dtype)

    def best_on(
        self, points: Int[Array, " p"], allowed: Bool[Array, " p"]
    ) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """The projection of p onto P_S (section 3.3); see `DistributionObjective.best_on`."""
        wanted = self.target.ravel()[points]
        values = project_simplex(wanted, allowed)
        return values, jnp.sum(jnp.where(allowed, values * (values - 2 * wanted), 0))


class KLDivergence(DistributionObjective):
    """F[q] = KL(q‖p) = Σ q log(q/p), in nats, with 0 log 0 = 0.

    Its gradient is log(q/p) + 1, which is −∞ where q is 0, and that is nearly everywhere for a sparse
    q. The paper does not say how it met that; here the gradient is taken at max(q, floor).

    Args:
        target: p, a table of shape (m,)·n of positive numbers.
        floor: a probability, below which the gradient falls no further.

    Raises:
        ValueError: if the target has another shape, or entries that are not positive and finite, or
            the floor is not positive.
    """

    target: Float[Array, "*lattice"]
    floor: float

    def __init__(self, target: ArrayLike, floor: float = 1e-6):
        self.target = _table("target", target)
        self.floor = floor
        if not floor > 0:
            raise ValueError(f"floor is {floor}; wanted a positive number.")
        if is_concrete(self.target) and not (self.target > 0).all():
            raise ValueError(
                "target has entries that are not positive, where KL(q‖p) is infinite. Mix it with "
                "a little of the uniform distribution, or use SquaredDistance."
            )

    @property
    def lattice(self) -> tuple[int, ...]:
        """See `DistributionObjective.lattice`."""
        return self.target.shape

    def __call__(self, table: Float[Array, "*lattice"]) -> Float[Array, ""]:
        """See `DistributionObjective`."""
        safe = jnp.where(table > 0, table, 1)
        return jnp.sum(jnp.where(table > 0, table * jnp.log(safe / self.target), 0))

    def gradient(self, table: Float[Array, "*lattice"]) -> Float[Array, "*lattice"]:
        """See `DistributionObjective.gradient`."""
        return jnp.log(jnp.maximum(table, self.floor) / self.target) + 1

    def scale(self, size: int) -> Float[Array, ""]:
        """See `DistributionObjective.scale`; 1/q at the uniform distribution."""
        return jnp.full((), size, self.target.dtype)

    def best_on(
        self, points: Int[Array, " p"], allowed: Bool[Array, " p"]
    ) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """p itself on the points, normalised; see `DistributionObjective.best_on`."""
        wanted = jnp.where(allowed, self.target.ravel()[points], 0)
        mass = jnp.sum(wanted)
        return wanted / mass, -jnp.log(mass)


def project_simplex(vector: Float[Array, " p"], allowed: Bool[Array, " p"]) -> Float[Array, " p"]:
    """The nearest vector that is non-negative, sums to one, and is zero where not allowed.

    By sorting; the projection that the paper's section 3.3 takes from Kyrillidis, Becker, Cevher and
    Koch, "Sparse projections onto the simplex" (ICML 2013).

    Args:
        vector: shape (p,).
        allowed: shape (p,), at least one of them true.
    """
    # The projection does not change when a constant is added, and near zero digits are dense.
    vector = vector - jnp.max(jnp.where(allowed, vector, -jnp.inf))
    falling = -jnp.sort(jnp.where(allowed, -vector, jnp.inf))
    finite = jnp.isfinite(falling)
    sums = jnp.cumsum(jnp.where(finite, falling, 0))
    ranks = jnp.arange(1, vector.shape[0] + 1)
    size = jnp.sum(finite & (ranks * falling > sums - 1))
    threshold = (sums[size - 1] - 1) / size
    return jnp.where(allowed, jnp.maximum(vector - threshold, 0), 0)


def _table(name, value):
    return jnp.asarray(value)


def _strides(lattice):
    n, m = len(lattice), lattice[0]
    return jnp.asarray([m ** (n - 1 - i) for i in range(n)], jnp.int32)


def greedy(objective, k, max_k):
    lattice = objective.lattice
    n, m = len(lattice), lattice[0]
    strides = _strides(lattice)
    points = jnp.zeros(1, jnp.int32)
    allowed = jnp.ones(1, bool)
    support = jnp.zeros(n, bool)
    digits = jnp.arange(m, dtype=jnp.int32)
    values, score = objective.best_on(points, allowed)
    for slot in range(max_k):
        grows = slot < k
        grown = (points[None, :, None] + strides[:, None, None] * digits).reshape(n, -1)
        allowed = (allowed[:, None] & ((digits == 0) | grows)).reshape(-1)
        all_values, scores = jax.vmap(objective.best_on, in_axes=(0, None))(grown, allowed)
        best = jnp.argmin(jnp.where(support, jnp.inf, scores))
        points, values, score = grown[best], all_values[best], scores[best]
        support = support.at[best].set(support[best] | grows)
    table = jnp.zeros(math.prod(lattice), values.dtype).at[points].add(values).reshape(lattice)
    return table, support, score
