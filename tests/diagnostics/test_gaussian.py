"""Divergences between posteriors, against numerical integration."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

import jaxcoreset as jc
from jaxcoreset.diagnostics.gaussian import (
    divergence,
    fisher_distance,
    gaussian_fisher_distance,
    gaussian_kl,
    laplace_divergence,
    map_distance,
    moments,
    relative_error,
    relative_errors,
)
from jaxcoreset.weighting.laplace import LaplaceApproximation
from tests.gaussian_coreset import case


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


def test_divergence_of_draws_is_that_of_their_moments():
    rng = np.random.default_rng(0)
    one = rng.normal(size=(500, 3)) @ rng.normal(size=(3, 3))
    two = one[:400] * 1.3 + 0.2
    found = divergence(one, two)
    pairs = [(x.mean(0), np.cov(x.T)) for x in (one, two)]
    assert found.forward == pytest.approx(gaussian_kl(*pairs[0], *pairs[1]), rel=1e-10)
    assert found.reverse == pytest.approx(gaussian_kl(*pairs[1], *pairs[0]), rel=1e-10)
    assert divergence(*pairs) == pytest.approx(found)
    # The same draws as NumPyro has them, sites in alphabetical order.
    as_sites = [{"b": x[:, 1:], "a": x[:, 0], "extra": np.ones((len(x), 2))} for x in (one, two)]
    assert divergence(*as_sites, sites=["b", "a"]) == pytest.approx(found)


def test_map_distance_is_euclidean_in_every_form():
    rng = np.random.default_rng(0)
    one, two = rng.normal(size=3), rng.normal(size=3)
    expected = np.sqrt(np.sum((one - two) ** 2))
    assert map_distance(one, two) == pytest.approx(expected)
    assert map_distance((one, np.eye(3)), (two, 2 * np.eye(3))) == pytest.approx(expected)
    approximations = [
        LaplaceApproximation(mode, np.eye(3), ["a", "b", "c"], lambda x: {"x": x})
        for mode in (one, two)
    ]
    assert map_distance(*approximations) == pytest.approx(expected)
    draws = rng.normal(size=(10, 3))
    assert map_distance(draws, draws + two) == pytest.approx(np.linalg.norm(two))


def test_relative_errors_are_those_by_hand():
    full = (np.array([3.0, 4.0]), np.diag([1.0, 4.0]))
    other = (np.array([3.0, 4.5]), np.array([[1.5, 0.0], [0.0, 4.0]]))
    found = relative_errors(full, other)
    assert found.mean == pytest.approx(0.1)
    assert found.covariance == pytest.approx(0.5 / np.sqrt(17))
    assert found.variance == pytest.approx(0.5)
    assert found.standardised_mean == pytest.approx(0.25)


def test_relative_error_is_that_of_the_papers():
    rng = np.random.default_rng(0)
    atoms = rng.normal(size=(30, 10)).astype(np.float32)
    problem = jc.CoresetProblem(atoms)
    indices, weights = np.array([4, 7, 20]), np.array([2.0, 0.0, 5.0])
    residual = atoms.sum(0) - 2 * atoms[4] - 5 * atoms[20]
    expected = np.linalg.norm(residual) / np.linalg.norm(atoms.sum(0))
    assert relative_error(problem, indices, weights) == pytest.approx(expected, rel=1e-5)
    solution = jc.solve(problem, k=5)
    found = relative_error(problem, solution.indices, solution.weights)
    assert found == pytest.approx(float(solution.relative_error), rel=1e-4)


def test_gaussian_fisher_distance_is_the_integral_in_one_dimension():
    p = scipy.stats.norm(0.3, 0.7)

    def weighted(x):
        slope = -(x - 0.3) / 0.49 + (x + 0.2) / 1.69
        return p.pdf(x) * slope**2

    integral, _ = scipy.integrate.quad(weighted, -10, 10)
    found = gaussian_fisher_distance(
        np.array([0.3]), np.array([[0.49]]), np.array([-0.2]), np.array([[1.69]])
    )
    assert found == pytest.approx(np.sqrt(integral), rel=1e-6)


def test_fisher_distance_is_that_between_the_posteriors():
    pair = case(mismatch=0.1)
    rng = np.random.default_rng(0)
    draws = rng.multivariate_normal(pair.full.mean, pair.full.covariance, 4000)
    likelihood = pair.likelihood
    arguments = (likelihood.log_likelihood, {"b": draws}, likelihood.data)
    found = fisher_distance(*arguments, pair.rows, pair.weights)
    exact = gaussian_fisher_distance(
        pair.full.mean, pair.full.covariance, pair.small.mean, pair.small.covariance
    )
    precisions = [np.linalg.inv(one.covariance) for one in (pair.full, pair.small)]
    pulls = [p @ one.mean for p, one in zip(precisions, (pair.full, pair.small), strict=True)]
    slopes = (pulls[0] - pulls[1]) - draws @ (precisions[0] - precisions[1])
    assert found == pytest.approx(np.sqrt(np.mean(np.sum(slopes**2, axis=1))), rel=1e-3)
    assert found == pytest.approx(exact, rel=0.05)
    in_chunks = fisher_distance(*arguments, pair.rows, pair.weights, batch_size=37)
    assert in_chunks == pytest.approx(found, rel=1e-4)
    every = fisher_distance(*arguments, np.arange(2000), np.ones(2000))
    assert every < 1e-4 * found


def test_posteriors_that_do_not_fit_are_refused():
    rng = np.random.default_rng(0)
    three, two = rng.normal(size=(50, 3)), rng.normal(size=(50, 2))
    with pytest.raises(ValueError, match="3 and 2 parameters"):
        divergence(three, two)
    by_chain = {"a": rng.normal(size=(4, 100)), "b": rng.normal(size=(4, 100, 2))}
    for measure in (divergence, map_distance, relative_errors):
        with pytest.raises(ValueError, match=r"4 draws of 300 parameters.*group_by_chain=False"):
            measure(by_chain, by_chain)
    with pytest.raises(ValueError, match="mu is in one"):
        divergence({"a": two}, {"a": two, "mu": two})
    with pytest.raises(ValueError, match="no b"):
        moments({"a": two}, sites=["b"])
    with pytest.raises(ValueError, match="expected a LaplaceApproximation"):
        moments("posterior")
    with pytest.raises(ValueError, match=r"\(D, D\)"):
        moments((np.zeros(3), np.eye(2)))
    with pytest.raises(ValueError, match=r"expected \(m,\)"):
        fisher_distance(lambda draw, rows: rows, two, two, np.array([1, 2]), np.ones(1))
