"""`CoresetBuilder`: a NumPyro model and its data in, a coreset out.

The stages are: find the weighting π̂, draw from it, sum the log-likelihoods of *all* rows at the
draws into the target, evaluate the candidates' into atoms, solve, and measure the error on draws
that the solver did not see.
"""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jaxcoreset.constraints import Constraint
from jaxcoreset.coreset import Coreset, coreset_of_rows, whole_coreset
from jaxcoreset.embedding import centre, log_likelihood_matrix, log_likelihood_sum
from jaxcoreset.host import Clock, at_least, host_generator, peak_memory, progress_bar
from jaxcoreset.likelihood import ModelLikelihood, model_likelihood
from jaxcoreset.problem import HIGHEST, CoresetProblem
from jaxcoreset.report import Report
from jaxcoreset.solution import Solution
from jaxcoreset.solve import default_solver, sweep
from jaxcoreset.solvers.base import Solver
from jaxcoreset.solvers.hard_thresholding import AIHT2, HardThresholding
from jaxcoreset.weighting import DrawSource, Laplace, Params, Weighting

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


class CoresetBuilder:
    """Builds a coreset of a NumPyro model's data, as ``MCMC`` runs a kernel: configure, then run.

    Give either `size` or `tol`.

    Args:
        model: a NumPyro model whose observations are independent given its parameters.
        size: at most so many rows.
        tol: as few rows as bring the estimated symmetrised KL divergence, with two Monte Carlo
            standard errors on top, to at most so many nats. Sizes are tried by doubling, and the
            draws grow with them.
        weighting: how the weighting distribution π̂ is found: `Laplace` or `Draws`.
        solver: the solver; the default is that of `solve`.
        num_draws: draws of π̂ for the solver, S; four times the size and at least 500 if left out.
        constraint: a `Constraint` on the rows and weights over all n rows, such as
            ``StratifiedTopK(labels, reserved=5)`` for at least five slots of every class; or, with
            `by`, what makes one of the labels, such as ``partial(StratifiedTopK, reserved=5)``. The
            solver is then `AIHT2`, or one that takes a constraint.
        by: the name of the model's argument whose values, one per row, are the labels.
        max_size: with `tol`, the most rows that may be tried.
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
        size: int | None = None,
        tol: float | None = None,
        weighting: Weighting = Laplace(),  # noqa: B008 - frozen, like every weighting
        solver: Solver | None = None,
        num_draws: int | None = None,
        *,
        constraint: Constraint | Callable[[np.ndarray], Constraint] | None = None,
        by: str | None = None,
        max_size: int = 2000,
        num_held_out: int = 1000,
        num_candidates: int | None = None,
        data_axes: Any = None,
        plate: str | None = None,
        batch_size: int | None = None,
        progress_bar: bool = True,
    ):
        self.model = model
        if (size is None) == (tol is None):
            raise ValueError(
                f"size is {size!r} and tol is {tol!r}; wanted one of them: size=250 for at most so "
                "many rows, or tol=0.01 for an estimated KL divergence of so many nats."
            )
        if tol is not None and not tol > 0:
            raise ValueError(f"tol is {tol!r}; wanted a positive number of nats, such as 0.01.")
        self.size = None if size is None else at_least("size", size, 1)
        self.tol = tol
        self.weighting = weighting
        self.solver = AIHT2() if solver is None and constraint is not None else solver
        self.constraint = constraint
        self.by = by
        self.num_draws = None if num_draws is None else at_least("num_draws", num_draws, 2)
        self.max_size = at_least("max_size", max_size, 1)
        self.num_held_out = at_least("num_held_out", num_held_out, 2)
        self.num_candidates = (
            None if num_candidates is None else at_least("num_candidates", num_candidates, 1)
        )
        self.data_axes = data_axes
        self.plate = plate
        self.batch_size = None if batch_size is None else at_least("batch_size", batch_size, 1)
        self.progress_bar = progress_bar
        if not isinstance(weighting, Weighting):
            raise TypeError(
                f"weighting is {weighting!r}; wanted a Weighting, for instance Laplace()."
            )
        if not isinstance(solver, Solver | None):
            raise TypeError(
                f"solver is {solver!r}; wanted a Solver, for instance ExchangePursuit(), or none."
            )
        if constraint is not None and not isinstance(self.solver, HardThresholding):
            raise TypeError(
                f"solver is {type(self.solver).__name__}, which takes no constraint; wanted one "
                "that does, for instance AIHT2(), or none."
            )
        if by is not None and (constraint is None or isinstance(constraint, Constraint)):
            raise TypeError(
                f"by is {by!r}, so constraint is to be made of that argument's values; wanted a "
                "function of labels, for instance functools.partial(StratifiedTopK, reserved=5)."
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
        start_key, weighting_key, *keys = jax.random.split(key, 5)
        clock = Clock()
        with clock.stage("model"):
            likelihood = model_likelihood(
                self.model,
                args,
                kwargs,
                data_axes=self.data_axes,
                plate=self.plate,
                key=start_key,
            )
        if self.size is not None and self.size >= likelihood.num_data:
            return whole_coreset(self.model, likelihood, self.size, clock)
        constraint = self._constraint(likelihood.num_data, args, kwargs)
        with clock.stage("weighting"):
            source = self.weighting.fit(likelihood, weighting_key, show_progress=self.progress_bar)
        if self.size is not None:
            attempt = self._attempt(likelihood, source, constraint, keys, self.size, clock)
            return self._finish(likelihood, source, clock, attempt, len(attempt.sizes) - 1)
        return self._within_tolerance(likelihood, source, constraint, keys, clock)

    def _constraint(self, n: int, args: tuple, kwargs: dict[str, Any]) -> Constraint | None:
        """The constraint on all rows, made of the labels in an argument where `by` names one."""
        constraint = self.constraint
        if constraint is None or isinstance(constraint, Constraint):
            if constraint is not None:
                constraint.check(n)
            return constraint
        if self.by is None:
            raise TypeError(
                f"constraint is {constraint!r}; wanted a Constraint, or `by` with the name of the "
                "argument that it is to be made of."
            )
        given = inspect.signature(self.model).bind(*args, **kwargs).arguments
        if self.by not in given:
            raise ValueError(
                f"by is {self.by!r}; wanted the name of one of the model's arguments: "
                f"{', '.join(given)}."
            )
        values = np.asarray(given[self.by])
        if values.shape != (n,):
            raise ValueError(
                f"by names {self.by!r}, whose shape is {values.shape}; wanted ({n},), one label "
                "for each row."
            )
        return constraint(np.unique(values, return_inverse=True)[1])

    def _within_tolerance(
        self,
        likelihood: ModelLikelihood,
        source: DrawSource,
        constraint: Constraint | None,
        keys: Sequence[PRNGKeyArray],
        clock: Clock,
    ) -> Coreset:
        """The smallest size on the path that keeps to `tol`, sizes doubling until there is one."""
        assert self.tol is not None
        n = likelihood.num_data
        num_params = sum(np.size(value) for value in likelihood.init_params.values())
        # A posterior that is nearly Gaussian needs about one row per coefficient of a quadratic.
        size = int(np.clip(num_params * (num_params + 3) // 2, _FIRST_SIZE, _LARGEST_FIRST_SIZE))
        while True:
            size = min(size, self.max_size, n)
            attempt = self._attempt(likelihood, source, constraint, keys, size, clock)
            upper = attempt.curve["kl"] + 2 * attempt.curve["kl_standard_error"]
            within = np.flatnonzero(upper <= self.tol)
            if within.size:
                return self._finish(likelihood, source, clock, attempt, int(within[0]))
            if size == n:
                return whole_coreset(self.model, likelihood, n, clock)
            if size == self.max_size:
                raise ValueError(
                    f"tol is {self.tol} nats, but with max_size = {size} rows of {n} the estimated "
                    f"KL divergence is still {upper.min():.3g} nats, its error included; wanted "
                    "less. Raise max_size, or tol, or num_candidates."
                )
            size *= 2

    def _attempt(
        self,
        likelihood: ModelLikelihood,
        source: DrawSource,
        constraint: Constraint | None,
        keys: Sequence[PRNGKeyArray],
        size: int,
        clock: Clock,
    ) -> "_Attempt":
        """Embed, solve up to `size`, and measure the error on draws that the solver did not see."""
        draws_key, rows_key, solver_key = keys
        rows = self._candidates(rows_key, likelihood.num_data, size, constraint)
        num_candidates = likelihood.num_data if rows is None else len(rows)
        solver = self.solver or default_solver(num_candidates, size)
        if constraint is not None and isinstance(solver, HardThresholding):
            solver = dataclasses.replace(
                solver, constraint=constraint if rows is None else constraint.take(rows)
            )
        with clock.stage("embedding"):
            seen, held_out = self._embed(likelihood, source, draws_key, rows, size)
        with clock.stage("solve"):
            sizes = self._sizes(size)
            path = sweep(seen, sizes, solver, solver_key if solver.needs_key else None)
            jax.block_until_ready(path)
        with clock.stage("held-out error"):
            curve = {"size": sizes, **_errors(path, held_out)}
        return _Attempt(sizes, rows, path, curve, seen.num_data, seen.num_draws, held_out.num_draws)

    def _sizes(self, size: int) -> np.ndarray:
        """The sizes to solve for, `size` last; smaller ones where they come with it."""
        has_path = self.solver is None or self.solver.has_path
        if self.tol is not None and has_path:
            return np.arange(1, size + 1)
        if self.tol is not None or has_path:
            return np.unique(np.geomspace(1, size, _CURVE_POINTS).round().astype(int))
        return np.array([size])

    def _candidates(
        self, key: PRNGKeyArray, n: int, size: int, constraint: Constraint | None
    ) -> np.ndarray | None:
        """The candidate rows in increasing order; None stands for all."""
        wanted = self.num_candidates
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
        generator = host_generator(key)
        rows = generator.choice(n, wanted, replace=False)
        labels = getattr(constraint, "groups", None)
        if labels is not None:
            rows = np.union1d(rows, _some_of_each(np.asarray(labels), generator))
        return np.sort(rows)

    def _embed(
        self,
        likelihood: ModelLikelihood,
        source: DrawSource,
        key: PRNGKeyArray,
        rows: np.ndarray | None,
        size: int,
    ) -> tuple[CoresetProblem, CoresetProblem]:
        """The candidates' problems under the solver's draws and under the held-out draws."""
        num_draws = self.num_draws or max(_MIN_DRAWS, _DRAWS_PER_ROW * size)
        seen, held_out = source.split(key, num_draws, self.num_held_out)
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

    def _finish(
        self,
        likelihood: ModelLikelihood,
        source: DrawSource,
        clock: Clock,
        attempt: "_Attempt",
        at: int,
    ) -> Coreset:
        """The coreset of the solution at one place of the path."""
        path, curve = attempt.path, attempt.curve
        weights = np.asarray(path.weights[at])
        chosen = np.asarray(path.indices[at], np.int64)[weights > 0]
        indices = chosen if attempt.rows is None else attempt.rows[chosen]
        weights = weights[weights > 0]
        if not weights.size:
            raise ValueError(
                "the solver chose no rows: no candidate's log-likelihood goes along with the sum "
                "over all rows. Give more candidates (num_candidates) or other draws (weighting)."
            )
        report = Report(
            num_data=likelihood.num_data,
            size=int(attempt.sizes[at]),
            num_used=weights.size,
            num_candidates=attempt.num_candidates,
            num_draws=attempt.num_draws,
            num_held_out=attempt.num_held_out,
            relative_error=float(path.relative_error[at]),
            held_out_error=float(curve["held_out_error"][at]),
            kl=float(curve["kl"][at]),
            kl_standard_error=float(curve["kl_standard_error"][at]),
            solver=path.solver,
            converged=bool(path.converged[at]),
            weighting=type(self.weighting).__name__,
            curve=curve,
            seconds=clock.seconds,
            peak_memory=peak_memory(),
        )
        return coreset_of_rows(
            self.model, likelihood, indices, weights, report, source.approximation
        )


@dataclass(frozen=True)
class _Attempt:
    """Solutions along a path of sizes, and how good each is."""

    sizes: np.ndarray
    rows: np.ndarray | None
    path: Solution
    curve: dict[str, np.ndarray]
    num_candidates: int
    num_draws: int
    num_held_out: int


def _errors(path: Solution, held_out: CoresetProblem) -> dict[str, np.ndarray]:
    """The errors along a path of solutions, on the solver's draws and on the held-out ones."""

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


def _some_of_each(labels: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Random rows of every group, so that a rare one has candidates too."""
    order = np.lexsort((generator.random(labels.size), labels))
    first = np.searchsorted(labels[order], labels[order])
    return order[np.arange(labels.size) - first < _CANDIDATES_PER_GROUP]


def _leading(params: Params) -> int:
    return next(iter(params.values())).shape[0]
