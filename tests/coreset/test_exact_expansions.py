"""Coresets whose expansion is exact but for rounding: held to the closed-form posterior."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density

import jaxcoreset as jc
from jaxcoreset.selection.remainders import is_rounding
from tests import gaussian_coreset

NOISE, PRIOR = 0.7, 2.0


def linear(tiny):
    """A model with a normal response, whose predictor is linear but for a tiny part."""

    def model(x, y=None):
        slopes = numpyro.sample("slopes", dist.Normal(0, PRIOR).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            mean = x @ slopes
            mean = mean + tiny * jnp.sin(mean) if tiny else mean
            numpyro.sample("y", dist.Normal(mean, NOISE), obs=y)

    return model


def rows(seed, num):
    rng = np.random.default_rng(seed)
    x = np.c_[np.ones(num), rng.normal(size=(num, 2))]
    return x, x @ [1.0, -0.5, 2.0] + NOISE * rng.normal(size=num)


def distance(coreset, *parts):
    """The standard deviation of the error of the log-density, at draws of the posterior."""
    x, y = (np.concatenate(leaf) for leaf in zip(*parts, strict=True))
    exact = gaussian_coreset.posterior(x, y, np.ones(len(y)), noise=NOISE, prior=PRIOR)
    rng = np.random.default_rng(0)
    draws = rng.multivariate_normal(exact.mean, exact.covariance, 200)

    def found(slopes):
        return log_density(coreset.model, coreset.args, coreset.kwargs, {"slopes": slopes})[0]

    centred = draws - exact.mean
    true = -0.5 * np.einsum("ij,jk,ik->i", centred, exact.precision, centred)
    return float(np.std(np.asarray(jax.vmap(found)(jnp.asarray(draws)), np.float64) - true))


@pytest.mark.parametrize("size", [{"size": 20}, {"tol": 1e-3}], ids=["size", "tol"])
@pytest.mark.parametrize(("tiny", "in_float64"), [(0.0, False), (1e-12, False), (0.0, True)])
def test_updates_and_mergers_of_exact_expansions_are_exact(tiny, size, in_float64):
    model, old, new = linear(tiny), rows(0, 2000), rows(1, 500)
    with jax.enable_x64(True) if in_float64 else contextlib.nullcontext():
        builder = jc.CoresetBuilder(model, **size, progress_bar=False)
        coreset = builder.run(jax.random.key(0), *old)
        updated = coreset.update(jax.random.key(1), *new)
        merged = jc.merge([coreset, builder.run(jax.random.key(2), *new)], 20, jax.random.key(3))
        assert merged.report.gaussian_kl < 1e-6  # at the mode
        assert merged.report.gaussian_verdict.startswith("A Gaussian at the mode is within")
        for one in (updated, merged):  # the proxy's constant is that of all rows
            assert one.proxy is not None
            at = jax.random.normal(jax.random.key(4), (60, 3)) / 100 + one.proxy.center
            full = [np.concatenate(leaf) for leaf in zip(old, new, strict=True)]
            certificate = jc.certify(one, {"slopes": np.asarray(at)}, *full, progress_bar=False)
            np.testing.assert_allclose(certificate.log_ratios, 0, atol=1e-2)
        for one in (updated, merged):
            assert one.report.num_data == 2500
            assert one.proxy is not None
            assert not len(one)  # a row would correct rounding only
            assert one.report.kl < 1e-9
            assert one.report.gaussian_kl < 0.1  # of moments, which are those of few draws
            assert distance(one, old, new) < (1e-9 if in_float64 else 1e-4)


def test_remainders_are_rounding_beside_the_log_likelihoods():
    values = jnp.full((3, 2), 100.0)
    assert is_rounding(jnp.full((3, 2), 1e-15), jnp.zeros((3, 2)))
    assert is_rounding(jnp.full((3, 2), -9e-12), values)
    assert not is_rounding(jnp.array([[0.0, 0.0], [0.0, -2e-11], [0.0, 0.0]]), values)
