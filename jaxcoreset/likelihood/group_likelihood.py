"""`group_likelihood`: a hierarchical model and its arguments as one log-likelihood per group."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jaxtyping import PRNGKeyArray

from jaxcoreset.data.rows import PassContext
from jaxcoreset.likelihood.arguments import ModelError, flatten
from jaxcoreset.likelihood.group_arguments import GroupPositions, GroupTable, rows_as_groups
from jaxcoreset.likelihood.group_check import check_groups
from jaxcoreset.likelihood.group_layout import Layout, lay_out
from jaxcoreset.likelihood.group_model import GroupModel
from jaxcoreset.likelihood.group_structure import find_tables, structure_of
from jaxcoreset.likelihood.grouping import likelihood_of_layout
from jaxcoreset.likelihood.integration import Integration, default_integration
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.structure import find_data
from jaxcoreset.likelihood.trace import one_at_a_time


@one_at_a_time
def group_likelihood(
    model: Callable,
    args: Sequence = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    groups: str | None = None,
    integration: Integration | None = None,
    data_axes: Any = None,
    plate: str | None = None,
    key: PRNGKeyArray | None = None,
    context: PassContext = PassContext(),  # noqa: B008 - frozen
) -> ModelLikelihood:
    """Turns a hierarchical NumPyro model into log-likelihoods of groups and a prior.

    The data of the likelihood are groups: arrays of shape (G, L, …) for what has one row per
    datum, with a mask in place of the labels. Its parameters are the shared ones.

    Args:
        model: a NumPyro model, of whose latent sites some have one entry per group.
        args: its positional arguments, with all the rows.
        kwargs: its keyword arguments.
        groups: the argument that says to which group a row belongs; by default each row is one.
        integration: how effects are integrated out; by default by quadrature for one or two
            dimensions, and by Laplace's approximation beyond.
        data_axes: see `model_likelihood`; with `groups` None only.
        plate: see `model_likelihood`; with `groups` None only.
        key: see `model_likelihood`.
        context: see `model_likelihood`.

    Raises:
        ModelError: see `model_likelihood`; and if no argument counts the groups, no latent site has
            one entry per group, or a row or an effect depends on another group's effect.
        ValueError: if the effects have too many dimensions for the integration.
    """
    given = dict(kwargs or {})
    if groups is None:
        arguments = find_data(model, tuple(args), given, data_axes, plate)[0]
        counts = arguments.counting_rows().counts_at
        positions = GroupPositions(None, arguments.data_at, (), counts)
        tables = iter([rows_as_groups(arguments, positions)])
    else:
        tables = find_tables(model, flatten(model, tuple(args), given, groups), groups)
    marginal, layout = _first_usable(model, tables, integration, context)
    return likelihood_of_layout(marginal, layout, key=key, context=context)


def _first_usable(
    model: Callable,
    tables: Iterator[GroupTable],
    integration: Integration | None,
    context: PassContext,
) -> tuple[GroupModel, Layout]:
    """The marginal model and the groups of the first table whose groups are independent."""
    refusal: ModelError | None = None
    for table in tables:
        counts = {*table.positions.group_counts, *table.positions.row_counts}
        named = enumerate(zip(table.arguments.names, table.arguments.leaves, strict=True))
        context.processes.agree(
            {name: f"{x}" for i, (name, x) in named if isinstance(x, int) and i not in counts}
        )
        structure = structure_of(model, table.arguments, table.positions)
        own = integration or default_integration(structure.num_dims)
        own.check(structure.num_dims)
        marginal = GroupModel(
            model, table.arguments.tree, table.positions, structure, own, table.names
        )
        layout = lay_out(table, context)
        try:
            of_several = check_groups(marginal, layout, table.sizes)
        except ModelError as error:
            refusal = refusal or error
            continue
        if of_several:
            structure = structure.without(of_several)
            marginal = dataclasses.replace(marginal, structure=structure)
        return marginal, layout
    assert refusal is not None
    raise refusal
