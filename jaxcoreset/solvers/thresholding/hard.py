"""Iterative hard thresholding: gradient steps, each projected back onto the constraint set.

The three solvers of Zhang, Khanna, Kyrillidis and Koyejo, "Bayesian coresets: revisiting the
nonconvex optimization perspective" (AISTATS 2021): Algorithm 1 (`IHT`), Algorithm 2 (`AIHT`: exact
line search and momentum) and Algorithm 3 of its appendix A (`AIHT2`: with a de-bias step).

In their notation f(w) = ‖y − Φw‖² and ∇f(w) = −2Φᵀr with r = y − Φw. The code uses the correlations
g = Φᵀr, so that a step of size μ along −∇f is a step of size 2μ along g, and the exact minimiser
along g restricted to S is ‖g_S‖² / ‖Φg_S‖², which is twice the paper's printed μ for ∇f.

An iterate is stored as up to k entries and its image Φw, not as a vector of length n. It is
projected onto a constraint set (`jaxcoreset.constraints`). The de-bias step is projected onto the
points of the set with the iterate's support, so that every solution is a point of the set.
"""

import functools
from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxcoreset.solvers.arguments import as_integer, check_choice, check_that
from jaxcoreset.solvers.base import Solver
from jaxcoreset.solvers.constraints import Constraint, Sparse, TopK
from jaxcoreset.solvers.numerics import divide, product, unit_of
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solution import History, Solution, make_solution
from jaxcoreset.solvers.thresholding.dense import dense_path

# Halvings of a step in the backtracking line search. A step of a millionth of the exact minimiser
# is still too long only if nothing but rounding is left.
_MAX_HALVINGS = 20
# The smallest number of k, and the largest number of rows, for which a sweep uses dense vectors.
_SOME, _FEW_ROWS = 8, 2000


class Iterate(eqx.Module):
    """A sparse weight vector and its image Φw."""

    weights: Sparse
    image: Float[Array, " s"]

    def objective(self, problem: CoresetProblem) -> Float[Array, ""]:
        """‖y − Φw‖²."""
        residual = problem.target - self.image
        return jnp.vdot(residual, residual)


class Accelerated(eqx.Module):
    """The last two iterates, w_t and w_{t−1}, and the momentum τ that the next step starts with."""

    current: Iterate
    previous: Iterate
    momentum: Float[Array, ""]

    @classmethod
    def at(cls, start: Iterate) -> "Accelerated":
        """Both iterates at the start, without momentum."""
        return cls(start, start, jnp.zeros((), start.image.dtype))

    def extrapolate(self, n: int) -> tuple[Float[Array, " n"], Float[Array, " s"]]:
        """The point z = w_t + τ(w_t − w_{t−1}) and its image."""
        current, previous, momentum = self.current, self.previous, self.momentum
        w = current.weights.dense(n)
        z = w + momentum * (w - previous.weights.dense(n))
        return z, current.image + momentum * (current.image - previous.image)


class Task(eqx.Module):
    """A problem, and which weights are allowed.

    Attributes:
        problem: the problem.
        usable: the rows that may have a weight.
        k: the maximum number of rows.
        max_k: its static bound.
    """

    problem: CoresetProblem
    usable: Bool[Array, " n"]
    k: Int[Array, ""]
    max_k: int = eqx.field(static=True)

    @classmethod
    def of(cls, problem: CoresetProblem, k: Int[Array, ""], max_k: int) -> "Task":
        """The task of weights for at most k rows."""
        # A constraint on the sum could give weight to an atom of norm zero.
        return cls(problem, problem.squared_norms() > 0, k, max_k)


class _ThresholdingState(eqx.Module):
    iterates: Accelerated
    num_iters: Int[Array, ""]
    stopped: Bool[Array, ""]
    history: History


def zero_iterate(problem: CoresetProblem, max_k: int) -> Iterate:
    """The iterate w = 0."""
    # Indices must be distinct, so the slots of an empty iterate hold the first rows.
    zeros = jnp.zeros(max_k, problem.target.dtype)
    return Iterate(
        Sparse(jnp.arange(max_k, dtype=jnp.int32), zeros), jnp.zeros_like(problem.target)
    )


