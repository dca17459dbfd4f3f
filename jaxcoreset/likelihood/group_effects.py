"""Draws of every group's effect, given draws of the parameters that groups share.

Given the shared parameters φ, the effects of groups are independent. Each is drawn by an
independence Metropolis sampler whose proposals are from a Student distribution at the mode of the
group's log-density, on the scale of its curvature. The proposals do not depend on one another, so
all are evaluated at once; the tails of a Student distribution are heavier than those of nearly any
effect, so the chain converges geometrically (Mengersen and Tweedie 1996, Annals of Statistics
24(1)).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jaxcoreset.data.rows import Rows
from jaxcoreset.likelihood.group_model import GroupModel
from jaxcoreset.likelihood.integration import STUDENT_DEGREES, find_mode, solve_upper
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.partial_evaluation import prepare
from jaxcoreset.likelihood.program import current_model
from jaxcoreset.likelihood.trace import full_precision

# Steps of the sampler for each draw.
_NUM_STEPS = 24


def draw_effects(
    marginal: GroupModel,
    rows: Rows,
    leaves: Sequence,
    draws: Mapping[str, Array],
    key: PRNGKeyArray,
    *,
    moments: bool = False,
    program: ModelLikelihood | None = None,
) -> dict[str, np.ndarray]:
    """Draws of the local sites of all groups, and of deterministic sites with an entry per group.

    Args:
        marginal: the marginal model.
        rows: the groups.
        leaves: the leaves of the model's arguments, for what is no data.
        draws: constrained draws of the shared parameters, with a leading axis of s.
        key: a JAX random key.
        moments: whether only the mean and the standard deviation over the draws are returned.
        program: the program of the groups' likelihood, with which compiled code is shared.

    Returns:
        By site an array of shape (s, G, …), the groups in the order of their numbers; with
        `moments` one of shape (2, G, …).
    """
    constants = _Constants(marginal, leaves) if program is None else _OfProgram(program)
    sampler = _Sampler(constants, moments)
    num = next(iter(draws.values())).shape[0]
    own = rows.offset + np.arange(rows.num_local)
    numbers = rows.numbers(own).astype(np.uint32)
    found: list[dict[str, np.ndarray]] = []
    width = num * _NUM_STEPS
    for _, count, values in rows.evaluate(_block, (sampler, dict(draws), key), width, (numbers,)):
        flat = {name: np.asarray(x).reshape(-1, *x.shape[2:])[:count] for name, x in values.items()}
        found.append(flat)
    joined = rows.gather({name: np.concatenate([p[name] for p in found]) for name in found[0]})
    order = np.argsort(rows.numbers(np.arange(rows.num_rows)))
    return {name: np.moveaxis(x[order], 1, 0) for name, x in joined.items()}


def _block(args: tuple, rows: tuple, counted: Array) -> PyTree:
    sampler, draws, key = args
    data, (numbers,) = rows
    return jax.lax.map(lambda own: sampler(draws, key, *own), (data, numbers))


class _Constants:
    """What programs are made from: the model, and its arguments that are no data."""

    def __init__(self, marginal: GroupModel, leaves: Sequence):
        self.marginal = marginal
        data_at = marginal.positions.data_at
        self.leaves = [None if i in data_at else leaf for i, leaf in enumerate(leaves)]


@dataclass(frozen=True)
class _OfProgram:
    """The same of a likelihood's program, equal for all likelihoods that share it."""

    program: ModelLikelihood

    @property
    def marginal(self) -> GroupModel:
        return current_model(self.program)

    @property
    def leaves(self) -> Sequence:
        return self.program.arguments.leaves


class _Sampler(eqx.Module):
    """Draws of one group's effect, one for each draw of the shared parameters."""

    constants: _Constants | _OfProgram = eqx.field(static=True)
    moments: bool = eqx.field(static=True)

    def __call__(
        self, draws: Mapping[str, Array], key: PRNGKeyArray, own: tuple, number: Array
    ) -> dict[str, Array]:
        num = next(iter(draws.values())).shape[0]
        keys = jax.random.split(jax.random.fold_in(key, number), num)
        found = jax.vmap(lambda one, draw: self._draw(one, draw, own))(keys, dict(draws))
        if not self.moments:
            return found
        return {name: jnp.stack([x.mean(axis=0), x.std(axis=0)]) for name, x in found.items()}

    def _draw(self, key: PRNGKeyArray, shared: Mapping[str, Array], own: tuple) -> dict[str, Array]:
        marginal, leaves = self.constants.marginal, self.constants.leaves
        structure = marginal.structure
        num_dims = structure.num_dims
        key, choice_key = jax.random.split(key)
        origin = jnp.zeros(num_dims, jnp.result_type(float))
        effect = self._effect(key, shared, own, origin) if num_dims else origin
        choice = jnp.asarray(structure.choices[0])
        if structure.discrete:
            log_weights = marginal.by_choice(shared, effect, leaves, own)
            number = jax.random.categorical(choice_key, log_weights)
            choice = jnp.asarray(structure.choices)[number]
        with full_precision():
            sites, _, _ = marginal.run_group(shared, effect, leaves, own, choice)
        dims = {name: site.value_dim for name, site in structure.local.items()}
        dims |= {name: dim for name, (_, dim) in structure.discrete.items()}
        dims |= structure.effects
        return {
            name: jnp.squeeze(jnp.asarray(sites[name]["value"]), axis=dim)
            for name, dim in dims.items()
        }

    def _effect(
        self, key: PRNGKeyArray, shared: Mapping[str, Array], own: tuple, origin: Array
    ) -> Float[Array, " d"]:
        """A draw of the unconstrained effect, with the discrete sites summed out."""
        marginal, leaves, num_dims = self.constants.marginal, self.constants.leaves, origin.size
        log_density = prepare(
            lambda effect: marginal.log_density(shared, effect, leaves, own), origin
        )
        mode, factor = find_mode(log_density, num_dims)
        key, normal_key, scale_key = jax.random.split(key, 3)
        normal = jax.random.normal(normal_key, (_NUM_STEPS, num_dims))
        scale = jax.random.chisquare(scale_key, STUDENT_DEGREES, (_NUM_STEPS, 1))
        steps = normal / jnp.sqrt(scale / STUDENT_DEGREES)
        points = mode + jax.vmap(lambda step: solve_upper(factor, step))(steps)
        squares = jnp.sum(steps**2, axis=1) / STUDENT_DEGREES
        log_proposal = -(STUDENT_DEGREES + num_dims) / 2 * jnp.log1p(squares)
        log_ratios = jax.vmap(log_density)(points) - log_proposal
        chosen = _metropolis(key, jnp.where(jnp.isnan(log_ratios), -jnp.inf, log_ratios))
        return points[chosen]


def _metropolis(key: PRNGKeyArray, log_ratios: Float[Array, " k"]) -> Array:
    """The last state of an independence sampler, as the position of a proposal."""
    log_uniform = jnp.log(jax.random.uniform(key, log_ratios.shape, minval=1e-30))

    def step(at: Array, proposal: tuple) -> tuple[Array, None]:
        position, log_u = proposal
        accepted = log_u < log_ratios[position] - log_ratios[at]
        return jnp.where(accepted, position, at), None

    # The first proposal is where the chain starts, unless it is impossible.
    positions = jnp.arange(1, log_ratios.shape[0])
    last, _ = jax.lax.scan(step, jnp.zeros((), positions.dtype), (positions, log_uniform[1:]))
    return last
