"""Chains on a coreset start where the posterior is, whatever the coreset was built with."""

from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal

import jaxcoreset as jc

NUM_ROWS = 400


def model(x, y=None):
    slopes = numpyro.sample("slopes", dist.Normal(0, 2).expand([2]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ slopes), obs=y)


def of_planes(planes, num_planes, x, y=None):
    slopes = numpyro.sample("slopes", dist.Normal(0, 2).expand([2]).to_event(1))
    with numpyro.plate("planes", num_planes):
        effects = numpyro.sample("effects", dist.Normal(0, 0.5))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=effects[planes] + x @ slopes), obs=y)


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_ROWS, 2)).astype(np.float32)
    return x, (rng.random(NUM_ROWS) < 1 / (1 + np.exp(-x @ [1.0, -2.0]))).astype(np.int32)


def settings_of(weighting):
    if weighting == "Draws":
        rng = np.random.default_rng(1)
        return {"weighting": jc.Draws({"slopes": [1.0, -2.0] + 0.2 * rng.normal(size=(2000, 2))})}
    if weighting == "Guide":
        return {"weighting": jc.Guide(AutoNormal, num_steps=1000)}
    if weighting in ("groups", "all rows"):
        return {"groups": "planes"} if weighting == "groups" else {"size": NUM_ROWS}
    return {"weighting": getattr(jc, weighting)()}


@pytest.mark.parametrize(
    "weighting",
    [
        "Laplace",
        "Draws",
        "all rows",
        pytest.param("Guide", marks=pytest.mark.slow),
        pytest.param("SubsampleNUTS", marks=pytest.mark.slow),
        pytest.param("groups", marks=pytest.mark.slow),
        pytest.param(
            "Pathfinder",
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(find_spec("blackjax") is None, reason="needs blackjax"),
            ],
        ),
    ],
)
def test_chains_start_near_the_mode_after_every_weighting_and_after_load(weighting, tmp_path):
    x, y = data()
    given = settings_of(weighting)
    settings = {"size": 12, "progress_bar": False, "rounds": 1, "num_held_out": 200, **given}
    used, args = model, (x, y)
    if weighting == "groups":
        used, args = of_planes, (np.arange(NUM_ROWS) % 40, 40, x, y)
    coreset = jc.CoresetBuilder(used, **settings).run(jax.random.key(0), *args)
    again = jc.load(coreset.save(tmp_path / "coreset"), model=used)

    def log_posterior(slopes):
        # Without the effects of groups, which hardly move the slopes.
        logits = np.where(y == 1, 1, -1) * (x @ np.asarray(slopes))
        return -np.logaddexp(0, -logits).sum() - np.sum(np.asarray(slopes) ** 2) / 8

    grid = np.stack(np.meshgrid(np.linspace(0, 2, 41), np.linspace(-3.5, -0.5, 61)), -1)
    best = max(log_posterior(point) for point in grid.reshape(-1, 2))
    for one in (coreset, again):
        assert one.init_params()["slopes"].shape == (2,)
        starts = one.init_params(3)
        assert set(starts) == {"slopes"}
        assert jnp.isfinite(starts["slopes"]).all()
        for start in starts["slopes"]:
            assert log_posterior(start) > best - 15
