"""Hard thresholding whose iterations read a batch of the atoms, not all of them.

Appendix G of Zhang, Khanna, Kyrillidis and Koyejo, "Bayesian coresets: revisiting the nonconvex
optimization perspective" (AISTATS 2021), replaces ∇f(w) = 2Φᵀ(Φw − y) by the unbiased estimate
g̃(w) = 2 Γ₁ᵀΦᵀ(ΦΓ₂w − y), where Γ keeps B of n rows, scaled by n/B, and asks for a better one. The
target y is a sum over all rows and known exactly. Here the rows of a batch are gathered, so that an
iteration costs what they cost: at most B + 2k rows, where k is the bound on the support.

As w has at most k entries, Φw is known exactly for the price of k rows, so Γ₂ = I is free, and then
so are the gradient's entries on the support and the exact line search, momentum and objective. What
is left to choose is Γ₁. `Estimator` names the choices:

| name | Γ₁ on the batch | Γ₁ on the support | Γ₂ | unbiased |
| --- | --- | --- | --- | --- |
| "double" | n/B | 0 where not in the batch | a batch of its own | yes |
| "batch" | n/B | 0 where not in the batch | I | yes |
| "support" | n/B | 1 | I | yes, with less variance than "batch" |
| "pool" | 1 | 1 | I | no: on the rows read it is the gradient itself |

An estimate scaled by n/B is right on average, but a hard threshold does not average: it lets rows
in because the batch drew them, not because they are good. With "pool" an iteration is one of the
full method on a smaller problem, that of the rows in the batch or the support, whose gradient is
exact, and every solution of it is one of the whole. ``benchmarks/stochastic.py`` compares them.
"""

import abc
import dataclasses
import operator
from typing import Any, Literal, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxcoreset.constraints import Constraint, GroupTopK, SimplexTopK, Sparse, StratifiedTopK, TopK
from jaxcoreset.problem import HIGHEST, CoresetProblem
from jaxcoreset.solution import Solution, make_solution
from jaxcoreset.solvers.base import Solver
from jaxcoreset.solvers.hard_thresholding import AIHT2, IHT, HardThresholding, Iterate

Estimator = Literal["double", "batch", "support", "pool"]


class Batch(eqx.Module):
    """Distinct rows drawn at random; slots that are not `present` count for nothing."""

    rows: Int[Array, " b"]
    present: Bool[Array, " b"]


class _Pool(eqx.Module):
    """The rows that an iteration reads, in increasing order, each once; others are not `present`.

    Its atoms are those of a problem of its own, zero in rows that are not present.
    """

    rows: Int[Array, " p"]
    present: Bool[Array, " p"]
    in_batch: Bool[Array, " p"]
    problem: CoresetProblem

    def locate(self, indices: Int[Array, " m"]) -> Int[Array, " m"]:
        """Positions in the pool of rows that are in it; any position for others."""
        found = jnp.searchsorted(self.rows, indices)
        return jnp.minimum(found, self.rows.shape[0] - 1).astype(jnp.int32)


class _Limits(NamedTuple):
    max_iters: int
    tol: float
    record_history: bool


class _Accelerated(eqx.Module):
    """What a hard-thresholding solver carries from iteration to iteration."""

    current: Iterate
    previous: Iterate
    momentum: Float[Array, ""]


class _Progress(eqx.Module):
    method: Any
    best: Iterate
    objective: Float[Array, ""]
    reference: Float[Array, ""]
    idle_epochs: Int[Array, ""]
    num_iters: Int[Array, ""]
    epoch: Int[Array, ""]
    stopped: Bool[Array, ""]
    history: Float[Array, " t"]


