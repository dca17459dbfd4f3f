"""The model of a coreset of groups where these have very different numbers of rows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.extend.core import jaxprs_in_params
from numpyro.infer.util import potential_energy

from jaxcoreset.likelihood.group_arguments import flat_call
from jaxcoreset.likelihood.group_model import GROUP_SITE, MarginalModel
from jaxcoreset.likelihood.grouping import Grouping
from jaxcoreset.likelihood.weighted import weighted_model
from tests.likelihood.group_models import effects, in_order, marginals_of_normals, rows, unchecked

# Unconstrained values of the parameters of `_predicted`.
AT = {"mu": 0.4, "slope": -0.7, "tau": -0.3, "sigma": -0.5}


def _predicted(group, x, y=None):
    """Normal rows, whose mean's mean depends on the group's predictor."""
    mu: Any = numpyro.sample("mu", dist.Normal(0, 1))
    slope: Any = numpyro.sample("slope", dist.Normal(0, 1))
    tau: Any = numpyro.sample("tau", dist.LogNormal(0, 1))
    sigma: Any = numpyro.sample("sigma", dist.LogNormal(0, 1))
    rows(group, effects(x.size, mu + slope * x, tau)[group], y, sigma)


def _probit(group, num_groups, y=None):
    """A model that evaluates `erf` once a row, which programs can be searched for."""
    tau: Any = numpyro.sample("tau", dist.LogNormal(0, 1))
    chance = 0.5 + 0.49 * jax.scipy.special.erf(effects(num_groups, scale=tau)[group])
    with numpyro.plate("rows", group.shape[0]):
        numpyro.sample("y", dist.Bernoulli(chance), obs=y)


def _coreset_model(model, args, weights):
    """The model of a coreset of all the groups, and its arguments, as a coreset makes them."""
    groups, layout = unchecked(model, args)
    kept = layout.arguments.with_data(in_order(layout.rows()))
    arguments = Grouping.of(groups).trimmed(kept)
    weighted = weighted_model(MarginalModel(groups, arguments), weights, {GROUP_SITE: -1})
    return weighted, flat_call(groups.positions, arguments)


def _labels(sizes):
    return np.repeat(np.arange(sizes.size), sizes)


def _programs(sizes):
    """The number of times that a gradient's program evaluates `erf`, and at how many values."""
    sizes = np.asarray(sizes)
    group = _labels(sizes)
    y = (np.arange(group.size) % 3 == 0).astype(np.float32)
    weights = np.ones(sizes.size, np.float32)
    model, (args, kwargs) = _coreset_model(_probit, (group, sizes.size, y), weights)
    gradient = jax.grad(lambda at: potential_energy(model, args, kwargs, at))
    found = list(_evaluations(jax.make_jaxpr(gradient)({"tau": jnp.array(0.1)}).jaxpr))
    return len(found), sum(found)


def _evaluations(jaxpr):
    for equation in jaxpr.eqns:
        if equation.primitive.name == "erf":
            yield int(np.prod(equation.outvars[0].aval.shape))
        for inner in jaxprs_in_params(equation.params):
            yield from _evaluations(inner)


def test_a_gradient_evaluates_about_two_places_for_each_row_in_few_programs():
    one, first = _programs([1])
    # The first group has a few values more, with which the shared parameters are sampled.
    further = _programs([1, 1])[1] - first
    for sizes in (np.r_[np.ones(30, int), 10_000, np.ones(29, int)], np.r_[[0] * 500, 1000]):
        programs, evaluations = _programs(sizes)
        num_rows = np.maximum(sizes, 1).sum()
        assert num_rows <= evaluations / further <= 2.1 * num_rows
        assert one < programs <= 8 * one
    # Groups of about one size, or with few rows, have one program.
    for sizes in (np.random.default_rng(0).integers(50, 151, 400), np.r_[1, 1, 1000]):
        programs, evaluations = _programs(sizes)
        assert programs == one
        assert evaluations == sizes.max() * (first + (sizes.size - 1) * further)


def _closed_form(at, sizes, x, y, weights):
    """The negative log-density, from the groups' own closed forms."""
    total = -sum(dist.Normal(0, 1).log_prob(value) for value in at.values())
    noise, spread, group = jnp.exp(2 * at["sigma"]), jnp.exp(2 * at["tau"]), _labels(sizes)
    residuals = y - (at["mu"] + at["slope"] * x)[group]
    return total - weights @ marginals_of_normals(residuals, group, sizes, noise, spread)


@pytest.mark.parametrize("is_float64", [False, True])
def test_ragged_groups_have_the_density_of_their_closed_forms(is_float64):
    rng = np.random.default_rng(0)
    sizes = rng.permutation(np.r_[np.zeros(2, int), np.ones(20, int), [3] * 20, [40] * 5, 2000])
    x, weights = rng.normal(size=(2, sizes.size)).astype(np.float32)
    weights = 1 + np.abs(weights)
    y = (rng.normal(size=sizes.size)[_labels(sizes)] + rng.normal(size=sizes.sum())).astype("f")
    with jax.enable_x64(True):
        wide = [values.astype(float) for values in (x, y, weights)]
        exact = jax.jit(jax.value_and_grad(lambda at: _closed_form(at, sizes, *wide)))
        value, slope = exact({name: jnp.asarray(value) for name, value in AT.items()})
    with jax.enable_x64(is_float64):
        model, (args, kwargs) = _coreset_model(_predicted, (_labels(sizes), x, y), weights)
        at = {name: jnp.asarray(value) for name, value in AT.items()}
        energy = jax.jit(jax.value_and_grad(lambda at: potential_energy(model, args, kwargs, at)))
        found, gradient = energy(at)
    assert found.dtype == (np.float64 if is_float64 else np.float32)
    close = 1e-8 if is_float64 else 3e-5
    assert float(found) == pytest.approx(float(value), rel=close)
    for name in AT:
        assert float(gradient[name]) == pytest.approx(float(slope[name]), rel=10 * close, abs=close)
