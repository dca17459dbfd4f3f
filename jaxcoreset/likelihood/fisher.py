"""The weighted Fisher information distance: log-likelihoods measured by their gradients in θ.

‖L_i‖² = E_π̂ ‖∇L_i(θ)‖² (Campbell and Broderick, "Bayesian coreset construction via greedy iterative
geodesic ascent", ICML 2018, equation 39). Its atoms are partial derivatives at the draws, all of
them or those of random (draw, coordinate) pairs, which `FisherFeatures` holds.
"""

import operator
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from jaxcoreset.data.arrays import leading
from jaxcoreset.likelihood.passes import Features, LogLikelihood, check_shape, checked_draws


class FisherFeatures(Features):
    """Partial derivatives of log-likelihoods at draws, made by `fisher_features`.

    Feature j of datum i is √(D/J) ∂L_i/∂θ_d at θ = draw s for the j-th pair (s, d). Use the same
    features for candidates and for the target over all rows, or they cannot be compared.

    Attributes:
        points: the draws, each as one row.
        draw_indices: s of every pair; None for all S·D pairs, draw by draw.
        coordinates: d of every pair; None likewise.
    """

    quantity = "the log-likelihood or its gradient"

    points: Float[Array, "s d"]
    draw_indices: Int[Array, " j"] | None
    coordinates: Int[Array, " j"] | None
    unravel: Callable[[Array], Any] = eqx.field(static=True)

    @property
    def width(self) -> int:
        """The number of features, J."""
        return self.points.size if self.coordinates is None else self.coordinates.shape[0]

    def block(self, log_likelihood: LogLikelihood, chunk: PyTree) -> tuple[Array, Array]:
        """The features of a chunk's m rows, (m, J), and which rows are not finite, (m,)."""

        def values(point: Float[Array, " d"]) -> Array:
            return log_likelihood(self.unravel(point), chunk)

        num_coordinates = self.points.shape[1]
        basis = jnp.eye(num_coordinates, dtype=self.points.dtype)
        if self.draw_indices is None:
            # One evaluation per draw; its linear part is then applied to every direction.
            def slopes_at(point: Float[Array, " d"]) -> tuple[Array, Array]:
                value, slope = jax.linearize(values, point)
                return value, jax.vmap(slope, out_axes=-1)(basis)

            value, slopes = jax.vmap(slopes_at, out_axes=(-1, -2))(self.points)
            slopes = slopes.reshape(-1, self.width)
        else:
            slope_along = jax.vmap(lambda *at: jax.jvp(values, at[:1], at[1:]), out_axes=-1)
            value, slopes = slope_along(self.points[self.draw_indices], basis[self.coordinates])
        check_shape(value.shape[:-1], leading(chunk))
        bad = ~(jnp.isfinite(value).all(axis=-1) & jnp.isfinite(slopes).all(axis=-1))
        return slopes * np.sqrt(num_coordinates / self.width), bad

    def sum(
        self, log_likelihood: LogLikelihood, chunk: PyTree, counted: Bool[Array, " m"]
    ) -> Array:
        """The sum of `block` over the rows counted, by one gradient per draw."""

        def gradient_at(point: Float[Array, " d"]) -> tuple[Array, Array]:
            value, pull_back = jax.vjp(lambda p: log_likelihood(self.unravel(p), chunk), point)
            check_shape(value.shape, counted.shape[0])
            return value, pull_back(counted.astype(value.dtype))[0]

        num_draws, num_coordinates = self.points.shape
        points, rows = self.points, self.draw_indices
        if rows is not None and self.width < num_draws:
            points, rows = self.points[rows], jnp.arange(self.width)
        values, gradients = jax.vmap(gradient_at, out_axes=(-1, 0))(points)
        slopes = gradients.ravel() if rows is None else gradients[rows, self.coordinates]
        # A value may be infinite although its gradient is finite.
        slopes = jnp.where(jnp.isfinite(values).all(), slopes, jnp.nan)
        return slopes * np.sqrt(num_coordinates / self.width)


def fisher_features(
    draws: PyTree, num_features: int | None = None, key: PRNGKeyArray | None = None
) -> FisherFeatures:
    """Choose the partial derivatives that stand for E_π̂ ⟨∇L_i, ∇L_j⟩, all or random ones.

    Campbell and Broderick, "Automated scalable Bayesian inference via Hilbert coresets" (JMLR
    2019), on random projection, as their "Greedy iterative geodesic ascent" (2018, section 4) uses
    it, with uniform pairs (s, d), see `FisherFeatures`. Here no pair is repeated, and draws are
    used equally often, up to one, as nearly are coordinates: inner products of atoms are unbiased
    as in the papers, and vary less. All S·D pairs give the mean over the draws exactly.

    Args:
        draws: pytree of floating-point arrays with a leading axis of length S.
        num_features: J, between 1 and S·D; all pairs by default.
        key: a JAX random key, required with `num_features`.

    Raises:
        ValueError: if there are no draws or their lengths differ, or `num_features` is out of range
            or without a key.
        TypeError: if `num_features` is not a whole number, or a draw is not floating-point.
    """
    draws = jax.tree.map(jnp.asarray, checked_draws(draws, 1))
    for leaf in jax.tree.leaves(draws):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(
                f"draws holds an array of type {leaf.dtype}; expected floating-point numbers, at "
                "which the log-likelihood has a gradient."
            )
    num_draws = leading(draws)
    points = jax.vmap(lambda draw: ravel_pytree(draw)[0])(draws)
    unravel = ravel_pytree(jax.tree.map(lambda x: x[0], draws))[1]
    if num_features is None:
        return FisherFeatures(points, None, None, unravel)
    num_coordinates = points.shape[1]
    try:
        width = operator.index(num_features)
    except TypeError:
        raise TypeError(f"num_features is {num_features!r}; expected a whole number.") from None
    if not 1 <= width <= num_draws * num_coordinates:
        raise ValueError(
            f"num_features is {width}; expected 1 ≤ num_features ≤ {num_draws * num_coordinates}, "
            f"the number of pairs of {num_draws} draws and {num_coordinates} coordinates. Leave it "
            "out to use them all."
        )
    if key is None:
        raise ValueError(
            "key is missing; num_features draws random pairs: pass key=jax.random.key(seed)."
        )
    draw_key, coordinate_key = jax.random.split(key)
    # Round t of the draws pairs the p-th with coordinate p + t, both in random order.
    rounds, positions = np.divmod(np.arange(width), num_draws)
    draw_order = jax.random.permutation(draw_key, num_draws)
    coordinate_order = jax.random.permutation(coordinate_key, num_coordinates)
    coordinates = coordinate_order[(positions + rounds) % num_coordinates]
    return FisherFeatures(points, draw_order[positions], coordinates, unravel)
