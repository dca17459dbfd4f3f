"""The candidates of a move: all atoms, or a working set of them.

All atoms are candidates in every move if there are few enough of them, or few enough in use.
Otherwise the moves use only a working set: the atoms with the largest normalised correlation with
the residual, or with the residual without one of the least important atoms in use. A quarter of the
set is chosen without regard to the correlations, since the best atoms may all be alike. The set is
chosen again, by one pass over all atoms, each time the size has changed by a tenth (so for every
atom up to size 20), and when none of its atoms lowers the objective. A long sweep has a separate
run for the small sizes at which all atoms can be candidates.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxcoreset.solvers.exchange.slot_matrix import SlotMatrix
from jaxcoreset.solvers.exchange.support import (
    Candidates,
    Support,
    compact,
    compute_residual,
    refinement_step,
)
from jaxcoreset.solvers.exchange.swap import least_important
from jaxcoreset.solvers.numerics import product
from jaxcoreset.solvers.problem import CoresetProblem

# The size of the working set. It is used if the atoms' coordinates in the span, or the atoms
# themselves, have more entries than these (16 and 256 MB in float32).
_WORKING_SET = 4096
_MAX_COORDINATES = 4_000_000
_MAX_ENTRIES = 64_000_000
# The Gram matrix of all atoms is computed in advance if it has at most this many entries (4 MB).
_MAX_PRODUCTS = 1_000_000
# One in this many candidates is chosen without regard to its score.
_SPREAD = 4


def working_set_size(n: int, num_draws: int, num_slots: int, working_set: int | None) -> int:
    """The number of candidates at a time.

    Args:
        n: the number of atoms.
        num_draws: entries of an atom.
        num_slots: the maximum number of atoms in use.
        working_set: the maximum number of candidates; None chooses it by the sizes.
    """
    if working_set is not None:
        return min(n, working_set)
    few = n * num_slots <= _MAX_COORDINATES and n * num_draws <= _MAX_ENTRIES
    return n if few else min(n, _WORKING_SET)


def all_candidates(
    problem: CoresetProblem, scale: Float[Array, " n"], num_slots: int, in_parts: bool
) -> Candidates:
    """All atoms, with none of them in use; `in_parts` as in `SlotMatrix.of`."""
    n, num_draws = problem.num_data, problem.num_draws
    atoms = problem.atoms * scale[:, None]
    has_gram = n * n <= _MAX_PRODUCTS and num_slots < num_draws
    return dataclasses.replace(
        empty_candidates(num_slots, n, num_draws, scale.dtype, in_parts),
        indices=jnp.arange(n, dtype=jnp.int32),
        atoms=atoms,
        usable=scale > 0,
        gram=product(atoms, atoms.T) if has_gram else None,
    )


def empty_candidates(
    num_slots: int, num_candidates: int, num_draws: int, dtype: Any, in_parts: bool
) -> Candidates:
    """Arrays for candidates that have not been chosen yet; `in_parts` as in `SlotMatrix.of`."""
    return Candidates(
        indices=jnp.zeros(num_candidates, jnp.int32),
        atoms=jnp.zeros((num_candidates, num_draws), dtype),
        gram=None,
        usable=jnp.zeros(num_candidates, bool),
        used=jnp.zeros(num_candidates, bool),
        refused=jnp.zeros(num_candidates, bool),
        coordinates=SlotMatrix.of(jnp.zeros((num_slots, num_candidates), dtype), in_parts),
        distances=jnp.ones(num_candidates, dtype),
        correlations=jnp.zeros(num_candidates, dtype),
    )


def _spread(n: int, num: int) -> Bool[Array, " n"]:
    """About `num` of n rows, spread by the golden ratio: independent of any order of the data."""
    turned = jnp.arange(n, dtype=jnp.uint32) * np.uint32(2654435769)
    return turned < np.uint32(2**32 * num // n)


def choose_again(
    problem: CoresetProblem,
    scale: Float[Array, " n"],
    target: Float[Array, " s"],
    support: Support,
    before: Candidates,
) -> tuple[Support, Candidates]:
    """Choose the atoms with the largest scores for a support, whose free slots move to the end.

    An atom's score is the square of its correlation with the residual or, less the cost of its
    removal, with the residual without one of the least important atoms in use. A quarter of the
    candidates is chosen without regard to the score, since the best atoms may all be alike.

    Args:
        problem: the problem.
        scale: the reciprocal norm of every atom.
        target: of norm one.
        support: the atoms in use.
        before: the candidates before, whose shapes the new ones have.

    Returns:
        The support, and the candidates in the order of their rows.
    """
    n, num_candidates = problem.num_data, before.indices.shape[0]
    support = compact(support)
    support = refinement_step(support, compute_residual(target, support))
    inverse_gram, slots, decreases = least_important(support)
    without = (support.lstsq_weights / inverse_gram)[slots, None] * support.basis.combine(
        support.coefficients.columns(slots).T, support.active
    )
    residuals = support.residual + jnp.pad(without, [(1, 0), (0, 0)])
    correlations = jax.vmap(problem.correlate)(residuals) * scale
    decreases = jnp.concatenate([jnp.zeros(1, decreases.dtype), decreases])[:, None]
    scores = jnp.max(jnp.maximum(correlations, 0) ** 2 + decreases, axis=0)
    scores = jnp.where(_spread(n, num_candidates // _SPREAD), jnp.inf, scores)
    indices = jnp.sort(jax.lax.top_k(scores, num_candidates)[1]).astype(jnp.int32)
    scales = scale[indices]
    atoms = problem.gather(indices) * scales[:, None]
    coordinates = before.coordinates.replace(support.basis.dot(atoms.T, support.active))
    used = (indices[:, None] == jnp.where(support.active, support.indices, n)).any(axis=1)
    candidates = Candidates(
        indices=indices,
        atoms=atoms,
        gram=None,
        usable=scales > 0,
        used=used,
        refused=jnp.zeros(num_candidates, bool),
        coordinates=coordinates,
        distances=1 - coordinates.squares(support.active),
        correlations=product(atoms, support.residual),
    )
    same = indices == support.indices[:, None]
    positions = jnp.where(same.any(axis=1), jnp.argmax(same, axis=1), num_candidates)
    return dataclasses.replace(support, positions=positions.astype(jnp.int32)), candidates
