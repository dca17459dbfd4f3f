"""Iterative hard thresholding of distributions: Algorithm 1 of Zhang et al. (2019)."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxcoreset.distributions.lattice import random_table, slots_of, varying_coordinates
from jaxcoreset.distributions.objectives import DistributionObjective, SquaredDistance
from jaxcoreset.distributions.solvers import (
    DistributionSolution,
    DistributionSolver,
    best_of,
    best_table,
    grow,
)
from jaxcoreset.solvers.arguments import as_integer, check_choice, check_that
from jaxcoreset.solvers.numerics import tree_where
from jaxcoreset.solvers.solution import History

# The maximum number of doublings of a step: with the first step near 0.01/β, to about 1000/β. In
# float32, a longer step would be dominated by the rounding of the gradient.
_MAX_DOUBLINGS = 16


class _Point(eqx.Module):
    """A sparse distribution, its coordinates, and F."""

    table: Float[Array, "*lattice"]
    support: Bool[Array, " n"]
    objective: Float[Array, ""]


class IHTState(eqx.Module):
    """The state of `DistributionIHT`: its iterate, the step size, and the best point so far."""

    table: Float[Array, "*lattice"]
    doublings: Int[Array, ""]
    best: _Point
    num_iters: Int[Array, ""]
    history: History


class DistributionIHT(DistributionSolver):
    """Distribution IHT: p ← Π(p − μ δF/δp) with the greedy projection.

    Algorithm 1 of Zhang et al. (2019) with Algorithm 2 for Π. As in their section 4, the step is
    doubled while the iterate is stuck and returns to its first size once it moves, and the best
    distribution is returned. The paper does not define "stuck"; here it means
    ‖p_{t+1} − p_t‖ ≤ stuck_tol · ‖p_t‖. If not even a step of 2¹⁶ times the first size moves the
    iterate, the solver stops.

    Args:
        start: "random", from k random coordinates and a uniformly random distribution on their X_S,
            or "greedy", from the result of `DistributionGreedy` (the paper's "IHT after Greedy").
        num_starts: the number of random starts, run as one batch; the best result is returned.
        step_fraction: the first step size as a fraction of 1/β, with β the objective's
            `DistributionObjective.scale`. For the squared distance, 0.016 is the paper's μ = 0.008.
        stuck_tol: see above.
        max_iters: the maximum number of iterations, the paper's T.
        refit: whether the supports are compared by the minimum of F on each, which is then
            returned, rather than by F of the iterates. The paper's version is False.
        record_history: whether the solution holds F of every iterate.
    """

    start: Literal["random", "greedy"] = "random"
    num_starts: int = 1
    step_fraction: float = 0.016
    stuck_tol: float = 1e-3
    max_iters: int = 400
    refit: bool = True
    record_history: bool = False

    def __check_init__(self) -> None:
        check_choice("start", self.start, ("random", "greedy"))
        as_integer("num_starts", self.num_starts, 1)
        as_integer("max_iters", self.max_iters, 1)
        if self.start == "greedy" and self.num_starts != 1:
            raise ValueError(
                f'num_starts is {self.num_starts}; expected 1, since start="greedy" is one start.'
            )
        fraction = self.step_fraction
        check_that(fraction > 0, "step_fraction", fraction, "a positive number")
        check_that(self.stuck_tol >= 0, "stuck_tol", self.stuck_tol, "a number ≥ 0")

    @property
    def needs_key(self) -> bool:
        """See `DistributionSolver.needs_key`."""
        return self.start == "random"

    def run(
        self,
        objective: DistributionObjective,
        k: Int[Array, ""],
        max_k: int,
        key: PRNGKeyArray | None = None,
        start: Float[Array, "*lattice"] | None = None,
    ) -> DistributionSolution:
        """See `DistributionSolver.run`; a `start` replaces the solver's own."""

        def descend(table: Array, support: Array) -> DistributionSolution:
            state = jax.lax.while_loop(
                lambda s: (s.num_iters < self.max_iters) & (s.doublings <= _MAX_DOUBLINGS),
                lambda s: self.iterate(objective, s, k, max_k),
                self.begin(objective, table, support, max_k),
            )
            return DistributionSolution(
                table=state.best.table,
                support=state.best.support,
                objective=state.best.objective,
                num_iters=state.num_iters,
                converged=state.doublings > _MAX_DOUBLINGS,
                history=state.history.filled(state.num_iters, objective(state.table)),
            )

        if start is not None:
            return descend(start, varying_coordinates(start))
        if self.start == "greedy":
            return descend(*grow(objective, k, max_k))
        assert key is not None

        def from_random(key: PRNGKeyArray) -> DistributionSolution:
            table, support = random_table(key, objective.lattice, k, max_k)
            return descend(table.astype(objective.scale(1).dtype), support)

        return best_of(jax.vmap(from_random)(jax.random.split(key, self.num_starts)))

    def begin(
        self, objective: DistributionObjective, table: Array, support: Array, max_k: int
    ) -> IHTState:
        """The state before the first iteration."""
        return IHTState(
            table=table,
            doublings=jnp.zeros((), jnp.int32),
            best=self._judged(objective, table, support, max_k),
            num_iters=jnp.zeros((), jnp.int32),
            history=History.empty(self, table.dtype),
        )

    def iterate(
        self, objective: DistributionObjective, state: IHTState, k: Int[Array, ""], max_k: int
    ) -> IHTState:
        """Do lines 4 and 5 of Algorithm 1, and apply the rule for the step size."""
        table = state.table
        first = self.step_fraction / objective.scale(objective.lattice[0] ** max_k)
        step = jnp.ldexp(first, state.doublings)
        target = table - step * objective.gradient(table)
        new, support = grow(SquaredDistance(target), k, max_k)
        moved = jnp.linalg.norm((new - table).ravel())
        stuck = moved <= self.stuck_tol * jnp.linalg.norm(table.ravel())
        judged = self._judged(objective, new, support, max_k)
        better = judged.objective < state.best.objective
        return IHTState(
            table=new,
            doublings=jnp.where(stuck, state.doublings + 1, 0),
            best=tree_where(better, judged, state.best),
            num_iters=state.num_iters + 1,
            history=state.history.record(state.num_iters, objective(new)),
        )

    def _judged(
        self, objective: DistributionObjective, table: Array, support: Array, max_k: int
    ) -> _Point:
        if self.refit:
            table = best_table(objective, slots_of(support, max_k))
        return _Point(table, support, objective(table))
