"""Which of a model's arguments are data, and what follows the rows."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats as st

from jaxcoreset.likelihood import ModelError, model_likelihood
from tests import models
from tests.models import FLOAT32, normal_data, normal_model


def test_data_are_found_in_pytrees_and_other_arguments_stay_as_they_are():
    model, (batch,), kwargs = models.two_sites()
    likelihood = model_likelihood(model, (batch | {"y": jnp.asarray(batch["y"])},), kwargs)
    (assembled,), _ = likelihood.assemble(likelihood.take([2, 4]))
    assert assembled["offset"] is None
    assert isinstance(assembled["x"], np.ndarray)
    assert isinstance(assembled["y"], jax.Array)
    np.testing.assert_array_equal(assembled["x"], batch["x"][[2, 4]])
    np.testing.assert_allclose(assembled["y"], batch["y"][[2, 4]], rtol=1e-6)
    assert tuple(likelihood.data_dims) == ("y", "count", "tilt")
    with pytest.raises(IndexError, match="the rows 0 to 39"):
        likelihood.take([40])


@pytest.mark.parametrize("data_axes", [{"X": 0, "y": 0}, [{"values": 0}, None, {"y": 0}]])
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
    def model(X, y, num_rows, prior_sd):
        b = numpyro.sample("b", dist.Normal(0.0, prior_sd[0]))
        with numpyro.plate("data", num_rows):
            numpyro.sample("y", dist.Normal(b * X, 1.0), obs=y)

    prior_sd = np.ones(1)
    likelihood = model_likelihood(model, (*normal_data(), 40, prior_sd))
    args, _ = likelihood.assemble(likelihood.take([1, 2, 3]))
    assert args[2] == 3
    assert args[3] is prior_sd


def test_integer_argument_that_happens_to_equal_n_stays():
    group, y = np.arange(8) % 8, np.arange(8.0)
    model, _, _ = models.hierarchical()
    likelihood = model_likelihood(model, (group, y, 8))
    args, _ = likelihood.assemble(likelihood.take([1, 2]))
    assert args[2] == 8
    assert likelihood.init_params["theta"].shape == (8,)


def test_array_that_the_model_reads_as_numbers_may_be_an_argument_where_it_is_no_data():
    def model(X, y, sizes):
        numpyro.sample("c", dist.Normal(0.0, 1.0).expand([int(sizes[0])]).to_event(1))
        normal_model(X, y)

    likelihood = model_likelihood(model, (*normal_data(), np.array([2, 7])))
    assert likelihood.init_params["c"].shape == (2,)


def test_error_names_what_was_taken_as_data():
    def model(X, y, prior_mean):
        c = numpyro.sample("c", dist.Normal(prior_mean, 1.0).to_event(1))
        normal_model(X + c[0], y)

    X, y = normal_data()
    args = X, y, np.zeros(40)
    with pytest.raises(ModelError, match="latent site 'c' grows with the rows") as caught:
        model_likelihood(model, args)
    assert "have 40 rows: X, y, prior_mean; if one of them is not data" in caught.value.__notes__[0]


def test_one_row_is_enough():
    likelihood = model_likelihood(normal_model, (np.ones(1), np.zeros(1)))
    values = likelihood.log_likelihood({"b": 0.5}, likelihood.data)
    np.testing.assert_allclose(values, st.norm.logpdf([0.5]), **FLOAT32)
