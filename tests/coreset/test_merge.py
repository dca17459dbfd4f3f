"""Which coresets may be merged."""

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
    x = rng.normal(size=600)
    y = x + rng.normal(size=600)

    def build(model, at):
        builder = jc.CoresetBuilder(model, size=5, proxy=None, progress_bar=False)
        return builder.run(jax.random.key(0), x[at::2], y[at::2])

    first = build(model_of(1.0), 0)
    assert jc.merge([first, build(model_of(1.0), 1)], 5, 0).report.num_data == 600
    for other in (model_of(2.0), model_of(1.0, width=3.0)):
        with pytest.raises(ValueError, match="coresets are of different models"):
            jc.merge([first, build(other, 1)], 5, 0)
