"""The model wing's foundation: per-datum log-likelihoods, priors and weighted models.

Expected values are written by hand with scipy.stats, in float64. In float32 a log-probability of
order ten that is computed from terms of order ten is right to about 1e-5, so 1e-4 is allowed; in
float64, where it is tested, 1e-10.
"""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats as st
from numpyro.contrib.control_flow import scan
from numpyro.handlers import condition, reparam
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, init_to_value, log_likelihood
from numpyro.infer.autoguide import AutoDelta
from numpyro.infer.reparam import LocScaleReparam, TransformReparam
from numpyro.infer.util import log_density, potential_energy

from jaxcoreset.likelihood import ModelError, model_likelihood, weighted_model
from jaxcoreset.model_checks import check_log_likelihood, disjoint_subsets

from . import models

FLOAT32 = {"rtol": 1e-4, "atol": 1e-4}
FLOAT64 = {"rtol": 1e-10, "atol": 1e-10}


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


def density(model, args, kwargs, params):
    """NumPyro's own joint log-density, compiled as one function to save time."""
    return jax.jit(lambda params: log_density(model, args, kwargs, params)[0])(params)


DIMS = {"y": -1}  # the data axis of the models below


def normal_model(X, y=None):
    """The smallest regression: one coefficient, one plate."""
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("y", dist.Normal(b * X, 1.0), obs=y)


def normal_data(num_data=40):
    random = np.random.default_rng(0)
    X = random.normal(size=num_data)
    return X, X + random.normal(size=num_data)


# --- values ---------------------------------------------------------------------------------------


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


# --- which arguments are data ---------------------------------------------------------------------


def test_data_are_found_in_pytrees_and_keywords_and_none_stays_none():
    model, (batch,), kwargs = models.two_sites()
    likelihood = model_likelihood(model, (batch,), kwargs)
    (assembled,), _ = likelihood.assemble(likelihood.take([2, 4]))
    assert assembled["offset"] is None
    np.testing.assert_array_equal(assembled["x"], batch["x"][[2, 4]])
    assert tuple(likelihood.data_dims) == ("y", "count", "tilt")


def test_numpy_rows_stay_numpy_and_jax_rows_stay_jax():
    X, y = normal_data()
    likelihood = model_likelihood(normal_model, (X, jnp.asarray(y)))
    rows = likelihood.take([1, 2])
    assert isinstance(rows[0], np.ndarray)
    assert isinstance(rows[1], jax.Array)
    np.testing.assert_allclose(rows[1], y[1:3], rtol=1e-6)


def test_arguments_that_are_not_data_are_left_as_they_are():
    model, (y, readings), _ = models.outside_site()
    likelihood = model_likelihood(model, (y, readings))
    args, _ = likelihood.assemble(likelihood.take([0]))
    assert args[1] is readings
    assert args[0].shape == (1,)


@pytest.mark.parametrize(
    "data_axes", [{"X": 0, "y": 0}, (0, None, {"y": 0}), [{"values": 0}, None, {"y": 0}]]
)
def test_data_axes_say_which_arguments_are_data(data_axes):
    X, y = normal_data(5)
    in_dict = isinstance(data_axes, list)
    prior_sd = np.ones(5)

    def model(X, prior_sd, y):
        normal_model(X["values"] if in_dict else X, y)
        numpyro.sample("c", dist.Normal(0.0, prior_sd).to_event(1))

    args = ({"values": X} if in_dict else X, prior_sd)
    likelihood = model_likelihood(model, args, {"y": y}, data_axes=data_axes)
    assert len(likelihood.data) == 2
    assert likelihood.init_params["c"].shape == (5,)


@pytest.mark.parametrize(
    ("data_axes", "message"),
    [
        ({"Z": 0}, r"data_axes names \['Z'\]"),
        ((1, 0), "entry 1; 0 .* or None"),
        ((0,), "does not fit 2 positional"),
        ((None, None), "names no data argument"),
    ],
)
def test_bad_data_axes_are_refused(data_axes, message):
    with pytest.raises(ModelError, match=message):
        model_likelihood(normal_model, normal_data(), data_axes=data_axes)


