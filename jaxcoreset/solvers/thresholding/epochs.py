"""The loop of the stochastic solvers: epochs of batches, the best iterate, the stopping rule."""

import abc
import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxcoreset.solvers.arguments import as_integer, check_that
from jaxcoreset.solvers.base import Solver
from jaxcoreset.solvers.numerics import tree_where
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solution import History, Solution, make_solution
from jaxcoreset.solvers.thresholding.batches import Batch, draw_batch
from jaxcoreset.solvers.thresholding.hard import Iterate, Task, zero_iterate


class _Progress(eqx.Module):
    method: Any
    best: Iterate
    objective: Float[Array, ""]
    reference: Float[Array, ""]
    idle_epochs: Int[Array, ""]
    num_iters: Int[Array, ""]
    epoch: Int[Array, ""]
    stopped: Bool[Array, ""]
    history: History


class Stochastic(Solver):
    """The loop that the stochastic solvers share: epochs of batches; it returns the best iterate.

    The objective of every iterate is known exactly, from the rows of its support, so that the best
    iterate can be returned. The run ends after `max_iters` batches, or when the best objective has
    decreased by at most `tol` times itself in each of `patience` epochs in a row. A key is needed;
    the batches do not depend on k or its static bound.

    Args:
        batch_size: a fraction of the rows in (0, 1], or a number of rows as an integer. With
            `reshuffle` this is the maximum size, and the batches of an epoch have nearly equal
            sizes.
        reshuffle: whether the batches of an epoch are the parts of one random order, so that an
            epoch reads every row once. Otherwise each batch is drawn independently, without
            replacement, which costs n random numbers per batch.
        patience: the number of epochs in a row without a decrease after which the run ends.

    Raises:
        TypeError: if `batch_size` is not a number.
        ValueError: if `batch_size` or `patience` is out of range; from `check`, if a batch is
            larger than n.
    """

    needs_key: ClassVar[bool] = True

    batch_size: float | int = eqx.field(default=0.2, static=True, kw_only=True)
    reshuffle: bool = eqx.field(default=True, static=True, kw_only=True)
    patience: int = eqx.field(default=10, kw_only=True)

    def __check_init__(self) -> None:
        size = self.batch_size
        if isinstance(size, bool) or not isinstance(size, int | float | np.integer | np.floating):
            raise TypeError(
                f"batch_size is {size!r}; expected a fraction of the rows, or an integer."
            )
        if self._is_fraction:
            fraction = "a fraction in (0, 1], or an integer for a number of rows"
            check_that(0 < size <= 1, "batch_size", size, fraction)
        else:
            check_that(size >= 1, "batch_size", size, "at least one row")
        as_integer("patience", self.patience, 1)

    @property
    def _is_fraction(self) -> bool:
        return isinstance(self.batch_size, float | np.floating)

    @property
    @abc.abstractmethod
    def limits(self) -> Any:
        """The solver whose `constraint`, `max_iters` (of batches), `tol` and so on hold."""

    def check(self, problem: CoresetProblem) -> None:
        """Raise a ValueError if a batch is larger than n; see `Solver.check`."""
        n = problem.num_data
        if not self._is_fraction and self.batch_size > n:
            raise ValueError(
                f"batch_size is {self.batch_size}, but the problem has n = {n} atoms; expected at "
                f"most n, or a fraction such as 0.2."
            )

    def num_rows(self, n: int) -> int:
        """The maximum number of rows in a batch of a problem with n atoms."""
        if self._is_fraction:
            return max(1, round(float(self.batch_size) * n))
        return int(self.batch_size)

    def num_batches(self, n: int) -> int:
        """The number of batches in an epoch."""
        return -(-n // self.num_rows(n))

    def shuffle(self, key: PRNGKeyArray, n: int) -> Int[Array, " n"]:
        """The order of the rows in an epoch; not used if batches are independent."""
        if self.reshuffle:
            return jax.random.permutation(key, n).astype(jnp.int32)
        return jnp.arange(n, dtype=jnp.int32)

    def draw(self, key: PRNGKeyArray, order: Int[Array, " n"], position: Int[Array, ""]) -> Batch:
        """One batch of an epoch.

        Args:
            key: the batch's key, for independent batches.
            order: the epoch's order, from `shuffle`.
            position: the number of the batch in the epoch, from 0 to `num_batches` − 1.
        """
        n = order.shape[0]
        if not self.reshuffle:
            return draw_batch(key, n, self.num_rows(n))
        least, more = divmod(n, self.num_batches(n))
        slots = jnp.arange(least + (more > 0))
        start = position * least + jnp.minimum(position, more)
        rows = order[jnp.minimum(start + slots, n - 1)]
        return Batch(rows, slots < least + (position < more))

    @abc.abstractmethod
    def _start(self, task: Task, nothing: Iterate) -> Any:
        """The method's state at w = 0."""

    def _begin_epoch(self, problem: CoresetProblem, state: Any) -> Any:
        """The method's state at the beginning of an epoch."""
        return state

    @abc.abstractmethod
    def _advance(self, task: Task, state: Any, batch: Batch, key: PRNGKeyArray) -> Any:
        """The method's state after one batch; its ``current`` is the new iterate."""

    def run(
        self, problem: CoresetProblem, k: Int[Array, ""], max_k: int, key: PRNGKeyArray | None
    ) -> Solution:
        """Iterate over batches, from w = 0; see `Solver.run`."""
        assert key is not None
        dtype, limits = problem.target.dtype, self.limits
        task, nothing = Task.of(problem, k, max_k), zero_iterate(problem, max_k)
        infinity, zero = jnp.asarray(jnp.inf, dtype), jnp.zeros((), jnp.int32)
        progress = _Progress(
            method=self._start(task, nothing),
            best=nothing,
            objective=infinity,
            reference=infinity,
            idle_epochs=zero,
            num_iters=zero,
            epoch=zero,
            stopped=jnp.zeros((), bool),
            history=History.empty(limits, dtype),
        )
        progress = jax.lax.while_loop(
            lambda p: ~p.stopped & (p.num_iters < limits.max_iters),
            lambda p: self._epoch(task, p, key),
            progress,
        )
        objective = progress.best.objective(problem)
        return make_solution(
            problem,
            progress.best.weights.indices,
            progress.best.weights.values,
            objective,
            progress.num_iters,
            progress.stopped & jnp.isfinite(progress.objective),
            history=progress.history.filled(progress.num_iters, objective),
        )

    def _epoch(self, task: Task, progress: _Progress, key: PRNGKeyArray) -> _Progress:
        problem, limits = task.problem, self.limits
        n = problem.num_data
        epoch_key = jax.random.fold_in(key, progress.epoch)
        num_batches = self.num_batches(n)
        order = self.shuffle(jax.random.fold_in(epoch_key, num_batches), n)

        def one_batch(carry: tuple[Array, _Progress]) -> tuple[Array, _Progress]:
            position, progress = carry
            batch_key, method_key = jax.random.split(jax.random.fold_in(epoch_key, position))
            batch = self.draw(batch_key, order, position)
            method = self._advance(task, progress.method, batch, method_key)
            objective = method.current.objective(problem)
            if not limits.constraint.holds_zero:
                # A batch of atoms of norm zero leaves no weights, which are not in the set.
                some = jnp.any(method.current.weights.values > 0)
                objective = jnp.where(some, objective, jnp.inf)
            better = objective < progress.objective
            best, objective = tree_where(
                better, (method.current, objective), (progress.best, progress.objective)
            )
            return position + 1, dataclasses.replace(
                progress,
                method=method,
                best=best,
                objective=objective,
                num_iters=progress.num_iters + 1,
                history=progress.history.record(progress.num_iters, objective),
            )

        begun = dataclasses.replace(progress, method=self._begin_epoch(problem, progress.method))
        _, done = jax.lax.while_loop(
            lambda carry: (carry[0] < num_batches) & (carry[1].num_iters < limits.max_iters),
            one_batch,
            (jnp.zeros((), jnp.int32), begun),
        )
        fell = done.objective < (1 - limits.tol) * done.reference
        idle = jnp.where(fell, 0, done.idle_epochs + 1)
        return dataclasses.replace(
            done,
            reference=jnp.where(fell, done.objective, done.reference),
            idle_epochs=idle,
            epoch=done.epoch + 1,
            stopped=idle >= self.patience,
        )
