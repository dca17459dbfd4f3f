"""Exchange pursuit: a pursuit that overshoots k, and exchanges atoms on the way back.

A pursuit adds the atom that lowers the objective most after solving for all weights again
(orthogonal least squares: Chen, Billings and Luo, "Orthogonal least squares methods and their
application to non-linear system identification", Int. J. Control 1989). It keeps its early choices,
and that is its weakness. So here

- the size first grows beyond k and then shrinks again, and the least important atom leaves first
  (as in the floating search of Pudil, Novovičová and Kittler, Pattern Recognition Letters 1994);
- at every size on the way down, one atom may be exchanged for another while that lowers the
  objective by more than `min_gain` ("sequential replacement": Miller, "Selection of subsets of
  regression variables", J. R. Stat. Soc. A 1984);
- weights are always non-negative and solve the least-squares problem on the support, by the moves
  of Lawson and Hanson's active set, as in `jaxcoreset.solvers.nnls`.

The best solution seen at every size is recorded, so that one run gives the solutions for every k.

`exchange.support` holds the atoms in use and applies a move, `exchange.swap` chooses the atoms of
an exchange, `exchange.schedule` decides on the next move and on the end of the run, and
`exchange.path` records the solutions. If there are too many atoms for all of them to be candidates
in every move, `exchange.working_set` selects some.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxcoreset.solvers.arguments import check_that
from jaxcoreset.solvers.base import PathSolver
from jaxcoreset.solvers.batching import chunked_vmap
from jaxcoreset.solvers.exchange.blocks import pursue_in_blocks
from jaxcoreset.solvers.exchange.path import Path, RunResult
from jaxcoreset.solvers.exchange.schedule import (
    MAX_START_SIZE,
    Fit,
    Progress,
    RunLimits,
    consider_move,
    decide_move,
    improves,
    is_stale,
)
from jaxcoreset.solvers.exchange.support import (
    Candidates,
    Support,
    apply_move,
    empty_support,
    recorrelate,
    refine,
)
from jaxcoreset.solvers.exchange.swap import choose_leaving, clipped_distances, exceeds_rounding
from jaxcoreset.solvers.exchange.working_set import (
    all_candidates,
    choose_again,
    empty_candidates,
    working_set_size,
)
from jaxcoreset.solvers.numerics import (
    any_in_batch,
    divide,
    first_true,
    product,
    resolution,
    tree_where,
)
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solution import Solution

# The largest size of a sweep's separate run for the sizes at which all atoms can be candidates.
_SMALL_SIZES = (50, MAX_START_SIZE)
# The number of moves after which correlations are computed by a pass, and the weights refined.
_MOVES_PER_PASS = 16


class _ExchangeState(eqx.Module):
    """The state of a run; `first_atoms` holds the index of the first atom of each start."""

    support: Support
    candidates: Candidates
    path: Path
    progress: Progress
    last_entered: Int[Array, ""]
    first_atoms: Int[Array, " q"]


class _RunConstants(eqx.Module):
    """The constants of a run; `correlations` are those of the candidates with the target."""

    limits: RunLimits
    target: Float[Array, " s"]
    correlations: Float[Array, " m"]
    scale: Float[Array, " n"]


class ExchangePursuit(PathSolver):
    """Fully corrective pursuit that overshoots k and exchanges atoms: the default solver.

    The size grows to (1 + `overshoot`) k, or k + 10 if that is more. On the way back down to k,
    atoms are exchanged one for one. The module's docstring has the method and its sources. One run
    gives the solutions for every k; a run for one k does not go below it. If k, or the smallest k
    of a sweep, is at most 24, `num_starts` short pursuits are added: matching pursuit, and pursuits
    from other first atoms. If not all atoms can be candidates at once for the largest k of a sweep,
    but can be for sizes up to 50 or 24, these have a separate run, and the better solution of each
    size is kept.

    A move makes one pass over the candidates, which are all atoms or a working set, and a few over
    the atoms in use and over the coordinates of the candidates in their span. From a few hundred
    rows on, atoms enter and leave in blocks. `Solution.num_iters` counts the moves, and `converged`
    is false if their number reached its limit.

    Args:
        exchanges_down: the maximum number of exchanges at each size on the way down.
        min_gain: an exchange must lower the objective by this fraction.
        overshoot: how far beyond k the size grows, as a fraction of k.
        num_starts: the number of additional pursuits for k up to 24.
        working_set: the maximum number of candidates at a time. By default all atoms are
            candidates if they have up to 64 million entries and up to 4 million coordinates (for
            k = 100 about 28,000 atoms of 2,000 entries), and otherwise 4,096.
        refresh: with more atoms than that, candidates are chosen again when the size has changed by
            this fraction, and at least by one, or by two in the starts from other first atoms.
        max_single: if k may be larger than this, sizes above five sixths of it are pursued in
            blocks of atoms: see `jaxcoreset.solvers.exchange.blocks`.

    Raises:
        ValueError: if an argument is negative, or `min_gain`, `working_set`, `refresh` or
            `max_single` is not positive.
    """

    exchanges_down: int = 5
    min_gain: float = 0.01
    overshoot: float = 0.2
    num_starts: int = 6
    working_set: int | None = None
    refresh: float = 0.1
    max_single: int = 300

    def __check_init__(self) -> None:
        for name in ("exchanges_down", "overshoot", "num_starts"):
            value = getattr(self, name)
            check_that(value >= 0, name, value, "0 or more")
        for name in ("min_gain", "working_set", "refresh", "max_single"):
            value = getattr(self, name)
            check_that(value is None or value > 0, name, value, "a positive number")

    def run(
        self, problem: CoresetProblem, k: Int[Array, ""], max_k: int, key: PRNGKeyArray | None
    ) -> Solution:
        """Grow beyond k rows and shrink back to k; see `Solver.run`."""
        if max_k > self.max_single:
            return super().run(problem, k, max_k, key)

        def run(on_cpu: bool, problem: CoresetProblem, k: Int[Array, ""]) -> Solution:
            found = self._pursue(problem, k, k, max_k, 1, on_cpu)
            return found.solution(problem, jnp.zeros((), jnp.int32), max_k)

        return self._by_platform(run, problem, k, max_k)

    def run_path(
        self, problem: CoresetProblem, ks: Int[Array, " m"], max_k: int, key: PRNGKeyArray | None
    ) -> Solution:
        """Grow beyond the largest of `ks` and shrink to the smallest; see `Solver.run_path`."""

        def run_path(on_cpu: bool, problem: CoresetProblem, ks: Int[Array, " m"]) -> Solution:
            found = self._sizes(problem, jnp.max(ks), jnp.min(ks), max_k, on_cpu)

            def solution(k: Int[Array, ""]) -> Solution:
                return found.solution(problem, found.path.best(k), max_k)

            # In a batch each would gather its own atoms, unless a pass over all of them is cheaper.
            together = problem.pass_is_cheaper(found.path.indices.shape[1])
            return jax.vmap(solution)(ks) if together else jax.lax.map(solution, ks)

        return self._by_platform(run_path, problem, ks, max_k)

    def _by_platform(
        self, run: Callable[..., Solution], problem: CoresetProblem, ks: Array, max_k: int
    ) -> Solution:
        """Call the program for a CPU, or that for other platforms."""
        on_cpu, elsewhere = functools.partial(run, True), functools.partial(run, False)
        return chunked_vmap(on_cpu, self._num_bytes(problem, max_k), elsewhere)(problem, ks)

    def _sizes(
        self,
        problem: CoresetProblem,
        largest: Int[Array, ""],
        smallest: Int[Array, ""],
        max_k: int,
        on_cpu: bool,
    ) -> RunResult:
        """The solutions of the sizes from `smallest` to `largest`, by one or more runs."""
        small = self._small_size(problem, max_k)
        if max_k > self.max_single:
            assert small is not None
            found = pursue_in_blocks(
                problem,
                largest,
                jnp.maximum(smallest, (small + 1) // 2),  # many rows lead to better ones of fewer
                self._top_size(largest, problem.num_data),
                max_k=max_k,
                max_top=self._top_size(max_k, problem.num_data),
                min_gain=self.min_gain,
                exchanges=self.exchanges_down > 0,
            )
        else:
            # The run for the small sizes includes the further starts.
            solver = self if small is None else dataclasses.replace(self, num_starts=0)
            found = solver._pursue(problem, largest, smallest, max_k, max_k, on_cpu)
        if small is None:
            return found
        largest = jnp.minimum(largest, small)

        def pursue() -> RunResult:
            return found.merge(self._sizes(problem, largest, smallest, small, on_cpu))

        # Without such sizes the run would do nothing, but still gather all atoms.
        return jax.lax.cond(smallest <= largest, pursue, lambda: found)

    def _small_size(self, problem: CoresetProblem, max_k: int) -> int | None:
        """The largest k of the separate run for small sizes; None if there is no such run."""

        def all_fit(max_k: int) -> bool:
            return self._run_sizes(problem, max_k)[1] == problem.num_data

        if max_k > self.max_single:
            return max(1, 5 * self.max_single // 6)
        fitting = (size for size in _SMALL_SIZES if size < max_k and all_fit(size))
        return None if all_fit(max_k) else next(fitting, None)

    def _run_sizes(self, problem: CoresetProblem, max_k: int) -> tuple[int, int]:
        """The number of slots of a run, and of candidates at a time."""
        n = problem.num_data
        num_slots = self._top_size(max_k, n)
        return num_slots, working_set_size(n, problem.num_draws, num_slots, self.working_set)

    def _num_bytes(self, problem: CoresetProblem, max_k: int) -> int:
        """The size of the arrays that every move of a run reads."""
        num_slots, num_candidates = self._run_sizes(problem, max_k)
        of_slots = num_slots * (2 * problem.num_draws + num_slots + num_candidates)
        entries = num_candidates * problem.num_draws + of_slots
        return entries * problem.target.dtype.itemsize

    def _top_size(self, k: Any, n: int) -> Any:
        """The size to grow to, for a k that is a number or an array."""
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
        num_sizes: int,
        on_cpu: bool,
    ) -> RunResult:
        """Grow beyond k and shrink to `bottom`, from all starts; do nothing if that is above k."""
        n, dtype = problem.num_data, problem.target.dtype
        num_slots, num_candidates = self._run_sizes(problem, max_k)
        is_complete = num_candidates == n

        # The constants of the run, in units in which target and atoms have norm one.
        target_norm = jnp.linalg.norm(problem.target)
        target, scale = divide(problem.target, target_norm), problem.scales()
        candidates = (
            all_candidates(problem, scale, num_slots, on_cpu)
            if is_complete
            else empty_candidates(num_slots, num_candidates, problem.num_draws, dtype, on_cpu)
        )
        correlations = product(candidates.atoms, target)
        top = self._top_size(k, n)
        num_starts = min(self.num_starts, num_candidates - 1)
        num_starts = jnp.where(bottom <= MAX_START_SIZE, num_starts, 0)
        limits = RunLimits(
            top=top,
            bottom=bottom,
            max_size=k,
            num_starts=num_starts,
            max_moves=(self.exchanges_down + 9) * top + 5 * MAX_START_SIZE * num_starts + 100,
            exchanges_down=self.exchanges_down,
            min_gain=self.min_gain,
            selects_candidates=not is_complete,
        )
        constants = _RunConstants(limits, target, correlations, scale)

        # Move until the run ends; with a working set, choose the candidates again between moves.
        nothing_to_do = (target_norm == 0) | (bottom > k)
        state = _ExchangeState(
            support=empty_support(num_slots, target, on_cpu),
            candidates=dataclasses.replace(candidates, correlations=correlations),
            path=Path.empty(num_sizes, num_slots, dtype),
            progress=Progress.at_start(dtype, nothing_to_do),
            last_entered=jnp.full((), -1, jnp.int32),
            first_atoms=jnp.full(self.num_starts + 1, n, jnp.int32),
        )

        def continues(state: _ExchangeState) -> Array:
            return any_in_batch(~state.progress.stopped)

        def can_move(state: _ExchangeState) -> Array:
            stale = is_stale(state.progress, state.support.size, self.refresh)
            return any_in_batch(~state.progress.stopped & ~stale)

        def move(state: _ExchangeState) -> _ExchangeState:
            return self._move(constants, state)

        def refresh_and_move(state: _ExchangeState) -> _ExchangeState:
            return jax.lax.while_loop(can_move, move, _refresh(problem, constants, state))

        body = move if is_complete else refresh_and_move
        state = jax.lax.while_loop(continues, body, state)
        num_moves = state.progress.num_moves
        return RunResult(state.path, scale, num_moves, num_moves <= limits.max_moves)

    def _move(self, constants: _RunConstants, state: _ExchangeState) -> _ExchangeState:
        """One move: refine and record the solution, then remove one atom, add one, or do both."""
        limits, support, before = constants.limits, state.support, state.progress
        size, stopped = support.size, before.stopped
        if limits.selects_candidates:
            stopped = stopped | is_stale(before, size, self.refresh)

        # Refine the least-squares weights if their objective would be the best of its size.
        due = (before.num_moves % _MOVES_PER_PASS == _MOVES_PER_PASS - 1) & ~stopped
        may_be_kept = (size <= limits.max_size) & ~stopped
        known = jnp.where(may_be_kept, state.path.known(size), 0)
        support, objective = refine(support, constants.target, known, due)
        candidates = recorrelate(state.candidates, support.residual, due)

        # Find the first weight that reaches zero on the way to the least-squares weights.
        solved = support.lstsq_weights
        distance = jnp.maximum(support.weights - solved, jnp.finfo(solved.dtype).tiny)
        blocking = support.active & (solved <= 0)
        fractions = jnp.where(blocking, support.weights / distance, jnp.inf)
        nearest = jnp.min(fractions)
        first = first_true(fractions <= nearest)
        blocked = nearest < jnp.inf
        feasible = ~blocked & ~stopped

        # Record the solution if no weight is negative.
        eligible = feasible & (size <= limits.max_size)
        path = state.path.record(size, support.indices, solved, objective, eligible)
        refused = candidates.refused & ~(feasible & improves(objective, before.objective))

        # Find the best atom to add. In the first further start, which is matching pursuit, that may
        # be the first atom of another start.
        eligible = candidates.usable & ~candidates.used & ~refused
        is_first_atom = (candidates.indices == state.first_atoms[:, None]).any(axis=0)
        eligible = eligible & ~(is_first_atom & (size == 0) & (before.start != 1))
        # Every second start takes the largest correlation, as matching pursuit does.
        divisors = jnp.where(before.start % 2 == 1, 1, clipped_distances(candidates))
        num_draws = constants.target.shape[0]
        useful = eligible & exceeds_rounding(candidates.correlations, objective, num_draws)
        gains = jnp.where(useful, candidates.correlations**2 / divisors, 0)
        largest = jnp.max(gains, axis=-1)
        added = first_true(gains >= (1 - resolution(gains.dtype)) * largest)
        fit = Fit(size, objective, feasible, stopped)
        progress, allowed = consider_move(before, limits, fit, largest > 0)

        # Find the atom to remove, or the best exchange.
        leaving, exchange = choose_leaving(
            support,
            candidates,
            first=first,
            is_set=blocked,
            can_remove=~allowed.adds & ~stopped,
            can_exchange=allowed.exchange,
            eligible=eligible,
            objective=objective,
            min_gain=self.min_gain,
        )

        # Decide on the move, and apply it.
        progress, decided = decide_move(progress, limits, fit, allowed, exchange.gains)
        # If a weight blocks the way, move up to it and remove its atom.
        evicts = decided.removes & ~feasible
        towards = support.weights + jnp.clip(nearest, 0, 1) * (solved - support.weights)
        weights = jnp.where(evicts, jnp.maximum(towards, 0), solved)
        refuses = evicts & (support.indices[first] == state.last_entered)
        refused = refused | (refuses & (jnp.arange(refused.shape[0]) == support.positions[first]))
        support, candidates, entered = apply_move(
            support,
            dataclasses.replace(candidates, refused=refused),
            leaving,
            weights=weights,
            move=decided,
            position=jnp.where(allowed.adds, added, exchange.position),
            stays=stopped,
        )

        # A start begins with the target as its residual, and remembers its first atom.
        correlations, residual = tree_where(
            decided.restarts,
            (constants.correlations, constants.target),
            (candidates.correlations, support.residual),
        )
        starts = jnp.arange(state.first_atoms.shape[0]) == before.start
        begins = starts & allowed.adds & (size == 0)
        return _ExchangeState(
            support=dataclasses.replace(support, residual=residual),
            candidates=dataclasses.replace(candidates, correlations=correlations),
            path=path,
            progress=progress,
            last_entered=jnp.where(feasible, entered, state.last_entered),
            first_atoms=jnp.where(begins, candidates.indices[added], state.first_atoms),
        )


def _refresh(
    problem: CoresetProblem, constants: _RunConstants, state: _ExchangeState
) -> _ExchangeState:
    """Choose the candidates again, by one pass over all atoms, and move free slots to the end."""
    support, candidates = choose_again(
        problem, constants.scale, constants.target, state.support, state.candidates
    )
    progress = dataclasses.replace(state.progress, num_changes=jnp.zeros((), jnp.int32))
    new = dataclasses.replace(state, support=support, candidates=candidates, progress=progress)
    return tree_where(state.progress.stopped, state, new)
