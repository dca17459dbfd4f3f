"""Models that float32 is too coarse for: the right answer comes by itself, or is told of."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import jaxcoreset as jc
from jaxcoreset.builders import preparing
from tests.builders.conftest import nuts
from tests.gaussian_coreset import kl, posterior


def build(model, *args):
    settings = {"size": 12, "num_draws": 200, "num_held_out": 200, "progress_bar": False}
    return jc.CoresetBuilder(model, **settings, proxy=None).run(jax.random.key(0), *args)


def regression(x, y=None):
    slopes = numpyro.sample("slopes", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ slopes, 1.0), obs=y)


@pytest.mark.filterwarnings("ignore:the coreset's log-density")
def test_a_build_whose_sums_float32_cannot_hold_runs_in_float64():
    # Responses of a Cauchy: a row's log-likelihood is up to 5e7, and rounded to 4 nats.
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 3)).astype(np.float32)
    noise = np.clip(rng.standard_cauchy(4000), -1e4, 1e4)
    y = (x @ [1, -0.5, 0.3] + noise).astype(np.float32)
    coreset = build(regression, x, y)
    full = posterior(x, y, np.ones(4000), noise=1.0, prior=2.0)
    small = posterior(*coreset.args, coreset.weights, noise=1.0, prior=2.0)
    assert kl(full, small) + kl(small, full) < 1e-8
    assert coreset.report.kl < 1e-8
    assert coreset.report.precision == "float64"
    assert not jax.config.jax_enable_x64


def test_a_build_that_needs_float64_does_not_look_beyond_the_mode_in_float32(monkeypatch):
    """Far from the mode it evaluates all rows, by programs that float64 compiles again."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 2)).astype(np.float32)
    y = (x @ [1, -0.5] + np.clip(rng.standard_cauchy(4000), -1e4, 1e4)).astype(np.float32)
    reach, precisions = preparing.reaching_out, []

    def recorded(*given):
        precisions.append(jax.config.jax_enable_x64)
        return reach(*given)

    monkeypatch.setattr(preparing, "reaching_out", recorded)
    builder = jc.CoresetBuilder(
        regression, size=4, num_draws=50, num_held_out=50, proxy=jc.Taylor()
    )
    assert builder.run(jax.random.key(0), x, y).report.precision == "float64"
    assert precisions == [True]


def groups(g, count, y=None):
    with numpyro.plate("groups", 4):
        logits = numpyro.sample("logits", dist.Normal(0, 1))
    with numpyro.plate("rows", g.shape[0]):
        numpyro.sample("y", dist.Binomial(count, logits=logits[g]), obs=y)


def counts(dtype):
    rng = np.random.default_rng(0)
    g, count = rng.integers(4, size=600), rng.integers(1, 400, size=600)
    return g, count.astype(dtype), rng.binomial(count, 0.3).astype(dtype)


def test_counts_of_any_type_give_one_coreset_under_x64():
    """``gammaln`` of an int32 is float32 even then: rows seemed to depend on one another."""
    with jax.enable_x64(True):
        indices = [build(groups, *counts(dtype)).indices for dtype in ("i4", "i8", "f8")]
    np.testing.assert_array_equal(indices[0], indices[1])
    np.testing.assert_array_equal(indices[2], indices[1])


@pytest.mark.slow
@pytest.mark.unoptimised
def test_a_coreset_of_int64_groups_can_be_sampled_without_x64_and_then_with():
    coreset = build(groups, *counts(np.int64))
    nuts(coreset, num_warmup=20, num_samples=20)
    with jax.enable_x64(True):
        mcmc = nuts(coreset, num_warmup=20, num_samples=20)
    assert mcmc.get_samples()["logits"].dtype == jnp.float64
