"""One build under one π̂: candidates, draws, the solver's path, and the size to take."""

import dataclasses
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from jaxcoreset.constraints import Constraint
from jaxcoreset.draw_pool import DrawPool
from jaxcoreset.host import Clock, host_generator
from jaxcoreset.likelihood import ModelLikelihood
from jaxcoreset.solution import Solution
from jaxcoreset.solve import default_solver, sweep
from jaxcoreset.solvers.base import Solver
from jaxcoreset.solvers.hard_thresholding import HardThresholding
from jaxcoreset.tolerance import Choice, largest_size, smallest_within

# Up to here every row is a candidate; beyond, a uniform subset of so many, or of so many times the
# size asked for. The target is a sum over all rows either way.
_ALL_CANDIDATES = 10_000
_MIN_CANDIDATES = 2_000
_CANDIDATES_PER_ROW = 8
_CANDIDATES_PER_GROUP = 64
# The draws must be several times the rows, or the solver fits the draws and not the posterior.
_MIN_DRAWS = 500
_DRAWS_PER_ROW = 4
_CURVE_POINTS = 24
# With a tolerance, the first size that is tried lies between these.
_FIRST_SIZE, _LARGEST_FIRST_SIZE = 32, 256


@dataclass(frozen=True)
class Construction:
    """How coresets of one model and its data are built, whatever the π̂.

    Attributes:
        likelihood: the model's likelihood and data.
        constraint: on the rows and weights over all rows, or None.
        solver: the solver, or None for the default.
        size: at most so many rows; None with `tol`.
        tol: the tolerance, in nats, or None.
        max_size: with `tol`, the most rows that may be tried.
        num_draws: draws for the solver, or None for a default.
        num_held_out: draws by which errors are measured.
        num_candidates: rows to choose from, or None for a default.
        rows_key: a JAX random key for the candidates.
        clock: where time is noted.
    """

    likelihood: ModelLikelihood
    constraint: Constraint | None
    solver: Solver | None
    size: int | None
    tol: float | None
    max_size: int
    num_draws: int | None
    num_held_out: int
    num_candidates: int | None
    rows_key: PRNGKeyArray
    clock: Clock

    def embed(self, pool: DrawPool, size: int | None = None) -> None:
        """Have in the pool the candidates and draws that a build of a size needs, if they lack.

        Args:
            pool: draws and log-likelihoods.
            size: the size; the first one that is tried if left out.
        """
        size = self._first_size() if size is None else size
        wanted = max(self.num_draws or _MIN_DRAWS, _DRAWS_PER_ROW * size)
        if self.tol is None and self.num_draws is not None:
            wanted = self.num_draws
        counts = {"solver": wanted, "select": self.num_held_out}
        if self.tol is not None:
            counts["confirm"] = self.num_held_out
        with self.clock.stage("embedding"):
            pool.set_candidates(self._candidates(size))
            pool.want(**counts)

    def build(self, pool: DrawPool, key: PRNGKeyArray, *, is_final: bool = True) -> Choice | None:
        """The coreset under the pool's draws, as a place on a path; draws are added to the pool.

        Args:
            pool: draws and log-likelihoods.
            key: a JAX random key, for solvers that want one.
            is_final: whether the tolerance matters; else sizes end where trying them is quick.

        Returns:
            The choice, or None where only all the rows will do.
        """
        if self.size is not None:
            self.embed(pool)
            path, sizes = self._solve(pool, self.size, key)
            with self.clock.stage("held-out error"):
                return largest_size(pool, path, sizes)
        return self._within_tolerance(pool, key, is_final)

    def _within_tolerance(self, pool: DrawPool, key: PRNGKeyArray, is_final: bool) -> Choice | None:
        """The smallest size on the path that keeps to `tol`, sizes doubling until there is one."""
        assert self.tol is not None
        n = self.likelihood.num_data
        size = self._first_size()
        while True:
            self.embed(pool, size)
            enough = max(1, pool.count("solver") // _DRAWS_PER_ROW)
            if enough < size and pool.is_exhausted:
                size = enough
            path, sizes = self._solve(pool, size, key)
            with self.clock.stage("held-out error"):
                choice = smallest_within(pool, path, sizes, self.tol, self.num_held_out)
            if choice.is_within:
                return choice
            if size == n:
                return None
            no_draws_for_more = pool.is_exhausted and size == enough
            if size == self.max_size or no_draws_for_more:
                return choice
            if not is_final and 2 * size > _LARGEST_FIRST_SIZE:
                return choice
            size = min(2 * size, self.max_size, n)

    def _first_size(self) -> int:
        if self.size is not None:
            return self.size
        params = self.likelihood.init_params
        num_params = sum(np.size(value) for value in params.values())
        # A posterior that is nearly Gaussian needs about one row per coefficient of a quadratic.
        size = int(np.clip(num_params * (num_params + 3) // 2, _FIRST_SIZE, _LARGEST_FIRST_SIZE))
        return min(size, self.max_size, self.likelihood.num_data)

    def _solve(self, pool: DrawPool, size: int, key: PRNGKeyArray) -> tuple[Solution, np.ndarray]:
        """The solutions of all sizes up to one, under the solver's draws."""
        rows = pool.rows
        solver = self.solver or default_solver(pool.num_candidates, size)
        if self.constraint is not None and isinstance(solver, HardThresholding):
            constraint = self.constraint if rows is None else self.constraint.take(rows)
            solver = dataclasses.replace(solver, constraint=constraint)
        sizes = self._sizes(size)
        with self.clock.stage("solve"):
            path = sweep(pool.problem("solver"), sizes, solver, key if solver.needs_key else None)
            jax.block_until_ready(path)
        return path, sizes

    def _sizes(self, size: int) -> Int[np.ndarray, " m"]:
        """The sizes to solve for, `size` last; smaller ones where they come with it."""
        has_path = self.solver is None or self.solver.has_path
        if self.tol is not None and has_path:
            return np.arange(1, size + 1)
        if self.tol is not None or has_path:
            return np.unique(np.geomspace(1, size, _CURVE_POINTS).round().astype(int))
        return np.array([size])

    def _candidates(self, size: int) -> Int[np.ndarray, " m"] | None:
        """The candidate rows in increasing order; None stands for all."""
        n, wanted = self.likelihood.num_data, self.num_candidates
        if wanted is None:
            default = max(_MIN_CANDIDATES, _CANDIDATES_PER_ROW * size)
            wanted = n if n <= _ALL_CANDIDATES else default
        if wanted >= n:
            return None
        if wanted < size:
            raise ValueError(
                f"num_candidates is {wanted}; wanted at least the size, {size}, better several "
                "times that."
            )
        generator = host_generator(self.rows_key)
        rows = generator.choice(n, wanted, replace=False)
        labels: Array | None = getattr(self.constraint, "groups", None)
        if labels is not None:
            rows = np.union1d(rows, _some_of_each(np.asarray(labels), generator))
        return np.sort(rows)


def _some_of_each(labels: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Random rows of every group, so that a rare one has candidates too."""
    order = np.lexsort((generator.random(labels.size), labels))
    first = np.searchsorted(labels[order], labels[order])
    return order[np.arange(labels.size) - first < _CANDIDATES_PER_GROUP]
