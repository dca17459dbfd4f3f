"""Coresets with a proxy of all rows: closed forms, the truth by importance sampling, and all that
a coreset does."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, autoguide
from numpyro.infer.util import log_density, potential_energy

import jaxcoreset as jc
from jaxcoreset.builders.settings import Tolerance
from jaxcoreset.coreset.coreset import Coreset
from jaxcoreset.likelihood.from_model import model_likelihood
from tests.datasets import _load


def linear(X, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 3.0).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ b, 0.7), obs=y)


def logistic(X, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ b), obs=y)


def data(num, seed=0, width=3):
    random = np.random.default_rng(seed)
    X = np.c_[np.ones(num), random.normal(size=(num, width - 1))]
    y = (random.random(num) < 1 / (1 + np.exp(-X @ np.linspace(-0.5, 1.0, width)))).astype(int)
    return X, y


def build(model, *args, **settings):
    builder = jc.CoresetBuilder(model, progress_bar=False, **{"proxy": "auto"} | settings)
    return builder.run(jax.random.key(0), *args)


def log_posterior(likelihood, flat, weights=None):
    """The log-posterior of all rows in float64, at flat parameters."""

    def one(flat):
        params = likelihood.unravel(flat)
        values = likelihood.log_likelihood(params, likelihood.data)
        return values.sum() + likelihood.log_prior(params)

    with jax.enable_x64(True):
        return np.asarray(jax.jit(jax.vmap(one))(jnp.asarray(flat, float)))


def log_posterior_of(coreset, flat, unravel):
    with jax.enable_x64(True):

        def one(flat):
            return -potential_energy(coreset.model, coreset.args, coreset.kwargs, unravel(flat))

        return np.asarray(jax.jit(jax.vmap(one))(jnp.asarray(flat, float)))


def true_kl(coreset, model, args, num=20_000, df=7):
    """The symmetrised KL divergence and the largest shift of a mean in sd, by importance sampling.

    The proposal is a Student-t at the mode with the Laplace covariance, in float64.
    """
    likelihood = model_likelihood(model, args)
    laplace = jc.laplace_approximation(likelihood)
    random, width = np.random.default_rng(1), laplace.mode.size
    normal = random.normal(size=(num, width)) / np.sqrt(random.chisquare(df, (num, 1)) / df)
    flat = laplace.mode + 1.1 * normal @ np.linalg.cholesky(laplace.covariance).T
    radius = np.sum((normal / 1.0) ** 2, axis=1)
    log_proposal = -0.5 * (df + width) * np.log1p(radius / df)
    full = log_posterior(likelihood, flat)
    own = log_posterior_of(coreset, flat, likelihood.unravel)

    def normalised(values):
        weights = np.exp(values - log_proposal - np.max(values - log_proposal))
        return weights / weights.sum()

    p, q, difference = normalised(full), normalised(own), full - own
    assert 1 / np.sum(p**2) > 0.05 * num
    assert 1 / np.sum(q**2) > 0.05 * num
    mean = p @ flat
    sd = np.sqrt(p @ (flat - mean) ** 2)
    return (p - q) @ difference, np.abs((q @ flat - mean) / sd).max()


@pytest.mark.parametrize("goal", [{"size": 20}, {"tol": 1e-4}])
def test_a_linear_gaussian_model_needs_no_rows(goal):
    X, _ = data(300)
    y = X @ [1.0, -2.0, 0.5] + np.random.default_rng(1).normal(size=300)
    coreset = build(linear, X, y, **goal)
    assert len(coreset) == 0
    assert coreset.report.proxy == "Taylor"
    assert coreset.report.kl < 1e-7
    assert coreset.report.gaussian_kl < 1e-7
    assert "no rows are needed" in coreset.report.gaussian_verdict
    # Exact: the posterior is known.
    precision = X.T @ X / 0.49 + np.eye(3) / 9
    mean = np.linalg.solve(precision, X.T @ y / 0.49)
    mcmc = MCMC(NUTS(coreset.model), num_warmup=300, num_samples=2000, progress_bar=False)
    mcmc.run(jax.random.key(1), *coreset.args, **coreset.kwargs, init_params=coreset.init_params())
    draws = np.asarray(mcmc.get_samples()["b"])
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
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


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_reported_error_is_the_true_one(precision):
    X, y = data(400, seed=3)
    with jax.enable_x64(precision == "float64"):
        for settings in ({"size": 3}, {"size": 8, "proxy": jc.Taylor()}, {"tol": 0.01}):
            coreset = build(logistic, X, y, **settings)
            kl, shift = true_kl(coreset, logistic, (X, y))
            assert coreset.report.proxy == "Taylor"
            assert 0.5 * kl - 2e-5 < coreset.report.kl < 2 * kl + 2e-5
            assert shift < 0.05
            assert coreset.report.gaussian_kl > coreset.report.kl


@pytest.mark.slow
@pytest.mark.unoptimised
def test_rows_are_the_same_ones_after_a_search_for_further_candidates():
    """Rows alone are solved second, and find further candidates; the first solution is taken."""
    random = np.random.default_rng(0)
    X, _ = data(4000, width=5)
    X = np.c_[X, random.random(4000) < 0.004]
    y = (random.random(4000) < 1 / (1 + np.exp(-X @ [-2, 0.5, -0.5, 1, 0.2, 1.5]))).astype(int)
    coreset = build(logistic, X, y, size=8, candidates=jc.Candidates(200, extra_passes=1))
    assert coreset.report.proxy == "Taylor"
    assert coreset.report.candidate_searches[-1]["num_added"] > 0
    kl, _ = true_kl(coreset, logistic, (X, y))
    assert 0.5 * kl < coreset.report.kl < 2 * kl


def test_the_nearest_quadratic_is_nearer_than_the_expansion_at_the_mode():
    X, y = data(300, seed=3, width=5)
    auto, taylor = (build(logistic, X, y, size=2, proxy=one) for one in ("auto", jc.Taylor()))
    kls = [true_kl(one, logistic, (X, y), num=5000)[0] for one in (auto, taylor)]
    assert kls[0] < 0.7 * kls[1]
    assert auto.report.kl < 0.7 * taylor.report.kl


@pytest.mark.slow
@pytest.mark.unoptimised
def test_a_proxy_is_never_much_worse_than_rows_or_a_gaussian():
    X, y = data(3000, seed=4, width=5)
    for size in (2, 10, 40):
        rows = build(logistic, X, y, size=size, proxy=None).report
        both = build(logistic, X, y, size=size).report
        none = both.gaussian_kl
        assert both.kl <= 1.05 * min(rows.kl, none) + 1e-6
        assert rows.proxy is None
        assert rows.gaussian_kl is not None


def test_the_expansion_alone_needs_no_draws_that_confirm_a_choice():
    args = data(20_000)
    alone = build(logistic, *args, tol=0.05, num_held_out=300)
    assert len(alone) == 0
    assert alone.report.num_held_out == 300
    with_rows = build(logistic, *args, tol=1e-5, num_held_out=300)
    assert len(with_rows) > 0
    assert with_rows.report.num_held_out >= 600
    # The estimates are those of the posterior of all rows, by importance sampling.
    for coreset in (alone, with_rows):
        kl, _ = true_kl(coreset, logistic, args)
        assert abs(kl - coreset.report.kl) < 3 * coreset.report.kl_standard_error + 0.3 * kl


def test_a_small_tolerance_is_met_in_float64_where_float32_is_too_coarse():
    """The sums of float32 are off by 2e-4 nats² here, which no number of rows makes smaller."""

    def counts(X, y=None):
        b = numpyro.sample("b", dist.Normal(0.0, 5.0).expand([X.shape[1]]).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.Poisson(jnp.exp(X @ b)), obs=y)

    random = np.random.default_rng(0)
    X = np.c_[np.ones(12_000), 0.3 * random.normal(size=(12_000, 2))]
    y = random.poisson(np.exp(X @ [6.5, 0.5, -0.5]))
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


def test_remainders_that_fade_out_everywhere_leave_the_expansion():
    X, y = data(300, seed=6)
    far = {"b": np.random.default_rng(0).normal(size=(2000, 3)) * 0.01 + 40.0}
    center = jc.Taylor(center={"b": np.zeros(3)})
    for goal in ({"size": 5}, {"tol": jc.Tolerance(0.01, throw=False)}):
        coreset = build(logistic, X, y, proxy=center, weighting=jc.Draws(far), rounds=1, **goal)
        assert len(coreset) == 0
        assert coreset.report.proxy == "Taylor"


@pytest.mark.slow
@pytest.mark.unoptimised
@pytest.mark.parametrize("size", [10, 20])
def test_no_second_mode_far_from_the_posterior(size):
    """Without the fade, NUTS on this coreset leaves for ever."""
    X, y = _load("ds1_500")
    y = (y > 0).astype(int)
    coreset = build(logistic, X, y, size=size)
    assert coreset.report.proxy == "Taylor"
    laplace = jc.laplace_approximation(model_likelihood(logistic, (X, y)))
    mcmc = MCMC(
        NUTS(coreset.model), num_warmup=500, num_samples=1000, num_chains=2,
        chain_method="vectorized", progress_bar=False,
    )  # fmt: skip
    # From the mode, and from a start that is far from it.
    far = laplace.mode + 30 * laplace.sd * np.random.default_rng(0).choice(
        [-1, 1], laplace.mode.size
    )
    starts = {"b": jnp.asarray(np.stack([laplace.mode, far]), jnp.float32)}
    mcmc.run(jax.random.key(1), *coreset.args, **coreset.kwargs, init_params=starts)
    distance = np.abs(np.asarray(mcmc.get_samples()["b"]) - laplace.mode) / laplace.sd
    assert distance.max() < 8


@pytest.fixture(scope="module")
def small():
    X, y = data(500, seed=5)
    return build(logistic, X, y, size=4), X, y


def densities(coreset, points):
    evaluate = jax.jit(
        lambda b: log_density(coreset.model, coreset.args, coreset.kwargs, {"b": b})[0]
    )
    found = np.array([evaluate(jnp.asarray(b, jnp.float32)) for b in points])
    return found - found[0]


POINTS = np.random.default_rng(0).normal(size=(5, 3)) * 0.3


@pytest.mark.slow
@pytest.mark.unoptimised
def test_it_is_one_model_that_numpyro_uses_as_any_other(small):
    coreset, X, _y = small
    samples = {"b": jnp.asarray(POINTS, jnp.float32)}
    # Under vmap, and in a trace of its own.
    batched = jax.vmap(
        lambda b: log_density(coreset.model, coreset.args, coreset.kwargs, {"b": b})[0]
    )(samples["b"])
    np.testing.assert_allclose(batched - batched[0], densities(coreset, POINTS), atol=1e-3)
    # New rows are predicted without the proxy, which is of other rows.
    found = Predictive(coreset.model, samples)(jax.random.key(0), X[:7])
    assert found["y"].shape == (5, 7)
    assert "proxy" not in found
    guide = autoguide.AutoMultivariateNormal(coreset.model)
    svi = SVI(coreset.model, guide, numpyro.optim.Adam(0.02), Trace_ELBO(4))
    state = svi.run(jax.random.key(0), 1500, *coreset.args, **coreset.kwargs, progress_bar=False)
    mode = np.asarray(guide.median(state.params)["b"])
    assert (np.abs(mode - coreset.approximation.mode) < 0.3 * coreset.approximation.sd).all()
    assert coreset.model == coreset.model
    assert hash(coreset.model) == hash(coreset.model)


@pytest.mark.slow
@pytest.mark.unoptimised
def test_certificate_and_correction_see_the_proxy(small):
    coreset, X, y = small
    mcmc = MCMC(NUTS(coreset.model), num_warmup=500, num_samples=1000, num_chains=4,
                chain_method="vectorized", progress_bar=False)  # fmt: skip
    mcmc.run(jax.random.key(1), *coreset.args, **coreset.kwargs,
             init_params=coreset.init_params(4))  # fmt: skip
    certificate = jc.certify(coreset, mcmc)
    kl, _ = true_kl(coreset, logistic, (X, y))
    assert 0.5 * kl - 2e-5 < certificate.kl < 2 * kl + 2e-5
    # The evidence includes the constant of the proxy.
    assert abs(certificate.log_evidence_ratio) < 0.05
    posterior = jc.correct(coreset, mcmc)
    assert posterior is not None


@pytest.mark.parametrize("settings", [{"size": 4}, {"tol": 0.5}])
def test_it_is_saved_and_read_with_its_proxy(tmp_path, settings):
    X, y = data(500, seed=5)
    coreset = build(logistic, X, y, **settings)
    if "tol" in settings:
        assert len(coreset) == 0
        assert coreset.weights.size == 0
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
    X, y = data(1200, seed=6)
    parts = [build(logistic, X[at], y[at], **settings) for at in (slice(600), slice(600, None))]
    updated = parts[0].update(jax.random.key(1), X[600:700], y[600:700])
    kl, _ = true_kl(updated, logistic, (X[:700], y[:700]))
    assert updated.report.num_data == 700
    assert kl < 0.05
    merged = jc.merge(parts, 8, jax.random.key(2))
    kl, _ = true_kl(merged, logistic, (X, y))
    assert merged.report.proxy == "Taylor"
    assert kl < 0.05
    assert kl < 2 * merged.report.kl + 2e-5


@pytest.mark.slow
@pytest.mark.unoptimised
def test_a_bad_start_is_expanded_again():
    X, y = data(500, seed=7)
    laplace = jc.laplace_approximation(model_likelihood(logistic, (X, y)))
    shifted = laplace.mode + 6 * laplace.sd
    draws = np.random.default_rng(0).multivariate_normal(shifted, 4 * laplace.covariance, 4000)
    coreset = build(logistic, X, y, size=6, weighting=jc.Draws({"b": draws}), rounds=4)
    assert np.abs((coreset.proxy.center - laplace.mode) / laplace.sd).max() < 1.5
    kl, _ = true_kl(coreset, logistic, (X, y))
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


@pytest.mark.slow
@pytest.mark.unoptimised
def test_settings_are_checked_and_part_of_a_checkpoint():
    with pytest.raises(TypeError, match="proxy"):
        jc.CoresetBuilder(logistic, size=3, proxy=3)
    builder = jc.CoresetBuilder(logistic, tol=Tolerance(0.1), proxy=jc.Taylor())
    assert builder.statistical["proxy"] is builder.proxy
    assert isinstance(build(logistic, *data(100), size=3, proxy=None), Coreset)
