"""Solve on a pool of draws: a solver's path over sizes, and the size that is taken from it.

The builder, `Coreset.update` and `merge` all end here, whatever their candidates and draws are.
"""

import dataclasses

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Int, PRNGKeyArray

from jaxcoreset.data.compiling import quick_jit, rows_at
from jaxcoreset.data.dtypes import as_floats
from jaxcoreset.data.utils import Clock
from jaxcoreset.likelihood.verification import check_alone
from jaxcoreset.selection.draws import EXACT, DrawPool
from jaxcoreset.selection.parts import Approach
from jaxcoreset.selection.rounding import best_of
from jaxcoreset.selection.tolerance import (
    Limit,
    Selection,
    largest_shift,
    largest_size,
    smallest_within,
)
from jaxcoreset.solvers.base import Solver
from jaxcoreset.solvers.exhaustive_search import ExhaustiveSearch
from jaxcoreset.solvers.solution import Solution
from jaxcoreset.solvers.solve import checked_run, default_solver, solutions

_CURVE_POINTS = 24
# With a tolerance every size up to the first of these is of interest, and above it one in this
# many per cent, as the default solver visits them.
_EVERY_SIZE, _STEP = 300, 0.02
# A path of at most this length takes less time than compiling the program of a shorter one.
_SHORT = 64

_run_briefly = quick_jit(solutions, jit=eqx.filter_jit)


def solve_path(
    pool: DrawPool,
    size: int,
    clock: Clock,
    *,
    solver: Solver | None = None,
    key: PRNGKeyArray | None = None,
    has_tol: bool = False,
    approach: Approach = "rows",
    above: int = 0,
    longest: int = 0,
) -> tuple[Solution, Int[np.ndarray, " m"]]:
    """The solutions of sizes up to one, on the solver's draws.

    Args:
        pool: draws, and the candidates' log-likelihoods at them.
        size: the largest size.
        clock: where the time of the stage "solve" is noted.
        solver: the solver; the default one if left out.
        key: a JAX random key, for solvers that need one.
        has_tol: whether a size will be chosen by a tolerance, so that every size is of interest.
        approach: what stands for all rows.
        above: the largest size that is known not to meet the tolerance. Where many rows are needed,
            smaller sizes are left out.
        longest: a larger size, up to which a path is computed and then cut, if it is short: another
            path of this length shares its program.

    Returns:
        The solutions, with a leading axis, and their sizes in increasing order.
    """
    is_default = solver is None
    solver = solver or default_solver(pool.num_candidates, size)
    # Rows of zeros are never chosen by a pursuit.
    is_padded = is_default and not isinstance(solver, ExhaustiveSearch)
    if is_padded and has_tol and size < longest <= _SHORT:
        sizes = _sizes_for_tolerance(longest, above)
    elif has_tol and solver.has_path:
        sizes = _sizes_for_tolerance(size, above)
    elif has_tol or solver.has_path:
        sizes = np.unique(np.geomspace(1, size, _CURVE_POINTS).round().astype(int))
    else:
        sizes = np.array([size])
    with clock.stage("solve"):
        problem = pool.problem("solver", approach, is_padded)
        run = _run_briefly if sizes[-1] <= _SHORT else None
        path = checked_run(problem, sizes, solver, key if solver.needs_key else None, run=run)
        if approach != "rows":  # relative to all rows' log-likelihood, not to what the proxy leaves
            norm = float(np.linalg.norm(np.asarray(problem.target)))
            ratio = _ratio(norm, pool.norm("solver"))
            path = dataclasses.replace(path, relative_error=ratio * path.relative_error)
        jax.block_until_ready(path)
    # Processes may round differently, so the first one's path is taken by all of them.
    leaves, tree = jax.tree.flatten(path)
    named = {str(i): np.asarray(leaf) for i, leaf in enumerate(leaves)}
    first = pool.likelihood.rows.context.processes.first(named)
    # On the host, where parts of it are taken without a program for each.
    num = int(np.searchsorted(sizes, size, "right"))
    leaves = [first[str(i)][:num] for i in range(len(leaves))]
    return jax.tree.unflatten(tree, leaves), sizes[:num]


