"""How accurate the integrals over groups' effects are, in nats of the divergence that matters.

The log-likelihood of all groups is evaluated with more accurate integrals at draws of π̂.
The variance over the draws of the difference is what the integrals add to the symmetrised KL
divergence. It is measured on some groups: their mean difference times the number of groups is the
part that all groups share, and what is left is independent noise.

Both integrals may be around the same mode, and miss another mode. So integrals over one dimension
are also compared with a sum over points far beyond the mode.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcoreset.data.compiling import quick_jit
from jaxcoreset.data.dtypes import as_float64
from jaxcoreset.data.rows import State
from jaxcoreset.likelihood.closures import float64_for
from jaxcoreset.likelihood.group_model import GROUP_SITE, GroupModel
from jaxcoreset.likelihood.integration import (
    AdaptiveQuadrature,
    DepartureFromGaussian,
    GaussianIntegral,
    Integration,
    QuasiMonteCarlo,
    WideSum,
    default_integration,
)
from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params
from jaxcoreset.likelihood.precision import exactly, runs_in_float64
from jaxcoreset.likelihood.program import with_integration, with_program

# The number of groups that are compared, from the smallest to the largest, with at most so many
# rows together, and of draws.
_NUM_GROUPS, _MOST_ROWS, _NUM_DRAWS = 64, 1 << 15, 32
# That of draws at which they are compared with sums over many points.
_NUM_WIDE = 8
# A relative difference from a quadratic that rounding in float64 explains.
_ROUNDING = 1e-9
# Nodes for each dimension of the quadrature that a Laplace integral is compared with, and the
# fewest with which another quadrature is.
_NODES = {1: 33, 2: 17, 3: 9, 4: 5}
_FEWEST_NODES = 17


def accurate_enough(
    likelihood: ModelLikelihood, draws: Params, goal: float
) -> tuple[ModelLikelihood, float]:
    """The likelihood with integrals of which the error is small enough, and what the error adds.

    Args:
        likelihood: a likelihood of groups.
        draws: draws of its parameters.
        goal: what the integrals' error may add to the KL divergence, in nats. Where it is more, the
            number of nodes is doubled until it is not, or there is no finer integral. Where the
            log-densities are quadratic in the effects, the integrals are had in closed form.
    """
    marginal = likelihood.model
    assert isinstance(marginal, GroupModel)
    at = {name: jnp.asarray(x)[:_NUM_DRAWS] for name, x in draws.items()}
    if not marginal.structure.num_dims:
        return likelihood, 0.0
    if is_gaussian(likelihood, at):
        closed = marginal.with_integration(GaussianIntegral())
        return with_program(dataclasses.replace(likelihood, model=closed)), 0.0
    error = integral_error(marginal, likelihood, at)
    while not error <= goal and (finer := marginal.integration.finer()):
        marginal = marginal.with_integration(finer)
        error = integral_error(marginal, likelihood, at)
    if marginal is likelihood.model:
        return likelihood, error
    return with_program(dataclasses.replace(likelihood, model=marginal)), error


def with_checked_closed_form(likelihood: ModelLikelihood) -> ModelLikelihood:
    """The likelihood, with another integral if it has a closed form that not all groups allow.

    The closed form was found for the groups of a build; later ones may be of another kind.
    """
    marginal = likelihood.model
    assert isinstance(marginal, GroupModel)
    if not isinstance(marginal.integration, GaussianIntegral):
        return likelihood
    at = {name: jnp.asarray(x)[None] for name, x in likelihood.init_params.items()}
    if runs_in_float64(likelihood) and not _num_departures(likelihood, at):
        return likelihood
    other = marginal.with_integration(default_integration(marginal.structure.num_dims))
    return with_program(dataclasses.replace(likelihood, model=other))


def is_gaussian(likelihood: ModelLikelihood, draws: Params) -> bool:
    """True if the log-densities of groups are quadratic in the effects, up to float64's rounding.

    That is not known of a model that fixes its own types.
    """
    if not runs_in_float64(likelihood):
        return False
    departure = DepartureFromGaussian()
    found = _evaluate(likelihood, departure, draws, _some_groups(likelihood))
    return bool(np.all(found < _ROUNDING)) and not _num_departures(likelihood, draws)


def _num_departures(likelihood: ModelLikelihood, draws: Params) -> int:
    """The number of all groups whose log-densities are not quadratic at the first of the draws.

    Few groups may be, as where rows of another kind, such as censored ones, are rare.
    """
    program = _with(likelihood, DepartureFromGaussian())

    def add(state: State, values: Any, first: int, num: int) -> State:
        return {"num": np.asarray(state["num"] + np.sum(values))}

    with float64_for(likelihood.model):
        at = {name: jnp.asarray(as_float64(x[0])) for name, x in draws.items()}
        states = likelihood.rows.map_reduce(
            _departures, (program.by_site, at), 1, {"num": np.zeros(())}, add, what="closed forms"
        )
    return int(sum(state["num"] for state in states))


def _departures(args: Any, rows: tuple, counted: Array) -> Array:
    by_site, draw = args
    found = by_site(draw, rows[0])[0][GROUP_SITE]
    return jnp.sum(counted & ~(found < _ROUNDING))


def _some_groups(likelihood: ModelLikelihood) -> tuple:
    num = likelihood.num_data
    rows = max(1, int(np.prod(likelihood.two_rows[0].shape[1:2])))
    chosen = np.linspace(0, num - 1, min(num, _NUM_GROUPS, max(8, _MOST_ROWS // rows)))
    return tuple(likelihood.take(np.unique(chosen.round().astype(np.int64))))


def error_of_integrals(likelihood: ModelLikelihood, draws: Params) -> float:
    """What the error of a likelihood's own integrals adds to the KL divergence, in nats."""
    marginal = likelihood.model
    assert isinstance(marginal, GroupModel)
    if isinstance(marginal.integration, GaussianIntegral) or not marginal.structure.num_dims:
        return 0.0
    at = {name: jnp.asarray(x)[:_NUM_DRAWS] for name, x in draws.items()}
    return integral_error(marginal, likelihood, at)


