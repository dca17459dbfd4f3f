"""A start for NUTS on all groups has the effects, too."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS

import jaxcoreset as jc

NUM_GROUPS, NUM_ROWS = 30, 20
PARAMS = {"mu", "tau"}


def model(group, num, x, y):
    mu = numpyro.sample("mu", dist.Normal())
    tau = numpyro.sample("tau", dist.HalfNormal())
    with numpyro.plate("groups", num):
        scale = numpyro.sample("scale", dist.LogNormal(0, 0.3))
        with numpyro.plate("coefficients", 2, dim=-2):
            slope = numpyro.sample("slope", dist.Normal(mu, tau))
    with numpyro.plate("rows", len(y)):
        mean = slope[0, group] + slope[1, group] * x
        numpyro.sample("y", dist.Normal(mean, scale[group]), obs=y)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    slope, scale = rng.normal(size=(2, NUM_GROUPS)), rng.uniform(0.6, 1.6, NUM_GROUPS)
    group = np.repeat(np.arange(NUM_GROUPS), NUM_ROWS)
    x = rng.normal(size=group.size)
    y = slope[0, group] + slope[1, group] * x + scale[group] * rng.normal(size=group.size)
    return group, NUM_GROUPS, x, y


@pytest.fixture(scope="module")
def coreset(data):
    builder = jc.CoresetBuilder(
        model,
        size=8,
        groups="group",
        num_held_out=200,
        integration=jc.LaplaceIntegral(),
        progress_bar=False,
    )
    return builder.run(jax.random.key(0), *data)


@pytest.fixture(scope="module")
def exact(data):
    mcmc = MCMC(NUTS(model), num_warmup=400, num_samples=600, progress_bar=False)
    mcmc.run(jax.random.key(1), *data)
    return {name: np.asarray(x) for name, x in mcmc.get_samples().items()}


def unconstrained(samples):
    log = np.log
    return samples | {name: log(samples[name]) for name in ("scale", "tau")}


@pytest.mark.parametrize("has_samples", [True, False])
def test_initial_values_and_metric_are_those_of_the_posterior(coreset, exact, has_samples):
    if has_samples:
        given = {name: exact[name][::10] for name in PARAMS}
        start = coreset.warm_start(given, num_chains=2)
        assert np.isin(np.asarray(start.init_params["mu"]), given["mu"]).all()
    else:
        start = coreset.warm_start(num_chains=2, key=jax.random.key(2))
    flat = unconstrained(exact)
    for name in ("slope", "scale"):
        found, sd = np.asarray(start.init_params[name]), flat[name].std(axis=0)
        assert found.shape == (2, *sd.shape)
        assert np.abs((found - flat[name].mean(axis=0)) / sd).max() < 5
        assert np.abs((found[0] - found[1]) / sd).max() > 1
    variances = np.asarray(start.inverse_mass_matrix[("scale", "slope")])
    expected = np.concatenate([flat[name].var(axis=0).ravel() for name in ("scale", "slope")])
    assert np.abs(np.log(variances / expected)).max() < 1
    assert np.abs(np.log(variances / expected)).mean() < 0.25
    shared = start.inverse_mass_matrix[("mu", "tau")]
    assert shared.shape == (2, 2)


def test_nuts_on_all_groups_runs_from_it(coreset, data, exact):
    start = coreset.warm_start({name: exact[name] for name in PARAMS}, num_chains=1)
    chains = MCMC(start.kernel(model), num_warmup=60, num_samples=600, progress_bar=False)
    chains.run(jax.random.key(3), *data, init_params=start.init_params)
    for name, found in chains.get_samples().items():
        difference = np.asarray(found).mean(axis=0) - exact[name].mean(axis=0)
        assert np.abs(difference / exact[name].std(axis=0)).max() < 0.6


def test_a_metric_is_dense_for_shared_sites_only(coreset, data):
    key = jax.random.key(0)
    diagonal = coreset.warm_start(key=key, dense_mass=False)
    assert diagonal.inverse_mass_matrix.shape == (2 + 3 * NUM_GROUPS,)
    with pytest.raises(ValueError, match="of the effects of all groups is diagonal"):
        coreset.warm_start(key=key, dense_mass=True)
    with pytest.raises(ValueError, match="mu, tau"):
        coreset.warm_start(key=key, dense_mass=[("mu", "slope")])


def test_a_coreset_without_its_data_says_so(coreset, exact, tmp_path):
    loaded = jc.load(coreset.save(tmp_path / "coreset"), model)
    with pytest.raises(ValueError, match="data that the coreset was built from are not available"):
        loaded.warm_start({name: exact[name] for name in PARAMS})
