"""Leave-one-out from a coreset's draws: ArviZ on all rows, refits in closed form, and groups."""

from functools import partial

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import multivariate_normal, norm

import jaxcoreset as jc
from jaxcoreset.diagnostics import loo as module
from jaxcoreset.diagnostics.leave_one_out import LeaveOneOut
from jaxcoreset.diagnostics.loo import difference_estimate
from tests.gaussian_coreset import NOISE, case, coreset_of, posterior, regression, whole

loo = partial(jc.loo, progress_bar=False)
MODERN = not arviz.__version__.startswith("0.")
elpd_loo, p_loo, loo_i = ("elpd", "p", "elpd_i") if MODERN else ("elpd_loo", "p_loo", "loo_i")


def exact_loo(x, y):
    """log p(y_i | all other rows), by the posterior without row i in closed form."""
    rows = np.arange(len(x))
    values = []
    for i in rows:
        left = posterior(x, y, rows != i)
        sd = np.sqrt(NOISE**2 + x[i] @ left.covariance @ x[i])
        values.append(norm.logpdf(y[i], x[i] @ left.mean, sd))
    return np.array(values)


@pytest.fixture(scope="module")
def exact(poor):
    return exact_loo(poor.x, poor.y)


def test_every_row_agrees_with_a_refit_without_it(poor, exact):
    found = loo(coreset_of(poor), poor.samples, num_draws=None)
    off = np.abs(poor.small.mean - poor.full.mean) / np.sqrt(np.diag(poor.full.covariance))
    assert off.max() > 0.3  # without the weights to the full posterior, the values would be off
    np.testing.assert_allclose(found[loo_i], exact, atol=0.01)
    assert found[elpd_loo] == pytest.approx(exact.sum(), abs=0.15)
    assert found.se == pytest.approx(np.sqrt(500 * exact.var()), rel=1e-3)
    assert found[p_loo] == pytest.approx(3, abs=0.6)
    assert (found.n_samples, found.n_data_points, found.warning) == (8000, 500, False)
    assert found.bad_rows.size == 0


def test_values_are_arvizs_own_on_draws_of_the_full_posterior():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 2)), rng.standard_t(1.5, size=300)
    y[0] = 400.0
    full = posterior(x, y, np.ones(300))
    b = full.mean + rng.normal(size=(2, 400, 2)) @ np.linalg.cholesky(full.covariance).T
    values = norm.logpdf(y, np.einsum("cdj,nj->cdn", b, x), NOISE)
    data = {"posterior": {"b": b}, "log_likelihood": {"y": values}}
    data = arviz.from_dict(data) if MODERN else arviz.from_dict(**data)
    with pytest.warns(UserWarning, match="greater than"):
        expected = arviz.loo(data, pointwise=True, reff=0.9)
    zeros = np.zeros((2, 400))
    leave = LeaveOneOut.of(zeros, zeros - np.log(800), 0.9)
    found = leave(jnp.asarray(values.reshape(800, -1).T, jnp.float32))
    np.testing.assert_allclose(found["elpd"], expected[loo_i], atol=2e-4, rtol=1e-4)
    # ArviZ 1 fits the tail in another way.
    np.testing.assert_allclose(found["khat"], expected.pareto_k, atol=0.1 if MODERN else 2e-3)
    assert np.sum(found["lpd"] - found["elpd"]) == pytest.approx(expected[p_loo], rel=5e-3)


def test_equal_weights_and_rows_that_tell_nothing_have_no_tail():
    zeros, line = np.zeros((1, 200)), jnp.linspace(-1, 1, 200)
    # Left out, the row that rules a draw out might allow it.
    values = jnp.stack([jnp.zeros(200), line, line.at[3].set(-jnp.inf)])
    found = LeaveOneOut.of(zeros, zeros - np.log(200), 1.0)(values)
    assert (found["khat"][0], found["khat"][2]) == (0, np.inf)
    assert found["elpd"][0] == pytest.approx(0, abs=1e-6)
    assert np.isfinite(found["elpd"]).all()


