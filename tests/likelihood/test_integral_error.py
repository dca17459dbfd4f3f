"""What the look at integrals over groups' effects finds: rare groups, and modes far away."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from jaxcoreset.likelihood.group_likelihood import group_likelihood
from jaxcoreset.likelihood.integral_error import (
    accurate_enough,
    is_gaussian,
    with_checked_closed_form,
)
from jaxcoreset.likelihood.integration import AdaptiveQuadrature, GaussianIntegral
from tests.likelihood.group_models import effects, rows


def test_a_few_censored_groups_rule_a_closed_form_out():
    num = 300
    group, y = np.repeat(np.arange(num), 2), np.zeros(2 * num, np.float32)
    is_censored = np.isin(group, [7, 201])

    def model(group, num, is_censored, y):
        mu: Any = numpyro.sample("mu", dist.Normal(0, 1))
        effect = effects(num, mu)[group]
        seen = dist.Normal(effect, 1).log_prob(y)
        hidden = jnp.log(jax.scipy.special.ndtr(effect - y))
        numpyro.factor("y", jnp.where(is_censored, hidden, seen))

    args = group, num, is_censored, y
    closed = group_likelihood(model, args, groups="group", integration=GaussianIntegral())
    assert not is_gaussian(closed, {"mu": 0.1 * jnp.arange(8.0)})
    other: Any = with_checked_closed_form(closed).model
    assert isinstance(other.integration, AdaptiveQuadrature)


@pytest.mark.slow
@pytest.mark.unoptimised
def test_the_error_counts_modes_that_the_quadrature_does_not_see():
    """Effects of two clusters; that of some groups is in the one which is far from the origin."""
    group = np.repeat(np.arange(20), 3)
    y = np.where(group < 4, 5.0, 0.0).astype(np.float32)
    clusters: Any = dist.MixtureSameFamily(
        dist.Categorical(jnp.array([0.9, 0.1])), dist.Normal(jnp.array([0.0, 5.0]), 0.3)
    )

    def model(group, num, y):
        scale: Any = numpyro.sample("scale", dist.HalfNormal(1))
        with numpyro.plate("groups", num):
            effect: Any = numpyro.sample("effect", clusters)
        rows(group, effect[group], y, scale)

    finest = AdaptiveQuadrature(33)
    likelihood = group_likelihood(model, (group, 20, y), groups="group", integration=finest)
    draws = {"scale": jnp.log(jnp.linspace(1.0, 1.2, 8))}
    assert finest.finer() is None
    assert accurate_enough(likelihood, draws, 1e-2)[1] > 1
