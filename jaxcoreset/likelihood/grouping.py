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
from jaxcoreset.likelihood.group_names import GroupNames
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
        names: the labels of all groups that the coreset stands for.
    """

    positions: GroupPositions
    integration: Integration
    names: GroupNames = GroupNames()  # noqa: RUF009 - frozen

    @classmethod
    def of(cls, marginal: GroupModel) -> "Grouping":
        """That of a marginal model."""
        return cls(marginal.positions, marginal.integration, GroupNames(marginal.names))

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
        labels, before = self.positions.labels, self._named(model, before)
        name = None if labels is None else before.names[labels]
        arguments = flatten(model, args, dict(kwargs), name)
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

    def lay_out_all(
        self, model: Callable, args: tuple, kwargs: Mapping[str, Any], before: Arguments
    ) -> Layout:
        """All the groups again; as `lay_out`, but with the numbers that they have here.

        Raises:
            ModelError: see `lay_out`; or if labels show that they are other groups.
        """
        layout = self.lay_out(model, args, kwargs, before)
        numbers = self.names.numbers_of(layout.names)
        if numbers is None:
            return layout
        order = numbers if layout.order is None else numbers[layout.order]
        order = None if np.array_equal(order, np.arange(order.size)) else order
        return dataclasses.replace(layout, order=order, names=self.names)

    def joined(self, num: int, layout: Layout) -> "Grouping":
        """That of these groups and of new ones.

        Args:
            num: the number of these groups.
            layout: the new groups.

        Raises:
            ModelError: see `GroupNames.joined`.
        """
        labels = self.positions.labels
        if labels is None:
            return self
        argument, num_new = layout.arguments.names[labels], layout.data[0].shape[0]
        names = self.names.joined(num, layout.names, num_new, argument)
        return dataclasses.replace(self, names=names)

    def _named(self, model: Callable, arguments: Arguments) -> Arguments:
        """The arguments of groups with the names that they have in the user's model."""
        args, kwargs = flat_call(self.positions, arguments)
        return dataclasses.replace(arguments, names=flatten(model, args, kwargs).names)

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
        """The grouping as plain numbers, strings and lists; without the names."""
        nodes = getattr(self.integration, "num_nodes", None)
        kind = type(self.integration).__name__
        return {"positions": self.positions.to_dict(), "num_nodes": nodes, "integration": kind}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], names: GroupNames) -> "Grouping":
        """The inverse of `to_dict`, which does not have the names."""
        nodes = plain["num_nodes"]
        integration = LaplaceIntegral() if nodes is None else AdaptiveQuadrature(nodes)
        if plain.get("integration") == GaussianIntegral.__name__:
            integration = GaussianIntegral()
        positions = GroupPositions.from_dict(plain["positions"])
        if positions.labels is None:  # rows, which have numbers only
            names = GroupNames()
        return cls(positions, integration, names)


def likelihood_of_layout(
    marginal: GroupModel,
    layout: Layout,
    *,
    key: PRNGKeyArray | None = None,
    context: PassContext | None = None,
) -> ModelLikelihood:
    """The log-likelihoods of groups; arguments and errors as in `model_likelihood`."""
    arguments, rows = layout.arguments, layout.rows(context)
    marginal = dataclasses.replace(marginal, names=layout.names.labels)
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
