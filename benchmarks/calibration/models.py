"""The models of the calibration, each with one design and a prior that data are simulated from.

Events are rare and levels are many, so that no posterior is a Gaussian.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from benchmarks.groups import calibration as groups

NUM_ROWS, NUM_SLOPES = 2000, 4
WIDE_ROWS, WIDE_SLOPES = 3000, 60
NUM_GROUPS, LARGEST_GROUP = 60, 30


class Model(NamedTuple):
    """A model to calibrate.

    Attributes:
        title: what it is, for the table.
        model: the NumPyro model.
        simulate: from a generator to the model's arguments and the true parameters.
        small: a number of rows, or groups, that is too small.
        quantities: from draws of the parameters to the numbers that are ranked.
        groups: the argument with the groups, or None.
    """

    title: str
    model: Callable
    simulate: Callable[[np.random.Generator], tuple[tuple, dict[str, np.ndarray]]]
    small: int
    quantities: Callable[[dict[str, Any]], dict[str, Any]]
    groups: str | None = None


def _slopes() -> Any:
    return numpyro.sample("slopes", dist.Normal(0.0, 0.5).expand([NUM_SLOPES]).to_event(1))


def rare_events(X: Any, y: Any = None) -> None:
    """Logistic regression in which an event is rare."""
    a: Any = numpyro.sample("intercept", dist.Normal(-4.0, 0.7))
    b = _slopes()
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=a + X @ b), obs=y)


def few_counts(X: Any, y: Any = None) -> None:
    """Poisson regression in which most counts are zero."""
    a: Any = numpyro.sample("intercept", dist.Normal(-4.0, 0.7))
    b = _slopes()
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(a + X @ b)), obs=y)


def spread_counts(X: Any, exposure: Any, y: Any = None) -> None:
    """Negative binomial regression with an offset."""
    a: Any = numpyro.sample("intercept", dist.Normal(-2.5, 0.7))
    b = _slopes()
    size: Any = numpyro.sample("concentration", dist.LogNormal(0.0, 0.7))
    mean = exposure * jnp.exp(a + X @ b)
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.NegativeBinomial2(mean, size), obs=y)


def wide(X: Any, y: Any = None) -> None:
    """Logistic regression on many predictors."""
    beta: Any = numpyro.sample("beta", dist.Normal(0.0, 0.3).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ beta - 1.0), obs=y)


def _design() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(NUM_ROWS, NUM_SLOPES)).astype(np.float32)


def _linear(rng: np.random.Generator, center: float) -> tuple[np.ndarray, dict, np.ndarray]:
    X = _design()
    truth = {
        "intercept": np.array(rng.normal(center, 0.7)),
        "slopes": rng.normal(0, 0.5, NUM_SLOPES),
    }
    return X, truth, truth["intercept"] + X @ truth["slopes"]


def _events(rng: np.random.Generator) -> tuple[tuple, dict]:
    X, truth, eta = _linear(rng, -4.0)
    return (X, (rng.random(NUM_ROWS) < 1 / (1 + np.exp(-eta))).astype(np.float32)), truth


def _counts(rng: np.random.Generator) -> tuple[tuple, dict]:
    X, truth, eta = _linear(rng, -4.0)
    return (X, rng.poisson(np.exp(eta)).astype(np.int32)), truth


def _spread(rng: np.random.Generator) -> tuple[tuple, dict]:
    X, truth, eta = _linear(rng, -2.5)
    exposure = np.random.default_rng(2).uniform(0.5, 2.0, NUM_ROWS).astype(np.float32)
    size = np.exp(rng.normal(0, 0.7))
    rate = rng.gamma(size, exposure * np.exp(eta) / size)
    truth = truth | {"concentration": np.array(size)}
    return (X, exposure, rng.poisson(rate).astype(np.int32)), truth


def _many(rng: np.random.Generator) -> tuple[tuple, dict]:
    X = np.random.default_rng(3).normal(size=(WIDE_ROWS, WIDE_SLOPES)).astype(np.float32)
    beta = rng.normal(0, 0.3, WIDE_SLOPES)
    y = rng.random(WIDE_ROWS) < 1 / (1 + np.exp(1 - X @ beta))
    return (X, y.astype(np.float32)), {"beta": beta}


def _visits(rng: np.random.Generator) -> tuple[tuple, dict]:
    design = np.random.default_rng(1)
    sizes = np.round(np.geomspace(3, LARGEST_GROUP, NUM_GROUPS)).astype(int)
    group = np.repeat(np.arange(NUM_GROUPS, dtype=np.int32), sizes)
    X = np.column_stack([np.ones(group.size), design.normal(size=(group.size, 2))])
    truth = {"beta": rng.normal(size=3), "tau": np.exp(np.array(rng.normal(-0.5, 0.4)))}
    eta = X @ truth["beta"] + truth["tau"] * rng.normal(size=NUM_GROUPS)[group]
    y = (rng.random(group.size) < 1 / (1 + np.exp(-eta))).astype(np.float32)
    return (X.astype(np.float32), group, NUM_GROUPS, y), truth


def _all_of(params: dict[str, Any]) -> dict[str, Any]:
    """Each parameter by itself."""
    found = {}
    for name, value in params.items():
        columns = value.reshape(len(value), -1).T
        many = len(columns) > 1
        found |= {f"{name}[{i}]" if many else name: x for i, x in enumerate(columns)}
    return found


def _some_of(params: dict[str, Any]) -> dict[str, Any]:
    """Five of many, and their sum of squares."""
    beta = params["beta"]
    found = {f"beta[{i}]": beta[:, i] for i in range(5)}
    return found | {"sum of squares": np.sum(beta**2, axis=1)}


MODELS = {
    "logistic": Model("logistic, rare events", rare_events, _events, 3, _all_of),
    "poisson": Model("Poisson, few counts", few_counts, _counts, 3, _all_of),
    "negative-binomial": Model("negative binomial, offset", spread_counts, _spread, 3, _all_of),
    "hierarchical": Model(f"{NUM_GROUPS} groups", groups.visits, _visits, 5, _all_of, "group"),
    "wide": Model(f"logistic, {WIDE_SLOPES} predictors", wide, _many, 20, _some_of),
}