def test_plate_says_which_of_two_plates_is_the_datas():
    def model(y):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        with numpyro.plate("items", y.shape[1], dim=-1), numpyro.plate("people", len(y), dim=-2):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    y = np.random.default_rng(0).normal(size=(4, 9))
    likelihood = model_likelihood(model, (y,), plate="people")
    assert (likelihood.num_data, likelihood.data_dims) == (4, {"y": -2})
    with pytest.raises(ModelError, match="plate='rows' holds no observed site"):
        model_likelihood(model, (y,), plate="rows")


def test_integer_argument_that_is_the_plates_size_follows_the_rows():
    def model(X, y, num_rows):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", num_rows):
            numpyro.sample("y", dist.Normal(b * X, 1.0), obs=y)

    X, y = normal_data()
    likelihood = model_likelihood(model, (X, y, 40))
    args, _ = likelihood.assemble(likelihood.take([1, 2, 3]))
    assert args[2] == 3
    assert likelihood.log_likelihood({"b": 0.1}, likelihood.take([1, 2, 3])).shape == (3,)


def test_integer_argument_that_happens_to_equal_n_stays():
    group, y = np.arange(8) % 8, np.arange(8.0)
    model, _, _ = models.hierarchical()
    likelihood = model_likelihood(model, (group, y, 8))
    args, _ = likelihood.assemble(likelihood.take([1, 2]))
    assert args[2] == 8
    assert likelihood.init_params["theta"].shape == (8,)


def test_array_that_the_model_reads_as_numbers_may_be_an_argument_where_it_is_no_data():
    def model(X, y, sizes):
        c = numpyro.sample("c", dist.Normal(0.0, 1.0).expand([int(sizes[0])]).to_event(1))
        with numpyro.plate("data", X.shape[0]):
            numpyro.sample("y", dist.Normal(c[0] * X + c[1], 1.0), obs=y)

    likelihood = model_likelihood(model, (*normal_data(), np.array([2, 7])))
    assert likelihood.init_params["c"].shape == (2,)


def test_error_names_what_was_taken_as_data():
    def model(X, y, prior_mean):
        c = numpyro.sample("c", dist.Normal(prior_mean, 1.0).to_event(1))
        normal_model(X + c[0], y)

    X, y = normal_data()
    args = X, y, np.zeros(40)
    error = refused(model, args, "latent site 'c' grows with the rows")
    assert "have 40 rows: X, y, prior_mean; if one of them is no data" in error.__notes__[0]
    model_likelihood(model, args, data_axes={"X": 0, "y": 0})


def test_one_row_is_enough():
    likelihood = model_likelihood(normal_model, (np.ones(1), np.zeros(1)))
    values = likelihood.log_likelihood({"b": 0.5}, likelihood.data)
    np.testing.assert_allclose(values, st.norm.logpdf([0.5]), **FLOAT32)


def test_take_refuses_rows_that_are_not_there():
    likelihood = model_likelihood(normal_model, normal_data())
    with pytest.raises(IndexError, match="0 to 39 are wanted"):
        likelihood.take([40])


# --- what is refused ------------------------------------------------------------------------------


def refused(model, args, message, **options):
    with pytest.raises(ModelError, match=message) as caught:
        model_likelihood(model, args, **options)
    return caught.value


def test_no_observed_site_is_refused():
    X, _ = normal_data()
    refused(normal_model, (X,), "the model has no observed site")


def test_no_latent_site_is_refused():
    refused(lambda y: numpyro.sample("y", dist.Normal(0, 1), obs=y), (np.ones(3),), "no latent")


