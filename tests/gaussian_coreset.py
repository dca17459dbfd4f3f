"""Linear regression with known noise, whose weighted posteriors and evidences are closed forms."""

from types import SimpleNamespace

import numpy as np
import numpyro
import numpyro.distributions as dist

import jaxcoreset as jc
from jaxcoreset.coreset.exact import whole_coreset
from jaxcoreset.data.utils import Clock

NOISE, PRIOR = 2.0, 1.5


def regression(x, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, PRIOR).expand([x.shape[1]]).to_event(1))
    numpyro.deterministic("first", b[0] ** 2)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ b, NOISE), obs=y)


def posterior(x, y, weights, noise=NOISE, prior=PRIOR):
    """Mean, precision, covariance and log evidence, where row i counts weights[i] times."""
    x, y, weights = (np.asarray(part, np.float64) for part in (x, y, weights))
    precision = (x.T * weights) @ x / noise**2 + np.eye(x.shape[1]) / prior**2
    covariance = np.linalg.inv(precision)
    mean = covariance @ (x.T @ (weights * y)) / noise**2
    # The integral of exp(−½ bᵀPb + bᵀPm + c) over b, prior and likelihood normalised.
    constant = -0.5 * np.sum(weights * (y**2 / noise**2 + np.log(2 * np.pi * noise**2)))
    log_evidence = (
        constant
        + 0.5 * mean @ precision @ mean
        - 0.5 * np.linalg.slogdet(precision)[1]
        - x.shape[1] * np.log(prior)
    )
    return SimpleNamespace(
        mean=mean, precision=precision, covariance=covariance, log_evidence=log_evidence
    )


def kl(one, two):
    """KL(one‖two) of two Gaussians, written with inverses."""
    precision = np.linalg.inv(two.covariance)
    shift = two.mean - one.mean
    logs = np.linalg.slogdet(two.covariance)[1] - np.linalg.slogdet(one.covariance)[1]
    trace = np.trace(precision @ one.covariance) - len(shift)
    return 0.5 * (trace + shift @ precision @ shift + logs)


def case(mismatch=0.05, n=2000, m=100, dimension=3, seed=0, draws=4000, chains=4):
    """All rows, a coreset of some of them, both posteriors, and draws of the coreset's.

    `mismatch` is how far the weights are from those that keep the sums of squares.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, dimension))
    y = x @ np.linspace(1, -1, dimension) + NOISE * rng.normal(size=n)
    rows = np.sort(rng.choice(n, m, replace=False))
    # Weights that match all the first and second moments, then a little wrong.
    pairs = np.triu_indices(dimension)
    features = np.hstack([x[:, pairs[0]] * x[:, pairs[1]], x * y[:, None]])
    goal = features.sum(0) - (n / m) * features[rows].sum(0)
    weights = n / m + np.linalg.lstsq(features[rows].T, goal, rcond=None)[0]
    weights = np.maximum(weights, 0.1) * (1 + mismatch * rng.normal(size=m))
    weights = np.maximum(weights, 0.01).astype(np.float32)
    full = posterior(x, y, np.ones(n))
    small = posterior(x[rows], y[rows], weights)
    normal = rng.normal(size=(chains, draws // chains, dimension))
    b = small.mean + normal @ np.linalg.cholesky(small.covariance).T
    return SimpleNamespace(
        x=x,
        y=y,
        rows=rows,
        weights=weights,
        full=full,
        small=small,
        samples={"b": b.astype(np.float32)},
        likelihood=jc.model_likelihood(regression, (x, y)),
    )


def coreset_of(found, model=regression, **options):
    """The case as a `Coreset`."""
    m, n = len(found.rows), len(found.x)
    report = jc.Report.without_error("by hand", m, n, m, Clock())
    return jc.Coreset(
        model,
        found.rows,
        found.weights,
        found.likelihood.arguments.with_data((found.x[found.rows], found.y[found.rows])),
        report,
        data_dims=found.likelihood.data_dims,
        **{"likelihood": found.likelihood, **options},
    )


def whole(model, *args, **kwargs):
    """All rows of a model as a `Coreset`, which knows its likelihood, and whose weights are one."""
    likelihood = jc.model_likelihood(model, args, kwargs)
    coreset = whole_coreset(model, likelihood, likelihood.num_data, Clock())
    coreset.likelihood = likelihood
    return coreset
