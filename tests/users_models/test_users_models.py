"""Models as users write them: the reported divergence is the true one, and the means are right."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import potential_energy

import jaxcoreset as jc
from tests.users_models.models import POSTERIORS, REFUSALS
from tests.users_models.truth import Distance, distance, truths

# How each model's coreset is built, but for the settings of its case. Half the usual
# number of held-out draws saves time; more are drawn where they are needed.
SETTINGS = {"tol": 0.01, "num_held_out": 500, "progress_bar": False}
# The reported divergence is between these times the true one.
RATIOS = 0.5, 2.0
# Smaller divergences than this one are compared as if they were as large. A float32 sum over 2,000
# rows, of a few thousand nats, is off by some 1e-3 nats, and its variance by 1e-6.
FLOOR = 1e-5
# No posterior mean is off by more standard deviations.
MEAN_ERROR = 0.05


# Models that take long: NUTS runs on a part of the rows, many rows are kept, there are many
# parameters, or the density of each row is an integral or has derivatives that compile slowly.
SLOW = {
    "laplace",
    "negative_binomial",
    "partial_function",
    "not_centred",
    "with_a_reparam_handler",
    "correlated_slopes",
    "effect_of_a_row",
    "error_in_a_covariate",
}


def is_calibrated(coreset: jc.Coreset, found: Distance) -> bool:
    """True if the reported divergence is near the true one, and the means are right."""
    ratio = max(coreset.report.kl, FLOOR) / max(found.kl, FLOOR)
    return RATIOS[0] <= ratio <= RATIOS[1] and found.mean_error <= MEAN_ERROR


def _marked(name: str) -> Any:
    marks = [pytest.mark.slow, pytest.mark.unoptimised] if name in SLOW else []
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [_marked(name) for name in POSTERIORS])
@pytest.mark.filterwarnings("ignore:the density of the weighted rows has a mode")
@pytest.mark.filterwarnings("ignore:the coreset's log-density")
def test_reported_divergence_is_the_true_one_and_means_are_right(name):
    case, truth = POSTERIORS[name](), truths()[name]
    builder = jc.CoresetBuilder(case.model, **(SETTINGS | case.settings))
    coreset = builder.run(jax.random.key(0), *case.args, **case.kwargs)
    found = distance(case, coreset, truth)
    # The draws are worth enough, and are of the posterior that the file tells of.
    assert found.khat < 0.5
    assert found.ess > 500
    assert found.displacement < 5 / found.ess**0.5
    assert is_calibrated(coreset, found), (coreset.report.kl, found)


@pytest.mark.parametrize("name", REFUSALS)
def test_refusal_says_what_is_wrong(name):
    case = REFUSALS[name]
    builder = jc.CoresetBuilder(case.model, **(SETTINGS | case.settings))
    with pytest.raises(ValueError, match=case.refusal):
        builder.run(jax.random.key(0), *case.args, **case.kwargs)


@pytest.mark.parametrize("proxy", [None, jc.Taylor()])
def test_arrays_of_a_closure_are_no_hindrance_in_float64_nor_after_it(proxy):
    knots = np.linspace(-1, 1, 3)

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            mean = jnp.sum(w * jnp.maximum(x[:, None] + jnp.zeros(3) - knots, 0), axis=1)
            numpyro.sample("y", dist.StudentT(3.0, mean, 1.0), obs=y)

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 500)).astype(np.float32)
    builder = jc.CoresetBuilder(
        model, size=5, num_draws=50, rounds=1, num_held_out=50, progress_bar=False, proxy=proxy
    )
    coreset = builder.run(jax.random.key(0), x, y)
    with coreset.in_float64():
        params = coreset.init_params()
        energy = jax.jit(_energy_of(coreset))(params)
        assert energy.dtype == np.float64
    again = jax.jit(_energy_of(coreset))(coreset.init_params())
    assert again.dtype == np.float32
    np.testing.assert_allclose(again, energy, rtol=1e-5)


def _energy_of(coreset):
    return lambda z: potential_energy(coreset.model, coreset.args, coreset.kwargs, z)


def test_every_truth_is_of_a_model():
    assert set(truths()) == set(POSTERIORS) > SLOW
