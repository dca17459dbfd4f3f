"""Non-negative orthogonal matching pursuit: add one atom at a time and solve for all weights.

Pati, Rezaiifar and Krishnaprasad, "Orthogonal matching pursuit" (Asilomar 1993), made non-negative
by Bruckstein, Elad and Zibulevsky, "On the uniqueness of nonnegative sparse solutions to
underdetermined systems of equations" (IEEE Trans. Inf. Theory 2008). As in Yaghoobi, Wu and Davies,
"Fast non-negative orthogonal matching pursuit" (IEEE Signal Process. Lett. 2015), the least-squares
problem on the support is updated from step to step and never solved from the start; here by the
exact moves of an active set, see `jaxcoreset.solvers.nnls`.

The papers keep every atom that was once chosen. Here an atom whose weight the least-squares problem
drives to zero frees its slot, so that k counts rows that are used. The pursuit is then Lawson and
Hanson's method on all n atoms, with its intermediate solutions recorded. If k is large enough, it
ends at the best non-negative weights of any size.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxcoreset.solvers.base import PathSolver
from jaxcoreset.solvers.batching import chunked_vmap
from jaxcoreset.solvers.nnls import ActiveSet, empty_set, enter, refine_weights
from jaxcoreset.solvers.numerics import any_in_batch, pick_largest, resolution, rounding
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solution import Solution, make_solution

# The maximum number of atoms in a row that do not lower the objective: the precision is exhausted.
_MAX_REFUSALS = 10


class _Points(eqx.Module):
    """Recorded solutions: atoms by slot, and weights for atoms of norm one."""

    indices: Int[Array, "*p m"]
    weights: Float[Array, "*p m"]
    objective: Float[Array, "*p"]
    num_steps: Int[Array, "*p"]


class _MatchingState(eqx.Module):
    atoms: Float[Array, "m s"]
    active: ActiveSet
    residual: Float[Array, " s"]
    point: _Points
    path: _Points
    refused: Bool[Array, " n"]
    size: Int[Array, ""]
    stopped: Bool[Array, ""]
    converged: Bool[Array, ""]


class MatchingPursuit(PathSolver):
    """Non-negative orthogonal matching pursuit, fully corrective.

    Each step adds the atom whose normalised correlation φ_iᵀr/‖φ_i‖ with the residual r = y − Φw is
    largest (a tie goes to the lower index), and solves the non-negative least-squares problem on
    the support, until more than k rows would be used or no correlation is positive beyond rounding.
    A step that adds an atom may remove other atoms, so there can be more steps than rows. The
    maximum is 5 k + 50 steps; ``Solution.converged`` is false if it was reached.

    One run gives the solution for every k: the last one before k + 1 rows were used for the first
    time. A step makes one pass over all atoms, and about seven products with the up to k + 1
    atoms of the support. The module's docstring names the papers.
    """

    def run_path(
        self, problem: CoresetProblem, ks: Int[Array, " m"], max_k: int, key: PRNGKeyArray | None
    ) -> Solution:
        """Pursue once, up to the largest of `ks`; see `Solver.run_path`."""

        def run_path(problem: CoresetProblem, ks: Int[Array, " m"]) -> Solution:
            num_points = 1 if ks.shape[0] == 1 else max_k
            state, scale = _pursue(problem, jnp.max(ks), max_k, num_points)

            def solution(k: Int[Array, ""]) -> Solution:
                """The solution recorded for k, or the last one if the pursuit ended earlier."""
                place = jnp.clip(jnp.minimum(k, state.size) - 1, 0, num_points - 1)
                point = jax.tree.map(lambda x: x[place], state.path)
                return make_solution(
                    problem,
                    point.indices,
                    point.weights * scale[point.indices],
                    point.objective,
                    point.num_steps,
                    state.converged | (k < state.size),
                    length=max_k,
                )

            return jax.vmap(solution)(ks)

        return chunked_vmap(run_path, _num_bytes(problem, max_k))(problem, ks)


def _num_bytes(problem: CoresetProblem, max_k: int) -> int:
    """The size of the arrays that every step of a run reads."""
    entries = problem.num_data * problem.num_draws + max_k * (problem.num_draws + max_k)
    return entries * problem.target.dtype.itemsize


def _pursue(
    problem: CoresetProblem, k: Int[Array, ""], max_k: int, num_points: int
) -> tuple[_MatchingState, Float[Array, " n"]]:
    """Run until another step would use more than k rows.

    `num_points` is the number of sizes that are recorded; 1 records the last solution only.

    Returns:
        The final state, and the reciprocal of every atom's norm, 0 for an atom of norm zero.
    """
    dtype = problem.target.dtype
    scale = problem.scales()
    num_slots = max_k + 1  # one more than k, since an atom enters before another one leaves
    objective = jnp.vdot(problem.target, problem.target)
    nothing = _Points(
        indices=jnp.zeros(num_slots, jnp.int32),
        weights=jnp.zeros(num_slots, dtype),
        objective=objective,
        num_steps=jnp.zeros((), jnp.int32),
    )
    state = _MatchingState(
        atoms=jnp.zeros((num_slots, problem.num_draws), dtype),
        active=empty_set(num_slots, dtype),
        residual=problem.target,
        point=nothing,
        path=jax.tree.map(lambda x: jnp.broadcast_to(x, (num_points, *x.shape)), nothing),
        refused=jnp.zeros(problem.num_data, bool),
        size=jnp.zeros((), jnp.int32),
        stopped=jnp.zeros((), bool),
        converged=jnp.zeros((), bool),
    )
    state = jax.lax.while_loop(
        lambda s: any_in_batch(~s.stopped),
        lambda s: _step(problem, scale, jnp.sqrt(objective), k, s),
        state,
    )
    return state, scale


def _step(
    problem: CoresetProblem,
    scale: Float[Array, " n"],
    target_norm: Float[Array, ""],
    k: Int[Array, ""],
    state: _MatchingState,
) -> _MatchingState:
    """Add one atom and solve; a state that has stopped, or stops now, keeps its solution."""
    # Choose the atom with the largest correlation.
    n, active, point = problem.num_data, state.active, state.point
    squared = jnp.vdot(state.residual, state.residual)
    floor, slack = rounding(jnp.sqrt(squared), problem.num_draws)
    excluded = state.refused.at[jnp.where(active.passive, point.indices, n)].set(True, mode="drop")
    scores = problem.correlate(state.residual) * scale
    chosen, any_left = pick_largest(
        jnp.where(excluded | (scale == 0), -jnp.inf, scores), floor, slack
    )
    small = resolution(squared.dtype)
    exhausted = (
        ~any_left
        | (jnp.sum(state.refused) >= _MAX_REFUSALS)
        | (jnp.sqrt(squared) <= small * target_norm)
    )
    out_of_steps = point.num_steps >= 5 * state.size + 50

    # Put it into a free slot and solve.
    slot = jnp.argmin(active.passive)
    here = jnp.arange(active.passive.shape[0]) == slot
    indices = jnp.where(here, chosen, point.indices)
    row = problem.gather(chosen[None])[0] * scale[chosen]
    atoms = state.atoms.at[slot].set(row)
    after, independent = enter(atoms, active, slot, state.residual)
    refined, residual, objective = refine_weights(atoms, after, problem.target)
    count = jnp.sum(after.passive, dtype=jnp.int32)

    # Keep the step if it lowers the objective and k rows are enough.
    better = independent & (jnp.vdot(residual, residual) < (1 - small) * squared)
    done = exhausted | out_of_steps | (better & (count > k))
    stopped = state.stopped | done
    accepted = better & ~stopped
    new_point = _Points(indices, after.weights, objective, point.num_steps + 1)
    active, residual, point = jax.tree.map(
        lambda new, old: jnp.where(accepted, new, old),
        (refined, residual, new_point),
        (active, state.residual, point),
    )
    size = jnp.where(accepted, jnp.maximum(state.size, count), state.size)
    place = jnp.clip(size - 1, 0, state.path.objective.shape[0] - 1)
    return _MatchingState(
        atoms=atoms,
        active=active,
        residual=residual,
        point=point,
        path=jax.tree.map(lambda path, x: path.at[place].set(x), state.path, point),
        refused=~accepted & (state.refused | (jnp.arange(n) == chosen)),
        size=size,
        stopped=stopped,
        converged=jnp.where(state.stopped, state.converged, exhausted | ~out_of_steps),
    )
