"""Masks of sites, by `numpyro.handlers.mask` or `Distribution.mask`, apart from what they mask."""

import copy
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool
from numpyro.distributions import ExpandedDistribution, Independent, MaskedDistribution

from jaxcoreset.likelihood.densities import plain_log_prob


def unmasked(distribution: Any) -> tuple[Any, Any]:
    """A distribution without masks and without checks of its values, and its mask.

    Returns:
        The mask is True if there is none. Else it is an array that broadcasts with the values.
    """
    if isinstance(distribution, MaskedDistribution):
        base, mask = unmasked(distribution.base_dist)
        own = distribution._mask
        if not isinstance(own, bool):
            own = own.reshape(*own.shape, *[1] * len(base.event_shape))
        return base, own if mask is True else jnp.logical_and(own, mask)
    found, mask = copy.copy(distribution), True
    if isinstance(distribution, ExpandedDistribution | Independent):
        found.base_dist, mask = unmasked(distribution.base_dist)
    found._validate_args = False
    return found, mask


def not_numbers(distribution: Any, value: Array) -> tuple[Bool[Array, "..."], Any]:
    """Where a distribution or a value drawn from it is not a number, and the `unmasked` mask.

    Whole numbers are drawn from a distribution whose parameters are NaN, too: 0 from a Bernoulli
    distribution. Their log-probability is NaN. The result broadcasts with the value.
    """
    distribution, mask = unmasked(distribution)
    log_prob = plain_log_prob(distribution, value)
    events = tuple(range(log_prob.ndim, value.ndim))
    found = jnp.isnan(log_prob).reshape(*log_prob.shape, *[1] * len(events))
    if jnp.issubdtype(value.dtype, jnp.inexact):
        found = found | jnp.isnan(value).any(axis=events, keepdims=True)
    return found, mask


def mask_of(site: Mapping) -> Any:
    """The mask of a site, of the shape of its value; True if there is none."""
    distribution, mask = unmasked(site["fn"])
    if mask is True:
        return True
    # The value of a numpyro.factor is empty; it counts as one entry.
    whole = distribution.batch_shape + distribution.event_shape
    shapes = ([max(size, 1) for size in shape] for shape in (whole, jnp.shape(site["value"])))
    return jnp.broadcast_to(mask, jnp.broadcast_shapes(*map(tuple, shapes)))


def rows_observed(site: Mapping, dim: int) -> Any:
    """Which rows have an entry that is not masked, of shape (m,); True if there is no mask.

    Args:
        site: an observed site.
        dim: the dimension of rows in its log-probability, counted from the right.
    """
    mask = mask_of(site)
    if mask is True:
        return True
    axis = mask.ndim - len(site["fn"].event_shape) + dim
    return mask.any(axis=tuple(other for other in range(mask.ndim) if other != axis))
