"""Which sites of a hierarchical model belong to a group, and which all groups share.

The model is traced abstractly with two numbers of rows and of groups. A latent site that grows with
the groups is *local*: its entry for a group is that group's effect. An observed site grows with the
rows, or with the groups; all other sites are shared.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from jaxcoreset.data.messages import listed
from jaxcoreset.likelihood.arguments import Arguments, ModelError, is_integer
from jaxcoreset.likelihood.group_arguments import (
    GroupPositions,
    GroupTable,
    Labels,
    find_labels,
    possible_counts,
)
from jaxcoreset.likelihood.structure import not_independent
from jaxcoreset.likelihood.trace import (
    ABSTRACT_ROWS,
    VALUE_ERRORS,
    Site,
    abstract,
    describe,
    discrete,
    read_abstractly,
)

# Numbers of groups for the abstract runs: primes as well.
_GROUPS = (11, 13)
# That of a group without discrete sites.
_ONE_CHOICE = np.zeros((1, 0), np.int32)


@dataclass(frozen=True)
class LocalSite:
    """A latent site with one entry per group.

    Attributes:
        shape: the shape of the unconstrained value for one group.
        dim: the axis of groups in it, counted from the right.
        value_dim: the axis of groups in the constrained value.
    """

    shape: tuple[int, ...]
    dim: int
    value_dim: int

    @property
    def size(self) -> int:
        """The number of entries of a group."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class GroupStructure:
    """The sites of a hierarchical model.

    Attributes:
        local: the continuous latent sites of a group.
        shared: the names of the latent sites that all groups share.
        rows: for each observed site with one entry per row, that axis, counted from the right.
        log_prob_dims: the axis of groups in the log-probability of a group's latent sites, and of
            observed sites with one entry per group.
        effects: for each deterministic site with one entry per group, that axis.
        discrete: for each discrete latent site of a group the number of its values, and the axis of
            groups.
        hidden: the names of all sites, also deterministic ones and plates, that are not shared.
        left_out: the names of the deterministic sites among them that several groups determine.
    """

    local: dict[str, LocalSite]
    shared: tuple[str, ...]
    rows: dict[str, int]
    log_prob_dims: dict[str, int]
    effects: dict[str, int]
    hidden: frozenset[str]
    discrete: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    def without(self, names: set[str]) -> "GroupStructure":
        """The same sites, without deterministic ones that several groups determine."""
        effects = {name: axis for name, axis in self.effects.items() if name not in names}
        hidden, left_out = self.hidden | names, tuple(sorted(names))
        return dataclasses.replace(self, effects=effects, hidden=hidden, left_out=left_out)

    @property
    def integrated(self) -> tuple[str, ...]:
        """The names of the latent sites of a group."""
        return (*self.local, *self.discrete)

    @property
    def choices(self) -> Int[np.ndarray, "c k"]:
        """All values of the discrete sites of a group together, by their positions."""
        sizes = [num for num, _ in self.discrete.values()]
        return np.indices(sizes, np.int32).reshape(len(sizes), -1).T if sizes else _ONE_CHOICE

    @property
    def num_dims(self) -> int:
        """The number of dimensions of a group's effects."""
        return sum(site.size for site in self.local.values())


@dataclass(frozen=True)
class _Shapes:
    """The sites of one trace, shapes of deterministic ones, and the sizes of plates, by name."""

    sites: dict[str, Site]
    deterministic: dict[str, tuple]
    plates: dict[str, int]


def find_tables(model: Callable, arguments: Arguments, groups: str) -> Iterator[GroupTable]:
    """Find the groups that an argument names, the likeliest way to read the arguments first.

    A number that is no count of the groups may fit as well, such as that of another factor. So a
    caller whose checks refuse a table can take the next one.

    Raises:
        ModelError: if no argument counts the groups, or no latent site has one entry for each.
    """
    labels = find_labels(arguments, groups)
    at, names = labels.position, labels.names
    num_rows = arguments.leaves[at].shape[0]
    failures: list[Exception] = []
    is_found = False
    for count, positions, is_renumbered in possible_counts(arguments, at, names):
        for roles in (positions, _counting_rows(arguments, positions, num_rows)):
            try:
                found = _sizes_of_latent(model, arguments, roles, num_rows, count)
                if count not in found:
                    break
                structure_of(model, arguments, roles)
            except VALUE_ERRORS as error:
                raise ModelError(
                    f"the model reads values of a data argument ({arguments}) as Python numbers or "
                    "array sizes; these would change with the groups: pass the number of groups as "
                    "an argument of its own, and use jax.numpy on data."
                ) from error
            except Exception as error:
                failures.append(error)
                continue
            own, numbers, coded = names if is_renumbered else None, None, list(arguments.leaves)
            if labels.at is not None:
                numbers = labels.at if is_renumbered else names[labels.at].astype(np.int64)
                coded[at] = numbers.astype(np.int32)
            table = dataclasses.replace(arguments, leaves=tuple(coded))
            is_found = True
            yield GroupTable(table, roles, count, numbers, own, labels.scan)
            break
    if not is_found:
        raise _no_table(arguments, labels, groups, failures)


