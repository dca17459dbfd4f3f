"""The arguments of a call of `predict`, read as those of the build.

They have the names of those of the build, but the response may be missing. These names say which
arguments hold rows. For a coreset of groups, labels say which groups are those of the build.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from numpyro.infer import Predictive

from jaxcoreset.coreset.codes import as_built
from jaxcoreset.coreset.coreset import Coreset
from jaxcoreset.coreset.group_effects import effects_at
from jaxcoreset.data.messages import listed
from jaxcoreset.data.reading import is_streamed
from jaxcoreset.data.rows import Rows
from jaxcoreset.diagnostics.settings_of_build import with_settings_of_build
from jaxcoreset.likelihood.arguments import (
    Arguments,
    ModelError,
    flatten,
    is_array,
    is_same,
)
from jaxcoreset.likelihood.group_model import GroupModel
from jaxcoreset.likelihood.likelihood import ModelLikelihood

_ORDER_OF_GROUPS = (
    "The groups of the build come first, in the order of coreset.group_names, and then the new "
    "ones, in the order of their sorted labels."
)


def rows_to_predict(
    coreset: Coreset,
    args: tuple,
    kwargs: Mapping[str, Any],
    full: ModelLikelihood | None = None,
) -> Arguments:
    """The arguments with the rows to predict, marked as those of the build are by their names.

    Args:
        coreset: the coreset.
        args: positional arguments of the model.
        kwargs: its keyword arguments.
        full: the likelihood of all data of the build. If these are groups whose labels the build
            numbered, labels to predict are numbered in the same way, and new ones after them.

    Raises:
        ModelError: if none of them holds rows, they differ in their number, an argument with one
            entry per group has other entries for the groups of the build, or an argument of the
            build without rows is missing and cannot be passed by its name.
    """
    known, grouping = names_of(coreset), coreset.grouping
    args, kwargs = as_built(coreset, args, kwargs)
    labels = None if grouping is None else grouping.positions.labels
    label = None if labels is None else known[labels]
    arguments = flatten(coreset.full_model, args, dict(kwargs), label)
    settings = with_settings_of_build(coreset, arguments)
    arguments = flatten(coreset.full_model, *settings, label)
    if grouping is None:
        data, counts = coreset.arguments.data_at, coreset.arguments.counts_at
    else:
        data = (*grouping.positions.rows, *(() if labels is None else (labels,)))
        counts = grouping.positions.row_counts
        if labels is None:
            counts = (*counts, *grouping.positions.group_counts)
    names = {known[i] for i in data}
    if label is not None and full is not None and isinstance(full.model, GroupModel):
        all_labels = full.model.names
        if all_labels is not None:
            arguments, all_labels = _numbered(arguments, label, all_labels)
        _check_predictors_of_groups(coreset, arguments, full.rows, all_labels)
    found = tuple(
        i
        for i, leaf in enumerate(arguments.leaves)
        if arguments.names[i] in names and is_array(leaf)
    )
    if not found:
        raise ModelError(
            f"no argument holds rows to predict; expected at least one of {listed(sorted(names))}, "
            "as in the call that the coreset was built with."
        )
    lengths = {arguments.names[i]: arguments.leaves[i].shape[0] for i in found}
    if len(set(lengths.values())) > 1:
        raise ModelError(
            f"the arguments with the rows to predict differ in their number of rows: {lengths}; "
            "expected the same number in each."
        )
    counted = {known[i] for i in counts}
    counts_at = tuple(i for i, name in enumerate(arguments.names) if name in counted)
    return dataclasses.replace(arguments, data_at=found, counts_at=counts_at)


def _numbered(
    arguments: Arguments, label: str, group_names: np.ndarray
) -> tuple[Arguments, np.ndarray | None]:
    """The arguments with the numbers of groups in place of the labels that the build numbered.

    The labels of all groups, new ones included, are returned too, in the order of these numbers;
    None if the labels are not those that the build numbered.
    """
    if label not in arguments.names:
        return arguments, None
    at, leaves = arguments.names.index(label), list(arguments.leaves)
    labels = np.asarray(leaves[at])
    if labels.ndim != 1 or (labels.dtype.kind in "iuf") != (group_names.dtype.kind in "iuf"):
        return arguments, None  # they are numbers already, or are refused later
    names, numbers = np.unique(labels, return_inverse=True)
    order = np.argsort(group_names)  # names of several processes are in the processes' order
    places = np.searchsorted(group_names, names, sorter=order)
    position = order[np.minimum(places, group_names.size - 1)]
    is_new = group_names[position] != names
    position[is_new] = group_names.size + np.arange(is_new.sum())
    leaves[at] = position[numbers.reshape(-1)].astype(np.int32)
    all_labels = np.concatenate([group_names, names[is_new]])
    return dataclasses.replace(arguments, leaves=tuple(leaves)), all_labels


def _check_predictors_of_groups(
    coreset: Coreset, arguments: Arguments, groups: Rows, all_labels: np.ndarray | None
) -> None:
    """Refuse arguments with one entry per group in another order than that of the numbers.

    A user may take the order of all sorted labels, in which a new group can be before those of the
    build. The entries of the build tell the two orders apart, unless too many are equal.

    Args:
        coreset: a coreset of groups that labels name.
        arguments: the arguments to predict, with the numbers of groups.
        groups: all groups of the build.
        all_labels: the labels of all groups in the order of their numbers, if they are known.

    Raises:
        ModelError: if an argument is missing, has other entries for the groups of the build, or
            fits both orders with other entries for new groups.
    """
    positions, names = coreset.grouping.positions, names_of(coreset)
    at = {names[i]: positions.data_at.index(i) for i in positions.groups}
    given = dict(zip(arguments.names, arguments.leaves, strict=True))
    if missing := [name for name in at if not is_array(given.get(name))]:
        raise ModelError(
            f"argument {listed(missing)} is missing; expected an array with one entry per group, "
            f"as in the call that the coreset was built with. {_ORDER_OF_GROUPS}"
        )
    before = groups.gather({name: np.asarray(groups.data[i]) for name, i in at.items()})
    numbers = groups.places(np.arange(groups.num_rows))
    fits_sorted, changes = all_labels is not None, []
    for name, values in before.items():
        values, now, known = values[numbers], np.asarray(given[name][:]), groups.num_rows
        if len(now) < known:
            return  # there are too few groups, which is refused later
        if not is_same(values, now[:known]):
            pairs = enumerate(zip(values, now, strict=False))
            first = next((i for i, (one, two) in pairs if not is_same(one, two)), 0)
            label = first if all_labels is None else all_labels[first]
            raise ModelError(
                f"argument {name} has {now[first].tolist()!r} for group {label}, but the coreset "
                f"was built with {values[first].tolist()!r}; expected the same entries for the "
                f"{known} groups of the build. {_ORDER_OF_GROUPS}"
            )
        if all_labels is not None and len(now) == all_labels.size:
            by_label = now[np.argsort(np.argsort(all_labels))]
            fits_sorted = fits_sorted and is_same(values, by_label[:known])
            changes += [] if is_same(now, by_label) else [name]
    if fits_sorted and changes:
        raise ModelError(
            f"argument {listed(changes)} fits the groups of the build in two orders, so that it is "
            "not clear which of its other entries belongs to which new group. "
            f"{_ORDER_OF_GROUPS} Give new groups labels that sort after those of the build, so "
            "that this is the order of all sorted labels, too."
        )


def names_of(coreset: Coreset) -> tuple[str, ...]:
    """The names of the arguments of the user's model, in their order in the build."""
    return flatten(coreset.full_model, coreset.args, coreset.kwargs).names


