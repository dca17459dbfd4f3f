"""Which coresets may be merged, and the error of the reduction."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import jaxcoreset as jc


def test_merge_refuses_another_model_and_takes_the_same_one_written_again():
    def model_of(scale, width=1.0):
        def model(x, y=None):
            b = numpyro.sample("b", dist.Normal(0.0, width))
            with numpyro.plate("rows", x.shape[0]):
                numpyro.sample("y", dist.Normal(b * x, scale), obs=y)

        return model

    rng = np.random.default_rng(0)
    x = rng.normal(size=40)
    y = x + rng.normal(size=40)

    def build(model, at):  # all rows, which needs no solver
        builder = jc.CoresetBuilder(model, size=20, proxy=None, progress_bar=False)
        return builder.run(jax.random.key(0), x[at::2], y[at::2])

    first = build(model_of(1.0), 0)
    assert jc.merge([first, build(model_of(1.0), 1)], 5, 0).report.num_data == 40
    for other in (model_of(2.0), model_of(1.0, width=3.0)):
        with pytest.raises(ValueError, match="coresets are of different models"):
            jc.merge([first, build(other, 1)], 5, 0)


def _rare_events(x, y=None):
    a = numpyro.sample("a", dist.Normal(0.0, 10.0))
    b = numpyro.sample("b", dist.Normal(0.0, 10.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=a + b * x), obs=y)


def _divergence_on_a_grid(x, y, rows, weights):
    """The symmetrised KL divergence of weighted rows and all rows, by a sum over a fine grid."""
    a, b = np.meshgrid(np.linspace(-60, 6, 500), np.linspace(-10, 50, 500), indexing="ij")

    def total(weights, x, y):
        terms = [
            weight * (at_y * (a + b * at_x) - np.logaddexp(0, a + b * at_x))
            for weight, at_x, at_y in zip(weights, x, y, strict=True)
        ]
        return np.sum(terms, axis=0)

    full, some = total(np.ones(len(x)), x, y), total(weights, x[rows], y[rows])
    prior = -(a**2 + b**2) / 200
    p, q = (np.exp(one + prior - np.max(one + prior)) for one in (full, some))
    difference = full - some
    return np.sum(p * difference) / p.sum() - np.sum(q * difference) / q.sum()


@pytest.mark.parametrize("seed", [1, 3])
def test_the_error_of_a_reduction_is_that_under_a_posterior_far_from_gaussian(seed):
    """Two events in 200 rows: the Gaussian at the mode covers a part of the posterior only."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=200)
    y = np.zeros(200)
    y[np.argsort(-x)[[0, 3]]] = 1
    settings = {"size": 100, "proxy": None, "progress_bar": False}
    builder = jc.CoresetBuilder(_rare_events, **settings)
    blocks = [builder.run(jax.random.key(i), x[i::2], y[i::2]) for i in range(2)]
    assert [len(one) for one in blocks] == [100, 100]  # all rows, without an error
    with pytest.warns(UserWarning, match="not checked: the draws that measure the error"):
        merged = jc.merge(blocks, 5, jax.random.key(9), num_held_out=4000)
    x, y = (np.concatenate([one[0::2], one[1::2]]) for one in (x, y))
    truth = _divergence_on_a_grid(x, y, merged.indices, np.asarray(merged.weights))
    (step,) = merged.report.history
    assert step["relative_ess"] == pytest.approx(merged.report.gaussian_relative_ess)
    assert step["relative_ess"] < 0.3
    # At the Gaussian's draws as they are, the estimate is a seventh of the truth.
    assert truth / 4 < merged.report.kl < 2 * truth
    # 24 draws of the Gaussian are worth fewer than 20 of the posterior.
    with pytest.warns(UserWarning, match="24 draws of the Gaussian at the mode are worth"):
        merged = jc.merge(blocks, 5, jax.random.key(9), num_held_out=24)
    assert merged.report.kl == np.inf
    assert "too few to estimate the error" in str(merged.report)
