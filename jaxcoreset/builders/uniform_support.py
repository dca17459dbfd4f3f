"""Coresets whose rows are drawn at random, and whose weights are then improved.

Construction methods that were published after 2021 differ from `SparseVI` in that they do not
choose rows: a uniform subsample is the support, and all work goes into its weights. This module has
what `QuasiNewton` and `CoresetMCMC` share: the rows drawn, and the embedding.
"""

import abc
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from jaxcoreset.builders.comparison_builder import ComparisonBuilder, held_out_curve
from jaxcoreset.coreset.coreset import Coreset
from jaxcoreset.coreset.exact import whole_coreset
from jaxcoreset.data.dtypes import default_float
from jaxcoreset.data.utils import Clock
from jaxcoreset.likelihood.embedding import centre
from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params
from jaxcoreset.likelihood.trace import one_at_a_time
from jaxcoreset.solvers.numerics import HIGHEST, as_key

# How many log-likelihoods are computed at a time for the sum over the data.
_BLOCK = 5_000_000

Refined = tuple[Float[Array, " k"], Float[Array, ""], Bool[Array, ""]]


@dataclass(eq=False)
class UniformSupport(ComparisonBuilder, abc.ABC):
    """Rows drawn at random with weights n/k, which a subclass improves."""

    @abc.abstractmethod
    def _refine(self, *given: Any) -> Refined:
        """Weights for the rows drawn, the relative error at the last draws, and reliability.

        Args:
            *given: the likelihood, the sampler, the numbers of rows of the coreset, of rows for the
                data, of draws and of steps; the data, the rows drawn, the sampler's state, a key.
        """

    @one_at_a_time
    def run(self, key: PRNGKeyArray | int, *args: Any, **kwargs: Any) -> Coreset:
        """Build a coreset of the data in the model's arguments.

        Args:
            key: a JAX random key or an integer seed; the same key gives the same coreset.
            *args: the model's positional arguments.
            **kwargs: the model's keyword arguments.

        Returns:
            The rows whose weight is positive. ``report.curve`` has the errors with weights n/k, and
            then those of the coreset; ``report.converged`` is False if a chain or weight got lost.

        Raises:
            ValueError: if the model or the data cannot be used, or no row has a weight in the end.
            ModelError: if a row's log-likelihood depends on other rows.
        """
        keys = jax.random.split(as_key(key), 4)
        clock = Clock(show=self.progress_bar)
        likelihood = self._likelihood(args, kwargs, keys[0], clock)
        n = likelihood.num_data
        if self.size >= n:
            return whole_coreset(self.model, likelihood, self.size, clock)
        # NumPy's choice makes no permutation on the device, and compiles nothing for a new n.
        seed = np.asarray(jax.random.bits(keys[1], (4,)))
        support = np.sort(np.random.default_rng(seed).choice(n, self.size, replace=False))
        kept = tuple(jnp.asarray(leaf) for leaf in likelihood.take(support))
        with clock.stage("weights"):
            data = jax.tree.map(jnp.asarray, likelihood.data)
            num_rows = min(n, self.num_gradient_rows or n)
            counts = self.size, num_rows, self.num_draws, self.num_iters
            given = likelihood.program, self._sampler, counts, data, kept
            start = self._sampler.start(likelihood)
            found, relative_error, reliable = self._refine(*given, start, keys[2])
            weights = np.stack([np.full(self.size, n / self.size), np.asarray(found)])
        if not weights[1].any():
            raise ValueError(
                "no row has a weight after the last step; expected at least one. Give more draws, "
                "more rows or shorter steps."
            )
        with clock.stage("held-out error"):
            fit_key, draws_key = jax.random.split(keys[3])
            weighted = start, jnp.asarray(found, default_float()), kept
            all_keys = fit_key, draws_key, fit_key
            draws = self._held_out_draws(likelihood, *weighted, all_keys)
            curve, num_held_out = held_out_curve(likelihood, draws, support, weights)
        curve["size"] = np.full(2, self.size)
        curve["iteration"] = np.array([0, self.num_iters])
        curve["relative_error"] = np.array([np.nan, float(relative_error)])
        return self._coreset(
            likelihood,
            support,
            weights[1],
            curve,
            1,
            clock,
            num_candidates=self.size,
            num_draws=self.num_draws,
            num_held_out=num_held_out,
            converged=bool(reliable) and bool(np.isfinite(weights).all()),
        )


class Atoms(eqx.Module):
    """Log-likelihoods at draws, centred: of the coreset's rows, and of the data as a whole."""

    kept: Float[Array, "k s"]
    target: Float[Array, " s"]

    def residual(self, weights: Float[Array, " k"]) -> Float[Array, " s"]:
        """What the weighted rows leave of the data's log-likelihood."""
        return self.target - jnp.matmul(weights, self.kept, precision=HIGHEST)

    def descent(self, weights: Float[Array, " k"]) -> Float[Array, " k"]:
        """Cov[f, L − Σ w f]: the negative gradient of KL(π_w‖π) if the draws are from π_w."""
        return jnp.matmul(self.kept, self.residual(weights), precision=HIGHEST)

    def relative_error(self, weights: Float[Array, " k"]) -> Float[Array, ""]:
        """How large the residual is beside the target."""
        return jnp.linalg.norm(self.residual(weights)) / jnp.linalg.norm(self.target)


def atoms_at(
    program: ModelLikelihood,
    draws: Params,
    kept: PyTree,
    data: PyTree,
    num_rows: int,
    key: PRNGKeyArray,
) -> Atoms:
    """Atoms at draws, where `num_rows` random rows stand for the data unless they are all.

    Draws at which a log-likelihood is not finite are left out. A row's value at the first draw is
    subtracted before it is added to the others, so that float32 holds the sum.
    """
    n = jax.tree.leaves(data)[0].shape[0]
    if num_rows < n:
        rows = jax.random.randint(key, (num_rows,), 0, n)
        data = jax.tree.map(lambda leaf: leaf[rows], data)
    first = program.log_likelihood(jax.tree.map(lambda leaf: leaf[0], draws), data)

    def total(params: Params) -> Array:
        return jnp.sum(program.log_likelihood(params, data) - first)

    def of_kept(params: Params) -> Array:
        return program.log_likelihood(params, kept)

    totals = jax.lax.map(total, draws, batch_size=max(1, _BLOCK // num_rows))
    values = jax.vmap(of_kept, out_axes=-1)(draws)
    usable = jnp.isfinite(totals) & jnp.isfinite(values).all(axis=0)
    return Atoms(centre(values, usable), (n / num_rows) * centre(totals, usable))
