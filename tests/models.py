"""Small NumPyro models with generated data, shared by the tests.

Each function returns (model, args, kwargs), as a user would call the model. Data are NumPy arrays
in float64, which is what users have. `normal_model` and `normal_data` are the same in two parts,
for tests that change one of them; `by_number` makes a model alone.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import scipy.special
from numpyro.infer.util import log_density

# What a log-probability may be off by: see `test_likelihood`.
FLOAT32 = {"rtol": 1e-4, "atol": 1e-4}
FLOAT64 = {"rtol": 1e-10, "atol": 1e-10}


def _covariates(random, num_data, num_columns=2):
    return random.normal(size=(num_data, num_columns))


def linear(num_data=40):
    """y ~ Normal(a + X b, s), with a plate."""
    random = np.random.default_rng(1)
    X = _covariates(random, num_data)
    y = 0.5 + X @ np.array([1.0, -0.7]) + 0.3 * random.normal(size=num_data)

    def model(X, y=None):
        a = numpyro.sample("a", dist.Normal(0.0, 2.0))
        b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
        s = numpyro.sample("s", dist.HalfNormal(1.0))
        with numpyro.plate("data", X.shape[0]):
            return numpyro.sample("y", dist.Normal(a + X @ b, s), obs=y)

    return model, (X, y), {}


def linear_plateless(num_data=40):
    """The linear model without a plate, y by keyword."""
    _, (X, y), _ = linear(num_data)

    def model(X, y=None):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
        s = numpyro.sample("s", dist.LogNormal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(X @ b, s), obs=y)

    return model, (X,), {"y": y}


def logistic(num_data=40):
    """y ~ Bernoulli(logit = X b)."""
    random = np.random.default_rng(2)
    X = _covariates(random, num_data, 3)
    y = (random.uniform(size=num_data) < 1 / (1 + np.exp(-X[:, 0]))).astype(int)

    def model(X, y=None):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
        with numpyro.plate("data", X.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=X @ b), obs=y)

    return model, (X, y), {}


def poisson(num_data=40):
    """y ~ Poisson(exposure exp(X b)), with the exposure an optional argument."""
    random = np.random.default_rng(3)
    X = _covariates(random, num_data)
    exposure = random.uniform(0.5, 2.0, size=num_data)
    y = random.poisson(exposure * np.exp(0.5 * X[:, 0]))

    def model(X, exposure=None, y=None):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
        rate = jnp.exp(X @ b) * (1.0 if exposure is None else exposure)
        with numpyro.plate("data", X.shape[0]):
            numpyro.sample("y", dist.Poisson(rate), obs=y)

    return model, (X,), {"exposure": exposure, "y": y}


def hierarchical(num_data=40, num_groups=4):
    """Group means in a plate of fixed size; the group index is data."""
    random = np.random.default_rng(4)
    group = random.integers(num_groups, size=num_data)
    y = random.normal(size=num_groups)[group] + 0.5 * random.normal(size=num_data)

    def model(group, y=None, num_groups=num_groups):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        with numpyro.plate("groups", num_groups):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
        with numpyro.plate("data", group.shape[0]):
            numpyro.sample("y", dist.Normal(theta[group], 0.5), obs=y)

    return model, (group, y), {}


def mixture(num_data=40):
    """A scale and a simplex: two known components, with the indicator summed out."""
    random = np.random.default_rng(5)
    y = np.where(random.uniform(size=num_data) < 0.3, -1.0, 1.0) + random.normal(size=num_data)

    def model(y=None, num_rows=None):
        p = numpyro.sample("p", dist.Dirichlet(jnp.array([1.0, 2.0])))
        s = numpyro.sample("s", dist.HalfNormal(2.0))
        with numpyro.plate("data", y.shape[0] if y is not None else num_rows):
            parts = dist.Normal(jnp.array([-1.0, 1.0]), s)
            numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(probs=p), parts), obs=y)

    return model, (y,), {}


def two_sites(num_data=40):
    """Two observed sites and a factor in one plate; the arguments are a pytree."""
    random = np.random.default_rng(6)
    batch = {
        "x": random.normal(size=num_data),
        "count": random.poisson(2.0, size=num_data),
        "offset": None,
    }
    batch["y"] = 0.8 * batch["x"] + random.normal(size=num_data)

    def model(batch):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", batch["x"].shape[0]):
            numpyro.sample("y", dist.Normal(b * batch["x"], 1.0), obs=batch["y"])
            numpyro.sample("count", dist.Poisson(jnp.exp(b)), obs=batch["count"])
            numpyro.factor("tilt", -0.1 * (b - batch["x"]) ** 2)

    return model, (batch,), {}


def masked(num_data=40):
    """Missing observations masked out, and a user's own scale of 2."""
    random = np.random.default_rng(7)
    y = random.normal(size=num_data)
    seen = random.uniform(size=num_data) < 0.7

    def model(y, seen):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        with (
            numpyro.plate("data", y.shape[0]),
            numpyro.handlers.scale(scale=2.0),
            numpyro.handlers.mask(mask=seen),
        ):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    return model, (y, seen), {}


def nested(num_data=40, num_items=3):
    """Answers of people (the data, dimension -2) to items (dimension -1)."""
    random = np.random.default_rng(8)
    y = random.normal(size=(num_data, num_items))

    def model(y):
        with numpyro.plate("items", num_items, dim=-1):
            d = numpyro.sample("d", dist.Normal(0.0, 1.0))
            with numpyro.plate("people", y.shape[0], dim=-2):
                numpyro.sample("y", dist.Normal(d, 1.0), obs=y)

    return model, (y,), {}


def outside_site(num_data=40):
    """Five calibration readings outside the data plate inform the same mean."""
    random = np.random.default_rng(9)
    y = random.normal(size=num_data)
    readings = random.normal(size=5)

    def model(y, readings):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        s = numpyro.sample("s", dist.HalfNormal(1.0))
        with numpyro.plate("machines", readings.shape[0]):
            numpyro.sample("readings", dist.Normal(m, 0.2), obs=readings)
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(m, s), obs=y)

    return model, (y, readings), {}


def logistic_model(x, y=None):
    """`logistic` by another name: for tests that have data of their own."""
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def logistic_data(num_rows, beta=(1.0, -0.5, 0.2, 0.3)):
    """Rows of `logistic_model`; the last coefficient is the intercept."""
    rng = np.random.default_rng(0)
    x = np.hstack([rng.normal(size=(num_rows, len(beta) - 1)), np.ones((num_rows, 1))])
    return x, (rng.random(num_rows) < scipy.special.expit(x @ np.array(beta))).astype(int)


def regression_model(x, y=None):
    """Linear, of known noise, so that every weighted posterior is known."""
    beta = numpyro.sample("beta", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)


# The data axis of `normal_model`.
DIMS = {"y": -1}


def normal_model(X, y=None):
    """The smallest regression: one coefficient, one plate."""
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("y", dist.Normal(b * X, 1.0), obs=y)


def by_number(few):
    """A model that is another one where there are few rows or fewer: not fit for coresets."""

    def model(y):
        a = numpyro.sample("a", dist.Normal(0, 2))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(a, 1 if y.shape[0] > few else 2), obs=y)

    return model


def normal_data(num_data=40):
    random = np.random.default_rng(0)
    X = random.normal(size=num_data)
    return X, X + random.normal(size=num_data)


def density(model, args, kwargs, params):
    """NumPyro's own joint log-density, compiled as one function to save time."""
    return jax.jit(lambda params: log_density(model, args, kwargs, params)[0])(params)
