"""Groups that share a prior: centred and not, crossed, nested, with slopes."""

import functools

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from numpyro.infer.reparam import LocScaleReparam, TransformReparam

from tests.users_models.case import NUM_ROWS, Case, covariates
from tests.users_models.counts import sigmoid
from tests.users_models.regressions import in_float32

NUM_GROUPS = 6


def of_groups(seed: int) -> tuple[np.random.Generator, np.ndarray, np.ndarray, np.ndarray]:
    """A generator, the groups of the rows, a covariate, and the means of the groups."""
    rng = np.random.default_rng(seed)
    group = rng.integers(NUM_GROUPS, size=NUM_ROWS)
    x = rng.normal(size=NUM_ROWS).astype(np.float32)
    return rng, group, x, np.array([-0.8, -0.3, 0.0, 0.2, 0.6, 1.2])


def centred() -> Case:
    rng, group, x, means = of_groups(200)
    y = 1 + means[group] + 0.5 * x + 0.5 * rng.normal(size=NUM_ROWS)

    def model(group, x, y=None):
        mu = numpyro.sample("mu", dist.Normal(0, 2))
        tau = numpyro.sample("tau", dist.HalfNormal(1))
        b = numpyro.sample("b", dist.Normal(0, 1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
        with numpyro.plate("groups", NUM_GROUPS):
            alpha = numpyro.sample("alpha", dist.Normal(mu, tau))
        with numpyro.plate("rows", len(group)):
            numpyro.sample("y", dist.Normal(alpha[group] + b * x, sigma), obs=y)

    return Case(model, (group, x, *in_float32(y)))


def not_centred() -> Case:
    rng, group, x, means = of_groups(201)
    y = (rng.random(NUM_ROWS) < sigmoid(0.3 + means[group] + 0.5 * x)).astype(int)

    def model(group, x, y=None):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        tau = numpyro.sample("tau", dist.HalfNormal(1))
        b = numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("groups", NUM_GROUPS):
            z = numpyro.sample("z", dist.Normal(0, 1))
        alpha = numpyro.deterministic("alpha", mu + tau * z)
        with numpyro.plate("rows", group.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=alpha[group] + b * x), obs=y)

    return Case(model, (group, x, y))


def with_a_reparam_handler() -> Case:
    rng, group, x, means = of_groups(202)
    y = rng.poisson(np.exp(0.5 + 0.5 * means[group] + 0.3 * x))

    @functools.partial(numpyro.handlers.reparam, config={"alpha": LocScaleReparam(0)})
    def model(group, x, num_groups, y=None):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        tau = numpyro.sample("tau", dist.Gamma(3, 4))
        b = numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("groups", num_groups):
            alpha = numpyro.sample("alpha", dist.Normal(mu, tau))
        with numpyro.plate("rows", group.shape[0]):
            numpyro.sample("y", dist.Poisson(jnp.exp(alpha[group] + b * x)), obs=y)

    return Case(model, (group, x, NUM_GROUPS), {"y": y})


def transformed_by_a_handler() -> Case:
    """An affine transform of the prior is sampled in its base."""
    rng, group, _, means = of_groups(203)
    y = means[group] + 0.7 * rng.normal(size=NUM_ROWS)

    def model(group, y=None):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        tau = numpyro.sample("tau", dist.LogNormal(-0.5, 0.5))
        with (
            numpyro.plate("groups", NUM_GROUPS),
            numpyro.handlers.reparam(config={"alpha": TransformReparam()}),
        ):
            moved = dist.transforms.AffineTransform(mu, tau)
            alpha = numpyro.sample("alpha", dist.TransformedDistribution(dist.Normal(0, 1), moved))
        with numpyro.plate("rows", group.shape[0]):
            numpyro.sample("y", dist.Normal(alpha[group], 0.7), obs=y)

    return Case(model, (group, *in_float32(y)))


def correlated_slopes() -> Case:
    rng = np.random.default_rng(204)
    group = rng.integers(8, size=NUM_ROWS)
    x = rng.normal(size=NUM_ROWS)
    effects = rng.multivariate_normal([0.5, -0.3], [[0.6, 0.2], [0.2, 0.4]], size=8)
    y = effects[group, 0] + effects[group, 1] * x + 0.5 * rng.normal(size=NUM_ROWS)

    def model(group, x, y=None):
        mu = numpyro.sample("mu", dist.Normal(0, 1).expand([2]).to_event(1))
        tau = numpyro.sample("tau", dist.Gamma(4, 6).expand([2]).to_event(1))
        L = numpyro.sample("L", dist.LKJCholesky(2, 2.0))
        with numpyro.plate("groups", 8):
            pair = dist.MultivariateNormal(mu, scale_tril=tau[:, None] * L)
            effect = numpyro.sample("effect", pair)
        with numpyro.plate("rows", x.shape[0]):
            mean = effect[group, 0] + effect[group, 1] * x
            numpyro.sample("y", dist.Normal(mean, 0.5), obs=y)

    return Case(model, (group, *in_float32(x, y)))


def crossed() -> Case:
    rng = np.random.default_rng(205)
    rater, film = rng.integers(5, size=NUM_ROWS), rng.integers(6, size=NUM_ROWS)
    of_rater, of_film = np.linspace(-0.6, 0.6, 5), np.linspace(-1, 1, 6)
    y = 3 + of_rater[rater] + of_film[film] + rng.normal(size=NUM_ROWS)

    def model(rater, film, rating=None):
        mu = numpyro.sample("mu", dist.Normal(3, 1))
        sd = numpyro.sample("sd", dist.Gamma(3, 4).expand([2]).to_event(1))
        with numpyro.plate("raters", 5):
            a = numpyro.sample("a", dist.Normal(0, sd[0]))
        with numpyro.plate("films", 6):
            b = numpyro.sample("b", dist.Normal(0, sd[1]))
        with numpyro.plate("ratings", rater.shape[0]):
            numpyro.sample("rating", dist.Normal(mu + a[rater] + b[film], 1.0), obs=rating)

    return Case(model, (rater, film, *in_float32(y)))


def nested_groups() -> Case:
    """Schools in districts; the district of a school is an argument of its own."""
    rng = np.random.default_rng(206)
    district = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2])
    school = rng.integers(9, size=NUM_ROWS)
    effect = np.array([-0.5, 0.1, 0.7])[district] + 0.4 * rng.normal(size=9)
    y = effect[school] + 0.8 * rng.normal(size=NUM_ROWS)

    def model(school, district, y=None):
        with numpyro.plate("districts", 3):
            of_district = numpyro.sample("of_district", dist.Normal(0, 1))
        with numpyro.plate("schools", district.shape[0]):
            of_school = numpyro.sample("of_school", dist.Normal(of_district[district], 0.5))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
        with numpyro.plate("pupils", school.shape[0]):
            numpyro.sample("y", dist.Normal(of_school[school], sigma), obs=y)

    return Case(model, (school, district, *in_float32(y)))


