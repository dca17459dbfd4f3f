"""The suite of posteriors: its density, integrals and measures against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density
from scipy.stats import multivariate_normal, norm

from benchmarks.posteriors import results, run, tables
from benchmarks.posteriors.case import Case
from benchmarks.posteriors.cases import CASES
from benchmarks.posteriors.cases_groups import marginal
from benchmarks.posteriors.density import Posterior, Truth, in_float64
from benchmarks.posteriors.measure import compare, divergence
from benchmarks.posteriors.outcome import Outcome

N = 50


def location(y):
    """The mean of normal rows, on a scale on which it is positive; its posterior is log-normal."""
    mu = numpyro.sample("mu", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(jnp.log(mu), 1.0), obs=y)


def observations():
    return (np.random.default_rng(0).normal(0.3, 1.0, N).astype(np.float32),), {}


CASE = Case("location", "location", location, observations, ("mu",))


def exact():
    """Mean and standard deviation of log μ."""
    (y,), _ = observations()
    return y.astype(float).sum() / (N + 1), 1 / np.sqrt(N + 1)


def of_gaussians(shift, ratio):
    """The symmetrised KL divergence of N(0, 1) and N(shift, ratio²)."""
    return 0.5 * (ratio**2 + ratio**-2 - 2 + shift**2 * (1 + ratio**-2))


def test_density_is_the_closed_form_up_to_a_constant():
    mean, sd = exact()
    at = np.array([[-0.4], [0.1], [0.8]])
    with jax.enable_x64(True):
        found = Posterior(CASE).log_densities(at)
    expected = norm.logpdf(at[:, 0], mean, sd)
    np.testing.assert_allclose(found - found[0], expected - expected[0], rtol=1e-9)


@pytest.mark.parametrize("name", [case.name for case in CASES.values() if case.truth])
def test_a_faster_spelling_has_the_density_of_the_cases_model(name):
    case = CASES[name]
    with jax.enable_x64(True):
        posterior = Posterior(case)
        args, kwargs = in_float64(case.make())
        flat = 0.2 * np.random.default_rng(0).normal(size=(3, posterior.dims))
        found = posterior.log_densities(flat)
        expected = []
        for one in flat:
            free = posterior.split(one)
            own = posterior.constrain(free)
            jacobians = [
                jnp.sum(transform.log_abs_det_jacobian(free[site], own[site]))
                for site, transform in posterior.transforms.items()
            ]
            expected.append(float(log_density(case.model, args, kwargs, own)[0] + sum(jacobians)))
    np.testing.assert_allclose(np.diff(found), np.diff(expected), rtol=1e-9)


@pytest.mark.parametrize(("shift", "ratio"), [(0.5, 1.0), (-0.2, 0.8)])
def test_measures_are_those_of_two_gaussians(shift, ratio):
    (mean, sd), rng = exact(), np.random.default_rng(1)
    p, q = mean + sd * rng.normal(size=(2000, 1)), rng.normal(size=(4000, 1))
    q = mean + sd * (shift + ratio * q)
    many = np.exp(mean + sd * rng.normal(size=10**6))
    with jax.enable_x64(True):
        posterior = Posterior(CASE)
        quantiles = np.quantile(many, [0.05, 0.5, 0.95])[:, None]
        log_density = posterior.log_densities(p)
        truth = Truth(p, log_density, many.mean()[None], many.std()[None], quantiles, {})
        found = compare(
            Outcome(
                {"mu": np.exp(q[:, 0])},
                lambda u: -0.5 * ((u["mu"] - mean - sd * shift) / (sd * ratio)) ** 2,
                log_weights=norm.logpdf(q, mean, sd)[:, 0]
                - norm.logpdf(q, mean + sd * shift, sd * ratio)[:, 0],
            ),
            posterior,
            truth,
        )
    expected = of_gaussians(shift, ratio)
    assert found["KL"] == pytest.approx(expected, abs=5 * found["error"])
    assert found["error"] < 0.03
    assert found["KL of moments"] == pytest.approx(expected, rel=0.15)
    assert found["mean error corrected, sd"] < 0.06
    inside = norm.cdf((1.645 - shift) / ratio) - norm.cdf((-1.645 - shift) / ratio)
    assert found["draws within the true 90 % intervals"][0] == pytest.approx(inside, abs=0.02)
    low, high = shift - 1.645 * ratio, shift + 1.645 * ratio
    covered = norm.cdf(high) - norm.cdf(low)
    assert found["truth within their 90 % intervals"][0] == pytest.approx(covered, abs=0.03)


def test_a_density_of_zero_gives_no_divergence():
    assert divergence(np.array([0.0, -np.inf]), np.zeros(2))["KL"] is None


def test_the_integral_over_effects_is_that_of_normal_observations():
    rng = np.random.default_rng(2)
    group, y, tau = rng.integers(0, 4, 30), rng.normal(size=30), 0.7
    with jax.enable_x64(True):
        found = marginal(lambda z: dist.Normal(tau * z[group], 1.0).log_prob(y), group, 4)
    covariance = np.eye(30) + tau**2 * (group[:, None] == group)
    assert float(found) == pytest.approx(multivariate_normal.logpdf(y, cov=covariance), rel=1e-9)


def test_medians_are_of_numbers_only():
    runs = [{"KL": x, "verdict": "fine", "sd ratios": [x, 1.0]} for x in (1.0, 3.0, 2.0)]
    assert run._median(runs) == {"KL": 2.0, "verdict": "fine", "sd ratios": [2.0, 1.0]}


def test_a_kept_cell_is_read_again_and_has_a_table(tmp_path):
    path = tmp_path / "posteriors.json"
    facts = {"rows": 50, "parameters": 1, "R-hat": 1.0, "effective": 100.0, "CPU s": 1.0}
    facts["Gaussian"] = {"KL": 0.3, "error": 0.01, "variance": 0.2}
    results.keep_truth("weibull", facts, path)
    results.keep("weibull", "ours", {"KL": 0.01, "error": 0.002, "CPU s": 2.0, "info": {}}, path)
    results.keep("weibull", "nuts", {"bound": 300.0}, path)
    assert results.cell("weibull", "nuts", path) == {"bound": 300.0}
    assert results.cell("weibull", "laplace", path) is None
    text = tables.TABLES["posteriors_kl"][1](results.read(path))
    assert "| censored Weibull | 0.01 | > 300 s |" in text
    assert "| censored Weibull | 50 | 1 | 0.3 |" in tables.TABLES["posteriors_truth"][1](
        results.read(path)
    )
