"""Hierarchical models and data for the tests of groups."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from jaxcoreset.likelihood.arguments import flatten
from jaxcoreset.likelihood.group_layout import Layout, lay_out
from jaxcoreset.likelihood.group_model import GroupModel
from jaxcoreset.likelihood.group_structure import find_tables, structure_of
from jaxcoreset.likelihood.integration import default_integration


def intercepts(X, plane, num_planes, y=None):
    """Logistic regression with a normal intercept for each plane."""
    beta: Any = numpyro.sample("beta", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    mu: Any = numpyro.sample("mu", dist.Normal(0, 1))
    tau: Any = numpyro.sample("tau", dist.HalfNormal(1))
    with numpyro.plate("planes", num_planes):
        effect: Any = numpyro.sample("effect", dist.Normal(mu, tau))
    with numpyro.plate("flights", X.shape[0]):
        numpyro.sample("late", dist.Bernoulli(logits=X @ beta + effect[plane]), obs=y)


def intercepts_non_centred(X, plane, num_planes, y=None):
    """The same, with standard normal effects that are scaled."""
    beta: Any = numpyro.sample("beta", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    mu: Any = numpyro.sample("mu", dist.Normal(0, 1))
    tau: Any = numpyro.sample("tau", dist.HalfNormal(1))
    with numpyro.plate("planes", num_planes):
        effect: Any = numpyro.deterministic(
            "effect", mu + tau * numpyro.sample("z", dist.Normal(0, 1))
        )
    with numpyro.plate("flights", X.shape[0]):
        numpyro.sample("late", dist.Bernoulli(logits=X @ beta + effect[plane]), obs=y)


def normals(group, num_groups, y=None):
    """Normal observations around normal group means, whose marginal has a closed form."""
    mu: Any = numpyro.sample("mu", dist.Normal(0, 2))
    tau: Any = numpyro.sample("tau", dist.HalfNormal(1))
    sigma: Any = numpyro.sample("sigma", dist.HalfNormal(1))
    with numpyro.plate("groups", num_groups):
        mean: Any = numpyro.sample("mean", dist.Normal(mu, tau))
    with numpyro.plate("rows", group.shape[0]):
        numpyro.sample("y", dist.Normal(mean[group], sigma), obs=y)


def lines(x, group, num_groups, y=None):
    """An effect of `x.shape[1]` dimensions for each group, in a vector, with correlation."""
    mu: Any = numpyro.sample("mu", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
    tau: Any = numpyro.sample("tau", dist.HalfNormal(1).expand([x.shape[1]]).to_event(1))
    rho: Any = numpyro.sample("rho", dist.Uniform(0, 0.9))
    covariance = jnp.outer(tau, tau) * (rho + (1 - rho) * jnp.eye(x.shape[1]))
    with numpyro.plate("groups", num_groups):
        effect: Any = numpyro.sample("effect", dist.MultivariateNormal(mu, covariance))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(jnp.sum(x * effect[group], -1), 0.5), obs=y)


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