def test_subsampling_plate_is_refused():
    def model(X, y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", X.shape[0], subsample_size=10) as rows:
            numpyro.sample("y", dist.Normal(b * X[rows], 1.0), obs=y[rows])

    refused(model, normal_data(), "plate 'data' subsamples 10 of 40 rows")


@pytest.mark.parametrize("kind", ["joint", "event", "factor"])
def test_observations_without_a_data_axis_are_refused(kind):
    def model(X, y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        if kind == "joint":
            joint = dist.MultivariateNormal(b * X, covariance_matrix=jnp.eye(X.shape[0]))
            numpyro.sample("y", joint, obs=y)
        elif kind == "event":
            numpyro.sample("y", dist.Normal(b * X, 1.0).to_event(1), obs=y)
        else:
            numpyro.factor("y", dist.Normal(b * X, 1.0).log_prob(y).sum())

    refused(model, normal_data(), "log-probability of observed site 'y'.*one entry per datum")


def test_joint_site_beside_an_independent_one_is_refused():
    def model(X, y):
        normal_model(X, y)
        numpyro.sample("z", dist.Normal(0.0, 1.0).expand(X.shape).to_event(1), obs=X)

    refused(model, normal_data(), "site 'z' does not grow with the rows, though its value does")


def test_column_against_vector_is_refused_where_it_would_broadcast():
    def model(X, y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(b * X[:, None], 1.0), obs=y)

    refused(model, normal_data(), "grows with the rows in two axes")


@pytest.mark.parametrize("discrete", [False, True])
def test_per_datum_latent_site_is_refused(discrete):
    def model(X, y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", X.shape[0]):
            z = numpyro.sample("z", dist.Bernoulli(0.5) if discrete else dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(b * X + z, 1.0), obs=y)

    message = "'z' is discrete" if discrete else "'z' grows with the rows"
    refused(model, normal_data(), f"latent site {message}")


def test_imputation_by_obs_mask_is_refused():
    def model(X, y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", X.shape[0]):
            numpyro.sample("y", dist.Normal(b * X, 1.0), obs=y, obs_mask=y > 0)

    refused(model, normal_data(), "'y_unobserved' grows with the rows.*obs_mask")


def test_discrete_global_latent_site_is_refused():
    def model(X, y):
        k = numpyro.sample("k", dist.Poisson(3.0))
        numpyro.sample("y", dist.Normal(k * X, 1.0), obs=y)

    refused(model, normal_data(), r"latent site 'k' is discrete \(Poisson")


def test_param_site_is_refused():
    def model(X, y):
        normal_model(X, y)
        numpyro.param("w", 1.0)

    refused(model, normal_data(), "site 'w' is a numpyro.param")


@pytest.mark.parametrize("uses", ["mean", "count", "maximum"])
def test_prior_that_uses_the_data_is_refused(uses):
    def model(X, y):
        prior = {
            "mean": dist.Normal(y.mean(), 10.0),
            "count": dist.Normal(0.0, 1.0 / X.shape[0]),
            "maximum": dist.Uniform(-9.0, y.max()),
        }[uses]
        b = numpyro.sample("b", prior)
        with numpyro.plate("data", X.shape[0]):
            numpyro.sample("y", dist.Normal(b * X, 1.0), obs=y)

    refused(model, normal_data(), "site 'b', which is outside the data axis, changes when rows")


def test_standardisation_inside_the_model_is_refused():
    def model(X, y):
        normal_model((X - X.mean()) / X.std(), y)

    refused(model, normal_data(), "of a datum at site 'y' changes when other rows are dropped")


def test_time_series_is_refused():
    def model(y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))

        def step(previous, value):
            numpyro.sample("y", dist.Normal(b * previous, 1.0), obs=value)
            return value, None

        scan(step, 0.0, y)

    refused(model, normal_data()[:1], "of a datum at site 'y' changes when other rows are dropped")


def test_sites_in_a_python_loop_over_rows_are_refused():
    def model(y):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        for i in range(y.shape[0]):
            numpyro.sample(f"y_{i}", dist.Normal(m, 1.0), obs=y[i])

    refused(model, (np.ones(3),), "single number")
    refused(model, (np.ones(3),), "come and go with the number of rows", data_axes=(0,))


def test_plate_of_fixed_size_is_refused():
    def model(X, y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", 40):
            numpyro.sample("y", dist.Normal(b * X, 1.0), obs=y)

    error = refused(model, normal_data(), "sizes are to come from the data arguments")
    assert error.__cause__ is not None


def test_group_count_computed_from_the_data_is_refused():
    def model(group, y):
        with numpyro.plate("groups", int(group.max()) + 1):
            theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", group.shape[0]):
            numpyro.sample("y", dist.Normal(theta[group], 1.0), obs=y)

    _, (group, y), _ = models.hierarchical()
    refused(model, (group, y), "reads values of a data argument")


@pytest.mark.parametrize("data_axes", [None, (0, 0)])
def test_arguments_of_unequal_length_are_refused(data_axes):
    X, y = normal_data()
    refused(normal_model, (X, y[:-1]), "X has 40 rows and y has 39 rows", data_axes=data_axes)


@pytest.mark.parametrize("data_axes", [None, (0, 0)])
def test_no_rows_are_refused(data_axes):
    refused(normal_model, (np.ones(0), np.ones(0)), "argument X has 0 rows", data_axes=data_axes)


def test_model_without_data_arguments_is_refused():
    refused(lambda: normal_model(*normal_data()), (), "no argument of the model is an array")


def test_data_with_rows_along_another_axis_are_refused():
    def model(Y):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", Y.shape[1]):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=Y[0])

    refused(model, (np.ones((2, 30)),), "no argument has a leading axis as long")


def test_text_is_refused_as_data():
    def model(X, label):
        numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal()), 1.0), obs=X)

    refused(model, (np.ones(3), np.array(["a", "b", "c"])), "argument label .* dtype")


@pytest.mark.parametrize(
    ("column", "value", "kind"), [(0, np.nan, "NaN"), (1, np.inf, "-inf")], ids=["nan", "infinity"]
)
def test_rows_without_a_finite_log_likelihood_are_named(column, value, kind):
    data = X, y = normal_data()
    data[column][[7, 31]] = value
    refused(normal_model, (X, y), rf"is {kind} in rows 7, 31; a finite one is wanted")


def test_rows_are_named_by_their_number_in_all_the_data(monkeypatch):
    monkeypatch.setattr("jaxcoreset.likelihood._CHUNK_ROWS", 16)
    X, y = normal_data()
    X[37] = np.nan
    refused(normal_model, (X, y), "is NaN in row 37;")


def test_prior_that_is_never_finite_is_refused():
    def model(X, y):
        normal_model(X, y)
        numpyro.factor("penalty", jnp.nan)

    refused(model, normal_data(), "the log prior is nan at a starting point")


def test_check_log_likelihood_names_rows_and_kinds():
    values = np.zeros(8)
    check_log_likelihood(values, np.arange(8))
    values[2], values[5], values[6] = np.nan, np.inf, -np.inf
    message = r"is NaN in row 102, \+inf in row 105, -inf in row 106"
    with pytest.raises(ModelError, match=message):
        check_log_likelihood(values, np.arange(100, 108))


@pytest.mark.parametrize("num_rows", range(2, 60))
def test_subsets_for_the_check_are_disjoint_and_cannot_keep_the_mean_of_a_binary_column(num_rows):
    first, second = disjoint_subsets(num_rows)
    assert len(first) == len(second) >= 1
    assert not set(first) & set(second)
    assert max(*first, *second) < num_rows
    assert np.gcd(len(first), num_rows) == 1


def test_exception_of_the_model_surfaces_with_a_note():
    class Unrelated(Exception):
        pass

    def model(X, y):
        raise Unrelated("mine")

    with pytest.raises(Unrelated, match="mine") as caught:
        model_likelihood(model, normal_data())
    assert "X (40,), y (40,)" in "".join(caught.value.__notes__)


def test_missing_parameter_is_refused():
    likelihood = model_likelihood(*models.linear())
    with pytest.raises(ModelError, match=r"params lacks the latent sites \['b', 's'\]"):
        likelihood.log_likelihood({"a": 0.0}, likelihood.data)


# --- the weighted model ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def weighted():
    model, (X, y), _ = models.linear()
    return weighted_model(model, np.full(10, 4.0), DIMS), (X[::4], y[::4])


def test_weighted_model_runs_under_nuts_and_finds_the_exact_posterior_mean():
    X, y = normal_data(6)
    weights = np.array([1.0, 3.0, 0.0, 0.5, 2.0, 10.0])
    model = weighted_model(normal_model, weights, DIMS)
    kernel = NUTS(model, init_strategy=init_to_value(values={"b": 0.0}))
    mcmc = MCMC(kernel, num_warmup=100, num_samples=400, progress_bar=False)
    mcmc.run(jax.random.key(0), X, y)
    precision = 1.0 + weights @ X**2
    draws = np.asarray(mcmc.get_samples()["b"])
    # About 200 effective draws: a standard error of 0.07 sd, four of which are allowed.
    assert abs(draws.mean() - (weights * X) @ y / precision) < 0.28 / np.sqrt(precision)


def test_weighted_model_runs_under_svi():
    X, y = normal_data(6)
    weights = np.array([1.0, 3.0, 0.0, 0.5, 2.0, 10.0])
    model = weighted_model(normal_model, weights, DIMS)
    guide = AutoDelta(model, init_loc_fn=init_to_value(values={"b": 0.0}))
    svi = SVI(model, guide, numpyro.optim.Adam(0.1), Trace_ELBO())
    state = jax.jit(svi.init)(jax.random.key(0), X, y)
    update = jax.jit(svi.update)
    for _ in range(200):
        state, _ = update(state, X, y)
    mode = (weights * X) @ y / (1.0 + weights @ X**2)
    # Adam at this rate has come to within a hundredth after 200 steps.
    np.testing.assert_allclose(svi.get_params(state)["b_auto_loc"], mode, atol=0.01)


def test_weighted_model_predicts_new_rows_without_weights(weighted):
    model, _ = weighted
    draws = {"a": jnp.zeros(3), "b": jnp.ones((3, 2)), "s": jnp.full(3, 1e-4)}
    X = np.arange(14.0).reshape(7, 2)
    predicted = Predictive(model, draws)(jax.random.key(0), X)["y"]
    # A standard deviation of 1e-4 leaves the mean, to within five of them and float32.
    np.testing.assert_allclose(predicted, np.tile(X.sum(axis=1), (3, 1)), atol=1e-3)


def test_weighted_model_gives_the_unweighted_log_likelihood(weighted):
    model, (X, y) = weighted
    draws = {"a": jnp.zeros(2), "b": jnp.ones((2, 2)), "s": jnp.ones(2)}
    values = log_likelihood(model, draws, X, y)["y"]
    np.testing.assert_allclose(values[1], st.norm.logpdf(y, X.sum(axis=1)), **FLOAT32)


def test_weighted_model_refuses_observations_of_another_number(weighted):
    model, (X, y) = weighted
    params = {"a": 0.0, "b": np.zeros(2), "s": 1.0}
    with pytest.raises(ModelError, match=r"site 'y' is observed with 9 rows.*weights for 10"):
        log_density(model, (X[:9], y[:9]), {}, params)


def test_weights_apply_to_observations_by_an_outer_condition_handler(weighted):
    model, (X, y) = weighted
    params = {"a": 0.1, "b": np.ones(2), "s": 1.0}
    inside = density(model, (X, y), {}, params)
    outside = density(condition(model, {"y": jnp.asarray(y)}), (X,), {}, params)
    np.testing.assert_allclose(outside, inside, rtol=1e-6)


def test_weights_apply_to_a_scalar_distribution_that_is_conditioned_outside():
    def model(y=None):
        numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal()), 1.0), obs=y)

    y, weights = np.array([0.3, -1.0, 2.0]), np.array([2.0, 0.0, 5.0])
    weighted = weighted_model(model, weights, DIMS)
    value = density(condition(weighted, {"y": jnp.asarray(y)}), (), {}, {"m": 0.4})
    expected = weights @ st.norm.logpdf(y, 0.4) + st.norm.logpdf(0.4)
    np.testing.assert_allclose(value, expected, **FLOAT32)