def with_covariates_of_groups() -> Case:
    """The radon model: a county has uranium of its own."""
    rng, county, floor, _ = of_groups(207)
    uranium = np.array([-1, -0.5, 0, 0.4, 0.8, 1.2], np.float32)
    floor = (floor > 0).astype(np.float32)
    means = 1.2 + 0.7 * uranium + 0.2 * rng.normal(size=NUM_GROUPS)
    y = means[county] - 0.6 * floor + 0.7 * rng.normal(size=NUM_ROWS)

    def model(floor, county, uranium, log_radon=None):
        gamma = numpyro.sample("gamma", dist.Normal(0, 1).expand([2]).to_event(1))
        tau = numpyro.sample("tau", dist.Gamma(2, 5))
        b = numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("counties", uranium.shape[0]):
            a = numpyro.sample("a", dist.Normal(gamma[0] + gamma[1] * uranium, tau))
        with numpyro.plate("houses", floor.shape[0]):
            numpyro.sample("y", dist.Normal(a[county] + b * floor, 0.7), obs=log_radon)

    return Case(model, (floor, county, uranium), {"log_radon": y.astype(np.float32)})


def small_area_poststratified() -> Case:
    """Three ways to group answers of a survey, each with a scale."""
    rng = np.random.default_rng(208)
    age, education, state = (rng.integers(size, size=NUM_ROWS) for size in (4, 3, 5))
    logits = np.linspace(-1, 1, 4)[age] + np.linspace(0.5, -0.5, 3)[education]
    y = (rng.random(NUM_ROWS) < sigmoid(logits + np.linspace(-0.4, 0.4, 5)[state])).astype(int)

    def model(age, education, state, vote=None):
        logits = numpyro.sample("intercept", dist.Normal(0, 1))
        for name, index, size in (("age", age, 4), ("edu", education, 3), ("state", state, 5)):
            scale = numpyro.sample(f"scale_{name}", dist.Gamma(4, 6))
            with numpyro.plate(name, size):
                effect = numpyro.sample(f"effect_{name}", dist.Normal(0, 1))
            logits = logits + scale * effect[index]
        with numpyro.plate("people", age.shape[0]):
            numpyro.sample("vote", dist.Bernoulli(logits=logits), obs=vote)

    return Case(model, (age, education, state), {"vote": y})


