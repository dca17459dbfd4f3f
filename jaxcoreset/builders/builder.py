"""`CoresetBuilder`: a NumPyro model and its data in, a coreset out.

The stages are: find the weighting π̂, draw from it, sum the log-likelihoods of *all* rows at the
draws into the target, evaluate the candidates' into atoms, solve, and measure the error on draws
that the solver did not see. With rounds, the coreset's own posterior is then looked at, and is the
next π̂ where the two do not agree.
"""

import inspect
import os
from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray

from jaxcoreset.coreset.coreset import Coreset, coreset_of_rows, whole_coreset
from jaxcoreset.coreset.report import Report
from jaxcoreset.coreset.summary import DataSummary
from jaxcoreset.data.checkpoint import MODEL_VALUES, CheckpointFile, build_settings, settings_of_all
from jaxcoreset.data.processes import SINGLE_PROCESS, DistributedProcesses
from jaxcoreset.data.rows import PassContext
from jaxcoreset.data.utils import Clock, check_int, peak_memory
from jaxcoreset.likelihood.from_model import model_likelihood
from jaxcoreset.likelihood.precision import rounding_of
from jaxcoreset.selection.construction import Construction
from jaxcoreset.selection.draws import DrawPool
from jaxcoreset.selection.plan import Plan, plan_build
from jaxcoreset.selection.rounds import MOST_ROUNDS, Checker, Round
from jaxcoreset.selection.tolerance import Choice, Estimate
from jaxcoreset.solvers.base import Solver
from jaxcoreset.solvers.constraints import Constraint
from jaxcoreset.solvers.thresholding.hard import AIHT2, HardThresholding
from jaxcoreset.weighting import DrawSource, Laplace, Weighting

# A relative error at other draws, over that at the solver's, from which more rows hardly help.
_UNLIKE = 10.0


