"""What every solver is: a frozen module of hyperparameters that turns a problem into a solution."""

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from jaxcoreset.solvers.nnls import product
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solution import Solution, make_solution

# Array entries that the lanes of one batch of a sweep may hold between them: 256 MB in float32.
_LANE_BUDGET = 64_000_000


class Solver(eqx.Module):
    """A method that chooses at most k atoms and their weights.

    A subclass has its hyperparameters as fields and implements `run`; one that gets the solutions
    for many k in one go also overrides `run_path`. Users call `jaxcoreset.solve` and
    `jaxcoreset.sweep`, which check the arguments, compile, and call these.
    """

    @property
    def needs_key(self) -> bool:
        """Whether the solver draws random numbers."""
        return False

    @property
    def has_path(self) -> bool:
        """Whether one run holds the solutions for every k, so that a sweep costs no more."""
        return False

    @property
    def takes_turns(self) -> bool:
        """Whether a sweep on a CPU solves for one k after the other rather than side by side.

        True pays where a run has loops within loops, as lanes wait in each for the slowest.
        """
        return False

    def check(self, problem: CoresetProblem) -> None:
        """Raise a ValueError where a hyperparameter does not fit the problem; by default none does.

        Called at the door by `jaxcoreset.solve` and `jaxcoreset.sweep`. Shapes may be looked at;
        values may be traced.
        """

    @abc.abstractmethod
    def run(
        self, problem: CoresetProblem, k: Int[Array, ""], max_k: int, key: PRNGKeyArray | None
    ) -> Solution:
        """Solve for one k, under jit.

        Args:
            problem: a single problem.
            k: the number of rows allowed, between 1 and `max_k`; may be traced.
            max_k: static upper bound of `k`, at most n; the length of the solution.
            key: for solvers that draw random numbers.
        """

    def run_path(
        self, problem: CoresetProblem, ks: Int[Array, " m"], max_k: int, key: PRNGKeyArray | None
    ) -> Solution:
        """Solve for each of `ks`, under jit; by default a solve per k, batches of them vmapped.

        Arguments as in `run`; the arrays of the solution have a leading axis of the length of `ks`.
        """

        def run(k: Int[Array, ""]) -> Solution:
            return self.run(problem, k, max_k, key)

        def in_turn(ks: Int[Array, " m"]) -> Solution:
            return jax.lax.map(run, ks)

        def side_by_side(ks: Int[Array, " m"]) -> Solution:
            num_ks = ks.shape[0]
            entries_per_lane = 4 * max_k * problem.num_draws + 8 * problem.num_data
            lanes = max(1, min(num_ks, _LANE_BUDGET // entries_per_lane))
            batches = -(-num_ks // lanes)
            padded = jnp.concatenate([ks, jnp.broadcast_to(ks[-1:], (batches * lanes - num_ks,))])
            solutions = jax.lax.map(jax.vmap(run), padded.reshape(batches, lanes))
            return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:num_ks], solutions)

        if not self.takes_turns:
            return side_by_side(ks)
        return jax.lax.platform_dependent(ks, cpu=in_turn, default=side_by_side)


class PathSolver(Solver):
    """A solver one run of which holds the solutions for every k; it implements `run_path`."""

    @property
    def has_path(self) -> bool:
        """True: see the class."""
        return True

    def run(
        self,
        problem: CoresetProblem,
        k: Int[Array, ""],
        max_k: int,
        key: PRNGKeyArray | None = None,
    ) -> Solution:
        """The path's solution for one k; see `Solver.run`."""
        return jax.tree.map(lambda x: x[0], self.run_path(problem, k[None], max_k, key))

    @abc.abstractmethod
    def run_path(
        self,
        problem: CoresetProblem,
        ks: Int[Array, " m"],
        max_k: int,
        key: PRNGKeyArray | None = None,
    ) -> Solution:
        """Solve for each of `ks`; see `Solver.run_path`."""

    def read_off(
        self,
        problem: CoresetProblem,
        ks: Int[Array, " m"],
        chosen: Int[Array, " t"],
        contributions: Callable[[Int[Array, ""]], tuple[Array, Int[Array, ""]]],
    ) -> Solution:
        """The solution for each of `ks`, from what each choice adds to its row's weight.

        Args:
            problem: the problem.
            ks: the sizes.
            chosen: the rows chosen one after the other; one may come more than once.
            contributions: from k to what each choice adds to the weight of its row, shape (t,), and
                the number of iterations done.
        """
        # A solution lists a row once.
        rows, slots = jnp.unique(chosen, return_inverse=True, size=chosen.shape[0], fill_value=0)

        def solution(k: Array) -> Solution:
            added, num_iters = contributions(k)
            weights = jnp.zeros_like(added).at[slots].add(added)
            residual = problem.target - problem.combine(rows, weights)
            objective = product(residual, residual)
            return make_solution(
                problem,
                rows,
                weights,
                objective,
                num_iters,
                jnp.isfinite(objective),
                solver=type(self).__name__,
            )

        return jax.vmap(solution)(ks)
