"""Sparse variational inference: a coreset that needs no weighting distribution to start from.

Other builds compare log-likelihoods at draws of one distribution π̂ that is found beforehand. Here
the draws come from the *coreset posterior* π_w itself, anew for every choice and every change of
the weights, and what is made small is KL(π_w‖π) directly. With f_n the log-likelihood of datum n
and L = Σ_n f_n, its gradient in the weights is −Cov_{π_w}[f, L − Σ_m w_m f_m].

What it costs is draws: T of S for every row. So a choice and its T steps are one compiled call,
the same for every number of rows; the mode of π_w and the weights start where they were; and the
draws of a step are one batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PRNGKeyArray, PyTree

from jaxcoreset.builders.posterior_sampler import (
    LaplaceSampler,
    PosteriorSampler,
    Sampler,
    Stateless,
)
from jaxcoreset.builders.sparse_vi_step import Growth, Outcome, State
from jaxcoreset.coreset.coreset import Coreset, coreset_of_rows, whole_coreset
from jaxcoreset.coreset.report import Report
from jaxcoreset.data.utils import Clock, check_int, peak_memory, progress_bar
from jaxcoreset.likelihood.embedding import centre, log_likelihood_matrix, log_likelihood_sum
from jaxcoreset.likelihood.from_model import model_likelihood
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.verification import check_alone, check_program
from jaxcoreset.weighting import Laplace, Weighting

# Up to here the sums over the data are exact; beyond, over so many rows drawn anew each time.
_ALL_ROWS = 10_000
_CANDIDATES = 2_000
# So often draws are made for one choice, until two of them have finite log-likelihoods.
_ATTEMPTS = 10


class SparseVI:
    """Builds a coreset by sparse variational inference; configured and run as `CoresetBuilder` is.

    Algorithm 1 of Campbell and Beronov, "Sparse variational inference: Bayesian coresets from
    scratch" (NeurIPS 2019, section 3), as Zhang et al. (2021, section 5) compare with it. Starting
    from no rows, `size` times: draw from the coreset posterior π_w; take the row whose
    log-likelihood f_n has the largest correlation with L − Σ w f, or the largest absolute one if it
    has weight already; then `num_iters` steps of projected stochastic gradient on KL(π_w‖π) in the
    weights of all the rows taken, each with `num_draws` draws. The best row may be one that is
    there already, so that fewer rows than `size` can come out.

    At first the draws are nearly those of the prior, and there a likelihood can under- or overflow:
    a Poisson rate of zero under a positive count has the log-likelihood −∞. Draws at which a row's
    log-likelihood is not finite are left out, so that a choice or gradient is that of π_w where the
    likelihood can be computed; the posterior has no mass elsewhere. ``report.curve`` says under
    "usable_draws" what fraction was left in each iteration, for its choice or for its steps,
    whichever is less. Where fewer than two draws were, the
    choice is made again with other draws, ten times at most.

    Args:
        model: a NumPyro model whose observations are independent given its parameters.
        size: at most so many rows, and so many iterations.
        num_draws: draws of the coreset posterior per choice and per gradient, S.
        num_iters: changes of the weights per row chosen, T.
        learning_rate: the step length γ_t of change t = 1, …, T; 1/t if left out, as the papers
            have it. With few rows among many data it is short: a weight of a hundred takes many
            choices to grow.
        optimizer: the steps as an optax transformation, begun anew for every choice. If left out,
            Adam with `learning_rate`, as in the authors' programs: plain ``optax.sgd`` takes steps
            as long as a gradient that grows with the data, and does worse. Weights that it makes
            negative become zero.
        sampler: how the coreset posterior is drawn from: `LaplaceSampler`, or where the model has a
            closed form any traceable function ``sampler(weights, rows, key, num)`` that returns a
            dictionary of unconstrained parameters with leading axis `num`. `rows` are the k rows
            laid out as `ModelLikelihood.data`; those that are not used yet have weight 0.
        redraw_every: so many steps use the same draws, which count π_w/π_v times after the weights
            moved from v to w. 1 is the papers'; 10 costs about a tenth.
        num_candidates: rows that each choice is made among, drawn anew for it; all where
            n ≤ 10,000, and else 2,000.
        num_gradient_rows: rows that stand for the data in a gradient, counted n/m times and drawn
            anew for it; all where n ≤ 10,000, and else 10,000.
        weighting: where the report's held-out error and divergence are measured: draws of this
            weighting distribution, which the algorithm itself does not see. None for draws of the
            coreset's own posterior.
        num_held_out: how many such draws.
        data_axes: which arguments are data; see `model_likelihood`.
        plate: the name of the data plate, if the model has several that could be it.
        progress_bar: whether to show progress on a terminal.

    Raises:
        ValueError: if a number is out of range, or both `learning_rate` and `optimizer` are given.
        TypeError: if an argument is of the wrong kind.
    """

    def __init__(
        self,
        model: Callable,
        size: int,
        *,
        num_draws: int = 100,
        num_iters: int = 100,
        learning_rate: optax.Schedule | None = None,
        optimizer: optax.GradientTransformation | None = None,
        sampler: PosteriorSampler | Sampler = LaplaceSampler(),  # noqa: B008 - frozen
        redraw_every: int = 1,
        num_candidates: int | None = None,
        num_gradient_rows: int | None = None,
        weighting: Weighting | None = Laplace(),  # noqa: B008 - frozen, like every weighting
        num_held_out: int = 1000,
        data_axes: Any = None,
        plate: str | None = None,
        progress_bar: bool = True,
    ):
        self.model = model
        self.size = check_int("size", size, 1)
        self.num_draws = check_int("num_draws", num_draws, 2)
        self.num_iters = check_int("num_iters", num_iters, 1)
        self.redraw_every = check_int("redraw_every", redraw_every, 1)
        if self.num_iters % self.redraw_every:
            raise ValueError(
                f"redraw_every is {redraw_every} and num_iters is {num_iters}; wanted a divisor of "
                "num_iters."
            )
        self.optimizer = _optimizer(learning_rate, optimizer)
        if not isinstance(sampler, PosteriorSampler):
            if not callable(sampler) or isinstance(sampler, type):
                raise TypeError(
                    f"sampler is {sampler!r}; wanted LaplaceSampler() or a function of (weights, "
                    "rows, key, num)."
                )
            sampler = Stateless(sampler)
        self.sampler = sampler
        self.num_candidates = _optional("num_candidates", num_candidates)
        self.num_gradient_rows = _optional("num_gradient_rows", num_gradient_rows)
        if weighting is not None and not isinstance(weighting, Weighting):
            raise TypeError(f"weighting is {weighting!r}; wanted a Weighting, or None.")
        self.weighting = weighting
        self.num_held_out = check_int("num_held_out", num_held_out, 2)
        self.data_axes = data_axes
        self.plate = plate
        self.progress_bar = progress_bar

    def run(self, key: PRNGKeyArray, *args: Any, **kwargs: Any) -> Coreset:
        """Build a coreset of the data in the model's arguments.

        Args:
            key: a JAX random key; the same key gives the same coreset.
            *args: the model's positional arguments.
            **kwargs: the model's keyword arguments.

        Returns:
            The coreset after the last iteration; its ``report.curve`` has those before it.

        Raises:
            ValueError: if the model or the data cannot be used, there are not two draws at which
                every log-likelihood is finite, or no row has a weight in the end.
            ModelError, RuntimeError: if a row's log-likelihood depends on other rows, or the
                compiled program is wrong, see `check_program`.
        """
        path = self.run_path(key, *args, **kwargs)
        if self.size not in path:
            raise ValueError(
                f"no row has a weight after {self.size} choices; wanted at least one. Give more "
                "iterations (num_iters), a longer step (learning_rate) or more draws (num_draws)."
            )
        return path[self.size]

    def run_path(self, key: PRNGKeyArray, *args: Any, **kwargs: Any) -> dict[int, Coreset]:
        """The coresets of every size up to `size`, from one run; arguments and errors as in `run`.

        Returns:
            From k = 1, …, `size` to the coreset after k iterations, in increasing order; a k after
            which no row has a weight is left out. Where `size` is not less than n, all the rows
            under `size` alone.
        """
        model_key, weighting_key, held_out_key, path_key = jax.random.split(key, 4)
        clock = Clock()
        with clock.stage("model"):
            likelihood = model_likelihood(
                self.model,
                args,
                kwargs,
                data_axes=self.data_axes,
                plate=self.plate,
                key=model_key,
            )
        if self.size >= likelihood.num_data:
            return {self.size: whole_coreset(self.model, likelihood, self.size, clock)}
        path = self._grow(likelihood, path_key, clock)
        with clock.stage("held-out error"):
            curve, num_held_out = self._measure(likelihood, path, weighting_key, held_out_key)
        return {
            at + 1: self._coreset(likelihood, path, curve, num_held_out, at, clock)
            for at in range(self.size)
            if path.weights[at].any()
        }

    def _grow(self, likelihood: ModelLikelihood, key: PRNGKeyArray, clock: Clock) -> "_Path":
        """The iterations, each a call of one compiled function."""
        n = likelihood.num_data
        growth = Growth(
            likelihood=likelihood,
            sampler=self.sampler,
            optimizer=self.optimizer,
            size=self.size,
            num_draws=self.num_draws,
            num_iters=self.num_iters,
            redraw_every=self.redraw_every,
            num_candidates=min(n, self.num_candidates or (n if n <= _ALL_ROWS else _CANDIDATES)),
            num_gradient_rows=min(n, self.num_gradient_rows or _ALL_ROWS),
        )
        data = jax.tree.map(jnp.asarray, likelihood.data)
        state = growth.start()
        with clock.stage("compilation"):
            step = jax.jit(growth.step).lower(data, state, key).compile()
        weights, outcomes = [], []
        with (
            clock.stage("choices and weights"),
            progress_bar(self.size, "SparseVI", show=self.progress_bar, unit="rows") as bar,
        ):
            for at in range(self.size):
                state, outcome = _first_usable(step, data, state, jax.random.fold_in(key, at))
                weights.append(np.asarray(state.weights))
                outcomes.append(outcome)
                bar.update(1)
        return _Path(
            growth, state, np.asarray(state.indices, np.int64), np.stack(weights), outcomes
        )

    def _measure(
        self,
        likelihood: ModelLikelihood,
        path: "_Path",
        weighting_key: PRNGKeyArray,
        key: PRNGKeyArray,
    ) -> tuple[dict[str, np.ndarray], int]:
        """The errors along the path on draws that it did not see, and how many those were."""
        if self.weighting is None:
            draws, _, _ = jax.jit(self.sampler.draw, static_argnums=(0, 5))(
                likelihood,
                path.state.sampler,
                path.state.weights,
                tuple(jnp.asarray(leaf) for leaf in likelihood.take(path.indices)),
                key,
                self.num_held_out,
            )
        else:
            source = self.weighting.fit(likelihood, weighting_key, show_progress=self.progress_bar)
            _, draws = source.split(key, 2, self.num_held_out)
        evaluate = likelihood.log_likelihood
        chosen = likelihood.take(path.indices)
        values = log_likelihood_matrix(evaluate, draws, chosen)
        check_program(likelihood, draws, chosen, values)
        check_alone(likelihood, draws, chosen, values)
        atoms = centre(values)
        target = np.asarray(centre(log_likelihood_sum(evaluate, draws, likelihood.data)))
        residuals = target - path.weights @ np.asarray(atoms)
        # Entries are over √S: times S, their squares are draws of the squared difference.
        squares = target.size * residuals.astype(np.float64) ** 2
        kl = squares.mean(1)
        curve = {
            "size": np.arange(1, self.size + 1),
            "num_used": np.count_nonzero(path.weights, axis=1),
            "held_out_error": np.sqrt(kl) / np.linalg.norm(target),
            "kl": kl,
            "kl_standard_error": squares.std(1) / np.sqrt(target.size),
            "relative_error": path.relative_error,
            "usable_draws": path.usable_draws,
        }
        return curve, target.size

    def _coreset(
        self,
        likelihood: ModelLikelihood,
        path: "_Path",
        curve: dict[str, np.ndarray],
        num_held_out: int,
        at: int,
        clock: Clock,
    ) -> Coreset:
        """The coreset after iteration `at`, counted from 0."""
        slots = np.flatnonzero(path.weights[at])
        slots = slots[np.argsort(path.indices[slots])]
        indices = path.indices[slots]
        report = Report(
            num_data=likelihood.num_data,
            size=at + 1,
            num_used=slots.size,
            num_candidates=path.growth.num_candidates,
            num_draws=self.num_draws,
            num_held_out=num_held_out,
            relative_error=float(curve["relative_error"][at]),
            held_out_error=float(curve["held_out_error"][at]),
            kl=float(curve["kl"][at]),
            kl_standard_error=float(curve["kl_standard_error"][at]),
            solver="SparseVI",
            converged=all(bool(outcome.is_reliable) for outcome in path.outcomes[: at + 1]),
            weighting="its own" if self.weighting is None else type(self.weighting).__name__,
            curve=curve,
            seconds=clock.seconds,
            peak_memory=peak_memory(),
        )
        return coreset_of_rows(self.model, likelihood, indices, path.weights[at, slots], report)


@dataclass(frozen=True)
class _Path:
    """What the iterations left: the slots' rows, and their weights after each iteration."""

    growth: Growth
    state: State
    indices: np.ndarray
    weights: np.ndarray
    outcomes: list[Outcome]

    @property
    def relative_error(self) -> np.ndarray:
        return np.array([float(outcome.relative_error) for outcome in self.outcomes])

    @property
    def usable_draws(self) -> np.ndarray:
        return np.array([float(outcome.usable_draws) for outcome in self.outcomes])


