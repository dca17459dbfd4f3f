"""Whether a coreset was built from some data, by the rows that it keeps of them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcoreset.data.dtypes import default_float
from jaxcoreset.data.rows import Rows
from jaxcoreset.data.sources.base import SourceArray
from jaxcoreset.likelihood.arguments import Arguments, is_same
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.totals import log_likelihood_totals

# The rounding of a sum over all rows, in units of the sum of what is added; the spread of rounding,
# in standard deviations; and the least difference in nats that counts.
_ROUNDING, _SPREADS, _LEAST = 1e-5, 10.0, 0.03
_NUM_POINTS = 8
_CHANGED = (
    "the arrays that the coreset was built from were changed in place after the build, in the rows "
    "of the coreset or in other rows. Pass the model's arguments with all rows as they were, or "
    "build a new coreset."
)
_OTHER_DATA = (
    "the data differ from those that the coreset was built from, in some rows or in an argument "
    "that holds no rows. Pass the same data in the same order, and the same other arguments."
)


def check_contains(coreset: Any, arguments: Arguments, rows: Rows, *, is_own: bool = False) -> None:
    """Raise a ValueError if rows of the coreset, or what holds no rows, differ in these data.

    Rows that the coreset does not keep are not compared here; see `check_sum`.

    Args:
        coreset: the coreset.
        arguments: the model's arguments with these data.
        rows: all rows of them.
        is_own: whether these are the arrays that the coreset was built from.
    """
    found, own = arguments, coreset.arguments
    counts = set()
    if coreset.grouping is not None:
        positions = coreset.grouping.positions
        counts = {*positions.group_counts, *positions.row_counts}
    if not len(coreset):  # the arguments hold one row, which stands for none
        counts |= {*own.data_at, *own.counts_at}
    else:
        found = arguments.with_data(rows.take(rows.places(coreset.indices)))
    if len(coreset) and coreset.grouping is not None:
        positions = coreset.grouping.positions
        found = _without_filling(coreset.grouping.trimmed(found), positions)
        own = _without_filling(own, positions)
    pairs = enumerate(zip(found.leaves, own.leaves, strict=True))
    if not all(is_same(*pair) for at, pair in pairs if at not in counts):
        raise ValueError(_CHANGED if is_own else _OTHER_DATA)


def check_sum(coreset: Any, likelihood: ModelLikelihood, *, is_own: bool = False) -> None:
    """Raise a ValueError if the log-likelihood of all rows is not that which the proxy expands.

    The proxy keeps its value at one point. That value is exact after a build and after an `update`.
    After a `merge` it is that of the coresets, which approximate their rows. It is not compared.

    Args:
        coreset: the coreset; without a proxy nothing is compared.
        likelihood: the likelihood of all rows, over which this takes a pass.
        is_own: whether these are the arrays that the coreset was built from. Rows of a source are
            then not read again, since a source notices itself that it was changed.
    """
    proxy, rows = coreset.proxy, likelihood.rows
    if proxy is None or any(step["what"] == "merge" for step in coreset.report.history):
        return
    if is_own and any(isinstance(leaf, SourceArray) for leaf in likelihood.arguments.data):
        return
    # Around the center by the last digit of float32: the spread is that of rounding.
    steps = np.random.default_rng(0).integers(-1, 2, (_NUM_POINTS, proxy.center.size))
    points = np.asarray(proxy.center) * (1 + np.finfo(np.float32).eps * steps)
    with rows.context.precision():
        draws = jax.vmap(likelihood.unravel)(jnp.asarray(points, default_float()))
        found = log_likelihood_totals(likelihood.program.log_likelihood, draws, rows)
    expected, num_rows = float(proxy.value), coreset.report.num_data
    rounding = _ROUNDING * (abs(expected) + num_rows) + _SPREADS * float(np.std(found))
    # A comparison with NaN is False.
    if not abs(float(np.median(found)) - expected) <= _LEAST + rounding:
        raise ValueError(
            f"{_CHANGED if is_own else _OTHER_DATA} The log-likelihood of all rows is "
            f"{np.median(found):.6g} nats at the point where that of the build is {expected:.6g}."
        )


def _without_filling(arguments: Arguments, positions: Any) -> Arguments:
    """Groups laid out, with zeros in the places that no row of theirs takes."""
    if positions.labels is None:
        return arguments
    leaves = list(arguments.leaves)
    is_row = np.asarray(leaves[positions.labels]) != 0
    for at in positions.rows:
        leaf = np.asarray(leaves[at])
        shape = (*is_row.shape, *[1] * (leaf.ndim - is_row.ndim))
        leaves[at] = np.where(is_row.reshape(shape), leaf, np.zeros((), leaf.dtype))
    return dataclasses.replace(arguments, leaves=tuple(leaves))
