"""Models and arguments that no coreset can stand for, with the words that say why."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.control_flow import scan

import jaxcoreset as jc
from tests.users_models import regressions
from tests.users_models.case import Case, linear_data
from tests.users_models.regressions import coefficients

NUM_ROWS = 400
RNG, X, Y = linear_data(500, NUM_ROWS)
REFUSALS: dict[str, Case] = {}


def refused(message: str, *args: Any) -> Callable[[Callable], Callable]:
    """Note a model that is refused with this pattern of a message if it is called so."""

    def note(model: Callable) -> Callable:
        REFUSALS[model.__name__] = Case(model, args, refusal=message)
        return model

    return note


# Parameters of each row, and discrete ones.


@refused(
    r"latent site 'num' is discrete \(Poisson\).*finitely many",
    RNG.binomial(RNG.poisson(5, size=NUM_ROWS), 0.4),
)
def animals_of_a_site(y):
    """An N-mixture model: a count of each row, of which some are seen."""
    rate = numpyro.sample("rate", dist.Gamma(4, 1))
    with numpyro.plate("sites", y.shape[0]):
        num = numpyro.sample("num", dist.Poisson(rate))
        numpyro.sample("y", dist.Binomial(num, 0.4), obs=y)


@refused("latent site 'change' is discrete", np.arange(NUM_ROWS), RNG.poisson(3, size=NUM_ROWS))
def number_of_changes(day, y):
    """A change point, in days: a discrete parameter of all rows."""
    change = numpyro.sample("change", dist.DiscreteUniform(0, 399))
    rates = numpyro.sample("rates", dist.Exponential(1.0).expand([2]).to_event(1))
    with numpyro.plate("days", y.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.where(day < change, *rates)), obs=y)


@refused("grows with the rows.*obs_mask", X, Y, RNG.random(NUM_ROWS) < 0.8)
def imputed_responses(x, y, seen):
    beta = coefficients(x)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ beta, 0.7), obs=y, obs_mask=seen)


# Rows that depend on one another.


@refused("one entry per datum.*a Gaussian process", X[:, 1], Y)
def gaussian_process(x, y):
    length = numpyro.sample("length", dist.LogNormal(0, 1))
    kernel = jnp.exp(-0.5 * ((x[:, None] - x) / length) ** 2) + 0.1 * jnp.eye(x.shape[0])
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(x.shape[0]), kernel), obs=y)


@refused("at site 'y' changes when other rows are dropped", Y)
def autoregression_by_scan(y):
    rho = numpyro.sample("rho", dist.Uniform(-1, 1))

    def step(before, now):
        numpyro.sample("y", dist.Normal(rho * before, 1.0), obs=now)
        return now, None

    scan(step, 0.0, y)


@refused(r"as long as the observed sites \(sizes \[399\]", Y)
def autoregression_by_slices(y):
    rho = numpyro.sample("rho", dist.Uniform(-1, 1))
    numpyro.sample("y", dist.Normal(rho * y[:-1], 1.0), obs=y[1:])


@refused(
    "changes when other rows are dropped",
    X[np.argsort(RNG.exponential(np.exp(-X @ [0, 0.5, -0.3])))],
    (RNG.random(NUM_ROWS) < 0.8).astype(np.float32),
)
def cox_partial_likelihood(x, event):
    """The hazard of a patient over those of all who are still at risk."""
    risk = x[:, 1:] @ numpyro.sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))
    at_risk = jax.lax.cumlogsumexp(risk, reverse=True)
    numpyro.factor("partial", event * (risk - at_risk))


@refused(
    "one entry per datum is expected.*do not use a joint distribution",
    Y,
    np.eye(NUM_ROWS, k=1, dtype=np.float32) + np.eye(NUM_ROWS, k=-1, dtype=np.float32),
)
def spatial_effects(y, adjacency):
    rho = numpyro.sample("rho", dist.Uniform(0, 1))
    car = dist.CAR(0.0, rho, 1.0, adjacency, is_sparse=False)
    numpyro.sample("y", car, obs=y)


# What a model computes from all its rows.


@refused("at site 'y' changes when other rows are dropped", X, Y)
def standardised_inside(x, y=None):
    z = (x[:, 1] - x[:, 1].mean()) / x[:, 1].std()
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(b * z, 1.0), obs=y)


@refused("site 'a', which is outside the data axis, changes when rows", X, Y)
def prior_at_the_mean(x, y):
    a = numpyro.sample("a", dist.Normal(y.mean(), 2.5 * y.std()))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(a, 1.0), obs=y)


@refused("do not sum over them in numpyro.factor", X, Y)
def summed_factor(x, y):
    beta = coefficients(x)
    numpyro.factor("log_lik", dist.Normal(x @ beta, 0.7).log_prob(y).sum())


@refused("drop to_event over the data", X, Y)
def rows_as_an_event(x, y):
    numpyro.sample("y", dist.Normal(x @ coefficients(x), 0.7).to_event(1), obs=y)


@refused(r"one of its arrays of shape \(n, 1\), another \(n,\)", X, Y)
def column_against_rows(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(b * x[:, 1:2], 0.7), obs=y)


# Plates and sizes.


@refused("subsamples 50 of 400 rows.*drop subsample_size", X, Y)
def subsampled(x, y):
    beta = coefficients(x)
    with numpyro.plate("rows", x.shape[0], subsample_size=50) as rows:
        numpyro.sample("y", dist.Normal(x[rows] @ beta, 0.7), obs=y[rows])


@refused("reads values of a data argument", RNG.integers(4, size=NUM_ROWS), Y)
def groups_counted_inside(group, y):
    with numpyro.plate("groups", len(np.unique(group))):
        a = numpyro.sample("a", dist.Normal(0, 1))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(a[group], 1.0), obs=y)


@refused("is a single number.*one entry per datum is expected", Y[:12])
def a_site_for_each_row(y):
    m = numpyro.sample("m", dist.Normal(0, 1))
    for i in range(y.shape[0]):
        numpyro.sample(f"y_{i}", dist.Normal(m, 1.0), obs=y[i])


# Arguments.


@refused("no observed site.*argument y of the model is None", X)
def response_forgotten(x, y=None):
    beta = coefficients(x)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ beta, 0.7), obs=y)


@refused("pass the data as arguments of the model")
def data_in_a_closure():
    response_forgotten(X, Y)


@refused(
    r"y\[7\] is 13000000000, which int32 cannot hold",
    X,
    np.where(np.arange(NUM_ROWS) == 7, 13_000_000_000, 3),
)
def counts_beyond_int32(x, y):
    rate = jnp.exp(x @ coefficients(x))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Poisson(rate), obs=y)


# Posteriors that are not proper, and parameters without a prior.


@refused("'sigma' is a numpyro.param.*give it a prior", X, Y)
def parameter_without_a_prior(x, y):
    beta = coefficients(x)
    sigma = numpyro.param("sigma", 1.0, constraint=dist.constraints.positive)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


# A Laplace distribution of the noise has no second derivatives for a Laplace approximation.
REFUSALS["corners_in_the_likelihood"] = dataclasses.replace(
    regressions.laplace(),
    settings={"weighting": jc.Laplace()},
    refusal=r"mode was not reached.*corners.*SubsampleNUTS\(\)",
)
