"""Objectives for distributions: three convex functionals F on a lattice."""

import abc

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from jaxcoreset.distributions.lattice import checked_table
from jaxcoreset.solvers.arguments import check_finite, check_that, is_concrete
from jaxcoreset.solvers.kernel import simplex_problem
from jaxcoreset.solvers.nnls import nnls
from jaxcoreset.solvers.numerics import divide, product, project_simplex
from jaxcoreset.solvers.problem import CoresetProblem


class DistributionObjective(eqx.Module):
    """A convex functional F of distributions on one lattice.

    A subclass implements F, its gradient, and its minimum over P_S. `scale` is the curvature that
    step sizes are relative to: the smoothness constant β if F has one.
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
        """The minimum of F over the distributions on some points of the lattice.

        Args:
            points: positions in the flattened table.
            allowed: the points that exist.

        Returns:
            The probabilities of the points, and F up to a term that is the same for all points.
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
        self.target = checked_table("target", target)

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
        target = self.target.ravel()[points]
        values = project_simplex(target, allowed)
        return values, jnp.sum(jnp.where(allowed, values * (values - 2 * target), 0))


class KLDivergence(DistributionObjective):
    """F[q] = KL(q‖p) = Σ q log(q/p), in nats, with 0 log 0 = 0.

    Its gradient is log(q/p) + 1, which is −∞ where q is 0, and that is nearly everywhere for a
    sparse q. The paper does not say how it handles this; here the gradient is taken at
    max(q, floor).

    Args:
        target: p, a table of shape (m,)·n of positive numbers.
        floor: the smallest probability at which the gradient is evaluated.

    Raises:
        ValueError: if the target has another shape, or entries that are not positive and finite, or
            the floor is not positive.
    """

    target: Float[Array, "*lattice"]
    floor: float

    def __init__(self, target: ArrayLike, floor: float = 1e-4):
        self.target = checked_table("target", target)
        self.floor = floor
        check_that(floor > 0, "floor", floor, "a positive number")
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
        """The target on the points, normalised; see `DistributionObjective.best_on`."""
        target = jnp.where(allowed, self.target.ravel()[points], 0)
        mass = jnp.sum(target)
        return target / mass, -jnp.log(mass)


class ExpectationDistance(DistributionObjective):
    """F[q] = ‖Aq − Ap‖²: the distance of q from p in the expectations of r functions (section 4.2).

    Args:
        features: A, shape (r, m, …, m), the value of each function at each point of the lattice.
        target: p, a table of shape (m,)·n.

    Raises:
        ValueError: if a shape does not fit or an entry is not finite.
    """

    features: Float[Array, "r ..."]
    expectations: Float[Array, " r"]
    curvature: Float[Array, ""]

    def __init__(self, features: ArrayLike, target: ArrayLike):
        table = checked_table("target", target)
        features = jnp.asarray(features, table.dtype)
        if features.ndim != table.ndim + 1 or features.shape[1:] != table.shape:
            raise ValueError(
                f"features has shape {features.shape}; expected (r, {str(table.shape)[1:-1]}), the "
                "value of each of r functions at each point of the lattice."
            )
        if features.shape[0] == 0:
            raise ValueError("features is empty; expected at least one function.")
        check_finite("features", features)
        flat = features.reshape(features.shape[0], -1)
        self.features = features
        self.expectations = product(flat, table.ravel())
        self.curvature = 2 * jnp.linalg.eigvalsh(product(flat, flat.T))[-1]

    @property
    def lattice(self) -> tuple[int, ...]:
        """See `DistributionObjective.lattice`."""
        return self.features.shape[1:]

    def __call__(self, table: Float[Array, "*lattice"]) -> Float[Array, ""]:
        """See `DistributionObjective`."""
        missing = self._missing(table)
        return jnp.vdot(missing, missing)

    def gradient(self, table: Float[Array, "*lattice"]) -> Float[Array, "*lattice"]:
        """See `DistributionObjective.gradient`."""
        return 2 * product(self._missing(table), self._flat).reshape(table.shape)

    def scale(self, size: int) -> Float[Array, ""]:
        """See `DistributionObjective.scale`; 2‖A‖², or 1 if all functions are zero."""
        return jnp.where(self.curvature > 0, self.curvature, 1)

    def best_on(
        self, points: Int[Array, " p"], allowed: Bool[Array, " p"]
    ) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """See `DistributionObjective.best_on`; exact, by non-negative least squares.

        The columns A_x are atoms and Ap is their target; `simplex_problem` says why the best
        weights divided by their sum are the best distribution.
        """
        atoms = self._flat[:, points].T
        lifted = simplex_problem(CoresetProblem(atoms, self.expectations))
        values = nnls(lifted.atoms, lifted.target, mask=allowed).weights
        total = jnp.sum(values)
        first = (jnp.arange(points.shape[0]) == jnp.argmax(allowed)).astype(values.dtype)
        values = jnp.where(total > 0, divide(values, total), first)
        missing = product(values, atoms - self.expectations)
        return values, jnp.vdot(missing, missing)

    @property
    def _flat(self) -> Float[Array, "r x"]:
        return self.features.reshape(self.features.shape[0], -1)

    def _missing(self, table: Float[Array, "*lattice"]) -> Float[Array, " r"]:
        return product(self._flat, table.ravel()) - self.expectations