def integral_error(marginal: GroupModel, likelihood: ModelLikelihood, draws: Params) -> float:
    """What the integrals' error adds to the symmetrised KL divergence, in nats."""
    num, data = likelihood.num_data, _some_groups(likelihood)
    own, other = (
        _evaluate(likelihood, one, draws, data)
        for one in (marginal.integration, _reference(marginal))
    )
    found = _divergence(own - other, num)
    if marginal.structure.num_dims > 1:
        return found
    few = {name: x[:_NUM_WIDE] for name, x in draws.items()}
    wide = _evaluate(likelihood, WideSum(), few, data)
    return max(found, _divergence(own[:_NUM_WIDE] - wide, num))


def _divergence(differences: Float[np.ndarray, "s m"], num: int) -> float:
    """The variance over draws of the sum of the differences over `num` groups, by m of them."""
    size = differences.shape[1]
    shared = np.var(differences.mean(axis=1), ddof=1)
    noise = np.var(differences, axis=0, ddof=1).mean()
    return float(num**2 * max(0.0, shared - noise / size) + num * noise)


def describe(marginal: GroupModel) -> str:
    """How effects are integrated out, in a few words."""
    integration = marginal.integration
    if not marginal.structure.num_dims:
        return "summed out"
    if isinstance(integration, AdaptiveQuadrature):
        return f"integrated out by quadrature with {integration.num_nodes} nodes"
    if isinstance(integration, GaussianIntegral):
        return "integrated out in closed form"
    return "integrated out by Laplace's approximation"


def _reference(marginal: GroupModel) -> Integration:
    """A more accurate integral to compare with."""
    integration, num_dims = marginal.integration, marginal.structure.num_dims
    if isinstance(integration, AdaptiveQuadrature):
        return AdaptiveQuadrature(max(_FEWEST_NODES, 2 * integration.num_nodes - 1))
    if num_dims in _NODES:
        return AdaptiveQuadrature(_NODES[num_dims])
    return QuasiMonteCarlo()


def _evaluate(
    likelihood: ModelLikelihood, integration: Integration, draws: Params, data: tuple
) -> Float[np.ndarray, "s m"]:
    """The log-likelihoods of groups at draws, in float64 if the model runs in it."""
    evaluate = functools.partial(_values, _with(likelihood, integration))
    return exactly(likelihood, evaluate, draws, data)


def _with(likelihood: ModelLikelihood, integration: Integration) -> ModelLikelihood:
    """The program of the likelihood with another integral."""
    shared = likelihood if likelihood.shared else with_program(likelihood)
    return with_integration(shared.program, integration)


@functools.partial(quick_jit, static_argnums=0)
def _values(program: ModelLikelihood, draws: Params, data: tuple) -> Float[Array, "s m"]:
    return jax.lax.map(lambda draw: program.by_site(draw, data)[0][GROUP_SITE], draws)
