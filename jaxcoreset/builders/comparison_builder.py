"""What the builders for comparisons share: settings, the error of their coresets, and the report.

`SparseVI`, `QuasiNewton` and `CoresetMCMC` draw from the coreset posterior while they build. The
error in their report is that at draws which the algorithm did not see.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from jaxcoreset.builders.posterior_sampler import PosteriorSampler, Sampler, Stateless
from jaxcoreset.builders.preparing import warn_of_summaries
from jaxcoreset.builders.settings import check_type
from jaxcoreset.coreset.coreset import Coreset, coreset_of_rows
from jaxcoreset.coreset.report import Report
from jaxcoreset.data.utils import Clock, check_int, peak_memory
from jaxcoreset.likelihood.embedding import centre, log_likelihood_matrix, log_likelihood_sum
from jaxcoreset.likelihood.from_model import model_likelihood
from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params
from jaxcoreset.likelihood.verification import check_alone
from jaxcoreset.selection.estimate import kl_of_residuals
from jaxcoreset.weighting import Laplace, Weighting

# The lowest values of the settings that are numbers, where a builder has them.
_LOWEST = {
    "size": 1,
    "num_chains": 2,
    "num_draws": 2,
    "num_iters": 1,
    "redraw_every": 1,
    "num_candidates": 1,
    "num_gradient_rows": 1,
    "num_held_out": 2,
}


@dataclass(eq=False)
class ComparisonBuilder:
    """A builder that draws from the coreset posterior; its subclasses document the settings."""

    model: Callable
    size: int
    _: KW_ONLY
    num_draws: int = field(init=False)
    num_iters: int
    sampler: PosteriorSampler | Sampler | None
    num_gradient_rows: int | None = None
    weighting: Weighting | None = Laplace()  # noqa: RUF009 - frozen
    num_held_out: int = 1000
    data_axes: Any = None
    plate: str | None = None
    progress_bar: bool = True

    _sampler: PosteriorSampler = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name, one.default)
            if one.name in _LOWEST and value is not one.default:
                setattr(self, one.name, check_int(one.name, value, _LOWEST[one.name]))
        sampler = self.sampler
        if not isinstance(sampler, PosteriorSampler):
            if not callable(sampler) or isinstance(sampler, type):
                raise TypeError(
                    f"sampler is {sampler!r}; expected LaplaceSampler() or another "
                    "PosteriorSampler, or a function of (weights, rows, key, num)."
                )
            sampler = Stateless(sampler)
        self._sampler = sampler
        check_type("weighting", self.weighting, Weighting | None, "a Weighting, or None")

    def _likelihood(
        self, args: tuple, kwargs: dict[str, Any], key: PRNGKeyArray, clock: Clock
    ) -> ModelLikelihood:
        chosen = {"data_axes": self.data_axes, "plate": self.plate, "key": key}
        with clock.stage("model"):
            likelihood = model_likelihood(self.model, args, kwargs, **chosen)
            warn_of_summaries(likelihood)
            return likelihood

    def _held_out_draws(
        self,
        likelihood: ModelLikelihood,
        state: PyTree,
        weights: Float[Array, " k"],
        rows: PyTree,
        keys: tuple[PRNGKeyArray, PRNGKeyArray, PRNGKeyArray],
    ) -> Params:
        """The draws that measure the error: of the weighting, or of these rows if there is none.

        Args:
            likelihood: the model's likelihood and data.
            state: the state of the sampler.
            weights: the weights of the rows.
            rows: the rows.
            keys: to find the weighting, for its draws, and for draws of the coreset posterior.
        """
        fit_key, key, own_key = keys
        if self.weighting is None:
            weighted = state, weights, rows
            return _own_draws(
                self._sampler, likelihood.program, *weighted, own_key, self.num_held_out
            )
        source = self.weighting.fit(likelihood, fit_key, show_progress=self.progress_bar)
        return source.split(key, 2, self.num_held_out)[1]

    def _coreset(
        self,
        likelihood: ModelLikelihood,
        indices: Int[np.ndarray, " k"],
        weights: Float[np.ndarray, " k"],
        curve: dict[str, np.ndarray],
        at: int,
        clock: Clock,
        **facts: Any,
    ) -> Coreset:
        """The rows that have a weight; their errors are those of `curve` at position `at`."""
        used = np.flatnonzero(weights)
        rows = indices[used]
        errors = "relative_error", "held_out_error", "kl", "kl_standard_error"
        report = Report(
            num_data=likelihood.num_data,
            size=int(curve["size"][at]),
            num_used=used.size,
            **{name: float(curve[name][at]) for name in errors},
            solver=type(self).__name__,
            weighting="its own" if self.weighting is None else type(self.weighting).__name__,
            curve=curve,
            seconds=clock.seconds,
            peak_memory=peak_memory(),
            **facts,
        )
        data = likelihood.take(rows)
        return coreset_of_rows(self.model, likelihood, rows, weights[used], data, report)


@eqx.filter_jit
def _own_draws(
    sampler: PosteriorSampler,
    program: ModelLikelihood,
    state: PyTree,
    weights: Float[Array, " k"],
    rows: PyTree,
    key: PRNGKeyArray,
    num: int,
) -> Params:
    """Draws of the coreset posterior, for a report without a weighting; see `PosteriorSampler`."""
    place_key, draws_key = jax.random.split(key)
    state = sampler.place(program, state, weights, rows, place_key)
    return sampler.draw(program, state, weights, rows, draws_key, num)[0]


def held_out_curve(
    likelihood: ModelLikelihood,
    draws: Params,
    indices: np.ndarray,
    weights: Float[np.ndarray, "t k"],
) -> tuple[dict[str, np.ndarray], int]:
    """The error and the divergence of several weights of the same rows, and the number of draws.

    Raises:
        ModelError: if a row's log-likelihood depends on other rows.
    """
    evaluate = likelihood.program.log_likelihood
    chosen = likelihood.take(indices)
    values = log_likelihood_matrix(evaluate, draws, chosen)
    check_alone(likelihood, draws, chosen, values)
    atoms = centre(values)
    target = np.asarray(centre(jnp.asarray(log_likelihood_sum(evaluate, draws, likelihood.data))))
    residuals = target - weights @ np.asarray(atoms)
    kl, standard_error = kl_of_residuals(residuals.astype(np.float64))
    curve = {
        "num_used": np.count_nonzero(weights, axis=1),
        "held_out_error": np.sqrt(kl) / np.linalg.norm(target),
        "kl": kl,
        "kl_standard_error": standard_error,
    }
    return curve, target.size
