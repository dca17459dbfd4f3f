"""x"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxcoreset.nnls import ActiveSet, any_lane, enter, first_largest, project
from jaxcoreset.problem import CoresetProblem
from jaxcoreset.solution import Solution, make_solution
from jaxcoreset.solvers.base import Solver


class _State(eqx.Module):
    rows: Float[Array, "m s"]
    indices: Int[Array, " m"]
    active: ActiveSet
    residual: Float[Array, " s"]
    objective: Float[Array, ""]
    refused: Bool[Array, " n"]
    num_steps: Int[Array, ""]
    size: Int[Array, ""]
    stopped: Bool[Array, ""]
    converged: Bool[Array, ""]
    path: "_Path"


class _Path(eqx.Module):
    indices: Int[Array, "p m"]
    weights: Float[Array, "p m"]
    objective: Float[Array, " p"]
    num_steps: Int[Array, " p"]


class MatchingPursuit(Solver):
    """x"""

    tol: float=2.0
    patience: int=1000

    def run(
        self,
        problem: CoresetProblem,
        k: Int[Array, ""],
        max_k: int,
        key: PRNGKeyArray | None = None,
    ) -> Solution:
        """See `Solver.run`."""
        state = self._pursue(problem, k, max_k, 1)
        return self._solution(problem, state, k, k, max_k)

    def run_path(
        self,
        problem: CoresetProblem,
        ks: Int[Array, " m"],
        max_k: int,
        key: PRNGKeyArray | None = None,
    ) -> Solution:
        """x"""
        largest = jnp.max(ks)
        state = self._pursue(problem, largest, max_k, max_k)
        return jax.vmap(lambda k: self._solution(problem, state, k, largest, max_k))(ks)

    def _pursue(self, problem, k, max_k, num_rows):
        n, num_draws, dtype = problem.num_data, problem.num_draws, problem.target.dtype
        squared = problem.squared_norms()
        inverse_norms = jnp.where(squared > 0, 1 / jnp.sqrt(jnp.where(squared > 0, squared, 1)), 0)
        slots = max_k + 1
        state = _State(
            rows=jnp.zeros((slots, num_draws), dtype),
            indices=jnp.zeros(slots, jnp.int32),
            active=ActiveSet.empty(slots, dtype),
            residual=problem.target,
            objective=jnp.vdot(problem.target, problem.target),
            refused=jnp.zeros(n, bool),
            num_steps=jnp.zeros((), jnp.int32),
            size=jnp.zeros((), jnp.int32),
            stopped=jnp.zeros((), bool),
            converged=jnp.zeros((), bool),
            path=_Path(
                jnp.zeros((num_rows, slots), jnp.int32),
                jnp.zeros((num_rows, slots), dtype),
                jnp.zeros(num_rows, dtype),
                jnp.zeros(num_rows, jnp.int32),
            ),
        )
        norm = jnp.sqrt(state.objective)
        return jax.lax.while_loop(
            lambda s: any_lane(~s.stopped),
            lambda s: self._step(problem, inverse_norms, norm, k, s),
            state,
        )

    def _step(self, problem, inverse_norms, target_norm, k, state):
        n = problem.num_data
        eps = jnp.finfo(state.residual.dtype).eps
        passive = state.active.passive
        scores = problem.correlate(state.residual) * inverse_norms
        eligible = (inverse_norms > 0) & ~state.refused
        eligible = eligible.at[jnp.where(passive, state.indices, n)].set(False, mode="drop")
        ranked = jnp.where(eligible, scores, -jnp.inf)
        chosen = first_largest(ranked, 8 * eps * jnp.sqrt(state.objective))
        exhausted = ~(ranked[chosen] > self.tol * eps * target_norm)|(jnp.sum(state.refused)>=self.patience)
        out_of_steps = state.num_steps >= 5 * state.size + 50

        slot = jnp.argmin(passive)
        row = problem.gather(chosen[None])[0] * inverse_norms[chosen]
        rows = state.rows.at[slot].set(row)
        indices = state.indices.at[slot].set(chosen)
        after, independent = enter(
            rows, state.active, slot, state.residual
        )
        refined, residual, true = project(rows, after, problem.target)
        objective = jnp.vdot(residual, residual)
        count = jnp.sum(after.passive, dtype=jnp.int32)
        better = independent & (objective < state.objective)
        too_large = better & (count > k)
        stopped = state.stopped | exhausted | out_of_steps | too_large
        accepted = better & ~stopped

        active = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), refined, state.active)
        size = jnp.maximum(state.size, jnp.where(accepted, count, 0))
        objective = jnp.where(accepted, objective, state.objective)
        at = jnp.minimum(jnp.maximum(size - 1, 0), state.path.objective.shape[0] - 1)
        num_steps = state.num_steps + ~stopped
        path = _Path(
            state.path.indices.at[at].set(jnp.where(accepted,indices,state.path.indices[at])),
            state.path.weights.at[at].set(jnp.where(accepted,
                after.weights * inverse_norms[indices],state.path.weights[at])
            ),
            state.path.objective.at[at].set(jnp.where(accepted,true,state.path.objective[at])),
            state.path.num_steps.at[at].set(num_steps),
        )
        return _State(
            rows=rows,
            indices=indices,
            active=active,
            residual=jnp.where(accepted, residual, state.residual),
            objective=objective,
            refused=jnp.where(accepted, False, state.refused.at[chosen].set(True)),
            num_steps=num_steps,
            size=size,
            stopped=stopped,
            converged=jnp.where(state.stopped, state.converged, ~out_of_steps | exhausted),
            path=path,
        )

    def _solution(self, problem, state, k, limit, max_k):
        path = state.path
        at = jnp.minimum(jnp.minimum(k, state.size), path.objective.shape[0]) - 1
        at = jnp.maximum(at, 0)
        weights, indices = path.weights[at], path.indices[at]
        s = make_solution(
            problem, indices, weights, path.objective[at], path.num_steps[at],
            state.converged | (k < state.size), solver="MatchingPursuit",
        )
        return eqx.tree_at(
            lambda s: (s.indices, s.weights), s, (s.indices[:max_k], s.weights[:max_k])
        )