class CoresetBuilder:
    """Builds a coreset of a NumPyro model's data, as ``MCMC`` runs a kernel: configure, then run.

    Give either `size` or `tol`.

    Args:
        model: a NumPyro model whose observations are independent given its parameters.
        size: at most so many rows.
        tol: as few rows as bring the estimated symmetrised KL divergence, with two Monte Carlo
            standard errors on top, to at most so many nats. Sizes are tried by doubling, and draws
            are added: four for every row that is tried, and held-out ones until the standard error
            is at most a tenth of `tol`. A size is chosen by some of the held-out draws, and the
            estimate that is reported comes from others.
        weighting: how the weighting distribution π̂ is found: `Laplace`, `Draws`, `Guide`,
            `Pathfinder` or `SubsampleNUTS`.
        solver: the solver; the default is that of `solve`.
        num_draws: draws of π̂ for the solver, S; four times the size and at least 500 if left out,
            and with `tol` at least four times the size whatever it is.
        rounds: at most so many builds. After each of them the coreset's own posterior is sampled by
            NUTS, and where the error estimated under it does not agree with that under π̂, the
            coreset is built again with these draws as π̂; see `jaxcoreset.selection.rounds`. 1
            builds once and does not look. "auto", the default, looks only where importance weights
            say that less than a tenth of π̂'s draws is worth a draw of the full posterior, which
            costs nothing; then there are at most five builds, and at least two unless `tol` is kept
            to.
        on_missed_tol: what to do where `tol` cannot be met: "raise" an error that says what was
            reached, or return the "best" coreset there is, whose report says so.
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
        batch_size: rows that are read and moved to the devices at a time; chosen by the memory
            that a row takes if left out. It changes no number.
        pricing_passes: at most so many passes over all rows, where they are not all candidates, for
            rows that would improve the coreset and are none; they join, and the solver runs again.
            So many for each size that `tol` has tried, and in each round.
            "auto" makes up to four of them where the candidates are what is lacking: where the
            error hardly falls from half the size on, and is above a thousandth of a nat, or half of
            `tol`. So it is with a category that has few rows.
        pricing_tol: such a pass is the last one if no row alone would lower the objective
            ‖y − Φw‖² by more than this part of it.
        mesh: the devices that share the rows, one axis; all local devices if left out. Sums over
            rows are the same, bit for bit, on two and on more; on one, and in a process that has
            another number of devices, XLA makes other programs, and their last bit may differ.
            Where several coresets are nearly as good, another may then be found.
        distributed: whether the processes of `jax.distributed` build one coreset together: each is
            given a part of the rows, all get the same coreset, whose row numbers count through the
            processes' rows in their order.
        timeout: seconds after which a process that does not come is an error on all the others.
        checkpoint: a file in which passes over the rows are kept, and from which a build of the
            same data and settings goes on. It stays when the build is done. Each process of several
            has its own, with its number appended.
        checkpoint_every: seconds between two writings of it within a pass; the end of a pass is
            always written.
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
        rounds: int | Literal["auto"] = "auto",
        on_missed_tol: Literal["raise", "best"] = "raise",
        constraint: Constraint | Callable[[np.ndarray], Constraint] | None = None,
        by: str | None = None,
        max_size: int = 2000,
        num_held_out: int = 1000,
        num_candidates: int | None = None,
        data_axes: Any = None,
        plate: str | None = None,
        batch_size: int | None = None,
        pricing_passes: int | Literal["auto"] = "auto",
        pricing_tol: float = 0.01,
        mesh: Mesh | None = None,
        distributed: bool = False,
        timeout: float = 600.0,
        checkpoint: str | os.PathLike | None = None,
        checkpoint_every: float = 30.0,
        progress_bar: bool = True,
    ):
        self.model = model
        if (size is None) == (tol is None):
            raise ValueError(
                f"size is {size!r} and tol is {tol!r}; wanted one of them: size=250 for at most so "
                "many rows, or tol=0.01 for an estimated KL divergence of so many nats."
            )
        if tol is not None and not 0 < tol < np.inf:
            raise ValueError(f"tol is {tol!r}; wanted a positive number of nats, such as 0.01.")
        self.size = None if size is None else check_int("size", size, 1)
        self.tol = tol
        self.weighting = weighting
        self.solver = AIHT2() if solver is None and constraint is not None else solver
        self.constraint = constraint
        self.by = by
        self.num_draws = None if num_draws is None else check_int("num_draws", num_draws, 2)
        self.rounds = rounds if rounds == "auto" else check_int("rounds", rounds, 1)
        if on_missed_tol not in ("raise", "best"):
            raise ValueError(f"on_missed_tol is {on_missed_tol!r}; wanted 'raise' or 'best'.")
        self.on_missed_tol = on_missed_tol
        self.max_size = check_int("max_size", max_size, 1)
        self.num_held_out = check_int("num_held_out", num_held_out, 2)
        self.num_candidates = (
            None if num_candidates is None else check_int("num_candidates", num_candidates, 1)
        )
        self.data_axes = data_axes
        self.plate = plate
        self.batch_size = None if batch_size is None else check_int("batch_size", batch_size, 1)
        self.pricing_passes: int | Literal["auto"] = (
            "auto" if pricing_passes == "auto" else check_int("pricing_passes", pricing_passes, 0)
        )
        if not 0 < pricing_tol < 1:
            raise ValueError(f"pricing_tol is {pricing_tol!r}; wanted a part between 0 and 1.")
        self.pricing_tol = pricing_tol
        if mesh is not None and len(mesh.axis_names) != 1:
            raise ValueError(
                f"mesh has the axes {mesh.axis_names}; wanted one, over which the rows are shared: "
                'jax.make_mesh((4,), ("rows",)).'
            )
        self.mesh = mesh
        self.distributed = distributed
        self.timeout = timeout
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
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
            ValueError: if the model or the data cannot be used, or `tol` cannot be met, or the
                model has other log-likelihoods for the coreset's rows where it is given no others;
                the message says what to do.
            RuntimeError: if the compiler has made a wrong program of the model.
        """
        return self.run_rounds(key, *args, **kwargs)[-1]

    def run_rounds(self, key: PRNGKeyArray, *args: Any, **kwargs: Any) -> list[Coreset]:
        """The coresets after each round, of which `run` returns the last; arguments as in `run`."""
        context = self._context(key, args, kwargs)
        checkpoint = context.checkpoint
        try:
            found = self._run(key, args, kwargs, context)
            if found[-1].likelihood is not None:  # later passes are no part of the build
                found[-1].likelihood.rows.close_checkpoint()
            return found
        except BaseException as error:
            if checkpoint is not None and checkpoint.passes:
                error.add_note(checkpoint.save_after_error())
            raise

    def _run(
        self, key: PRNGKeyArray, args: tuple, kwargs: dict[str, Any], context: PassContext
    ) -> list[Coreset]:
        start_key, weighting_key, draws_key, rows_key, solver_key = jax.random.split(key, 5)
        with context.processes.all_or_none("model"):
            construction = self._construction(start_key, rows_key, args, kwargs, context)
        likelihood, clock = construction.likelihood, construction.clock
        if self.size is not None and self.size >= likelihood.num_data:
            return [whole_coreset(self.model, likelihood, self.size, clock)]
        with clock.stage("rows"):
            wanted = [self.weighting.rows(likelihood, weighting_key), construction.candidates()]
            found = [rows for rows in wanted if rows is not None]
            likelihood.rows.keep(np.concatenate([np.zeros(0, np.int64), *found]))
        with clock.stage("weighting"):
            source = self.weighting.fit(likelihood, weighting_key, show_progress=self.progress_bar)
        pool = DrawPool(likelihood, source, draws_key, self.batch_size, self.progress_bar)
        return self._repair(construction, source, pool, draws_key, solver_key)

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """What `run` is going to take with these arguments: passes, memory and time.

        Each kind of pass is tried on the first batch of rows. What solving takes is not in the
        time; a tolerance may need several solutions, and rounds more passes.

        Args:
            *args: the model's positional arguments.
            **kwargs: the model's keyword arguments.
        """
        key = jax.random.key(0)
        context = self._context(key, args, kwargs, with_checkpoint=False)
        construction = self._construction(key, key, args, kwargs, context)
        return plan_build(construction.likelihood, construction, self.weighting)

    def _construction(
        self,
        start_key: PRNGKeyArray,
        rows_key: PRNGKeyArray,
        args: tuple,
        kwargs: dict[str, Any],
        context: PassContext,
    ) -> Construction:
        clock = Clock()
        with clock.stage("model"):
            likelihood = model_likelihood(
                self.model,
                args,
                kwargs,
                data_axes=self.data_axes,
                plate=self.plate,
                key=start_key,
                context=context,
            )
            if context.checkpoint is not None:
                context.checkpoint.require_same(MODEL_VALUES, likelihood.values_as_text())
        return Construction(
            likelihood=likelihood,
            constraint=self._constraint(likelihood.num_data, args, kwargs),
            solver=self.solver,
            size=self.size,
            tol=self.tol,
            max_size=self.max_size,
            num_draws=self.num_draws,
            num_held_out=self.num_held_out,
            num_candidates=self.num_candidates,
            rows_key=rows_key,
            clock=clock,
            pricing_passes=self.pricing_passes,
            pricing_tol=self.pricing_tol,
        )

    def _context(
        self, key: PRNGKeyArray, args: tuple, kwargs: dict[str, Any], with_checkpoint: bool = True
    ) -> PassContext:
        """Where the rows are evaluated, and where passes over them are kept."""
        processes = DistributedProcesses(self.timeout) if self.distributed else SINGLE_PROCESS
        mesh = self.mesh
        if mesh is None and len(jax.local_devices()) > 1:
            mesh = Mesh(np.array(jax.local_devices()), ("rows",))
        if processes.count > 1:
            processes.agree(settings_of_all(self, key, args, kwargs, processes))
        checkpoint = None
        if with_checkpoint and self.checkpoint is not None:
            path = os.fspath(self.checkpoint)
            if processes.count > 1:
                path = f"{path}.{processes.index}-of-{processes.count}"
            with processes.all_or_none("checkpoint"):
                settings = build_settings(self, key, args, kwargs, processes)
                checkpoint = CheckpointFile(path, settings, interval=self.checkpoint_every)
        return PassContext(mesh, self.batch_size, processes, checkpoint)

    def _repair(
        self,
        construction: Construction,
        source: DrawSource,
        pool: DrawPool,
        draws_key: PRNGKeyArray,
        solver_key: PRNGKeyArray,
    ) -> list[Coreset]:
        """Build until the coreset's own posterior agrees with what it was built under."""
        likelihood, clock = construction.likelihood, construction.clock
        most = MOST_ROUNDS if isinstance(self.rounds, str) else self.rounds
        checker = Checker(likelihood, self.tol, self.num_held_out)
        name = type(self.weighting).__name__
        found: list[Coreset] = []
        history: list[Round] = []
        while True:
            number = len(history) + 1
            construction.embed(pool)
            looks = most > 1 and not checker.is_settled
            worth = None
            if looks and self.rounds == "auto" and number == 1:
                with clock.stage("agreement"):
                    worth, looks = checker.is_worth_a_look(pool)
            choice = construction.build(
                pool,
                jax.random.fold_in(solver_key, number),
                is_final=not looks or number == most,
            )
            if choice is None:
                return [*found, whole_coreset(self.model, likelihood, likelihood.num_data, clock)]
            with clock.stage("model"):
                pool.check_alone(_chosen(choice)[0])
            own_pool = None
            outcome = Round.of(name, choice, worth)
            if looks:
                with clock.stage("agreement"):
                    own_pool, outcome = checker.look(
                        pool, choice, outcome, jax.random.fold_in(draws_key, number)
                    )
            history.append(outcome)
            found.append(self._finish(construction, source, pool, choice, history))
            if own_pool is None or number == most or (checker.is_done and choice.is_within):
                break
            pool, name = own_pool, "coreset posterior"
        self._check_tolerance(found[-1].report, pool)
        return found

    def _check_tolerance(self, report: Report, pool: DrawPool) -> None:
        """Raise where the tolerance is not kept to and an error is wanted."""
        if report.is_within_tol is not False or self.on_missed_tol == "best":
            return
        reached = report.kl + 2 * report.kl_standard_error
        tried = int(report.curve["size"][-1])
        advice = "Raise max_size, or tol, or num_candidates"
        if pool.is_exhausted and tried < self.max_size:
            advice = f"The weighting's {pool.source.limit} draws are few: bring more, or raise tol"
        elif report.held_out_error > _UNLIKE * report.relative_error:
            advice = (
                "The error is at other draws than those that the solver saw, so that more rows "
                "hardly help: the posterior may have several modes, or the weighting long tails"
            )
        elif report.rounds and report.rounds[-1]["agrees"] is False:
            advice = "The coreset's own posterior does not agree with π̂: raise rounds, or max_size"
        limit = f"max_size = {tried}" if tried == self.max_size else str(tried)
        raise ValueError(
            f"tol is {self.tol} nats, but with {limit} rows of {report.num_data} the estimated KL "
            f"divergence is still {reached:.3g} nats, its error included; wanted less. {advice}; "
            "or take the best there is, by on_missed_tol='best'."
        )

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

    def _finish(
        self,
        construction: Construction,
        source: DrawSource,
        pool: DrawPool,
        choice: Choice,
        history: list[Round],
    ) -> Coreset:
        """The coreset of the solution at one place of the path."""
        likelihood, clock = construction.likelihood, construction.clock
        chosen, weights = _chosen(choice)
        indices = chosen if pool.rows is None else pool.rows[chosen]
        if not weights.size:
            raise ValueError(
                "the solver chose no rows: no candidate's log-likelihood goes along with the sum "
                "over all rows. Give more candidates (num_candidates) or other draws (weighting)."
            )
        estimate = _reported(choice.estimate, history[-1])
        some_draw = jax.tree.map(lambda x: x[0], pool.parts("solver")[0].draws)
        kept = tuple(leaf[chosen] for leaf in pool.candidate_data)
        is_within = None
        if self.tol is not None:
            is_within = choice.is_within and estimate.lower <= self.tol
        report = Report(
            num_data=likelihood.num_data,
            size=int(choice.sizes[choice.at]),
            **choice.facts(pool, estimate),
            weighting=type(self.weighting).__name__,
            seconds=dict(clock.seconds),
            peak_memory=peak_memory(),
            tol=self.tol,
            is_within_tol=is_within,
            rounds=[one.to_dict() for one in history],
            passes=dict(likelihood.rows.passes),
            pricing=list(construction.priced),
            rounding=rounding_of(likelihood, some_draw, kept, weights),
        )
        return coreset_of_rows(
            self.model,
            likelihood,
            indices,
            weights,
            report,
            source.approximation,
            DataSummary.of_pool(pool, chosen),
        )


def _chosen(choice: Choice) -> tuple[np.ndarray, np.ndarray]:
    """The places among the candidates of the rows chosen, and their weights."""
    weights = np.asarray(choice.path.weights[choice.at])
    places = np.asarray(choice.path.indices[choice.at], np.int64)
    return places[weights > 0], weights[weights > 0]


def _reported(estimate: Estimate, last: Round) -> Estimate:
    """The estimate under π̂, or the coreset's own where the two differ and that is larger."""
    if last.agrees is not False or last.own_kl is None or last.own_kl_standard_error is None:
        return estimate
    if last.own_kl <= estimate.kl:
        return estimate
    return Estimate(last.own_kl, last.own_kl_standard_error, estimate.error)
