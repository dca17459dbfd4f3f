"""`solve` and `sweep`: check the arguments, compile, and run a solver.

In the compiled programs k is a traced number with a static bound. The bound is rounded up to one of
a few sizes, so that a Python loop over k compiles a few times rather than once per k.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Int, PRNGKeyArray

from jaxcoreset.solvers.base import Solver
from jaxcoreset.solvers.exchange.pursuit import ExchangePursuit
from jaxcoreset.solvers.exhaustive_search import ExhaustiveSearch, few_supports
from jaxcoreset.solvers.matching_pursuit import MatchingPursuit
from jaxcoreset.solvers.numerics import as_key
from jaxcoreset.solvers.problem import CoresetProblem, check_single, static_bound
from jaxcoreset.solvers.solution import Solution

# For more rows than this, exchange moves with matrices of that size cost more than they gain.
_MANY = 2000
# Bounds are rounded up to the next of these numbers times a power of ten, so that common round
# numbers do not change.
_BOUNDS = (10, 12, 15, 20, 25, 30, 40, 50, 60, 80)


def solve(
    problem: CoresetProblem,
    k: int | Int[Array, ""],
    solver: Solver | None = None,
    key: PRNGKeyArray | int | None = None,
    *,
    max_k: int | None = None,
) -> Solution:
    """Choose at most k atoms and non-negative weights whose weighted sum is near the target.

    Works under ``jax.jit`` and ``jax.vmap``, over problems, over k, or over both. In a batch, a
    problem that has converged is not changed further. But sums may be rounded in another order than
    in a single solve, and where rounding decides between rows, a batch may have other rows. The
    error ‖y − Φw‖ is then that of the single solve within 0.001 ‖y‖, and mostly up to rounding, in
    the problems of ``benchmarks/robustness/solvers.py``, some of which are ill-conditioned. This
    does not hold for the hard-thresholding methods: there a different row changes every later step.

    Rows that are worse than none are not returned: where the solver's objective is above ‖y‖², the
    solution is empty, its `relative_error` is 1, and `converged` is false. This does not apply to
    solvers whose weights have a fixed sum, by a `SimplexTopK` constraint, or that draw samples; see
    `Solver.may_return_none`.

    Args:
        problem: one problem. For a batch, ``jax.vmap(lambda p: solve(p, k))(problems)``.
        k: the maximum number of atoms, 1 ≤ k ≤ n. It may be traced; then a `max_k` far below n
            saves much time and memory.
        solver: a solver; by default `default_solver` chooses one by the problem's size, and
            `Solution.solver` names it.
        key: a JAX random key or an integer seed, for solvers that draw random numbers.
        max_k: static upper bound of k and length of the solution's arrays; k itself if k is a plain
            number, n if it is traced.

    Returns:
        A `Solution` whose arrays have length `max_k`. With a traced k out of range, the solution is
        that of the nearest k in range and `converged` is false.

    Raises:
        TypeError: if `problem` or `solver` is something else.
        ValueError: if k is out of range, or the solver needs a key and there is none.
    """
    return checked_run(problem, k, solver, key, max_k)


def sweep(
    problem: CoresetProblem,
    ks: ArrayLike | Sequence[int],
    solver: Solver | None = None,
    key: PRNGKeyArray | int | None = None,
    *,
    max_k: int | None = None,
) -> Solution:
    """Solve for many k in one compiled call.

    Methods that build their solutions step by step, such as `ExchangePursuit`, run once and give
    the solution for every k. Other methods run once per k, in a batch or, if that is faster, one
    after another. Works under ``jax.jit`` and ``jax.vmap`` over problems. What `solve` says about
    batches, and about rows that are worse than none, holds here too.

    Args:
        problem: one problem.
        ks: integers of shape (m,), each between 1 and n, in any order.
        solver: a solver; by default `default_solver` chooses one by the problem's size, and
            `Solution.solver` names it.
        key: a JAX random key or an integer seed, for solvers that draw random numbers.
        max_k: static upper bound of `ks` and length of each solution; their maximum by default, and
            n if `ks` is traced.

    Returns:
        A `Solution` whose arrays have a leading axis of length m.

    Raises:
        TypeError: if `problem` or `solver` is something else, or `ks` are not integers.
        ValueError: if a k is out of range, or the solver needs a key and there is none.
    """
    return checked_run(problem, checked_sizes(ks), solver, key, max_k)


def default_solver(n: int, max_k: int) -> Solver:
    """The solver that is used if none is given.

    `ExhaustiveSearch` if there are few enough supports to try all of them, `MatchingPursuit` for
    more than 2,000 rows, and `ExchangePursuit` otherwise.

    Args:
        n: the number of atoms.
        max_k: the largest number of rows requested.
    """
    if few_supports(n, max_k):
        return ExhaustiveSearch()
    return ExchangePursuit() if max_k <= _MANY else MatchingPursuit()


def checked_sizes(ks: ArrayLike | Sequence[int]) -> Array | np.ndarray:
    """The sizes of a sweep as an array.

    Raises:
        TypeError: if they are not integers of shape (m,), m ≥ 1.
    """
    ks = ks if isinstance(ks, jax.Array) else np.asarray(ks)
    if ks.ndim != 1 or ks.shape[0] == 0 or not jnp.issubdtype(ks.dtype, jnp.integer):
        raise TypeError(
            f"ks has shape {ks.shape} and type {ks.dtype}; expected a one-dimensional array "
            "of integers, for instance jnp.arange(1, 101)."
        )
    return ks


def checked_run(
    problem: CoresetProblem,
    ks: Any,
    solver: Solver | None,
    key: PRNGKeyArray | int | None,
    max_k: int | None = None,
    run: Callable[..., Solution] | None = None,
) -> Solution:
    """Check the remaining arguments, and run the solver in one compiled call.

    Args:
        problem: see `sweep`.
        ks: one size, or several.
        solver: see `sweep`.
        key: see `sweep`.
        max_k: see `sweep`.
        run: `solutions`, compiled in another way than it is by default.
    """
    check_single(problem)
    key = None if key is None else as_key(key)
    n = problem.num_data
    length = static_bound(ks, max_k, n)
    solver = checked_solver(problem, length, solver, key)
    ks = jnp.asarray(ks, jnp.int32) if isinstance(ks, jax.Array) else np.asarray(ks, np.int32)
    longest = np.asarray(length, np.int32)
    with jax.numpy_rank_promotion("allow"):
        solution = (run or _run)(problem, ks, longest, solver, _round_up(length, n), key)
    # The slots that were added by rounding the bound come last and are unused.
    return dataclasses.replace(
        solution, indices=solution.indices[..., :length], weights=solution.weights[..., :length]
    )


def solutions(
    problem: CoresetProblem,
    ks: Array,
    longest: ArrayLike,
    solver: Solver,
    max_k: int,
    key: PRNGKeyArray | None,
) -> Solution:
    """Solve for one k, or for each of several."""
    run = solver.run if ks.ndim == 0 else solver.run_path
    allowed = jnp.clip(ks, 1, longest)
    solution = run(problem, allowed, max_k, key)
    if solver.may_return_none:
        solution = solution.or_none(problem)
    return dataclasses.replace(
        solution,
        converged=solution.converged & (ks == allowed),
        solver=solution.solver or type(solver).__name__,
    )


_run = eqx.filter_jit(solutions)


def _round_up(length: int, n: int) -> int:
    """The next of 1, 2, …, 8, 10, 12, 15, 20, …, 80, 100, 120, …, but no more than n."""
    if length <= 8:
        return min(n, length)
    unit = 10 ** max(0, len(str(length)) - 2)
    return min(n, next(b * unit for b in (*_BOUNDS, 100) if b * unit >= length))


def checked_solver(problem: CoresetProblem, max_k: int, solver: Any, key: Any) -> Solver:
    """The solver, the default one if it is None, checked against the problem.

    Raises:
        TypeError: if it is no solver.
        ValueError: if a hyperparameter does not fit the problem, or a key is missing.
    """
    solver = default_solver(problem.num_data, max_k) if solver is None else solver
    if not isinstance(solver, Solver):
        hint = f"{solver.__name__}()" if isinstance(solver, type) else "ExchangePursuit()"
        raise TypeError(f"solver is {solver!r}; expected a solver, for instance {hint}.")
    solver.check(problem)
    if solver.needs_key and key is None:
        raise ValueError(
            f"key is missing; {type(solver).__name__} draws random numbers, so pass "
            "key=jax.random.key(seed)."
        )
    return solver
