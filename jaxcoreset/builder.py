"""`CoresetBuilder`: a NumPyro model and its data in, a coreset out.

The stages are: find the weighting π̂, draw from it, sum the log-likelihoods of *all* rows at the
draws into the target, evaluate the candidates' into atoms, solve, and measure the error on draws
that the solver did not see.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jaxcoreset.coreset import Coreset
from jaxcoreset.embedding import centre, log_likelihood_matrix, log_likelihood_sum
from jaxcoreset.host import host_generator, peak_memory, progress_bar
from jaxcoreset.likelihood import ModelLikelihood, model_likelihood
from jaxcoreset.problem import HIGHEST, CoresetProblem
from jaxcoreset.report import Report
from jaxcoreset.solution import Solution
from jaxcoreset.solve import default_solver, sweep
from jaxcoreset.solvers.base import Solver
from jaxcoreset.weighting import DrawSource, Laplace, Params, Weighting

# Up to here every row is a candidate; beyond, a uniform subset of so many, or of so many times the
# size asked for. The target is a sum over all rows either way.
_ALL_CANDIDATES = 10_000
_MIN_CANDIDATES = 2_000
_CANDIDATES_PER_ROW = 8
# The draws must be several times the rows, or the solver fits the draws and not the posterior.
_MIN_DRAWS = 500
_DRAWS_PER_ROW = 4
_CURVE_POINTS = 24


class CoresetBuilder:
    """Builds a coreset of a NumPyro model's data, as ``MCMC`` runs a kernel: configure, then run.

    Args:
        model: a NumPyro model whose observations are independent given its parameters.
        size: at most so many rows.
        weighting: how the weighting distribution π̂ is found: `Laplace` or `Draws`.
        solver: the solver; the default is that of `solve`.
        num_draws: draws of π̂ for the solver, S; four times the size and at least 500 if left out.
        num_held_out: further draws, to measure the error on.
        num_candidates: rows to choose from; all where n ≤ 10,000, and else a uniform subset of
            2,000 or of eight times the size, whichever is more.
        data_axes: which arguments are data, if the builder is not to find out by itself; see
            `model_likelihood`.
        plate: the name of the data plate, if the model has several that could be it.
        batch_size: rows that are evaluated at a time.
        progress_bar: whether to show progress on a terminal.
    """

    def __init__(
        self,
        model: Callable,
        size: int,
        *,
        weighting: Weighting | None = None,
        solver: Solver | None = None,
        num_draws: int | None = None,
        num_held_out: int = 1000,
        num_candidates: int | None = None,
        data_axes: Any = None,
        plate: str | None = None,
        batch_size: int | None = None,
        progress_bar: bool = True,
    ):
        self.model = model
        self.size = _at_least("size", size, 1)
        self.weighting = Laplace() if weighting is None else weighting
        self.solver = default_solver() if solver is None else solver
        draws = max(_MIN_DRAWS, _DRAWS_PER_ROW * size) if num_draws is None else num_draws
        self.num_draws = _at_least("num_draws", draws, 2)
        self.num_held_out = _at_least("num_held_out", num_held_out, 2)
        self.num_candidates = (
            None if num_candidates is None else _at_least("num_candidates", num_candidates, 1)
        )
        self.data_axes = data_axes
        self.plate = plate
        self.batch_size = None if batch_size is None else _at_least("batch_size", batch_size, 1)
        self.progress_bar = progress_bar
        for name, value, wanted in (
            ("weighting", self.weighting, Weighting),
            ("solver", self.solver, Solver),
        ):
            if not isinstance(value, wanted):
                raise TypeError(
                    f"{name} is {value!r}; wanted a {wanted.__name__}, for instance "
                    f"{'Laplace()' if wanted is Weighting else 'MatchingPursuit()'}."
                )

    def run(self, key: PRNGKeyArray, *args: Any, **kwargs: Any) -> Coreset:
        """Build a coreset of the data in the model's arguments.

        Args:
            key: a JAX random key; the same key gives the same coreset.
            *args: the model's positional arguments.
            **kwargs: the model's keyword arguments.

        Raises:
            ValueError: if the model or the data cannot be used; the message says what to do.
        """
        start_key, weighting_key, draws_key, rows_key, solver_key = jax.random.split(key, 5)
        clock = _Clock()
        settings = {"data_axes": self.data_axes, "plate": self.plate}
        with clock.stage("model"):
            likelihood = model_likelihood(self.model, args, kwargs, key=start_key, **settings)
        if self.size >= likelihood.num_data:
            return self._whole(likelihood, settings, clock)
        with clock.stage("weighting"):
            source = self.weighting.fit(likelihood, weighting_key, show_progress=self.progress_bar)
        rows = self._candidates(rows_key, likelihood.num_data)
        with clock.stage("embedding"):
            seen, held_out = self._embed(likelihood, source, draws_key, rows)
        with clock.stage("solve"):
            path = self._solve(seen, solver_key)
        with clock.stage("held-out error"):
            curve = _curve(path, held_out)
        return self._finish(likelihood, settings, clock, rows, path, curve, seen, held_out)

    def _candidates(self, key: PRNGKeyArray, n: int) -> np.ndarray | None:
        """The candidate rows in increasing order; None stands for all."""
        wanted = self.num_candidates
        if wanted is None:
            default = max(_MIN_CANDIDATES, _CANDIDATES_PER_ROW * self.size)
            wanted = n if n <= _ALL_CANDIDATES else default
        if wanted >= n:
            return None
        if wanted < self.size:
            raise ValueError(
                f"num_candidates is {wanted}; wanted at least size = {self.size}, better several "
                "times that."
            )
        return np.sort(host_generator(key).choice(n, wanted, replace=False))

    def _embed(
        self,
        likelihood: ModelLikelihood,
        source: DrawSource,
        key: PRNGKeyArray,
        rows: np.ndarray | None,
    ) -> tuple[CoresetProblem, CoresetProblem]:
        """The candidates' problems under the solver's draws and under the held-out draws."""
        seen, held_out = source.split(key, self.num_draws, self.num_held_out)
        num_seen = _leading(seen)
        draws = jax.tree.map(lambda *parts: jnp.concatenate(parts), seen, held_out)

        def evaluate(data: PyTree) -> Float[Array, "m s"]:
            return log_likelihood_matrix(
                likelihood.log_likelihood, draws, data, batch_size=self.batch_size
            )

        if rows is None:
            values = evaluate(likelihood.data)
            total = jnp.sum(values, axis=0)
        else:
            with progress_bar(likelihood.num_data, "Target", show=self.progress_bar) as bar:
                total = log_likelihood_sum(
                    likelihood.log_likelihood,
                    draws,
                    likelihood.data,
                    batch_size=self.batch_size,
                    on_rows=bar.update,
                )
            values = evaluate(likelihood.take(rows))
        return (
            CoresetProblem(centre(values[:, :num_seen]), centre(total[:num_seen])),
            CoresetProblem(centre(values[:, num_seen:]), centre(total[num_seen:])),
        )

    def _solve(self, problem: CoresetProblem, key: PRNGKeyArray) -> Solution:
        """The solution at `size`, last, and those at smaller sizes where they cost nothing."""
        sizes = np.array([self.size])
        if self.solver.has_path:
            sizes = np.unique(np.geomspace(1, self.size, _CURVE_POINTS).round().astype(int))
        return jax.block_until_ready(
            sweep(problem, jnp.asarray(sizes), self.solver, key if self.solver.needs_key else None)
        )

    def _finish(
        self,
        likelihood: ModelLikelihood,
        settings: dict[str, Any],
        clock: "_Clock",
        rows: np.ndarray | None,
        path: Solution,
        curve: dict[str, np.ndarray],
        seen: CoresetProblem,
        held_out: CoresetProblem,
    ) -> Coreset:
        weights = np.asarray(path.weights[-1])
        chosen = np.asarray(path.indices[-1], np.int64)[weights > 0]
        indices = chosen if rows is None else rows[chosen]
        weights = weights[weights > 0]
        if not weights.size:
            raise ValueError(
                "the solver chose no rows: no candidate's log-likelihood goes along with the sum "
                "over all rows. Give more candidates (num_candidates) or other draws (weighting)."
            )
        report = Report(
            num_data=likelihood.num_data,
            size=self.size,
            num_used=weights.size,
            num_candidates=seen.num_data,
            num_draws=seen.num_draws,
            num_held_out=held_out.num_draws,
            relative_error=float(path.relative_error[-1]),
            held_out_error=float(curve["held_out_error"][-1]),
            kl=float(curve["kl"][-1]),
            kl_standard_error=float(curve["kl_standard_error"][-1]),
            solver=path.solver,
            converged=bool(path.converged[-1]),
            weighting=type(self.weighting).__name__,
            curve=curve,
            seconds=clock.seconds,
            peak_memory=peak_memory(),
        )
        args, kwargs = likelihood.assemble(likelihood.take(indices))
        return Coreset(self.model, indices, weights, args, kwargs, report, settings=settings)

    def _whole(
        self, likelihood: ModelLikelihood, settings: dict[str, Any], clock: "_Clock"
    ) -> Coreset:
        """All rows with weight 1, which need neither draws nor a solver and have no error."""
        n = likelihood.num_data
        nothing = dict.fromkeys(
            ("relative_error", "held_out_error", "kl", "kl_standard_error"), np.zeros(1)
        )
        curve = {"size": np.array([n]), "num_used": np.array([n]), **nothing}
        report = Report(
            num_data=n,
            size=self.size,
            num_used=n,
            num_candidates=n,
            num_draws=0,
            num_held_out=0,
            relative_error=0.0,
            held_out_error=0.0,
            kl=0.0,
            kl_standard_error=0.0,
            solver="all rows",
            converged=True,
            weighting="none needed",
            curve=curve,
            seconds=clock.seconds,
            peak_memory=peak_memory(),
        )
        args, kwargs = likelihood.assemble(likelihood.data)
        weights = np.ones(n, jnp.zeros(()).dtype)
        return Coreset(self.model, np.arange(n), weights, args, kwargs, report, settings=settings)


def _curve(path: Solution, held_out: CoresetProblem) -> dict[str, np.ndarray]:
    """The errors along a path of solutions, by size, with those on the held-out draws."""

    @jax.jit
    def measure(indices: Array, weights: Array) -> tuple[Array, Array, Array]:
        residual = held_out.target - jnp.matmul(
            weights, held_out.gather(indices), precision=HIGHEST
        )
        # Entries are over √S: times S, their squares are draws of the squared difference.
        squares = held_out.num_draws * residual**2
        kl = jnp.mean(squares)
        error = jnp.sqrt(kl) / jnp.linalg.norm(held_out.target)
        return error, kl, jnp.std(squares) / np.sqrt(held_out.num_draws)

    measured = jax.lax.map(lambda pair: measure(*pair), (path.indices, path.weights))
    error, kl, standard_error = (np.asarray(value, np.float64) for value in measured)
    return {
        "num_used": np.asarray(path.size),
        "relative_error": np.asarray(path.relative_error, np.float64),
        "held_out_error": error,
        "kl": kl,
        "kl_standard_error": standard_error,
    }


class _Clock:
    """Wall time by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start


def _leading(params: Params) -> int:
    return next(iter(params.values())).shape[0]


def _at_least(name: str, value: Any, lowest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < lowest:
        raise ValueError(f"{name} is {value!r}; wanted a whole number of at least {lowest}.")
    return int(value)
