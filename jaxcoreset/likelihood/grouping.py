"""`Grouping`: what a coreset keeps of its groups, from which its marginal model is made again."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxcoreset.data.rows import PassContext, Rows
from jaxcoreset.likelihood.arguments import Arguments, ModelError, flatten
from jaxcoreset.likelihood.group_arguments import (
    GroupPositions,
    flat_call,
    lay_out,
    rows_as_groups,
)
from jaxcoreset.likelihood.group_model import GroupModel
from jaxcoreset.likelihood.group_structure import find_table, structure_of
from jaxcoreset.likelihood.integration import AdaptiveQuadrature, Integration, LaplaceIntegral


@dataclass(frozen=True, eq=False)
class Grouping:
    """What a coreset keeps of its groups: the roles of the arguments, and the integral.

    Attributes:
        positions: the roles of the model's arguments.
        integration: how effects are integrated out.
    """

    positions: GroupPositions
    integration: Integration

    @classmethod
    def of(cls, marginal: GroupModel) -> "Grouping":
        """That of a marginal model."""
        return cls(marginal.positions, marginal.integration)

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
            rows_as_groups(arguments, self.positions)
            if labels is None
            else find_table(model, arguments, arguments.names[labels])
        )
        if table.positions != self.positions:
            raise ModelError(
                f"the arguments ({arguments}) are laid out otherwise than those that the coreset "
                "was built from; pass the same arguments, in which only the groups differ."
            )
        return self.counted(lay_out(table))

    def counted(self, arguments: Arguments) -> Arguments:
        """The arguments with their counts marked, so that these are not taken as constants."""
        counts = (*self.positions.group_counts, *self.positions.row_counts)
        return dataclasses.replace(arguments, counts_at=counts)

    def trimmed(self, arguments: Arguments) -> Arguments:
        """Groups laid out without places that none of them needs."""
        labels, leaves = self.positions.labels, list(arguments.leaves)
        if labels is None:
            return arguments
        mask = np.asarray(leaves[labels])
        longest = max(int(mask.sum(axis=1).max(initial=0)), 1)
        for i in (labels, *self.positions.rows):
            leaves[i] = np.asarray(leaves[i])[:, :longest]
        return dataclasses.replace(arguments, leaves=tuple(leaves))

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


def rows_of(arguments: Arguments, context: PassContext = PassContext()) -> Rows:  # noqa: B008
    """Groups laid out as rows."""
    return Rows(arguments.data, context)