class Stochastic(Solver):
    """The loop that the stochastic solvers share: epochs of batches, and the best iterate kept.

    The objective of every iterate is known exactly, from the at most k rows of its support, so
    what is returned is the best iterate seen. The run ends after `max_iters` batches, or when the
    best objective has fallen by no more than `tol` times itself in each of `patience` epochs in a
    row. Needs a key; the batches do not depend on k or its static bound.

    Args:
        batch_size: a fraction of the rows in (0, 1], or a number of rows as an integer. With
            `reshuffle` the batches of an epoch are as equal as can be and none is larger.
        reshuffle: whether the batches of an epoch are the parts of one random order, so that an
            epoch reads every row once. Otherwise each batch is drawn on its own, without
            replacement, at the price of n random numbers per batch.
        patience: so many epochs in a row without a fall end the run.

    Raises:
        TypeError: if `batch_size` is not a number.
        ValueError: if `batch_size` or `patience` is out of range; from `check`, if a batch is
            larger than n.
    """

    batch_size: float | int = eqx.field(default=0.2, static=True, kw_only=True)
    reshuffle: bool = eqx.field(default=True, static=True, kw_only=True)
    patience: int = eqx.field(default=10, kw_only=True)

    def __check_init__(self) -> None:
        size = self.batch_size
        if isinstance(size, bool) or not isinstance(size, int | float | np.integer | np.floating):
            raise TypeError(
                f"batch_size is {size!r}; wanted a fraction of the rows or a whole number of rows."
            )
        if isinstance(size, int | np.integer):
            if size < 1:
                raise ValueError(f"batch_size is {size}; wanted at least one row.")
        elif not 0 < size <= 1:
            raise ValueError(
                f"batch_size is {size}; wanted a fraction in (0, 1], or an integer for a number of "
                "rows."
            )
        if self.patience < 1:
            raise ValueError(f"patience is {self.patience}; wanted at least 1 epoch.")

    @property
    def needs_key(self) -> bool:
        """True: the batches are drawn at random."""
        return True

    @property
    @abc.abstractmethod
    def limits(self) -> _Limits:
        """The limit on batches, the tolerance, and whether a history is wanted."""

    def check(self, problem: CoresetProblem) -> None:
        """Raise a ValueError if a batch is larger than n; see `Solver.check`."""
        n = problem.num_data
        if not isinstance(self.batch_size, float | np.floating) and self.batch_size > n:
            raise ValueError(
                f"batch_size is {self.batch_size}, but the problem has n = {n} atoms; wanted at "
                f"most n, or a fraction such as 0.2."
            )

    def num_rows(self, n: int) -> int:
        """The most rows in a batch of a problem with n atoms."""
        if isinstance(self.batch_size, float | np.floating):
            return max(1, round(float(self.batch_size) * n))
        return operator.index(self.batch_size)

    def num_batches(self, n: int) -> int:
        """The number of batches in an epoch."""
        return -(-n // self.num_rows(n))

    def shuffle(self, key: PRNGKeyArray, n: int) -> Int[Array, " n"]:
        """The order of the rows in an epoch; without meaning where batches are independent."""
        if self.reshuffle:
            return jax.random.permutation(key, n).astype(jnp.int32)
        return jnp.arange(n, dtype=jnp.int32)

    def draw(self, key: PRNGKeyArray, order: Int[Array, " n"], position: Int[Array, ""]) -> Batch:
        """One batch of an epoch.

        Args:
            key: of this batch, for independent batches.
            order: of the epoch, from `shuffle`.
            position: which batch of the epoch, from 0 to `num_batches` − 1.
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
    def _start(self, problem: CoresetProblem, nothing: Iterate) -> Any:
        """The method's state at w = 0."""

    def _begin_epoch(self, problem: CoresetProblem, state: Any) -> Any:
        """The method's state as an epoch begins."""
        return state

    @abc.abstractmethod
    def _advance(
        self,
        problem: CoresetProblem,
        k: Int[Array, ""],
        max_k: int,
        state: Any,
        batch: Batch,
        key: PRNGKeyArray,
    ) -> Any:
        """The method's state after one batch; its ``current`` is the new iterate."""

    def run(
        self,
        problem: CoresetProblem,
        k: Int[Array, ""],
        max_k: int,
        key: PRNGKeyArray | None = None,
    ) -> Solution:
        """Go from batch to batch, from w = 0; see `Solver.run`.

        Raises:
            ValueError: if `key` is missing, or the solver does not fit the problem.
        """
        self.check(problem)
        if key is None:
            raise ValueError("key is missing; batches are drawn at random: jax.random.key(seed).")
        dtype, limits = problem.target.dtype, self.limits
        nothing = _nothing(problem, max_k)
        infinity, zero = jnp.asarray(jnp.inf, dtype), jnp.zeros((), jnp.int32)
        progress = _Progress(
            method=self._start(problem, nothing),
            best=nothing,
            objective=infinity,
            reference=infinity,
            idle_epochs=zero,
            num_iters=zero,
            epoch=zero,
            stopped=jnp.zeros((), bool),
            history=jnp.zeros(limits.max_iters if limits.record_history else 0, dtype),
        )
        progress = jax.lax.while_loop(
            lambda p: ~p.stopped & (p.num_iters < limits.max_iters),
            lambda p: self._epoch(problem, k, max_k, p, key),
            progress,
        )
        objective = _objective(problem, progress.best)
        history = None
        if limits.record_history:
            done = jnp.arange(limits.max_iters) < progress.num_iters
            history = jnp.where(done, progress.history, objective)
        return make_solution(
            problem,
            progress.best.weights.indices,
            progress.best.weights.values,
            objective,
            progress.num_iters,
            progress.stopped & jnp.isfinite(progress.objective),
            solver=type(self).__name__,
            history=history,
        )

    def _epoch(
        self,
        problem: CoresetProblem,
        k: Int[Array, ""],
        max_k: int,
        progress: _Progress,
        key: PRNGKeyArray,
    ) -> _Progress:
        n, limits = problem.num_data, self.limits
        epoch_key = jax.random.fold_in(key, progress.epoch)
        num_batches = self.num_batches(n)
        order = self.shuffle(jax.random.fold_in(epoch_key, num_batches), n)

        def one_batch(carry: tuple[Array, _Progress]) -> tuple[Array, _Progress]:
            position, progress = carry
            batch_key, method_key = jax.random.split(jax.random.fold_in(epoch_key, position))
            batch = self.draw(batch_key, order, position)
            method = self._advance(problem, k, max_k, progress.method, batch, method_key)
            objective = _objective(problem, method.current)
            better = objective < progress.objective
            best, objective = jax.tree.map(
                lambda new, old: jnp.where(better, new, old),
                (method.current, objective),
                (progress.best, progress.objective),
            )
            history = progress.history
            if limits.record_history:
                history = history.at[progress.num_iters].set(objective)
            return position + 1, dataclasses.replace(
                progress,
                method=method,
                best=best,
                objective=objective,
                num_iters=progress.num_iters + 1,
                history=history,
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


class StochasticAIHT(Stochastic):
    """IHT, A-IHT or A-IHT II with a batch of the rows in place of all of them.

    Appendix G of Zhang et al. (2021) with rows that are really gathered; see the module for the
    estimators. Nothing of length n is touched in an iteration but, at most, the random numbers: the
    step is zero outside the batch and the support of z = w_t + τ(w_t − w_{t−1}), so the projection
    looks at those rows alone. The step along the estimate is the exact minimiser of f along it on
    the expanded support, which for the whole gradient is ‖g‖²/‖Φg‖² again.

    With ``batch_size=1.0`` nothing is random and the run is that of `base`, whose last iterate it
    returns. For the same number of rows read, batches reached a lower objective than all rows on
    all four problems measured (``benchmarks/stochastic.py``), and smaller ones with `normalise` the
    lowest, until 2k is what an iteration reads. ‖y − Φw‖/‖y‖ after 60 n rows at n = 5000, k = 100:
    0.44 for `AIHT2`, 0.25 with ``batch_size=0.2``, 0.022 with ``batch_size=0.02, normalise=True``.

    Args:
        base: `IHT`, `AIHT` or `AIHT2` with their hyperparameters. Its `max_iters` counts batches,
            its `tol` is the least relative fall of the best objective within `patience` epochs, and
            its history holds the best objective so far.
        estimator: "pool", "support", "batch" or "double"; see the module.
        normalise: whether to take the steps and compare the entries in units in which every atom
            has norm one: a diagonal preconditioner, and a threshold that keeps the largest w_i‖φ_i‖
            and not the largest w_i. Not with a constraint on the sum of the weights.
        steps_per_batch: so many iterations of `base` are made on each batch. One reads the rows,
            all use them, so more pay where reading is slow. They count as one iteration. Only with
            the estimator "pool".
        batch_size: see `Stochastic`.
        reshuffle: see `Stochastic`.
        patience: see `Stochastic`.

    Raises:
        TypeError: if `base` is something else, or its constraint is not one of jaxcoreset's.
        ValueError: if a field is out of range or two do not go together.
    """

    base: HardThresholding = AIHT2(max_iters=1000)
    estimator: Estimator = eqx.field(default="pool", static=True)
    normalise: bool = eqx.field(default=False, static=True)
    steps_per_batch: int = eqx.field(default=1, static=True)

    def __check_init__(self) -> None:
        _check_base(self.base)
        _check_estimator(self.estimator, get_args(Estimator))
        if self.steps_per_batch < 1:
            raise ValueError(f"steps_per_batch is {self.steps_per_batch}; wanted at least 1.")
        if self.steps_per_batch > 1 and self.estimator != "pool":
            raise ValueError(
                f'steps_per_batch is {self.steps_per_batch} with estimator "{self.estimator}"; '
                'wanted 1, or the estimator "pool": one batch\'s noise would add up.'
            )
        if not isinstance(self.base.constraint, TopK | SimplexTopK | GroupTopK | StratifiedTopK):
            raise TypeError(
                f"base.constraint is a {type(self.base.constraint).__name__}, of which it is not "
                "known how to restrict it to the rows of a batch; wanted one of jaxcoreset's own. "
                "SVRGIHT and ProjectedOptax take any."
            )
        if self.normalise and isinstance(self.base.constraint, SimplexTopK):
            raise ValueError(
                "normalise is True with a SimplexTopK constraint, whose projection is only right "
                "in the weights' own units; wanted normalise=False."
            )

    @property
    def limits(self) -> _Limits:
        """Those of `base`."""
        return _Limits(self.base.max_iters, self.base.tol, self.base.record_history)

    def check(self, problem: CoresetProblem) -> None:
        """Raise a ValueError if the batch or the constraint does not fit; see `Solver.check`."""
        super().check(problem)
        self.base.check(problem)

    def run(
        self,
        problem: CoresetProblem,
        k: Int[Array, ""],
        max_k: int,
        key: PRNGKeyArray | None = None,
    ) -> Solution:
        """See `Stochastic.run`."""
        self.check(problem)
        plain = not self.normalise and self.steps_per_batch == 1
        if plain and self.num_rows(problem.num_data) == problem.num_data:
            solution = self.base.run(problem, k, max_k, key)
            return dataclasses.replace(solution, solver=type(self).__name__)
        return super().run(problem, k, max_k, key)

    def _start(self, problem: CoresetProblem, nothing: Iterate) -> _Accelerated:
        return _Accelerated(nothing, nothing, jnp.zeros((), problem.target.dtype))

    def _advance(
        self,
        problem: CoresetProblem,
        k: Int[Array, ""],
        max_k: int,
        state: _Accelerated,
        batch: Batch,
        key: PRNGKeyArray,
    ) -> _Accelerated:
        n = problem.num_data
        pool = _read(problem, batch, state.current.weights, state.previous.weights)
        norms = jnp.sqrt(pool.problem.squared_norms())
        usable = norms > 0
        # The pool as a problem in its own units: its atoms over `unit`, its weights times `unit`.
        unit = jnp.where(usable & self.normalise, norms, 1)
        local = eqx.tree_at(lambda p: p.atoms, pool.problem, pool.problem.atoms / unit[:, None])
        base = eqx.tree_at(
            lambda b: b.constraint, self.base, _restrict(self.base.constraint, pool.rows, n)
        )
        in_image_batch = None
        if self.estimator == "double":
            in_image_batch = _second_batch(key, n, batch)[pool.rows]

        def localise(iterate: Iterate) -> Iterate:
            at = pool.locate(iterate.weights.indices)
            return Iterate(Sparse(at, iterate.weights.values * unit[at]), iterate.image)

        def globalise(iterate: Iterate) -> Iterate:
            at = iterate.weights.indices
            values = iterate.weights.values / unit[at]
            return Iterate(Sparse(pool.rows[at], values), iterate.image)

        def step(_: int | Array, state: _Accelerated) -> _Accelerated:
            z, z_image = _extrapolate(state, pool.rows.shape[0])
            gradient = estimate_correlations(
                local,
                z,
                local.target - z_image,
                pool.in_batch,
                n,
                self.estimator,
                in_image_batch,
            )
            # Rows of w_{t-1} that are neither in the batch nor in z are no part of the step.
            taking_part = usable & (pool.in_batch | (z != 0))
            if self.steps_per_batch > 1:
                taking_part = usable
            gradient = jnp.where(taking_part, gradient, 0)
            return _move(base, local, taking_part, k, max_k, state, gradient)

        start = _Accelerated(localise(state.current), localise(state.previous), state.momentum)
        end = step(0, start)
        if self.steps_per_batch > 1:
            end = jax.lax.fori_loop(1, self.steps_per_batch, step, end)
        return _Accelerated(globalise(end.current), globalise(end.previous), end.momentum)


class _Reduced(eqx.Module):
    current: Iterate
    previous: Iterate
    momentum: Float[Array, ""]
    snapshot_image: Float[Array, " s"]
    snapshot_scores: Float[Array, " n"]
    usable: Bool[Array, " n"]


class SVRGIHT(Stochastic):
    """Variance-reduced hard thresholding: the full gradient once per epoch, then control variates.

    SVRG-HT of Li, Zhao, Arora, Liu and Haupt, "Stochastic variance reduced optimization for
    nonconvex sparse learning" (ICML 2016), which adds a control variate to the stochastic iterative
    hard thresholding of Nguyen, Needell and Woolf, "Linear convergence of stochastic iterative
    greedy algorithms with sparse constraints" (arXiv 1407.0088, 2014). Both sample observations,
    which here are draws; as in appendix G of Zhang et al. (2021) a batch here is of coordinates of
    the gradient, which are atoms. With w̃ the snapshot's weights,

        v = ∇f(w̃) + Γ₁ᵀ(∇f(w) − ∇f(w̃)) = ∇f(w̃) + 2Γ₁ᵀΦᵀΦ(w − w̃),

    unbiased where Γ₁ is, and exact at the snapshot. It is not sparse, so an iteration ranks n
    numbers and may let in any row; it reads B + 2k rows for v and up to 2k new ones for the step,
    and an epoch reads n rows more. Steps, momentum and de-bias step are those of `base`, with the
    exact minimiser along v.

    Args:
        base: see `StochasticAIHT`.
        estimator: "support" (the default), "batch" or "pool", for Γ₁ as in the module's table.
        batch_size: see `Stochastic`.
        reshuffle: see `Stochastic`.
        patience: see `Stochastic`.

    Raises:
        TypeError: if `base` is something else.
        ValueError: if a field is out of range.
    """

    base: HardThresholding = AIHT2(max_iters=1000)
    estimator: Literal["batch", "support", "pool"] = eqx.field(default="support", static=True)

    def __check_init__(self) -> None:
        _check_base(self.base)
        _check_estimator(self.estimator, ("batch", "support", "pool"))

    @property
    def limits(self) -> _Limits:
        """Those of `base`."""
        return _Limits(self.base.max_iters, self.base.tol, self.base.record_history)

    def check(self, problem: CoresetProblem) -> None:
        """Raise a ValueError if the batch or the constraint does not fit; see `Solver.check`."""
        super().check(problem)
        self.base.check(problem)

    def _start(self, problem: CoresetProblem, nothing: Iterate) -> _Reduced:
        dtype = problem.target.dtype
        return _Reduced(
            nothing,
            nothing,
            jnp.zeros((), dtype),
            snapshot_image=nothing.image,
            snapshot_scores=jnp.zeros(problem.num_data, dtype),
            usable=problem.squared_norms() > 0,
        )

    def _begin_epoch(self, problem: CoresetProblem, state: _Reduced) -> _Reduced:
        image = state.current.image
        return dataclasses.replace(
            state,
            snapshot_image=image,
            snapshot_scores=problem.correlate(problem.target - image),
        )

    def estimate(self, problem: CoresetProblem, state: Any, batch: Batch) -> Float[Array, " n"]:
        """The estimate of Φᵀr at z, from the snapshot's scores and a batch."""
        n = problem.num_data
        z, z_image = _extrapolate(state, n)
        pool = _read(problem, batch, state.current.weights, state.previous.weights)
        change = estimate_correlations(
            pool.problem,
            z[pool.rows],
            state.snapshot_image - z_image,
            pool.in_batch,
            n,
            self.estimator,
        )
        return state.snapshot_scores.at[pool.rows].add(change)

    def _advance(
        self,
        problem: CoresetProblem,
        k: Int[Array, ""],
        max_k: int,
        state: _Reduced,
        batch: Batch,
        key: PRNGKeyArray,
    ) -> _Reduced:
        gradient = self.estimate(problem, state, batch)
        inner = _Accelerated(state.current, state.previous, state.momentum)
        inner = _move(self.base, problem, state.usable, k, max_k, inner, gradient)
        return dataclasses.replace(
            state, current=inner.current, previous=inner.previous, momentum=inner.momentum
        )


class _Projected(eqx.Module):
    current: Iterate
    optimizer_state: Any
    usable: Bool[Array, " n"]


class ProjectedOptax(Stochastic):
    """Any `optax` step along the estimated gradient, then the projection: w ← Π(w + update).

    The optimizer sees the estimate of ∇f(w) = −2Φᵀr as a vector of length n, zero outside the batch
    and the support, and keeps what state it likes. Its learning rate is not tuned here. For plain
    gradient descent it must be below 1/‖Φ‖²; a rate for Adam is about the change of a weight
    per iteration, and weights are about n/k. The threshold takes back what did not make it into the
    k largest, so that steps too small to overtake a weight leave the support as it is.

    Args:
        optimizer: an `optax.GradientTransformation`, for instance ``optax.adam(1.0)``.
        estimator: "pool" (the default), "support", "batch" or "double"; see the module.
        constraint: the set that iterates are projected onto.
        tol: the least relative fall of the best objective that counts; see `Stochastic`.
        max_iters: at most so many batches.
        record_history: whether the solution carries the best objective after every batch.
        batch_size: see `Stochastic`.
        reshuffle: see `Stochastic`.
        patience: see `Stochastic`.

    Raises:
        TypeError: if `optimizer` is something else.
        ValueError: if a field is out of range.
    """

    optimizer: optax.GradientTransformation = eqx.field(static=True)
    estimator: Estimator = eqx.field(default="pool", static=True)
    constraint: Constraint = TopK()
    tol: float = 1e-5
    max_iters: int = 1000
    record_history: bool = False

    def __check_init__(self) -> None:
        if not isinstance(self.optimizer, optax.GradientTransformation):
            raise TypeError(
                f"optimizer is {self.optimizer!r}; wanted an optax.GradientTransformation, for "
                "instance optax.adam(1.0)."
            )
        _check_estimator(self.estimator, get_args(Estimator))
        if self.max_iters < 1:
            raise ValueError(f"max_iters is {self.max_iters}; wanted at least 1.")
        if not self.tol >= 0:
            raise ValueError(f"tol is {self.tol}; wanted a number that is not negative.")

    @property
    def limits(self) -> _Limits:
        """Its own."""
        return _Limits(self.max_iters, self.tol, self.record_history)

    def check(self, problem: CoresetProblem) -> None:
        """Raise a ValueError if the batch or the constraint does not fit; see `Solver.check`."""
        super().check(problem)
        self.constraint.check(problem.num_data)

    def _start(self, problem: CoresetProblem, nothing: Iterate) -> _Projected:
        zeros = jnp.zeros(problem.num_data, problem.target.dtype)
        return _Projected(nothing, self.optimizer.init(zeros), problem.squared_norms() > 0)

    def _advance(
        self,
        problem: CoresetProblem,
        k: Int[Array, ""],
        max_k: int,
        state: _Projected,
        batch: Batch,
        key: PRNGKeyArray,
    ) -> _Projected:
        n, current = problem.num_data, state.current
        pool = _read(problem, batch, current.weights, current.weights)
        w = _dense(current.weights, n)
        in_image_batch = None
        if self.estimator == "double":
            in_image_batch = _second_batch(key, n, batch)[pool.rows]
        scores = estimate_correlations(
            pool.problem,
            w[pool.rows],
            problem.target - current.image,
            pool.in_batch,
            n,
            self.estimator,
            in_image_batch,
        )
        gradient = jnp.zeros_like(w).at[pool.rows].add(-2 * scores)
        updates, optimizer_state = self.optimizer.update(gradient, state.optimizer_state, w)
        moved = jnp.where(state.usable, w + jnp.asarray(updates), -jnp.inf)
        weights = self.constraint.project(moved, k, max_k)
        image = problem.combine(weights.indices, weights.values)
        return _Projected(Iterate(weights, image), optimizer_state, state.usable)


def draw_batch(key: PRNGKeyArray, n: int, size: int) -> Batch:
    """So many rows of n, all sets of them equally likely.

    Args:
        key: a JAX random key.
        n: the number of rows.
        size: how many are drawn, between 1 and n.
    """
    lots = jax.random.bits(key, (n,), jnp.uint32)
    rows = jax.lax.top_k(lots, size)[1].astype(jnp.int32)
    return Batch(rows, jnp.ones(size, bool))


def _second_batch(key: PRNGKeyArray, n: int, batch: Batch) -> Bool[Array, " n"]:
    """Whether each row is in a batch that is independent of the first and as large."""
    rows = draw_batch(key, n, batch.rows.shape[0]).rows
    return jnp.zeros(n, bool).at[rows].set(batch.present)


def estimate_correlations(
    problem: CoresetProblem,
    weights: Float[Array, " p"],
    residual: Float[Array, " s"],
    in_batch: Bool[Array, " p"],
    num_data: int,
    estimator: Estimator,
    in_image_batch: Bool[Array, " p"] | None = None,
) -> Float[Array, " p"]:
    """The estimate −g̃(w)/2 = Γ₁ᵀΦᵀ(y − ΦΓ₂w) of Φᵀr, on the rows that were read.

    Appendix G of Zhang et al. (2021); the module's table says what Γ₁ and Γ₂ are. Zero on rows that
    were not read.

    Args:
        problem: the p rows read, among them the batch and the support of `weights`.
        weights: shape (p,), w on those rows.
        residual: shape (S,), r = y − Φw.
        in_batch: shape (p,), the rows of the batch that Γ₁ keeps.
        num_data: n.
        estimator: "double", "batch", "support" or "pool".
        in_image_batch: shape (p,), the rows that Γ₂ keeps of a batch as large as the first; only
            for "double".

    Raises:
        ValueError: if "double" has no `in_image_batch`.
    """
    dtype = residual.dtype
    support = weights != 0
    one, zero = jnp.ones((), dtype), jnp.zeros((), dtype)
    scale = num_data / jnp.maximum(jnp.sum(in_batch), 1).astype(dtype)
    if estimator == "double":
        if in_image_batch is None:
            raise ValueError('in_image_batch is missing; wanted the second batch for "double".')
        kept = jnp.where(in_image_batch, scale, zero) * weights
        residual = problem.target - jnp.matmul(kept, problem.atoms, precision=HIGHEST)
    if estimator == "pool":
        factors = jnp.where(in_batch | support, one, zero)
    elif estimator == "support":
        factors = jnp.where(support, one, jnp.where(in_batch, scale, zero))
    else:
        factors = jnp.where(in_batch, scale, zero)
    return factors * problem.correlate(residual)


def _read(problem: CoresetProblem, batch: Batch, current: Sparse, previous: Sparse) -> _Pool:
    """Gather the rows of a batch and of two supports, each once and in increasing order."""
    n = problem.num_data
    drawn = jnp.where(batch.present, batch.rows, n)
    wanted = [drawn] + [jnp.where(s.values != 0, s.indices, n) for s in (current, previous)]
    wanted = jnp.concatenate(wanted)
    if wanted.shape[0] < n:
        wanted = jnp.sort(wanted)
        first = jnp.concatenate([jnp.ones(1, bool), wanted[1:] != wanted[:-1]])
        present = first & (wanted < n)
        in_order = jnp.sort(drawn)
        at = jnp.minimum(jnp.searchsorted(in_order, wanted), drawn.shape[0] - 1)
        in_batch = present & (in_order[at] == wanted)
    else:
        wanted, asked = jnp.arange(n), wanted
        present = jnp.zeros(n + 1, bool).at[asked].set(True)[:n]
        in_batch = jnp.zeros(n + 1, bool).at[drawn].set(True)[:n]
    rows = jnp.minimum(wanted, n - 1).astype(jnp.int32)
    atoms = jnp.where(present[:, None], problem.gather(rows), 0)
    return _Pool(rows, present, in_batch, CoresetProblem(atoms, problem.target))


def _restrict(constraint: Constraint, rows: Int[Array, " p"], n: int) -> Constraint:
    """The constraint as one on vectors that hold the entries at `rows` only."""
    if isinstance(constraint, GroupTopK | StratifiedTopK):
        return eqx.tree_at(lambda c: c.groups, constraint, constraint.groups[rows])
    return constraint


def _move(
    base: HardThresholding,
    problem: CoresetProblem,
    usable: Bool[Array, " n"],
    k: Int[Array, ""],
    max_k: int,
    state: _Accelerated,
    gradient: Float[Array, " n"],
) -> _Accelerated:
    """Lines 3 to 9 of Algorithm 2 with a gradient that is given, and the de-bias step of `base`.

    Args:
        base: the method.
        problem: all rows, or a pool of them with `state` and `base` in its terms.
        usable: the rows that may have a weight.
        k: the number of rows allowed.
        max_k: its static bound.
        state: the iterates before.
        gradient: an estimate of Φᵀr at z, zero on rows that are no part of the step.
    """
    n = problem.num_data
    current, previous = state.current.weights, state.previous.weights
    z, z_image = _extrapolate(state, n)
    support = z != 0
    grown = base.constraint.expand(jnp.where(usable, jnp.abs(gradient), 0), support, k, max_k)
    indices = jnp.concatenate([current.indices, previous.indices, grown.indices])
    w = _dense(current, n)
    in_support = jnp.concatenate(
        [
            support[current.indices] & (current.values != 0),
            support[previous.indices] & (previous.values != 0) & (w[previous.indices] == 0),
            grown.values != 0,
        ]
    )
    direction = base.constraint.tangent(gradient[indices], in_support)
    step = _step_size(base, problem, indices, direction, problem.target - z_image)

    def move(step: Array) -> Iterate:
        there = jnp.where(usable, z + step * gradient, -jnp.inf)
        weights = base.constraint.project(there, k, max_k)
        return Iterate(weights, problem.combine(weights.indices, weights.values))

    if base.line_search == "backtracking":
        new = base._backtrack(move, z, z_image, step)
    else:
        new = move(step)
    new = base.debias(problem, new)
    # A batch that brings nothing leaves the iterate as it is; the images then differ by rounding
    # alone, and there is no momentum along that.
    change = new.image - state.current.image
    rounding = 100 * jnp.finfo(change.dtype).eps
    moved = jnp.vdot(change, change) > rounding**2 * jnp.vdot(new.image, new.image)
    momentum = jnp.where(moved, base.momentum_size(problem, new, state.current), 0)
    return _Accelerated(new, state.current, momentum)


def _step_size(
    base: HardThresholding,
    problem: CoresetProblem,
    indices: Int[Array, " m"],
    direction: Float[Array, " m"],
    residual: Float[Array, " s"],
) -> Float[Array, ""]:
    """The step along an estimate d: the exact minimiser ⟨Φd, r⟩/‖Φd‖², or 0 if that is uphill."""
    if isinstance(base, IHT) and base.step is not None:
        return base.step_size(problem, indices, direction)
    image = problem.combine(indices, direction)
    curvature = jnp.vdot(image, image)
    exact = jnp.maximum(jnp.vdot(image, residual), 0) / jnp.where(curvature > 0, curvature, 1)
    return base.step_fraction * exact


def _extrapolate(state: Any, n: int) -> tuple[Float[Array, " n"], Float[Array, " s"]]:
    """The point z = w_t + τ(w_t − w_{t−1}) and its image."""
    current, previous, momentum = state.current, state.previous, state.momentum
    w = _dense(current.weights, n)
    z = w + momentum * (w - _dense(previous.weights, n))
    return z, current.image + momentum * (current.image - previous.image)


def _dense(sparse: Sparse, n: int) -> Float[Array, " n"]:
    return jnp.zeros(n, sparse.values.dtype).at[sparse.indices].add(sparse.values)


def _objective(problem: CoresetProblem, iterate: Iterate) -> Float[Array, ""]:
    residual = problem.target - iterate.image
    return jnp.vdot(residual, residual)


def _nothing(problem: CoresetProblem, max_k: int) -> Iterate:
    zeros = jnp.zeros(max_k, problem.target.dtype)
    return Iterate(
        Sparse(jnp.arange(max_k, dtype=jnp.int32), zeros), jnp.zeros_like(problem.target)
    )


def _check_base(base: Any) -> None:
    if not isinstance(base, HardThresholding):
        hint = f"{base.__name__}()" if isinstance(base, type) else "AIHT2()"
        raise TypeError(f"base is {base!r}; wanted IHT, AIHT or AIHT2, for instance {hint}.")


def _check_estimator(estimator: str, allowed: tuple[str, ...]) -> None:
    if estimator not in allowed:
        names = ", ".join(f'"{name}"' for name in allowed)
        raise ValueError(f'estimator is "{estimator}"; wanted one of {names}.')
