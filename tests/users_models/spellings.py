"""One regression in all the ways in which users write plates, weights, masks and arguments."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from tests.users_models.case import NUM_ROWS, Case, covariates
from tests.users_models.counts import sigmoid
from tests.users_models.regressions import coefficients, in_float32


def linear_data(seed: int) -> tuple[np.random.Generator, np.ndarray, np.ndarray]:
    rng, x = covariates(seed)
    y = x @ [1, 0.5, -0.3] + 0.7 * rng.normal(size=NUM_ROWS)
    return rng, x, y.astype(np.float32)


def no_plate() -> Case:
    """Data in float64, as NumPy makes them."""
    _, x, y = linear_data(400)

    def model(x, y=None):
        beta, sigma = coefficients(x), numpyro.sample("sigma", dist.HalfNormal(1))
        numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)

    return Case(model, (x.astype(np.float64), y.astype(np.float64)))


def all_arguments_of_a_plate() -> Case:
    _, x, y = linear_data(401)

    def model(x, y=None):
        beta, sigma = coefficients(x), numpyro.sample("sigma", dist.HalfNormal(1))
        with numpyro.plate("N", x.shape[0], subsample_size=None, dim=-1) as rows:
            numpyro.sample("y", dist.Normal(x[rows] @ beta, sigma), obs=y[rows])

    return Case(model, (jnp.asarray(x), jnp.asarray(y)))


def size_as_an_argument() -> Case:
    _, x, y = linear_data(402)

    def model(N, K, x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([K]))
        with numpyro.plate("N", N):
            numpyro.sample("y", dist.Normal(x @ beta, 0.7), obs=y)

    return Case(model, (NUM_ROWS, 3, x, y))


def two_plates() -> Case:
    """People in rows, questions in columns."""
    rng, x = covariates(403)
    level = np.linspace(-1, 1, 4)
    y = level + x[:, 1:2] * 0.5 + 0.6 * rng.normal(size=(NUM_ROWS, 4))

    def model(x, answers=None):
        b = numpyro.sample("b", dist.Normal(0, 1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
        questions = numpyro.plate("questions", 4, dim=-1)
        people = numpyro.plate("people", x.shape[0], dim=-2)
        with questions:
            level = numpyro.sample("level", dist.Normal(0, 1))
        with people, questions:
            numpyro.sample("y", dist.Normal(level + b * x[:, 1:2], sigma), obs=answers)

    return Case(model, (x,), {"answers": y.astype(np.float32)})


def stacked_plates() -> Case:
    """Sensors are the first axis of the mean and the data have their rows second."""
    rng = np.random.default_rng(404)
    y = np.array([0.5, -0.2, 1.0]) + 0.5 * rng.normal(size=(NUM_ROWS, 3))

    def model(y):
        with numpyro.plate("sensors", 3):
            bias = numpyro.sample("bias", dist.Normal(0, 1))
            noise = numpyro.sample("noise", dist.HalfNormal(1))
        with numpyro.plate_stack("grid", [y.shape[0], 3]):
            numpyro.sample("y", dist.Normal(bias, noise), obs=y)

    return Case(model, in_float32(y))


def columns_as_an_event() -> Case:
    rng, x = covariates(405, 1)
    y = x @ np.array([[1, 0, -1], [0.3, 0.5, -0.2]]) + 0.6 * rng.normal(size=(NUM_ROWS, 3))

    def model(x, y=None):
        W = numpyro.sample("W", dist.Normal(0, 1).expand([2, 3]).to_event(2))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ W, 0.6).to_event(1), obs=y)

    return Case(model, (x, *in_float32(y)))


def masked() -> Case:
    """Some responses are missing; they are set to zero, and masked."""
    rng, x, y = linear_data(406)
    seen = rng.random(NUM_ROWS) < 0.7

    def model(x, seen, y):
        beta, sigma = coefficients(x), numpyro.sample("sigma", dist.HalfNormal(1))
        with numpyro.plate("rows", x.shape[0]), numpyro.handlers.mask(mask=seen):
            numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)

    return Case(model, (x, seen, np.where(seen, y, 0).astype(np.float32)))


def masked_distribution() -> Case:
    """Each of two responses of a row may be missing, as NaN."""
    rng, x, y = linear_data(407)
    both = np.stack([y, y + rng.normal(size=NUM_ROWS)], 1).astype(np.float32)
    both[rng.random(both.shape) < 0.2] = 0
    seen = both != 0

    def model(x, both, seen):
        beta = coefficients(x)
        shift = numpyro.sample("shift", dist.Normal(0, 1))
        mean = jnp.stack([x @ beta, x @ beta + shift], axis=1)
        with numpyro.plate("rows", x.shape[0], dim=-2), numpyro.plate("responses", 2, dim=-1):
            numpyro.sample("y", dist.Normal(mean, 0.9).mask(seen), obs=both)

    return Case(model, (x, both, seen))


def survey_weights() -> Case:
    """A weight for each answer, that stands for some people."""
    rng, x = covariates(408)
    weights = rng.gamma(2, 0.5, size=NUM_ROWS).astype(np.float32)
    y = (rng.random(NUM_ROWS) < sigmoid(x @ [-0.3, 0.8, -0.4])).astype(int)

    def model(x, weights, y=None):
        beta = coefficients(x)
        with numpyro.plate("people", x.shape[0]), numpyro.handlers.scale(scale=weights):
            numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)

    return Case(model, (x, weights, y))


def expansion_weights() -> Case:
    """Weights that sum to a population of two million: float32 is too coarse for the sums."""
    rng, x = covariates(409)
    weights = (1000 * rng.gamma(2, 0.5, size=NUM_ROWS)).astype(np.float32)
    y = (rng.random(NUM_ROWS) < sigmoid(x @ [-0.3, 0.8, -0.4])).astype(int)

    def model(x, weights, y=None):
        logits = x @ coefficients(x)
        numpyro.factor("y", weights * dist.Bernoulli(logits=logits).log_prob(y))

    return Case(model, (x, weights, y))


def one_scale_for_all() -> Case:
    """A tempered likelihood."""
    _, x, y = linear_data(410)

    def model(x, y=None):
        beta, sigma = coefficients(x), numpyro.sample("sigma", dist.HalfNormal(1))
        with numpyro.handlers.scale(scale=0.5), numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)

    return Case(model, (x, y))


def frequency_table() -> Case:
    """Rows are cells of a table, with the number of people in each."""
    rng = np.random.default_rng(411)
    x = np.stack([np.ones(1000), rng.integers(5, size=1000), rng.integers(8, size=1000)], 1)
    x = (x / [1, 2, 4]).astype(np.float32)
    count = 1 + rng.poisson(6, size=1000)
    voted = (rng.random(1000) < sigmoid(x @ [-1, 0.4, 0.5])).astype(int)

    def model(x, count, voted=None):
        logits = x @ coefficients(x)
        with numpyro.plate("cells", x.shape[0]), numpyro.handlers.scale(scale=count):
            numpyro.sample("voted", dist.Bernoulli(logits=logits), obs=voted)

    return Case(model, (x, count, voted))


def calibration() -> Case:
    """Five readings of a standard tell of the same offset as the rows."""
    rng, x, y = linear_data(412)
    readings = (1 + 0.05 * rng.normal(size=5)).astype(np.float32)

    def model(readings, x, y):
        offset = numpyro.sample("offset", dist.Normal(0, 1))
        slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("standards", readings.shape[0]):
            numpyro.sample("readings", dist.Normal(offset, 0.05), obs=readings)
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(offset + x[:, 1:] @ slopes, 0.7), obs=y)

    return Case(model, (readings, x, y))


def keywords_only() -> Case:
    _, x, y = linear_data(413)

    def model(*, X, y=None, prior_scale=1.0):
        beta = numpyro.sample("beta", dist.Normal(0, prior_scale).expand([3]).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.Normal(X @ beta, 0.7), obs=y)

    return Case(model, (), {"X": x, "y": y, "prior_scale": 3.0})


def dictionary() -> Case:
    """A batch by name, with an entry that is None and one that is no data."""
    _, x, y = linear_data(414)

    def model(batch):
        beta = numpyro.sample("beta", dist.Normal(0, batch["scales"]).to_event(1))
        trend = batch["x"]["one"] * beta[0] + batch["x"]["other"] @ beta[1:]
        with numpyro.plate("rows", batch["y"].shape[0]):
            numpyro.sample("y", dist.Normal(trend, 0.7), obs=batch["y"])

    features = {"one": x[:, 0], "other": x[:, 1:]}
    return Case(model, ({"x": features, "y": y, "offset": None, "scales": np.ones(3, np.float32)},))


class Table(NamedTuple):
    x: Any
    y: Any


def named_tuple() -> Case:
    _, x, y = linear_data(415)

    def model(table):
        beta = coefficients(table.x)
        sigma = numpyro.sample("sigma", dist.InverseGamma(3, 2))
        with numpyro.plate("rows", table.y.shape[0]):
            numpyro.sample("y", dist.Normal(table.x @ beta, sigma), obs=table.y)

    return Case(model, (Table(x, y),))


def partial_function() -> Case:
    _, x, y = linear_data(416)

    def model(family, x, y=None, *, link):
        mean = link(x @ coefficients(x))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", family(mean, 0.7), obs=y)

    return Case(functools.partial(model, dist.Normal, link=jnp.tanh), (x, y))


class Regression:
    """A model with settings, as a class whose instances are called."""

    def __init__(self, num_columns: int, robust: bool):
        self.num_columns, self.robust = num_columns, robust

    def prior(self):
        return numpyro.sample("w", dist.Laplace(0, 1).expand([self.num_columns]).to_event(1))

    def __call__(self, X, y=None):
        mean = X @ self.prior()
        noise = dist.StudentT(5.0, mean, 0.6) if self.robust else dist.Normal(mean, 0.7)
        with numpyro.plate("rows", X.shape[0]):
            return numpyro.sample("y", noise, obs=y)


def callable_object() -> Case:
    _, x, y = linear_data(417)
    return Case(Regression(3, robust=True), (x, y))


def deterministic_sites() -> Case:
    """Values for each row and for the model are kept beside the parameters."""
    rng, x = covariates(418)
    y = rng.poisson(np.exp(x @ [1, 0.3, -0.2]))

    def model(x, y=None):
        beta = coefficients(x)
        rate = numpyro.deterministic("rate", jnp.exp(x @ beta))
        numpyro.deterministic("ratio", jnp.exp(beta[1] - beta[2]))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Poisson(rate), obs=y)

    return Case(model, (x, y))


def scoped() -> Case:
    """Submodels, whose sites have a name before theirs."""
    _, x, y = linear_data(419)

    def part(x):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        return x @ w

    def model(x, z, y=None):
        mean = numpyro.handlers.scope(part, prefix="x")(x)
        mean = mean + numpyro.handlers.scope(part, prefix="z", divider="_")(z)
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(mean, 0.7), obs=y)

    return Case(model, (x[:, :2].copy(), x[:, 2:].copy(), y))


def flat_priors() -> Case:
    _, x, y = linear_data(420)

    def model(x, y=None):
        line = dist.constraints.real_vector
        beta = numpyro.sample("beta", dist.ImproperUniform(line, (), event_shape=(3,)))
        sigma = numpyro.sample("sigma", dist.Uniform(0.1, 5))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)

    return Case(model, (x, y))


def two_responses() -> Case:
    """A number and a count of the same row, and a penalty on it."""
    rng, x, y = linear_data(421)
    count = rng.poisson(np.exp(0.3 + 0.4 * x[:, 1]))

    def model(x, y, count):
        beta = coefficients(x)
        rate = numpyro.sample("rate", dist.Normal(0, 1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ beta, 0.7), obs=y)
            numpyro.sample("count", dist.Poisson(jnp.exp(rate + 0.4 * x[:, 1])), obs=count)
            numpyro.factor("penalty", -0.01 * jnp.square(x @ beta))

    return Case(model, (x, y, count))


def jax_arrays() -> Case:
    """Arrays of JAX, one in half the precision, and a small network's last layer."""
    _, x, y = linear_data(422)
    weights = jax.random.normal(jax.random.key(0), (3, 4))

    def model(x, y=None):
        features = jnp.tanh(x.astype(weights.dtype) @ weights)
        w = numpyro.sample("w", dist.Normal(0, 1).expand([4]).to_event(1))
        b = numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(b + features @ w, 0.8), obs=y)

    return Case(model, (jnp.asarray(x, jnp.bfloat16), jnp.asarray(y)))


POSTERIORS = [
    no_plate,
    all_arguments_of_a_plate,
    size_as_an_argument,
    two_plates,
    stacked_plates,
    columns_as_an_event,
    masked,
    masked_distribution,
    survey_weights,
    expansion_weights,
    one_scale_for_all,
    frequency_table,
    calibration,
    keywords_only,
    dictionary,
    named_tuple,
    partial_function,
    callable_object,
    deterministic_sites,
    scoped,
    flat_priors,
    two_responses,
    jax_arrays,
]
