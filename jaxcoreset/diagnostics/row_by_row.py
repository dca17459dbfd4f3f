"""Deterministic sites to predict that are computed from several rows, such as shares or ranks.

Rows are predicted in blocks that are filled up with other rows, so that such a site would have the
values of a block, and not those of all rows.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxcoreset.data.compiling import quick_jit
from jaxcoreset.data.rows import Rows
from jaxcoreset.diagnostics.simulation import Simulation
from jaxcoreset.likelihood.arguments import ModelError

# The number of rows that are evaluated together, an even number.
_NUM_ROWS = 64
# Values are equal up to rounding if they differ by no more than this share of the range of all
# rows' values, and this share of the largest one: 32-bit numbers may have cancelled.
_ROUNDING, _EPSILON = 1e-3, 1e-6


def refuse_sites_of_several_rows(
    simulation: Simulation, draws: Mapping[str, Array], rows: Rows
) -> None:
    """Raise a ModelError if a deterministic site to predict has other values among other rows.

    Some rows are evaluated together at one draw, and then each half of them alone. What is drawn
    for the rows is the same.

    Args:
        simulation: what is drawn.
        draws: constrained draws, with a leading axis.
        rows: all rows.
    """
    if not simulation.computed:
        return
    num = min(rows.num_rows, _NUM_ROWS)
    at = np.linspace(0, rows.num_rows - 1, num).round().astype(int)
    found = rows.head(num) if rows.is_streamed else rows.take(at)
    # Fewer rows are repeated, so that each half has some.
    together = np.resize(np.arange(num), _NUM_ROWS if num == _NUM_ROWS else 2 * max(num, 2))
    data = tuple(np.asarray(leaf)[together] for leaf in found)
    one, keys = {name: x[0] for name, x in draws.items()}, jax.random.split(jax.random.key(0))

    @quick_jit
    def evaluate(
        values: Mapping[str, Array], key: PRNGKeyArray, data: tuple
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        return simulation.computed_at(one | dict(values), key, data)

    whole, drawn = evaluate({}, keys[0], data)
    # In reverse order, since a site may be a sum over earlier rows.
    order = np.arange(together.size)[::-1]
    for half in (order[::2], order[1::2]):
        own = tuple(leaf[half] for leaf in data)
        values = {
            name: jnp.take(x, half, axis=simulation.axes_of_rows[name])
            if name in simulation.axes_of_rows
            else x
            for name, x in drawn.items()
        }
        alone, again = (evaluate(values, key, own)[0] for key in keys)
        for name, value in alone.items():
            # A model may draw numbers of its own, which are no site.
            is_random = not _are_equal(value, again[name])
            if not is_random and not _are_equal(value, whole[name][half]):
                raise ModelError(
                    f"site {name!r} is computed from other rows, too: its value for a row changes "
                    "with the rows that are evaluated together, and predict evaluates blocks of "
                    "rows. Expected a site whose value for a row depends on that row and the "
                    "parameters only: predict with draws=True what it is computed from, and "
                    "compute it from the draws."
                )


def _are_equal(one: Array, two: Array) -> bool:
    """Return whether values of rows, of shape (m, …), are equal up to rounding."""
    pair = np.stack([np.asarray(x, np.float64) for x in (one, two)])
    values = pair.reshape(2, pair.shape[1], -1)
    finite = np.where(np.isfinite(values), values, np.nan)
    low = np.nan_to_num(np.fmin.reduce(finite, axis=(0, 1)))
    high = np.nan_to_num(np.fmax.reduce(finite, axis=(0, 1)))
    atol = _ROUNDING * (high - low) + _EPSILON * np.maximum(np.abs(low), np.abs(high))
    return np.allclose(*values, rtol=0, atol=atol, equal_nan=True)
