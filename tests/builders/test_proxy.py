"""Coresets with a proxy of all rows: closed forms, the truth by importance sampling, and all that
a coreset does."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import SVI, Predictive, Trace_ELBO, autoguide
from numpyro.infer.util import log_density

import jaxcoreset as jc
from tests.builders.conftest import nuts
from tests.datasets import _laplace, _load
from tests.models import logistic_model as logistic
from tests.models import regression_model


def data(num, seed=0, width=3):
    random = np.random.default_rng(seed)
    X = np.c_[np.ones(num), random.normal(size=(num, width - 1))]
    y = (random.random(num) < 1 / (1 + np.exp(-X @ np.linspace(-0.5, 1.0, width)))).astype(int)
    return X, y


def build(model, *args, **settings):
    builder = jc.CoresetBuilder(model, progress_bar=False, **{"proxy": "auto"} | settings)
    return builder.run(jax.random.key(0), *args)


def densities(coreset, points):
    """The log-density of the coreset's model in float64."""

    def one(beta):
        return log_density(coreset.model, coreset.args, coreset.kwargs, {"beta": beta})[0]

    with jax.enable_x64(True):
        return np.asarray(jax.jit(jax.vmap(one))(jnp.asarray(points, float)))


def laplace(X, y):
    """The mode of a logistic regression and the covariance there."""
    mode, precision = _laplace(X, 2 * y - 1, counts=False)
    return mode, np.linalg.inv(precision)


def true_kl(coreset, X, y, num=5000, df=7):
    """The symmetrised KL divergence and the largest shift of a mean in sd, by importance sampling.

    The proposal is a Student-t at the mode with the Laplace covariance, in float64.
    """
    mode, covariance = laplace(X, y)
    random, width = np.random.default_rng(1), mode.size
    normal = random.normal(size=(num, width)) / np.sqrt(random.chisquare(df, (num, 1)) / df)
    points = mode + 1.1 * normal @ np.linalg.cholesky(covariance).T
    log_proposal = -0.5 * (df + width) * np.log1p(np.sum(normal**2, axis=1) / df)
    full = -np.logaddexp(0, (1 - 2 * y) * (points @ X.T)).sum(1) - 0.5 * np.sum(points**2, axis=1)
    own = densities(coreset, points)

    def normalised(values):
        weights = np.exp(values - log_proposal - np.max(values - log_proposal))
        return weights / weights.sum()

    p, q, difference = normalised(full), normalised(own), full - own
    assert 1 / np.sum(p**2) > 0.05 * num
    assert 1 / np.sum(q**2) > 0.05 * num
    mean = p @ points
    sd = np.sqrt(p @ (points - mean) ** 2)
    return (p - q) @ difference, np.abs((q @ points - mean) / sd).max()


def is_true(coreset, args):
    """True if the reported error is that of importance sampling."""
    kl, shift = true_kl(coreset, *args)
    report = coreset.report
    assert report.proxy == "Taylor"
    assert report.gaussian_kl > report.kl
    return 0.5 * kl - 2e-5 < report.kl < 2 * kl + 2e-5 and shift < 0.05


@pytest.fixture(scope="module")
def small():
    """Four rows beside a proxy, and the data."""
    args = data(500, seed=5)
    return build(logistic, *args, size=4), args


@pytest.fixture(scope="module")
def alone(small):
    """A proxy without rows."""
    return build(logistic, *small[1], tol=0.5, num_held_out=300)


