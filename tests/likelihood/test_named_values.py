"""What a model makes of its parameters, as its user sees them."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import constrain_fn

import jaxcoreset as jc
from jaxcoreset.data.arrays import leading


def hierarchy(x, group, y):
    mu = numpyro.sample("mu", dist.Normal())
    tau = numpyro.sample("tau", dist.HalfNormal())
    beta = numpyro.sample("beta", dist.Normal().expand([2]).to_event(1))
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("groups", 4):
        alpha = numpyro.sample("alpha", dist.Normal(mu, tau))
    ratio = numpyro.deterministic("ratio", beta[0] / beta[1])
    with numpyro.plate("rows", len(x)):
        numpyro.deterministic("row", x * ratio)
        numpyro.sample("y", dist.Normal(alpha[group] + x * beta[0], share[0]), obs=y)


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(0)
    args = rng.normal(size=50), rng.integers(4, size=50), rng.normal(size=50)
    model = numpyro.handlers.reparam(hierarchy, config={"alpha": LocScaleReparam(0)})
    return model, args, jc.model_likelihood(model, args)


@pytest.mark.parametrize("num", [3, 1025])
def test_they_are_numpyros_without_sites_of_rows_and_without_what_is_not_transformed(case, num):
    model, args, likelihood = case
    keys = iter(jax.random.split(jax.random.key(0), len(likelihood.init_params)))
    draws = {
        name: jax.random.normal(next(keys), (num, *np.shape(value)))
        for name, value in likelihood.init_params.items()
    }
    assert leading(draws) == num

    def theirs(one):
        seeded = numpyro.handlers.seed(model, 0)
        return constrain_fn(seeded, args, {}, one, return_deterministic=True)

    expected = jax.vmap(theirs)(draws)
    kept = [expected[name].reshape(num, -1) for name in ("tau", "share", "alpha", "ratio")]
    kept = np.concatenate(kept, axis=1)
    found = likelihood.named_values(draws)
    assert found.shape == (num, 1 + 3 + 4 + 1)
    sort = lambda values: values[:, np.argsort(values[0])]  # noqa: E731
    np.testing.assert_allclose(sort(found), sort(kept), rtol=1e-5)


def test_a_model_without_any_has_none():
    def model(y):
        mean = numpyro.sample("mean", dist.Normal().expand([3]).to_event(1))
        numpyro.sample("y", dist.Normal(mean[0], 1), obs=y)

    likelihood = jc.model_likelihood(model, (np.zeros(5),))
    assert likelihood.named_values({"mean": np.zeros((7, 3))}).shape == (7, 0)


def test_models_that_differ_in_them_do_not_share_a_program():
    def scaled(factor):
        def model(y):
            mean = numpyro.sample("mean", dist.Normal())
            numpyro.deterministic("scaled", factor * mean)
            numpyro.sample("y", dist.Normal(mean, 1), obs=y)

        return model

    args, draws = (np.zeros(5),), {"mean": np.ones(2)}
    for factor in (2.0, 3.0):
        builder = jc.CoresetBuilder(scaled(factor), size=2, progress_bar=False)
        likelihood = builder.run(jax.random.key(0), *args).likelihood
        np.testing.assert_allclose(likelihood.named_values(draws), factor * np.ones((2, 1)))


def test_the_report_has_the_shift_of_a_function_that_the_data_determine_well():
    """The sum of two coefficients of nearly equal columns, by the posterior in closed form."""
    rng = np.random.default_rng(1)
    x = 1 + 0.1 * rng.normal(size=(400, 2))
    y = x.sum(axis=1) + rng.normal(size=400)

    def model(x, y):
        beta = numpyro.sample("beta", dist.Normal().expand([2]).to_event(1))
        numpyro.deterministic("sum", beta.sum())
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(x @ beta, 1), obs=y)

    covariance = np.linalg.inv(np.eye(2) + x.T @ x)
    draws = rng.multivariate_normal(covariance @ (x.T @ y), covariance, size=100_000)
    values = -0.5 * (y - draws @ x.T) ** 2
    functions = np.column_stack([draws, draws.sum(axis=1)])
    builder = jc.CoresetBuilder(model, 3, proxy=None, num_held_out=4000, progress_bar=False)
    largest = []
    for seed in range(3):
        coreset = builder.run(jax.random.key(seed), x, y)
        delta = coreset.weights @ values[:, coreset.indices].T - values.sum(axis=1)
        shifts = [abs(np.cov(delta, one)[0, 1]) / one.std() for one in functions.T]
        assert coreset.report.mean_shift == pytest.approx(max(shifts), rel=0.25)
        largest.append(shifts[2] / max(shifts[:2]))
    assert max(largest) > 1.5


def ate(x, treated, y):
    beta = numpyro.sample("beta", dist.Normal().expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal())
    numpyro.deterministic("effect", (beta[0] * x + beta[1]).mean())
    numpyro.deterministic("standard_error", scale / len(x) ** 0.5)
    numpyro.deterministic("precision", scale**-2)
    numpyro.deterministic("curve", scale * jnp.linspace(0, 1, 2000))
    numpyro.deterministic("both", {"first": beta[0], "second": beta[1]})
    with numpyro.plate("rows", len(x)):
        mean = numpyro.deterministic("mean", beta[0] * x * treated + beta[1] * treated)
        numpyro.sample("y", dist.Normal(mean, scale), obs=y)


def test_sites_that_sum_up_the_rows_are_warned_of_and_left_out():
    """With the rows of a coreset, they have other values than with all rows.

    Sites of many values, and of what is no array, are left out too.
    """
    rng = np.random.default_rng(0)
    args = rng.normal(size=300), rng.integers(2, size=300), rng.normal(size=300)
    builder = jc.CoresetBuilder(ate, size=8, num_held_out=100, progress_bar=False)
    with pytest.warns(UserWarning, match=r"\['effect', 'standard_error'\].*the rows of the cores"):
        coreset = builder.run(jax.random.key(0), *args)
    likelihood = coreset.likelihood
    assert likelihood.summaries_of_rows == ("effect", "standard_error")
    draws = coreset.approximation.draws(jax.random.key(1), 400)
    scale = np.exp(draws["scale"])
    sort = lambda values: values[:, np.argsort(values[0])]  # noqa: E731
    np.testing.assert_allclose(
        sort(likelihood.named_values(draws)), sort(np.column_stack([scale, scale**-2])), rtol=1e-5
    )
    samples = {"beta": draws["beta"], "scale": scale, "effect": draws["scale"]}
    posterior = jc.correct(coreset, samples, *args, progress_bar=False).posterior
    assert set(posterior.data_vars) == {"beta", "scale"}


@pytest.mark.parametrize("offset", [0.0, 2.459e6])
def test_the_shift_of_a_mean_far_from_zero_is_found(offset):
    """A date in days, by the posterior in closed form."""

    def model(y):
        date = numpyro.sample("date", dist.Normal(offset, 10))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(date, 1), obs=y)

    y = offset + np.random.default_rng(0).normal(size=500)
    builder = jc.CoresetBuilder(model, 1, proxy=None, num_held_out=4000, progress_bar=False)
    with jax.enable_x64(True):
        coreset = builder.run(jax.random.key(0), y)
    precision = np.array([0.01 + 500, 0.01 + coreset.weights.sum()])
    sums = (y - offset).sum(), coreset.weights @ (y[coreset.indices] - offset)
    expected = abs(np.subtract(*(np.array(sums) / precision))) * precision[0] ** 0.5
    assert coreset.report.mean_shift == pytest.approx(expected, rel=0.2, abs=1e-4)
    assert expected > 0.005
