"""The effects of all groups, from chains on a coreset of some of them."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from numpyro.infer import MCMC

from jaxcoreset.coreset.belonging import check_belongs
from jaxcoreset.coreset.codes import as_built
from jaxcoreset.coreset.contains import check_contains
from jaxcoreset.data.arviz import posterior_of_groups
from jaxcoreset.data.rows import Rows
from jaxcoreset.data.utils import check_int, host_generator
from jaxcoreset.likelihood.group_effects import draw_effects
from jaxcoreset.likelihood.trace import latent_shapes, one_at_a_time
from jaxcoreset.weighting.chains import samples_of_full

# Makes the key that resamples draws by their weights; other numbers are those of groups.
_RESAMPLE = 2**32 - 1


@one_at_a_time
def effects_of_groups(
    coreset: Any,
    key: PRNGKeyArray,
    mcmc: MCMC | Mapping[str, Any],
    args: tuple,
    kwargs: Mapping[str, Any],
    num_draws: int,
    moments: bool,
    arviz: bool,
) -> Any:
    """See `Coreset.group_effects`."""
    num_draws = check_int("num_draws", num_draws, 1)
    if moments and arviz:
        raise ValueError(
            "moments and arviz are both True, but ArviZ takes draws, which moments does not keep; "
            "pass one of the two."
        )
    if coreset.grouping is None:
        raise ValueError(
            "the coreset is one of rows, whose model has no effects that were integrated out; "
            "expected one that was built with groups=."
        )
    model, layout = coreset.full_model, None
    if args or kwargs:
        args, kwargs = as_built(coreset, args, kwargs)
        layout = coreset.grouping.lay_out_all(model, args, kwargs, coreset.arguments)
        rows = layout.rows()
    elif coreset.likelihood is not None:
        rows = coreset.likelihood.rows
    else:
        raise ValueError(
            "the data that the coreset was built from are not available, because it was loaded, "
            "updated or merged; pass the model's arguments with all rows: "
            "coreset.group_effects(key, mcmc, X, plane, num_planes, y)."
        )
    if rows.num_rows != coreset.report.num_data:
        raise ValueError(
            f"the data have {rows.num_rows} groups, but the coreset was built from "
            f"{coreset.report.num_data}; pass the same data."
        )
    # The build's own arrays may have been changed in place.
    arguments = coreset.likelihood.arguments if layout is None else layout.arguments
    check_contains(coreset, arguments, rows, is_own=layout is None)
    check_belongs(coreset, mcmc)
    samples = samples_of_full(
        mcmc,
        latent_shapes(coreset.model, (coreset.args, coreset.kwargs)),
        host_generator(jax.random.fold_in(key, _RESAMPLE)),
    )
    flat = samples.thin(num_draws)[0].flat()
    # Processes draw the effects of their groups at the same shared parameters.
    flat = rows.context.processes.first({name: x[:num_draws] for name, x in flat.items()})
    draws = {name: jnp.asarray(x) for name, x in flat.items()}
    effects = effects_at(coreset, rows, draws, key, moments)
    if not arviz:
        return effects
    names = coreset.group_names
    labels = np.arange(rows.num_rows) if names is None else names
    # A variable and a dimension cannot have one name.
    dimension = "group" if "group" not in effects else "group_label"
    return posterior_of_groups(effects, dimension, labels)


def effects_at(
    coreset: Any,
    rows: Rows,
    draws: Mapping[str, Array],
    key: PRNGKeyArray,
    moments: bool = False,
    unconstrained: bool = False,
) -> dict[str, np.ndarray]:
    """The effects of all groups, in the order of their numbers, at draws of the shared parameters.

    Args:
        coreset: the coreset.
        rows: all groups.
        draws: constrained draws, with one leading axis.
        key: a JAX random key.
        moments: see `Coreset.group_effects`.
        unconstrained: see `draw_effects`.
    """
    marginal = coreset.grouping.model(coreset.full_model, coreset.arguments)
    program = coreset.likelihood and coreset.likelihood.shared
    leaves = coreset.arguments.leaves
    settings = {"moments": moments, "unconstrained": unconstrained, "program": program}
    return draw_effects(marginal, rows, leaves, draws, key, **settings)
