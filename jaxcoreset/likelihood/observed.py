"""Which rows are observations: those with an entry of an observed site that no mask leaves out."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from jaxcoreset.data.dtypes import default_float, widened
from jaxcoreset.likelihood.group_model import GroupModel, OneGroup
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.masks import rows_observed
from jaxcoreset.likelihood.program import current_model
from jaxcoreset.likelihood.trace import run


def are_observed(
    program: ModelLikelihood, params: Mapping[str, Array], data: Sequence
) -> Bool[Array, " m"]:
    """Which rows are observations, or which groups have a row that is one.

    Args:
        program: the program of a likelihood.
        params: constrained parameters, on which masks hardly ever depend.
        data: m rows.
    """
    model, arguments = current_model(program), program.assemble([widened(x) for x in data])
    if isinstance(model, GroupModel):
        return _groups_observed(model, params, jax.tree.leaves(arguments))
    sites = run(model, arguments, lambda site: params[site["name"]])
    found = jnp.zeros(data[0].shape[0], bool)
    for name, dim in program.data_dims.items():
        found = found | rows_observed(sites[name], dim)
    return found


def _groups_observed(
    model: GroupModel, shared: Mapping[str, Array], leaves: Sequence
) -> Bool[Array, " m"]:
    structure = model.structure
    effect = jnp.zeros(structure.num_dims, default_float())
    choice = structure.choices.tolist()[0]

    def one(own: tuple) -> Any:
        sites, _, is_row = OneGroup(model, shared, leaves, own).run(effect, choice)
        found: Any = False
        for name, dim in structure.rows.items():
            rows = rows_observed(sites[name], dim)
            found = found | jnp.any(rows if is_row is None else rows & is_row)
        return jnp.asarray(found)

    return jax.vmap(one)(tuple(jnp.asarray(leaves[i]) for i in model.positions.data_at))
