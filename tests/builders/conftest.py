"""Builds that several modules use, since a build spends most of its time on compilation."""

import jax
import pytest

import jaxcoreset as jc
from tests.likelihood.group_models import means, normals

NUM_GROUPS = 150
GROUP, Y = means(NUM_GROUPS)


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
