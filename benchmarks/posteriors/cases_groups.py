"""Models with an effect of each group, whose shared parameters are compared."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp

from benchmarks.groups.models import bernoulli, poisson, simulate
from benchmarks.posteriors.case import Case

_NODES = 21
_NEWTON_STEPS = 12


def marginal(rows: Callable, group: Any, num_groups: int) -> jax.Array:
    """The sum over groups of log ∫ Π p(y | z) N(z; 0, 1) dz, by adaptive Gauss–Hermite quadrature.

    Args:
        rows: the log-likelihoods of all rows given the standardised effects of all groups.
        group: the group of each row.
        num_groups: the number of groups.
    """

    def by_group(z: Any) -> jax.Array:
        return jax.ops.segment_sum(rows(z), group, num_groups) - 0.5 * z**2

    gradient = jax.grad(lambda z: by_group(z).sum())
    ones = jnp.ones(num_groups)

    def step(z: Any, _: None) -> tuple[Any, None]:
        slope, curvature = jax.jvp(gradient, (z,), (ones,))  # the Hessian is diagonal
        return z + jnp.clip(slope / jnp.maximum(-curvature, 0.5), -2, 2), None

    mode = jax.lax.scan(step, jnp.zeros(num_groups), length=_NEWTON_STEPS)[0]
    scale = 1 / jnp.sqrt(jnp.maximum(-jax.jvp(gradient, (mode,), (ones,))[1], 0.5))
    nodes, weights = np.polynomial.hermite.hermgauss(_NODES)
    at = jax.lax.map(lambda node: by_group(mode + np.sqrt(2) * scale * node), jnp.asarray(nodes))
    terms = at + jnp.asarray(np.log(weights) + nodes**2)[:, None]
    constant = 0.5 * jnp.log(2.0) - 0.5 * jnp.log(2 * jnp.pi)
    return jnp.sum(logsumexp(terms, axis=0) + jnp.log(scale) + constant)


def _regression(family: Callable[[Any], Any]) -> Callable[..., jax.Array]:
    def total(sites: Mapping[str, Any], args: tuple, kwargs: Mapping[str, Any]) -> jax.Array:
        X, group, num_groups, y = args
        offset = X @ sites["beta"]

        def rows(z: Any) -> Any:
            return family(offset + sites["tau"] * z[group]).log_prob(y)

        return marginal(rows, group, num_groups)

    return total


def _few_events() -> tuple[tuple, dict]:
    """200 groups of 250 rows with one event or so each."""
    beta = np.array([-5.3, 0.6, -0.4])
    return simulate("Bernoulli", 200, 250, seed=401, beta=beta, tau=0.3).args, {}


def _few_counts() -> tuple[tuple, dict]:
    """5,000 groups of ten rows with some 1,000 counts in all."""
    beta = np.array([-4.2, 0.5, -0.3])
    return simulate("Poisson", 5000, 10, seed=402, beta=beta, tau=0.4).args, {}


def two_parameters(person: Any, item: Any, num_persons: int, num_items: int, y: Any = None) -> None:
    """Item response with a discrimination and a difficulty of each item, and persons' abilities."""
    slope: Any = numpyro.sample("slope", dist.LogNormal(0.0, 0.5).expand([num_items]).to_event(1))
    level: Any = numpyro.sample("level", dist.Normal(0.0, 2.0).expand([num_items]).to_event(1))
    with numpyro.plate("persons", num_persons):
        ability: Any = numpyro.sample("ability", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", person.shape[0]):
        logits = slope[item] * ability[person] + level[item]
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def _two_parameters() -> tuple[tuple, dict]:
    """500 persons who answer 40 items."""
    rng = np.random.default_rng(403)
    persons, items = 500, 40
    slope, level = rng.lognormal(0, 0.4, items), rng.normal(0, 1.5, items)
    person = np.repeat(np.arange(persons, dtype=np.int32), items)
    item = np.tile(np.arange(items, dtype=np.int32), persons)
    logits = slope[item] * rng.normal(size=persons)[person] + level[item]
    y = rng.random(len(item)) < 1 / (1 + np.exp(-logits))
    return (person, item, persons, items, y.astype(np.int32)), {}


def _answers(sites: Mapping[str, Any], args: tuple, kwargs: Mapping[str, Any]) -> jax.Array:
    person, item, num_persons, _, y = args
    slope, level = sites["slope"][item], sites["level"][item]

    def rows(z: Any) -> Any:
        return dist.Bernoulli(logits=slope * z[person] + level).log_prob(y)

    return marginal(rows, person, num_persons)


GROUPS = (
    Case(
        "groups-200",
        "200 groups of 250 rows, few events",
        bernoulli,
        _few_events,
        ("beta", "tau"),
        groups="group",
        why="the standard deviation between groups may be zero",
        centred={"effect": 0.0},
        marginal=_regression(lambda eta: dist.Bernoulli(logits=eta)),
    ),
    Case(
        "groups-5000",
        "5,000 groups of 10 rows, few counts",
        poisson,
        _few_counts,
        ("beta", "tau"),
        groups="group",
        why="the standard deviation between groups may be zero",
        centred={"effect": 0.0},
        marginal=_regression(lambda eta: dist.Poisson(jnp.exp(eta))),
    ),
    Case(
        "item-response",
        "item response, 500 persons × 40 items",
        two_parameters,
        _two_parameters,
        ("slope", "level"),
        groups="person",
        why="80 parameters of items rest on 500 persons",
        marginal=_answers,
    ),
)
