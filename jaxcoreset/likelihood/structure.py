"""Which arguments of a model are data, and along which axis its observed sites follow them.

The *data axis* is the one dimension of an observed site's log-probability that grows with the rows
of the data, with or without a plate. To find it, the model is traced abstractly with two numbers of
rows; nothing is guessed from names.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxcoreset.data.dtypes import check_held
from jaxcoreset.likelihood.arguments import (
    Arguments,
    ModelError,
    flatten,
    mark_arrays,
    mark_axes,
    mark_length,
)
from jaxcoreset.likelihood.trace import (
    ABSTRACT_ROWS,
    FixedSizeError,
    Site,
    discrete,
    sites_with_all_rows,
    sites_with_rows,
)


@dataclass(frozen=True)
class Structure:
    """The structure of a model and its arguments, known before any value is computed.

    Attributes:
        arguments: the arguments, with their data leaves.
        data_dims: the data axis of each observed site that has one, counted from the right.
        latent_shapes: the shape of each latent site's unconstrained value.
    """

    arguments: Arguments
    data_dims: dict[str, int]
    latent_shapes: dict[str, tuple[int, ...]]


def find_data(
    model: Callable, args: tuple, kwargs: dict, data_axes: Any, plate: str | None
) -> list[Arguments]:
    """The possible readings of which arguments are data, the likeliest first.

    There is one with `data_axes` or `plate`, otherwise one for each plate, matched by arguments, of
    the observed site with the longest such plate. A ModelError is raised if there are no data, or
    the model as its user calls it cannot be used.
    """
    arguments = flatten(model, args, kwargs)
    for name, leaf in zip(arguments.names, arguments.leaves, strict=True):
        check_held(leaf, name)
    if data_axes is not None:
        arguments = mark_axes(arguments, data_axes)
        sites_with_all_rows(model, arguments)
        return [arguments]
    if not arguments.arrays:
        _refuse_no_arrays(arguments)
    sites = sites_with_all_rows(model, mark_arrays(arguments))
    observed = [site for site in sites if site.observed]
    return [mark_length(arguments, num) for num in _find_num_data(observed, arguments, plate)]


def _refuse_no_arrays(arguments: Arguments) -> None:
    """Raise an error that names structured arrays, if there are any."""
    for name, leaf in zip(arguments.names, arguments.leaves, strict=True):
        if isinstance(leaf, np.ndarray) and leaf.dtype.names:
            columns = ", ".join(f"{field!r}: {name}[{field!r}]" for field in leaf.dtype.names)
            raise ModelError(
                f"argument {name} is a structured array, and no argument is an array of numbers; "
                "arrays with one row per datum are expected: pass a dictionary of its columns, "
                f"{{{columns}}}."
            )


def _find_num_data(observed: list[Site], arguments: Arguments, plate: str | None) -> list[int]:
    """The largest size along an observed site that an argument has too, then that site's others.

    With more items than persons and a covariate for each item, the model may not run with fewer
    items, but it does with fewer persons.
    """
    if plate is None:
        sizes = {size for site in observed for size in _sizes(site)}
    else:
        sizes = {site.plates[plate] for site in observed if plate in site.plates}
        if not sizes:
            known = sorted({name for site in observed for name in site.plates})
            raise ModelError(
                f"plate={plate!r} holds no observed site; plates that do: {known or 'none'}: "
                "name one of these."
            )
    if not sizes:
        raise not_independent(observed[0].name, "is a single number")
    lengths = {shape[0] for shape in arguments.arrays.values()}
    if not sizes & lengths:
        raise ModelError(
            f"no argument has a leading axis as long as the observed sites (sizes "
            f"{sorted(sizes)}; arguments: {arguments}): pass the data with one row per datum, as "
            "arguments of the model."
        )
    longest = max(sizes & lengths)
    alike = [set(site.plates.values()) for site in observed if longest in _sizes(site)]
    others = set.intersection(*alike) & sizes & lengths
    return sorted(others | {longest}, reverse=True)


def _sizes(site: Site) -> set[int]:
    if site.plates:
        return set(site.plates.values())
    return set(site.shape[:1]) & set(site.log_prob_shape) or set(site.log_prob_shape)


def find_structure(model: Callable, readings: list[Arguments]) -> Structure:
    """Find the data axes, in the first of `find_data`'s readings that works.

    An integer argument equal to n counts rows if the model needs that. A ModelError is raised if a
    latent site grows with the rows, or an observed site other than by one entry for each row.
    """
    try:
        return _structure_of(model, readings[0])
    except FixedSizeError as error:
        for arguments in readings[1:]:
            with contextlib.suppress(ModelError):
                return _structure_of(model, arguments)
        if len(readings) == 1:
            raise
        arguments = readings[0]
        names = ", ".join(arguments.names[i] for i in arguments.data_at)
        lengths = " and ".join(str(other.num_data) for other in readings)
        raise FixedSizeError(
            f"the data were taken to be {names}, with {arguments.num_data} rows, the length of an "
            f"observed site's longest axis (its axes have {lengths}); if that is wrong, name the "
            f"data with data_axes, or their plate with plate. If it is right: {error}"
        ) from error


def _structure_of(model: Callable, arguments: Arguments) -> Structure:
    try:
        return _structure(model, arguments)
    except FixedSizeError:
        counting = arguments.counting_rows()
        if not counting.counts_at:
            raise
    return _structure(model, counting)


def _structure(model: Callable, arguments: Arguments) -> Structure:
    few, more = (sites_with_rows(model, arguments, rows) for rows in ABSTRACT_ROWS)
    changed = {site.name for site in few} ^ {site.name for site in more}
    if changed:
        raise ModelError(
            f"the sites {sorted(changed)[:3]} come and go with the number of rows; the same sites "
            "for any rows are expected: sample all rows in one site, within a plate."
        )
    data_dims = {}
    for site, other in zip(few, more, strict=True):
        if not site.observed and site.shape != other.shape:
            raise _per_datum_latent(site)
        if site.num_values:
            raise discrete(site.name)
        if site.observed and (dim := _data_dim(site, other, arguments)) is not None:
            data_dims[site.name] = dim
    if not data_dims:
        observed = [site for site in few if site.observed]
        _refuse_fixed_plate(observed, arguments.num_data)
        raise not_independent(observed[0].name, "does not grow with the rows")
    shapes = {site.name: site.unconstrained_shape for site in few if not site.observed}
    return Structure(arguments, data_dims, shapes)


def _data_dim(few: Site, more: Site, arguments: Arguments) -> int | None:
    """The dimension, counted from the right, in which the log-probability follows the rows."""
    shapes = few.log_prob_shape, more.log_prob_shape
    if shapes[0] == shapes[1]:
        if few.shape != more.shape:
            raise not_independent(few.name, "does not grow with the rows, though its value does")
        return None
    if len(shapes[0]) != len(shapes[1]):
        raise not_independent(
            few.name, "has a different number of axes for a different number of rows"
        )
    dims = [d for d in range(-len(shapes[0]), 0) if shapes[0][d] != shapes[1][d]]
    if len(dims) > 1:
        data = zip(arguments.data_names, arguments.data, strict=True)
        if name := next((name for name, leaf in data if leaf.shape[1:] == (1,)), None):
            raise ModelError(
                f"the log-probability of observed site {few.name!r} grows with the rows in two "
                f"axes, and {name} has shape (n, 1): pass {name}[:, 0], or of a table its column, "
                f'{name}["name"].'
            )
        found = "is one of its arrays of shape (n, 1), another (n,)?"
        raise not_independent(few.name, f"grows with the rows in two axes ({found})")
    if (shapes[0][dims[0]], shapes[1][dims[0]]) != ABSTRACT_ROWS:
        raise not_independent(few.name, "has not one entry per row")
    return dims[0]


def not_independent(name: str, found: str) -> ModelError:
    """The error for an observed site without one log-probability per datum."""
    return ModelError(
        f"the log-probability of observed site {name!r} {found}; one entry per datum is expected, "
        "with the data conditionally independent given the parameters: drop to_event over the "
        "data, do not sum over them in numpyro.factor, and do not use a joint distribution over "
        "them (a multivariate normal, a Gaussian process, a time series)."
    )


class LatentOfRowError(ModelError):
    """A latent site has an entry for each row, and so is not shared by them."""


def _per_datum_latent(site: Site) -> ModelError:
    found = f"latent site {site.name!r} grows with the rows; "
    if site.name.endswith("_unobserved"):
        return ModelError(
            f"{found}obs_mask makes such a site, which has no density where the row is observed: "
            "leave out the rows whose response is missing, which say nothing about the parameters."
        )
    return LatentOfRowError(
        f"{found}a coreset keeps few rows, so all rows must share the parameters. CoresetBuilder "
        "can integrate out an effect of each row, or of each group if groups= names the argument "
        "with the groups."
    )


def _refuse_fixed_plate(observed: list[Site], num_data: int) -> None:
    for site in observed:
        for name, size in site.plates.items():
            if size == num_data:
                raise FixedSizeError(
                    f"plate {name!r} has the size {size} whatever rows are passed; a size that "
                    "follows the data is expected: take it from an argument (X.shape[0])."
                )
