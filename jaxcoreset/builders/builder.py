"""`CoresetBuilder`, which makes a coreset of a NumPyro model's data.

The stages are: find the weighting π̂, draw from it, sum the log-likelihoods of *all* rows at the
draws into the target, evaluate those of the candidates into atoms, solve, and measure the error on
draws that the solver did not see. With rounds, NUTS then samples the coreset's own posterior, which
becomes the next π̂ if the two do not agree.
"""

import os
from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxcoreset.builders.outcome import (
    check_tolerance,
    is_futile,
    look_for_spike,
    reported_estimate,
    up_to_best,
    with_more_draws,
)
from jaxcoreset.builders.preparing import (
    bound_solver,
    draw_source,
    expand,
    expand_again,
    is_allowed,
    likelihood_of,
    pass_context,
    refined,
)
from jaxcoreset.builders.settings import (
    Candidates,
    Checkpoint,
    Execution,
    Taylor,
    Tolerance,
    check_type,
)
from jaxcoreset.coreset.coreset import Coreset, coreset_of_selection
from jaxcoreset.coreset.exact import coreset_of_all, exact_coreset
from jaxcoreset.coreset.warn import warn_if_bad
from jaxcoreset.data.checkpoint import MODEL_VALUES
from jaxcoreset.data.distinct import find_distinct
from jaxcoreset.data.folding import folding_of
from jaxcoreset.data.rows import PassContext
from jaxcoreset.data.utils import Clock, check_int
from jaxcoreset.likelihood.arguments import codes_of_call, columns_of_call, plain_call
from jaxcoreset.likelihood.closures import float64_for
from jaxcoreset.likelihood.integration import Integration
from jaxcoreset.likelihood.precision import Float32Error
from jaxcoreset.likelihood.program import of_one_build
from jaxcoreset.likelihood.trace import one_at_a_time
from jaxcoreset.selection.baseline import GaussianBaseline
from jaxcoreset.selection.construction import Construction
from jaxcoreset.selection.draws import DrawPool
from jaxcoreset.selection.look import foretold
from jaxcoreset.selection.plan import Plan, plan_build
from jaxcoreset.selection.rounds import MOST_ROUNDS, Checker, Round
from jaxcoreset.selection.sizes import select_rows
from jaxcoreset.selection.solving import check_selection
from jaxcoreset.selection.tolerance import Selection
from jaxcoreset.solvers.base import Solver
from jaxcoreset.solvers.numerics import as_key
from jaxcoreset.weighting import DrawSource, Weighting
from jaxcoreset.weighting.auto import AutoWeighting

# The settings on which the coreset depends.
_STATISTICAL = ("size", "tol", "weighting", "solver", "num_draws", "rounds", "num_held_out")
_STATISTICAL += ("candidates", "data_axes", "plate", "proxy", "groups", "integration")


