"""Whether a coreset was built from some data, where groups are laid out with empty places."""

import dataclasses

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import jaxcoreset as jc
from jaxcoreset.coreset.contains import check_contains


def model(is_new, group, num_groups, y=None):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("groups", num_groups):
        effect = numpyro.sample("effect", dist.Normal(mean, 1.0))
    with numpyro.plate("rows", is_new.shape[0]):
        numpyro.sample("y", dist.Normal(effect[group] + is_new, 1.0), obs=y)


def test_places_that_no_row_takes_are_not_compared():
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(6), [1, 2, 3, 4, 5, 6])
    is_new, y = rng.random(group.size) < 0.5, rng.normal(size=group.size)
    builder = jc.CoresetBuilder(model, size=6, groups="group", progress_bar=False)
    coreset = builder.run(jax.random.key(0), is_new, group, 6, y)
    likelihood, arguments = coreset.likelihood, coreset.arguments
    positions = coreset.grouping.positions
    is_row = np.asarray(arguments.leaves[positions.labels]) != 0
    at = next(i for i in positions.rows if np.asarray(arguments.leaves[i]).dtype == bool)

    def changed(where):
        leaves = list(arguments.leaves)
        leaves[at] = np.asarray(leaves[at]) ^ where
        coreset.arguments = dataclasses.replace(arguments, leaves=tuple(leaves))
        check_contains(coreset, likelihood.arguments, likelihood.rows)

    assert not is_row.all()
    changed(~is_row)
    only_one = np.zeros_like(is_row)
    only_one[-1, 0] = True
    with pytest.raises(ValueError, match="the data differ"):
        changed(only_one)
