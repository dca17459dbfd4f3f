"""Frank–Wolfe and greedy iterative geodesic ascent: solvers that add one atom per iteration.

An iteration of such a solver is w ← keep · w + add · e_n: all weights are rescaled, and one atom n
gains weight. So T iterations are T triples (n, keep, add), and the solution for every k up to T is
read from the first k of them; no iterate is stored.

Campbell and Broderick, "Bayesian coreset construction via greedy iterative geodesic ascent" (ICML
2018), and "Automated scalable Bayesian inference via Hilbert coresets" (JMLR 20, 2019).
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxcoreset.solvers.base import PathSolver
from jaxcoreset.solvers.numerics import divide, pick_largest, product, rounding
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solution import Solution

# The image Φw is updated in place, and recomputed from the weights this often to prevent drift.
_REFRESH_EVERY = 32
# The target counts as reached when the residual is this many units of rounding of the target.
_REACHED = 4
# An atom whose squared sine with the iterate is below this many units of rounding has no geodesic.
_SMALLEST_SQUARED_SINE = 64


class Step(eqx.Module):
    """A step w ← keep · w + add · e_index, or a log of steps, with a leading axis."""

    index: Int[Array, "*t"]
    keep: Float[Array, "*t"]
    add: Float[Array, "*t"]

    def weights_after(self, num_iters: Int[Array, ""]) -> Float[Array, " t"]:
        """What each of the first `num_iters` steps contributes to the weight of its atom."""
        done = jnp.arange(self.keep.shape[0]) < num_iters
        onward = jax.lax.cumprod(jnp.where(done, self.keep, 1), reverse=True)
        later = jnp.append(onward[1:], jnp.ones(1, onward.dtype))
        return jnp.where(done, self.add * later, 0)


class Proposal(eqx.Module):
    """A step, the image Φw that it leads to, and whether it is possible."""

    step: Step
    image: Float[Array, " s"]
    possible: Bool[Array, ""]


class _IncrementalState(eqx.Module):
    log: Step
    image: Float[Array, " s"]
    objective: Float[Array, ""]
    num_iters: Int[Array, ""]
    stopped: Bool[Array, ""]


class IncrementalSolver(PathSolver):
    """A solver whose iterations rescale the weights and add one atom each; k means k iterations.

    The run stops early where a step would not lower the objective in the given precision; the
    solutions for larger k are then the last one. One run gives the solutions for every k.
    """

    @abc.abstractmethod
    def objective_at_zero(self, problem: CoresetProblem) -> Float[Array, ""]:
        """The bound for the first step: the objective at w = 0, or ∞ if w = 0 is infeasible."""

    @abc.abstractmethod
    def step(
        self,
        problem: CoresetProblem,
        norms: Float[Array, " n"],
        image: Float[Array, " s"],
        is_first: Bool[Array, ""],
    ) -> Proposal:
        """The next step from an iterate with image `image`.

        Args:
            problem: the problem.
            norms: σ, the norm of every atom.
            image: Φw.
            is_first: whether w = 0, the start.
        """

    def run_path(
        self, problem: CoresetProblem, ks: Int[Array, " m"], max_k: int, key: PRNGKeyArray | None
    ) -> Solution:
        """Run as many iterations as the largest of `ks`, and read the solution for each k."""
        norms, limit = jnp.sqrt(problem.squared_norms()), jnp.max(ks)

        def goes_on(state: _IncrementalState) -> Array:
            return ~state.stopped & (state.num_iters < limit)

        def block(state: _IncrementalState) -> _IncrementalState:
            end = state.num_iters + _REFRESH_EVERY
            state = jax.lax.while_loop(
                lambda s: goes_on(s) & (s.num_iters < end),
                lambda s: self._try_step(problem, norms, s),
                state,
            )
            image = problem.combine(state.log.index, state.log.weights_after(state.num_iters))
            residual = problem.target - image
            started = state.num_iters > 0
            objective = jnp.where(started, product(residual, residual), state.objective)
            return eqx.tree_at(lambda s: (s.image, s.objective), state, (image, objective))

        dtype = problem.target.dtype
        log = Step(jnp.zeros(max_k, jnp.int32), jnp.zeros(max_k, dtype), jnp.zeros(max_k, dtype))
        start = _IncrementalState(
            log=log,
            image=jnp.zeros_like(problem.target),
            objective=self.objective_at_zero(problem),
            num_iters=jnp.zeros((), jnp.int32),
            stopped=jnp.zeros((), bool),
        )
        end = jax.lax.while_loop(goes_on, block, start)

        def contributions(k: Array) -> tuple[Array, Array]:
            num_iters = jnp.minimum(k, end.num_iters)
            return end.log.weights_after(num_iters), num_iters

        return self.read_off(problem, ks, end.log.index, contributions)

    def _try_step(
        self, problem: CoresetProblem, norms: Array, state: _IncrementalState
    ) -> _IncrementalState:
        found = self.step(problem, norms, state.image, state.num_iters == 0)
        residual = problem.target - found.image
        objective = product(residual, residual)
        floor = _REACHED * jnp.finfo(objective.dtype).eps * jnp.linalg.norm(problem.target)
        reached = state.objective <= floor**2
        # False also where the step is not finite, so that no NaN enters the state.
        taken = found.possible & ~reached & (objective < state.objective)
        t = state.num_iters
        return _IncrementalState(
            # A rejected step stays in the log, beyond the steps that are counted.
            log=jax.tree.map(lambda log, x: log.at[t].set(x), state.log, found.step),
            image=jnp.where(taken, found.image, state.image),
            objective=jnp.where(taken, objective, state.objective),
            num_iters=t + taken,
            stopped=~taken,
        )


def _best_aligned(scores: Float[Array, " n"], residual: Float[Array, " s"]) -> Int[Array, ""]:
    """The lowest index whose score equals the largest up to rounding.

    Args:
        scores: inner products of unit vectors with the residual; −∞ for atoms not to be chosen.
        residual: the residual.
    """
    _, slack = rounding(jnp.linalg.norm(residual), residual.shape[0])
    return pick_largest(scores, jnp.full_like(slack, -jnp.inf), slack)[0]


class FrankWolfe(IncrementalSolver):
    """Frank–Wolfe on the polytope {w ≥ 0, Σ σ_i w_i = σ}, with σ_i = ‖φ_i‖ and σ = Σ σ_i.

    "FW" of Campbell and Broderick (2019), section 4.2; equation (5) of Campbell and Broderick
    (2018). The polytope has the vertices (σ/σ_i) e_i. The solver starts at the vertex nearest to
    the target. Each iteration moves towards the vertex whose atom is most aligned with the
    residual, by an exact line search. k iterations, counting the start, give at most k atoms.

    The constraint keeps Σ σ_i w_i at σ ≥ ‖y‖, so that small coresets have too much weight; `GIGA`
    has no such constraint. Where the weights are worse than none, for the smallest k of many
    problems, `jaxcoreset.solve` returns no rows, `converged` is false, and Σ σ_i w_i is zero. If
    the target is not the sum of the atoms, σ is still the sum over the atoms given.
    """

    def objective_at_zero(self, problem: CoresetProblem) -> Float[Array, ""]:
        """Infinite: w = 0 is not in the polytope."""
        return jnp.full((), jnp.inf, problem.target.dtype)

    def step(
        self,
        problem: CoresetProblem,
        norms: Float[Array, " n"],
        image: Float[Array, " s"],
        is_first: Bool[Array, ""],
    ) -> Proposal:
        """See `IncrementalSolver.step`."""
        residual = problem.target - image
        scores = problem.correlate(residual) * divide(1, norms)
        chosen = _best_aligned(jnp.where(norms > 0, scores, -jnp.inf), residual)
        # All vertices have norm σ, so at w = 0 the most aligned one is also the nearest.
        weight_at_vertex = jnp.sum(norms) * divide(1, norms[chosen])
        direction = weight_at_vertex * problem.gather(chosen[None])[0] - image
        exact = product(direction, residual) * divide(1, product(direction, direction))
        gamma = jnp.where(is_first, 1, jnp.clip(exact, 0, 1))
        return Proposal(
            Step(index=chosen, keep=1 - gamma, add=gamma * weight_at_vertex),
            image=image + gamma * direction,
            possible=norms[chosen] > 0,
        )


class GIGA(IncrementalSolver):
    """Greedy iterative geodesic ascent: Algorithm 1 of Campbell and Broderick (2018).

    The scale of the weights is optimised in closed form (their equation 10), so that only the angle
    between Φw and y is left to minimise. With ℓ_n = φ_n/‖φ_n‖, ℓ = y/‖y‖ and the iterate's
    direction u = Φw/‖Φw‖, an iteration chooses the atom whose geodesic from u points most towards ℓ
    (lines 5 to 7, section 3.3), and moves along it to the point nearest to ℓ (lines 8 to 11). k
    iterations give at most k atoms. The weights are scaled optimally (line 13, section 3.1) after
    each iteration, which changes no direction, so that every prefix of a run is a solution. The
    objective decreases in every iteration.

    The best point of the geodesic, scaled optimally, is the projection of y onto the span of u and
    ℓ_n. Its coordinates α along u and β along ℓ_n are the two terms of line 9, ζ1 − ζ0 ζ2 and
    ζ0 − ζ1 ζ2, times ‖y‖ / (1 − ζ2²). They are computed from the components of y and ℓ_n orthogonal
    to u, which keep their digits where the differences of line 9 lose them.

    A run ends early if no atom points towards the target: then the target is reached, or the
    weights are the best non-negative weights of any size. An atom along the iterate, or opposite to
    it, has no geodesic and is not chosen. If every atom is at a right or obtuse angle to the
    target, the solution is empty.
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
    ) -> Proposal:
        """See `IncrementalSolver.step`."""
        eps = jnp.finfo(image.dtype).eps
        inverse_norms = divide(1, norms)
        to_unit = divide(1, jnp.linalg.norm(image))
        unit = image * to_unit
        scale = product(unit, problem.target)
        residual, _ = _orthogonal_part(problem.target, unit)

        # Choose the atom whose geodesic is most aligned with the residual.
        both = jnp.stack([residual, unit], axis=1)
        correlations = jax.vmap(problem.correlate, in_axes=1, out_axes=1)(both)
        towards, along = (inverse_norms[:, None] * correlations).T
        squared_sine = (1 - along) * (1 + along)
        has_geodesic = (norms > 0) & (squared_sine > _SMALLEST_SQUARED_SINE * eps)
        scores = towards / jnp.sqrt(jnp.where(has_geodesic, squared_sine, 1))
        scores = jnp.where(has_geodesic, scores, -jnp.inf)
        chosen = _best_aligned(scores, residual)

        # Project the target onto the span of the iterate and that atom.
        atom = problem.gather(chosen[None])[0] * inverse_norms[chosen]
        geodesic, cosine = _orthogonal_part(atom, unit)
        beta = product(residual, geodesic) * divide(1, product(geodesic, geodesic))
        alpha = scale - beta * cosine
        # No atom is nearer to the target than the iterate, up to rounding, so α is not negative.
        beyond = alpha < 0
        alpha = jnp.where(beyond, 0, alpha)
        beta = jnp.where(beyond, product(atom, problem.target), beta)
        return Proposal(
            Step(index=chosen, keep=alpha * to_unit, add=beta * inverse_norms[chosen]),
            image=alpha * unit + beta * atom,
            possible=(scores[chosen] > 0) & (beta > 0),
        )


def _orthogonal_part(vector: Float[Array, " s"], unit: Float[Array, " s"]) -> tuple[Array, Array]:
    """The part of a vector that is orthogonal to `unit`, and its component along it.

    The component is removed twice, so that the remainder is orthogonal even where it is small.
    """
    first = product(vector, unit)
    rest = vector - first * unit
    second = product(rest, unit)
    return rest - second * unit, first + second
