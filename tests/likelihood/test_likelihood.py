"""The model wing's foundation: per-datum log-likelihoods, priors and weighted models.

Expected values are written by hand with scipy.stats, in float64. In float32 a log-probability of
order ten that is computed from terms of order ten is right to about 1e-5, so 1e-4 is allowed; in
float64, where it is tested, 1e-10.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats as st
from numpyro.handlers import reparam
from numpyro.infer.reparam import LocScaleReparam, TransformReparam
from numpyro.infer.util import log_density, potential_energy

from jaxcoreset.likelihood import model_likelihood, weighted_model
from tests import models
from tests.models import FLOAT32, FLOAT64, density, normal_data, normal_model

# For each model constrained parameters, and by hand: per-datum log-likelihoods, and the log-density
# of everything else.


def linear_by_hand(p, X, y):
    prior = st.norm.logpdf(p["a"], 0, 2) + st.norm.logpdf(p["b"]).sum()
    return st.norm.logpdf(y, p["a"] + X @ p["b"], p["s"]), prior + st.halfnorm.logpdf(p["s"])


def plateless_by_hand(p, X, y):
    prior = st.norm.logpdf(p["b"]).sum() + st.lognorm.logpdf(p["s"], 1.0)
    return st.norm.logpdf(y, X @ p["b"], p["s"]), prior


def logistic_by_hand(p, X, y):
    return st.bernoulli.logpmf(y, 1 / (1 + np.exp(-X @ p["b"]))), st.norm.logpdf(p["b"]).sum()


def poisson_by_hand(p, X, exposure, y):
    return st.poisson.logpmf(y, exposure * np.exp(X @ p["b"])), st.norm.logpdf(p["b"]).sum()


def hierarchical_by_hand(p, group, y):
    prior = st.norm.logpdf(p["mu"]) + st.halfnorm.logpdf(p["tau"])
    prior = prior + st.norm.logpdf(p["theta"], p["mu"], p["tau"]).sum()
    return st.norm.logpdf(y, p["theta"][group], 0.5), prior


def mixture_by_hand(p, y):
    density = sum(p["p"][i] * st.norm.pdf(y, m, p["s"]) for i, m in enumerate((-1.0, 1.0)))
    prior = st.dirichlet.logpdf(p["p"], [1.0, 2.0]) + st.halfnorm.logpdf(p["s"], scale=2.0)
    return np.log(density), prior


def two_sites_by_hand(p, count, x, y):
    per_datum = st.norm.logpdf(y, p["b"] * x) + st.poisson.logpmf(count, np.exp(p["b"]))
    return per_datum - 0.1 * (p["b"] - x) ** 2, st.norm.logpdf(p["b"])


def masked_by_hand(p, y, seen):
    return np.where(seen, 2.0 * st.norm.logpdf(y, p["m"]), 0.0), st.norm.logpdf(p["m"])


def nested_by_hand(p, y):
    return st.norm.logpdf(y, p["d"]).sum(axis=1), st.norm.logpdf(p["d"]).sum()


def outside_site_by_hand(p, y):
    _, (_, readings), _ = models.outside_site()
    prior = st.norm.logpdf(p["m"]) + st.halfnorm.logpdf(p["s"])
    return st.norm.logpdf(y, p["m"], p["s"]), prior + st.norm.logpdf(readings, p["m"], 0.2).sum()


COEFFICIENTS = np.array([0.4, -0.8, 0.3])
SOME_ROWS = np.array([5, 0, 17, 17, 39])
CASES = {
    "linear": (models.linear, linear_by_hand, {"a": 0.3, "b": COEFFICIENTS[:2], "s": 0.6}),
    "linear_plateless": (
        models.linear_plateless,
        plateless_by_hand,
        {"b": COEFFICIENTS[:2], "s": 0.6},
    ),
    "logistic": (models.logistic, logistic_by_hand, {"b": COEFFICIENTS}),
    "poisson": (models.poisson, poisson_by_hand, {"b": COEFFICIENTS[:2]}),
    "hierarchical": (
        models.hierarchical,
        hierarchical_by_hand,
        {"mu": 0.2, "tau": 0.7, "theta": np.array([0.1, -0.5, 0.9, 0.0])},
    ),
    "mixture": (models.mixture, mixture_by_hand, {"p": np.array([0.3, 0.7]), "s": 1.2}),
    "two_sites": (models.two_sites, two_sites_by_hand, {"b": 0.4}),
    "masked": (models.masked, masked_by_hand, {"m": 0.4}),
    "nested": (models.nested, nested_by_hand, {"d": COEFFICIENTS}),
    "outside_site": (models.outside_site, outside_site_by_hand, {"m": 0.4, "s": 0.8}),
}


@pytest.fixture(scope="module", params=CASES)
def case(request):
    """A likelihood, what is expected of it, and its values, compiled as one function."""
    make, by_hand, params = CASES[request.param]
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
            "at_start": likelihood.log_likelihood(start, likelihood.data),
            "log_prior": likelihood.log_prior(start),
            "energy": potential_energy(likelihood.model, *full, start),
            "back": likelihood.constrain(unconstrained),
        }

    expected = by_hand(params, *likelihood.data)
    expected_of_some = by_hand(params, *some), weights
    return params, values(params, likelihood.init_params), expected, expected_of_some


def test_per_datum_log_likelihood_equals_scipy(case):
    _, values, (expected, _), _ = case
    np.testing.assert_allclose(values["per_datum"], expected, **FLOAT32)


def test_unconstrained_log_likelihood_of_a_subset_equals_scipy(case):
    _, values, _, ((expected, _), _) = case
    np.testing.assert_allclose(values["some"], expected, **FLOAT32)


def test_weighted_log_density_equals_scipy(case):
    _, values, _, ((per_datum, others), weights) = case
    np.testing.assert_allclose(values["weighted"], weights @ per_datum + others, **FLOAT32)


def test_log_prior_and_log_likelihood_add_up_to_minus_numpyros_potential_energy(case):
    _, values, _, _ = case
    total = values["log_prior"] + values["at_start"].sum()
    np.testing.assert_allclose(total, -values["energy"], **FLOAT32)


def test_unconstrain_undoes_constrain(case):
    params, values, _, _ = case
    assert set(values["back"]) == set(params)
    for name, value in params.items():
        np.testing.assert_allclose(values["back"][name], value, **FLOAT32)


def test_values_follow_x64():
    make, by_hand, params = CASES["linear"]
    with jax.enable_x64(True):
        likelihood = model_likelihood(*make())
        expected, others = by_hand(params, *likelihood.data)
        values = jax.jit(likelihood.log_likelihood_constrained)(params, likelihood.data)
        weights = np.linspace(0.0, 3.0, likelihood.num_data)
        model = weighted_model(likelihood, weights)
        total = density(model, *likelihood.assemble(likelihood.data), params)
        assert values.dtype == jnp.float64
        assert all(value.dtype == jnp.float64 for value in likelihood.init_params.values())
    np.testing.assert_allclose(values, expected, **FLOAT64)
    np.testing.assert_allclose(total, weights @ expected + others, **FLOAT64)


def test_log_prior_includes_the_jacobian_of_the_transform():
    likelihood = model_likelihood(*models.linear_plateless())
    params = {"b": COEFFICIENTS[:2], "s": 0.6}
    _, prior = plateless_by_hand(params, *models.linear()[1])
    # s = exp(u), so log |ds/du| = log s.
    value = jax.jit(lambda p: likelihood.log_prior(likelihood.unconstrain(p)))(params)
    np.testing.assert_allclose(value, prior + np.log(0.6), **FLOAT32)


def test_support_that_depends_on_another_latent_site_is_transformed():
    def model(y):
        top = numpyro.sample("top", dist.HalfNormal(1.0))
        low = numpyro.sample("low", dist.Uniform(0.0, top))
        numpyro.sample("y", dist.Normal(low, 1.0), obs=y)

    _, y = normal_data()
    likelihood = model_likelihood(model, (y,))
    params = {"top": 2.0, "low": 0.5}

    @jax.jit
    def evaluate(params):
        unconstrained = likelihood.unconstrain(params)
        return likelihood.constrain(unconstrained), likelihood.log_likelihood(unconstrained, (y,))

    back, values = evaluate(params)
    np.testing.assert_allclose(back["low"], 0.5, **FLOAT32)
    np.testing.assert_allclose(values, st.norm.logpdf(y, 0.5), **FLOAT32)


@pytest.mark.parametrize("how", ["transform", "loc_scale"])
def test_reparametrised_model_equals_scipy_in_its_base_parameters(how):
    def model(group, y=None):
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        base = dist.Normal(0.0, 1.0)
        effect = dist.TransformedDistribution(base, dist.transforms.AffineTransform(0.0, tau))
        with numpyro.plate("groups", 3):
            theta = numpyro.sample("theta", effect if how == "transform" else dist.Normal(0, tau))
        with numpyro.plate("data", group.shape[0]):
            numpyro.sample("y", dist.Normal(theta[group], 1.0), obs=y)

    _, y = normal_data()
    group = np.arange(40) % 3
    config = {"theta": TransformReparam() if how == "transform" else LocScaleReparam(0.0)}
    likelihood = model_likelihood(reparam(model, config=config), (group, y))
    name = "theta_base" if how == "transform" else "theta_decentered"
    params = {"tau": 0.5, name: np.array([0.1, -1.0, 2.0])}
    values = jax.jit(likelihood.log_likelihood_constrained)(params, likelihood.data)
    np.testing.assert_allclose(values, st.norm.logpdf(y, 0.5 * params[name][group]), **FLOAT32)
    assert set(likelihood.init_params) == {"tau", name}


def test_event_dimensions_are_summed_into_their_datum():
    random = np.random.default_rng(1)
    Y = random.normal(size=(12, 2))
    covariance = np.array([[1.0, 0.3], [0.3, 2.0]])

    def model(Y):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", Y.shape[0]):
            joint = dist.MultivariateNormal(m * jnp.ones(2), covariance_matrix=covariance)
            numpyro.sample("Y", joint, obs=Y)

    likelihood = model_likelihood(model, (Y,))
    expected = st.multivariate_normal.logpdf(Y, 0.7 * np.ones(2), covariance)
    values = jax.jit(likelihood.log_likelihood_constrained)({"m": 0.7}, (Y,))
    np.testing.assert_allclose(values, expected, **FLOAT32)


def test_log_likelihood_vmaps_over_draws_and_compiles_once_for_each_number_of_rows():
    likelihood = model_likelihood(normal_model, normal_data())
    count = 0

    def evaluate(draws, rows):
        nonlocal count
        count += 1
        return jax.vmap(likelihood.log_likelihood, in_axes=(0, None))(draws, rows)

    compiled = jax.jit(evaluate)
    draws = jax.tree.map(lambda v: jnp.stack([v, v + 0.5, -v]), likelihood.init_params)
    tens = [likelihood.take(np.arange(start, start + 10)) for start in (0, 10, 20, 30)]
    values = [compiled(draws, rows) for rows in tens]
    assert count == 1
    single = likelihood.log_likelihood(jax.tree.map(lambda v: v[1], draws), tens[2])
    np.testing.assert_allclose(values[2][1], single, **FLOAT32)


def test_gradient_of_log_likelihood_equals_that_by_hand():
    X, y = normal_data()
    likelihood = model_likelihood(normal_model, (X, y))
    total = jax.jit(jax.grad(lambda p: likelihood.log_likelihood(p, (X, y)).sum()))
    gradient = total({"b": 0.3})
    np.testing.assert_allclose(gradient["b"], (X * (y - 0.3 * X)).sum(), **FLOAT32)


def test_init_params_have_finite_density_and_depend_on_the_key_alone():
    args = normal_model, normal_data()
    first = model_likelihood(*args, key=jax.random.key(1)).init_params
    again = model_likelihood(*args, key=jax.random.key(1)).init_params
    other = model_likelihood(*args, key=jax.random.key(2)).init_params
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), first, again))
    assert not jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), first, other))
