"""Models and arguments that no coreset can stand for, with the words that say why."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.control_flow import scan

import jaxcoreset as jc
from tests.users_models import regressions
from tests.users_models.case import Case, covariates
from tests.users_models.regressions import coefficients

NUM_ROWS = 400


def linear_data(seed: int = 500) -> tuple[np.random.Generator, np.ndarray, np.ndarray]:
    rng, x = covariates(seed, num_rows=NUM_ROWS)
    y = x @ [1, 0.5, -0.3] + 0.7 * rng.normal(size=NUM_ROWS)
    return rng, x, y.astype(np.float32)


def regression(x, y=None):
    beta = coefficients(x)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ beta, 0.7), obs=y)


# Parameters of each row, and discrete ones.


def animals_of_a_site() -> Case:
    """An N-mixture model: a count of each row, of which some are seen."""
    rng = np.random.default_rng(503)
    y = rng.binomial(rng.poisson(5, size=NUM_ROWS), 0.4)

    def model(y):
        rate = numpyro.sample("rate", dist.Gamma(4, 1))
        with numpyro.plate("sites", y.shape[0]):
            num = numpyro.sample("num", dist.Poisson(rate))
            numpyro.sample("y", dist.Binomial(num, 0.4), obs=y)

    return Case(model, (y,), refusal=r"latent site 'num' is discrete \(Poisson\).*finitely many")


def number_of_changes() -> Case:
    """A change point, in days: a discrete parameter of all rows."""
    rng = np.random.default_rng(501)
    day, y = np.arange(NUM_ROWS), rng.poisson(3, size=NUM_ROWS)

    def model(day, y):
        change = numpyro.sample("change", dist.DiscreteUniform(0, 399))
        rates = numpyro.sample("rates", dist.Exponential(1.0).expand([2]).to_event(1))
        with numpyro.plate("days", y.shape[0]):
            numpyro.sample("y", dist.Poisson(jnp.where(day < change, *rates)), obs=y)

    return Case(model, (day, y), refusal="latent site 'change' is discrete")


def imputed_responses() -> Case:
    rng, x, y = linear_data()

    def model(x, y, seen):
        beta = coefficients(x)
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ beta, 0.7), obs=y, obs_mask=seen)

    return Case(model, (x, y, rng.random(NUM_ROWS) < 0.8), refusal="grows with the rows.*obs_mask")


# Rows that depend on one another.


def gaussian_process() -> Case:
    _, x, y = linear_data()

    def model(x, y):
        length = numpyro.sample("length", dist.LogNormal(0, 1))
        kernel = jnp.exp(-0.5 * ((x[:, None] - x) / length) ** 2) + 0.1 * jnp.eye(x.shape[0])
        numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(x.shape[0]), kernel), obs=y)

    return Case(model, (x[:, 1], y), refusal="one entry per datum.*a Gaussian process")


def autoregression_by_scan() -> Case:
    _, _, y = linear_data()

    def model(y):
        rho = numpyro.sample("rho", dist.Uniform(-1, 1))

        def step(before, now):
            numpyro.sample("y", dist.Normal(rho * before, 1.0), obs=now)
            return now, None

        scan(step, 0.0, y)

    return Case(model, (y,), refusal="at site 'y' changes when other rows are dropped")


def autoregression_by_slices() -> Case:
    _, _, y = linear_data()

    def model(y):
        rho = numpyro.sample("rho", dist.Uniform(-1, 1))
        numpyro.sample("y", dist.Normal(rho * y[:-1], 1.0), obs=y[1:])

    return Case(model, (y,), refusal=r"as long as the observed sites \(sizes \[399\]")


def cox_partial_likelihood() -> Case:
    """The hazard of a patient over those of all who are still at risk."""
    rng, x, _ = linear_data()
    order = np.argsort(rng.exponential(np.exp(-x @ [0, 0.5, -0.3])))

    def model(x, event):
        risk = x[:, 1:] @ numpyro.sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))
        at_risk = jax.lax.cumlogsumexp(risk, reverse=True)
        numpyro.factor("partial", event * (risk - at_risk))

    event = (rng.random(NUM_ROWS) < 0.8).astype(np.float32)
    return Case(model, (x[order], event), refusal="changes when other rows are dropped")


def spatial_effects() -> Case:
    _, _, y = linear_data()
    apart = np.abs(np.arange(NUM_ROWS)[:, None] - np.arange(NUM_ROWS))

    def model(y, adjacency):
        rho = numpyro.sample("rho", dist.Uniform(0, 1))
        car = dist.CAR(0.0, rho, 1.0, adjacency, is_sparse=False)
        numpyro.sample("y", car, obs=y)

    return Case(
        model,
        (y, (apart == 1).astype(np.float32)),
        refusal="one entry per datum is expected.*do not use a joint distribution",
    )


# What a model computes from all its rows.


def standardised_inside() -> Case:
    _, x, y = linear_data()

    def model(x, y=None):
        z = (x[:, 1] - x[:, 1].mean()) / x[:, 1].std()
        b = numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(b * z, 1.0), obs=y)

    return Case(model, (x, y), refusal="at site 'y' changes when other rows are dropped")


def prior_at_the_mean() -> Case:
    _, x, y = linear_data()

    def model(x, y):
        a = numpyro.sample("a", dist.Normal(y.mean(), 2.5 * y.std()))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(a, 1.0), obs=y)

    return Case(
        model, (x, y), refusal="site 'a', which is outside the data axis, changes when rows"
    )


def summed_factor() -> Case:
    _, x, y = linear_data()

    def model(x, y):
        beta = coefficients(x)
        numpyro.factor("log_lik", dist.Normal(x @ beta, 0.7).log_prob(y).sum())

    return Case(model, (x, y), refusal="do not sum over them in numpyro.factor")


def rows_as_an_event() -> Case:
    _, x, y = linear_data()

    def model(x, y):
        numpyro.sample("y", dist.Normal(x @ coefficients(x), 0.7).to_event(1), obs=y)

    return Case(model, (x, y), refusal="drop to_event over the data")


def column_against_rows() -> Case:
    _, x, y = linear_data()

    def model(x, y):
        b = numpyro.sample("b", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(b * x[:, 1:2], 0.7), obs=y)

    return Case(model, (x, y), refusal=r"one of its arrays of shape \(n, 1\), another \(n,\)")


# Plates and sizes.


def subsampled() -> Case:
    _, x, y = linear_data()

    def model(x, y):
        beta = coefficients(x)
        with numpyro.plate("rows", x.shape[0], subsample_size=50) as rows:
            numpyro.sample("y", dist.Normal(x[rows] @ beta, 0.7), obs=y[rows])

    return Case(model, (x, y), refusal="subsamples 50 of 400 rows.*drop subsample_size")


def groups_counted_inside() -> Case:
    rng, _, y = linear_data()

    def model(group, y):
        with numpyro.plate("groups", len(np.unique(group))):
            a = numpyro.sample("a", dist.Normal(0, 1))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(a[group], 1.0), obs=y)

    return Case(
        model, (rng.integers(4, size=NUM_ROWS), y), refusal="reads values of a data argument"
    )


def a_site_for_each_row() -> Case:
    y = np.random.default_rng(502).normal(size=12)

    def model(y):
        m = numpyro.sample("m", dist.Normal(0, 1))
        for i in range(y.shape[0]):
            numpyro.sample(f"y_{i}", dist.Normal(m, 1.0), obs=y[i])

    return Case(model, (y,), refusal="is a single number.*one entry per datum is expected")


def data_in_a_closure() -> Case:
    _, x, y = linear_data()
    return Case(lambda: regression(x, y), (), refusal="pass the data as arguments of the model")


# Arguments.


def response_forgotten() -> Case:
    _, x, _ = linear_data()
    return Case(regression, (x,), refusal="no observed site.*argument y of the model is None")


def counts_beyond_int32() -> Case:
    rng, x, _ = linear_data()
    y = rng.poisson(3, size=NUM_ROWS)
    y[7] = 13_000_000_000

    def model(x, y):
        rate = jnp.exp(x @ coefficients(x))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Poisson(rate), obs=y)

    return Case(model, (x, y), refusal=r"y\[7\] is 13000000000, which int32 cannot hold")


# Posteriors that are not proper, and parameters without a prior.


def parameter_without_a_prior() -> Case:
    _, x, y = linear_data()

    def model(x, y):
        beta = coefficients(x)
        sigma = numpyro.param("sigma", 1.0, constraint=dist.constraints.positive)
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)

    return Case(model, (x, y), refusal="'sigma' is a numpyro.param.*give it a prior")


def corners_in_the_likelihood() -> Case:
    """A Laplace distribution of the noise has no second derivatives for a Laplace approximation."""
    case = regressions.laplace()
    refusal = r"mode was not reached.*corners.*SubsampleNUTS\(\)"
    return Case(case.model, case.args, settings={"weighting": jc.Laplace()}, refusal=refusal)


REFUSALS = [
    animals_of_a_site,
    number_of_changes,
    imputed_responses,
    gaussian_process,
    autoregression_by_scan,
    autoregression_by_slices,
    cox_partial_likelihood,
    spatial_effects,
    standardised_inside,
    prior_at_the_mean,
    summed_factor,
    rows_as_an_event,
    column_against_rows,
    subsampled,
    groups_counted_inside,
    a_site_for_each_row,
    data_in_a_closure,
    response_forgotten,
    counts_beyond_int32,
    parameter_without_a_prior,
    corners_in_the_likelihood,
]
