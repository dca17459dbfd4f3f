"""Draws of every group's effect, given draws of the parameters that groups share.

Given the shared parameters φ, the effects of groups are independent. Each is drawn by an
independence Metropolis sampler whose proposals are from a Student distribution at the mode of the
group's log-density, on the scale of its curvature. The tails of a Student distribution are heavier
than those of nearly any effect, so the chain converges geometrically (Mengersen and Tweedie 1996,
Annals of Statistics 24(1)).

A proposal that rejection sampling would accept is an exact draw, and Metropolis steps from there
leave it one. Rejection sampling needs the supremum of the ratio of the densities, of which the
highest ratio at the proposals of all draws of φ is an estimate (Caffo, Booth and Davis 2002,
Biometrika 89(4)). So proposals are evaluated until each draw had such a one, or there are many.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from jaxcoreset.data.dtypes import default_float
from jaxcoreset.data.rows import Rows
from jaxcoreset.likelihood.group_model import GroupModel, OneGroup
from jaxcoreset.likelihood.integration import STUDENT_DEGREES, find_mode, scaled
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.partial_evaluation import prepare
from jaxcoreset.likelihood.program import current_model

# The number of proposals that are evaluated at once for each draw of φ, the least number for all
# draws together, and the number for each draw after which no more are evaluated.
_AT_ONCE, _FEWEST_IN_ALL, _MOST = 8, 64, 96
# The axis of the draws of φ.
_DRAWS = "draws"


def draw_effects(
    marginal: GroupModel,
    rows: Rows,
    leaves: Sequence,
    draws: Mapping[str, Array],
    key: PRNGKeyArray,
    *,
    moments: bool = False,
    unconstrained: bool = False,
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
        unconstrained: whether the unconstrained values of continuous latent sites are returned,
            and no other sites.
        program: the program of the groups' likelihood, with which compiled code is shared.

    Returns:
        By site an array of shape (s, G, …), the groups in the order of their numbers; with
        `moments` one of shape (2, G, …).
    """
    constants = _Constants(marginal, leaves) if program is None else _OfProgram(program)
    sampler = _Sampler(constants, moments, unconstrained)
    num = next(iter(draws.values())).shape[0]
    own = rows.offset + np.arange(rows.num_local)
    numbers = rows.numbers(own).astype(np.uint32)
    found: list[dict[str, np.ndarray]] = []
    width = num * _proposals_at_once(num)
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
    unconstrained: bool = eqx.field(static=True)

    def __call__(
        self, draws: Mapping[str, Array], key: PRNGKeyArray, own: tuple, number: Array
    ) -> dict[str, Array]:
        num = next(iter(draws.values())).shape[0]
        keys = jax.random.split(jax.random.fold_in(key, number), num)
        draw = jax.vmap(lambda key, one: self._draw(key, one, own, num), axis_name=_DRAWS)
        found = draw(keys, dict(draws))
        if not self.moments:
            return found
        return {name: jnp.stack([x.mean(axis=0), x.std(axis=0)]) for name, x in found.items()}

    def _draw(
        self, key: PRNGKeyArray, shared: Mapping[str, Array], own: tuple, num: int
    ) -> dict[str, Array]:
        structure = self.constants.marginal.structure
        num_dims = structure.num_dims
        key, choice_key = jax.random.split(key)
        origin = jnp.zeros(num_dims, default_float())
        group = OneGroup(self.constants.marginal, shared, self.constants.leaves, own)
        effect = _effect(key, group, origin, num) if num_dims else origin
        if self.unconstrained:
            parts = self.constants.marginal.split(effect)
            return {name: jnp.squeeze(x, structure.local[name].dim) for name, x in parts.items()}
        choice = jnp.asarray(structure.choices[0])
        if structure.discrete:
            number = jax.random.categorical(choice_key, group.by_choice(effect))
            choice = jnp.asarray(structure.choices)[number]
        sites, _, _ = group.run(effect, choice)
        dims = {name: site.value_dim for name, site in structure.local.items()}
        dims |= {name: dim for name, (_, dim) in structure.discrete.items()}
        dims |= structure.effects
        return {
            name: jnp.squeeze(jnp.asarray(sites[name]["value"]), axis=dim)
            for name, dim in dims.items()
        }


