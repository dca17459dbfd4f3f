"""Exchange pursuit: a pursuit that overshoots, and exchanges atoms all the way back.

A pursuit adds the atom that lowers the objective most once all weights are solved anew (orthogonal
least squares: Chen, Billings and Luo, "Orthogonal least squares methods and their application to
non-linear system identification", Int. J. Control 1989). What it took early it keeps, and that is
what it loses by. So here

- the size first rises beyond the k asked for and then falls again, the atom that matters least
  going first (as in the floating search of Pudil, Novovičová and Kittler, Pattern Recognition
  Letters 1994);
- at every size on the way down, one atom may be exchanged for another while that lowers the
  objective by more than `min_gain` ("sequential replacement": Miller, "Selection of subsets of
  regression variables", J. R. Stat. Soc. A 1984);
- weights are non-negative and solve the least-squares problem on the support throughout, by the
  moves of Lawson and Hanson's active set, as in `jaxcoreset.solvers.nnls`.

The best solution seen at every size is kept, so that one run holds the solutions for every k.

What a move needs is kept up to date in `jaxcoreset.solvers.exchange.support`; which atom leaves for
which is chosen in `jaxcoreset.solvers.exchange.swap`, and what a move does, and when a run is at
its end, in `jaxcoreset.solvers.exchange.schedule`. Where there are too many atoms for all of them
to be candidates in every move, the moves see some at a time, as
`jaxcoreset.solvers.exchange.working_set` says.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxcoreset.solvers.base import PathSolver, Solver
from jaxcoreset.solvers.batching import few_at_a_time
from jaxcoreset.solvers.exchange.path import Path
from jaxcoreset.solvers.exchange.scalars import Scalars, in_one_kernel
from jaxcoreset.solvers.exchange.schedule import (
    SHORT,
    Limits,
    Progress,
    considered,
    decided,
    improves,
    is_stale,
)
from jaxcoreset.solvers.exchange.support import (
    Candidates,
    Support,
    change,
    compact,
    correlated,
    left_of,
    no_support,
    refined,
    settle,
)
from jaxcoreset.solvers.exchange.swap import beyond_rounding, distances, leaving
from jaxcoreset.solvers.exchange.tree_reductions import first_of, largest_of
from jaxcoreset.solvers.exchange.working_set import (
    all_candidates,
    choose_candidates,
    no_candidates,
    num_candidates_at_a_time,
)
from jaxcoreset.solvers.nnls import any_lane, product, resolution
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solution import Solution, make_solution

# Sizes that a sweep has a run of its own for, if only there all atoms can be candidates.
_SMALL_SIZES = (50, SHORT)
# Correlations with the residual are formed anew, and weights refined, after so many moves.
_MOVES_PER_PASS = 16


class _State(eqx.Module):
    support: Support
    candidates: Candidates
    path: Path
    progress: Scalars  # a `Progress`
    entered: Int[Array, ""]  # row of the atom that came last
    tried: Int[Array, " q"]  # rows of the first atoms, by start


class _Plan(eqx.Module):
    """What does not change in a run."""

    limits: Limits
    target: Float[Array, " s"]
    correlations: Float[Array, " m"]  # of the candidates with the target
    scale: Float[Array, " n"]


class _Found(eqx.Module):
    """What a run has found."""

    path: Path
    scale: Float[Array, " n"]
    moves: Int[Array, ""]
    converged: Bool[Array, ""]


class ExchangePursuit(PathSolver):
    """Fully corrective pursuit with exchanges, over the top and back: the default solver.

    The size rises to (1 + `overshoot`) k, or k + 10 if that is more, and on the way back down to k
    atoms are exchanged one for one. See the module's head for the method and its sources. One run
    holds the solutions for every k; a run for one k does not go below it. Where k, or the smallest
    k of a sweep, is at most 24, `num_starts` short pursuits are added: matching pursuit, and others
    from other first atoms. A sweep to a k for which not all atoms can be candidates at once has a
    run of its own up to 50, or 24, if there they can; the better solution of each size is kept.

    A move passes once over the candidates, which are all atoms or a working set, and a few times
    over the atoms in use and over the coordinates of the candidates in their span. It is meant for
    k up to a few thousand. `Solution.num_iters` counts the moves, and `converged` is false where
    they came to their limit.

    Args:
        exchanges_down: at most so many exchanges at each size on the way down.
        min_gain: an exchange must lower the objective by this fraction.
        overshoot: how far beyond k the size rises, as a fraction of k.
        num_starts: how many more pursuits there are for k up to 24.
        working_set: how many candidates there are at a time; all atoms where there are no more.
            Left out, all atoms up to 64 million entries, and up to 4 million coordinates: for
            k = 100 some 28,000 atoms of 2,000 entries; else 4,096.
        refresh: with more atoms than that, candidates are chosen anew whenever the size has changed
            by this fraction, and by one at least, or two in the starts from other first atoms.

    Raises:
        ValueError: if an argument is negative, or `min_gain`, `working_set` or `refresh` is not
            positive.
    """

    exchanges_down: int = 5
    min_gain: float = 0.01
    overshoot: float = 0.2
    num_starts: int = 6
    working_set: int | None = None
    refresh: float = 0.1

    def __check_init__(self) -> None:
        for name in ("exchanges_down", "overshoot", "num_starts"):
            value = getattr(self, name)
            if not value >= 0:
                raise ValueError(f"{name} is {value}; wanted 0 or more.")
        for name in ("min_gain", "working_set", "refresh"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value}; wanted a positive number.")

    def run(
        self,
        problem: CoresetProblem,
        k: Int[Array, ""],
        max_k: int,
        key: PRNGKeyArray | None = None,
    ) -> Solution:
        """Up beyond k rows and back to k; see `Solver.run`."""

        def run(problem: CoresetProblem, k: Int[Array, ""]) -> Solution:
            found = self._pursue(problem, k, k, max_k, num_points=1)
            return _solution(problem, found, jnp.zeros((), jnp.int32), max_k, self)

        return few_at_a_time(run, self._num_bytes(problem, max_k))(problem, k)

    def run_path(
        self,
        problem: CoresetProblem,
        ks: Int[Array, " m"],
        max_k: int,
        key: PRNGKeyArray | None = None,
    ) -> Solution:
        """Up beyond the largest of `ks` and back to the smallest; see `Solver.run_path`."""

        def run_path(problem: CoresetProblem, ks: Int[Array, " m"]) -> Solution:
            return self._run_path(problem, ks, max_k)

        return few_at_a_time(run_path, self._num_bytes(problem, max_k))(problem, ks)

    def _run_path(self, problem: CoresetProblem, ks: Int[Array, " m"], max_k: int) -> Solution:
        most, least = jnp.max(ks), jnp.min(ks)
        small = self._small_size(problem, max_k)
        # The run for the small sizes has the further starts as well.
        solver = self if small is None else dataclasses.replace(self, num_starts=0)
        found = solver._pursue(problem, most, least, max_k, num_points=max_k)
        if small is not None:
            found = self._with_small_sizes(problem, found, least, jnp.minimum(most, small), small)

        def solution(k: Int[Array, ""]) -> Solution:
            return _solution(problem, found, found.path.best(k), max_k, self)

        # Side by side each would gather the atoms of its own, unless they all pass over all atoms.
        together = problem.pass_is_cheaper(found.path.rows.shape[1])
        return jax.vmap(solution)(ks) if together else jax.lax.map(solution, ks)

    def _with_small_sizes(
        self,
        problem: CoresetProblem,
        found: _Found,
        least: Int[Array, ""],
        most: Int[Array, ""],
        max_k: int,
    ) -> _Found:
        """The same with the better solutions of sizes from `least` to `most`, of another run."""

        def pursue() -> tuple[Path, Array, Array]:
            other = self._pursue(problem, most, least, max_k, num_points=max_k)
            return other.path, other.moves, other.converged

        nothing = (
            Path.empty(max_k, self._room(problem, max_k)[0], problem.target.dtype),
            jnp.zeros((), jnp.int32),
            jnp.ones((), bool),
        )
        # Where there are no such sizes, the run would do nothing, but all atoms would be gathered.
        path, moves, converged = jax.lax.cond(least <= most, pursue, lambda: nothing)
        return _Found(
            found.path.joined(path), found.scale, found.moves + moves, found.converged & converged
        )

    def _small_size(self, problem: CoresetProblem, max_k: int) -> int | None:
        """Up to which size all atoms may be candidates, where they can't be up to `max_k`."""

        def all_fit(max_k: int) -> bool:
            return self._room(problem, max_k)[1] == problem.num_data

        fitting = (size for size in _SMALL_SIZES if size < max_k and all_fit(size))
        return None if all_fit(max_k) else next(fitting, None)

    def _room(self, problem: CoresetProblem, max_k: int) -> tuple[int, int]:
        """How many slots a run has, and how many candidates at a time."""
        n = problem.num_data
        num_slots = self._over(max_k, n)
        num_candidates = num_candidates_at_a_time(n, problem.num_draws, num_slots, self.working_set)
        return num_slots, num_candidates

    def _num_bytes(self, problem: CoresetProblem, max_k: int) -> int:
        """What a run passes over in its moves."""
        num_slots, num_candidates = self._room(problem, max_k)
        of_slots = num_slots * (2 * problem.num_draws + num_slots + num_candidates)
        entries = num_candidates * problem.num_draws + of_slots
        return entries * problem.target.dtype.itemsize

    def _over(self, k: Any, n: int) -> Any:
        """The size at the top, for a k that is a number or an array."""
        if isinstance(k, int):
            return min(n, max(k + 10, int((1 + self.overshoot) * k)))
        further = ((1 + self.overshoot) * k).astype(jnp.int32)
        return jnp.minimum(n, jnp.maximum(k + 10, further))

    def _pursue(
        self,
        problem: CoresetProblem,
        k: Int[Array, ""],
        bottom: Int[Array, ""],
        max_k: int,
        num_points: int,
    ) -> _Found:
        """Pursue up beyond k and back to `bottom`, from all starts; nothing if that is above k."""
        n, dtype = problem.num_data, problem.target.dtype
        num_slots, num_candidates = self._room(problem, max_k)
        target_norm = jnp.linalg.norm(problem.target)
        scale = problem.scales()
        top = self._over(k, n)
        num_starts = jnp.where(bottom <= SHORT, min(self.num_starts, num_candidates - 1), 0)
        everything = num_candidates == n
        target = problem.target / jnp.where(target_norm > 0, target_norm, 1)
        support = no_support(num_slots, target)
        candidates = (
            all_candidates(problem, scale, num_slots)
            if everything
            else no_candidates(num_slots, num_candidates, problem.num_draws, dtype)
        )
        correlations = product(candidates.atoms, target)
        limits = Limits(
            top=top,
            bottom=bottom,
            most=k,
            num_starts=num_starts,
            max_moves=(self.exchanges_down + 9) * top + 5 * SHORT * num_starts + 100,
            exchanges_down=self.exchanges_down,
            min_gain=self.min_gain,
            chooses=not everything,
        )
        plan = _Plan(limits, target, correlations, scale)
        nothing_to_do = (target_norm == 0) | (bottom > k)
        state = _State(
            support=support,
            candidates=eqx.tree_at(lambda c: c.correlations, candidates, correlations),
            path=Path.empty(num_points, num_slots, dtype),
            progress=Scalars.of(Progress.at_start(dtype, nothing_to_do)),
            entered=jnp.full((), -1, jnp.int32),
            tried=jnp.full(self.num_starts + 1, n, jnp.int32),
        )

        loop = jax.lax.while_loop

        def going(state: _State) -> Array:
            goes = ~state.progress["stopped"]
            if not everything:
                goes = goes & ~is_stale(state.progress, state.support.size, self.refresh)
            return any_lane(goes)

        def move(state: _State) -> _State:
            return loop(going, lambda s: self._move(plan, s), state)

        def refresh_and_move(state: _State) -> _State:
            return move(_refresh(problem, plan, state))

        def going_on(state: _State) -> Array:
            return any_lane(~state.progress["stopped"])

        state = move(state) if everything else loop(going_on, refresh_and_move, state)
        moves = state.progress["moves"]
        return _Found(state.path, scale, moves, moves <= limits.max_moves)

    def _move(self, plan: _Plan, state: _State) -> _State:
        """One move: settle, record, and then let one atom out, one in, or one of each."""
        support, candidates, before = state.support, state.candidates, state.progress
        stopped = before["stopped"]
        if plan.limits.chooses:
            stopped = stopped | is_stale(before, support.size, self.refresh)
        due = (before["moves"] % _MOVES_PER_PASS == _MOVES_PER_PASS - 1) & ~stopped
        may_be_kept = (support.size <= plan.limits.most) & ~stopped
        known = state.path.known(support.size)
        support, objective = settle(support, plan.target, jnp.where(may_be_kept, known, 0), due)
        candidates = correlated(candidates, support.residual, due)
        solved = support.aim
        blocking = support.active & (solved <= 0)
        fractions = jnp.where(
            blocking,
            support.weights / jnp.maximum(support.weights - solved, jnp.finfo(solved.dtype).tiny),
            jnp.inf,
        )
        nearest = -largest_of(-fractions)
        first = first_of(fractions <= nearest)
        blocked = nearest < jnp.inf
        size = support.size

        feasible = ~blocked & ~stopped
        path = state.path.record(support, objective, feasible & (size <= plan.limits.most))
        refused = candidates.refused & ~(feasible & improves(objective, before["objective"]))

        # What could be done: one atom in,
        correlations = candidates.correlations
        eligible = candidates.usable & ~candidates.used & ~refused
        tried = (candidates.rows == state.tried[:, None]).any(axis=0)
        # The first of the other starts has the first one's atom: it is matching pursuit.
        eligible = eligible & ~(tried & (size == 0) & (before["start"] != 1))
        # Every second start takes the largest correlation, as matching pursuit does.
        shares = jnp.where(before["start"] % 2 == 1, 1, distances(candidates))
        counts = eligible & beyond_rounding(correlations, objective, plan.target.shape[0])
        gains = jnp.where(counts, correlations**2 / shares, 0)
        largest = largest_of(gains)
        added = first_of(gains >= (1 - resolution(gains.dtype)) * largest)
        progress = in_one_kernel(
            considered,
            before,
            plan.limits,
            size=size,
            objective=objective,
            feasible=feasible,
            brings=largest > 0,
        )

        # or one of each.
        out, exchange = leaving(
            support,
            candidates,
            first=first,
            is_set=blocked,
            may_leave=~progress["rises"] & ~stopped,
            may_exchange=progress["may_exchange"],
            eligible=eligible,
            objective=objective,
            min_gain=self.min_gain,
        )

        # What is done.
        progress = in_one_kernel(
            decided,
            progress,
            plan.limits,
            size=size,
            objective=objective,
            feasible=feasible,
            stopped=stopped,
            worth=exchange.worth,
        )
        resets, rises = progress["resets"], progress["rises"]
        evicts = progress["leaves"] & ~feasible
        fraction = jnp.clip(nearest, 0, 1)
        weights = jnp.where(
            evicts, jnp.maximum(support.weights + fraction * (solved - support.weights), 0), solved
        )
        refuses = evicts & (support.rows[first] == state.entered)
        refused = refused | (refuses & (jnp.arange(refused.shape[0]) == support.places[first]))
        support, candidates, entered = change(
            support,
            eqx.tree_at(lambda c: c.refused, candidates, refused),
            out,
            weights=weights,
            leaves=progress["leaves"],
            place=jnp.where(rises, added, exchange.place),
            enters=progress["enters"],
            resets=resets,
            stays=stopped,
        )
        correlations = jnp.where(resets, plan.correlations, candidates.correlations)
        candidates = eqx.tree_at(lambda c: c.correlations, candidates, correlations)
        residual = jnp.where(resets, plan.target, support.residual)
        support = eqx.tree_at(lambda s: s.residual, support, residual)
        begins = (jnp.arange(state.tried.shape[0]) == before["start"]) & rises & (size == 0)
        return _State(
            support=support,
            candidates=candidates,
            path=path,
            progress=progress,
            entered=jnp.where(feasible, entered, state.entered),
            tried=jnp.where(begins, candidates.rows[added], state.tried),
        )