class HardThresholding(Solver):
    """The loop that the hard-thresholding solvers share; they differ in their fractions of a step.

    Args:
        constraint: the set that iterates are projected onto.
        step_fraction: the step along the gradient as a fraction of the exact minimiser.
        tol: stop when ‖w_t − w_{t−1}‖ ≤ tol · ‖w_t‖.
        max_iters: the maximum number of iterations.
        record_history: whether the solution holds the objective after every iteration.
        line_search: "exact" or "backtracking". The exact minimiser along the gradient ignores the
            projection that follows, which can raise the objective. With "backtracking" the step is
            halved until ‖Φd‖² ≤ ‖d‖² / step, where d is the change made by the projected step (the
            test of Blumensath and Davies 2010, "Normalized iterative hard thresholding"); without
            momentum the objective then never increases. Each trial step costs one projection.
        warm_starts: whether a sweep solves for one k after another, each from the solution for the
            next smaller k, instead of for all k at once from w = 0.
    """

    constraint: Constraint = TopK()
    step_fraction: float = 1.0
    tol: float = 1e-5
    max_iters: int = 300
    record_history: bool = False
    line_search: Literal["exact", "backtracking"] = "exact"
    warm_starts: bool = False

    def __check_init__(self) -> None:
        check_choice("line_search", self.line_search, ("exact", "backtracking"))
        as_integer("max_iters", self.max_iters, 1)
        check_that(self.tol >= 0, "tol", self.tol, "a number that is not negative")
        fraction = self.step_fraction
        check_that(fraction > 0, "step_fraction", fraction, "a positive number")

    def check(self, problem: CoresetProblem) -> None:
        """Raise a ValueError if the constraint does not fit the problem; see `Solver.check`."""
        self.constraint.check(problem.num_data)

    def step_size(
        self,
        problem: CoresetProblem,
        indices: Array,
        gradient: Array,
        residual: Float[Array, " s"] | None = None,
    ) -> Float[Array, ""]:
        """Length of the step along g, from its entries `gradient` on the expanded support.

        Args:
            problem: the problem.
            indices: the expanded support.
            gradient: the entries there.
            residual: r = y − Φz if `gradient` is not Φᵀr but an estimate d of it. The exact
                minimiser is then ⟨Φd, r⟩/‖Φd‖², or zero if that is negative.
        """
        # ‖Φg‖² is proportional to the sixth power of the atoms' units, so g is scaled first.
        unit = unit_of(gradient)
        gradient = unit * gradient
        image = problem.combine(indices, gradient)
        if residual is None:
            slope = jnp.vdot(gradient, gradient)
        else:
            slope = unit * jnp.maximum(jnp.vdot(image, residual), 0)
        return self.step_fraction * divide(slope, jnp.vdot(image, image))

    def debias(self, problem: CoresetProblem, iterate: Iterate) -> Iterate:
        """Make a further step on the support of the projected iterate; by default none."""
        return iterate

    def momentum_size(self, problem: CoresetProblem, new: Iterate, old: Iterate) -> Array:
        """Length of the momentum step along w_{t+1} − w_t; by default 0."""
        return jnp.zeros((), problem.target.dtype)

    def run(
        self, problem: CoresetProblem, k: Int[Array, ""], max_k: int, key: PRNGKeyArray | None
    ) -> Solution:
        """Iterate from w = 0 to the stopping rule or the limit; see `Solver.run`."""
        return self._run_from(zero_iterate(problem, max_k), Task.of(problem, k, max_k))[0]

    def run_path(
        self, problem: CoresetProblem, ks: Int[Array, " m"], max_k: int, key: PRNGKeyArray | None
    ) -> Solution:
        """Solve for each of `ks`; see `Solver.run_path`.

        With `warm_starts` this is done one after another, from the smallest k. Otherwise all k are
        solved at once; with few rows by the Gram matrix, see `thresholding.dense`.
        """
        if self.warm_starts:
            order = jnp.argsort(ks)

            def solve_next(start: Iterate, k: Array) -> tuple[Iterate, Solution]:
                solution, found = self._run_from(start, Task.of(problem, k, max_k))
                return found, solution

            path = jax.lax.scan(solve_next, zero_iterate(problem, max_k), ks[order])[1]
            return jax.tree.map(lambda x: x[jnp.argsort(order)], path)
        is_plain = (
            type(self) in (IHT, AIHT, AIHT2)  # a subclass may change the step
            and type(self.constraint) is TopK
            and self.line_search == "exact"
            and not self.record_history
        )
        few = problem.num_data <= min(_FEW_ROWS, 2 * problem.num_draws)
        if not (is_plain and few) or len(ks) < _SOME:
            return super().run_path(problem, ks, max_k, key)
        weights, num_iters, stopped = dense_path(problem, ks, self, isinstance(self, AIHT2))
        residuals = problem.target - product(weights, problem.atoms)
        values, indices = jax.lax.top_k(weights, max_k)
        make = functools.partial(make_solution, problem)
        return jax.vmap(make)(indices, values, jnp.sum(residuals**2, axis=1), num_iters, stopped)

    def _run_from(self, start: Iterate, task: Task) -> tuple[Solution, Iterate]:
        """Iterate from `start`; return the solution and its iterate."""
        state = _ThresholdingState(
            iterates=Accelerated.at(start),
            num_iters=jnp.zeros((), jnp.int32),
            stopped=jnp.zeros((), bool),
            history=History.empty(self, start.image.dtype),
        )
        state = jax.lax.while_loop(
            lambda s: ~s.stopped & (s.num_iters < self.max_iters),
            functools.partial(self._iterate, task),
            state,
        )
        found = state.iterates.current
        objective = found.objective(task.problem)
        solution = make_solution(
            task.problem,
            found.weights.indices,
            found.weights.values,
            objective,
            state.num_iters,
            state.stopped,
            history=state.history.filled(state.num_iters, objective),
        )
        return solution, found

    def _iterate(self, task: Task, state: _ThresholdingState) -> _ThresholdingState:
        """One pass of Algorithm 2's loop (lines 3 to 9), with the de-bias step of Algorithm 3."""
        problem, current = task.problem, state.iterates.current
        n = problem.num_data
        _, z_image = state.iterates.extrapolate(n)
        gradient = problem.correlate(problem.target - z_image)
        new = self.advance(task, state.iterates, gradient)
        moved = jnp.linalg.norm(new.weights.dense(n) - current.weights.dense(n))
        return _ThresholdingState(
            iterates=Accelerated(new, current, self.momentum_size(problem, new, current)),
            num_iters=state.num_iters + 1,
            stopped=moved <= self.tol * jnp.linalg.norm(new.weights.values),
            history=state.history.record(state.num_iters, new.objective(problem)),
        )

    def advance(
        self,
        task: Task,
        iterates: Accelerated,
        gradient: Float[Array, " n"],
        *,
        is_estimate: bool = False,
    ) -> Iterate:
        """The next iterate: lines 4 to 7 of Algorithm 2, with the de-bias step of Algorithm 3.

        Args:
            task: the problem, and which weights are allowed.
            iterates: the last two iterates.
            gradient: Φᵀr at z, zero on rows that do not take part in the step.
            is_estimate: whether `gradient` is an estimate of Φᵀr.
        """
        problem, n = task.problem, task.problem.num_data
        current, previous = iterates.current.weights, iterates.previous.weights
        z, z_image = iterates.extrapolate(n)
        support = z != 0
        grown = self.constraint.expand(jnp.abs(gradient), support, task.k, task.max_k)
        # The expanded support as indices, each row once: a row of w_{t-1} may also be in w_t.
        indices = jnp.concatenate([current.indices, previous.indices, grown.indices])
        w = current.dense(n)
        in_support = jnp.concatenate(
            [
                support[current.indices] & (current.values != 0),
                support[previous.indices] & (previous.values != 0) & (w[previous.indices] == 0),
                grown.values != 0,
            ]
        )
        on_support = self.constraint.tangent(gradient[indices], in_support)
        residual = problem.target - z_image if is_estimate else None
        step = self.step_size(problem, indices, on_support, residual)

        def move(step: Array) -> Iterate:
            there = jnp.where(task.usable, z + step * gradient, -jnp.inf)
            weights = self.constraint.project(there, task.k, task.max_k)
            return Iterate(weights, problem.combine(weights.indices, weights.values))

        if self.line_search == "backtracking":
            new = self._backtrack(move, z, z_image, step)
        else:
            new = move(step)
        return self.debias(problem, new)

    def _backtrack(
        self, move: Callable[[Array], Iterate], z: Array, z_image: Array, step: Array
    ) -> Iterate:
        """The result of `move` with the first of step, step/2, step/4, … that is not too long.

        f(z + d) = f(z) − 2⟨g, d⟩ + ‖Φd‖², and the projection minimises the same expression with
        ‖d‖²/step in place of ‖Φd‖². So if ‖d‖²/step ≥ ‖Φd‖², f decreases at least by the decrease
        of that expression, which is not negative if z is in the set.
        """

        def tried(tries: Array, step: Array) -> tuple[Array, Array, Iterate, Array]:
            """The result of a step, and whether that is too long.

            Both the loop's condition and, under `vmap`, its body read the latter. If each of them
            computed it, they could round differently, and the loop would never end.
            """
            new = move(step)
            change = new.weights.dense(z.shape[0]) - z
            image = new.image - z_image
            squared = jnp.vdot(change, change)
            # For a change that is small enough to end the run, rounding would decide the test.
            matters = squared > self.tol**2 * jnp.vdot(z, z)
            longer = step * jnp.vdot(image, image) > squared
            return tries, step, new, longer & matters & (tries < _MAX_HALVINGS)

        first = tried(jnp.zeros((), jnp.int32), step)
        last = jax.lax.while_loop(
            lambda carry: carry[-1], lambda carry: tried(carry[0] + 1, carry[1] / 2), first
        )
        return last[2]


