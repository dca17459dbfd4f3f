"""`Grouping`: what a coreset keeps of its groups, to make its marginal model again."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import PRNGKeyArray

from jaxcoreset.data.rows import PassContext
from jaxcoreset.likelihood.arguments import Arguments, ModelError, flatten
from jaxcoreset.likelihood.from_model import model_likelihood
from jaxcoreset.likelihood.group_arguments import (
    GroupPositions,
    flat_call,
    rows_as_groups,
)
from jaxcoreset.likelihood.group_layout import Layout, lay_out
from jaxcoreset.likelihood.group_model import GroupModel
from jaxcoreset.likelihood.group_structure import find_table, structure_of
from jaxcoreset.likelihood.integral_error import with_checked_closed_form
from jaxcoreset.likelihood.integration import (
    AdaptiveQuadrature,
    GaussianIntegral,
    Integration,
    LaplaceIntegral,
)
from jaxcoreset.likelihood.likelihood import ModelLikelihood


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

    def lay_out(
        self, model: Callable, args: tuple, kwargs: Mapping[str, Any], before: Arguments
    ) -> Layout:
        """Other groups, from arguments as a user writes them.

        Args:
            model: the user's model.
            args: its positional arguments.
            kwargs: its keyword arguments.
            before: the arguments of these groups, laid out.

        Raises:
            ModelError: if the arguments have other roles than those of these groups, or one that is
                no data has another value.
        """
        arguments = flatten(model, args, dict(kwargs))
        labels = self.positions.labels
        table = (
            rows_as_groups(arguments, self.positions)
            if labels is None
            else find_table(model, arguments, arguments.names[labels], self.positions)
        )
        if table.positions != self.positions:
            raise ModelError(
                f"the arguments ({arguments}) have a different structure from those that the "
                "coreset was built from; pass the same arguments, in which only the groups differ."
            )
        layout = lay_out(table)
        self._counted(before).check_same_constants(self._counted(layout.arguments))
        return layout

    def _counted(self, arguments: Arguments) -> Arguments:
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
        kind = type(self.integration).__name__
        return {"positions": self.positions.to_dict(), "num_nodes": nodes, "integration": kind}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Grouping":
        """The inverse of `to_dict`."""
        nodes = plain["num_nodes"]
        integration = LaplaceIntegral() if nodes is None else AdaptiveQuadrature(nodes)
        if plain.get("integration") == GaussianIntegral.__name__:
            integration = GaussianIntegral()
        return cls(GroupPositions.from_dict(plain["positions"]), integration)


def likelihood_of_layout(
    marginal: GroupModel,
    layout: Layout,
    *,
    key: PRNGKeyArray | None = None,
    context: PassContext | None = None,
) -> ModelLikelihood:
    """The log-likelihoods of groups; arguments and errors as in `model_likelihood`."""
    arguments, rows = layout.arguments, layout.rows(context)
    return model_likelihood(
        marginal,
        *arguments.call,
        data_axes=arguments.axes,
        key=key,
        context=rows.context,
        rows=rows,
    )


def likelihood_of_new_groups(
    marginal: GroupModel, layout: Layout, context: PassContext
) -> ModelLikelihood:
    """As `likelihood_of_layout`, for groups that the build did not see."""
    return with_checked_closed_form(likelihood_of_layout(marginal, layout, context=context))
