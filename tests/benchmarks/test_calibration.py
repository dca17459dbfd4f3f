"""The benchmark of the calibration: its bands, and that its sampler's density is the coreset's."""

import json

import jax
import numpy as np
import pytest
from numpyro.infer import MCMC, NUTS
from scipy.stats import binomtest, kstest

import jaxcoreset as jc
from benchmarks.calibration import __main__ as program
from benchmarks.calibration import bands, models, tables
from benchmarks.calibration.sampler import Sampler


def test_uniform_ranks_are_inside_the_bands_as_often_as_stated():
    uniform = np.random.default_rng(1).integers(0, 100, (400, 150))
    low, high = bands.limits(150, 100, 0.95)
    below = np.stack([(one[:, None] < np.arange(1, 100)).sum(0) for one in uniform])
    inside = int(((below >= low) & (below <= high)).all(axis=1).sum())
    # Counts are whole, so that the bands may hold a little more.
    assert binomtest(inside, 400, 0.955).pvalue > 0.001
    p = np.array([bands.p_value(one, 100) for one in uniform])
    assert np.mean(p < 0.05) < 0.08
    assert kstest(p, "uniform").statistic < 0.1
    # A set is outside where its p-value is below 5 %.
    outside = ~((below >= low) & (below <= high)).all(axis=1)
    assert np.mean(outside == (p < 0.05)) > 0.98


@pytest.mark.parametrize(
    "wrong",
    [
        lambda u: np.minimum(u, 0.7),
        lambda u: u**1.5,
        lambda u: 0.5 + 0.8 * (u - 0.5),
        lambda u: np.where(u < 0.5, u**2 * 2, 1 - 2 * (1 - u) ** 2),
    ],
    ids=["never high", "biased", "too wide", "too narrow"],
)
def test_ranks_that_are_not_uniform_leave_the_bands(wrong):
    u = np.random.default_rng(0).random(300)
    assert bands.p_value((100 * wrong(u)).astype(int), 100) < 0.01


def test_a_large_shift_is_found_and_none_hardly_ever():
    assert bands.detection_rate(1.0, 100, 100, num_quantities=6, num_sets=50) == 1
    assert bands.detection_rate(0.0, 100, 100, num_sets=200) < 0.11  # 0.05 and four standard errors


def test_coverage_interval_is_the_exact_one():
    for inside in (0, 80, 90, 100):
        expected = binomtest(inside, 100).proportion_ci(0.95, "exact")
        found = bands.coverage_interval(inside, 100)
        np.testing.assert_allclose(found, [expected.low, expected.high], atol=1e-9)


def test_verdict_names_the_quantity_that_is_off():
    rng = np.random.default_rng(0)
    ranks = {"right": rng.integers(0, 100, 300), "narrow": rng.integers(20, 80, 300)}
    found = tables.verdict(
        {name: np.bincount(x, minlength=100).tolist() for name, x in ranks.items()}
    )
    assert found is not None
    assert found["worst"] == "narrow"
    assert found["least covered"] == "right"
    assert found["p"] < 0.001


@pytest.mark.slow
@pytest.mark.unoptimised
def test_sampler_draws_from_the_posterior_of_the_coresets_model():
    args, _ = models.MODELS["logistic"].simulate(np.random.default_rng(1000))
    builder = jc.CoresetBuilder(models.rare_events, 6, progress_bar=False, rounds=1)
    coreset = builder.run(jax.random.key(0), *args)
    assert coreset.likelihood is not None
    found = Sampler(coreset.likelihood.program, 300, 2000, 1)(jax.random.key(1), coreset)
    mcmc = MCMC(NUTS(coreset.model), num_warmup=300, num_samples=2000, progress_bar=False)
    mcmc.run(jax.random.key(2), *coreset.args, **coreset.kwargs)
    for name, values in mcmc.get_samples().items():
        if name in found:
            expected = np.asarray(values)
            sd = expected.std(0).max()
            np.testing.assert_allclose(found[name].mean(0), expected.mean(0), atol=0.15 * sd)
            np.testing.assert_allclose(found[name].std(0), expected.std(0), rtol=0.15)


@pytest.mark.slow
@pytest.mark.unoptimised
def test_quick_run_goes_on_where_it_ended_and_makes_a_table(tmp_path):
    out, ranks = tmp_path / "calibration.json", tmp_path / "ranks"
    told = ["run", "logistic", "--settings", "small", "--ranks", str(ranks)]
    program.main([*told, "--num", "1"])
    program.main([*told, "--quick"])
    figure = tmp_path / "calibration.png"
    program.main(
        ["tables", "--quick", "--ranks", str(ranks), "--out", str(out), "--figure", str(figure)]
    )
    (cell,) = (result := json.loads(out.read_text()))["cells"]
    assert cell["data sets"] == 2
    assert sum(cell["plain"]["intercept"]) == 2
    assert "| logistic, rare events | 3 rows only | 2 |" in tables.TABLES["calibration"][1](result)
    assert figure.is_file()
