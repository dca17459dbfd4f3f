"""`CoresetBuilder`: from a model and data to a coreset whose posterior is the full posterior."""

import inspect
from functools import partial

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density

import jaxcoreset as jc
from jaxcoreset.builders.preparing import bound_solver
from jaxcoreset.diagnostics.gaussian import gaussian_kl
from jaxcoreset.weighting.laplace import laplace_approximation
from tests.models import by_number, logistic_data
from tests.models import logistic_model as logistic


@pytest.fixture(scope="module")
def data():
    return logistic_data(3000)


@pytest.fixture(scope="module")
def likelihood(data):
    return jc.model_likelihood(logistic, data)


@pytest.fixture(scope="module")
def full(likelihood):
    """The Laplace approximation of all the rows."""
    return laplace_approximation(likelihood)


@pytest.fixture(scope="module")
def draws(full):
    """Draws of it, for builds whose claims are not about where draws come from."""
    return jc.Draws(full.draws(jax.random.key(5), 2000))


def build(model, *args, **settings):
    builder = jc.CoresetBuilder(model, **{"num_draws": 300, **settings}, proxy=None)
    return builder.run(jax.random.key(0), *args)


@pytest.fixture(scope="module")
def coreset(data):
    return build(logistic, *data, size=20)


def laplace_of(coreset, likelihood):
    """The Laplace approximation of the weighted rows, by the program of all rows."""
    weights = np.zeros(likelihood.num_data)
    weights[coreset.indices] = coreset.weights
    return laplace_approximation(likelihood, weights=weights)


def test_coreset_posterior_is_the_full_posterior(coreset, likelihood, full):
    small = laplace_of(coreset, likelihood)
    assert np.max(np.abs(small.mode - full.mode) / full.sd) < 0.02
    np.testing.assert_allclose(small.sd / full.sd, 1, atol=0.02)


def test_coreset_model_weights_each_row(data, coreset):
    x, y = data
    beta = np.array([0.3, -0.2, 0.1, 0.5])
    value, _ = log_density(coreset.model, coreset.args, coreset.kwargs, {"beta": beta})
    eta = x[coreset.indices] @ beta
    terms = -np.logaddexp(0, -(2 * y[coreset.indices] - 1) * eta)
    prior = -0.5 * beta @ beta - 2 * np.log(2 * np.pi)
    np.testing.assert_allclose(value, coreset.weights @ terms + prior, rtol=1e-5)
    np.testing.assert_array_equal(coreset.args[0], x[coreset.indices])
    np.testing.assert_array_equal(coreset.args[1], y[coreset.indices])


def test_coreset_hands_on_the_laplace_approximation_of_all_rows(coreset, full):
    # Both are at the mode to a millionth of a nat.
    np.testing.assert_allclose(coreset.approximation.mode, full.mode, atol=1e-2 * full.sd.min())
    np.testing.assert_allclose(coreset.approximation.sd, full.sd, rtol=1e-3)


def test_an_ordinary_regression_has_no_spike_and_stays_in_float32(coreset):
    assert coreset.report.spike is None
    assert coreset.report.precision == "float32"
    assert coreset.report.rounding is None
    assert coreset.init_params()["beta"].shape == (4,)
    assert coreset.init_params(3)["beta"].shape == (3, 4)


def test_tolerance_is_kept_with_as_few_rows_as_the_path_has_and_the_report_has_the_error(
    data, likelihood, full
):
    coreset = build(logistic, *data, tol=1e-2)
    report = coreset.report
    assert report.kl + 2 * report.kl_standard_error <= 1e-2
    upper = report.curve["kl"] + 2 * report.curve["kl_standard_error"]
    assert np.all(upper[report.curve["size"] < report.size] > 1e-2)
    assert len(coreset) <= report.size
    small = laplace_of(coreset, likelihood)
    one, other = (small.mode, small.covariance), (full.mode, full.covariance)
    divergence = gaussian_kl(*one, *other) + gaussian_kl(*other, *one)
    # The Laplace divergence sees means and covariances only: agreement within a factor of two.
    assert 0.5 < report.kl / divergence < 2


def test_tolerance_that_cannot_be_met_says_what_was_reached(data, draws):
    tol = jc.Tolerance(1e-6, max_size=3)
    with pytest.raises(ValueError, match=r"max_size = 3 rows of 3000, .* still .* throw=False"):
        build(logistic, *data, tol=tol, num_draws=None, weighting=draws)