def known_rows(coreset: Coreset, full: ModelLikelihood | None) -> dict[str, Any]:
    """Rows of the build that are in memory, by the names of the arguments.

    They are all rows, or else those of the coreset.
    """
    call = flatten(coreset.full_model, coreset.args, coreset.kwargs)
    known = dict(zip(call.names, call.leaves, strict=True))
    known = {name: leaf for name, leaf in known.items() if is_array(leaf)}
    if full is None or isinstance(full.model, GroupModel):
        return known
    named = zip(full.arguments.data_names, full.arguments.data, strict=True)
    return known | {name: leaf for name, leaf in named if not is_streamed(leaf)}


def effects_to_predict(
    coreset: Coreset,
    arguments: Arguments,
    shared: dict[str, Array],
    groups: Rows,
    key: PRNGKeyArray,
) -> dict[str, Array]:
    """The latent sites of all groups at draws of the shared parameters, as the model has them.

    Groups of the build have their own effects. The model may have further ones, which the build did
    not see; their effects are from the prior given the shared parameters.

    Args:
        coreset: a coreset of groups that labels name.
        arguments: the rows to predict.
        shared: constrained draws of the shared parameters, with a leading axis of s.
        groups: all groups of the build.
        key: a JAX random key.

    Raises:
        ModelError: if the arguments have fewer groups than the build, or a label is not the number
            of a group.
    """
    positions, names = coreset.grouping.positions, names_of(coreset)
    by_name = dict(zip(arguments.names, arguments.leaves, strict=True))
    label = names[positions.labels]
    if missing := [names[i] for i in positions.group_counts if names[i] not in by_name]:
        raise ModelError(
            f"argument {listed(missing)} is missing; expected the number of groups, as the model "
            "takes it."
        )
    counts = [by_name[names[i]] for i in positions.group_counts]
    counts += [np.shape(by_name[names[i]])[0] for i in positions.groups]
    num, known = int(counts[0]), groups.num_rows
    if num < known:
        raise ModelError(
            f"the rows to predict belong to {num} groups, but the coreset was built from {known}; "
            "expected the same groups with the same numbers, and new groups after them."
        )
    labels = np.asarray(by_name[label])
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= num:
        raise ModelError(
            f"argument {label} has labels from {labels.min()} to {labels.max()} for {num} groups; "
            "expected the labels of the build, or the numbers of groups, from 0 on, in the order "
            "of its sorted labels, and a number of groups that includes new groups."
        )
    key, prior_key = jax.random.split(key)
    structure = coreset.grouping.model(coreset.full_model, coreset.arguments).structure
    axes = {name: site.value_dim for name, site in structure.local.items()}
    axes |= {name: axis for name, (_, axis) in structure.discrete.items()}
    effects = effects_at(coreset, groups, shared, key)
    values = {
        name: jnp.moveaxis(jnp.asarray(effects[name]), 1, axis) for name, axis in axes.items()
    }
    if num == known:
        return values
    few = [leaf[:1] for leaf in arguments.data]
    args, kwargs = arguments.fill(few)
    prior = Predictive(coreset.full_model, posterior_samples=shared, return_sites=list(axes))
    drawn = prior(prior_key, *args, **kwargs)
    return {
        name: jnp.concatenate(
            [values[name], jnp.take(drawn[name], np.arange(known, num), axis=axis)], axis=axis
        )
        for name, axis in axes.items()
    }
