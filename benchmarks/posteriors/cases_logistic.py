"""Logistic regressions whose posterior is skewed, wide or nearly unidentifiable."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from benchmarks.common import logistic
from benchmarks.posteriors.case import Case
from benchmarks.proxy.data import table


def _logits(X: Any, prior_scale: float) -> Any:
    prior = dist.Normal(0.0, prior_scale).expand([X.shape[1]]).to_event(1)
    return X @ numpyro.sample("beta", prior)


def rare_events(X: Any, y: Any = None) -> None:
    """Logistic regression with weakly informative priors."""
    logits = _logits(X, 3.0)
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=logits - 8.0), obs=y)


def _tenths(rng: np.random.Generator, n: int) -> np.ndarray:
    """Normal numbers to one decimal place, as tables have them."""
    return np.round(rng.normal(size=n), 1)


def _counted(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct rows, and how often each occurs without the event and with it."""
    distinct, which = np.unique(X, axis=0, return_inverse=True)
    is_event, num = y == 1, len(distinct)
    without = np.bincount(which.ravel()[~is_event], minlength=num)
    return distinct, without, np.bincount(which.ravel()[is_event], minlength=num)


def _by_count(logits: Any, without: Any, events: Any) -> None:
    """The log-likelihood of logistic regression by counts of equal rows."""
    values = events * logits - (without + events) * jax.nn.softplus(logits)
    numpyro.factor("rows", jnp.sum(values))


def _rare_events() -> tuple[tuple, dict]:
    """40 events in 10⁶ rows, a binary predictor and two to one decimal place."""
    rng = np.random.default_rng(101)
    n, events = 10**6, 40
    X = np.column_stack([np.ones(n), rng.random(n) < 0.03, _tenths(rng, n), _tenths(rng, n)])
    X = X.astype(np.float32)
    risk = np.exp(X @ np.array([0.0, 1.2, 0.8, -0.4]))
    y = np.zeros(n, np.int32)
    y[rng.choice(n, events, replace=False, p=risk / risk.sum())] = 1
    return (X, y), {}


def rare_events_by_count(X: Any, without: Any, events: Any) -> None:
    """The same density by counts of equal rows."""
    _by_count(_logits(X, 3.0) - 8.0, without, events)


def _rare_events_by_count() -> tuple[tuple, dict]:
    (X, y), _ = _rare_events()
    return _counted(X, y), {}


def rare_level(X: Any, level: Any, num_levels: int, y: Any = None) -> None:
    """Logistic regression with one coefficient for each level of a factor, and no intercept."""
    logits = _logits(X, 2.0)
    effect: Any = numpyro.sample("effect", dist.Normal(0.0, 3.0).expand([num_levels]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=logits + effect[level]), obs=y)


def _rare_level() -> tuple[tuple, dict]:
    """200,000 rows, of which 20 have the last level, all but one of them without the event."""
    rng = np.random.default_rng(102)
    n, rare = 200_000, 20
    level = rng.choice(5, size=n, p=[0.4, 0.3, 0.2, 0.1, 0.0]).astype(np.int32)
    at = rng.choice(n, rare, replace=False)
    level[at] = 4
    X = np.column_stack([_tenths(rng, n), _tenths(rng, n)]).astype(np.float32)
    eta = X @ np.array([0.5, -0.3]) + np.array([-1.0, -0.6, -1.5, -0.2, 0.0])[level]
    y = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(np.int32)
    y[at] = 0
    y[at[0]] = 1
    return (X, level, 5, y), {}


def rare_level_by_count(X: Any, level: Any, num_levels: int, without: Any, events: Any) -> None:
    """The same density by counts of equal rows."""
    logits = _logits(X, 2.0)
    effect: Any = numpyro.sample("effect", dist.Normal(0.0, 3.0).expand([num_levels]).to_event(1))
    _by_count(logits + effect[level], without, events)


def _rare_level_by_count() -> tuple[tuple, dict]:
    (X, level, num_levels, y), _ = _rare_level()
    distinct, *counts = _counted(np.column_stack([X, level]), y)
    return (distinct[:, :-1], distinct[:, -1].astype(np.int32), num_levels, *counts), {}


def _wide() -> tuple[tuple, dict]:
    """30,000 rows of one-hot columns with rare levels, and few events."""
    z = table(30_000, 124, seed=103)
    rng = np.random.default_rng(103)
    theta = rng.normal(scale=0.5, size=z.shape[1])
    y = rng.random(len(z)) < 1 / (1 + np.exp(-(z @ theta - 6)))
    return (z, y.astype(np.int32)), {}


# Three parameters of which the likelihood sees two sums.
_SUMS = np.array([[1, 0], [1, 1], [0, 1]], np.float32)


def unidentifiable(X: Any, y: Any = None) -> None:
    """Logistic regression on two sums of three parameters with Cauchy priors."""
    theta: Any = numpyro.sample("theta", dist.Cauchy(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ (theta @ _SUMS)), obs=y)


def _unidentifiable() -> tuple[tuple, dict]:
    """50,000 rows, an intercept and a predictor."""
    rng = np.random.default_rng(104)
    n = 50_000
    X = np.column_stack([np.ones(n), rng.normal(size=n)]).astype(np.float32)
    y = rng.random(n) < 1 / (1 + np.exp(-X @ np.array([-2.0, 1.5])))
    return (X, y.astype(np.int32)), {}


LOGISTIC = (
    Case(
        "rare-events",
        "rare events, 40 of 10⁶",
        rare_events,
        _rare_events,
        ("beta",),
        why="the likelihood of 40 events is skewed",
        truth=(rare_events_by_count, _rare_events_by_count),
    ),
    Case(
        "rare-level",
        "a level with 20 rows of 200,000",
        rare_level,
        _rare_level,
        ("beta", "effect"),
        why="one coefficient rests on 20 rows and one event",
        truth=(rare_level_by_count, _rare_level_by_count),
    ),
    Case(
        "wide-logistic",
        "wide one-hot logistic, D = 124",
        logistic,
        _wide,
        ("theta",),
        why="many coefficients rest on few events",
    ),
    Case(
        "unidentifiable",
        "unidentifiable logistic, Cauchy priors",
        unidentifiable,
        _unidentifiable,
        ("theta",),
        why="the likelihood is flat along a line, and the priors have heavy tails",
    ),
)
