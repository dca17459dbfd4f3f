"""Draws of groups' effects against their exact distributions, from numerical integration."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import kstest, norm, poisson, t

from jaxcoreset.likelihood import group_effects
from jaxcoreset.likelihood.group_effects import draw_effects
from tests.likelihood.group_models import effects, unchecked

_GROUPS, _DRAWS, _SCALE = 100, 100, 4.0
_GRID = np.linspace(-60.0, 25.0, 100_001)


def _counts(group, num_groups, y=None):
    rate: Any = numpyro.sample("rate", dist.Normal(0.0, 1.0))
    effect = effects(num_groups, scale=_SCALE)
    with numpyro.plate("rows", group.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(rate + effect[group])), obs=y)


def _outliers(group, num_groups, y=None):
    center: Any = numpyro.sample("rate", dist.Normal(0.0, 1.0))
    effect = effects(num_groups, scale=_SCALE)
    with numpyro.plate("rows", group.shape[0]):
        numpyro.sample("y", dist.StudentT(2.0, center + effect[group], 1.0), obs=y)


def _drawn(model, y, num_draws):
    """Draws of the effects of many equal groups that each have these observations."""
    num_groups = _GROUPS * _DRAWS // num_draws
    group, rows = np.repeat(np.arange(num_groups), len(y)), np.tile(y, num_groups)
    marginal, layout = unchecked(model, (group, num_groups, rows))
    leaves, at = layout.arguments.leaves, {"rate": jnp.zeros(num_draws)}
    return draw_effects(marginal, layout.rows(), leaves, at, jax.random.key(0))["effect"]


def _distribution(log_likelihood):
    """The exact distribution function of an effect with a normal prior."""
    log_density = log_likelihood + norm.logpdf(_GRID, 0.0, _SCALE)
    density = np.exp(log_density - log_density.max())
    below = np.cumsum(density)
    return lambda x: np.interp(x, _GRID, below / below[-1])


def _poisson(y):
    return poisson.logpmf(y, np.exp(_GRID))


@pytest.mark.parametrize(
    ("model", "density", "y", "num_draws"),
    [
        (_counts, _poisson, [0.0], 2),
        (_counts, _poisson, [0.0, 0.0, 2.0], _DRAWS),
        (_outliers, lambda y: t.logpdf(y, 2.0, _GRID), [-2.5, 2.5], _DRAWS),
    ],
    ids=["skewed", "less skewed", "with two modes"],
)
def test_effects_have_their_exact_distribution(model, density, y, num_draws):
    found = _drawn(model, np.asarray(y, np.float32), num_draws).ravel()
    assert kstest(found, _distribution(sum(map(density, y)))).pvalue > 0.001


def test_most_effects_take_few_proposals_and_hard_ones_more(monkeypatch):
    seen = []

    def stepped(chain, *given):
        after = step(chain, *given)
        jax.debug.callback(seen.append, after.num)
        return after

    step = group_effects._stepped
    monkeypatch.setattr(group_effects, "_stepped", stepped)
    numbers = []
    for y in ([30.0] * 8, [0.0]):
        seen.clear()
        _drawn(_counts, np.asarray(y, np.float32), _DRAWS)
        jax.effects_barrier()
        numbers.append(np.mean(np.asarray(seen) > 8))
    assert numbers[0] < 0.05 < numbers[1]
