"""Solvers that score supports by the minimum of F there: greedy selection, and exchanges."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxcoreset.distributions.lattice import (
    as_table,
    draw_slots,
    points_of,
    slots_of,
    varying_coordinates,
)
from jaxcoreset.distributions.objectives import DistributionObjective
from jaxcoreset.solvers.arguments import as_integer

# Two scores that differ by less than this many units of rounding are a tie; the lower index wins.
_TIE = 32


class DistributionSolution(eqx.Module):
    """A sparse distribution; under ``vmap``, arrays with the leading axes of the batch.

    Attributes:
        table: the distribution, shape (m,)·n.
        support: shape (n,), the coordinates S that may differ from zero.
        objective: F of the table.
        num_iters: the number of iterations of the start that gave the solution.
        converged: whether the solver stopped by its own rule rather than by a limit.
        history: shape (max_iters,), F of every iterate, the last one repeated after the stop;
            ``None`` if it was not requested.
        solver: the name of the solver.
    """

    table: Float[Array, "..."]
    support: Bool[Array, "*b n"]
    objective: Float[Array, "*b"]
    num_iters: Int[Array, "*b"]
    converged: Bool[Array, "*b"]
    history: Float[Array, "*b t"] | None = None
    solver: str = eqx.field(static=True, default="")

    def compact(self) -> tuple[np.ndarray, np.ndarray]:
        """The coordinates of S in increasing order, and the table over these only, as NumPy arrays.

        Raises:
            ValueError: if this is a batch of solutions.
        """
        if self.support.ndim != 1:
            raise ValueError(
                f"support has shape {self.support.shape}; expected one solution. Select it "
                "with jax.tree.map(lambda x: x[i], solution)."
            )
        support = np.asarray(self.support)
        return np.flatnonzero(support), np.asarray(self.table)[
            tuple(slice(None) if varies else 0 for varies in support)
        ]


class DistributionSolver(eqx.Module):
    """A method that finds a k-sparse distribution; a frozen module of hyperparameters."""

    @property
    def needs_key(self) -> bool:
        """True if the solver draws random numbers."""
        return False

    @abc.abstractmethod
    def run(
        self,
        objective: DistributionObjective,
        k: Int[Array, ""],
        max_k: int,
        key: PRNGKeyArray | None = None,
        start: Float[Array, "*lattice"] | None = None,
    ) -> DistributionSolution:
        """Solve, under jit; users call `learn_distribution`.

        Args:
            objective: F.
            k: the maximum number of coordinates, between 1 and `max_k`; may be traced.
            max_k: static upper bound of `k`; it determines the size of tables with mᵏ entries.
            key: for solvers that draw random numbers.
            start: a k-sparse distribution to start from, for solvers that iterate.
        """


class DistributionGreedy(DistributionSolver):
    """Forward greedy selection: Algorithm 3 of Zhang et al. (2019).

    It starts without coordinates and adds k of them, each time the one that lowers F most when F is
    minimised over P_S exactly; a tie goes to the lower index. If most of the target's mass is on
    points with many non-zero coordinates, the first choices use almost none of it.
    """

    def run(
        self,
        objective: DistributionObjective,
        k: Int[Array, ""],
        max_k: int,
        key: PRNGKeyArray | None = None,
        start: Float[Array, "*lattice"] | None = None,
    ) -> DistributionSolution:
        """See `DistributionSolver.run`; `start` is ignored."""
        table, support = grow(objective, k, max_k)
        return DistributionSolution(
            table=table,
            support=support,
            objective=objective(table),
            num_iters=jnp.asarray(k, jnp.int32),
            converged=jnp.ones((), bool),
        )


class _Exchange(eqx.Module):
    slots: Int[Array, " k"]
    score: Float[Array, ""]
    num_iters: Int[Array, ""]
    stopped: Bool[Array, ""]


class DistributionExchange(DistributionSolver):
    """Exchange of coordinates from many starts; not from the paper.

    From a support S each iteration minimises F exactly over all supports that differ from S in one
    coordinate, and moves to the best one, until none is better. The first start is the support that
    `DistributionGreedy` finds, and the other starts are random. All run as one batch, and the best
    result is returned. An iteration of a start costs k·n minimisations over mᵏ points.

    In the paper's first experiment (n = 15, m = 2, k = 7), exchange finds the best of all 6435
    supports from 4 to 19 per cent of the starts, so that 64 starts nearly always find it.

    Args:
        num_starts: the number of starts; 1 needs no key.
        max_iters: the maximum number of exchanges from a start.
    """

    num_starts: int = 64
    max_iters: int = 100

    def __check_init__(self) -> None:
        as_integer("num_starts", self.num_starts, 1)
        as_integer("max_iters", self.max_iters, 1)

    @property
    def needs_key(self) -> bool:
        """See `DistributionSolver.needs_key`."""
        return self.num_starts > 1

    def run(
        self,
        objective: DistributionObjective,
        k: Int[Array, ""],
        max_k: int,
        key: PRNGKeyArray | None = None,
        start: Float[Array, "*lattice"] | None = None,
    ) -> DistributionSolution:
        """See `DistributionSolver.run`; a `start` replaces the greedy one."""
        lattice = objective.lattice
        first = grow(objective, k, max_k)[1] if start is None else varying_coordinates(start)
        slots = slots_of(first, max_k)[None]
        if self.num_starts > 1:
            assert key is not None
            keys = jax.random.split(key, self.num_starts - 1)
            others = jax.vmap(lambda key: draw_slots(key, len(lattice), k, max_k))(keys)
            slots = jnp.concatenate([slots, others])
        return best_of(jax.vmap(lambda s: self._descend(objective, s, max_k))(slots))

    def _descend(
        self, objective: DistributionObjective, slots: Array, max_k: int
    ) -> DistributionSolution:
        n = len(objective.lattice)

        def exchange(state: _Exchange) -> _Exchange:
            replaced = jnp.eye(max_k, dtype=bool)[:, None, :]
            rivals = jnp.where(replaced, jnp.arange(n)[None, :, None], state.slots)
            rivals = rivals.reshape(max_k * n, max_k)
            out, into = state.slots[:, None], jnp.arange(n)[None, :]
            # A coordinate that replaces itself leaves S unchanged, which gives S its own score.
            valid = (out < n) & ((into == out) | ~jnp.isin(into, state.slots))
            scores = jax.vmap(lambda slots: _score(objective, slots))(rivals)
            scores = jnp.where(valid.ravel(), scores, jnp.inf)
            best = _lowest(scores)
            slack = _TIE * jnp.finfo(dtype).eps * jnp.abs(scores[best])
            better = scores[best] < state.score - slack
            return _Exchange(
                slots=jnp.where(better, rivals[best], state.slots),
                score=jnp.where(better, scores[best], state.score),
                num_iters=state.num_iters + 1,
                stopped=~better,
            )

        slots, dtype = slots.astype(jnp.int32), objective.scale(1).dtype
        unscored = jnp.full((), jnp.inf, dtype)
        state = jax.lax.while_loop(
            lambda s: ~s.stopped & (s.num_iters < self.max_iters),
            exchange,
            _Exchange(slots, unscored, jnp.zeros((), jnp.int32), jnp.zeros((), bool)),
        )
        table = best_table(objective, state.slots)
        return DistributionSolution(
            table=table,
            support=jnp.isin(jnp.arange(n), state.slots),
            objective=objective(table),
            num_iters=state.num_iters,
            converged=state.stopped,
        )


def best_of(solutions: DistributionSolution) -> DistributionSolution:
    """The solution with the lowest objective of a batch."""
    best = jnp.argmin(solutions.objective)
    return jax.tree.map(lambda x: x[best], solutions)


def _lowest(scores: Float[Array, " c"]) -> Int[Array, ""]:
    """The first index of the smallest score, up to rounding."""
    least = jnp.min(scores)
    return jnp.argmax(scores <= least + _TIE * jnp.finfo(scores.dtype).eps * jnp.abs(least))


def grow(
    objective: DistributionObjective, k: Int[Array, ""], max_k: int
) -> tuple[Float[Array, "*lattice"], Bool[Array, " n"]]:
    """Run Algorithm 3, or 2 if F is the squared distance; return the table and its support."""
    coordinates = jnp.arange(len(objective.lattice), dtype=jnp.int32)
    n = coordinates.shape[0]

    def add(size: Array, slots: Array) -> Array:
        rivals = jnp.where(jnp.arange(max_k) == size, coordinates[:, None], slots)
        scores = jax.vmap(lambda slots: _score(objective, slots))(rivals)
        return rivals[_lowest(jnp.where(jnp.isin(coordinates, slots), jnp.inf, scores))]

    slots = jax.lax.fori_loop(0, k, add, jnp.full(max_k, n, jnp.int32))
    return best_table(objective, slots), jnp.isin(coordinates, slots)


def _score(objective: DistributionObjective, slots: Int[Array, " k"]) -> Float[Array, ""]:
    return objective.best_on(*points_of(slots, objective.lattice))[1]


def best_table(
    objective: DistributionObjective, slots: Int[Array, " k"]
) -> Float[Array, "*lattice"]:
    """The minimum of F over the distributions on a support."""
    points, allowed = points_of(slots, objective.lattice)
    return as_table(points, objective.best_on(points, allowed)[0], objective.lattice)