def test_as_many_rows_as_there_are_come_back_whole(data):
    x, y = data
    coreset = jc.CoresetBuilder(logistic, size=51, proxy=None).run(0, x[:50], y=y[:50])
    assert coreset.indices.tolist() == list(range(50))
    assert np.all(coreset.weights == 1)
    assert coreset.report.kl == 0
    np.testing.assert_array_equal(coreset.kwargs["y"], y[:50])


def test_candidates_and_chunks_change_little(data, draws):
    some = {"candidates": 500, "execution": jc.Execution(batch_size=700), "weighting": draws}
    report = build(logistic, *data, size=20, **some).report
    assert report.num_candidates == 500
    assert report.weighting == "Draws"
    assert report.kl < 1e-2


def test_report_prints_what_matters(coreset):
    text = str(coreset.report)
    for word in ("of 3,000", "held-out error", "estimated KL", "nats", "seconds", "peak memory"):
        assert word in text


def test_fewer_candidates_than_rows_wanted_are_refused(data, draws):
    with pytest.raises(ValueError, match="candidates is 10"):
        build(logistic, *data, size=20, candidates=10, weighting=draws)


def sites_of(data):
    """A rare class of rows: one in sixty."""
    return np.where(np.arange(len(data[1])) % 60 == 0, 7, 3)


def logistic_with_site(x, site, y=None):
    logistic(x, y)


def test_every_class_of_an_argument_gets_rows(data, draws):
    x, y = data
    solver = jc.AIHT2(constraint=jc.StratifiedTopK("site", reserved=4))
    settings = {"size": 20, "solver": solver, "candidates": 200, "weighting": draws}
    coreset = build(logistic_with_site, x, sites_of(data), y, **settings)
    assert len(coreset) <= 20
    assert np.sum(coreset.args[1] == 7) >= 3
    assert coreset.report.solver == "AIHT2"
    assert coreset.report.curve["size"].tolist() == [20]


@pytest.mark.parametrize("is_stochastic", [False, True])
def test_labels_of_all_rows_can_be_given_where_only_some_are_candidates(data, full, is_stochastic):
    site = sites_of(data)
    solver = jc.AIHT2(constraint=jc.StratifiedTopK(np.unique(site, return_inverse=True)[1], 4))
    if is_stochastic:
        solver = jc.StochasticAIHT(solver)
    few = jc.Draws(full.draws(jax.random.key(5), 700))
    settings = {"solver": solver, "candidates": 200, "weighting": few, "num_draws": 400}
    coreset = build(logistic, *data, size=20, **settings)
    assert coreset.report.num_candidates < 3000
    assert np.max(np.unique(site[coreset.indices], return_counts=True)[1]) <= 4
    # As many as there are, in the proportion of 400 to 1000.
    assert (coreset.report.num_draws, coreset.report.num_held_out) == (200, 500)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("site", "names 'site'.*Expected one of the model's arguments: 'x', 'y'"),
        ("x", "expected \\(3000,\\)"),
        ([0, 1], "groups has length 2"),
    ],
)
@pytest.mark.parametrize("constraint", [jc.StratifiedTopK, partial(jc.GroupTopK, max_groups=1)])
def test_constraint_that_does_not_fit_is_refused(likelihood, constraint, labels, message):
    with pytest.raises(ValueError, match=message):
        bound_solver(jc.AIHT2(constraint=constraint(labels)), likelihood)


def test_a_name_in_place_of_labels_is_refused_by_solve():
    problem = jc.CoresetProblem(np.eye(3, 4))
    with pytest.raises(ValueError, match="only CoresetBuilder can look up"):
        jc.solve(problem, 2, jc.AIHT2(constraint=jc.StratifiedTopK("site")))


builder = partial(jc.CoresetBuilder, logistic, proxy=None)


