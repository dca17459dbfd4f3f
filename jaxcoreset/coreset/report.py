"""The report of a coreset, in numbers and as text."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxcoreset.coreset.report_table import kl_text, rows_of
from jaxcoreset.data.arrays import require_type
from jaxcoreset.data.dtypes import default_float
from jaxcoreset.data.messages import ShownAsTable, text_table
from jaxcoreset.data.utils import Clock, peak_memory
from jaxcoreset.likelihood.precision import needs_float64, rounding_of
from jaxcoreset.selection.baseline import GaussianBaseline
from jaxcoreset.selection.draws import DrawPool
from jaxcoreset.selection.estimate import LOWER_BOUND_KL, KLEstimate
from jaxcoreset.selection.tolerance import Selection

# In nats. For Gaussians the mean of any linear combination of parameters is then off by little more
# than √0.02 = 0.14 posterior standard deviations, the Monte Carlo error of fifty independent draws.
GOOD_KL = 0.02
# Above it, in nats, a coreset should not be used.
MAX_KL = 1.0


@dataclass(frozen=True)
class Report(ShownAsTable):
    """How a coreset was made, and how close its posterior is to the full one.

    Attributes:
        num_data: the number n of rows of the data.
        size: the maximum number of rows of the coreset.
        num_used: the number of rows of the coreset.
        num_candidates: the number of rows that it was chosen from.
        num_draws: the number S of draws of π̂ that the solver saw.
        num_held_out: the number of draws of π̂ that it did not see.
        relative_error: ‖y − Φw‖/‖y‖ on the solver's draws.
        held_out_error: the same on the held-out draws.
        kl: estimate of the symmetrised Kullback–Leibler divergence between the coreset posterior
            and the full posterior, in nats: the variance over the held-out draws of the difference
            of the two log-likelihoods. It is accurate below about 0.3, and a lower bound above. If
            a size was selected by a tolerance, these draws had no part in the selection. It is
            infinite if it is not known: after an `update` for which the effective sample size of
            the old draws is too small, and after a `merge` of such a coreset.
        kl_standard_error: its Monte Carlo standard error, in nats; infinite where `kl` is.
        solver: the solver's name.
        converged: whether the solver stopped by its own rule.
        weighting: the weighting's name.
        curve: the errors along the solver's path, arrays of one length: "size", "num_used",
            "relative_error", "held_out_error", "kl", "kl_standard_error", "mean_shift" and
            "mean_shift_standard_error"; of `SparseVI` "usable_draws" in place of the last two.
        seconds: wall time by stage.
        peak_memory: the maximum memory of the process so far, in bytes; None if unknown.
        tol: the tolerance, in nats; None if a size was given.
        is_within_tol: whether the tolerance is met, as far as is known; None without one.
        rows_needed: how many rows the tolerance would need if the error kept falling at the same
            rate; None if the tolerance is met, or too few sizes were tried.
        rounds: the results of each build, in order; see `jaxcoreset.selection.Round` for the keys.
            If the estimates of the last build are not similar, `kl` is the larger of the two.
        passes: the number of passes over all rows, by their purpose.
        candidate_searches: for each pass for further candidates the relative decrease of the
            objective by the best row ("largest_decrease"), how many rows joined ("num_added"), and
            the objective before and after ("objective", "objective_after").
        history: what happened to the coreset since it was built, in order. For an "update" (key
            "what") the number of new rows ("num_rows"), the relative effective sample size of the
            old draws for the posterior with the new rows ("relative_ess"), that size for the
            held-out draws ("ess"), and the estimate on these draws as they are ("kl") and weighted
            towards that posterior ("kl_weighted"). The report's `kl` is the larger of the two. But
            if the relative size is below 0.1, or the size below 20, both are meaningless, and `kl`
            is infinite. For a "merge" the number of coresets ("num_coresets"), the sum of their
            estimates ("kl_of_parts"), and that of the reduction ("kl"), weighted towards the
            posterior likewise if that is larger; the report's own is the sum of both. The draws are
            of the Gaussian at the mode, and "relative_ess" and "ess" are its effective sample
            sizes. If an estimate could not be confirmed, why ("doubt").
        rounding: the rounding error of the coreset's log-density in float32, in nats, if it is so
            large that NUTS needs float64, see `Coreset.in_float64`; None otherwise.
        precision: the precision of the log-likelihoods that the build summed, "float32" or
            "float64".
        spike: by how many nats the weighted density is too high at a mode that the full posterior
            does not have; None if none was found. Chains should then start at
            `Coreset.init_params`. An `update` and a `merge` do not look for such a mode: it is that
            of the earlier coreset, or the largest of several.
        other_mode: the distance from the mode, in standard deviations, at which the density of the
            full posterior rises again; None if no such place was found. If there is one, `kl`
            covers the first mode only.
        num_distinct: the number of distinct rows of the data; None if it was not counted. Rows that
            are not in memory are counted only if the first of them suggest that many are equal.
            There is no count after an `update` or a `merge`.
        proxy: "Taylor" if the coreset corrects an expansion of the log-likelihood of all rows, with
            a regression or without; else None.
        unit: what a datum is, "rows" or "groups"; with groups, all counts of rows are counts of
            groups.
        integration: how the groups' effects are integrated out, such as "quadrature, 9 nodes"; None
            without groups.
        integral_kl: what the error of these integrals adds to `kl`, in nats, measured on some
            groups with more accurate integrals; None without groups.
        gaussian_kl: the estimate, on the held-out draws, of the symmetrised KL divergence between
            the posterior and a Gaussian without any rows, in nats. With Laplace weighting the
            Gaussian is the Laplace approximation, and after a `merge` that of the joint posterior.
            With another weighting, and after an `update`, it has the mean and covariance of the
            draws, which have importance weights after an `update`. Above 0.3 it is a lower bound.
            None if it was not measured, or if the draws are too few for a covariance.
        gaussian_kl_standard_error: its standard error.
        gaussian_relative_ess: the effective sample size of the Gaussian's draws for the posterior,
            as a fraction of their number.
        gaussian_k_hat: the shape of the tail of their importance weights; above 0.7 these cannot
            be used. None without ArviZ and after an `update`.
        mean_shift: the largest shift of a posterior mean, in standard deviations, to first order on
            the held-out draws; None if not known. It is that of the parameters, constrained and
            unconstrained, and of deterministic sites of up to 1,000 values that are not computed
            from the rows. The means of other functions of the parameters may shift by up to √KL.
    """

    num_data: int
    size: int
    num_used: int
    num_candidates: int
    num_draws: int
    num_held_out: int
    relative_error: float
    held_out_error: float
    kl: float
    kl_standard_error: float
    solver: str
    converged: bool
    weighting: str
    curve: dict[str, np.ndarray]
    seconds: dict[str, float]
    peak_memory: int | None = None
    tol: float | None = None
    is_within_tol: bool | None = None
    rows_needed: int | None = None
    rounds: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    passes: dict[str, int] = dataclasses.field(default_factory=dict)
    candidate_searches: list[dict[str, float]] = dataclasses.field(default_factory=list)
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    rounding: float | None = None
    precision: str = "float32"
    spike: float | None = None
    other_mode: float | None = None
    num_distinct: int | None = None
    proxy: str | None = None
    unit: str = "rows"
    integration: str | None = None
    integral_kl: float | None = None
    gaussian_kl: float | None = None
    gaussian_kl_standard_error: float | None = None
    gaussian_relative_ess: float | None = None
    gaussian_k_hat: float | None = None
    mean_shift: float | None = None

    @classmethod
    def of_selection(
        cls,
        pool: DrawPool,
        selection: Selection,
        clock: Clock,
        estimate: KLEstimate | None = None,
        baseline: GaussianBaseline | None = None,
        **facts: Any,
    ) -> "Report":
        """The report of rows that were selected from the candidates of a pool.

        Args:
            pool: the draws and candidates.
            selection: what was selected.
            clock: the time by stage.
            estimate: the estimate that is reported; that of the selection if left out.
            baseline: what a Gaussian alone reaches; that of the pool's draws if left out.
            **facts: the attributes that are not known of these.
        """
        at, path = selection.at, selection.path
        baseline = GaussianBaseline.of(pool) if baseline is None else baseline
        estimate = selection.estimate if estimate is None else estimate
        data = pool.data_of(selection.positions)
        return cls(
            num_used=selection.positions.size,
            num_candidates=pool.num_candidates,
            num_draws=pool.count("solver"),
            num_held_out=pool.count("selection") + pool.count("confirmation"),
            relative_error=float(path.relative_error[at]),
            held_out_error=selection.estimate.relative_error,
            kl=estimate.kl,
            kl_standard_error=estimate.standard_error,
            mean_shift=estimate.mean_shift,
            rows_needed=selection.rows_needed,
            solver=path.solver,
            converged=bool(path.converged[at]),
            curve=selection.curve,
            seconds=dict(clock.seconds),
            peak_memory=peak_memory(),
            rounding=rounding_of(
                pool.likelihood, pool.parts("solver")[0].draws, data, selection.weights
            ),
            precision=default_float().name,
            proxy=None if selection.approach == "rows" else "Taylor",
            **({} if baseline is None else baseline.facts()),
            **facts,
        )

    @classmethod
    def without_error(
        cls, what: str, num_used: int, num_data: int, size: int, clock: Clock, **facts: Any
    ) -> "Report":
        """The report of all rows, or of all distinct ones weighted by how often they occur.

        Args:
            what: "all rows" or "distinct rows".
            num_used: their number.
            num_data: the number of rows of the data.
            size: the maximum number of rows.
            clock: the time by stage.
            **facts: further attributes.
        """
        errors = ("relative_error", "held_out_error", "kl", "kl_standard_error")
        counts = {"size": np.array([num_used]), "num_used": np.array([num_used])}
        return cls(
            num_data=num_data,
            size=size,
            num_used=num_used,
            num_candidates=num_used,
            num_draws=0,
            num_held_out=0,
            **dict.fromkeys(errors, 0.0),
            solver=what,
            converged=True,
            weighting="none needed",
            curve=counts | dict.fromkeys(errors, np.zeros(1)),
            seconds=clock.seconds,
            peak_memory=peak_memory(),
            **facts,
        )

    @property
    def gaussian_verdict(self) -> str | None:
        """What a Gaussian alone reaches, in a sentence; None if it was not measured."""
        if self.gaussian_kl is None or self.gaussian_kl_standard_error is None:
            return None
        # A merge has a Laplace approximation of its own, an update has none.
        is_updated = any(step["what"] == "update" for step in self.history)
        is_at_mode = self.weighting == "Laplace" and not is_updated
        of = "at the mode" if is_at_mode else "of the draws' moments"
        what = f"A Gaussian {of}"
        goal = GOOD_KL if self.tol is None else self.tol
        distance = kl_text(self.gaussian_kl, self.gaussian_kl_standard_error)
        if self.gaussian_kl + 2 * self.gaussian_kl_standard_error <= goal:
            return f"{what} is within {distance} nats: no rows are needed for {goal:.2g}."
        return f"{what} is {distance} nats off."

    @property
    def trouble(self) -> str | None:
        """Why the error could not be checked by the coreset's own posterior; None if it could."""
        return self.rounds[-1].get("trouble") if self.rounds else None

    @property
    def doubt(self) -> str | None:
        """Why the estimate is not confirmed, as a clause; None if nothing is known against it.

        After an `update` or a `merge` that is what was known against those of earlier coresets.
        """
        if self.trouble is not None:
            return f"NUTS on the coreset has not mixed ({self.trouble})"
        return next((step["doubt"] for step in self.history if step.get("doubt")), None)

    @property
    def is_bound_only(self) -> bool:
        """True if the estimate is above 0.3 nats, and not that of the coreset's own posterior.

        It is then a lower bound. The coreset's posterior may be where the weighting has no draws.
        Rounds of a build say nothing about the estimate after an `update` or a `merge`.
        """
        last = self.rounds[-1] if self.rounds and not self.history else {}
        return self.kl >= LOWER_BOUND_KL and last.get("own_kl") is None

    @property
    def verdict(self) -> str:
        """What the report says about the coreset, in a sentence."""
        if math.isinf(self.kl):
            return "not known: build a new coreset from all rows."
        distance = kl_text(self.kl, self.kl_standard_error)
        if self.kl > MAX_KL:
            return f"don't use: the coreset's posterior is {distance} nats from the full one."
        if self.doubt is not None:
            return (
                f"not checked: {self.doubt}, so the estimate of {distance} nats could not be "
                "confirmed."
            )
        if self.other_mode is not None:
            return (
                f"one mode only: {distance} nats there, but the full posterior has another mode "
                f"about {self.other_mode:.0f} standard deviations away."
            )
        if self.is_bound_only:
            return (
                f"not confirmed: {distance} nats from the full posterior, which is a lower bound "
                "only, and may be far too low."
            )
        upper = self.kl + 2 * self.kl_standard_error
        if self.tol is not None:
            word = "good" if self.is_within_tol else "above the tolerance"
            return f"{word}: {distance} nats, and the tolerance is {self.tol:.2g}.{self._remedy}"
        word = "good" if upper <= GOOD_KL else "usable with correction"
        return f"{word}: {distance} nats from the full posterior.{self._remedy}"

    @property
    def _remedy(self) -> str:
        """A sentence that the coreset needs float64, if it does."""
        return "" if self.rounding is None else f" But {needs_float64(self.rounding)}."

    def to_dict(self) -> dict[str, Any]:
        """The report as plain numbers, strings and lists, for Python's json.

        An infinite `kl` stays infinite; json writes it as ``Infinity``.
        """
        plain = dataclasses.asdict(self)
        plain["curve"] = {name: np.asarray(values).tolist() for name, values in self.curve.items()}
        return plain

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "Report":
        """The inverse of `to_dict`.

        Raises:
            ValueError: if an attribute is missing or of another type.
        """
        require_type(plain, dict[str, Any], "report")
        plain = _renamed(plain)
        for name in ("rounds", "candidate_searches", "history"):
            plain[name] = [_renamed(one) for one in plain.get(name, [])]
        require_type(plain["curve"], dict[str, list[float]], "curve")
        curve = {name: np.asarray(values) for name, values in plain["curve"].items()}
        report = cls(**{**plain, "curve": curve})
        for field in dataclasses.fields(report):
            require_type(getattr(report, field.name), field.type, field.name)
        str(report)  # what the parts that are dictionaries hold
        return report

    def __str__(self) -> str:
        return text_table("Coreset report", rows_of(self))


# Names in the files of earlier versions.
_RENAMED = {
    "pricing": "candidate_searches",
    "best_gain": "largest_decrease",
    "efficiency": "relative_ess",
    "num_worth": "ess",
}


def _renamed(plain: dict[str, Any]) -> dict[str, Any]:
    return {_RENAMED.get(name, name): value for name, value in plain.items()}
