"""Models spelled as users spell them: weighted rows have the density of rows that are repeated."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density

from jaxcoreset.likelihood import model_likelihood, weighted_model
from tests.models import FLOAT32, normal_data

X, Y = (np.asarray(one, np.float32) for one in normal_data())
SOME, COUNTS = np.array([0, 3, 4, 17, 39]), np.array([1, 3, 2, 5, 1])


class Table(NamedTuple):
    x: Any
    y: Any


class Regression:
    """A model with settings, as a class whose instances are called."""

    def __init__(self, scale: float):
        self.scale = scale

    def prior(self):
        return numpyro.sample("w", dist.Laplace(0.0, 1.0))

    def __call__(self, x, y=None):
        mean = x * self.prior()
        with numpyro.plate("rows", x.shape[0]):
            return numpyro.sample("y", dist.StudentT(5.0, mean, self.scale), obs=y)


def named_tuple(table):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", table.y.shape[0]):
        numpyro.sample("y", dist.Normal(table.x * w, 1.0), obs=table.y)


def scoped(x, y):
    """Submodels, whose sites have a name before theirs."""

    def part(x):
        return x * numpyro.sample("w", dist.Normal(0.0, 1.0))

    mean = numpyro.handlers.scope(part, prefix="a")(x)
    mean = mean + numpyro.handlers.scope(part, prefix="b", divider="_")(jnp.square(x))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 0.7), obs=y)


def stacked_plates(y):
    with numpyro.plate("sensors", 2):
        bias = numpyro.sample("bias", dist.Normal(0.0, 1.0))
    with numpyro.plate_stack("grid", [y.shape[0], 2]):
        numpyro.sample("y", dist.Normal(bias, 0.5), obs=y)


def tempered(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    mean = numpyro.deterministic("mean", x * w)
    with numpyro.handlers.scale(scale=0.5), numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def keywords_only(*, X, y=None, prior_scale=1.0):
    w = numpyro.sample("w", dist.Normal(0.0, prior_scale))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Normal(X * w, 0.7), obs=y)


def masked_distribution(x, both, seen):
    """Each of two responses of a row may be missing."""
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    shift = numpyro.sample("shift", dist.Normal(0.0, 1.0))
    mean = jnp.stack([x * w, x * w + shift], axis=1)
    with numpyro.plate("rows", x.shape[0], dim=-2), numpyro.plate("responses", 2, dim=-1):
        numpyro.sample("y", dist.Normal(mean, 0.9).mask(seen), obs=both)


PAIRS = np.stack([X, Y], axis=1)
SEEN = np.random.default_rng(0).random(PAIRS.shape) < 0.8
SPELLINGS = {
    "a named tuple": (named_tuple, (Table(X, Y),), {}),
    "a callable object": (Regression(0.6), (X, Y), {}),
    "scoped sites": (scoped, (X, Y), {}),
    "stacked plates": (stacked_plates, (PAIRS,), {}),
    "one scale for all, and a value for each row": (tempered, (X, Y), {}),
    "arguments by keyword only": (keywords_only, (), {"X": X, "y": Y, "prior_scale": 3.0}),
    "a mask of a distribution": (masked_distribution, (X, PAIRS, SEEN), {}),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_weights_count_rows(name):
    model, args, kwargs = SPELLINGS[name]
    likelihood = model_likelihood(model, args, kwargs)
    weighted = weighted_model(likelihood, COUNTS.astype(np.float32))
    params = jax.tree.map(lambda value: value + 0.3, likelihood.init_params)
    few = likelihood.assemble(likelihood.take(SOME))
    found = log_density(weighted, *few, likelihood.constrain(params))[0]

    rows = np.repeat(SOME, COUNTS)
    args, kwargs = jax.tree.map(lambda leaf: leaf[rows] if np.ndim(leaf) else leaf, (args, kwargs))
    expected = log_density(model, args, kwargs, likelihood.constrain(params))[0]
    np.testing.assert_allclose(found, expected, **FLOAT32)
