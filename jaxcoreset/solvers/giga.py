"""Greedy iterative geodesic ascent: a walk on the unit sphere towards the target's direction.

Campbell and Broderick, "Bayesian coreset construction via greedy iterative geodesic ascent" (ICML
2018). Scale costs nothing, since it can be optimised in closed form at the end (equation 10), so
only the angle between Φw and y is left to minimise.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxcoreset.solvers.frank_wolfe import (
    IncrementalSolver,
    Step,
    best_aligned,
    inverse,
)
from jaxcoreset.solvers.nnls import product
from jaxcoreset.solvers.problem import CoresetProblem

# An atom whose squared sine with the iterate is fewer roundings than this has no geodesic.
_SMALLEST_SQUARED_SINE = 64


class GIGA(IncrementalSolver):
    """Greedy iterative geodesic ascent: Algorithm 1 of Campbell and Broderick (2018).

    With ℓ_n = φ_n/‖φ_n‖, ℓ = y/‖y‖ and the iterate's direction u = Φw/‖Φw‖, an iteration chooses
    the atom whose geodesic from u points most towards ℓ (lines 5 to 7, section 3.3), and goes along
    it to the point nearest to ℓ (lines 8 to 11). k iterations give at most k atoms. The weights are
    scaled optimally (line 13, section 3.1) after each iteration, which changes no direction, and so
    every prefix of a run is a solution. The objective falls with every iteration.

    The best point of the geodesic, scaled optimally, is the projection of y onto the span of u and
    ℓ_n. Its coordinates α along u and β along ℓ_n are the two terms of line 9, ζ1 − ζ0 ζ2 and
    ζ0 − ζ1 ζ2, times ‖y‖ / (1 − ζ2²). They are computed from the components of y and ℓ_n across u,
    which keep their digits where the differences of line 9 lose them.

    A run ends early where nothing points towards the target: the target is reached, or the weights
    are the best non-negative ones of all. An atom along the iterate, or opposite to it, has no
    geodesic and is not chosen. Where every atom is at a right or obtuse angle with the target, the
    solution is empty.
    """

    def objective_at_zero(self, problem: CoresetProblem) -> Float[Array, ""]:
        """‖y‖²."""
        return product(problem.target, problem.target)

    def step(
        self,
        problem: CoresetProblem,
        norms: Float[Array, " n"],
        image: Float[Array, " s"],
        is_first: Bool[Array, ""],
    ) -> Step:
        """See `IncrementalSolver.step`."""
        eps = jnp.finfo(image.dtype).eps
        inverse_norms = inverse(norms)
        to_unit = inverse(jnp.linalg.norm(image))
        unit = image * to_unit
        scale = product(unit, problem.target)
        residual, _ = _across(problem.target, unit)

        both = jnp.stack([residual, unit], axis=1)
        correlations = jax.vmap(problem.correlate, in_axes=1, out_axes=1)(both)
        towards, along = (inverse_norms[:, None] * correlations).T
        squared_sine = (1 - along) * (1 + along)
        has_geodesic = (norms > 0) & (squared_sine > _SMALLEST_SQUARED_SINE * eps)
        scores = towards / jnp.sqrt(jnp.where(has_geodesic, squared_sine, 1))
        scores = jnp.where(has_geodesic, scores, -jnp.inf)
        chosen = best_aligned(scores, residual)

        atom = problem.gather(chosen[None])[0] * inverse_norms[chosen]
        geodesic, cosine = _across(atom, unit)
        beta = product(residual, geodesic) * inverse(product(geodesic, geodesic))
        alpha = scale - beta * cosine
        # No atom is nearer to the target than the iterate, but for rounding, so α is not negative.
        beyond = alpha < 0
        alpha = jnp.where(beyond, 0, alpha)
        beta = jnp.where(beyond, product(atom, problem.target), beta)
        return Step(
            index=chosen,
            keep=alpha * to_unit,
            add=beta * inverse_norms[chosen],
            image=alpha * unit + beta * atom,
            possible=(scores[chosen] > 0) & (beta > 0),
        )


def _across(vector: Float[Array, " s"], unit: Float[Array, " s"]) -> tuple[Array, Array]:
    """The part of a vector that is orthogonal to `unit`, and its component along it.

    Twice, so that what is left is orthogonal even where it is small beside the vector.
    """
    first = product(vector, unit)
    rest = vector - first * unit
    second = product(rest, unit)
    return rest - second * unit, first + second
