"""Check that a group's rows and effects depend on no other group's effects, nor on its size.

What groups share must not depend on effects, or on how many groups there are.

The shapes of a model's sites do not show this: a row may use the effects of two groups, a running
sum of effects makes a random walk of them, and a prior may use how many rows a group has. So some
groups are evaluated together, as the model's user does, and each alone, with copies of its rows.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from jaxcoreset.data.chosen_groups import read_groups
from jaxcoreset.data.dtypes import default_float
from jaxcoreset.data.ragged import Ragged
from jaxcoreset.likelihood.arguments import ModelError
from jaxcoreset.likelihood.group_layout import Layout
from jaxcoreset.likelihood.group_model import GroupModel
from jaxcoreset.likelihood.trace import (
    full_precision,
    is_latent,
    log_prob,
    run,
    transform_of,
    value_at,
)

# How many groups are compared, with how many rows each at most, and copies of rows beside them.
_NUM_GROUPS, _MOST_ROWS, _COPIES = 5, 6, 2
# The width of the unconstrained values at which they are.
_RADIUS = 0.5
_ROUNDING = 3e-3


def check_groups(marginal: GroupModel, layout: Layout, sizes: Int[np.ndarray, " g"]) -> None:
    """Raise a ModelError if groups depend on one another, or effects on rows.

    Args:
        marginal: the marginal model.
        layout: its groups.
        sizes: the number of rows of each, by its number.
    """
    positions, leaves = marginal.positions, list(layout.arguments.leaves)
    places = _some_groups(sizes if layout.order is None else sizes[layout.order])
    data = tuple(
        leaf.shortened(_MOST_ROWS) if isinstance(leaf, Ragged) else leaf for leaf in layout.data
    )
    if positions.labels is None:
        data = tuple(np.asarray(leaf[places]) for leaf in data)
        mask = np.ones((places.size, 1), bool)
    else:
        data = tuple(leaf[:] for leaf in read_groups(data, places))
        mask = data[positions.data_at.index(positions.labels)]
    labels = np.repeat(np.arange(places.size), mask.sum(axis=1))
    alone = []
    for i, leaf in zip(positions.data_at, data, strict=True):
        if i in positions.groups:
            leaves[i] = leaf
        elif i != positions.labels:
            leaves[i] = leaf[mask]
            copies = _COPIES if positions.labels is not None else 0
            leaf = np.concatenate([leaf, np.repeat(leaf[:, :1], copies, axis=1)], axis=1)
        else:
            leaf = np.pad(mask, ((0, 0), (0, _COPIES)))
        alone.append(leaf)
    generator = np.random.default_rng(0)
    num_dims = marginal.structure.num_dims
    effects = generator.uniform(-_RADIUS, _RADIUS, (places.size, num_dims))
    effects = jnp.asarray(effects, default_float())
    ways = marginal.structure.choices
    choices = ways[generator.integers(len(ways), size=places.size)]
    together = positions.call_with(leaves, labels.size, places.size, labels.astype(np.int32))
    shared: dict[str, Any] = {}
    of_rows, of_priors, of_shared = _together(
        marginal, together, effects, choices, generator, shared
    )
    for group in range(places.size):
        data = tuple(leaf[group] for leaf in alone)
        sites, _, _ = marginal.run_group(shared, effects[group], leaves, data, choices[group])
        num = int((labels == group).sum())
        for name, dim in marginal.structure.rows.items():
            found = _of_axis(log_prob(sites[name]), dim)[:num]
            if not _are_same(of_rows[name][labels == group], found):
                raise ModelError(
                    f"a row of observed site {name!r} depends on the effect of a group that it is "
                    "not in; expected rows that depend on the effects of their own group only. "
                    "With crossed effects, name one argument as groups; the effects of the other "
                    "arguments stay parameters if their number differs from the number of groups. "
                    "Effects that depend on one another, by a running sum or a sum to zero, "
                    "cannot be integrated out group by group."
                )
        for name, values in of_priors.items():
            found = np.sum(np.asarray(log_prob(sites[name])))
            if not _are_same(values[group], found):
                raise ModelError(
                    f"the density of site {name!r} of a group depends on other groups or on the "
                    "rows; expected effects that are independent given the shared parameters, with "
                    "a prior that does not use how many rows a group has: pass what it needs as an "
                    "argument with one row per group."
                )
        for name, value in of_shared.items():
            if not _are_same(value, np.sum(np.asarray(log_prob(sites[name])))):
                raise ModelError(
                    f"the density of site {name!r}, which all groups share, depends on the effects "
                    "of groups, on their number or on their rows; expected one that depends on "
                    "shared parameters only. A soft sum to zero cannot be integrated out group by "
                    "group: leave it out, or use groups=None with the effects as parameters."
                )


def _some_groups(sizes: Int[np.ndarray, " g"]) -> Int[np.ndarray, " m"]:
    """Groups of different sizes that have rows."""
    there = np.flatnonzero(sizes)
    order = there[np.argsort(sizes[there], kind="stable")]
    return np.unique(order[np.linspace(0, order.size - 1, _NUM_GROUPS).round().astype(int)])


def _together(
    marginal: GroupModel,
    leaves: list,
    effects: Any,
    choices: Int[np.ndarray, "g k"],
    generator: np.random.Generator,
    shared: dict[str, Any],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Log-probabilities of rows, groups' sites and other sites, as the user's model has them.

    `shared` gets the values of the shared sites.
    """
    structure, parts = marginal.structure, jax.vmap(marginal.split)(effects)

    def fill(site: Mapping) -> Any:
        if not is_latent(site):
            return None
        name = site["name"]
        if name in structure.discrete:
            own = choices[:, list(structure.discrete).index(name)]
            dim = structure.discrete[name][1]
            return value_at(site, own.reshape(-1, *(1,) * (-dim - 1)))
        transform = transform_of(site)
        if name in structure.local:
            local = structure.local[name]
            part = jnp.moveaxis(parts[name], 0, local.dim)
            return transform(part.reshape(_unconstrained_shape(local.shape, local.dim, effects)))
        shape = site["kwargs"].get("sample_shape", ()) + site["fn"].shape()
        point = generator.uniform(-_RADIUS, _RADIUS, transform.inverse_shape(shape))
        shared[name] = transform(jnp.asarray(point, default_float()))
        return shared[name]

    with full_precision():
        sites = run(marginal.model, jax.tree.unflatten(marginal.tree, leaves), fill)
    of_rows = {name: _of_axis(log_prob(sites[name]), dim) for name, dim in structure.rows.items()}
    of_priors = {}
    for name in (*structure.integrated, *structure.groups):
        values = log_prob(sites[name])
        of_priors[name] = _of_axis(values, structure.log_prob_dims[name])
    of_shared = {
        name: np.asarray(jnp.sum(log_prob(site)))
        for name, site in sites.items()
        if site["type"] == "sample" and name not in {*of_rows, *of_priors}
    }
    return of_rows, of_priors, of_shared


def _unconstrained_shape(shape: tuple[int, ...], dim: int, effects: Any) -> tuple[int, ...]:
    full = list(shape)
    full[dim] = effects.shape[0]
    return tuple(full)


def _of_axis(values: Any, dim: int) -> np.ndarray:
    """Sums over all axes but one, counted from the right."""
    values = np.asarray(values)
    return values.sum(axis=tuple(a for a in range(values.ndim) if a != values.ndim + dim))


def _are_same(one: Any, other: Any) -> bool:
    one, other = np.asarray(one, float), np.asarray(other, float)
    close = np.abs(one - other) <= _ROUNDING * (1 + np.abs(one))
    return bool(np.all(close | ~np.isfinite(one)))