class IHT(HardThresholding):
    """Iterative hard thresholding: w ← Π(w − μ∇f(w)).

    Algorithm 1 of Zhang et al. (2021). Its step size is an input. By default it is the exact line
    search of their section 3.2 on the support expanded by k entries of the gradient.

    Args:
        constraint: the set that iterates are projected onto.
        step_fraction: the step as a fraction of the exact minimiser: 1.0 is the paper's μ, 0.5 that
            of the authors' code. Not used with a fixed `step`.
        tol: stop when ‖w_t − w_{t−1}‖ ≤ tol · ‖w_t‖; the paper's 1e-5.
        max_iters: the maximum number of iterations; the paper's 300.
        record_history: whether the solution holds the objective after every iteration.
        line_search: "exact" or "backtracking", which halves a step that the projection makes too
            long; see `HardThresholding`.
        warm_starts: whether a sweep starts from the solution for the next smaller k.
        step: a fixed μ, the multiple of ∇f = −2Φᵀr that is subtracted. Converges if it is at most
            1/(2‖Φ‖²).
    """

    step: float | None = None

    def step_size(
        self,
        problem: CoresetProblem,
        indices: Array,
        gradient: Array,
        residual: Float[Array, " s"] | None = None,
    ) -> Float[Array, ""]:
        """See `HardThresholding.step_size`."""
        if self.step is not None:
            return jnp.asarray(2 * self.step, problem.target.dtype)
        return super().step_size(problem, indices, gradient, residual)


