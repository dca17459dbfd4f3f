"""Non-negative subspace pursuit: exchange many atoms at a time and solve for all weights.

Dai and Milenkovic, "Subspace pursuit for compressive sensing signal reconstruction" (IEEE Trans.
Inf. Theory 2009), Algorithm 1; its sibling is CoSaMP, Needell and Tropp, "CoSaMP: iterative signal
recovery from incomplete and inaccurate samples" (Appl. Comput. Harmon. Anal. 2009), which adds 2 k
atoms at a time and does not solve again after it has removed atoms. The least-squares problems are
made non-negative, and atoms enter by their signed correlation, as in Kim and Haldar, "Greedy
algorithms for nonnegativity-constrained simultaneous sparse recovery" (Signal Processing 2016).

Matching pursuit never removes an atom unless its weight reaches zero. Here every iteration doubles
the support and removes the half with the smallest weights, so that an early choice can be revised
until the end. The price is that a run gives the solution for one k only.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxcoreset.solvers.arguments import as_integer
from jaxcoreset.solvers.base import Solver
from jaxcoreset.solvers.nnls import nnls
from jaxcoreset.solvers.numerics import any_in_batch, product, resolution, rounding, tree_where
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solution import History, Solution, make_solution


class _Point(eqx.Module):
    """Up to k atoms by slot, with weights for atoms of norm one."""

    indices: Int[Array, " k"]
    weights: Float[Array, " k"]
    residual: Float[Array, " s"]
    objective: Float[Array, ""]


class _SubspaceState(eqx.Module):
    point: _Point
    num_iters: Int[Array, ""]
    stopped: Bool[Array, ""]
    converged: Bool[Array, ""]
    history: History


class SubspacePursuit(Solver):
    """Non-negative subspace pursuit.

    An iteration adds to the support the k atoms with the largest positive normalised correlation
    φ_iᵀr/‖φ_i‖ with the residual r = y − Φw, solves the non-negative least-squares problem on the
    union, keeps the k atoms with the largest w_i‖φ_i‖, and solves again on these. A tie goes to the
    lower index. The solver starts without atoms, stops when the objective no longer decreases
    beyond rounding, and returns the best point that it found.

    A run for more rows may end at a worse point. In a sweep, the solution for each k is the best of
    the runs for up to k rows.

    An iteration makes one pass over all atoms. Most of the time goes into the least-squares
    problems on up to 2 k and k atoms, each of which starts from the previous solution. The module's
    docstring names the papers; their least-squares problems allow negative weights.

    Args:
        max_iters: the maximum number of iterations; about a dozen are common.
        record_history: whether the solution holds the objective after every iteration.

    Raises:
        ValueError: if `max_iters` is below 1.
    """

    # The least-squares problems of an iteration take very different times.
    takes_turns: ClassVar[bool] = True

    max_iters: int = 100
    record_history: bool = False

    def __check_init__(self) -> None:
        as_integer("max_iters", self.max_iters, 1)

    def run(
        self, problem: CoresetProblem, k: Int[Array, ""], max_k: int, key: PRNGKeyArray | None
    ) -> Solution:
        """Exchange atoms until the objective no longer decreases; see `Solver.run`."""
        scale = problem.scales()
        dtype = problem.target.dtype
        nothing = _Point(
            indices=jnp.zeros(max_k, jnp.int32),
            weights=jnp.zeros(max_k, dtype),
            residual=problem.target,
            objective=jnp.vdot(problem.target, problem.target),
        )
        state = _SubspaceState(
            point=nothing,
            num_iters=jnp.zeros((), jnp.int32),
            stopped=jnp.zeros((), bool),
            converged=jnp.zeros((), bool),
            history=History.empty(self, dtype),
        )

        def iterate(state: _SubspaceState) -> _SubspaceState:
            """One exchange; a state that has stopped, or stops now, keeps its point."""
            new = _exchange(problem, scale, k, state.point)
            better = new.objective < (1 - resolution(dtype)) * state.point.objective
            point = tree_where(better & ~state.stopped, new, state.point)
            num_iters = state.num_iters + ~state.stopped
            return _SubspaceState(
                point=point,
                num_iters=num_iters,
                stopped=state.stopped | ~better | (num_iters >= self.max_iters),
                converged=jnp.where(state.stopped, state.converged, ~better),
                history=state.history.record(num_iters - 1, point.objective),
            )

        state = jax.lax.while_loop(lambda s: any_in_batch(~s.stopped), iterate, state)
        point = state.point
        return make_solution(
            problem,
            point.indices,
            point.weights * scale[point.indices],
            point.objective,
            state.num_iters,
            state.converged,
            history=state.history.filled(state.num_iters, point.objective),
        )

    def run_path(
        self, problem: CoresetProblem, ks: Int[Array, " m"], max_k: int, key: PRNGKeyArray | None
    ) -> Solution:
        """Solve for each of `ks`, and keep for each the best solution so far; see the class."""
        path = super().run_path(problem, ks, max_k, key)
        # Of equal ones, that of the smallest k.
        allowed = ks[None, :] <= ks[:, None]
        objectives = jnp.where(allowed, path.objective[None, :], jnp.inf)
        is_best = objectives <= jnp.min(objectives, axis=1, keepdims=True)
        best = jnp.argmin(jnp.where(is_best, ks[None, :], jnp.iinfo(ks.dtype).max), axis=1)
        return jax.tree.map(lambda x: x[best], path)


def _exchange(
    problem: CoresetProblem, scale: Float[Array, " n"], k: Int[Array, ""], point: _Point
) -> _Point:
    """Add k atoms to the support, solve, reduce it to k atoms, and solve again."""
    n, max_k = problem.num_data, point.indices.shape[0]
    support = (
        jnp.zeros(n, bool).at[jnp.where(point.weights > 0, point.indices, n)].set(True, mode="drop")
    )
    scores = problem.correlate(point.residual) * scale
    floor, slack = rounding(jnp.linalg.norm(point.residual), problem.num_draws)
    # Rounding may correlate an atom of the support with the residual; it does not join again.
    scores = jnp.where(support | (scale == 0), -jnp.inf, scores)
    found, joins = _largest(scores, k, max_k, slack)
    joins = joins & (scores[found] > floor)

    # In the order of their indices, so that among equals the slot that is first is the right one.
    num_slots = min(2 * max_k, n)
    member = jnp.concatenate([point.weights > 0, joins])
    indices = jnp.concatenate([point.indices, found])
    order = jnp.argsort(jnp.where(member, indices, n))[:num_slots]
    indices, member = indices[order], member[order]
    weights = jnp.concatenate([point.weights, jnp.zeros_like(point.weights)])[order]
    rows = problem.gather(indices) * scale[indices, None]

    def solve_and_cut(_: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        weights, member, _ = carry
        result = nnls(rows, problem.target, warm_start=weights, mask=member)
        _, largest = jax.lax.top_k(result.weights, max_k)
        kept = jnp.zeros(num_slots, bool).at[largest].set(jnp.arange(max_k) < k)
        kept = kept & (result.weights > 0)
        return jnp.where(kept, result.weights, 0), kept, result.objective

    # A loop, since the program for the least-squares problem takes long to compile. The second time
    # there is nothing left to remove.
    weights, _, objective = jax.lax.fori_loop(
        0, 2, solve_and_cut, (weights, member, point.objective)
    )
    residual = problem.target - product(weights, rows)
    used = jnp.argsort(weights <= 0)[:max_k]
    return _Point(indices[used], weights[used], residual, objective)


def _largest(
    scores: Float[Array, " n"], k: Int[Array, ""], max_k: int, slack: Float[Array, ""]
) -> tuple[Int[Array, " k"], Bool[Array, " k"]]:
    """The indices of the k largest scores in any order, and the slots that hold one.

    Scores within `slack` of the k-th count as equal to it; of these the lower indices are taken.
    """
    smallest = jax.lax.top_k(scores, max_k)[0][k - 1]
    # As floats, since top_k of integers sorts the whole array on a CPU.
    rank = (scores >= smallest - slack).astype(jnp.float32) + (scores > smallest + slack)
    ranks, indices = jax.lax.top_k(rank, max_k)
    return indices.astype(jnp.int32), (jnp.arange(max_k) < k) & (ranks > 0)