def find_table(
    model: Callable, arguments: Arguments, groups: str, positions: GroupPositions
) -> GroupTable:
    """The groups that an argument names, with these roles of the arguments if they can have them.

    Raises:
        ModelError: see `find_tables`.
    """
    first = None
    for table in find_tables(model, arguments, groups):
        if table.positions == positions:
            return table
        first = first or table
    assert first is not None
    return first


def _no_table(
    arguments: Arguments, labels: Labels, groups: str, failures: Sequence[Exception]
) -> ModelError:
    """The error of a model in which no groups were found."""
    names = labels.names
    if names.size == arguments.leaves[labels.position].shape[0]:
        return ModelError(
            f"argument {groups} has another label in each of its {names.size} rows, so each row is "
            "a group of its own; leave groups out: the builder finds latent sites of rows itself."
        )
    refused = [error for error in failures if isinstance(error, ModelError)]
    if refused:
        return refused[0]
    found = (
        f"{names.size} groups are in argument {groups}; expected a latent site with one entry per "
        "group, in a plate whose size is an argument of the model or the length of one (num_groups,"
        " or an array with one row per group)"
    )
    if failures:
        error = ModelError(f"{found}. The model said: {failures[0]}")
        error.__cause__ = failures[0]
        return error
    named = zip(arguments.names, arguments.leaves, strict=True)
    given = ", ".join(f"{name} = {leaf}" for name, leaf in named if is_integer(leaf))
    numbered = (
        f", or a number above {names[-1]}, the largest of them" if names.dtype.kind == "i" else ""
    )
    return ModelError(
        f"{found}; none was found among {listed(arguments.names)}"
        f"{f' ({given})' if given else ''}. Pass the number of different labels, {names.size}"
        f"{numbered}, or name another argument with groups=."
    )


def _counting_rows(arguments: Arguments, positions: GroupPositions, n: int) -> GroupPositions:
    """The same roles, with integers equal to n as row counts."""
    counts = arguments.counting_rows(n).counts_at
    rows = tuple(i for i in counts if i not in positions.group_counts)
    return dataclasses.replace(positions, row_counts=rows)


def _sizes_of_latent(
    model: Callable, arguments: Arguments, positions: GroupPositions, rows: int, groups: int
) -> set[int]:
    sites = _shapes(model, arguments, positions, rows, groups).sites
    return {size for site in sites.values() if not site.observed for size in site.shape}


def structure_of(
    model: Callable, arguments: Arguments, positions: GroupPositions
) -> GroupStructure:
    """The sites of the model; errors of the model itself pass through.

    Raises:
        ModelError: if a local site is not independent over groups given the shared parameters, or a
            site cannot be used.
    """
    own = positions.labels is None
    first, second = (
        _shapes(model, arguments, positions, rows, rows if own else groups)
        for rows, groups in zip(ABSTRACT_ROWS, _GROUPS, strict=True)
    )
    if changed := set(first.sites) ^ set(second.sites):
        raise ModelError(f"the sites {sorted(changed)[:3]} exist for some numbers of groups only.")
    local: dict[str, LocalSite] = {}
    summed: dict[str, tuple[int, int]] = {}
    shared: list[str] = []
    rows, dims, effects = {}, {}, {}
    for name, site in first.sites.items():
        other = second.sites[name]
        grows = _growth(site.log_prob_shape, other.log_prob_shape)
        if site.observed:
            if grows is None:
                raise not_independent(name, "has not one entry per row or per group")
            dim, pair = grows
            if pair == ABSTRACT_ROWS:
                rows[name] = dim
            elif pair:
                dims[name] = dim
            continue
        value = _growth(site.shape, other.shape)
        if value == (0, ()) and grows == (0, ()):
            if site.num_values:
                raise discrete(name)
            shared.append(name)
            continue
        if value is None or grows is None or not grows[1]:
            raise _dependent(name)
        if site.is_masked:
            raise _masked(name)
        if not own and ABSTRACT_ROWS in (value[1], grows[1]):
            raise _entry_per_row(name)
        dims[name] = grows[0]
        if site.num_values:
            if math.prod(with_length(site.shape, value[0], 1)) > 1:
                raise ModelError(
                    f"latent site {name!r} is discrete and has several entries for each group; "
                    "expected one entry, which is summed out: sum it out of the model by hand."
                )
            summed[name] = site.num_values, value[0]
            continue
        within = _growth(site.unconstrained_shape, other.unconstrained_shape)
        if within is None or not within[1]:
            raise _dependent(name)
        shape = with_length(site.unconstrained_shape, within[0], 1)
        local[name] = LocalSite(shape, within[0], value[0])
    hidden = {*rows, *dims}
    for name, shape in first.deterministic.items():
        grows = _growth(shape, second.deterministic[name])
        if grows != (0, ()):
            hidden.add(name)
            if grows is not None and grows[1] == (ABSTRACT_ROWS if own else _GROUPS):
                effects[name] = grows[0]
    hidden |= {name for name, size in first.plates.items() if size != second.plates.get(name)}
    if not local and not summed:
        raise ModelError(
            "no latent site has one entry per group; expected group effects to integrate out: "
            "sample them in a plate of the groups."
        )
    if not rows and not dims.keys() - local.keys() - summed.keys():
        raise ModelError("no observed site has one entry per row; expected data in the groups.")
    return GroupStructure(local, tuple(shared), rows, dims, effects, frozenset(hidden), summed)


