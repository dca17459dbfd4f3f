"""Coreset MCMC: the draws of chains on the coreset posterior train its weights.

A few chains make one step each on the current coreset posterior, and the covariance of their
log-likelihoods gives a noisy gradient of KL(π_w‖π) in the weights, for one step of Adam. The chains
lag behind the weights, but less and less as the steps become shorter.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PRNGKeyArray, PyTree

from jaxcoreset.builders.posterior_sampler import PosteriorSampler, Sampler
from jaxcoreset.builders.settings import check_type
from jaxcoreset.builders.slice_sampler import SliceSampler
from jaxcoreset.builders.uniform_support import Refined, UniformSupport, atoms_at
from jaxcoreset.likelihood.likelihood import ModelLikelihood

# One for all, since compiled programs are for one optimizer.
_OPTIMIZER = optax.adam(lambda count: 0.1 / jnp.sqrt(count + 1.0))
# By default this many rows for each row of the coreset stand for the data in a step.
_ROWS_PER_ROW = 10


@dataclass(eq=False, kw_only=True)
class CoresetMCMC(UniformSupport):
    """Builds a coreset by coreset MCMC. Use it as you use `CoresetBuilder`.

    Chen and Campbell, "Coreset Markov chain Monte Carlo" (AISTATS 2024, Algorithm 1): k rows drawn
    at random, with weights n/k; then `num_iters` times a step of each of K chains on the coreset
    posterior, and a projected stochastic gradient step in the weights. The result is the coreset
    with the last weights, which you sample like any other coreset. The package has this method for
    comparisons.

    Args:
        model: a NumPyro model whose observations are independent given its parameters.
        size: the number of rows, k.
        num_chains: the number of chains, K, at least 2.
        num_iters: the number of steps.
        optimizer: an optax transformation for the steps, with the weights in units of n/k. The
            default is Adam with the rates 0.1/√t, t = 1, 2, …; the papers tune theirs for each data
            set.
        num_gradient_rows: how many rows represent the data in a step, drawn again for each step; by
            default ten for each row of the coreset.
        sampler: how the chains move; by default `SliceSampler` with one move for each step.
            A `LaplaceSampler` or a function as in `SparseVI` makes independent draws instead.
        weighting: the distribution whose draws measure the report's held-out error and divergence;
            the algorithm itself does not see them. None takes draws of the coreset's own posterior.
        num_held_out: how many such draws to take.
        data_axes: which arguments are data; see `model_likelihood`.
        plate: the name of the data plate, if the model has several that could be it.
        progress_bar: whether to show the stages on a terminal.

    Raises:
        ValueError: if a number is out of range.
        TypeError: if an argument is of the wrong kind.
    """

    num_chains: int = 2
    num_iters: int = 25_000
    optimizer: optax.GradientTransformation = _OPTIMIZER
    sampler: PosteriorSampler | Sampler | None = None

    def __post_init__(self) -> None:
        if self.sampler is None:
            self.sampler = SliceSampler(self.num_chains, 1)
        super().__post_init__()
        self.num_draws = self.num_chains
        if self.num_gradient_rows is None:
            self.num_gradient_rows = _ROWS_PER_ROW * self.size
        expected = "an optax transformation, for instance optax.adam(0.01)"
        check_type("optimizer", self.optimizer, optax.GradientTransformation, expected)

    def _refine(self, *given: Any) -> Refined:
        return _refine(self.optimizer, *given)


@eqx.filter_jit
def _refine(
    optimizer: optax.GradientTransformation,
    program: ModelLikelihood,
    sampler: PosteriorSampler,
    counts: tuple[int, int, int, int],
    data: PyTree,
    kept: PyTree,
    start: PyTree,
    key: PRNGKeyArray,
) -> Refined:
    size, num_rows, num_chains, num_iters = counts
    unit = jax.tree.leaves(data)[0].shape[0] / size

    def move(carry: tuple, turn: Array) -> tuple[tuple, tuple]:
        relative, momenta, state = carry
        draws_key, rows_key = jax.random.split(jax.random.fold_in(key, turn))
        weights = unit * relative
        draws, state, reliable = sampler.draw(program, state, weights, kept, draws_key, num_chains)
        atoms = atoms_at(program, draws, kept, data, num_rows, rows_key)
        # The covariance over K draws without its bias, in units of the weights.
        gradient = -unit * num_chains / (num_chains - 1) * atoms.descent(weights)
        gradient = jnp.where(jnp.isfinite(gradient), gradient, 0)
        updates, momenta = optimizer.update(gradient, momenta, relative)
        relative = jnp.maximum(relative + jnp.asarray(updates), 0)
        return (relative, momenta, state), (atoms.relative_error(weights), reliable)

    ones = jnp.ones(size)
    place_key, key = jax.random.split(key)
    start = sampler.place(program, start, unit * ones, kept, place_key)
    (relative, _, _), (errors, reliable) = jax.lax.scan(
        move, (ones, optimizer.init(ones), start), jnp.arange(num_iters)
    )
    # The error at two draws is noise, which the median over the last tenth is not.
    return unit * relative, jnp.median(errors[-max(1, num_iters // 10) :]), reliable.all()