class AIHT(HardThresholding):
    """Automated accelerated IHT: line search for the step, momentum with its own line search.

    Algorithm 2 of Zhang et al. (2021). With r = y − Φw and d = w_{t+1} − w_t, the exact minimisers
    are ‖g_S‖²/‖Φg_S‖² for the step along g = Φᵀr and ⟨r, Φd⟩/‖Φd‖² for the momentum. The printed
    algorithm takes the full step and half of the momentum (``momentum_fraction=0.5``); the authors'
    code takes half of the step (``step_fraction=0.5``) and the full momentum. The default is to
    take both in full.

    Args:
        constraint: the set that iterates are projected onto.
        step_fraction: the step as a fraction of the exact minimiser.
        tol: stop when ‖w_t − w_{t−1}‖ ≤ tol · ‖w_t‖; the paper's 1e-5.
        max_iters: the maximum number of iterations; the paper's 300.
        record_history: whether the solution holds the objective after every iteration.
        line_search: "exact" or "backtracking" for the step, which section 3.2 names as the
            alternative; see `HardThresholding`. The momentum's line search is always exact.
        warm_starts: whether a sweep starts from the solution for the next smaller k.
        momentum_fraction: the momentum as a fraction of the exact minimiser.
    """

    momentum_fraction: float = 1.0

    def momentum_size(self, problem: CoresetProblem, new: Iterate, old: Iterate) -> Array:
        """See `HardThresholding.momentum_size`; line 8 of Algorithm 2."""
        change = new.image - old.image
        exact = divide(jnp.vdot(problem.target - new.image, change), jnp.vdot(change, change))
        return self.momentum_fraction * exact


class AIHT2(AIHT):
    """A-IHT II: `AIHT` with a second, exact gradient step on the support of each iterate.

    Algorithm 3 of Zhang et al. (2021), appendix A; lines 8 to 10 are the de-bias step. Arguments
    and step conventions are those of `AIHT`; ``step_fraction`` applies to both gradient steps, as
    in the paper and in the authors' code. The line search of the de-bias step is always exact.
    """

    def debias(self, problem: CoresetProblem, iterate: Iterate) -> Iterate:
        """See `HardThresholding.debias`."""
        indices, values = iterate.weights.indices, iterate.weights.values
        correlations = problem.correlate_at(indices, problem.target - iterate.image)
        gradient = self.constraint.tangent(correlations, values > 0)
        step = self.step_size(problem, indices, gradient)
        moved = Sparse(indices, values + step * gradient)
        weights = self.constraint.project_on_support(moved, values > 0)
        return Iterate(weights, problem.combine(weights.indices, weights.values))
