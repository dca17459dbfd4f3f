"""One regression in all the ways in which users write plates, weights, masks and arguments."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from tests.users_models.case import NUM_ROWS, Case, covariates, linear_data
from tests.users_models.regressions import coefficients, sigmoid


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


def partial_function() -> Case:
    _, x, y = linear_data(416)

    def model(family, x, y=None, *, link):
        mean = link(x @ coefficients(x))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", family(mean, 0.7), obs=y)

    return Case(functools.partial(model, dist.Normal, link=jnp.tanh), (x, y))


def flat_priors() -> Case:
    _, x, y = linear_data(420)

    def model(x, y=None):
        line = dist.constraints.real_vector
        beta = numpyro.sample("beta", dist.ImproperUniform(line, (), event_shape=(3,)))
        sigma = numpyro.sample("sigma", dist.Uniform(0.1, 5))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)

    return Case(model, (x, y))


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
