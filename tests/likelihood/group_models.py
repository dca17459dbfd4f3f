"""Hierarchical models and data for the tests of groups."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from jaxcoreset.data.rows import Rows
from jaxcoreset.likelihood.arguments import flatten
from jaxcoreset.likelihood.group_layout import Layout, lay_out
from jaxcoreset.likelihood.group_model import GroupModel
from jaxcoreset.likelihood.group_structure import find_tables, structure_of
from jaxcoreset.likelihood.integration import default_integration


def effects(num: int, mean: Any = 0.0, scale: Any = 1.0, name: str = "effect") -> Any:
    """A normal effect for each group."""
    with numpyro.plate("groups", num):
        return numpyro.sample(name, dist.Normal(mean, scale))


def rows(group, values, y, scale: Any = 1.0) -> None:
    """Normal observations, one for each row."""
    with numpyro.plate("rows", group.shape[0]):
        numpyro.sample("y", dist.Normal(values, scale), obs=y)


def intercepts(X, plane, num_planes, y=None, is_centred=True):
    """Logistic regression with a normal intercept for each plane, which may be scaled instead."""
    beta: Any = numpyro.sample("beta", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    mu: Any = numpyro.sample("mu", dist.Normal(0, 1))
    tau: Any = numpyro.sample("tau", dist.HalfNormal(1))
    if is_centred:
        effect = effects(num_planes, mu, tau)
    else:
        effect = numpyro.deterministic("effect", mu + tau * effects(num_planes, name="z"))
    with numpyro.plate("flights", X.shape[0]):
        numpyro.sample("late", dist.Bernoulli(logits=X @ beta + effect[plane]), obs=y)


def normals(group, num_groups, y=None):
    """Normal observations around normal group means, whose marginal has a closed form."""
    mu: Any = numpyro.sample("mu", dist.Normal(0, 2))
    tau: Any = numpyro.sample("tau", dist.HalfNormal(1))
    sigma: Any = numpyro.sample("sigma", dist.HalfNormal(1))
    rows(group, effects(num_groups, mu, tau, "mean")[group], y, sigma)


def marginals_of_normals(residuals, group, sizes, noise, spread):
    """The log-densities of groups in closed form.

    Args:
        residuals: the rows less the means of their groups' means.
        group: the group of each row.
        sizes: the number of rows of each group.
        noise: the variance of a row around its group's mean.
        spread: the variance of a group's mean.
    """
    sums = jax.ops.segment_sum(residuals, group, sizes.size)
    squares = jax.ops.segment_sum(residuals**2, group, sizes.size)
    both = noise + sizes * spread
    log_det = (sizes - 1) * jnp.log(noise) + jnp.log(both) + sizes * np.log(2 * np.pi)
    return -0.5 * ((squares - spread / both * sums**2) / noise + log_det)


def lines(x, group, num_groups, y=None):
    """An effect of `x.shape[1]` dimensions for each group, in a vector, with correlation."""
    mu: Any = numpyro.sample("mu", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
    tau: Any = numpyro.sample("tau", dist.HalfNormal(1).expand([x.shape[1]]).to_event(1))
    rho: Any = numpyro.sample("rho", dist.Uniform(0, 0.9))
    covariance = jnp.outer(tau, tau) * (rho + (1 - rho) * jnp.eye(x.shape[1]))
    with numpyro.plate("groups", num_groups):
        effect: Any = numpyro.sample("effect", dist.MultivariateNormal(mu, covariance))
    rows(group, jnp.sum(x * effect[group], -1), y, 0.5)


def frailties(x, y=None):
    """Poisson counts with a gamma effect of each row: negative binomial ones."""
    beta: Any = numpyro.sample("beta", dist.Normal(0, 1))
    shape: Any = numpyro.sample("shape", dist.Gamma(4, 2))
    with numpyro.plate("rows", x.shape[0]):
        frailty: Any = numpyro.sample("frailty", dist.Gamma(shape, shape))
        numpyro.sample("y", dist.Poisson(frailty * jnp.exp(1 + beta * x)), obs=y)


def ragged_labels(num_groups, rng, most=30):
    """Labels in any order of groups with 1 to `most` rows."""
    sizes = rng.integers(1, most + 1, num_groups)
    return rng.permutation(np.repeat(np.arange(num_groups), sizes))


def flights(num_planes=40, most=30, seed=0):
    """Data of `intercepts`: X, plane, y."""
    rng = np.random.default_rng(seed)
    plane = ragged_labels(num_planes, rng, most)
    X = rng.normal(size=(plane.size, 2))
    effect = rng.normal(-0.5, 0.8, num_planes)
    y = rng.random(plane.size) < 1 / (1 + np.exp(-(X @ [0.6, -0.4] + effect[plane])))
    return X.astype(np.float32), plane, y.astype(np.float32)


def means(num_groups=30, most=12, seed=0):
    """Data of `normals`: group, y."""
    rng = np.random.default_rng(seed)
    group = ragged_labels(num_groups, rng, most)
    y = rng.normal(1, 0.7, num_groups)[group] + 0.5 * rng.normal(size=group.size)
    return group, y.astype(np.float32)


def unchecked(model, args, groups="group", integration=None) -> tuple[GroupModel, Layout]:
    """The marginal model of groups, without what checks and compiles it."""
    table = next(find_tables(model, flatten(model, args, {}), groups))
    structure = structure_of(model, table.arguments, table.positions)
    integration = integration or default_integration(structure.num_dims)
    marginal = GroupModel(model, table.arguments.tree, table.positions, structure, integration)
    return marginal, lay_out(table)


def in_order(all_rows: Rows) -> Any:
    """The data of all groups, in the order of their numbers."""
    return all_rows.take(all_rows.places(np.arange(all_rows.num_rows)))
