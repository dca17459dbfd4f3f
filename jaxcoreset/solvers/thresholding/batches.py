"""The rows that a stochastic iteration reads, and the estimates of the gradient made of them.

Γ₁ and Γ₂ are those of appendix G of Zhang, Khanna, Kyrillidis and Koyejo (2021), where
g̃(w) = 2 Γ₁ᵀΦᵀ(ΦΓ₂w − y) stands for the gradient. As w has at most k entries, Φw is known exactly
for the price of k rows, so Γ₂ = I is free, and then so are the gradient's entries on the support
and the exact line search, momentum and objective. What is left to choose is Γ₁. `Estimator` names
the choices:

| name | Γ₁ on the batch | Γ₁ on the support | Γ₂ | unbiased |
| --- | --- | --- | --- | --- |
| "double" | n/B | 0 where not in the batch | a batch of its own | yes |
| "batch" | n/B | 0 where not in the batch | I | yes |
| "support" | n/B | 1 | I | yes, with less variance than "batch" |
| "pool" | 1 | 1 | I | no: on the rows read it is the gradient itself |

An estimate scaled by n/B is right on average, but a hard threshold does not average: it lets rows
in because the batch drew them, not because they are good. With "pool" an iteration is one of the
full method on a smaller problem, that of the rows in the batch or the support, whose gradient is
exact, and every solution of it is one of the whole. ``benchmarks/stochastic.py`` compares them.
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxcoreset.solvers.constraints import Sparse
from jaxcoreset.solvers.problem import HIGHEST, CoresetProblem

Estimator = Literal["double", "batch", "support", "pool"]


class Batch(eqx.Module):
    """Distinct rows drawn at random; slots that are not `present` count for nothing."""

    rows: Int[Array, " b"]
    present: Bool[Array, " b"]


class Pool(eqx.Module):
    """The rows that an iteration reads, in increasing order, each once; others are not `present`.

    Its atoms are those of a problem of its own, zero in rows that are not present.
    """

    rows: Int[Array, " p"]
    present: Bool[Array, " p"]
    in_batch: Bool[Array, " p"]
    problem: CoresetProblem

    def locate(self, indices: Int[Array, " m"]) -> Int[Array, " m"]:
        """Positions in the pool of rows that are in it; any position for others."""
        found = jnp.searchsorted(self.rows, indices)
        return jnp.minimum(found, self.rows.shape[0] - 1).astype(jnp.int32)


def draw_batch(key: PRNGKeyArray, n: int, size: int) -> Batch:
    """So many rows of n, all sets of them equally likely.

    Args:
        key: a JAX random key.
        n: the number of rows.
        size: how many are drawn, between 1 and n.
    """
    # The lowest lots win. As floats, which top_k is made for, small ones keep all their digits.
    lots = jax.random.bits(key, (n,), jnp.uint32).astype(jnp.float32)
    rows = jax.lax.top_k(-lots, size)[1].astype(jnp.int32)
    return Batch(rows, jnp.ones(size, bool))


def second_batch(key: PRNGKeyArray, n: int, batch: Batch) -> Bool[Array, " n"]:
    """Whether each row is in a batch that is independent of the first and as large."""
    rows = draw_batch(key, n, batch.rows.shape[0]).rows
    return jnp.zeros(n, bool).at[rows].set(batch.present)


def read_rows(problem: CoresetProblem, batch: Batch, current: Sparse, previous: Sparse) -> Pool:
    """Gather the rows of a batch and of two supports, each once and in increasing order."""
    n = problem.num_data
    drawn = jnp.where(batch.present, batch.rows, n)
    wanted = [drawn] + [jnp.where(s.values != 0, s.indices, n) for s in (current, previous)]
    wanted = jnp.concatenate(wanted)
    if wanted.shape[0] < n:
        wanted = jnp.sort(wanted)
        first = jnp.concatenate([jnp.ones(1, bool), wanted[1:] != wanted[:-1]])
        present = first & (wanted < n)
        in_order = jnp.sort(drawn)
        at = jnp.minimum(jnp.searchsorted(in_order, wanted), drawn.shape[0] - 1)
        in_batch = present & (in_order[at] == wanted)
    else:
        wanted, asked = jnp.arange(n), wanted
        present = jnp.zeros(n + 1, bool).at[asked].set(True)[:n]
        in_batch = jnp.zeros(n + 1, bool).at[drawn].set(True)[:n]
    rows = jnp.minimum(wanted, n - 1).astype(jnp.int32)
    atoms = jnp.where(present[:, None], problem.gather(rows), 0)
    return Pool(rows, present, in_batch, CoresetProblem(atoms, problem.target))


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

    Appendix G of Zhang et al. (2021); the module's table says what Γ₁ and Γ₂ are. Zero on rows that
    were not read.

    Args:
        problem: the p rows read, among them the batch and the support of `weights`.
        weights: shape (p,), w on those rows.
        residual: shape (S,), r = y − Φw.
        in_batch: shape (p,), the rows of the batch that Γ₁ keeps.
        num_data: n.
        estimator: "double", "batch", "support" or "pool".
        in_image_batch: shape (p,), the rows that Γ₂ keeps of a batch as large as the first; only
            for "double".

    Raises:
        ValueError: if "double" has no `in_image_batch`.
    """
    dtype = residual.dtype
    support = weights != 0
    one, zero = jnp.ones((), dtype), jnp.zeros((), dtype)
    scale = num_data / jnp.maximum(jnp.sum(in_batch), 1).astype(dtype)
    if estimator == "double":
        if in_image_batch is None:
            raise ValueError('in_image_batch is missing; wanted the second batch for "double".')
        kept = jnp.where(in_image_batch, scale, zero) * weights
        residual = problem.target - jnp.matmul(kept, problem.atoms, precision=HIGHEST)
    if estimator == "pool":
        factors = jnp.where(in_batch | support, one, zero)
    elif estimator == "support":
        factors = jnp.where(support, one, jnp.where(in_batch, scale, zero))
    else:
        factors = jnp.where(in_batch, scale, zero)
    return factors * problem.correlate(residual)


def check_estimator(estimator: str, allowed: tuple[str, ...]) -> None:
    """Raise a ValueError if an estimator is not one of those allowed."""
    if estimator not in allowed:
        names = ", ".join(f'"{name}"' for name in allowed)
        raise ValueError(f'estimator is "{estimator}"; wanted one of {names}.')