class CoresetBuilder:
    """Builds a coreset of a NumPyro model's data. Configure it, then run it, as with ``MCMC``.

    Give either `size` or `tol`.

    Args:
        model: a NumPyro model whose observations are independent given its parameters.
        size: the maximum number of rows; fewer are kept if NUTS in float32 would fail with more.
        tol: the largest symmetrised KL divergence that is accepted, in nats, as a number or as a
            `Tolerance`. The coreset has the fewest rows with which the estimate plus two Monte
            Carlo standard errors stays below `tol`, and no posterior mean shifts by more than
            √tol/2 standard deviations: 0.05 for 0.01 nats. Sizes are tried by doubling. The solver
            gets four draws for each row that is tried, and up to 16 if it fits only its own draws.
            Held-out draws are added until the standard error is at most a tenth of `tol`, if that
            may decide. Some of them choose the size, and others give the reported estimate. If that
            is checked by draws of the coreset's own posterior, their estimate must not be above
            `tol` either.
        weighting: how the weighting distribution π̂ is found: `Laplace`, `Draws`, `Guide`,
            `Pathfinder` or `SubsampleNUTS`. "auto", the default, is `Laplace`. If it finds no mode,
            the builder warns and continues with `SubsampleNUTS`. If the chains of that do not mix,
            it continues with `Pathfinder`, if BlackJAX is installed.
        solver: the solver; by default that of `solve`. A solver with a constraint, such as
            ``AIHT2(constraint=StratifiedTopK("carrier", reserved=5))``, keeps to it over all n
            rows. A constraint takes its labels from an array of length n, or from the argument of
            the model that it names.
        num_draws: how many draws of π̂ the solver gets, S. The default is four times the size and at
            least 500; with `tol` it is at least four times the size in any case.
        rounds: the maximum number of builds. After each build NUTS samples the coreset's own
            posterior. If the error estimate under it does not agree with that under π̂, the coreset
            is built again with these draws as π̂. With `tol`, estimates that differ are accepted
            from the second build on if both are within it; see `jaxcoreset.selection.rounds`. 1
            builds once and does not check. "auto", the default, checks only if importance weights
            give π̂'s draws an effective sample size below half of their number; then there are at
            most five builds, and below a tenth at least two unless `tol` is met.
        num_held_out: how many further draws measure the error.
        candidates: the rows to choose from, as their number or as `Candidates`; by default all rows
            up to n = 10,000.
        data_axes: which arguments are data, if the builder should not find out by itself; see
            `model_likelihood`.
        plate: the name of the data plate, if several plates of the model could be it.
        execution: where the passes over the rows run, as `Execution`: devices, batches, processes.
        checkpoint: a path, or a `Checkpoint`, from which an interrupted build resumes when it is
            called again.
        progress_bar: whether to show progress, as bars on a terminal and as a line each 30 seconds
            elsewhere; the lines go to the logger "jaxcoreset" if it logs INFO, else to stderr.
        proxy: an approximation of the log-likelihood of all rows, which the coreset's rows correct.
            `Taylor` is its second-order expansion; the coreset may then have no rows. "auto" solves
            with and without it, and takes the coreset with fewer rows that meets `tol`, or with
            `size` the one with the smaller error. If there are enough draws, it also regresses the
            remainder of the expansion on quadratics. None is a coreset of rows alone.
        groups: the argument that says to which group a row belongs, such as "plane" or
            "data['plane']", for a model with an effect of each group. The builder then chooses and
            weights groups, and `size` is a number of groups. The effects are integrated out, and
            the coreset's model has the shared parameters only. If None, each row with a latent
            variable of its own is a group.
        integration: how the effects are integrated out, `AdaptiveQuadrature` or `LaplaceIntegral`;
            by default the first for effects of one or two dimensions, and the second for more.

    Raises:
        TypeError: if `weighting`, `solver` or another setting has the wrong type.
        ValueError: if a number is out of its range, or both or neither of `size` and `tol` are
            given.
    """

    def __init__(
        self,
        model: Callable,
        size: int | None = None,
        tol: float | Tolerance | None = None,
        weighting: Weighting | Literal["auto"] = "auto",
        solver: Solver | None = None,
        num_draws: int | None = None,
        *,
        rounds: int | Literal["auto"] = "auto",
        num_held_out: int = 1000,
        candidates: int | Candidates | None = None,
        data_axes: Any = None,
        plate: str | None = None,
        execution: Execution = Execution(),  # noqa: B008 - frozen
        checkpoint: str | os.PathLike | Checkpoint | None = None,
        progress_bar: bool = True,
        proxy: Literal["auto"] | Taylor | None = "auto",
        groups: str | None = None,
        integration: Integration | None = None,
    ):
        if (size is None) == (tol is None):
            raise ValueError(
                f"size is {size!r} and tol is {tol!r}; expected exactly one of them: size=250 for "
                "a maximum number of rows, or tol=0.01 for an estimated KL divergence in nats."
            )
        if weighting == "auto":
            weighting = AutoWeighting()
        check_type("weighting", weighting, Weighting, "'auto' or a Weighting, such as Laplace()")
        check_type("solver", solver, Solver | None, "a Solver, such as ExchangePursuit(), or None")
        expected = "an Execution, for instance Execution(batch_size=10_000)"
        check_type("execution", execution, Execution, expected)
        if proxy != "auto":
            check_type("proxy", proxy, Taylor | None, '"auto", Taylor() or None')
        check_type("groups", groups, str | None, "the name of an argument, or None")
        expected = "AdaptiveQuadrature(), LaplaceIntegral() or None"
        check_type("integration", integration, Integration | None, expected)
        self.model = model
        self.groups, self.integration = groups, integration
        self.proxy: Literal["auto"] | Taylor | None = proxy
        self.size = None if size is None else check_int("size", size, 1)
        self.tol = tol if tol is None or isinstance(tol, Tolerance) else Tolerance(tol)
        self.weighting = weighting
        self.solver = solver
        self.num_draws = None if num_draws is None else check_int("num_draws", num_draws, 2)
        self.rounds = rounds if rounds == "auto" else check_int("rounds", rounds, 1)
        self.num_held_out = check_int("num_held_out", num_held_out, 2)
        if not isinstance(candidates, Candidates):
            candidates = Candidates(candidates)
        self.candidates = candidates
        self.data_axes = data_axes
        self.plate = plate
        self.execution = execution
        if not isinstance(checkpoint, Checkpoint | None):
            checkpoint = Checkpoint(checkpoint)
        self.checkpoint = checkpoint
        self.progress_bar = progress_bar

    @property
    def statistical(self) -> dict[str, Any]:
        """The settings on which the coreset depends, by name; the others change nothing in it."""
        tol = None if self.tol is None else (self.tol.kl, self.tol.max_size)
        return {name: getattr(self, name) for name in _STATISTICAL} | {"tol": tol}

    def run(self, key: PRNGKeyArray | int, *args: Any, **kwargs: Any) -> Coreset:
        """Build a coreset of the data in the model's arguments.

        Args:
            key: a JAX random key or an integer seed; the same key gives the same coreset.
            *args: the model's positional arguments. Data frames, columns and lists of numbers
                become arrays. Data frames that are passed later may have the same columns in
                another order.
            **kwargs: the model's keyword arguments.

        Raises:
            ValueError: if the model or the data cannot be used, if `tol` cannot be met, or if the
                log-likelihoods of the coreset's rows change when the model gets no other rows. The
                message says what to do.
            RuntimeError: if XLA compiles the model to a program with wrong results.
        """
        return self.run_rounds(key, *args, **kwargs)[-1]

    @one_at_a_time
    def run_rounds(self, key: PRNGKeyArray | int, *args: Any, **kwargs: Any) -> list[Coreset]:
        """The coresets of all rounds, of which `run` returns the last one; arguments as in `run`.

        Rounds after the best one are not among them, since they made the coreset worse.
        """
        call = as_key(key), *plain_call(self.model, args, kwargs, self.groups)
        try:
            found = self._run_once(*call)
        except Float32Error:
            # JAX's x64 is off, and the model runs with it.
            with float64_for(self.model):
                found = self._run_once(*call, in_float64=True)
        columns = columns_of_call(self.model, args, kwargs, self.groups)
        codes = codes_of_call(self.model, args, kwargs, self.groups)
        for coreset in found:
            coreset.columns, coreset.codes = columns, codes
        return found

    def _run_once(
        self, key: PRNGKeyArray, args: tuple, kwargs: dict[str, Any], in_float64: bool = False
    ) -> list[Coreset]:
        """One build in one precision."""
        context = pass_context(self, key, args, kwargs, in_float64=in_float64)
        checkpoint = context.checkpoint
        try:
            with of_one_build():
                found = self._run(key, args, kwargs, context)
            if found[-1].likelihood is not None:  # later passes are no part of the build
                found[-1].likelihood.rows.close_checkpoint()
            return found
        except BaseException as error:
            if checkpoint is not None and checkpoint.passes and not isinstance(error, Float32Error):
                error.add_note(checkpoint.save_after_error())
            raise

    def _run(
        self, key: PRNGKeyArray, args: tuple, kwargs: dict[str, Any], context: PassContext
    ) -> list[Coreset]:
        start_key, weighting_key, draws_key, rows_key, solver_key = jax.random.split(key, 5)
        with context.processes.all_or_none("model"):
            construction = self._construction(start_key, rows_key, args, kwargs, context)
        if (exact := exact_coreset(self.model, construction)) is not None:
            return [exact]
        likelihood, clock = construction.likelihood, construction.clock
        most, may_search = construction.most_rows, construction.may_search
        with foretold(likelihood, most, lambda: clock.current, may_search=may_search):
            with clock.stage("rows"):
                folding = likelihood.rows.folding
                read_first = self.weighting.indices(likelihood, weighting_key)
                needed = read_first, construction.candidates(), folding and folding.first
                found = [indices for indices in needed if indices is not None]
                likelihood.rows.keep(np.concatenate([np.zeros(0, np.int64), *found]))
            with clock.stage("weighting"):
                source = draw_source(self.weighting, likelihood, weighting_key, self.progress_bar)
                construction = refined(construction, source, draws_key)
                likelihood = construction.likelihood
                settings = self.execution.batch_size, self.progress_bar, construction.max_noise
                pool = DrawPool(likelihood, source, draws_key, *settings)
                construction = expand(self.proxy, construction, pool)
            return self._repair(construction, source, pool, draws_key, solver_key)

    @one_at_a_time
    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """Predict what `run` takes with these arguments: passes, memory and time.

        Each kind of pass is tried on the first batch of rows. The estimate does not include solving
        and rounds. With a hundred parameters or more, the plan also has an estimate of the whole
        build, and says how to make it cheaper.

        Args:
            *args: the model's positional arguments.
            **kwargs: the model's keyword arguments.
        """
        key = jax.random.key(0)
        args, kwargs = plain_call(self.model, args, kwargs, self.groups)
        context = pass_context(self, key, args, kwargs, is_plan=True)
        construction = self._construction(key, key, args, kwargs, context, may_read=False)
        return plan_build(construction.likelihood, construction, self.weighting)

    def _construction(
        self,
        start_key: PRNGKeyArray,
        rows_key: PRNGKeyArray,
        args: tuple,
        kwargs: dict[str, Any],
        context: PassContext,
        *,
        may_read: bool = True,
    ) -> Construction:
        clock = Clock(show=may_read and self.progress_bar)
        with clock.stage("model"):
            likelihood = likelihood_of(self, args, kwargs, start_key, context)
            if context.checkpoint is not None:
                context.checkpoint.require_same(MODEL_VALUES, likelihood.values_as_text())
        with clock.stage("rows"):
            distinct = find_distinct(likelihood.rows, may_read=may_read)
            likelihood.rows.folding = folding_of(likelihood.rows, distinct)
        return Construction(
            likelihood=likelihood,
            solver=bound_solver(self.solver, likelihood),
            size=self.size,
            tol=None if self.tol is None else self.tol.kl,
            max_size=0 if self.tol is None else self.tol.max_size,
            max_shift=np.inf if self.tol is None else self.tol.max_shift,
            num_draws=self.num_draws,
            num_held_out=self.num_held_out,
            num_candidates=self.candidates.num,
            rows_key=rows_key,
            clock=clock,
            extra_passes=self.candidates.extra_passes,
            distinct=distinct,
            allows_rows_alone=not isinstance(self.proxy, Taylor),
            may_expand=is_allowed(self.proxy, self.solver),
        )

    def _repair(
        self,
        construction: Construction,
        source: DrawSource,
        pool: DrawPool,
        draws_key: PRNGKeyArray,
        solver_key: PRNGKeyArray,
        may_take_more: bool = True,
    ) -> list[Coreset]:
        """Build until the coreset's own posterior agrees with the π̂ that it was built under."""
        likelihood, clock, first_pool = construction.likelihood, construction.clock, pool
        most = MOST_ROUNDS if isinstance(self.rounds, str) else self.rounds
        goal = construction.tol, self.num_held_out, construction.max_shift
        checker = Checker(likelihood, *goal)
        name = source.weighting or type(self.weighting).__name__
        found: list[Coreset] = []
        history: list[Round] = []
        baseline: GaussianBaseline | None = None  # of the first π̂, which may be the Gaussian
        while True:
            number = len(history) + 1
            construction.embed(pool, confirms=pool.expansion is None)
            if history:
                expand_again(self.proxy, likelihood, pool)
            looks = most > 1 and not checker.is_settled
            relative_ess = None
            if looks and self.rounds == "auto" and number == 1:
                with clock.stage("agreement"):
                    looks, relative_ess = checker.needs_check(pool)
            # Estimates that are alike but above the tolerance ask for more rows, not for another π̂.
            is_final = not looks or number == most or checker.were_alike
            round_key = jax.random.fold_in(solver_key, number)
            selection = select_rows(construction, pool, round_key, is_final=is_final)
            if selection is None:
                return [*found, coreset_of_all(self.model, construction)]
            with clock.stage("model"):
                check_selection(pool, selection)
            own_pool = None
            outcome = Round.of(name, selection, relative_ess)
            if looks:
                with clock.stage("agreement"):
                    own_pool, outcome = checker.look(
                        pool, selection, outcome, jax.random.fold_in(draws_key, number)
                    )
            history.append(outcome)
            baseline = GaussianBaseline.of(pool) if baseline is None else baseline
            coreset = self._finish(construction, source, pool, selection, history, baseline)
            found.append(coreset)
            if own_pool is None or number == most or (checker.is_final and selection.is_within):
                break
            if is_futile(construction, checker, selection, found, is_final):
                break
            pool, name = own_pool, "coreset posterior"
        found = up_to_best(found)
        with clock.stage("agreement"):
            look_for_spike(found[-1])
        if may_take_more and (more := with_more_draws(construction, found[-1])) is not None:
            return self._repair(more, source, first_pool, draws_key, solver_key, False)
        if self.tol is not None and self.tol.throw:
            check_tolerance(self.tol, found[-1].report, pool)
        warn_if_bad(found[-1].report)
        return found

    def _finish(
        self,
        construction: Construction,
        source: DrawSource,
        pool: DrawPool,
        selection: Selection,
        history: list[Round],
        baseline: GaussianBaseline | None,
    ) -> Coreset:
        """The coreset of the last round."""
        estimate = reported_estimate(selection.estimate, history[-1])
        likelihood, tol = construction.likelihood, self.tol
        is_within = None if tol is None else selection.is_within and estimate.kl <= tol.kl
        return coreset_of_selection(
            self.model,
            pool,
            selection,
            construction.clock,
            approximation=source.approximation,
            keep_likelihood=True,
            keep_summary=True,
            estimate=estimate,
            baseline=baseline,
            num_data=likelihood.num_data,
            size=int(selection.sizes[-1 if tol is None else selection.at]),
            weighting=history[0].weighting,
            tol=construction.tol,
            is_within_tol=is_within,
            rounds=[one.to_dict() for one in history],
            passes=dict(likelihood.rows.passes),
            candidate_searches=list(construction.searches),
            num_distinct=None if construction.distinct is None else construction.distinct.num,
            **construction.facts,
        )
