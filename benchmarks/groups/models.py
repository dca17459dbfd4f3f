"""Hierarchical models of four kinds, with simulated data, for `sizes` and `calibration`."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

# What the data are simulated with.
BETA = np.array([-0.5, 0.6, -0.4])
TAU = {"normal": 0.7, "Bernoulli": 0.7, "Poisson": 0.5, "slopes": np.array([0.7, 0.4])}
SIGMA = 1.5
KINDS = tuple(TAU)


def _coefficients(num: int) -> Any:
    return numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([num]).to_event(1))


def _intercepts(num_groups: int) -> Any:
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    with numpyro.plate("groups", num_groups):
        return numpyro.sample("effect", dist.Normal(0.0, tau))


def normal(X: Any, group: Any, num_groups: int, y: Any = None) -> None:
    """Normal observations with a normal intercept for each group."""
    beta, effect = _coefficients(X.shape[1]), _intercepts(num_groups)
    sigma: Any = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ beta + effect[group], sigma), obs=y)


def bernoulli(X: Any, group: Any, num_groups: int, y: Any = None) -> None:
    """Logistic regression with a normal intercept for each group."""
    beta, effect = _coefficients(X.shape[1]), _intercepts(num_groups)
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ beta + effect[group]), obs=y)


def poisson(X: Any, group: Any, num_groups: int, y: Any = None) -> None:
    """Counts with a normal intercept for each group on the scale of the log-rate."""
    beta, effect = _coefficients(X.shape[1]), _intercepts(num_groups)
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(X @ beta + effect[group])), obs=y)


def slopes(X: Any, group: Any, num_groups: int, y: Any = None) -> None:
    """Logistic regression with a normal intercept and slope for each group."""
    beta = _coefficients(X.shape[1])
    tau = numpyro.sample("tau", dist.HalfNormal(1.0).expand([2]).to_event(1))
    with numpyro.plate("groups", num_groups):
        effect: Any = numpyro.sample("effect", dist.Normal(jnp.zeros(2), tau).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        own = jnp.sum(X[:, :2] * effect[group], axis=1)
        numpyro.sample("y", dist.Bernoulli(logits=X @ beta + own), obs=y)


MODELS = {"normal": normal, "Bernoulli": bernoulli, "Poisson": poisson, "slopes": slopes}
# The same models for R's lme4, whose columns x1, x2 are those of X but the intercept.
FORMULAS = {
    "normal": "y ~ x1 + x2 + (1 | g)",
    "Bernoulli": "y ~ x1 + x2 + (1 | g)",
    "Poisson": "y ~ x1 + x2 + (1 | g)",
    "slopes": "y ~ x1 + x2 + (1 + x1 || g)",
}


@dataclass(frozen=True, eq=False)
class Data:
    """Simulated data of one kind.

    Attributes:
        kind: the name of the model.
        X: an intercept and two predictors.
        group: each row's group.
        num_groups: the number of groups.
        y: the observations.
        effect: the effects that they were simulated with, one row for each group.
    """

    kind: str
    X: np.ndarray
    group: np.ndarray
    num_groups: int
    y: np.ndarray
    effect: np.ndarray

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments of the model."""
        return self.X, self.group, self.num_groups, self.y


def simulate(
    kind: str,
    num_groups: int,
    rows_each: int,
    seed: int = 0,
    beta: np.ndarray = BETA,
    tau: Any = None,
) -> Data:
    """Data with so many rows in each group in the mean: from half to one and a half times."""
    rng = np.random.default_rng(seed)
    tau = TAU[kind] if tau is None else tau
    sizes = rng.integers(-(-rows_each // 2), rows_each + rows_each // 2 + 1, num_groups)
    group = np.repeat(np.arange(num_groups, dtype=np.int32), sizes)
    n = group.size
    X = np.column_stack([np.ones(n), rng.normal(size=(n, 2))]).astype(np.float32)
    dims = 2 if kind == "slopes" else 1
    effect = rng.normal(size=(num_groups, dims)) * tau
    eta = X @ beta + np.sum(X[:, :dims] * effect[group], axis=1)
    if kind == "normal":
        y = rng.normal(eta, SIGMA)
    elif kind == "Poisson":
        y = rng.poisson(np.exp(eta))
    else:
        y = rng.random(n) < 1 / (1 + np.exp(-eta))
    return Data(kind, X, group, num_groups, y.astype(np.float32), effect)
