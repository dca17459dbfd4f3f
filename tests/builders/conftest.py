"""Builds that several modules use, since a build spends most of its time on compilation."""

import jax
import numpy as np
import pytest
from numpyro.infer import MCMC, NUTS

import jaxcoreset as jc
from tests.likelihood.group_models import means, normals

NUM_GROUPS = 150
GROUP, Y = means(NUM_GROUPS)


def nuts(coreset, key=0, num_warmup=200, num_samples=200, starts=None, **settings):
    """NUTS that has run on a coreset, from the points where its chains should start."""
    settings |= {"num_warmup": num_warmup, "num_samples": num_samples, "progress_bar": False}
    mcmc = MCMC(NUTS(coreset.model), **settings)
    starts = coreset.init_params(settings.get("num_chains", 1)) if starts is None else starts
    mcmc.run(jax.random.key(key), *coreset.args, **coreset.kwargs, init_params=starts)
    return mcmc


def effects_given(at, group, y, num_groups):
    """Means and precisions of effects given draws of the shared parameters, in closed form."""
    mu, tau, sigma = (np.asarray(at[name], float)[:, None] for name in ("mu", "tau", "sigma"))
    sizes = np.bincount(group, minlength=num_groups)
    sums = np.bincount(group, weights=y, minlength=num_groups)
    precision = sizes / sigma**2 + 1 / tau**2
    return (sums / sigma**2 + mu / tau**2) / precision, precision


@pytest.fixture(scope="session")
def of_groups():
    """A coreset of groups with normal effects, whose labels and observations are GROUP and Y."""
    # With the default proxy: the expansion of integrals is tested here.
    builder = jc.CoresetBuilder(normals, size=12, groups="group", progress_bar=False)
    return builder.run(jax.random.key(0), GROUP, NUM_GROUPS, Y)


@pytest.fixture(scope="session")
def samples(of_groups):
    """Draws of that coreset's posterior by its Laplace approximation, which stands for NUTS."""
    flat = of_groups.approximation.draws(jax.random.key(5), 400)
    return jax.vmap(of_groups.likelihood.constrain)(flat)