def _effect(
    key: PRNGKeyArray, group: OneGroup, origin: Float[Array, " d"], num_draws: int
) -> Float[Array, " d"]:
    """A draw of the unconstrained effect, with the discrete sites summed out."""
    num_dims, log_density = origin.size, prepare(group.log_density, origin)
    mode, factor = find_mode(log_density, num_dims)
    at_mode, num = log_density(mode), _proposals_at_once(num_draws)

    def propose(chain: _Chain) -> _Chain:
        keys = jax.random.split(jax.random.fold_in(key, chain.num), 3)
        normal = jax.random.normal(keys[0], (num, num_dims))
        scale = jax.random.chisquare(keys[1], STUDENT_DEGREES, (num, 1))
        steps = normal / jnp.sqrt(scale / STUDENT_DEGREES)
        points = mode + scaled(factor, steps)
        squares = jnp.sum(steps**2, axis=1) / STUDENT_DEGREES
        log_proposal = -(STUDENT_DEGREES + num_dims) / 2 * jnp.log1p(squares)
        log_ratios = jax.vmap(log_density)(points) - at_mode - log_proposal
        log_ratios = jnp.where(jnp.isnan(log_ratios), -jnp.inf, log_ratios)
        log_uniform = jnp.log(jax.random.uniform(keys[2], (num,), minval=1e-30))
        return _stepped(chain, points, log_ratios, log_uniform)

    none = jnp.zeros((), origin.dtype) - jnp.inf
    first = _Chain(mode, none, none, none, jnp.zeros((), int), jnp.ones((), bool))
    return jax.lax.while_loop(lambda chain: chain.is_left, propose, first).point


def _proposals_at_once(num_draws: int) -> int:
    """The number of proposals for each draw that are evaluated at once."""
    return max(_AT_ONCE, -(-_FEWEST_IN_ALL // num_draws))


class _Chain(NamedTuple):
    """The state of an independence sampler.

    `log_ratio` is that of the densities of the effect and of the proposals at `point`, `highest` is
    the highest at any proposal so far, and rejection sampling has accepted a proposal if their
    supremum is less than `accepted_below`. `num` is the number of proposals for each draw of φ, and
    `is_left` says whether more are needed.
    """

    point: Float[Array, " d"]
    log_ratio: Float[Array, ""]
    highest: Float[Array, ""]
    accepted_below: Float[Array, ""]
    num: Int[Array, ""]
    is_left: Bool[Array, ""]


def _stepped(
    chain: _Chain,
    points: Float[Array, "k d"],
    log_ratios: Float[Array, " k"],
    log_uniform: Float[Array, " k"],
) -> _Chain:
    """The chain after some proposals; those of all draws of φ together say how high ratios are."""
    highest = jnp.maximum(chain.highest, jax.lax.pmax(jnp.max(log_ratios), _DRAWS))

    def step(at: tuple[Array, Array], proposal: tuple) -> tuple[tuple[Array, Array], None]:
        number, log_ratio, log_u = proposal
        # The first proposal is accepted unless it is impossible; then the difference is NaN.
        is_accepted = log_u < log_ratio - at[1]
        chosen = jnp.where(is_accepted, number, at[0]), jnp.where(is_accepted, log_ratio, at[1])
        return chosen, None

    numbers = jnp.arange(points.shape[0])
    start = jnp.full((), -1, numbers.dtype), chain.log_ratio
    (last, log_ratio), _ = jax.lax.scan(step, start, (numbers, log_ratios, log_uniform))
    accepted_below = jnp.maximum(chain.accepted_below, jnp.max(log_ratios - log_uniform))
    num = chain.num + points.shape[0]
    is_left = (num < _MOST) & (jax.lax.pmin(accepted_below, _DRAWS) < highest)
    point = jnp.where(last < 0, chain.point, points[last])
    return _Chain(point, log_ratio, highest, accepted_below, num, is_left)
