"""The interface of solvers: frozen modules of hyperparameters that solve a coreset problem."""

import abc
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from jaxcoreset.solvers.batching import by_platform, map_batches
from jaxcoreset.solvers.constraints.base import constraints_of
from jaxcoreset.solvers.numerics import product
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solution import Solution, make_solution

# The maximum number of array entries of one batch of a sweep: 256 MB in float32.
_BATCH_ENTRIES = 64_000_000


class Solver(eqx.Module):
    """A method that chooses at most k atoms and their weights.

    A subclass has its hyperparameters as fields and implements `run`. If one run gives the
    solutions for many k, it also overrides `run_path`. Users call `jaxcoreset.solve` and
    `jaxcoreset.sweep`, which check the arguments, compile, and call these methods.

    Attributes:
        needs_key: whether the solver draws random numbers.
        has_path: whether one run gives the solutions for every k, so that a sweep costs no more.
        takes_turns: whether a sweep on a CPU solves for one k after another rather than in one
            batch. This pays if a run has nested loops, since in a batch every loop runs until the
            slowest element is done.
    """

    needs_key: ClassVar[bool] = False
    has_path: ClassVar[bool] = False
    takes_turns: ClassVar[bool] = False

    @property
    def may_return_none(self) -> bool:
        """True if no rows are returned in place of rows that are worse than none.

        By default this holds if zero is in the solver's constraint sets. `jaxcoreset.solve` and
        `jaxcoreset.sweep` replace such rows after the run.
        """
        return all(constraint.holds_zero for constraint in constraints_of(self))

    def check(self, problem: CoresetProblem) -> None:
        """Raise a ValueError if a hyperparameter does not fit the problem; by default do nothing.

        `jaxcoreset.solve` and `jaxcoreset.sweep` call this before they compile. Only shapes may be
        checked, since values may be traced.
        """

    @abc.abstractmethod
    def run(
        self, problem: CoresetProblem, k: Int[Array, ""], max_k: int, key: PRNGKeyArray | None
    ) -> Solution:
        """Solve for one k, under jit.

        Args:
            problem: a single problem.
            k: the maximum number of rows, between 1 and `max_k`; may be traced.
            max_k: static upper bound of `k`, at most n; the length of the solution.
            key: for solvers that draw random numbers.
        """

    def run_path(
        self, problem: CoresetProblem, ks: Int[Array, " m"], max_k: int, key: PRNGKeyArray | None
    ) -> Solution:
        """Solve for each of `ks`, under jit; by default with one vmapped `run` per k.

        Arguments are as in `run`; the solution's arrays have a leading axis of the length of `ks`.
        """

        def run(k: Int[Array, ""]) -> Solution:
            return self.run(problem, k, max_k, key)

        def one_by_one(ks: Int[Array, " m"]) -> Solution:
            return jax.lax.map(run, ks)

        def batched(ks: Int[Array, " m"]) -> Solution:
            entries_per_run = 4 * max_k * problem.num_draws + 8 * problem.num_data
            size = max(1, min(len(ks), _BATCH_ENTRIES // entries_per_run))
            return map_batches(jax.vmap(run), ks, size)

        if not self.takes_turns:
            return batched(ks)
        return by_platform(one_by_one, batched)(ks)


class PathSolver(Solver):
    """A solver whose run gives the solutions for every k; a subclass implements `run_path`."""

    has_path: ClassVar[bool] = True

    def run(
        self, problem: CoresetProblem, k: Int[Array, ""], max_k: int, key: PRNGKeyArray | None
    ) -> Solution:
        """The path's solution for one k; see `Solver.run`."""
        return jax.tree.map(lambda x: x[0], self.run_path(problem, k[None], max_k, key))

    @abc.abstractmethod
    def run_path(
        self, problem: CoresetProblem, ks: Int[Array, " m"], max_k: int, key: PRNGKeyArray | None
    ) -> Solution:
        """Solve for each of `ks`; see `Solver.run_path`."""

    def read_off(
        self,
        problem: CoresetProblem,
        ks: Int[Array, " m"],
        chosen: Int[Array, " t"],
        contributions: Callable[[Int[Array, ""]], tuple[Array, Int[Array, ""]]],
    ) -> Solution:
        """The solution for each of `ks`, from the weight that each choice adds to its row.

        Args:
            problem: the problem.
            ks: the sizes.
            chosen: the rows in the order in which they were chosen; a row may occur more than once.
            contributions: a function of k that returns the weight that each choice adds to its row,
                shape (t,), and the number of iterations.
        """
        # A solution lists a row once.
        rows, slots = jnp.unique(chosen, return_inverse=True, size=chosen.shape[0], fill_value=0)

        def solution(k: Array) -> Solution:
            added, num_iters = contributions(k)
            weights = jnp.zeros_like(added).at[slots].add(added)
            residual = problem.target - problem.combine(rows, weights)
            objective = product(residual, residual)
            return make_solution(
                problem, rows, weights, objective, num_iters, jnp.isfinite(objective)
            )

        return jax.vmap(solution)(ks)
