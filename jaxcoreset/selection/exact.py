"""If there are few enough distinct rows, they are the coreset, with their counts as weights."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from jaxcoreset.data.distinct import DistinctRows
from jaxcoreset.solvers.base import Solver
from jaxcoreset.solvers.constraints.base import Constraint, constraints_of

# Counts and their projection onto a constraint's set are equal up to this fraction of the largest.
_ROUNDING = 1e-5


def exact_rows(
    distinct: DistinctRows | None, size: int, num_data: int, solver: Solver | None
) -> DistinctRows | None:
    """The distinct rows if they, with their counts as weights, are a coreset of this size.

    Args:
        distinct: the distinct rows, or None if they were not counted.
        size: the maximum number of rows, fewer than `num_data` unless that is smaller.
        num_data: the number of rows, n.
        solver: the solver, whose constraints are over all n rows.

    Returns:
        The distinct rows; None if there are too many, if no row occurs twice, or if a constraint
        does not allow them.
    """
    if distinct is None or distinct.num > size or not distinct.has_repeats:
        return None
    size = min(size, num_data)
    allowed = all(_allows(one, distinct, size) for one in constraints_of(solver))
    return distinct if allowed else None


def representatives(
    distinct: DistinctRows | None, size: int, solver: Solver | None
) -> Int[np.ndarray, " m"] | None:
    """The rows to choose among, one of each value; None if these are all the rows.

    A constraint with labels may distinguish equal rows, so all of them are then candidates; and so
    they are if the distinct ones are fewer than `size`, which only a constraint leads to.
    """
    if distinct is None or not distinct.has_repeats or distinct.num < size:
        return None
    if any(getattr(one, "groups", None) is not None for one in constraints_of(solver)):
        return None
    return distinct.first


def _allows(constraint: Constraint, distinct: DistinctRows, size: int) -> bool:
    """True if the counts are in the constraint's set: their projection onto it is themselves."""
    # Other rows of weight zero fill the slots up.
    spare = size - distinct.num
    others = np.arange(size + distinct.num)
    others = others[~np.isin(others, distinct.first)][:spare]
    rows = np.concatenate([distinct.first, others])
    weights = jnp.asarray(np.pad(distinct.counts, (0, spare)), float)
    taken = constraint.take(rows)
    nearest = taken.project(weights, jnp.asarray(size), size).dense(size)
    return float(jnp.abs(nearest - weights).max()) <= _ROUNDING * float(weights.max())
