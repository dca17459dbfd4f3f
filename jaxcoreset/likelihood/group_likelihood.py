"""`group_likelihood`: a hierarchical model and its arguments as one log-likelihood per group."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import PRNGKeyArray

from jaxcoreset.data.rows import PassContext
from jaxcoreset.likelihood.arguments import Arguments, ModelError, flatten
from jaxcoreset.likelihood.from_model import model_likelihood
from jaxcoreset.likelihood.group_arguments import GroupPositions, GroupTable, flat_call, lay_out
from jaxcoreset.likelihood.group_check import check_groups
from jaxcoreset.likelihood.group_model import GroupModel
from jaxcoreset.likelihood.group_structure import find_table, structure_of
from jaxcoreset.likelihood.integration import (
    AdaptiveQuadrature,
    Integration,
    LaplaceIntegral,
    default_integration,
)
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.structure import find_data
from jaxcoreset.likelihood.trace import one_at_a_time


@dataclass(frozen=True, eq=False)
class Grouping:
    """What a coreset keeps of its groups: the roles of the arguments, and the integral.

    Attributes:
        positions: the roles of the model's arguments.
        integration: how effects are integrated out.
    """

    positions: GroupPositions
    integration: Integration

    def model(self, model: Callable, arguments: Arguments) -> GroupModel:
        """The marginal model.

        Args:
            model: the user's model.
            arguments: its arguments, with groups laid out as rows.
        """
        args, kwargs = flat_call(self.positions, arguments)
        structure = structure_of(model, flatten(model, args, kwargs), self.positions)
        return GroupModel(model, arguments.tree, self.positions, structure, self.integration)

    def lay_out(self, model: Callable, args: tuple, kwargs: Mapping[str, Any]) -> Arguments:
        """The arguments of other groups, as a user writes them, laid out as rows.

        Raises:
            ModelError: if the arguments have other roles than those of these groups.
        """
        arguments = flatten(model, args, dict(kwargs))
        labels = self.positions.labels
        table = (
            _rows_as_groups(arguments, self.positions)
            if labels is None
            else find_table(model, arguments, arguments.names[labels])
        )
        if table.positions != self.positions:
            raise ModelError(
                f"the arguments ({arguments}) are laid out otherwise than those that the coreset "
                "was built from; pass the same arguments, in which only the groups differ."
            )
        return lay_out(table)

    def to_dict(self) -> dict[str, Any]:
        """The grouping as plain numbers, strings and lists."""
        nodes = getattr(self.integration, "num_nodes", None)
        return {"positions": self.positions.to_dict(), "num_nodes": nodes}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Grouping":
        """The inverse of `to_dict`."""
        nodes = plain["num_nodes"]
        integration = LaplaceIntegral() if nodes is None else AdaptiveQuadrature(nodes)
        return cls(GroupPositions.from_dict(plain["positions"]), integration)


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
        table = _rows_as_groups(arguments, GroupPositions(None, arguments.data_at, (), counts))
    else:
        table = find_table(model, flatten(model, tuple(args), given), groups)
    structure = structure_of(model, table.arguments, table.positions)
    integration = integration or default_integration(structure.num_dims)
    integration.check(structure.num_dims)
    marginal = GroupModel(model, table.arguments.tree, table.positions, structure, integration)
    check_groups(marginal, table)
    laid_out = lay_out(table)
    return model_likelihood(
        marginal, *laid_out.call, data_axes=laid_out.axes, key=key, context=context
    )


def _rows_as_groups(arguments: Arguments, positions: GroupPositions) -> GroupTable:
    num = arguments.leaves[positions.rows[0]].shape[0]
    return GroupTable(arguments, positions, np.arange(num), None, num)
