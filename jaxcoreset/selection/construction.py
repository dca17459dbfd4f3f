"""One build under one π̂: candidates, draws, the solver's path, and the selected size."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, PRNGKeyArray

from jaxcoreset.data.distinct import DistinctRows
from jaxcoreset.data.ragged import mean_length
from jaxcoreset.data.utils import Clock, host_generator
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.precision import MAX_NOISE
from jaxcoreset.likelihood.quadratic import least_draws, num_features
from jaxcoreset.selection.draws import DrawPool
from jaxcoreset.selection.exact import exact_rows, representatives
from jaxcoreset.selection.look import MANY_PARAMS
from jaxcoreset.selection.parts import Approach
from jaxcoreset.selection.solving import approaches_of, select_size, solve_path
from jaxcoreset.selection.tolerance import Limit, Selection
from jaxcoreset.solvers.base import Solver
from jaxcoreset.solvers.constraints.base import constraints_of, replace_constraints
from jaxcoreset.solvers.solution import Solution

# Up to this number of rows every row is a candidate. Above it the candidates are a uniform subset,
# with a minimum number and a number per row of the coreset; groups have a minimum number too. The
# target is a sum over all rows in any case. Where a datum is a group, the first two numbers are of
# the rows of groups.
_ALL_CANDIDATES = 10_000
MIN_CANDIDATES = 2_000
CANDIDATES_PER_ROW = 8
_CANDIDATES_PER_GROUP = 64
# With fewer draws per row of the coreset the solver would fit the draws and not the posterior.
MIN_DRAWS = 500
DRAWS_PER_ROW = 4
# Remainders are of third order, and with few draws a coreset of them can have a second mode between
# the draws. So there are more of them where a pass over the rows is cheap.
_DRAWS_OF_REMAINDERS, _FEW_ROWS = 2_000, 20_000
# Elsewhere there are as many as a regression needs, if these are not more than this.
_MOST_TO_REGRESS = 1_000
# The number of rows that a search for further candidates keeps: at least, and per row of the
# coreset.
_MIN_FOUND, _FOUND_PER_ROW = 1_000, 4
# A search is the last one if the best row would not lower the objective by more than this fraction.
# Otherwise all rows join that would lower it by more than a tenth of that.
_MIN_LARGEST_DECREASE, _WORTH_ADDING = 0.01, 0.1
# The maximum number of such searches with "auto". They are made while the objective is more than
# this fraction of the objective at half the size, and above this many nats, or half the tolerance.
# They end when one lowers the objective by less than a tenth.
MOST_SEARCHES = 4
_BARELY_REDUCED, _NEGLIGIBLE_ERROR, _MIN_DECREASE = 0.5, 1e-3, 0.1
# The largest variance of rounding in float32, relative to the tolerance.
_NOISE_OF_TOL = 0.1
# With a tolerance, the first size is between these.
_FIRST_SIZE, LARGEST_FIRST_SIZE = 32, 256


@dataclass(frozen=True)
class Construction:
    """How coresets of one model and its data are built, whatever the π̂.

    Attributes:
        likelihood: the model's likelihood and data.
        solver: the solver, or None for the default; its constraint, if any, is over all rows.
        size: the maximum number of rows; None with `tol`.
        tol: the tolerance, in nats, or None.
        max_size: with `tol`, the maximum number of rows.
        max_shift: with `tol`, the largest shift of a posterior mean, in standard deviations.
        num_draws: the number of draws for the solver, or None for a default.
        num_held_out: the number of draws that measure the error.
        num_candidates: the number of rows to choose from, or None for a default.
        rows_key: a JAX random key for the candidates.
        clock: where the time of each stage is noted.
        extra_passes: the maximum number of passes over all rows for further candidates; "auto"
            makes them if the candidates seem to limit the error.
        searches: what those passes found, in order; see `Report.candidate_searches`.
        joined: the rows that became candidates by them.
        distinct: the distinct rows; None if they are not known.
        allows_rows_alone: whether rows may stand for all rows without the pool's expansion, where
            the pool has one.
        may_expand: whether there may be an expansion.
        facts: further attributes of the report.
    """

    likelihood: ModelLikelihood
    solver: Solver | None
    size: int | None
    tol: float | None
    max_size: int
    max_shift: float
    num_draws: int | None
    num_held_out: int
    num_candidates: int | None
    rows_key: PRNGKeyArray
    clock: Clock
    extra_passes: int | Literal["auto"] = 0
    searches: list[dict[str, float]] = field(default_factory=list)
    joined: list[np.ndarray] = field(default_factory=list)
    distinct: DistinctRows | None = None
    allows_rows_alone: bool = True
    may_expand: bool = False
    facts: dict[str, Any] = field(default_factory=dict)

    def embed(
        self,
        pool: DrawPool,
        size: int | None = None,
        draws_per_row: int = DRAWS_PER_ROW,
        *,
        confirms: bool = True,
    ) -> None:
        """Add the candidates and draws that a build of a size needs to the pool.

        Args:
            pool: draws and log-likelihoods.
            size: the size; the first size if left out.
            draws_per_row: the least number of the solver's draws for a row of the coreset.
            confirms: whether to add the draws that confirm a selected size, which the expansion
                alone does not need.
        """
        size = self.first_size if size is None else size
        counts = self.draw_counts(size, draws_per_row, with_proxy=pool.expansion is not None)
        if not confirms and pool.remaining is None:  # a limited source is shared among the uses
            counts.pop("confirmation", None)
        with self.clock.stage("embedding"):
            pool.set_candidates(self.candidates(size))
            pool.ensure_draws(**counts)

    def draw_counts(
        self, size: int, draws_per_row: int = DRAWS_PER_ROW, *, with_proxy: bool = False
    ) -> dict[str, int]:
        """The number of draws that a build of a size needs, by their use."""
        least = MIN_DRAWS
        if with_proxy and self.likelihood.num_data * self._rows_of_datum <= _FEW_ROWS:
            least = _DRAWS_OF_REMAINDERS
        elif with_proxy and (enough := least_draws(self.num_params)) <= _MOST_TO_REGRESS:
            least = max(least, enough)
        count = max(self.num_draws or least, draws_per_row * size)
        if self.tol is None and self.num_draws is not None:
            count = self.num_draws
        counts = {"solver": count, "selection": self.num_held_out}
        if self.tol is not None:
            counts["confirmation"] = self.num_held_out
        return counts

    def regress(self, pool: DrawPool) -> None:
        """Regress what the pool's expansion leaves on quadratics, if that is allowed."""
        if self.allows_rows_alone:  # otherwise the user asked for the expansion itself
            with self.clock.stage("embedding"):
                pool.regress()

    def approaches(self, pool: DrawPool) -> tuple[Approach, ...]:
        """The approximation of all rows that the coreset may correct."""
        return approaches_of(pool, self.allows_rows_alone)

    def select(
        self, pool: DrawPool, size: int, key: PRNGKeyArray, approach: Approach, **bounds: int
    ) -> Selection:
        """The selection of one size, or with a tolerance the smallest of at most that size.

        Arguments as in `path`.
        """
        path, sizes = self.path(pool, size, key, approach, **bounds)
        return select_size(pool, path, sizes, self.clock, approach, self.limit)

    def path(
        self,
        pool: DrawPool,
        size: int,
        key: PRNGKeyArray,
        approach: Approach,
        above: int = 0,
        longest: int = 0,
    ) -> tuple[Solution, Int[np.ndarray, " c"]]:
        """The solutions that `solve_path` finds for the pool, and their sizes."""

        def solve() -> tuple[Solution, np.ndarray]:
            return solve_path(
                pool,
                size,
                self.clock,
                solver=self._solver_of(pool),
                key=key,
                has_tol=self.tol is not None,
                approach=approach,
                above=above,
                longest=longest,
            )

        return self._solve_and_search(pool, approach, solve)

    @property
    def limit(self) -> Limit | None:
        """What a size has to meet; None without a tolerance."""
        return None if self.tol is None else Limit(self.tol, self.max_shift, self.num_held_out)

    @property
    def first_size(self) -> int:
        """The size that was asked for, or the first one that is tried with a tolerance."""
        # Beside an expansion few rows are needed, and often none.
        begins_low = self.may_expand and self.size is None
        return min(self.exact_size, _FIRST_SIZE) if begins_low else self.exact_size

    @property
    def exact_size(self) -> int:
        """The size up to which all distinct rows are taken, and the first one of rows alone."""
        if self.size is not None:
            return self.size
        # A posterior that is nearly Gaussian needs about one row per coefficient of a quadratic.
        size = int(np.clip(num_features(self.num_params), _FIRST_SIZE, LARGEST_FIRST_SIZE))
        return min(size, self.max_size, self.likelihood.num_data)

    @property
    def most_rows(self) -> int:
        """The number of rows that the solver is expected to choose at most."""
        if self.size is not None or self.may_expand:
            return self.size or LARGEST_FIRST_SIZE
        return min(num_features(self.num_params), self.max_size)

    @property
    def may_search(self) -> bool:
        """True if rows are searched for where an expansion of all rows does not meet `tol`."""
        return self.may_expand and self.tol is not None

    @property
    def max_noise(self) -> float:
        """The largest variance of rounding that does not hinder the tolerance."""
        return MAX_NOISE if self.tol is None else min(MAX_NOISE, _NOISE_OF_TOL * self.tol)

    @property
    def exact(self) -> DistinctRows | None:
        """The distinct rows if they are few enough to be the coreset themselves; None if not."""
        return exact_rows(self.distinct, self.exact_size, self.likelihood.num_data, self.solver)

    @property
    def takes_all(self) -> bool:
        """True if all rows are the coreset: `size` is at least n, or a search could spare no row.

        With a tolerance, that is if there are no more rows than parameters, which are many.
        """
        n = self.likelihood.num_data
        if self.size is not None:
            return self.size >= n
        is_allowed = n <= self.max_size and not constraints_of(self.solver)
        return MANY_PARAMS <= self.num_params >= n and is_allowed

    @property
    def num_exact(self) -> int | None:
        """The number of rows of the coreset without error; None if rows are selected."""
        if self.takes_all and self.choices is None:
            return self.likelihood.num_data
        distinct = self.distinct if self.takes_all else self.exact
        return None if distinct is None else distinct.num

    @property
    def num_choices(self) -> int:
        """The number of rows to choose among."""
        return self.likelihood.num_data if self.choices is None else self.choices.size

    @property
    def choices(self) -> Int[np.ndarray, " m"] | None:
        """The rows to choose among, one of each value; None if these are all the rows."""
        return representatives(self.distinct, self.exact_size, self.solver)

    @property
    def has_path(self) -> bool:
        """True if one run of the solver has the solutions of all smaller sizes."""
        return self.solver is None or self.solver.has_path

    @property
    def _rows_of_datum(self) -> float:
        return mean_length(self.likelihood.rows.data)

    @property
    def num_params(self) -> int:
        """The number D of unconstrained parameters."""
        return self.likelihood.num_params

    def _solve_and_search(
        self,
        pool: DrawPool,
        approach: Approach,
        solve: Callable[[], tuple[Solution, np.ndarray]],
    ) -> tuple[Solution, np.ndarray]:
        """The solutions that `solve` finds on the pool's candidates, and their sizes.

        With `extra_passes`, rows that would still lower the last solution's objective join the
        candidates, until none would lower it by more than a hundredth of it.
        """
        path, sizes = solve()
        is_auto = self.extra_passes == "auto"
        for _ in range(MOST_SEARCHES if is_auto else int(self.extra_passes)):
            before, objective = pool.indices, float(path.objective[-1])
            if before is None or pool.num_candidates >= self.num_choices:
                break
            if is_auto and not self._is_candidate_limited(path, sizes, approach):
                break
            with self.clock.stage("candidate search"):
                num = max(_MIN_FOUND, _FOUND_PER_ROW * int(sizes[-1]))
                num = min(num, self.likelihood.num_data)
                chosen = jnp.asarray(path.indices[-1]), jnp.asarray(path.weights[-1])
                found = pool.search_candidates(*chosen, num, approach)
                found = found.among(self.choices)
            largest = float(found.decreases[0]) if found.decreases.size else 0.0
            search = {"largest_decrease": largest, "num_added": 0, "objective": objective}
            self.searches.append(search | {"objective_after": objective})
            if largest <= _MIN_LARGEST_DECREASE:
                break
            useful = found.indices[found.decreases > _MIN_LARGEST_DECREASE * _WORTH_ADDING]
            self.joined.append(useful)
            with self.clock.stage("embedding"):
                pool.add_candidates(useful)
            after, _ = solve()
            if float(after.objective[-1]) < objective:
                path = after
            else:  # The search of a solver may end in a worse solution; the one before still holds.
                positions = np.searchsorted(np.union1d(before, useful), before).astype(np.int32)
                path = eqx.tree_at(lambda one: one.indices, path, positions[path.indices])
            objective_after = float(path.objective[-1])
            self.searches[-1] |= {"num_added": useful.size, "objective_after": objective_after}
            if is_auto and objective_after > (1 - _MIN_DECREASE) * objective:
                break
        return path, sizes

    def _is_candidate_limited(
        self, path: Solution, sizes: Int[np.ndarray, " m"], approach: Approach
    ) -> bool:
        """True if doubling the size barely reduces the error.

        Candidates outside the current set are then likely needed, for instance if a category has
        few rows, and none of them is a candidate. With fewer rows than parameters the error may
        stay the same anyway.
        """
        objectives = np.asarray(path.objective, np.float64)
        half = int(np.searchsorted(sizes, sizes[-1] / 2))
        if half == len(sizes) - 1 or (approach == "rows" and sizes[-1] < self.num_params):
            return False
        least = _NEGLIGIBLE_ERROR if self.tol is None else self.tol / 2
        return bool(objectives[-1] > max(least, _BARELY_REDUCED * objectives[half]))

    def _solver_of(self, pool: DrawPool) -> Solver | None:
        """The solver, whose constraints are over the pool's candidates."""
        solver = self.solver
        if solver is not None and (pool.indices is not None or self.likelihood.rows.is_ragged):
            rows = pool.numbers_of(np.arange(pool.num_candidates))
            solver = replace_constraints(solver, lambda constraint: constraint.take(rows))
        return solver

    def candidates(self, size: int | None = None) -> Int[np.ndarray, " m"] | None:
        """The candidate rows of a build of a size in increasing order; None means all rows.

        Args:
            size: the size; the first size if left out.
        """
        size, rows = self.first_size if size is None else size, self.likelihood.rows
        choices, n, num = self.choices, self.num_choices, self.num_candidates
        if num is None:
            each = self._rows_of_datum
            default = max(round(MIN_CANDIDATES / each), CANDIDATES_PER_ROW * size)
            num = n if n * each <= _ALL_CANDIDATES else min(default, n)
            num = min(num, max(size, rows.most_held))
        if num >= n and choices is not None:
            return choices
        if num >= n:
            # Rows in the memory of this machine are used without a copy.
            return None if rows.is_local and not rows.is_streamed else np.arange(n)
        if num < size:
            raise ValueError(
                f"candidates is {num}; expected at least the size, {size}, and better several "
                "times that."
            )
        generator = host_generator(self.rows_key)
        chosen = generator.choice(n if choices is None else choices, num, replace=False)
        for constraint in constraints_of(self.solver):
            labels = getattr(constraint, "groups", None)
            if labels is None:
                continue
            chosen = np.union1d(chosen, _some_of_each(np.asarray(labels), generator))
        chosen = rows.places(chosen)
        return np.unique(np.concatenate([chosen, *self.joined]))


def _some_of_each(labels: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Random rows of every group, so that rare groups have candidates too."""
    order = np.lexsort((generator.random(labels.size), labels))
    first = np.searchsorted(labels[order], labels[order])
    return order[np.arange(labels.size) - first < _CANDIDATES_PER_GROUP]
