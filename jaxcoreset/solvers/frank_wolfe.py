"""Frank–Wolfe on the Hilbert coreset polytope, and the loop of solvers that add one atom at a time.

Such a solver's iteration is w ← keep · w + add · e_n: everything so far is rescaled, and one atom n
gains weight. So T iterations are T triples (n, keep, add), and the solution for every k up to T is
read off the first k of them; no iterate is stored.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxcoreset.solvers.base import PathSolver
from jaxcoreset.solvers.nnls import pick, product, rounding
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solution import Solution

# The image Φw is updated in place, and made anew from the weights so often, against drift.
_REFRESH_EVERY = 32
# A residual of so many roundings of the target is nothing but rounding: the target is reached.
_REACHED = 4


class Step(eqx.Module):
    """A proposal w ← keep · w + add · e_index, and the image Φw that it leads to."""

    index: Int[Array, ""]
    keep: Float[Array, ""]
    add: Float[Array, ""]
    image: Float[Array, " s"]
    possible: Bool[Array, ""]


class _Log(eqx.Module):
    index: Int[Array, " t"]
    keep: Float[Array, " t"]
    add: Float[Array, " t"]

    def weights_after(self, num_iters: Int[Array, ""]) -> Float[Array, " t"]:
        """What each of the first `num_iters` steps contributes to the weight of its atom."""
        done = jnp.arange(self.keep.shape[0]) < num_iters
        onward = jax.lax.cumprod(jnp.where(done, self.keep, 1), reverse=True)
        later = jnp.append(onward[1:], jnp.ones(1, onward.dtype))
        return jnp.where(done, self.add * later, 0)


class _State(eqx.Module):
    log: _Log
    image: Float[Array, " s"]
    objective: Float[Array, ""]
    num_iters: Int[Array, ""]
    stopped: Bool[Array, ""]


class IncrementalSolver(PathSolver):
    """A solver whose iterations rescale the weights and add one atom each; k means k iterations.

    The run stops early where a step would not lower the objective in the arithmetic at hand; the
    solutions for larger k are then the last one. One run gives the solutions for every k.
    """

    @abc.abstractmethod
    def objective_at_zero(self, problem: CoresetProblem) -> Float[Array, ""]:
        """What the first step has to beat: the objective at w = 0, or ∞ if that is not feasible."""

    @abc.abstractmethod
    def step(
        self,
        problem: CoresetProblem,
        norms: Float[Array, " n"],
        image: Float[Array, " s"],
        is_first: Bool[Array, ""],
    ) -> Step:
        """The next step from an iterate with image `image`.

        Args:
            problem: the problem.
            norms: σ, the norm of every atom.
            image: Φw.
            is_first: whether w = 0, the start.
        """

    def run_path(
        self,
        problem: CoresetProblem,
        ks: Int[Array, " m"],
        max_k: int,
        key: PRNGKeyArray | None = None,
    ) -> Solution:
        """Do as many iterations as the largest of `ks`, and read off the solution for each."""
        state = self._iterate(problem, jnp.max(ks), max_k)

        def contributions(k: Array) -> tuple[Array, Array]:
            num_iters = jnp.minimum(k, state.num_iters)
            return state.log.weights_after(num_iters), num_iters

        return self.read_off(problem, ks, state.log.index, contributions)

    def _iterate(self, problem: CoresetProblem, limit: Int[Array, ""], max_k: int) -> _State:
        norms = jnp.sqrt(problem.squared_norms())

        def goes_on(state: _State) -> Array:
            return ~state.stopped & (state.num_iters < limit)

        def block(state: _State) -> _State:
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
        log = _Log(jnp.zeros(max_k, jnp.int32), jnp.zeros(max_k, dtype), jnp.zeros(max_k, dtype))
        start = _State(
            log=log,
            image=jnp.zeros_like(problem.target),
            objective=self.objective_at_zero(problem),
            num_iters=jnp.zeros((), jnp.int32),
            stopped=jnp.zeros((), bool),
        )
        return jax.lax.while_loop(goes_on, block, start)

    def _try_step(self, problem: CoresetProblem, norms: Array, state: _State) -> _State:
        step = self.step(problem, norms, state.image, state.num_iters == 0)
        residual = problem.target - step.image
        objective = product(residual, residual)
        floor = _REACHED * jnp.finfo(objective.dtype).eps * jnp.linalg.norm(problem.target)
        reached = state.objective <= floor**2
        # Also false where the step is not finite, so that nothing of it gets in.
        taken = step.possible & ~reached & (objective < state.objective)
        log, t = state.log, state.num_iters
        # A step not taken stays in the log, beyond the steps that are counted.
        log = _Log(
            log.index.at[t].set(step.index),
            log.keep.at[t].set(step.keep),
            log.add.at[t].set(step.add),
        )
        return _State(
            log=log,
            image=jnp.where(taken, step.image, state.image),
            objective=jnp.where(taken, objective, state.objective),
            num_iters=t + taken,
            stopped=~taken,
        )


def inverse(values: Array) -> Array:
    """One over each value, and 0 where it is 0."""
    return jnp.where(values > 0, 1 / jnp.where(values > 0, values, 1), 0)


def best_aligned(scores: Float[Array, " n"], residual: Float[Array, " s"]) -> Int[Array, ""]:
    """The lowest index whose score equals the largest but for rounding.

    Args:
        scores: inner products of unit vectors with the residual; −∞ for what may not be chosen.
        residual: the residual.
    """
    _, slack = rounding(jnp.linalg.norm(residual), residual.shape[0])
    return pick(scores, jnp.full_like(slack, -jnp.inf), slack)[0]


class FrankWolfe(IncrementalSolver):
    """Frank–Wolfe on the polytope {w ≥ 0, Σ σ_i w_i = σ}, with σ_i = ‖φ_i‖ and σ = Σ σ_i.

    "FW" of Campbell and Broderick, "Automated scalable Bayesian inference via Hilbert coresets"
    (JMLR 20, 2019), section 4.2; equation (5) of Campbell and Broderick (2018). The polytope has
    the vertices (σ/σ_i) e_i. It starts at the vertex nearest to the target; an iteration goes
    towards the vertex whose atom is most aligned with the residual, as far as an exact line search
    says. k iterations, counting the start, give at most k atoms.

    The constraint keeps Σ σ_i w_i at σ ≥ ‖y‖, so that small coresets have too much weight, and the
    relative error may exceed 1; `GIGA` has no such constraint. Where the target is not the sum of
    the atoms, σ is still the sum over the atoms given.
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
    ) -> Step:
        """See `IncrementalSolver.step`."""
        residual = problem.target - image
        scores = problem.correlate(residual) * inverse(norms)
        chosen = best_aligned(jnp.where(norms > 0, scores, -jnp.inf), residual)
        # All vertices have norm σ, so at w = 0 the most aligned one is also the nearest.
        weight_at_vertex = jnp.sum(norms) * inverse(norms[chosen])
        direction = weight_at_vertex * problem.gather(chosen[None])[0] - image
        exact = product(direction, residual) * inverse(product(direction, direction))
        gamma = jnp.where(is_first, 1, jnp.clip(exact, 0, 1))
        return Step(
            index=chosen,
            keep=1 - gamma,
            add=gamma * weight_at_vertex,
            image=image + gamma * direction,
            possible=norms[chosen] > 0,
        )
