"""Quasi-Newton coresets: rows drawn at random, weights by regularised Newton steps.

With f the log-likelihoods of the k rows and L that of all data, the gradient of KL(π_w‖π) in the
weights is −g with g = Cov_{π_w}[f, L − Σ w f], and G = Cov_{π_w}[f, f] takes the place of the
Hessian, to which it is equal if the coreset posterior is exact. Both are estimated from draws of
π_w.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jaxcoreset.builders.posterior_sampler import PosteriorSampler, Sampler
from jaxcoreset.builders.slice_sampler import SliceSampler
from jaxcoreset.builders.uniform_support import Atoms, Refined, UniformSupport, atoms_at
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.solvers.numerics import HIGHEST

# The line search of the first step: a trial's slope may be at most this fraction of the first one,
# a step is shortened by this factor, this often at most.
_SLOPE, _SHORTER, _TRIALS = 0.9, 1.5, 10


@dataclass(eq=False, kw_only=True)
class QuasiNewton(UniformSupport):
    """Builds a coreset by quasi-Newton refinement. Use it as you use `CoresetBuilder`.

    Naik, Rousseau and Campbell, "Fast Bayesian coresets via subsampling and quasi-Newton
    refinement" (NeurIPS 2022, Algorithm 1): k rows drawn at random, without replacement, with
    weights n/k; then `num_iters` times w ← max(0, w + γ (G + τI)⁻¹ g). The length γ of the first
    step is found by a search; it is 1 in the other steps. The package has this method for
    comparisons.

    Args:
        model: a NumPyro model whose observations are independent given its parameters.
        size: the number of rows, k.
        num_draws: draws of the coreset posterior for each step, S.
        num_iters: the number of steps.
        regularisation: τ, in squared nats. It also keeps directions that the draws do not show.
        num_gradient_rows: how many rows represent the data in a step, drawn again for each step;
            all by default.
        sampler: how to draw from the coreset posterior: `SliceSampler`, chains that go on from
            step to step; `LaplaceSampler`; or a function as in `SparseVI`.
        weighting: the distribution whose draws measure the report's held-out error and divergence;
            the algorithm itself does not see them. None takes draws of the coreset's own posterior.
        num_held_out: how many such draws to take.
        data_axes: which arguments are data; see `model_likelihood`.
        plate: the name of the data plate, if several could be it.
        progress_bar: whether to show the stages on a terminal.

    Raises:
        ValueError: if a number is out of range; TypeError if it has the wrong type.
    """

    num_draws: int = 500
    num_iters: int = 20
    regularisation: float = 0.01
    sampler: PosteriorSampler | Sampler | None = SliceSampler()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.regularisation > 0:
            raise ValueError(
                f"regularisation is {self.regularisation!r}; expected a positive number."
            )
        self.regularisation = float(self.regularisation)

    def _refine(self, *given: Any) -> Refined:
        return _refine(self.regularisation, *given)


@eqx.filter_jit
def _refine(
    regularisation: float,
    program: ModelLikelihood,
    sampler: PosteriorSampler,
    counts: tuple[int, int, int, int],
    data: PyTree,
    kept: PyTree,
    start: PyTree,
    key: PRNGKeyArray,
) -> Refined:
    size, num_rows, num_draws, num_iters = counts

    def embed(state: PyTree, weights: Array, key: PRNGKeyArray) -> tuple[Atoms, PyTree, Array]:
        draws_key, rows_key = jax.random.split(key)
        drawn = sampler.draw(program, state, weights, kept, draws_key, num_draws)
        return atoms_at(program, drawn[0], kept, data, num_rows, rows_key), *drawn[1:]

    def newton(atoms: Atoms, weights: Array) -> Float[Array, " k"]:
        covariance = jnp.matmul(atoms.kept, atoms.kept.T, precision=HIGHEST)
        regular = covariance + regularisation * jnp.eye(size, dtype=covariance.dtype)
        step = jax.scipy.linalg.solve(regular, atoms.descent(weights), assume_a="pos")
        return jnp.where(jnp.isfinite(step), step, 0)

    def searched(atoms: Atoms, state: PyTree, weights: Array, step: Array) -> Float[Array, ""]:
        """The length of the first step, by the slope at its end under draws from there."""
        slope = jnp.vdot(atoms.descent(weights), step)

        def shorten(trial: tuple) -> tuple:
            _, turn = trial
            end = jnp.maximum(weights + _SHORTER**-turn * step, 0)
            there, _, _ = embed(state, end, jax.random.fold_in(key, num_iters + turn.astype(int)))
            ratio = jnp.vdot(there.descent(end), step) / slope
            return (ratio > 0) & (ratio < _SLOPE), turn + 1

        first = jnp.array(False), jnp.zeros((), step.dtype)
        _, num = jax.lax.while_loop(lambda s: ~s[0] & (s[1] < _TRIALS), shorten, first)
        return _SHORTER ** (1 - num)

    def move(carry: tuple, turn: Array) -> tuple[tuple, tuple]:
        weights, state = carry
        atoms, state, reliable = embed(state, weights, jax.random.fold_in(key, turn))
        step = newton(atoms, weights)
        one = jnp.ones((), step.dtype)
        length = jax.lax.cond(turn == 0, lambda: searched(atoms, state, weights, step), lambda: one)
        error = atoms.relative_error(weights)
        return (jnp.maximum(weights + length * step, 0), state), (error, reliable)

    weights = jnp.full(size, jax.tree.leaves(data)[0].shape[0] / size)
    place_key, key = jax.random.split(key)
    first = weights, sampler.place(program, start, weights, kept, place_key)
    (weights, _), (errors, reliable) = jax.lax.scan(move, first, jnp.arange(num_iters))
    return weights, errors[-1], reliable.all()
