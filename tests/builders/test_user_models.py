"""Models that users bring: the coreset's posterior is that of all rows, which is known."""

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

import jaxcoreset as jc
from tests import gaussian_coreset
from tests.gaussian_coreset import kl

NUM_DATA = 600


def build(model: Callable, size: int, *args: Any, **settings: Any) -> jc.Coreset:
    builder = jc.CoresetBuilder(model, size, progress_bar=False, proxy=None, **settings)
    return builder.run(jax.random.key(0), *args)


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
