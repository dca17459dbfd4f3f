"""A program that the compiler got wrong is noticed before anything is made of its numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.special
import scipy.stats as st

import jaxcoreset as jc
from jaxcoreset.likelihood import precision as float64
from jaxcoreset.likelihood.checks import refuse_other_program
from jaxcoreset.likelihood.verification import check_program
from tests.models import normal_model

WORDS = "The compiler has made a wrong program"


def proportions(x, y=None):
    """Beta regression: in NumPyro a sum over two coordinates, which jaxlib 0.10.2 gets wrong."""
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    precision = numpyro.sample("precision", dist.Gamma(8, 1))
    mean = jax.nn.sigmoid(slope * x)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Beta(mean * precision, (1 - mean) * precision), obs=y)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=3000)
    mean = scipy.special.expit(0.5 * x)
    y = np.clip(rng.beta(8 * mean, 8 * (1 - mean)), 0.01, 0.99)
    return x.astype(np.float32), y.astype(np.float32)


@pytest.mark.slow  # as compiled at its best, which jaxlib 0.10.2 gets wrong
def test_atoms_of_beta_regression_are_scipys(data):
    x, y = (column[:, None].astype(np.float64) for column in data)
    likelihood = jc.model_likelihood(proportions, data)
    slope, log_precision = np.random.default_rng(1).normal([[0.5], [2.0]], 0.05, size=(2, 200))
    draws = {"slope": slope, "precision": log_precision}
    draws = {name: np.float32(values) for name, values in draws.items()}
    atoms = jc.embed(likelihood.program.log_likelihood, draws, data).atoms
    mean, precision = scipy.special.expit(draws["slope"] * x), np.exp(draws["precision"])
    values = st.beta.logpdf(y, mean * precision, (1 - mean) * precision)
    expected = (values - values.mean(axis=1, keepdims=True)) / np.sqrt(200)
    np.testing.assert_allclose(atoms, expected, atol=1e-5)


def test_wrong_values_at_some_of_the_draws_are_refused(data, monkeypatch):
    builder = jc.CoresetBuilder(
        normal_model, size=5, num_draws=200, rounds=1, progress_bar=False, proxy=None
    )
    right = float64.log_likelihood_matrix

    def wrong(*args, **kwargs):
        values = right(*args, **kwargs)
        return values + jnp.where(jnp.arange(values.shape[1]) % 64 < 16, 0.05, 0)

    monkeypatch.setattr(float64, "log_likelihood_matrix", wrong)
    with pytest.raises(RuntimeError, match=WORDS):
        builder.run(jax.random.key(0), *data)


def test_rows_that_see_one_another_are_not_laid_to_the_compiler(data):
    """Not even where it takes float64 to tell: other programs, other groups of rows."""

    def centred(x, y=None):
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(slope * x + 1e-4 * jnp.mean(x), 1), obs=y)

    likelihood = jc.model_likelihood(centred, data)
    draws = {"slope": jnp.linspace(-1, 1, 30)}
    values = jnp.stack(
        [likelihood.log_likelihood({"slope": slope}, data) for slope in draws["slope"]], axis=1
    )
    check_program(likelihood, draws, data, values)
    with pytest.raises(ValueError, match="changes when other rows are dropped"):
        check_program(likelihood, draws, data, values + 0.1 * (jnp.arange(30) == 3))


def test_way_out_is_told_where_there_is_one():
    again = np.random.default_rng(0).normal(size=(20, 10)).astype(np.float32)
    wrong = again + (np.arange(10) == 3)
    with pytest.raises(RuntimeError, match=r"two or three entries.*float64.*JAX_ENABLE_X64=1"):
        refuse_other_program(wrong, again)
    with pytest.raises(RuntimeError, match=r"Install another jaxlib"):
        refuse_other_program(wrong.astype(float), again.astype(float))


def test_rounding_is_allowed_and_nothing_else():
    again = np.random.default_rng(0).normal(size=(20, 10)).astype(np.float32) - 100
    shifted = again.astype(np.float64) + np.arange(20)[:, None]
    refuse_other_program(shifted * (1 + 1e-6), again)
    for value in (shifted[3, 4] + 0.1, np.nan):
        shifted[3, 4] = value
        with pytest.raises(RuntimeError, match=WORDS):
            refuse_other_program(shifted, again)


def test_rounding_by_draws_that_are_far_out_is_allowed():
    """As under the prior of a scale: some draws are at −10¹⁰ nats, and so is the mean."""
    raw = np.random.default_rng(0).normal(size=(20, 100)).astype(np.float32) - 30
    far = raw.copy()
    far[:, ::10] *= 1e10
    values = (far - far.mean(axis=1, keepdims=True))[:, 5::10]
    assert np.ptp(values.astype(float) - raw[:, 5::10], axis=1).max() > 1
    refuse_other_program(values, raw[:, 5::10])
