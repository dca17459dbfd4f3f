"""Sparse variational inference: a coreset that needs no weighting distribution to start from.

Other builders compare log-likelihoods at draws of one distribution π̂, which they find first. Here
the draws come from the *coreset posterior* π_w itself, with new draws for every choice and every
change of the weights, and the algorithm minimises KL(π_w‖π) directly. With f_n the log-likelihood
of datum n and L = Σ_n f_n, its gradient in the weights is −Cov_{π_w}[f, L − Σ_m w_m f_m].

The draws are what is expensive: T times S of them for every row. So a choice and its T steps are
one compiled call, the same for every number of rows; the search for the mode of π_w starts at the
previous mode; and the draws of a step are one batch.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, PRNGKeyArray, PyTree

from jaxcoreset.builders.comparison_builder import ComparisonBuilder, held_out_curve
from jaxcoreset.builders.posterior_sampler import LaplaceSampler, PosteriorSampler, Sampler
from jaxcoreset.builders.settings import check_type
from jaxcoreset.builders.sparse_vi_step import Growth, Outcome, State
from jaxcoreset.coreset.coreset import Coreset
from jaxcoreset.coreset.exact import whole_coreset
from jaxcoreset.data.utils import Clock, progress_bar
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.trace import one_at_a_time
from jaxcoreset.solvers.numerics import as_key

# Up to this n the sums over the data are exact; beyond, this many rows are drawn for each sum.
_ALL_ROWS = 10_000
_CANDIDATES = 2_000
# How often draws are made for one choice, until two of them have finite log-likelihoods.
_ATTEMPTS = 10
# One for all, since compiled programs are for one optimizer.
_ADAM = optax.adam(lambda count: 1 / (count + 1))
_STEP: Any = eqx.filter_jit(Growth.step)


@dataclass(eq=False, kw_only=True)
class SparseVI(ComparisonBuilder):
    """Builds a coreset by sparse variational inference. Use it as you use `CoresetBuilder`.

    Algorithm 1 of Campbell and Beronov, "Sparse variational inference: Bayesian coresets from
    scratch" (NeurIPS 2019, section 3), a baseline of Zhang et al. (2021, section 5). It starts
    without rows and repeats `size` times: draw from the coreset posterior π_w; take the row whose
    log-likelihood f_n has the largest correlation with L − Σ w f, or the largest absolute
    correlation if the row has weight already; then make `num_iters` steps of projected stochastic
    gradient on KL(π_w‖π) in the weights of all rows taken, each with `num_draws` draws. The best
    row may be in the coreset already, so the result can have fewer rows than `size`.

    The first draws are nearly draws of the prior, at which a likelihood can under- or overflow: a
    Poisson rate of zero with a positive count has the log-likelihood −∞. Draws at which a row's
    log-likelihood is not finite are left out, so a choice or a gradient is that of π_w restricted
    to where the likelihood can be computed; the posterior has no mass elsewhere.
    ``report.curve["usable_draws"]`` has the fraction that was left in each iteration, for its
    choice or for its steps, whichever is smaller. If fewer than two draws are left, the choice is
    repeated with other draws, up to ten times.

    Args:
        model: a NumPyro model whose observations are independent given its parameters.
        size: the number of iterations, which is the maximum number of rows.
        num_draws: draws of the coreset posterior per choice and per gradient, S.
        num_iters: changes of the weights per row chosen, T.
        learning_rate: the step length γ_t of change t = 1, …, T; by default 1/t, as in the papers.
            That is short if few rows stand for many: a weight of a hundred takes many choices to
            grow.
        optimizer: an optax transformation for the steps, which is initialised again for every
            choice. The default is Adam with `learning_rate`, as in the authors' programs; the steps
            of plain ``optax.sgd`` are proportional to a gradient that grows with the data, and its
            results are worse. Weights that become negative are set to zero.
        sampler: how to draw from the coreset posterior: `LaplaceSampler`, or, if the model has a
            closed form, any traceable function ``sampler(weights, rows, key, num)`` that returns a
            dictionary of unconstrained parameters with leading axis `num`. `rows` are the k rows
            laid out as `ModelLikelihood.data`; rows that are not used yet have weight 0.
        redraw_every: how many steps use the same draws, with importance weights π_w/π_v after the
            weights moved from v to w. The papers redraw at every step (1); 10 costs about a tenth.
        num_candidates: how many rows each choice is made from, drawn again for each choice; by
            default all rows up to n = 10,000 and 2,000 beyond.
        num_gradient_rows: how many rows m represent the data in a gradient, counted n/m times and
            drawn again for each gradient; by default all rows up to n = 10,000 and 10,000 beyond.
        weighting: the distribution whose draws measure the report's held-out error and divergence;
            the algorithm itself does not see them. None takes draws of the coreset's own posterior.
        num_held_out: how many such draws to take.
        data_axes: which arguments are data; see `model_likelihood`.
        plate: the name of the data plate, if the model has several that could be it.
        progress_bar: whether to show progress on a terminal.

    Raises:
        ValueError: if a number is out of range, or both `learning_rate` and `optimizer` are given.
        TypeError: if an argument is of the wrong kind.
    """

    num_draws: int = 100
    num_iters: int = 100
    learning_rate: optax.Schedule | None = None
    optimizer: optax.GradientTransformation | None = None
    sampler: PosteriorSampler | Sampler | None = LaplaceSampler()  # noqa: RUF009 - frozen
    redraw_every: int = 1
    num_candidates: int | None = None
    _optimizer: optax.GradientTransformation = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_iters % self.redraw_every:
            raise ValueError(
                f"redraw_every is {self.redraw_every} and num_iters is {self.num_iters}; expected "
                "a divisor of num_iters."
            )
        self._optimizer = _optimizer(self.learning_rate, self.optimizer)

    def run(self, key: PRNGKeyArray | int, *args: Any, **kwargs: Any) -> Coreset:
        """Build a coreset of the data in the model's arguments.

        Args:
            key: a JAX random key or an integer seed; the same key gives the same coreset.
            *args: the model's positional arguments.
            **kwargs: the model's keyword arguments.

        Returns:
            The coreset after the last iteration; its ``report.curve`` has those before it.

        Raises:
            ValueError: if the model or the data cannot be used, there are not two draws at which
                every log-likelihood is finite, or no row has a weight in the end.
            ModelError: if a row's log-likelihood depends on other rows.
        """
        path = self.run_path(key, *args, **kwargs)
        if self.size not in path:
            raise ValueError(
                f"no row has a weight after {self.size} choices; expected at least one. Give more "
                "iterations (num_iters), a longer step (learning_rate) or more draws (num_draws)."
            )
        return path[self.size]

    @one_at_a_time
    def run_path(self, key: PRNGKeyArray | int, *args: Any, **kwargs: Any) -> dict[int, Coreset]:
        """The coresets of every size up to `size`, from one run; arguments and errors as in `run`.

        Returns:
            A dictionary from k = 1, …, `size` to the coreset after k iterations, in increasing
            order, without each k after which no row has a weight. If `size` is at least n, the only
            entry is `size`, with all rows.
        """
        model_key, weighting_key, held_out_key, path_key = jax.random.split(as_key(key), 4)
        clock = Clock(show=self.progress_bar)
        likelihood = self._likelihood(args, kwargs, model_key, clock)
        if self.size >= likelihood.num_data:
            return {self.size: whole_coreset(self.model, likelihood, self.size, clock)}
        state, weights, outcome = self._grow(likelihood, path_key, clock)
        indices = np.asarray(state.indices, np.int64)
        with clock.stage("held-out error"):
            rows = tuple(jnp.asarray(leaf) for leaf in likelihood.take(indices))
            weighted = state.sampler, state.weights, rows
            keys = weighting_key, held_out_key, held_out_key
            draws = self._held_out_draws(likelihood, *weighted, keys)
            curve, num_held_out = held_out_curve(likelihood, draws, indices, weights)
        curve["size"] = np.arange(1, self.size + 1)
        curve["relative_error"] = np.asarray(outcome.relative_error)
        curve["usable_draws"] = np.asarray(outcome.usable_draws)
        reliable = np.logical_and.accumulate(outcome.is_reliable)
        return {
            at + 1: self._coreset(
                likelihood,
                indices,
                weights[at],
                curve,
                at,
                clock,
                num_candidates=self._num_candidates(likelihood.num_data),
                num_draws=self.num_draws,
                num_held_out=num_held_out,
                converged=bool(reliable[at]),
            )
            for at in range(self.size)
            if weights[at].any()
        }

    def _num_candidates(self, n: int) -> int:
        return min(n, self.num_candidates or (n if n <= _ALL_ROWS else _CANDIDATES))

    def _grow(
        self, likelihood: ModelLikelihood, key: PRNGKeyArray, clock: Clock
    ) -> tuple[State, Float[np.ndarray, "t k"], Outcome]:
        """All iterations, each a call of one compiled function.

        Returns:
            The last state, and the weights and outcomes of all iterations.
        """
        n = likelihood.num_data
        growth = Growth(
            likelihood=likelihood.program,
            sampler=self._sampler,
            optimizer=self._optimizer,
            size=self.size,
            num_draws=self.num_draws,
            num_iters=self.num_iters,
            redraw_every=self.redraw_every,
            num_candidates=self._num_candidates(n),
            num_gradient_rows=min(n, self.num_gradient_rows or _ALL_ROWS),
        )
        data = jax.tree.map(jnp.asarray, likelihood.data)
        state = growth.start(likelihood)
        with clock.stage("compilation"):
            step = _STEP.lower(growth, data, state, key).compile()
        weights, outcomes = [], []
        with (
            clock.stage("choices and weights"),
            progress_bar(self.size, "SparseVI", show=self.progress_bar, unit="rows") as bar,
        ):
            for at in range(self.size):
                state, outcome = _first_usable(
                    functools.partial(step, growth), data, state, jax.random.fold_in(key, at)
                )
                weights.append(np.asarray(state.weights))
                outcomes.append(outcome)
                bar.update(1)
        outcome = jax.tree.map(lambda *x: np.array(x, np.float64), *outcomes)
        return state, np.stack(weights), outcome


def _first_usable(
    step: Callable, data: PyTree, state: State, key: PRNGKeyArray
) -> tuple[State, Outcome]:
    """An iteration whose draws allow a choice; usually the first attempt."""
    for attempt in range(_ATTEMPTS):
        tried = key if attempt == 0 else jax.random.fold_in(key, attempt)
        new, outcome = step(data, state, tried)
        if outcome.can_choose:
            return new, outcome
    raise ValueError(
        "the log-likelihood is not finite at draws of the coreset posterior with "
        f"{int(state.count)} rows, in {_ATTEMPTS} attempts; the first draws are draws of the "
        "prior. Use a proper or a tighter prior, rescale the data, or give a sampler that stays "
        "where the log-likelihood is finite."
    )


def _optimizer(
    learning_rate: optax.Schedule | None, optimizer: optax.GradientTransformation | None
) -> optax.GradientTransformation:
    """The requested optimizer; optax counts steps from 0 and the papers from 1."""
    if optimizer is not None:
        if learning_rate is not None:
            raise ValueError(
                "both learning_rate and optimizer are given; expected one of them: put the "
                "learning rate into the optimizer."
            )
        expected = "an optax transformation, for instance optax.sgd(0.01)"
        check_type("optimizer", optimizer, optax.GradientTransformation, expected)
        return optimizer
    if learning_rate is None:
        return _ADAM
    if not callable(learning_rate):
        raise TypeError(
            f"learning_rate is {learning_rate!r}; expected a function of the step t = 1, 2, …, for "
            "instance lambda t: 1 / t."
        )
    return optax.adam(lambda count: learning_rate(count + 1))