def _sizes_for_tolerance(size: int, above: int) -> Int[np.ndarray, " m"]:
    """The sizes that are searched for the smallest one within a tolerance."""
    if size <= _EVERY_SIZE:
        return np.arange(1, size + 1)
    first = above + 1 if _EVERY_SIZE / 2 < above < size else 1
    count = 1 + int(np.log(size / _EVERY_SIZE) / _STEP)
    many = np.geomspace(max(first, _EVERY_SIZE), size, count).round().astype(int)
    return np.union1d(np.arange(first, _EVERY_SIZE + 1), many)


def select_size(
    pool: DrawPool,
    path: Solution,
    sizes: Int[np.ndarray, " m"],
    clock: Clock,
    approach: Approach,
    limit: Limit | None = None,
) -> Selection:
    """One size of a path: the largest, or with a limit the smallest that meets it.

    Args:
        pool: draws; with a limit more may be added.
        path: the solutions.
        sizes: their sizes, in increasing order.
        clock: where the time of the stage "held-out error" is noted.
        approach: what stands for all rows.
        limit: what the size has to meet.
    """
    with clock.stage("held-out error"):
        if limit is None:
            return largest_size(pool, path, sizes, approach)
        return smallest_within(pool, path, sizes, limit, approach)


def solve_and_select(
    pool: DrawPool,
    size: int,
    clock: Clock,
    *,
    solver: Solver | None = None,
    key: PRNGKeyArray | None = None,
    tol: float | None = None,
) -> Selection:
    """The best selection up to a number of rows, with the pool's expansion or without.

    Arguments as above. With a tolerance it is the selection with the fewest rows that meets it, if
    there is one. Without a tolerance it is that of `best_of`. If the expansion is exact but for
    rounding, or meets the tolerance, no rows are selected.
    """
    limit = None if tol is None else Limit(tol, largest_shift(tol))
    found = [] if pool.expansion is None else [select_none(pool, clock, limit)]
    if found and _is_enough(found[0], tol):
        return found[0]
    for approach in approaches_of(pool):
        path, sizes = solve_path(
            pool, size, clock, solver=solver, key=key, has_tol=tol is not None, approach=approach
        )
        found.append(select_size(pool, path, sizes, clock, approach, limit))
    if tol is None:
        return best_of(pool, found)
    within = [one for one in found if one.is_within]
    if within:
        return min(within, key=lambda one: one.num_rows)
    return min(found, key=lambda one: one.estimate.kl)


def check_selection(pool: DrawPool, selection: Selection) -> None:
    """Check that the selected rows have the same log-likelihoods without the other rows.

    Raises:
        ModelError: if they differ, see `verification.check_alone`.
    """
    positions = selection.positions
    if not positions.size:
        return
    part = pool.parts("solver")[0]
    indices = pool.indices_of(positions) if pool.are_inside else None
    values = rows_at(part.values, positions)
    check_alone(pool.likelihood, part.draws, pool.data_of(positions), values, indices)


def approaches_of(pool: DrawPool, allows_rows_alone: bool = True) -> tuple[Approach, ...]:
    """What may stand for all rows, other than the pool's expansion alone.

    Args:
        pool: the draws and candidates.
        allows_rows_alone: whether rows may do without the expansion, where there is one.
    """
    if pool.expansion is None:
        return ("rows",)
    both: tuple[Approach, ...] = ("proxy and rows",) if pool.has_remainders else ()
    return (*both, "rows") if allows_rows_alone else both


def _is_enough(none: Selection, tol: float | None) -> bool:
    return none.estimate.kl <= EXACT if tol is None else bool(none.is_within)


def select_none(pool: DrawPool, clock: Clock, limit: Limit | None = None) -> Selection:
    """No rows at all: the pool's expansion stands for all of them. Arguments as above."""
    left = pool.left("solver")
    ratio = _ratio(np.sqrt(left), pool.norm("solver"))
    path = Solution(
        indices=jax.device_put(np.zeros((1, 1), np.int32)),
        weights=as_floats(np.zeros((1, 1))),
        objective=as_floats(np.full(1, left)),
        relative_error=as_floats(np.full(1, ratio)),
        num_iters=jax.device_put(np.zeros(1, np.int32)),
        converged=jax.device_put(np.ones(1, bool)),
        solver="none",
    )
    path = jax.tree.map(np.asarray, path)  # on the host, as other paths
    return select_size(pool, path, np.zeros(1, np.int64), clock, "proxy", limit)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 1.0