def _refresh(problem: CoresetProblem, plan: _Plan, state: _State) -> _State:
    """Choose the candidates anew, by one pass over all atoms, and close up the slots in use."""
    num_candidates = state.candidates.rows.shape[0]
    support = compact(state.support)
    support = refined(support, left_of(plan.target, support))
    candidates = choose_candidates(problem, plan.scale, support, num_candidates)
    same = candidates.rows == support.rows[:, None]
    places = jnp.where(same.any(axis=1), jnp.argmax(same, axis=1), num_candidates)
    support = eqx.tree_at(lambda s: s.places, support, places.astype(jnp.int32))
    renewed = Scalars.of(
        dataclasses.replace(state.progress.get(), changes=jnp.zeros((), jnp.int32))
    )
    new = eqx.tree_at(
        lambda s: (s.support, s.candidates, s.progress), state, (support, candidates, renewed)
    )
    return jax.tree.map(lambda a, b: jnp.where(state.progress["stopped"], b, a), new, state)


def _solution(
    problem: CoresetProblem, found: _Found, place: Int[Array, ""], max_k: int, solver: Solver
) -> Solution:
    """The solution recorded at a place of the path; its objective is computed from its weights."""
    rows, weights = found.path.rows[place], found.path.weights[place]
    target_norm = jnp.linalg.norm(problem.target)
    weights = weights * found.scale[rows] * target_norm
    residual = problem.target - problem.combine(rows, weights)
    return make_solution(
        problem,
        rows,
        weights,
        jnp.vdot(residual, residual),
        found.moves,
        found.converged,
        solver=type(solver).__name__,
        length=max_k,
    )