@pytest.mark.parametrize("goal", [{"size": 20}, {"tol": 1e-4}])
def test_a_linear_gaussian_model_needs_no_rows(goal):
    X, _ = data(300)
    y = X @ [1.0, -2.0, 0.5] + np.random.default_rng(1).normal(size=300)
    coreset = build(regression_model, X, y, **goal)
    assert len(coreset) == 0
    assert coreset.report.proxy == "Taylor"
    assert coreset.report.kl < 1e-7
    assert coreset.report.gaussian_kl < 1e-7
    assert "no rows are needed" in coreset.report.gaussian_verdict
    # Exact: the posterior is known.
    precision = X.T @ X / 0.25 + np.eye(3) / 4
    mean = np.linalg.solve(precision, X.T @ y / 0.25)
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    points = mean + sd * np.random.default_rng(2).normal(size=(5, 3))
    exact = -0.5 * np.einsum("ij,jk,ik->i", points - mean, precision, points - mean)
    found = densities(coreset, points)
    np.testing.assert_allclose(found - found[0], exact - exact[0], atol=2e-3)
    if "tol" in goal:  # NUTS takes a model without rows
        mcmc = nuts(coreset, 1, num_warmup=300, num_samples=2000)
        draws = np.asarray(mcmc.get_samples()["beta"])
        np.testing.assert_allclose((draws.mean(0) - mean) / sd, 0, atol=0.1)
        np.testing.assert_allclose(draws.std(0) / sd, 1, atol=0.08)


def test_a_cubic_remainder_is_found_by_hand():
    """ℓ_i(θ) = −(θ − a_i)²/2 + c_i (θ − a_i)³/100: with T_i known, remainders are c_i (θ − θ*)³."""

    def model(a, c):
        theta = numpyro.sample("theta", dist.Normal(0.0, 5.0))
        with numpyro.plate("rows", a.shape[0]):
            left = theta - a
            numpyro.factor("terms", -0.5 * left**2 + 0.01 * c * left**3)

    random = np.random.default_rng(0)
    a, c = random.normal(size=40), random.uniform(0.5, 1.5, size=40)
    coreset = build(model, a, c, size=1)
    # Every remainder is a multiple of one function, so one row of the right weight is exact.
    assert len(coreset) == 1
    weight = c.sum() / c[coreset.indices[0]]
    np.testing.assert_allclose(coreset.weights, [weight], rtol=0.02)


def test_the_reported_error_is_the_true_one(small):
    coreset, args = small
    assert is_true(coreset, args)
    with jax.enable_x64(True):
        assert is_true(build(logistic, *args, size=4), args)


def test_the_nearest_quadratic_is_nearer_than_the_expansion_at_the_mode(small):
    auto, args = small
    taylor = build(logistic, *args, size=4, proxy=jc.Taylor())
    assert is_true(taylor, args)
    assert true_kl(auto, *args)[0] < 0.7 * true_kl(taylor, *args)[0]
    assert auto.report.kl < 0.7 * taylor.report.kl


def test_the_expansion_alone_needs_no_draws_that_confirm_a_choice(small, alone):
    args = small[1]
    assert len(alone) == 0
    assert alone.report.num_held_out == 300
    kl, _ = true_kl(alone, *args)
    assert abs(kl - alone.report.kl) < 3 * alone.report.kl_standard_error + 0.3 * kl
    with_rows = build(logistic, *args, tol=5e-4, num_held_out=300)
    assert len(with_rows) > 0
    assert with_rows.report.num_held_out >= 600
    assert is_true(with_rows, args)


@pytest.mark.slow
@pytest.mark.unoptimised
def test_rows_are_the_same_ones_after_a_search_for_further_candidates():
    """Rows alone are solved second, and find further candidates; the first solution is taken."""
    random = np.random.default_rng(0)
    X, _ = data(2000, width=5)
    X = np.c_[X, random.random(2000) < 0.008]
    y = (random.random(2000) < 1 / (1 + np.exp(-X @ [-2, 0.5, -0.5, 1, 0.2, 1.5]))).astype(int)
    coreset = build(logistic, X, y, size=8, candidates=jc.Candidates(200, extra_passes=1))
    assert coreset.report.proxy == "Taylor"
    assert coreset.report.candidate_searches[-1]["num_added"] > 0
    kl, _ = true_kl(coreset, X, y)
    assert 0.5 * kl < coreset.report.kl < 2 * kl


@pytest.mark.slow
@pytest.mark.unoptimised
def test_a_proxy_is_never_much_worse_than_rows_or_a_gaussian(small):
    of_four, args = small
    for size, coreset in ((4, of_four), (20, build(logistic, *args, size=20))):
        rows, both = build(logistic, *args, size=size, proxy=None).report, coreset.report
        none = both.gaussian_kl
        assert both.kl <= 1.05 * min(rows.kl, none) + 1e-6
        assert rows.proxy is None
        assert rows.gaussian_kl is not None