def effect_of_a_row() -> Case:
    """Poisson counts that scatter more, by a normal effect of each row."""
    rng, x = covariates(209)
    y = rng.poisson(np.exp(x @ [0.5, 0.3, 0] + 0.5 * rng.normal(size=NUM_ROWS)))
    grid = np.linspace(-9, 9, 181)

    def model(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
        tau = numpyro.sample("tau", dist.Gamma(3, 6))
        with numpyro.plate("rows", x.shape[0]):
            effect = numpyro.sample("effect", dist.Normal(0, tau))
            numpyro.sample("y", dist.Poisson(jnp.exp(x @ beta + effect)), obs=y)

    def marginal(x, y=None):
        """The integrals are sums over a fine grid, which for a smooth integrand is exact."""
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
        tau = numpyro.sample("tau", dist.Gamma(3, 6))
        log_rate = (x @ beta)[:, None] + tau * grid
        values = dist.Poisson(jnp.exp(log_rate)).log_prob(y[:, None]) - grid**2 / 2
        numpyro.factor("log_likelihood", logsumexp(values, axis=1))

    return Case(model, (x, y), marginal=marginal)


def error_in_a_covariate() -> Case:
    """A covariate that is measured with an error, and whose true value is normal."""
    rng = np.random.default_rng(210)
    true = rng.normal(size=NUM_ROWS)
    measured = true + 0.3 * rng.normal(size=NUM_ROWS)
    y = 0.2 + 0.8 * true + 0.7 * rng.normal(size=NUM_ROWS)

    def model(measured, y=None):
        a = numpyro.sample("a", dist.Normal(0, 1))
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        true = numpyro.sample("true", dist.Normal(jnp.zeros(measured.shape[0]), 1.0))
        numpyro.sample("measured", dist.Normal(true, 0.3), obs=measured)
        numpyro.sample("y", dist.Normal(a + slope * true, 0.7), obs=y)

    def marginal(measured, y=None):
        a = numpyro.sample("a", dist.Normal(0, 1))
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        mean, variance = measured / 1.09, 0.09 / 1.09
        scale = jnp.sqrt(0.49 + slope**2 * variance)
        numpyro.sample("y", dist.Normal(a + slope * mean, scale), obs=y)

    return Case(model, in_float32(measured, y), marginal=marginal)


POSTERIORS = [
    centred,
    not_centred,
    with_a_reparam_handler,
    transformed_by_a_handler,
    correlated_slopes,
    crossed,
    nested_groups,
    with_covariates_of_groups,
    small_area_poststratified,
    effect_of_a_row,
    error_in_a_covariate,
]
