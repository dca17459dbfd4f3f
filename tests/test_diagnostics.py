"""Divergences between posteriors, against numerical integration."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from jaxcoreset.diagnostics import gaussian_kl, laplace_divergence
from jaxcoreset.laplace import LaplaceApproximation


def test_gaussian_kl_equals_the_integral_in_one_dimension():
    p, q = scipy.stats.norm(0.3, 0.7), scipy.stats.norm(-0.2, 1.3)
    integral, _ = scipy.integrate.quad(
        lambda x: p.pdf(x) * (p.logpdf(x) - q.logpdf(x)), -10, 10, epsabs=1e-10
    )
    found = gaussian_kl(np.array([0.3]), np.array([[0.49]]), np.array([-0.2]), np.array([[1.69]]))
    assert found == pytest.approx(integral, rel=1e-8)


def test_gaussian_kl_is_the_mean_log_ratio_in_many_dimensions():
    rng = np.random.default_rng(0)
    a, b = (x @ x.T + np.eye(4) for x in rng.normal(size=(2, 4, 4)))
    means = rng.normal(size=(2, 4))
    p, q = (scipy.stats.multivariate_normal(mean, c) for mean, c in zip(means, (a, b), strict=True))
    draws = p.rvs(200_000, random_state=1)
    ratios = p.logpdf(draws) - q.logpdf(draws)
    error = ratios.std() / np.sqrt(len(ratios))
    assert abs(gaussian_kl(means[0], a, means[1], b) - ratios.mean()) < 5 * error


def test_laplace_divergence_is_the_sum_of_both_directions_and_zero_at_itself():
    full = LaplaceApproximation(np.zeros(2), np.eye(2), ["a", "b"], lambda x: {"x": x})
    other = LaplaceApproximation(np.ones(2), 2 * np.eye(2), ["a", "b"], lambda x: {"x": x})
    found = laplace_divergence(full, other)
    # By hand: ½(tr + shift − D + log det ratio).
    assert found.forward == pytest.approx(0.5 * (1 + 1 - 2 + 2 * np.log(2)))
    assert found.reverse == pytest.approx(0.5 * (4 + 2 - 2 - 2 * np.log(2)))
    assert found.symmetrised == pytest.approx(found.forward + found.reverse)
    assert laplace_divergence(full, full).symmetrised == pytest.approx(0, abs=1e-12)