def test_a_small_tolerance_is_met_in_float64_where_float32_is_too_coarse():
    """The sums of float32 are off by 2e-4 nats² here, which no number of rows makes smaller."""

    def counts(X, y=None):
        b = numpyro.sample("b", dist.Normal(0.0, 5.0).expand([X.shape[1]]).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.Poisson(jnp.exp(X @ b)), obs=y)

    random = np.random.default_rng(0)
    X = np.c_[np.ones(2000), 0.3 * random.normal(size=(2000, 2))]
    y = random.poisson(np.exp(X @ [7.2, 0.5, -0.5]))
    reports = {tol: build(counts, X, y, tol=tol).report for tol in (0.01, 1e-5)}
    assert reports[0.01].precision == "float32"
    assert reports[1e-5].precision == "float64"
    assert reports[1e-5].is_within_tol


@pytest.mark.slow
@pytest.mark.unoptimised
def test_a_second_mode_between_the_draws_is_found_and_more_draws_leave_none():
    X, y = _load("ds1_500")
    y = (y > 0).astype(int)
    settings = {"size": 10, "rounds": 1, "proxy": jc.Taylor(), "progress_bar": False}
    builders = [jc.CoresetBuilder(logistic, **settings, num_draws=num) for num in (500, None)]
    with pytest.warns(UserWarning, match="has a mode that the full posterior does not have"):
        few = builders[0].run(jax.random.key(10), X, y)
    many = builders[1].run(jax.random.key(10), X, y)
    assert few.report.spike > 2
    assert many.report.spike is None
    assert many.report.num_draws == 8_000
    assert many.report.kl < 0.8 * few.report.kl


def test_remainders_that_fade_out_everywhere_leave_the_expansion(small):
    X, y = small[1]
    far = {"beta": np.random.default_rng(0).normal(size=(2000, 3)) * 0.01 + 40.0}
    center = jc.Taylor(center={"beta": np.zeros(3)})
    for goal in ({"size": 5}, {"tol": jc.Tolerance(0.01, throw=False)}):
        coreset = build(logistic, X, y, proxy=center, weighting=jc.Draws(far), rounds=1, **goal)
        assert len(coreset) == 0
        assert coreset.report.proxy == "Taylor"


@pytest.mark.slow
@pytest.mark.unoptimised
def test_no_second_mode_far_from_the_posterior():
    """Without the fade, NUTS on this coreset leaves for ever."""
    X, y = _load("ds1_500")
    y = (y > 0).astype(int)
    coreset = build(logistic, X, y, size=10)
    assert coreset.report.proxy == "Taylor"
    mode, covariance = laplace(X, y)
    sd = np.sqrt(np.diag(covariance))
    chains = {"num_chains": 2, "chain_method": "vectorized"}
    # From the mode, and from a start that is far from it.
    far = mode + 30 * sd * np.random.default_rng(0).choice([-1, 1], mode.size)
    starts = {"beta": jnp.asarray(np.stack([mode, far]), jnp.float32)}
    mcmc = nuts(coreset, 1, num_warmup=300, num_samples=300, starts=starts, **chains)
    distance = np.abs(np.asarray(mcmc.get_samples()["beta"]) - mode) / sd
    assert distance.max() < 8


POINTS = np.random.default_rng(0).normal(size=(5, 3)) * 0.3


@pytest.mark.slow
@pytest.mark.unoptimised
def test_it_is_one_model_that_numpyro_uses_as_any_other(small):
    coreset, (X, _) = small
    samples = {"beta": jnp.asarray(POINTS, jnp.float32)}

    def density(beta):
        return log_density(coreset.model, coreset.args, coreset.kwargs, {"beta": beta})[0]

    # Under vmap, and in a trace of its own.
    batched, single = jax.vmap(density)(samples["beta"]), jax.jit(density)(samples["beta"][1])
    np.testing.assert_allclose(batched[1], single, atol=1e-3)
    exact = densities(coreset, POINTS)
    np.testing.assert_allclose(batched - batched[0], exact - exact[0], atol=1e-3)
    # New rows are predicted without the proxy, which is of other rows.
    found = Predictive(coreset.model, samples)(jax.random.key(0), X[:7])
    assert found["y"].shape == (5, 7)
    assert "proxy" not in found
    guide = autoguide.AutoMultivariateNormal(coreset.model)
    svi = SVI(coreset.model, guide, numpyro.optim.Adam(0.02), Trace_ELBO(4))
    state = svi.run(jax.random.key(0), 1500, *coreset.args, **coreset.kwargs, progress_bar=False)
    mode = np.asarray(guide.median(state.params)["beta"])
    assert (np.abs(mode - coreset.approximation.mode) < 0.3 * coreset.approximation.sd).all()
    assert coreset.model == coreset.model
    assert hash(coreset.model) == hash(coreset.model)


