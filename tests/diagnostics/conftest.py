"""Coresets that several modules measure: one by hand, and one of groups."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import jaxcoreset as jc
from tests.gaussian_coreset import case, coreset_of


@pytest.fixture(scope="package")
def poor():
    """A coreset whose posterior means are up to half a standard deviation off."""
    return case(mismatch=0.15, n=500, m=100, draws=8000, seed=3)


@pytest.fixture(scope="package")
def corrected(poor):
    return jc.correct(coreset_of(poor), poor.samples, progress_bar=False)


@pytest.fixture(scope="package")
def groups():
    """Groups of one to eight rows in a hierarchy of known scales: the coreset, labels and y."""
    rng = np.random.default_rng(0)
    num, sizes = 60, rng.integers(1, 9, size=60)
    label = rng.permutation(np.repeat(np.arange(num), sizes))
    y = 0.5 + 2 * rng.normal(size=num)[label] + 0.5 * rng.normal(size=label.size)

    def model(label, num, y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        with numpyro.plate("groups", num):
            z = numpyro.sample("z", dist.Normal(mu, 2.0))
        with numpyro.plate("rows", label.shape[0]):
            numpyro.sample("y", dist.Normal(z[label], 0.5), obs=y)

    builder = jc.CoresetBuilder(model, size=num, groups="label", progress_bar=False)
    return builder.run(jax.random.key(0), label, num, y), label, y
