"""What `predict` makes of the arguments of a call: predictors of groups, responses and settings."""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import jaxcoreset as jc
from jaxcoreset.likelihood.arguments import ModelError
from tests.gaussian_coreset import whole

KEY = jax.random.key(0)
# Of the coreset posterior as it is.
unweighted = partial(jc.predict, key=KEY, progress_bar=False, reweight=False, quantiles=())


def stores(store, area, y=None):
    slope = numpyro.sample("slope", dist.Normal(0.0, 20.0))
    with numpyro.plate("stores", area.shape[0]):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", store.shape[0]):
        numpyro.sample("y", dist.Normal((slope * area + z)[store], 1.0), obs=y)


def prediction_of_stores(labels, area):
    """A function that predicts for stores with these labels and areas in the build."""
    rng = np.random.default_rng(0)
    store = np.repeat(np.arange(len(labels)), 5)
    y = 10 * area[store] + rng.normal(size=store.size)
    builder = jc.CoresetBuilder(stores, size=len(labels), groups="store", progress_bar=False)
    coreset = builder.run(KEY, np.asarray(labels)[store], area, y)
    return partial(unweighted, coreset, {"slope": 10 + 0.1 * rng.normal(size=50)})


def test_predictors_of_groups_are_those_of_the_build_and_then_of_new_groups():
    """A new label may sort between those of the build."""
    predict = prediction_of_stores([101, 205, 300], np.array([0.0, 1.0, 2.0]))
    rows = np.array([101, 150, 205, 300])
    found = predict(rows, np.array([0.0, 1.0, 2.0, 7.0]))
    np.testing.assert_allclose(found.mean["y"], [0, 70, 10, 20], atol=2.5)
    with pytest.raises(ModelError, match=r"has 7\.0 for group 205, .* built with 1\.0; .* first"):
        predict(rows, np.array([0.0, 7.0, 1.0, 2.0]))
    with pytest.raises(ModelError, match="argument 'area' is missing; expected an array"):
        predict(rows)


def test_predictors_that_fit_two_orders_of_groups_are_refused():
    predict = prediction_of_stores(["b", "d"], np.array([1.0, 1.0]))
    area = np.array([1.0, 1.0, 7.0, 1.0])
    with pytest.raises(ModelError, match="'area' fits the groups of the build in two orders"):
        predict(np.array(["a", "b", "c", "d"]), area)
    found = predict(np.array(["b", "d", "e", "f"]), area)
    np.testing.assert_allclose(found.mean["y"], [10, 10, 70, 10], atol=2.5)


def test_a_number_of_groups_that_is_left_out_is_asked_for(groups):
    coreset, label, _ = groups
    predict = partial(unweighted, coreset, {"mu": 0.5 + 0.1 * np.arange(6)})
    with pytest.raises(ModelError, match="argument 'num' is missing; expected the number"):
        predict(label)
    assert np.isfinite(predict(label, 60).mean["y"]).all()


def mediation(x, m=None, y=None):
    a = numpyro.sample("a", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", x.shape[0]):
        m = numpyro.sample("m", dist.Normal(a * x, 1.0), obs=m)
        numpyro.sample("y", dist.Normal(2 * m, 0.1), obs=y)


def test_missing_responses_are_drawn_given_those_that_are_passed():
    rng = np.random.default_rng(0)
    x, m = rng.normal(size=(2, 60)).astype(np.float32)
    coreset, samples = whole(mediation, x, m, 2 * m), {"a": 0.5 + 0.01 * rng.normal(size=400)}
    predict = partial(unweighted, coreset, samples)
    new, given = np.zeros(3), np.array([-3.0, 0.0, 3.0])
    found = predict(new, given)
    assert set(found.mean) == {"y"}
    np.testing.assert_allclose(found.mean["y"], 2 * given, atol=0.03)
    np.testing.assert_allclose(found.sd["y"], 0.1, rtol=0.2)
    with pytest.raises(ModelError, match="'m', whose observations were passed, and are kept becau"):
        predict(new, given, sites=["m"])
    with pytest.raises(ModelError, match="is not a number in row 1"):
        predict(new, np.array([0.0, np.nan, 0.0]))
    for responses in ((), (given, given)):
        found = predict(new, *responses)
        assert set(found.mean) == {"m", "y"}
        np.testing.assert_allclose(found.mean["m"], 0, atol=0.25)
        np.testing.assert_allclose(found.sd["y"], 2, rtol=0.15)


def wide(x, y=None, scale=1.0, priors=None, *, shift=0.0):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    factor = 1.0 if priors is None else priors.get("factor", 1.0)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(b * x + shift, factor * scale), obs=y)


