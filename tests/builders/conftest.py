"""Builds that several modules use, since a build spends most of its time on compilation."""

import jax
import pytest

import jaxcoreset as jc
from tests.likelihood.group_models import means, normals

NUM_GROUPS = 150


@pytest.fixture(scope="session")
def build_of_groups():
    """The labels and the observations of groups with normal effects, and their coreset."""
    group, y = means(NUM_GROUPS)
    builder = jc.CoresetBuilder(normals, size=12, groups="group", progress_bar=False)
    return group, y, builder.run(jax.random.key(0), group, NUM_GROUPS, y)


@pytest.fixture(scope="session")
def draws_of_groups(build_of_groups):
    """Draws of that coreset's posterior by its Laplace approximation, which stands for NUTS."""
    coreset = build_of_groups[2]
    flat = coreset.approximation.draws(jax.random.key(5), 400)
    return jax.vmap(coreset.likelihood.constrain)(flat)