def _masked(name: str) -> ModelError:
    if name.endswith("_unobserved"):
        return ModelError(
            f"latent site {name!r} comes from obs_mask, and has no density where the response is "
            "observed, so that it cannot be integrated out: write obs_mask as a mask of the "
            "observed site, with numpyro.handlers.mask(mask=seen), and pass any number where the "
            "response is missing."
        )
    return ModelError(
        f"latent site {name!r} is masked, and has no density where the mask is False, so that it "
        "cannot be integrated out: leave out its mask."
    )


def _entry_per_row(name: str) -> ModelError:
    return ModelError(
        f"latent site {name!r} has one entry per row, beside the effects of groups; expected one "
        "level of effects to integrate out: integrate it by hand, as a gamma-Poisson or "
        "beta-binomial distribution does."
    )


def _dependent(name: str) -> ModelError:
    return ModelError(
        f"latent site {name!r} grows with the groups and is not one independent effect for each; "
        "expected effects that are independent given the shared parameters, which a Gaussian "
        "process over groups, a random walk or a sum to zero are not: use independent effects in a "
        "plate of the groups, or groups=None with the effects as parameters."
    )


def _growth(one: tuple, two: tuple) -> tuple[int, tuple] | None:
    """The axis that grows, from the right, with its two lengths; (0, ()) if none does.

    None if several do, or the number of axes changes.
    """
    if len(one) != len(two):
        return None
    dims = [d for d in range(-len(one), 0) if one[d] != two[d]]
    if not dims:
        return 0, ()
    pair = (one[dims[0]], two[dims[0]])
    return (dims[0], pair) if len(dims) == 1 and pair in (ABSTRACT_ROWS, _GROUPS) else None


def with_length(shape: tuple[int, ...], dim: int, size: int) -> tuple[int, ...]:
    """A shape with another length of one axis."""
    changed = list(shape)
    changed[dim] = size
    return tuple(changed)


def _shapes(
    model: Callable, arguments: Arguments, positions: GroupPositions, rows: int, groups: int
) -> _Shapes:
    """The shapes of the sites for some numbers of rows and groups."""
    labels = positions.labels
    data = {
        i: abstract(arguments.leaves[i], groups if i in positions.groups else rows)
        for i in positions.data_at
        if i != labels
    }
    if labels is not None:  # which may be text
        data[labels] = jax.ShapeDtypeStruct((rows,), np.int32)

    def fill(given: dict[int, Any]) -> tuple[tuple, dict]:
        # Traced labels index a table if it is one of JAX's arrays.
        tables = {
            i: jnp.asarray(leaf)
            for i, leaf in enumerate(arguments.leaves)
            if i not in given and isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biuf"
        }
        leaves = [(given | tables).get(i, leaf) for i, leaf in enumerate(arguments.leaves)]
        own = None if labels is None else given[labels]
        leaves = positions.call_with(leaves, rows, groups, own)
        return jax.tree.unflatten(arguments.tree, leaves)

    return read_abstractly(_read, model, fill, data)


def _read(trace: Mapping) -> _Shapes:
    plates = {name: site["args"][0] for name, site in trace.items() if site["type"] == "plate"}
    deterministic = {
        name: jnp.shape(site["value"])
        for name, site in trace.items()
        if site["type"] == "deterministic"
    }
    return _Shapes({site.name: site for site in describe(trace)}, deterministic, plates)