@pytest.mark.parametrize(
    ("setting", "error", "message"),
    [
        (lambda: builder(), ValueError, "size is None and tol is None"),
        (lambda: builder(5, tol=0.1), ValueError, "expected exactly one of them"),
        (lambda: builder(0), ValueError, "size is 0"),
        (lambda: builder(2.5), ValueError, "whole number"),
        (lambda: builder(tol=-1.0), ValueError, "tol is -1.0"),
        (lambda: builder(5, num_draws=1), ValueError, "num_draws"),
        (lambda: builder(5, solver="best"), TypeError, r"ExchangePursuit\(\)"),
        (lambda: builder(5, weighting=None), TypeError, r"Laplace\(\)"),
        (lambda: builder(5, execution=3), TypeError, "execution is 3"),
        (lambda: builder(5, proxy=3), TypeError, "proxy is 3"),
        (lambda: jc.Tolerance(0.0), ValueError, "tol is 0.0"),
        (lambda: jc.Tolerance(0.1, max_size=0), ValueError, "max_size is 0"),
        (lambda: jc.Candidates(0), ValueError, "candidates is 0"),
        (lambda: jc.Candidates(extra_passes=-1), ValueError, "extra_passes is -1"),
        (lambda: jc.Execution(batch_size=0), ValueError, "batch_size is 0"),
        (lambda: jc.Execution(processes=2), TypeError, r"expected Processes\(\)"),
        (lambda: jc.Execution(jax.make_mesh((1, 1), ("a", "b"))), ValueError, "mesh has the axes"),
        (lambda: jc.Processes(timeout=0), ValueError, "timeout is 0"),
        (lambda: jc.Checkpoint("build", every=-1), ValueError, "every is -1"),
        (lambda: builder(5, checkpoint=3), TypeError, "checkpoint is 3; expected the path"),
    ],
)
@pytest.mark.usefixtures("untyped")
def test_bad_values_of_settings_are_refused(setting, error, message):
    with pytest.raises(error, match=message):
        setting()


def test_every_setting_that_changes_the_coreset_is_part_of_a_checkpoint():
    others = {"self", "model", "execution", "checkpoint", "progress_bar"}
    settings = set(inspect.signature(jc.CoresetBuilder.__init__).parameters)
    assert set(builder(5).statistical) == settings - others


def ratings(num_data=400):
    random = np.random.default_rng(0)
    rating = random.choice(5, p=[0.05, 0.2, 0.5, 0.2, 0.05], size=num_data) + 1.0
    return rating, 1 + 0.1 * rating + random.normal(size=num_data)


def by_range(rating, y):
    """Ratings are scaled by the range of those that are there."""
    a = numpyro.sample("a", dist.Normal(0, 2))
    b = numpyro.sample("b", dist.Normal(0, 2))
    scaled = (rating - rating.min()) / (rating.max() - rating.min())
    with numpyro.plate("rows", rating.shape[0]):
        numpyro.sample("y", dist.Normal(a + b * scaled, 1), obs=y)


def with_prior(rating, y):
    """The prior knows the largest rating."""
    a = numpyro.sample("a", dist.Normal(rating.max(), 5))
    with numpyro.plate("rows", rating.shape[0]):
        numpyro.sample("y", dist.Normal(a, 1), obs=y)


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (by_range, {"size": 2}, "of a datum at site 'y' changes when other rows are dropped"),
        (with_prior, {"size": 1}, "site 'a', which is outside the data axis, changes when rows"),
    ],
)
@pytest.mark.usefixtures("unverified")
def test_coreset_whose_rows_are_worth_something_else_alone_is_refused(model, settings, message):
    with pytest.raises(ValueError, match=message):
        build(model, *ratings(), num_draws=100, num_held_out=100, **settings)


def test_coreset_of_read_rows_is_looked_at_too(monkeypatch, tmp_path):
    monkeypatch.setattr("jaxcoreset.likelihood.verification._CHUNK_ROWS", 200)
    np.save(tmp_path / "y.npy", ratings()[1])
    y = np.load(tmp_path / "y.npy", mmap_mode="r")
    settings = {"size": 9, "candidates": 150, "num_draws": 100, "num_held_out": 100}
    with pytest.raises(ValueError, match="of a datum at site 'y' changes when other rows"):
        build(by_number(25), y, **settings)


@pytest.mark.usefixtures("unverified")
def test_standardisation_that_large_values_hide_is_refused_as_such():
    """Prices: at a start near zero float32 rounds a log-likelihood of −10⁸ nats."""
    random = np.random.default_rng(0)
    x = random.normal(40, 10, size=400)
    y = 20_000 + 300 * (x - 40) + 5000 * random.normal(size=400)

    def model(x, y):
        a = numpyro.sample("a", dist.Normal(20_000, 10_000))
        b = numpyro.sample("b", dist.Normal(0, 5000))
        s = numpyro.sample("s", dist.HalfNormal(10_000))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(a + b * (x - x.mean()) / x.std(), s), obs=y)

    jc.model_likelihood(model, (x, y))  # not seen here
    with pytest.raises(ValueError, match="of a datum at site 'y' changes when other rows"):
        build(model, x, y, size=9, num_draws=100, num_held_out=100)