def test_weights_may_be_traced():
    X, y = normal_data(6)

    def total(weights):
        return log_density(weighted_model(normal_model, weights, DIMS), (X, y), {}, {"b": 0.3})[0]

    gradient = jax.jit(jax.grad(total))(jnp.ones(6))
    np.testing.assert_allclose(gradient, st.norm.logpdf(y, 0.3 * X), **FLOAT32)


def test_weighted_models_compare_by_model_and_weights_and_can_be_pickled():
    model = weighted_model(normal_model, [1.0, 2.0, 0.0, 3.0], DIMS)
    same = weighted_model(normal_model, np.array([1.0, 2.0, 0.0, 3.0]), dict(DIMS))
    other = weighted_model(normal_model, [1.0, 2.0, 0.5, 3.0], DIMS)
    assert model == same == pickle.loads(pickle.dumps(model))
    assert hash(model) == hash(same)
    assert model != other


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, -0.5], r"weights\[1\] is -0.5"),
        ([1.0, np.nan], r"weights\[1\] is nan"),
        (np.ones((2, 2)), r"shape \(2, 2\)"),
    ],
)
def test_bad_weights_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        weighted_model(normal_model, weights, DIMS)


def test_bare_model_without_data_dims_is_refused():
    with pytest.raises(ValueError, match="without data_dims"):
        weighted_model(normal_model, [1.0])