def _first_usable(
    step: Callable, data: PyTree, state: State, key: PRNGKeyArray
) -> tuple[State, Outcome]:
    """An iteration with draws among which a choice can be made; most often the first ones."""
    for attempt in range(_ATTEMPTS):
        tried = key if attempt == 0 else jax.random.fold_in(key, attempt)
        new, outcome = step(data, state, tried)
        if outcome.can_choose:
            return new, outcome
    raise ValueError(
        "the log-likelihood is not finite at draws of the coreset posterior with "
        f"{int(state.count)} rows, {_ATTEMPTS} times over; at first these are draws of the prior. "
        "Give a proper prior, or a tighter one, or rescale the data, or give a sampler that keeps "
        "to where the log-likelihood is finite."
    )


def _optimizer(
    learning_rate: optax.Schedule | None, optimizer: optax.GradientTransformation | None
) -> optax.GradientTransformation:
    """The optimizer asked for; optax counts steps from 0 and the papers from 1."""
    if optimizer is not None:
        if learning_rate is not None:
            raise ValueError(
                "both learning_rate and optimizer are given; wanted one of them: put the learning "
                "rate into the optimizer."
            )
        if not isinstance(optimizer, optax.GradientTransformation):
            raise TypeError(
                f"optimizer is {optimizer!r}; wanted an optax transformation, for instance "
                "optax.sgd(0.01)."
            )
        return optimizer
    if learning_rate is None:
        return optax.adam(lambda count: 1 / (count + 1))
    if not callable(learning_rate):
        raise TypeError(
            f"learning_rate is {learning_rate!r}; wanted a function of the step t = 1, 2, …, for "
            "instance lambda t: 1 / t."
        )
    return optax.adam(lambda count: learning_rate(count + 1))


def _optional(name: str, value: int | None) -> int | None:
    return None if value is None else check_int(name, value, 1)
