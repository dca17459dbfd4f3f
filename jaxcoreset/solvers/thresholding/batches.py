"""The rows that a stochastic iteration reads, and the estimates of the gradient from them.

Γ₁ and Γ₂ are those of appendix G of Zhang, Khanna, Kyrillidis and Koyejo (2021), where
g̃(w) = 2 Γ₁ᵀΦᵀ(ΦΓ₂w − y) estimates the gradient. As w has at most k entries, reading k rows gives
Φw exactly, so that Γ₂ = I costs nothing more, and neither do the gradient's entries on the support
and the exact line search, momentum and objective. Γ₁ remains to be chosen. `Estimator` names the
choices:

| name | Γ₁ on the batch | Γ₁ on the support | Γ₂ | unbiased |
| --- | --- | --- | --- | --- |
| "double" | n/B | 0 outside the batch | a second batch | yes |
| "batch" | n/B | 0 outside the batch | I | yes |
| "support" | n/B | 1 | I | yes, with less variance than "batch" |
| "pool" | 1 | 1 | I | no: on the rows read it is the exact gradient |

An estimate scaled by n/B is correct on average, but a hard threshold does not average: it selects
rows because the batch contains them, not because they are good. With "pool" an iteration is one of
the full method on a smaller problem, that of the rows in the batch or the support, whose gradient
is exact, and every solution of it is a solution of the full problem.
``benchmarks/solvers/stochastic.py`` compares the estimators.
"""

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxcoreset.solvers.constraints import Sparse
from jaxcoreset.solvers.numerics import product, random_order
from jaxcoreset.solvers.problem import CoresetProblem

Estimator = Literal["double", "batch", "support", "pool"]


class Batch(eqx.Module):
    """Distinct rows drawn at random; slots that are not `present` are ignored."""

    rows: Int[Array, " b"]
    present: Bool[Array, " b"]


class Pool(eqx.Module):
    """The rows that an iteration reads, in increasing order, each once.

    Its atoms form a problem of their own, and are zero in unused rows.
    """

    rows: Int[Array, " p"]
    in_batch: Bool[Array, " p"]
    problem: CoresetProblem

    def locate(self, indices: Int[Array, " m"]) -> Int[Array, " m"]:
        """Positions in the pool of rows that are in it; any position for rows that are not."""
        found = jnp.searchsorted(self.rows, indices)
        return jnp.minimum(found, self.rows.shape[0] - 1).astype(jnp.int32)


def draw_batch(key: PRNGKeyArray, n: int, size: int) -> Batch:
    """A random set of rows of a given size; all sets are equally likely.

    Args:
        key: a JAX random key.
        n: the number of rows.
        size: the number of rows that are drawn, between 1 and n.
    """
    return Batch(random_order(key, jnp.ones(n, bool), size), jnp.ones(size, bool))


def second_batch(key: PRNGKeyArray, n: int, batch: Batch) -> Bool[Array, " n"]:
    """Draw a second, independent batch of the same size; return which rows are in it."""
    rows = draw_batch(key, n, batch.rows.shape[0]).rows
    return jnp.zeros(n, bool).at[rows].set(batch.present)


def read_rows(problem: CoresetProblem, batch: Batch, current: Sparse, previous: Sparse) -> Pool:
    """Gather the rows of a batch and of two supports, each once and in increasing order."""
    n = problem.num_data
    drawn = jnp.where(batch.present, batch.rows, n)
    needed = [drawn] + [jnp.where(s.values != 0, s.indices, n) for s in (current, previous)]
    needed = jnp.concatenate(needed)
    if needed.shape[0] < n:
        rows = jnp.sort(needed)
        first = jnp.concatenate([jnp.ones(1, bool), rows[1:] != rows[:-1]])
        present = first & (rows < n)
        in_order = jnp.sort(drawn)
        at = jnp.minimum(jnp.searchsorted(in_order, rows), drawn.shape[0] - 1)
        in_batch = present & (in_order[at] == rows)
    else:
        rows = jnp.arange(n)
        present = jnp.zeros(n + 1, bool).at[needed].set(True)[:n]
        in_batch = jnp.zeros(n + 1, bool).at[drawn].set(True)[:n]
    rows = jnp.minimum(rows, n - 1).astype(jnp.int32)
    atoms = jnp.where(present[:, None], problem.gather(rows), 0)
    return Pool(rows, in_batch, CoresetProblem(atoms, problem.target))


def estimate_correlations(
    problem: CoresetProblem,
    weights: Float[Array, " p"],
    residual: Float[Array, " s"],
    in_batch: Bool[Array, " p"],
    num_data: int,
    estimator: Estimator,
    in_image_batch: Bool[Array, " p"] | None = None,
) -> Float[Array, " p"]:
    """The estimate −g̃(w)/2 = Γ₁ᵀΦᵀ(y − ΦΓ₂w) of Φᵀr, on the rows that were read.

    Appendix G of Zhang et al. (2021); the module's table defines Γ₁ and Γ₂. The estimate is zero on
    rows that were not read.

    Args:
        problem: the p rows read, which include the batch and the support of `weights`.
        weights: shape (p,), w on those rows.
        residual: shape (S,), r = y − Φw.
        in_batch: shape (p,), the rows of the batch that Γ₁ keeps.
        num_data: n.
        estimator: "double", "batch", "support" or "pool".
        in_image_batch: shape (p,), the rows of a second batch, of the same size, that Γ₂ keeps;
            for "double".
    """
    dtype = residual.dtype
    support = weights != 0
    one, zero = jnp.ones((), dtype), jnp.zeros((), dtype)
    scale = num_data / jnp.maximum(jnp.sum(in_batch), 1).astype(dtype)
    if in_image_batch is not None:
        kept = jnp.where(in_image_batch, scale, zero) * weights
        residual = problem.target - product(kept, problem.atoms)
    if estimator == "pool":
        factors = jnp.where(in_batch | support, one, zero)
    elif estimator == "support":
        factors = jnp.where(support, one, jnp.where(in_batch, scale, zero))
    else:
        factors = jnp.where(in_batch, scale, zero)
    return factors * problem.correlate(residual)