def test_settings_of_the_build_hold_for_predictions_unless_others_are_passed():
    rng = np.random.default_rng(0)
    x = rng.normal(size=60).astype(np.float32)
    priors = {"factor": 2.0, "knots": np.arange(3.0)}
    coreset = whole(wide, x, x, 5.0, priors, shift=30.0)
    predict = partial(unweighted, coreset, {"b": 0.1 * rng.normal(size=400)}, np.zeros(9))
    for given in ({}, {"scale": 5.0}, {"priors": {"knots": np.arange(3.0)}}):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = predict(**given)
        np.testing.assert_allclose(found.mean["y"], 30, atol=2)
        np.testing.assert_allclose(found.sd["y"], 10, rtol=0.15)
    for given, message, sd in (
        ({"scale": 2.0}, r"argument scale is 2\.0, but the coreset was built with 5\.0", 4),
        ({"priors": None}, "argument priors is None, but the coreset was built with", 5),
        ({"priors": {"knots": np.ones(3)}}, r"priors\['knots'\] is an array of shape \(3,\)", 10),
    ):
        with pytest.warns(UserWarning, match=message):
            found = predict(**given)
        np.testing.assert_allclose(found.sd["y"], sd, rtol=0.15)


def test_a_setting_that_cannot_be_passed_by_name_is_expected_in_its_place():
    def model(x, y, scale=1.0, /):
        wide(x, y, scale)

    x, samples = np.linspace(-1, 1, 40), {"b": np.zeros(400)}
    predict = partial(unweighted, whole(model, x, x, 5.0), samples, np.zeros(3), None)
    np.testing.assert_allclose(predict(5.0).sd["y"], 5, rtol=0.15)
    with pytest.raises(ModelError, match="'scale' is missing, and the model does not take it"):
        predict()


ACROSS_ROWS = {
    "share": lambda eta, y: jnp.exp(eta) / jnp.exp(eta).sum(),
    "rank": lambda eta, y: jnp.argsort(jnp.argsort(eta)),
    "relative": lambda eta, y: eta / eta.max(),
    "deviation": lambda eta, y: 1e4 + y - y.mean(),
    "total": lambda eta, y: jnp.cumsum(eta),
}
BY_ROW = {
    "line": lambda eta, y: 1e4 + eta,
    "residual": lambda eta, y: y - eta,
    "sign": lambda eta, y: eta > 0,
    "pair": lambda eta, y: jnp.stack([eta, jnp.log(eta)], axis=1),
    "noise": lambda eta, y: jax.random.normal(numpyro.prng_key(), eta.shape),
}


def test_deterministic_sites_that_depend_on_other_rows_are_refused():
    """Rows are evaluated by blocks, so that shares would sum to more or less than one."""

    def model(x, y=None):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", x.shape[0]):
            y = numpyro.sample("y", dist.Normal(b * x, 1.0), obs=y)
        for name, function in (ACROSS_ROWS | BY_ROW).items():
            numpyro.deterministic(name, function(b * x, y))

    x = np.random.default_rng(0).normal(size=71).astype(np.float32)
    coreset = whole(model, x, x)
    predict = partial(unweighted, coreset, {"b": np.linspace(0.5, 0.7, 20)})
    for name in ACROSS_ROWS:
        with pytest.raises(ModelError, match=f"site '{name}' is computed from other rows, too"):
            predict(sites=[name])
    for new in ((), (x[:1],), (x[:3], x[:3])):
        found = predict(*new, sites=list(BY_ROW))
        np.testing.assert_allclose(found.mean["line"], 1e4 + 0.6 * (*new, x)[0], rtol=1e-6)
    with pytest.raises(ModelError, match="site 'share' is computed from other rows, too"):
        predict(x[:1], sites=["line", "share"])
