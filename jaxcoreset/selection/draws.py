"""Log-likelihoods at a growing number of draws: nothing is evaluated twice.

Each draw has a *use*: "solver" for the draws that the solver sees, "selection" for those by which a
size is selected, "confirmation" for those that neither of them saw. Draws are added in blocks. Rows
are centred within each block, which costs one degree of freedom per block and lets float32 hold
the log-likelihoods.
"""

from collections.abc import Callable, Iterator
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxcoreset.data.blocks import few_rows_block
from jaxcoreset.data.compiling import quick_jit, rows_at
from jaxcoreset.data.utils import progress_bar
from jaxcoreset.likelihood.embedding import log_likelihood_sum
from jaxcoreset.likelihood.expansion import (
    Expansion,
    FadedRemainder,
    Proxy,
    around,
    flat_draws,
    terms_of_rows,
)
from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params
from jaxcoreset.likelihood.precision import MAX_NOISE, Noise, check_float32, matrix_of_weighted
from jaxcoreset.likelihood.quadratic import Regression, least_draws
from jaxcoreset.likelihood.verification import check_program
from jaxcoreset.selection.candidate_search import FoundRows, search_rows
from jaxcoreset.selection.parts import (
    Approach,
    KnownRemainders,
    Part,
    Use,
    less_mean,
    scaled,
    split,
    standardised,
)
from jaxcoreset.selection.remainders import RemainderEvaluator, is_rounding
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.weighting import DrawSource
from jaxcoreset.weighting.base import FEWEST, shares

# There is room for this number of candidates to join, if there are at least that many; and for more
# after some have joined, since each number of places is another program to compile.
_SPARE, _MORE_SPARE, _FEWEST_PADDED = 256, 2048, 512
# An expansion that leaves less, in nats, is exact but for rounding. A regression has to reduce what
# it leaves, on other draws, to at most this fraction.
EXACT, _WORTH_REGRESSING = 1e-9, 0.9