def test_difference_estimator_is_unbiased_and_its_errors_cover():
    """Against the exact sum, over many choices of rows."""
    rng = np.random.default_rng(0)
    exact = -rng.gamma(2.0, size=3000)
    approximation = exact + 0.3 + 0.1 * rng.standard_t(4, size=3000)
    truth, spread = exact.sum(), 3000 * exact.var()
    found = []
    for _ in range(1000):
        used = np.sort(rng.choice(3000, 150, replace=False))
        values, estimate = difference_estimate(exact[used], approximation, used)
        assert values.sum() == pytest.approx(estimate["elpd"])
        found.append(list(estimate.values()))
    elpd, error, variance = np.array(found).T
    assert abs(elpd.mean() - truth) < 4 * elpd.std() / np.sqrt(1000)
    assert error.mean() == pytest.approx(elpd.std(), rel=0.1)
    assert 0.93 < np.mean(np.abs(elpd - truth) < 2 * error) < 0.98
    assert variance.mean() == pytest.approx(spread, rel=0.01)


def test_subsample_is_within_its_error_of_all_rows(poor):
    coreset, key = coreset_of(poor), jax.random.key(3)
    data = jc.correct(coreset, poor.samples, num_draws=1000, progress_bar=False)
    every = loo(coreset, data)
    part = loo(coreset, data, subsample=60, key=key)
    assert abs(part[elpd_loo] - every[elpd_loo]) < 3 * part.subsampling_se
    assert part.subsampling_se < 0.1 * every.se
    assert part.se == pytest.approx(every.se, rel=0.02)
    assert part[loo_i].sum() == pytest.approx(part[elpd_loo])
    used = part.loo_subsample_observations
    np.testing.assert_allclose(part[loo_i][used], every[loo_i][used], atol=1e-5)
    assert np.isnan(part.pareto_k).sum() == 440
    assert str(part)
    again = loo(coreset, data, subsample=60, key=key)
    np.testing.assert_array_equal(again.loo_subsample_observations, used)
    with pytest.raises(ValueError, match="key is missing"):
        loo(coreset, data, subsample=60)
    with pytest.raises(ValueError, match="at most the 500 rows"):
        loo(coreset, data, subsample=501, key=key)


def test_arviz_compares_models(poor, exact):
    """Against the exact difference to a model whose noise is too small."""

    def sure(x, y=None):
        b = numpyro.sample("b", dist.Normal(0.0, 1.5).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ b, NOISE / 2), obs=y)

    # In twice the units its noise is that of `posterior`.
    x, y = 2 * poor.x, 2 * poor.y
    small = posterior(x[poor.rows], y[poor.rows], poor.weights)
    normal = np.random.default_rng(1).normal(size=(1000, 3))
    b = small.mean + normal @ np.linalg.cholesky(small.covariance).T
    likelihood = jc.model_likelihood(sure, (poor.x, poor.y))
    coreset = coreset_of(poor, sure, likelihood=likelihood)
    both = {
        "right": loo(coreset_of(poor), poor.samples),
        "sure": loo(coreset, {"b": b}),
    }
    table = arviz.compare(both)
    assert list(table.index) == ["right", "sure"]
    values = exact_loo(x, y) + np.log(2)
    difference = exact - values
    found = both["right"][elpd_loo] - both["sure"][elpd_loo]
    assert found == pytest.approx(difference.sum(), abs=0.5)
    # ArviZ 1 rounds to what the standard error leaves.
    assert abs(table.elpd_diff["sure"]) == pytest.approx(found, rel=0.2 if MODERN else 1e-6)
    assert table.dse["sure"] == pytest.approx(np.sqrt(500 * difference.var()), rel=0.05)


def test_blocks_of_rows_are_all_that_is_evaluated(monkeypatch):
    big = case(mismatch=0.02, n=4000)
    shapes, plain = [], module.block

    def block(args, rows, counted):
        shapes.append(rows[0][0].shape[0])
        return plain(args, rows, counted)

    monkeypatch.setattr(module, "block", block)
    found = loo(coreset_of(big), big.samples)
    assert (found.n_samples, found.n_data_points) == (1000, 4000)
    assert max(shapes) * 1000 <= 2**20  # at most 1,024 of the rows at once


def test_saved_coreset_takes_the_data_again_and_sources_are_streamed(poor, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    coreset = coreset_of(poor)
    loaded = jc.load(coreset.save(tmp_path / "rows"), model=regression)
    with pytest.raises(ValueError, match="arguments with all rows"):
        loo(loaded, poor.samples)
    here = loo(coreset, poor.samples)
    table = pyarrow.table({"y": poor.y} | {f"x{j}": poor.x[:, j] for j in range(3)})
    parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=90)
    rows = jc.sources.parquet(tmp_path / "rows.parquet", x=["x0", "x1", "x2"], y="y").arrays
    there = loo(loaded, poor.samples, rows["x"], rows["y"])
    np.testing.assert_allclose(here[loo_i], there[loo_i], atol=1e-4)


