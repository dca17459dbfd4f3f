"""Models that users bring: the coreset's posterior is that of all rows, known or found by NUTS."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.infer import MCMC, NUTS

import jaxcoreset as jc
from jaxcoreset.command import regressions
from tests import gaussian_coreset
from tests.gaussian_coreset import kl

NUM_DATA = 600


def _covariates(seed: int, columns: int = 2) -> tuple[np.random.Generator, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.standard_normal((NUM_DATA, columns))
    return random, np.hstack([x, np.ones((NUM_DATA, 1))]).astype(np.float32)


def negative_binomial() -> tuple[Callable, tuple]:
    """Counts that scatter more than Poisson's, with an unknown concentration."""
    random, x = _covariates(3)
    rate = np.exp(x @ [0.4, -0.3, 1.0]) * random.gamma(3.0, 1 / 3.0, NUM_DATA)
    return regressions.negative_binomial, (x[:, :2], random.poisson(rate).astype(np.int32))


def categorical() -> tuple[Callable, tuple]:
    """Three classes; the first one's scores are zero."""
    random, x = _covariates(4)
    scores = x @ np.array([[1.0, -1.0], [0.5, 0.5], [0.0, 0.3]])
    logits = np.hstack([np.zeros((NUM_DATA, 1)), scores])
    y = np.argmax(logits + random.gumbel(size=logits.shape), axis=1)
    return regressions.categorical, (x[:, :2], y.astype(np.int32), 3)


def student_t() -> tuple[Callable, tuple]:
    """Robust regression: one row in ten is an outlier."""
    random, x = _covariates(5)
    noise = np.where(random.random(NUM_DATA) < 0.1, 10.0, 0.5) * random.standard_normal(NUM_DATA)
    return regressions.student_t, (x[:, :2], (x @ [1.0, -0.5, 0.3] + noise).astype(np.float32))


def build(model: Callable, size: int, *args: Any, **settings: Any) -> jc.Coreset:
    builder = jc.CoresetBuilder(model, size, progress_bar=False, proxy=None, **settings)
    return builder.run(jax.random.key(0), *args)


def _nuts(model: Callable, args: tuple, seed: int) -> np.ndarray:
    """Draws of all latent sites, shape (draws, D)."""
    mcmc = MCMC(NUTS(model), num_warmup=300, num_samples=1000, progress_bar=False)
    mcmc.run(jax.random.key(seed), *args)
    return np.asarray(jax.vmap(lambda draw: ravel_pytree(draw)[0])(mcmc.get_samples()))


@pytest.mark.slow
@pytest.mark.unoptimised
@pytest.mark.parametrize(
    "make", [negative_binomial, categorical, student_t], ids=lambda make: make.__name__
)
def test_nuts_on_the_coreset_agrees_with_nuts_on_all_rows(make: Callable) -> None:
    model, args = make()
    coreset = build(model, 100, *args)
    full = _nuts(model, args, seed=1)
    small = _nuts(coreset.model, coreset.args, seed=2)
    scale = full.std(axis=0)
    assert np.max(np.abs(small.mean(axis=0) - full.mean(axis=0)) / scale) < 0.3
    np.testing.assert_allclose(small.std(axis=0) / scale, 1, atol=0.2)


# Of `_head`: its noise and its prior have unit scales.
posterior = functools.partial(gaussian_coreset.posterior, noise=1.0, prior=1.0)


def _head(features: Any, y: Any = None) -> None:
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([features.shape[1]]).to_event(1))
    with numpyro.plate("rows", features.shape[0]):
        numpyro.sample("y", dist.Normal(features @ beta, 1.0), obs=y)


def _network() -> tuple[eqx.nn.MLP, np.ndarray, np.ndarray]:
    """A network up to its last layer, its inputs, and a response."""
    random = np.random.default_rng(8)
    network = eqx.nn.MLP(3, 8, 16, 2, final_activation=jnp.tanh, key=jax.random.key(0))
    inputs = random.standard_normal((NUM_DATA, 3)).astype(np.float32)
    y = np.sin(2 * inputs[:, 0]) + inputs[:, 1] + random.standard_normal(NUM_DATA)
    return network, inputs, y.astype(np.float32)


def test_last_layer_of_a_network_has_the_exact_posterior() -> None:
    """The network is part of the model; only the last layer's weights are random."""
    network, inputs, y = _network()

    def model(inputs, y=None):
        _head(jax.vmap(network)(inputs), y)

    coreset = build(model, 80, inputs, y)
    features, rows = np.asarray(jax.vmap(network)(inputs)), coreset.indices
    full = posterior(features, y, np.ones(NUM_DATA))
    divergence = kl(full, posterior(features[rows], y[rows], coreset.weights))
    assert divergence < 0.01
    assert divergence < 10 * coreset.report.kl + 1e-4


def test_atoms_of_a_network_come_from_its_last_layers_log_likelihood() -> None:
    """Without NumPyro: Φ from the draws of the last layer, which are known in closed form."""
    network, inputs, y = _network()
    features = np.asarray(jax.vmap(network)(inputs))
    full = posterior(features, y, np.ones(NUM_DATA))
    draws = np.random.default_rng(0).multivariate_normal(full.mean, full.covariance, 400)

    def log_likelihood(last_layer, data):
        inputs, y = data
        return -0.5 * (y - jax.vmap(network)(inputs) @ last_layer) ** 2

    problem = jc.embed(log_likelihood, jnp.asarray(draws, jnp.float32), (inputs, y))
    solution = jc.solve(problem, 60)
    assert kl(full, posterior(features, y, solution.dense(NUM_DATA))) < 0.01


def test_flax_features_may_stand_before_a_numpyro_head() -> None:
    nnx = pytest.importorskip("flax.nnx")
    _, inputs, y = _network()
    layer = nnx.Linear(3, 6, rngs=nnx.Rngs(0))
    graph, state = nnx.split(layer)

    def model(inputs, y=None):
        _head(jnp.tanh(nnx.merge(graph, state)(inputs)), y)

    coreset = build(model, 60, inputs, y, num_draws=300, num_held_out=200)
    assert coreset.report.kl < 0.01


@pytest.mark.slow
@pytest.mark.unoptimised
def test_an_enumerated_component_per_row_is_summed_out() -> None:
    random = np.random.default_rng(7)
    y = np.where(random.random(NUM_DATA) < 0.4, -1.5, 1.0) + 0.6 * random.standard_normal(NUM_DATA)
    y = y.astype(np.float32)

    def of_rows(y, summed):
        low = numpyro.sample("low", dist.Normal(-1.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            if summed:
                parts = [dist.Normal(low, 0.6), dist.Normal(low + 2.5, 0.6)]
                weights = dist.Categorical(probs=jnp.array([0.4, 0.6]))
                numpyro.sample("y", dist.MixtureGeneral(weights, parts), obs=y)
            else:
                part = numpyro.sample("part", dist.Bernoulli(0.4), infer={"enumerate": "parallel"})
                numpyro.sample("y", dist.Normal(jnp.where(part == 1, low, low + 2.5), 0.6), obs=y)

    found = build(functools.partial(of_rows, summed=False), 5, y).approximation
    # The components that are summed by hand have the same posterior.
    likelihood = jc.model_likelihood(functools.partial(of_rows, summed=True), (y,))
    expected = jc.laplace_approximation(likelihood)
    np.testing.assert_allclose(found.mode, expected.mode, atol=0.02 * found.sd[0])
    np.testing.assert_allclose(found.sd, expected.sd, rtol=0.02)