class DrawPool:
    """Draws of one source, and the log-likelihoods at them of the candidates and of all rows.

    Args:
        likelihood: the model's likelihood and data.
        source: where draws come from.
        key: a JAX random key.
        batch_size: rows that are evaluated at a time.
        show_progress: whether to show progress on a terminal.
        max_noise: the largest variance that rounding may have, see `check_float32`.

    Attributes:
        indices: the row numbers of the candidates; None if all rows are candidates.
        are_inside: whether the candidates are among the rows of the likelihood.
    """

    def __init__(
        self,
        likelihood: ModelLikelihood,
        source: DrawSource,
        key: PRNGKeyArray,
        batch_size: int | None = None,
        show_progress: bool = False,
        max_noise: float = MAX_NOISE,
    ):
        self.likelihood = likelihood
        self.source = source
        self.indices: Int[np.ndarray, " m"] | None = None
        self._key, self._batch_size, self._show_progress = key, batch_size, show_progress
        self._taken, self._max_noise, self._capacity = 0, max_noise, 0
        self._candidates: tuple | None = None
        self.are_inside = True
        self._noise: Noise | None = None
        self._expansion: Expansion | None = None
        self._regression: Regression | None = None
        self._coefficients: Array | None = None
        self._parts: dict[Use, list[Part]] = {use: [] for use in get_args(Use)}

    def on(self, source: DrawSource, key: PRNGKeyArray) -> "DrawPool":
        """An empty pool of the same candidates, for the draws of another source."""
        other = DrawPool(self.likelihood, source, key, self._batch_size, self._show_progress)
        names = "indices", "_candidates", "_noise", "_expansion", "_regression", "_coefficients"
        for name in (*names, "_max_noise", "_capacity"):
            setattr(other, name, getattr(self, name))
        return other

    @property
    def expansion(self) -> Expansion | None:
        """The expansion of all rows, for a proxy."""
        return self._expansion

    @expansion.setter
    def expansion(self, expansion: Expansion | None) -> None:
        self._expansion = expansion
        self._regression = self._coefficients = None
        for part in self._all_parts():
            part.remainders = part.total_remainder = None

    @property
    def num_candidates(self) -> int:
        """The number of candidates."""
        return self.likelihood.num_data if self.indices is None else self.indices.size

    @property
    def capacity(self) -> int:
        """The number of candidates for which programs are compiled; a few more may join them."""
        num = self.num_candidates
        if self.indices is None or num < _FEWEST_PADDED:
            return num
        if not num <= self._capacity <= 2 * num:
            spare = _MORE_SPARE if 0 < self._capacity < num else 2 * _SPARE
            self._capacity = min(2 * num, _SPARE * ((num + spare) // _SPARE))
        return self._capacity

    @property
    def candidate_data(self) -> tuple:
        """The data of the candidates."""
        if self._candidates is None:
            rows, indices = self.likelihood.rows, self.indices
            self._candidates = rows.data if indices is None else rows.select(indices)
        return self._candidates

    def indices_of(self, positions: Int[np.ndarray, " k"]) -> Int[np.ndarray, " k"]:
        """The row numbers of some candidates."""
        return positions if self.indices is None else self.indices[positions]

    def numbers_of(self, positions: Int[np.ndarray, " k"]) -> Int[np.ndarray, " k"]:
        """The numbers that a user knows some candidates by."""
        indices = self.indices_of(positions)
        return self.likelihood.rows.numbers(indices) if self.are_inside else indices

    def data_of(self, positions: Int[np.ndarray, " k"]) -> tuple:
        """The data of some candidates."""
        return tuple(leaf[positions] for leaf in self.candidate_data)

    @property
    def remaining(self) -> int | None:
        """The number of draws that the source still has; None if there is no limit."""
        limit = self.source.limit
        return None if limit is None else limit - self._taken

    @property
    def is_exhausted(self) -> bool:
        """True if the source has too few draws left to be of use."""
        return self.remaining is not None and self.remaining < FEWEST

    def parts(self, use: Use) -> list[Part]:
        """The draws of one use, block by block."""
        return self._parts[use]

    def usable_parts(self, use: Use) -> list[Part]:
        """The draws of one use, without blocks of one draw: centred, nothing is left of it."""
        return [part for part in self._parts[use] if part.size > 1]

    def count(self, use: Use) -> int:
        """The number of draws of one use."""
        return sum(part.size for part in self._parts[use])

    def set_candidates(self, indices: Int[np.ndarray, " m"] | None) -> None:
        """Choose from these rows, None for all, and evaluate them at the draws."""
        if indices is self.indices or np.array_equal(indices, self.indices):  # pyright: ignore
            return
        self.indices, self._candidates, self._coefficients = indices, None, None
        for part in self._all_parts():
            part.values = self._matrix(part.draws, self.candidate_data)
            part.remainders = part.total_remainder = None

    def add_candidates(self, indices: Int[np.ndarray, " m"]) -> None:
        """Choose from these rows too, all of them new; only their values are evaluated."""
        assert self.indices is not None
        indices = np.sort(indices)
        joined = np.concatenate([self.indices, indices])
        order = np.argsort(joined)
        self.indices, self._candidates, self._coefficients = joined[order], None, None
        data = self.likelihood.rows.select(indices)
        for part in self._all_parts():
            new = self._matrix(part.draws, data)
            part.values = _joined(part.values, new, order)
            if (known := part.remainders) is not None:
                moved = np.searchsorted(self.indices, joined[known.positions])
                part.remainders = KnownRemainders(moved, known.values)

    def set_outside_candidates(self, indices: Int[np.ndarray, " m"], data: tuple) -> None:
        """Choose from rows that need not be among those of the likelihood.

        Args:
            indices: their row numbers among all rows, in increasing order.
            data: their data.
        """
        self.indices, self._candidates, self.are_inside = indices, data, False

    def search_candidates(
        self,
        positions: Int[Array, " k"],
        weights: Float[Array, " k"],
        num: int,
        approach: Approach = "rows",
    ) -> FoundRows:
        """The rows outside the candidates that would improve most a solution on the solver's draws.

        See `jaxcoreset.selection.candidate_search`.

        Args:
            positions: the positions of the solution's rows among the candidates.
            weights: their weights.
            num: the maximum number of rows.
            approach: what stands for all rows.
        """
        assert self.indices is not None
        problem = self.problem("solver", approach)
        parts = self.usable_parts("solver")
        rows = self.likelihood.rows
        draws = jax.tree.map(lambda *x: jnp.concatenate(x), *(part.draws for part in parts))
        evaluate, common, removed = self.likelihood.program.log_likelihood, None, None
        if approach == "proxy and rows":
            assert self._expansion is not None
            draws, common = around(self._expansion, draws)
            evaluate = FadedRemainder(evaluate, self.likelihood.unravel)
            if self._regression is not None:
                removed = self._regression.removed([flat_draws(part.draws) for part in parts])
        found = search_rows(
            rows,
            evaluate,
            draws,
            residual=problem.target - problem.combine(positions, weights),
            chosen=jnp.where(weights[:, None] > 0, problem.gather(positions), 0),
            parts=tuple(part.size for part in parts),
            num=num,
            known=self.indices,
            scale=float(jnp.linalg.norm(problem.target)),
            removed=removed,
            common=common,
        )
        if rows.is_ragged:
            rows.keep(found.indices)
        elif not (rows.is_local and rows.has_random_access):
            rows.remember(found.indices, found.data)
        return found

    def ensure_draws(self, **counts: int) -> None:
        """Add draws, in one pass over the data, until each use has the number that is given for it.

        If the source has too few draws, all uses get proportionally fewer.

        Raises:
            ValueError: if the source has fewer than 8 draws, or a log-likelihood is not finite at
                one of them.
            Float32Error: if rounding in float32 is too coarse, see `check_float32`.
            ModelError, RuntimeError: if a row's log-likelihood depends on other rows, or the
                compiled program is wrong, see `check_program`.
        """
        missing: dict[Use, int] = {
            use: counts[use] - self.count(use)
            for use in self._parts
            if counts.get(use, 0) > self.count(use)
        }
        if not missing or (self.is_exhausted and any(self._all_parts())):
            return
        available = shares(list(missing.values()), self.remaining)
        shared = dict(zip(missing, available, strict=True))
        num = sum(shared.values())
        draws = self.source.take(self._key, self._taken, num)
        processes = self.likelihood.rows.context.processes
        draws = jax.tree.map(jnp.asarray, processes.first(draws))
        self._taken += num
        self.measure_noise(draws)
        if self.indices is None:
            values = self._matrix(draws, self.candidate_data)
            total = np.asarray(jnp.sum(values, axis=0))
        else:
            # All rows first, so that an error names a row by its number among all.
            total, values = self._sum(draws), self._matrix(draws, self.candidate_data)
        if self._taken == num:  # the first of them
            check_program(self.likelihood, draws, self.candidate_data, values)
        for use, part in zip(shared, split(draws, total, values, shared.values()), strict=True):
            self._parts[use].append(part)

    def measure_noise(self, draws: Params) -> None:
        """Measure how coarse float32 is at two or more draws, if that is not known yet.

        Raises:
            Float32Error: see `ensure_draws`.
        """
        if self._noise is None:
            self._noise = check_float32(self.likelihood, draws, self._max_noise)

    def move(self, use: Use, to: Use) -> None:
        """Give all the draws of one use to another."""
        self._parts[to] += self._parts[use]
        self._parts[use] = []

    def problem(
        self, use: Use, approach: Approach = "rows", is_padded: bool = False
    ) -> CoresetProblem:
        """The candidates' atoms, and the target, under the draws of one use.

        Args:
            use: the use.
            is_padded: whether atoms of zeros follow those of the candidates, up to `capacity`.
            approach: with a proxy the target is what the pool's expansion leaves, and with "proxy
                and rows" the atoms are of the rows' remainders.
        """
        num_rows = self.capacity if is_padded else self.num_candidates
        parts = self.usable_parts(use)
        scale = sum(part.size for part in parts) ** -0.5
        found = [self.values(part, approach) for part in parts]
        return CoresetProblem(*scaled(num_rows, scale, *zip(*found, strict=True)))

    def left(self, use: Use) -> float:
        """What the expansion leaves of the target under the draws of one use, in nats."""
        return self._energy(use, lambda part: self.values(part, "proxy")[1])

    @property
    def has_remainders(self) -> bool:
        """False if the rows' remainders at the solver's draws are rounding, or fade out."""
        parts = self.usable_parts("solver")
        return not all(is_rounding(self.values(x, "proxy and rows")[0], x.values) for x in parts)

    def norm(self, use: Use) -> float:
        """The norm of the target of all rows under the draws of one use, without a proxy."""
        return float(np.sqrt(self._energy(use, lambda part: part.total)))

    def _energy(self, use: Use, total_of: Callable[[Part], Any]) -> float:
        parts = self.usable_parts(use)
        squares = (part.size * np.var(np.asarray(total_of(part), np.float64)) for part in parts)
        return float(sum(squares) / sum(part.size for part in parts))

    def standardised(self, use: Use) -> Float[np.ndarray, "s p"]:
        """Parameters at the draws of one use, see `parts.standardised`."""
        return standardised([part.parameters(self.likelihood) for part in self.usable_parts(use)])

    def values(
        self, part: Part, approach: Approach, positions: Int[np.ndarray, " j"] | None = None
    ) -> tuple[Any, Array]:
        """What is added for candidates at a part's draws, (m, s), and what to reach, (s,).

        The candidates are all of them, or those at positions.
        """
        if has_rows := approach == "proxy and rows":
            values = self._evaluate_remainders(part, positions)
        else:
            values = part.values if positions is None else rows_at(part.values, positions)
        if approach == "rows":
            return values, less_mean(part.total)
        assert self._expansion is not None
        flat = flat_draws(part.draws)
        if part.total_remainder is None:
            part.total_remainder = np.asarray(part.total, np.float64) - self._expansion.at(flat)
        rest = part.total_remainder
        if (fit := self._regression) is not None:
            rest = rest - fit.at(flat)
            if has_rows:
                every = self._row_coefficients(fit)
                chosen = every if positions is None else rows_at(every, positions)
                values = fit.less_rows(values, chosen, flat)
        return values, less_mean(rest)

    def regress(self) -> None:
        """Regress what the expansion leaves on quadratics, if the held-out error says that it pays.

        See `jaxcoreset.likelihood.quadratic`.
        """
        self._regression = self._coefficients = None
        if self._expansion is None:
            return
        before = self.left("selection")
        parts = self.usable_parts("solver")
        num = sum(part.size for part in parts) / self.source.inefficiency
        if before <= EXACT or num < least_draws(self._expansion.center.size):
            return
        rest = [np.asarray(self.values(part, "proxy")[1], np.float64) for part in parts]
        draws = [flat_draws(part.draws) for part in parts]
        self._regression = Regression.of(self._expansion, draws, rest)
        if self.left("selection") > _WORTH_REGRESSING * before:
            self._regression = None

    def _row_coefficients(self, fit: Regression) -> Float[Array, "m q"]:
        """What the regression adds for each candidate."""
        if self._coefficients is None:
            # Later draws were not regressed on.
            parts = self.usable_parts("solver")[: fit.num_blocks]
            self._coefficients = fit.of_rows([self._evaluate_remainders(part) for part in parts])
        return self._coefficients

    def _evaluate_remainders(
        self, part: Part, positions: Int[np.ndarray, " j"] | None = None
    ) -> Float[Array | np.ndarray, "j s"]:
        """The remainders of candidates at a part's draws, see `RemainderEvaluator.at`."""
        assert self._expansion is not None
        given = self.likelihood, self._expansion, self.candidate_data, self.capacity
        settings = self.indices is None, self._noise, self._batch_size
        return RemainderEvaluator(*given, *settings).at(part, positions)

    def proxy_of(
        self,
        positions: Int[np.ndarray, " k"],
        weights: Float[np.ndarray, " k"],
        approach: Approach,
    ) -> Proxy | None:
        """The proxy that goes with weighted candidates; None for rows alone."""
        if approach == "rows":
            return None
        assert self._expansion is not None
        expansion, fit = self._expansion, self._regression
        terms = terms_of_rows(self.likelihood, self.data_of(positions), weights, expansion.center)
        if fit is not None:
            expansion = fit.expansion
            if positions.size:
                coefficients = np.asarray(self._row_coefficients(fit), np.float64)[positions]
                terms = terms.plus(fit.terms(weights @ coefficients))
        return Proxy.of(expansion, terms, self.likelihood.unravel)

    def _all_parts(self) -> Iterator[Part]:
        for parts in self._parts.values():
            yield from parts

    def _matrix(self, draws: Params, data: tuple) -> Float[Array, "m s"]:
        """Log-likelihoods of rows at draws, each row less its mean."""
        n, settings = self.likelihood.num_data, (self._batch_size, self._noise)
        return matrix_of_weighted(
            self.likelihood, draws, data, n, *settings, block=few_rows_block(data)
        )

    def _sum(self, draws: Params) -> Float[np.ndarray, " s"]:
        rows, log_likelihood = self.likelihood.rows, self.likelihood.program.log_likelihood
        with progress_bar(rows.num_local, "Target", show=self._show_progress) as bar:
            return log_likelihood_sum(log_likelihood, draws, rows, on_rows=bar.update)


@quick_jit
def _joined(values: Array, new: Array, order: Array | np.ndarray) -> Float[Array, "m s"]:
    """Values of rows and of new ones, in the order of all."""
    return jnp.concatenate([values, new])[order]