def test_bad_rows_are_named_and_a_poor_coreset_is_refused(poor):
    rng = np.random.default_rng(0)
    x, y = np.ones((30, 1)), rng.normal(size=30)
    y[7] = 40.0
    full = posterior(x, y, np.ones(30))
    b = full.mean + np.sqrt(full.covariance[0]) * rng.normal(size=(500, 1))
    with pytest.warns(UserWarning, match="for 1 of 30 rows, the first of them 7:"):
        found = loo(whole(regression, x, y), {"b": b})
    assert list(found.bad_rows) == [7]
    assert found.warning
    far = case(mismatch=0.8, n=500)
    with pytest.raises(jc.diagnostics.CorrectionError, match="k-hat"):
        loo(coreset_of(far), far.samples)


def test_unit_left_out_of_a_coreset_of_groups_is_a_group(groups):
    """Against the predictive density of a whole group in closed form."""
    coreset, label, y = groups
    sizes = np.bincount(label)
    # A group's mean has the variance 4 + 0.25 / its size around mu, whose own is 4.
    means, precision = np.bincount(label, y) / sizes, 1 / (4 + 0.25 / sizes)
    total = precision.sum() + 1 / 4
    normal = np.random.default_rng(1).normal(size=2000)
    mu = precision @ means / total + normal / np.sqrt(total)
    found = loo(coreset, {"mu": mu}, num_draws=None)
    assert found[loo_i].dims == ("group",)
    assert found.n_data_points == 60
    for group, size in enumerate(sizes):
        left = total - precision[group]
        mean = np.full(size, (precision @ means - precision[group] * means[group]) / left)
        covariance = np.full((size, size), 1 / left + 4) + 0.25 * np.eye(size)
        expected = multivariate_normal.logpdf(y[label == group], mean, covariance)
        assert found[loo_i][group] == pytest.approx(expected, abs=0.02)


def masked(x, ok, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 1.5))
    with numpyro.plate("rows", x.shape[0]), numpyro.handlers.mask(mask=ok):
        numpyro.sample("y", dist.Normal(b * x, NOISE), obs=y)


def test_masked_rows_are_no_observations():
    """As ArviZ has it: the result is that of the other rows alone, under their own numbers."""
    rng = np.random.default_rng(0)
    x, y, ok = rng.normal(size=200), rng.normal(size=200), rng.random(200) < 0.4
    b = {"b": 0.1 * rng.normal(size=(400,))}
    coreset, alone = whole(masked, x, ok, y), whole(masked, x[ok], ok[ok], y[ok])
    found, expected = loo(coreset, b), loo(alone, b)
    assert found.n_data_points == expected.n_data_points == ok.sum()
    np.testing.assert_allclose(found[loo_i], expected[loo_i], atol=1e-5)
    np.testing.assert_array_equal(found[loo_i]["row"], np.flatnonzero(ok))
    for name in (elpd_loo, "se", p_loo):
        assert found[name] == pytest.approx(expected[name], rel=1e-3)
    part = loo(coreset, b, subsample=40, key=1)
    assert part.n_data_points == ok.sum()
    assert part.se == pytest.approx(found.se, rel=0.05)
    with pytest.raises(ValueError, match=r"at most the .* rows that the model does not mask"):
        loo(coreset, b, subsample=150, key=1)


def test_groups_without_an_observed_row_are_left_out():
    rng = np.random.default_rng(0)
    label = np.repeat(np.arange(12), 3)
    y, ok = rng.normal(size=36), rng.random(36) < 0.7
    ok[label == 4] = False

    def model(label, num, ok, y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        with numpyro.plate("groups", num):
            z = numpyro.sample("z", dist.Normal(mu, 1.0))
        with numpyro.plate("rows", label.shape[0]):
            numpyro.sample("y", dist.Normal(z[label], 1.0).mask(ok), obs=y)

    builder = jc.CoresetBuilder(model, size=12, groups="label", progress_bar=False)
    coreset = builder.run(jax.random.key(0), label, 12, ok, y)
    found = loo(coreset, {"mu": 0.1 * rng.normal(size=400)})
    assert found.n_data_points == 11
    assert 4 not in found[loo_i]["group"]
