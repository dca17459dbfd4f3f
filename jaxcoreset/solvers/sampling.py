"""Random subsets: baselines that do not use the target.

A draw's weight is the inverse of its probability, so the mean of Φw is the *sum of the atoms*. That
is the target, unless the atoms are only candidates and the target is a sum over more data.

Each key gives one stream of draws, and the solution for k is made of its first k. The j-th draw
does not depend on the number of draws, so that neither k's bound nor a sweep changes a solution.
"""

import abc
import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxcoreset.solvers.base import PathSolver
from jaxcoreset.solvers.numerics import divide, random_order
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solution import Solution


class _Sampling(PathSolver):
    """Sampling with replacement; see the module's docstring."""

    needs_key: ClassVar[bool] = True

    @property
    def may_return_none(self) -> bool:
        """False: the weights are unbiased only if every sample is returned."""
        return False

    @abc.abstractmethod
    def proportions(self, problem: CoresetProblem) -> Float[Array, " n"]:
        """Numbers proportional to each row's probability; 0 for atoms of norm zero."""

    def draw(
        self, proportions: Float[Array, " n"], length: int, key: PRNGKeyArray
    ) -> Int[Array, " length"]:
        """The first `length` rows of the stream."""
        return _draw_with_replacement(proportions, length, key)

    def num_draws(self, proportions: Float[Array, " n"], k: Int[Array, ""]) -> Int[Array, ""]:
        """The number of rows of the stream that the solution for k uses."""
        return k

    def run_path(
        self, problem: CoresetProblem, ks: Int[Array, " m"], max_k: int, key: PRNGKeyArray | None
    ) -> Solution:
        """Draw once; the solution for each k is made of the first k draws."""
        assert key is not None
        proportions = self.proportions(problem)
        drawn = self.draw(proportions, max_k, key)
        chosen = proportions[drawn]
        # 1 / probability; 0 for a row that cannot be drawn, which occurs if all atoms are zero.
        inverse = divide(jnp.sum(proportions), chosen)

        def contributions(k: Array) -> tuple[Array, Array]:
            num_draws = self.num_draws(proportions, k)
            used = jnp.arange(max_k) < num_draws
            return jnp.where(used, inverse / jnp.maximum(num_draws, 1), 0), num_draws

        return self.read_off(problem, ks, drawn, contributions)


class ImportanceSampling(_Sampling):
    """Rows drawn with probability σ_n/σ, where σ_n = ‖φ_n‖ and σ = Σ σ_n, with replacement.

    "IS" of Campbell and Broderick, "Automated scalable Bayesian inference via Hilbert coresets"
    (JMLR 20, 2019), section 4.1; section 2.1 of Campbell and Broderick (2018). A row that was drawn
    c times in k draws has weight (c/k) · σ/σ_n, so that Φw is unbiased for the sum of the atoms,
    and w is in the polytope of `FrankWolfe`. k draws give at most k distinct rows. A key is needed.
    """

    def proportions(self, problem: CoresetProblem) -> Float[Array, " n"]:
        """The norms of the atoms."""
        return jnp.sqrt(problem.squared_norms())


class UniformSampling(_Sampling):
    """Rows drawn uniformly: "Random (Uniform)" of Zhang et al. (2021), section 5.

    Atoms of norm zero are left out, since they add nothing to the sum. Of the n₊ other atoms, k are
    drawn, each with weight n₊/k, so that Φw is unbiased for the sum. A key is needed.

    Args:
        replace: whether a row may be drawn again, as in the papers' comparisons: c draws in k then
            give weight c·n₊/k, and there may be fewer than k distinct rows. By default k distinct
            rows are drawn, which has a smaller variance; k ≥ n₊ gives all rows with weight 1.
    """

    replace: bool = eqx.field(static=True, default=False)

    def proportions(self, problem: CoresetProblem) -> Float[Array, " n"]:
        """1 for every atom whose norm is not zero."""
        return (problem.squared_norms() > 0).astype(problem.target.dtype)

    def draw(
        self, proportions: Float[Array, " n"], length: int, key: PRNGKeyArray
    ) -> Int[Array, " length"]:
        """The first `length` rows of the stream; without replacement, zero atoms come last."""
        if self.replace:
            return super().draw(proportions, length, key)
        return random_order(key, proportions > 0, length)

    def num_draws(self, proportions: Float[Array, " n"], k: Int[Array, ""]) -> Int[Array, ""]:
        """The number of rows of the stream that the solution for k uses."""
        if self.replace:
            return k
        return jnp.minimum(k, jnp.sum(proportions > 0, dtype=k.dtype))


def _draw_with_replacement(
    proportions: Float[Array, " n"], length: int, key: PRNGKeyArray
) -> Int[Array, " length"]:
    """Draw rows with probability ∝ `proportions`: first one of √n blocks, then a row in it.

    A draw costs √n operations instead of n. Random float32 numbers have 23 bits, so that two small
    choices resolve the probabilities of a million rows, which one cumulative sum would not.
    """
    n = proportions.shape[0]
    width = math.isqrt(n - 1) + 1
    blocks = jnp.pad(proportions, (0, -n % width)).reshape(-1, width)
    totals = jnp.sum(blocks, axis=1)

    def draw_one(position: Array) -> Array:
        numbers = jax.random.uniform(jax.random.fold_in(key, position), (2,), proportions.dtype)
        block = _invert(totals, numbers[0])
        return (block * width + _invert(blocks[block], numbers[1])).astype(jnp.int32)

    return jax.vmap(draw_one)(jnp.arange(length))


def _invert(proportions: Float[Array, " m"], number: Float[Array, ""]) -> Int[Array, ""]:
    """The entry that a random number in [0, 1) selects; never one with proportion zero."""
    cumulative = jnp.where(proportions > 0, jnp.cumsum(proportions), 0)
    return jnp.argmax(cumulative >= (1 - number) * jnp.max(cumulative))
