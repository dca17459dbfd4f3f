"""Other methods find a posterior that is known: a normal one."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from benchmarks.posteriors.case import Case
from benchmarks.posteriors.methods import (
    METHODS,
    TITLES,
    Missing,
    common,
    energy_conserving,
    variational,
)
from benchmarks.posteriors.methods.regressions import Regression
from benchmarks.posteriors.methods.stan import _program

NUM_DRAWS = 400


def regression(X, y=None):
    # Not in the order of their names.
    beta = jnp.stack([numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in ("z", "a")])
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ beta, 1.0), obs=y)


def _data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 2)).astype(np.float32)
    return (X, (X @ [1.0, -0.5] + rng.normal(size=len(X))).astype(np.float32)), {}


CASE = Case("conjugate", "conjugate", regression, _data, ("z", "a"))


@pytest.fixture
def short(monkeypatch):
    """Fewer steps and rows than the settings of the examples have."""
    monkeypatch.setattr(variational, "_STEPS", 6000)
    monkeypatch.setattr(energy_conserving, "_ROWS", 500)
    monkeypatch.setattr(energy_conserving, "_SVI_STEPS", 2000)
    monkeypatch.setattr(common, "NUM_WARMUP", 300)


# The bounds of the error of a mean and of a standard deviation, relative to the true one.
BOUNDS = {
    "laplace": (0.2, 0.2),
    "laplace_psis": (0.2, 0.2),
    "pathfinder_psis": (0.2, 0.2),
    "nuts": (0.2, 0.2),
    "nuts_program": (0.2, 0.2),
    "mean_field": (0.3, 0.35),
    "full_rank": (0.3, 0.35),
    "hmcecs": (0.3, 0.3),
    "hmcecs_tuned": (0.3, 0.3),
    "dais_uniform": (0.4, 0.4),
    "dais_coreset": (0.4, 0.4),
    # Their means are off by the rows that they drew.
    "uniform": (4.0, 0.3),
    "importance": (4.0, 0.3),
}
QUICK = ("laplace", "laplace_psis")
SLOW = (pytest.mark.slow, pytest.mark.unoptimised)


def _marked(name):
    return pytest.param(name, marks=[] if name in QUICK else SLOW)


@pytest.mark.parametrize("name", [_marked(name) for name in BOUNDS])
@pytest.mark.usefixtures("short")
def test_a_normal_posterior_is_found(name):
    (X, y), _ = args, kwargs = CASE.make()
    precision = X.T @ X + np.eye(2)
    mean, root = np.linalg.solve(precision, X.T @ y), np.linalg.cholesky(precision)
    of_mean, of_sd = BOUNDS[name]
    found = METHODS[name](CASE, args, kwargs, jax.random.key(0), NUM_DRAWS)
    standard = (CASE.flat(found.draws) - mean) @ root
    assert standard.shape == (NUM_DRAWS, 2)
    assert np.abs(standard.mean(axis=0)).max() < of_mean
    np.testing.assert_allclose(standard.std(axis=0), 1, atol=of_sd)
    if found.log_density is not None and of_mean < 1:
        at = np.random.default_rng(1).normal(size=(20, 2))
        beta = jnp.asarray(mean + np.linalg.solve(root.T, at.T).T)
        theirs = jax.vmap(lambda one: found.log_density({"z": one[0], "a": one[1]}))(beta)
        difference = np.asarray(theirs) + 0.5 * np.sum(at**2, axis=1)
        assert np.std(difference) < 2 * of_mean


def test_methods_have_titles_and_say_what_they_miss():
    assert TITLES.keys() == METHODS.keys()
    for name in ("stan_glm", "brms", "uniform_same"):
        with pytest.raises(Missing, match=r"not a gen|no result"):
            METHODS[name](CASE, *CASE.make(), jax.random.key(0), NUM_DRAWS)


def test_a_program_of_stan_has_the_models_parts():
    X, y = np.zeros((4, 2)), np.zeros(4, int)
    program = _program(Regression("poisson", X, y, {"beta": 2}, np.ones(2), 0.0, y, 1))
    for part in ("poisson_log_glm(X, off + tau * z[group], beta)", "tau ~ normal(0, 1);"):
        assert part in program
