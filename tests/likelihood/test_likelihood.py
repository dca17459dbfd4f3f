"""The model wing's foundation: per-datum log-likelihoods, priors and weighted models.

Expected values are written by hand with scipy.stats, in float64. In float32 a log-probability of
order ten that is computed from terms of order ten is right to about 1e-5, so 1e-4 is allowed; in
float64, where it is tested, 1e-10.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats as st
from numpyro.infer.reparam import LocScaleReparam, TransformReparam
from numpyro.infer.util import log_density, potential_energy

from jaxcoreset.likelihood import ModelError, model_likelihood, weighted_model
from tests import models
from tests.models import FLOAT32, FLOAT64, normal_data, normal_model

COEFFICIENTS = np.array([0.4, -0.8, 0.3])
CASES: list[Any] = []


def at(make: Callable, **params: Any) -> Callable[[Callable], Callable]:
    """Note a model and constrained parameters, for which a function has the values by hand.

    These are the log-likelihood of each datum, and the log-density of everything else.
    """

    def note(by_hand: Callable) -> Callable:
        CASES.append(pytest.param(by_hand, make, params, id=by_hand.__name__))
        return by_hand

    return note


@at(models.linear, a=0.3, b=COEFFICIENTS[:2], s=0.6)
def linear_by_hand(p, X, y):
    prior = st.norm.logpdf(p["a"], 0, 2) + st.norm.logpdf(p["b"]).sum()
    return st.norm.logpdf(y, p["a"] + X @ p["b"], p["s"]), prior + st.halfnorm.logpdf(p["s"])


@at(models.linear_plateless, b=COEFFICIENTS[:2], s=0.6)
def plateless_by_hand(p, X, y):
    prior = st.norm.logpdf(p["b"]).sum() + st.lognorm.logpdf(p["s"], 1.0)
    return st.norm.logpdf(y, X @ p["b"], p["s"]), prior


@at(models.poisson, b=COEFFICIENTS[:2])
def poisson_by_hand(p, X, exposure, y):
    return st.poisson.logpmf(y, exposure * np.exp(X @ p["b"])), st.norm.logpdf(p["b"]).sum()


@at(models.hierarchical, mu=0.2, tau=0.7, theta=np.array([0.1, -0.5, 0.9, 0.0]))
def hierarchical_by_hand(p, group, y):
    prior = st.norm.logpdf(p["mu"]) + st.halfnorm.logpdf(p["tau"])
    prior = prior + st.norm.logpdf(p["theta"], p["mu"], p["tau"]).sum()
    return st.norm.logpdf(y, p["theta"][group], 0.5), prior


@at(models.mixture, p=np.array([0.3, 0.7]), s=1.2)
def mixture_by_hand(p, y):
    density = sum(p["p"][i] * st.norm.pdf(y, m, p["s"]) for i, m in enumerate((-1.0, 1.0)))
    prior = st.dirichlet.logpdf(p["p"], [1.0, 2.0]) + st.halfnorm.logpdf(p["s"], scale=2.0)
    return np.log(density), prior


@at(models.two_sites, b=0.4)
def two_sites_by_hand(p, count, x, y):
    per_datum = st.norm.logpdf(y, p["b"] * x) + st.poisson.logpmf(count, np.exp(p["b"]))
    return per_datum - 0.1 * (p["b"] - x) ** 2, st.norm.logpdf(p["b"])


@at(models.masked, m=0.4)
def masked_by_hand(p, y, seen):
    return np.where(seen, 2.0 * st.norm.logpdf(y, p["m"]), 0.0), st.norm.logpdf(p["m"])


@at(models.nested, d=COEFFICIENTS)
def nested_by_hand(p, y):
    return st.norm.logpdf(y, p["d"]).sum(axis=1), st.norm.logpdf(p["d"]).sum()


@at(models.outside_site, m=0.4, s=0.8)
def outside_site_by_hand(p, y):
    _, (_, readings), _ = models.outside_site()
    prior = st.norm.logpdf(p["m"]) + st.halfnorm.logpdf(p["s"])
    return st.norm.logpdf(y, p["m"], p["s"]), prior + st.norm.logpdf(readings, p["m"], 0.2).sum()


def dependent_support():
    """A latent site whose support depends on another one."""

    def model(y):
        top = numpyro.sample("top", dist.HalfNormal(1.0))
        low = numpyro.sample("low", dist.Uniform(0.0, top))
        numpyro.sample("y", dist.Normal(low, 1.0), obs=y)

    return model, (normal_data()[1],), {}


@at(dependent_support, top=2.0, low=0.5)
def dependent_support_by_hand(p, y):
    prior = st.halfnorm.logpdf(p["top"]) + st.uniform.logpdf(p["low"], 0.0, p["top"])
    return st.norm.logpdf(y, p["low"]), prior


def reparametrised(config):
    """Group means that a handler takes apart into a scale and standard normal parameters."""

    def make():
        def model(group, y=None):
            tau = numpyro.sample("tau", dist.HalfNormal(1.0))
            scaled = dist.transforms.AffineTransform(0.0, tau)
            effect = dist.TransformedDistribution(dist.Normal(0.0, 1.0), scaled)
            if isinstance(config, LocScaleReparam):
                effect = dist.Normal(0.0, tau)
            with numpyro.plate("groups", 3):
                theta = numpyro.sample("theta", effect)
            with numpyro.plate("data", group.shape[0]):
                numpyro.sample("y", dist.Normal(theta[group], 1.0), obs=y)

        data = np.arange(40) % 3, normal_data()[1]
        return numpyro.handlers.reparam(model, config={"theta": config}), data, {}

    return make


@at(reparametrised(LocScaleReparam(0.0)), tau=0.5, theta_decentered=COEFFICIENTS)
@at(reparametrised(TransformReparam()), tau=0.5, theta_base=COEFFICIENTS)
def reparametrised_by_hand(p, group, y):
    (base,) = (value for name, value in p.items() if name != "tau")
    prior = st.halfnorm.logpdf(p["tau"]) + st.norm.logpdf(base).sum()
    return st.norm.logpdf(y, p["tau"] * base[group]), prior


COVARIANCE = np.array([[1.0, 0.3], [0.3, 2.0]])


def multivariate():
    """Event dimensions, which are summed into their datum."""

    def model(Y):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", Y.shape[0]):
            joint = dist.MultivariateNormal(m * jnp.ones(2), covariance_matrix=COVARIANCE)
            numpyro.sample("Y", joint, obs=Y)

    return model, (np.random.default_rng(1).normal(size=(40, 2)),), {}


@at(multivariate, m=0.7)
def multivariate_by_hand(p, Y):
    values = st.multivariate_normal.logpdf(Y, p["m"] * np.ones(2), COVARIANCE)
    return values, st.norm.logpdf(p["m"])


SOME_ROWS = np.array([5, 0, 17, 17, 39])


@pytest.mark.parametrize(("by_hand", "make", "params"), CASES)
def test_log_likelihoods_and_densities_are_those_of_scipy_and_numpyro(by_hand, make, params):
    is_float64 = make is models.linear
    with jax.enable_x64(is_float64):
        close = FLOAT64 if is_float64 else FLOAT32
        check_values(make, by_hand, params, jnp.result_type(float), **close)


def check_values(make, by_hand, params, dtype, **close):
    likelihood = model_likelihood(*make())
    some, weights = likelihood.take(SOME_ROWS), np.array([0.0, 2.5, 11.0, 7.25, 1.0])
    weighted = weighted_model(likelihood, weights)

    @jax.jit
    def values(params, start):
        unconstrained = likelihood.unconstrain(params)
        full = likelihood.assemble(likelihood.data)
        return {
            "per_datum": likelihood.log_likelihood_constrained(params, likelihood.data),
            "some": likelihood.log_likelihood(unconstrained, some),
            "weighted": log_density(weighted, *likelihood.assemble(some), params)[0],
            "total": likelihood.log_prior(start)
            + likelihood.log_likelihood(start, likelihood.data).sum(),
            "energy": potential_energy(likelihood.model, *full, start),
            "back": likelihood.constrain(unconstrained),
        }

    assert all(value.dtype == dtype for value in likelihood.init_params.values())
    found = values(params, likelihood.init_params)
    assert found["per_datum"].dtype == dtype
    np.testing.assert_allclose(found["per_datum"], by_hand(params, *likelihood.data)[0], **close)
    per_datum, others = by_hand(params, *some)
    np.testing.assert_allclose(found["some"], per_datum, **close)
    np.testing.assert_allclose(found["weighted"], weights @ per_datum + others, **close)
    # The Jacobian of the transform included.
    np.testing.assert_allclose(found["total"], -found["energy"], **close)
    assert set(found["back"]) == set(params)
    for site, value in params.items():
        np.testing.assert_allclose(found["back"][site], value, **close)


def test_init_params_have_finite_density_and_depend_on_the_key_alone():
    args = normal_model, normal_data()
    first = model_likelihood(*args, key=jax.random.key(1)).init_params
    again = model_likelihood(*args, key=jax.random.key(1)).init_params
    other = model_likelihood(*args, key=jax.random.key(2)).init_params
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), first, again))
    assert not jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), first, other))


def test_missing_parameter_is_refused():
    likelihood = model_likelihood(normal_model, normal_data())
    with pytest.raises(ModelError, match=r"params lacks the latent sites \['b'\]"):
        likelihood.log_likelihood({"a": 0.0}, likelihood.data)