@pytest.mark.slow
@pytest.mark.unoptimised
def test_certificate_and_correction_see_the_proxy(small):
    coreset, args = small
    chains = {"num_chains": 4, "chain_method": "vectorized"}
    mcmc = nuts(coreset, 1, num_warmup=500, num_samples=1000, **chains)
    certificate = jc.certify(coreset, mcmc)
    kl, _ = true_kl(coreset, *args)
    assert 0.5 * kl - 2e-5 < certificate.kl < 2 * kl + 2e-5
    # The evidence includes the constant of the proxy.
    assert abs(certificate.log_evidence_ratio) < 0.05
    assert jc.correct(coreset, mcmc) is not None


def test_it_is_saved_and_read_with_its_proxy(tmp_path, small, alone):
    assert alone.weights.size == 0
    for coreset in (small[0], alone):
        again = jc.load(coreset.save(tmp_path / "coreset"), model=logistic)
        assert len(again) == len(coreset)
        assert again.report.gaussian_kl == coreset.report.gaussian_kl
        np.testing.assert_allclose(densities(again, POINTS), densities(coreset, POINTS), rtol=1e-6)
        assert str(again.report) == str(coreset.report)
        with pytest.raises(ValueError, match="proxy=None"):
            coreset.to_frame()


@pytest.mark.slow
@pytest.mark.unoptimised
@pytest.mark.parametrize("settings", [{"size": 4}, {"tol": 0.5}])
def test_new_rows_and_merges_add_to_the_proxy(settings):
    X, y = data(1000, seed=6)
    parts = [build(logistic, X[at], y[at], **settings) for at in (slice(500), slice(500, None))]
    updated = parts[0].update(jax.random.key(1), X[500:600], y[500:600])
    kl, _ = true_kl(updated, X[:600], y[:600])
    assert updated.report.num_data == 600
    assert kl < 0.05
    merged = jc.merge(parts, 8, jax.random.key(2))
    kl, _ = true_kl(merged, X, y)
    assert merged.report.proxy == "Taylor"
    assert kl < 0.05
    assert kl < 2 * merged.report.kl + 2e-5


@pytest.mark.slow
@pytest.mark.unoptimised
def test_a_bad_start_is_expanded_again():
    X, y = data(500, seed=7)
    mode, covariance = laplace(X, y)
    sd = np.sqrt(np.diag(covariance))
    draws = np.random.default_rng(0).multivariate_normal(mode + 6 * sd, 4 * covariance, 4000)
    coreset = build(logistic, X, y, size=6, weighting=jc.Draws({"beta": draws}), rounds=4)
    assert np.abs((coreset.proxy.center - mode) / sd).max() < 1.5
    kl, _ = true_kl(coreset, X, y)
    assert kl < 0.01


def test_a_center_that_is_no_maximum_is_refused():
    def saddle(x, y=None):
        a = numpyro.sample("a", dist.Normal(0.0, 10.0))
        b = numpyro.sample("b", dist.Normal(0.0, 10.0))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(a * b * x, 1.0), obs=y)

    X, _ = data(200)
    normal = np.random.default_rng(0).normal(size=(2, 500))
    draws = jc.Draws(dict(zip("ab", normal, strict=True)))
    args = X[:, 1], X[:, 1] + 1.0
    proxy = jc.Taylor(center={"a": 0.0, "b": 0.0})
    with pytest.raises(ValueError, match="not concave"):
        build(saddle, *args, size=5, weighting=draws, proxy=proxy)
