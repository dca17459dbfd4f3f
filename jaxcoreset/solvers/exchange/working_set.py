"""Which atoms may enter: all of them, or so many at a time.

All atoms are candidates in every move as long as there are few enough of them, or few enough in
use. Where there are more, the moves see only a working set: the best by normalised correlation with
the residual, or with what the residual would be without one of the few atoms that matter least, and
for a quarter any atoms, since the best may all be alike. They are chosen again, by one pass over
all atoms, each time the size has changed by a tenth, so up to size 20 for each atom, and where they
have no more to give. A long sweep has a run of its own for those small sizes at which all atoms can
be candidates.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxcoreset.solvers.exchange.slot_matrix import SlotMatrix
from jaxcoreset.solvers.exchange.support import Candidates, Support
from jaxcoreset.solvers.exchange.swap import least_losses
from jaxcoreset.solvers.nnls import product
from jaxcoreset.solvers.problem import CoresetProblem

# So many candidates at a time, where all atoms would be too many: where their coordinates in the
# span of those in use had more entries than this, or they themselves (16 and 256 MB in float32).
_WORKING_SET = 4096
_MOST_COORDINATES = 4_000_000
_MOST_ENTRIES = 64_000_000
# Products of all atoms with one another are formed beforehand if there are no more (4 MB).
_MOST_PRODUCTS = 1_000_000
# One in so many candidates is any atom, whatever it promises.
_SPREAD = 4


def num_candidates_at_a_time(
    n: int, num_draws: int, num_slots: int, working_set: int | None
) -> int:
    """How many candidates there are at a time.

    Args:
        n: the number of atoms.
        num_draws: entries of an atom.
        num_slots: how many may be in use.
        working_set: how many there are to be at most; None leaves it to the sizes.
    """
    if working_set is not None:
        return min(n, working_set)
    few = n * num_slots <= _MOST_COORDINATES and n * num_draws <= _MOST_ENTRIES
    return n if few else min(n, _WORKING_SET)


def all_candidates(
    problem: CoresetProblem, scale: Float[Array, " n"], num_slots: int
) -> Candidates:
    """All atoms, with none in use."""
    n, num_draws = problem.num_data, problem.num_draws
    rows = jnp.arange(n, dtype=jnp.int32)
    atoms = problem.atoms * scale[:, None]
    has_gram = n * n <= _MOST_PRODUCTS and num_slots < num_draws
    return eqx.tree_at(
        lambda c: (c.rows, c.atoms, c.usable, c.gram),
        no_candidates(num_slots, n, num_draws, scale.dtype),
        (rows, atoms, scale > 0, product(atoms, atoms.T) if has_gram else None),
        is_leaf=lambda x: x is None,
    )


def no_candidates(num_slots: int, num_candidates: int, num_draws: int, dtype: Any) -> Candidates:
    """Room for candidates that are yet to be chosen."""
    return Candidates(
        rows=jnp.zeros(num_candidates, jnp.int32),
        atoms=jnp.zeros((num_candidates, num_draws), dtype),
        gram=None,
        usable=jnp.zeros(num_candidates, bool),
        used=jnp.zeros(num_candidates, bool),
        refused=jnp.zeros(num_candidates, bool),
        coordinates=SlotMatrix.zeros(num_slots, num_candidates, dtype),
        rest=jnp.ones(num_candidates, dtype),
        correlations=jnp.zeros(num_candidates, dtype),
    )


def _spread(n: int, num: int) -> Bool[Array, " n"]:
    """About `num` of n rows, spread over them by the golden section: in no step with any order."""
    turned = jnp.arange(n, dtype=jnp.uint32) * np.uint32(2654435769)
    return turned < np.uint32(2**32 * num // n)


def choose_candidates(
    problem: CoresetProblem,
    scale: Float[Array, " n"],
    support: Support,
    num_candidates: int,
) -> Candidates:
    """The atoms that promise most, in the order of their rows.

    An atom promises the square of its correlation with the residual; or, less what that would cost,
    with the residual as it would be without one of the few atoms in use that matter least. A
    quarter of them are any atoms, as those that promise most may all be alike.
    """
    n = problem.num_data
    squares, slots, falls = least_losses(support)
    without = (support.aim / squares)[slots, None] * support.basis.combine(
        support.coefficients.columns(slots).T, support.active
    )
    residuals = support.residual + jnp.pad(without, [(1, 0), (0, 0)])
    correlations = jax.vmap(problem.correlate)(residuals) * scale
    falls = jnp.concatenate([jnp.zeros(1, falls.dtype), falls])[:, None]
    scores = jnp.max(jnp.maximum(correlations, 0) ** 2 + falls, axis=0)
    scores = jnp.where(_spread(n, num_candidates // _SPREAD), jnp.inf, scores)
    rows = jnp.sort(jax.lax.top_k(scores, num_candidates)[1]).astype(jnp.int32)
    scales = scale[rows]
    atoms = problem.gather(rows) * scales[:, None]
    coordinates = SlotMatrix.of(support.basis.dot(atoms.T, support.active))
    used = (rows[:, None] == jnp.where(support.active, support.rows, n)).any(axis=1)
    return Candidates(
        rows=rows,
        atoms=atoms,
        gram=None,
        usable=scales > 0,
        used=used,
        refused=jnp.zeros(num_candidates, bool),
        coordinates=coordinates,
        rest=1 - coordinates.squares(support.active),
        correlations=product(atoms, support.residual),
    )
