"""What a build needs before it solves: a solver with its labels, and an expansion of all rows."""

from functools import partial
from typing import Literal

import jax.numpy as jnp
import numpy as np

from jaxcoreset.builders.settings import Taylor
from jaxcoreset.data.messages import did_you_mean, listed
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.selection.construction import Construction
from jaxcoreset.selection.draws import DrawPool
from jaxcoreset.selection.expanding import expansion_of, flat_center, is_far
from jaxcoreset.solvers.base import Solver
from jaxcoreset.solvers.constraints.base import constraints_of, replace_constraints


def expand(
    proxy: Literal["auto"] | Taylor | None, construction: Construction, pool: DrawPool
) -> None:
    """Give the pool the expansion of all rows, if there is to be a proxy and it is proper.

    Raises:
        ValueError: if it is not, and `proxy` is a `Taylor`.
    """
    if proxy is None or (proxy == "auto" and constraints_of(construction.solver)):
        return
    approximation = pool.source.approximation
    center = proxy.center if isinstance(proxy, Taylor) else None
    if center is None and approximation is not None:
        pool.expansion = approximation.expansion
    if pool.expansion is None:
        likelihood, position = construction.likelihood, None
        if center is not None:
            given = {name: jnp.asarray(value) for name, value in center.items()}
            position = flat_center(likelihood.unconstrain(given))
        else:
            construction.embed(pool)
        pool.expansion = expansion_of(likelihood, pool, position)
    if pool.expansion is None and isinstance(proxy, Taylor):
        raise ValueError(
            "the second-order expansion of the log-posterior is not concave at the proxy's "
            'center, so that it is no density; expected a point near the mode. proxy="auto" '
            "takes rows alone then."
        )


def expand_again(likelihood: ModelLikelihood, pool: DrawPool) -> None:
    """Expand where the draws of a round are, if the center is far from them."""
    if pool.expansion is not None and is_far(pool):
        found = expansion_of(likelihood, pool)
        pool.expansion = pool.expansion if found is None else found


def bound_solver(solver: Solver | None, likelihood: ModelLikelihood) -> Solver | None:
    """The solver, whose constraints have their labels where they name an argument."""
    solver = replace_constraints(
        solver, lambda constraint: constraint.bind(partial(_labels, likelihood))
    )
    for constraint in constraints_of(solver):
        constraint.check(likelihood.num_data)
    return solver


def _labels(likelihood: ModelLikelihood, name: str) -> np.ndarray:
    """The argument of the model that a constraint names, one label for each row."""
    given = likelihood.arguments
    if name not in given.names:
        raise ValueError(
            f"the constraint names {name!r}{did_you_mean(name, given.names)} Expected one of the "
            f"model's arguments: {listed(given.names)}."
        )
    values = np.asarray(given.leaves[given.names.index(name)])
    if values.shape != (likelihood.num_data,):
        raise ValueError(
            f"the constraint names {name!r}, which has shape {values.shape}; expected "
            f"({likelihood.num_data},), one label for each row."
        )
    return values
