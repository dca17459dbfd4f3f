"""Predictions against closed forms, with the weights to the full posterior, and checks of them."""

from functools import partial

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import norm

import jaxcoreset as jc
from jaxcoreset.diagnostics import predict as module
from jaxcoreset.likelihood.arguments import ModelError
from jaxcoreset.likelihood.group_likelihood import group_likelihood
from tests.diagnostics.helpers import be_second
from tests.gaussian_coreset import NOISE, case, coreset_of, regression, whole

KEY = jax.random.key(0)
predict = partial(jc.predict, key=KEY, progress_bar=False)
# Of the coreset posterior as it is.
unweighted = partial(predict, reweight=False, quantiles=())


def predictive(posterior, x):
    return x @ posterior.mean, np.sqrt(NOISE**2 + np.sum(x @ posterior.covariance * x, axis=1))


def test_new_rows_have_the_predictive_distribution_of_the_full_posterior(poor, corrected):
    """At rows so far out that the parameters are most of the uncertainty."""
    x = 60 * np.random.default_rng(0).normal(size=(40, 3))
    coreset = coreset_of(poor)
    found = predict(coreset, corrected, x, num_draws=None)
    mean, sd = predictive(poor.full, x)
    assert np.max(np.abs(predictive(poor.small, x)[0] - mean) / sd) > 0.25
    np.testing.assert_allclose((found.mean["y"] - mean) / sd, 0, atol=0.06)
    np.testing.assert_allclose(found.sd["y"], sd, rtol=0.06)
    levels = norm.ppf([[0.05], [0.5], [0.95]])
    np.testing.assert_allclose((found.quantiles["y"] - mean) / sd, levels + 0 * mean, atol=0.1)
    plain = predict(coreset, poor.samples, x, None, num_draws=None, reweight=False)
    own, sd = predictive(poor.small, x)
    np.testing.assert_allclose((plain.mean["y"] - own) / sd, 0, atol=0.06)
    assert not found.observed
    assert not found.draws


DRAWN = {"num_draws": 200, "draws": True}


@pytest.fixture(scope="module")
def drawn(poor, corrected):
    return predict(coreset_of(poor), corrected, **DRAWN)


def test_rows_of_the_build_are_the_default_and_draws_are_kept_on_request(poor, corrected, drawn):
    coreset, found = coreset_of(poor), drawn
    same = predict(coreset, corrected, poor.x, y=poor.y, sites=["y"], **DRAWN)
    np.testing.assert_array_equal(found.draws["y"], same.draws["y"])
    assert found.draws["y"].shape == (200, 500)
    expected = np.quantile(found.draws["y"], found.levels, axis=0, method="inverted_cdf")
    np.testing.assert_array_equal(found.quantiles["y"], expected)
    np.testing.assert_allclose(found.draws["y"].mean(0), found.mean["y"], atol=1e-5)
    np.testing.assert_allclose(found.draws["y"].std(0), found.sd["y"], rtol=1e-4)
    np.testing.assert_allclose(found.observed["y"], poor.y, rtol=1e-6)
    data = found.to_arviz()
    assert data["posterior_predictive"]["y"].dims == ("chain", "draw", "row")
    np.testing.assert_allclose(data["observed_data"]["y"], poor.y, rtol=1e-6)
    if not hasattr(data, "children"):
        arviz.plot_ppc(data, num_pp_samples=5, backend_kwargs={})
    other = predict(coreset, corrected, key=jax.random.key(1), **DRAWN)
    assert not np.array_equal(other.draws["y"], found.draws["y"])
    new = predict(coreset, corrected, poor.x)
    with pytest.raises(ValueError, match="the draws were not kept"):
        new.to_arviz()
    with pytest.raises(ValueError, match="Pass the responses"):
        new.check(lambda y: y)


def test_statistics_of_replicated_data_have_their_closed_form(poor, corrected):
    found = predict(coreset_of(poor), corrected, quantiles=())
    check = found.check(lambda y: y)
    center = poor.x.mean(0)
    mean = center @ poor.full.mean
    sd = np.sqrt(center @ poor.full.covariance @ center + NOISE**2 / 500)
    assert check.replicated.shape == (1000,)
    assert check.replicated.mean() == pytest.approx(mean, abs=4 * sd / np.sqrt(1000))
    assert check.replicated.std() == pytest.approx(sd, rel=0.1)
    assert check.observed == pytest.approx(poor.y.mean(), rel=1e-5)
    assert check.p_value == pytest.approx(norm.sf(poor.y.mean(), mean, sd), abs=0.06)
    assert f"p = {check.p_value:.3f}" in repr(check)


def test_statistics_are_those_of_the_draws_themselves(poor, drawn):
    """The spread, an extreme, and means by bin, against NumPy on all draws."""
    found, draws = drawn, drawn.draws["y"]
    spread = found.check(
        lambda y: jnp.stack([y, y**2], axis=1), of=lambda mean: jnp.sqrt(mean[1] - mean[0] ** 2)
    )
    np.testing.assert_allclose(spread.replicated, draws.std(1), rtol=1e-3)
    np.testing.assert_allclose(spread.observed, poor.y.std(), rtol=1e-3)
    largest = found.check(lambda y: y, reduce="max")
    np.testing.assert_allclose(largest.replicated, draws.max(1), rtol=1e-6)
    smallest = found.check(lambda y: y, reduce="min")
    np.testing.assert_allclose(smallest.observed, poor.y.min(), rtol=1e-6)
    bins = np.digitize(poor.x[:, 0], [-1, 0, 1])
    binned = found.check(lambda y: y > 0, bins=bins)
    expected = np.stack([(draws[:, bins == b] > 0).mean(1) for b in range(4)], axis=1)
    np.testing.assert_allclose(binned.replicated, expected, atol=1e-6)
    assert binned.observed.shape == binned.p_value.shape == (4,)
    assert "of 4 values" in repr(binned)
    with pytest.raises(ValueError, match="expected one number for each row"):
        found.check(jnp.sum)
    with pytest.raises(ValueError, match="500 whole numbers"):
        found.check(lambda y: y, bins=np.array([0, 1]))


def test_blocks_of_rows_are_all_that_is_drawn(monkeypatch):
    shapes, plain = [], module._block

    def block(args, rows, counted):
        shapes.append(rows[0][0].shape[0])
        return plain(args, rows, counted)

    monkeypatch.setattr(module, "_block", block)
    big = case(mismatch=0.02, n=4000)
    found = unweighted(coreset_of(big), big.samples)
    assert found.mean["y"].shape == (4000,)
    assert max(shapes) * found.num_draws <= 2**19
    residual = (found.mean["y"] - big.x @ big.small.mean) * np.sqrt(1000) / NOISE
    assert residual.std() == pytest.approx(1, abs=0.03)  # rows of other blocks are drawn anew
    assert abs(np.mean(residual)) < 0.2


def test_coreset_without_its_data_says_what_it_needs(poor, corrected, tmp_path):
    loaded = jc.load(coreset_of(poor).save(tmp_path / "rows"), model=regression)
    with pytest.raises(ValueError, match="for the weights"):
        predict(loaded, poor.samples, poor.x)
    given = predict(loaded, poor.samples, poor.x, likelihood=poor.likelihood)
    there = predict(loaded, corrected, poor.x)
    assert given.mean["y"].shape == there.mean["y"].shape == (500,)
    with pytest.raises(ValueError, match="there are no rows to predict"):
        predict(loaded, corrected)
    with pytest.raises(ValueError, match=r"there are no rows to predict; found x \(0, 3\)"):
        predict(loaded, corrected, poor.x[:0])
    with pytest.raises(ModelError, match="no argument holds rows"):
        predict(loaded, corrected, None, None)
    with pytest.raises(ModelError, match="differ in their number"):
        predict(loaded, corrected, poor.x, poor.y[:9])
    with pytest.raises(ModelError, match=r"sites names 'first'.* 'y'"):
        predict(loaded, corrected, poor.x, sites=["first"])


def test_sites_counts_and_responses_are_those_of_the_model():
    """A count of rows follows the block, deterministic sites are rows' own, y may be discrete."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    y = rng.binomial(1, 1 / (1 + np.exp(-x)))

    def model(data, n, y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", n):
            p = numpyro.deterministic("p", jax.nn.sigmoid(b * data["x"]))
            numpyro.sample("y", dist.Bernoulli(p), obs=y)

    coreset = whole(model, {"x": x}, 300, y)
    samples = {"b": np.full(100, 0.7) + 0.1 * rng.normal(size=100)}
    new = np.array([-1.0, 0.0, 2.0])
    found = predict(coreset, samples, {"x": new}, 3, None, sites=["p", "y"], reweight=False)
    p = 1 / (1 + np.exp(-samples["b"][:, None] * new))
    np.testing.assert_allclose(found.mean["p"], p.mean(0), rtol=1e-5)
    np.testing.assert_allclose(found.mean["y"], p.mean(0), atol=0.2)
    expected = np.quantile(p, found.levels, axis=0, method="inverted_cdf")
    np.testing.assert_allclose(found.quantiles["p"], expected, rtol=1e-5)
    assert set(np.ravel(found.quantiles["y"])) <= {0, 1}


def test_observed_sites_that_are_no_responses_keep_their_values():
    """A parameter that a handler fixes, and an observation without rows, are not drawn anew."""
    y = np.random.default_rng(0).normal(size=30)

    def model(y, n=30):
        scale = numpyro.sample("scale", dist.HalfNormal(100.0))
        at = numpyro.sample("at", dist.Normal(0.0, 100.0), obs=2.0)
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(jnp.full(n, b + at), scale), obs=y)

    def of_rows(x, y=None):
        return model(y, x.shape[0])

    fixed = numpyro.handlers.condition(of_rows, {"scale": jnp.array(0.5)})
    coreset = whole(fixed, y, y)
    samples = {"b": np.linspace(-0.1, 0.1, 1000)}
    found = unweighted(coreset, samples, np.zeros(40))
    np.testing.assert_allclose(found.mean["y"], 2, atol=0.08)
    np.testing.assert_allclose(found.sd["y"], np.hypot(0.5, 0.058), rtol=0.1)


def test_labels_are_those_of_the_build_and_kinds_of_groups_are_kept():
    """Labels from 1 on in other steps, and a discrete site of each group that its rows decide."""
    rng = np.random.default_rng(0)
    kind = np.arange(6) % 2
    label = rng.permutation(np.repeat(np.arange(6), 4))
    y = 8.0 * kind[label] + rng.normal(size=label.size)

    def model(label, num, y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        with numpyro.plate("groups", num):
            kind = numpyro.sample("kind", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
        with numpyro.plate("rows", label.shape[0]):
            numpyro.sample("y", dist.Normal(mu + 8.0 * kind[label], 1.0), obs=y)

    names = np.array([1, 2, 3, 4, 5, 6])
    coreset = jc.CoresetBuilder(model, size=6, groups="label", progress_bar=False).run(
        KEY, names[label], 6, y
    )
    samples = {"mu": 0.1 * rng.normal(size=400)}
    found = unweighted(coreset, samples, np.array([1, 2, 4, 5]), 6)
    np.testing.assert_allclose(found.mean["y"], [0, 8, 8, 0], atol=0.3)
    new = unweighted(coreset, samples, np.array([6, 9, 5, 7]), 8)
    np.testing.assert_allclose(new.mean["y"], [8, 4, 0, 4], atol=0.8)
    np.testing.assert_allclose(new.sd["y"], [1, np.sqrt(17), 1, np.sqrt(17)], rtol=0.15)


def samples_of_mu():
    return {"mu": 0.5 + 0.1 * np.random.default_rng(1).normal(size=1000)}


def responses_of_groups(label, y):
    """The mean and the sd of a response of each group by its rows, where mu is 0.5."""
    precision = 1 / 4 + np.bincount(label) / 0.25
    return (0.5 / 4 + np.bincount(label, y) / 0.25) / precision, np.sqrt(0.25 + 1 / precision)


@pytest.mark.slow
@pytest.mark.unoptimised
def test_groups_of_the_build_keep_their_effects_and_new_ones_are_drawn_from_the_prior(groups):
    (coreset, label, y), samples = groups, samples_of_mu()
    rows = np.array([*range(60), 60, 61, 60])
    found = unweighted(coreset, samples, rows, 62, draws=True)
    mean, sd = responses_of_groups(label, y)
    np.testing.assert_allclose((found.mean["y"][:60] - mean) / sd, 0, atol=0.15)
    np.testing.assert_allclose(found.sd["y"][:60], sd, rtol=0.12)
    assert found.mean["y"][60:] == pytest.approx(0.5, abs=0.3)
    assert found.sd["y"][60:] == pytest.approx(np.sqrt(4.26), rel=0.1)
    draws = found.draws["y"][:, 60:]
    correlation = np.corrcoef(draws.T)
    assert correlation[0, 2] > 0.9  # rows of one new group share its effect
    assert abs(correlation[0, 1]) < 0.15
    checked = unweighted(coreset, samples, label, 60, y)
    assert 0.05 < checked.check(lambda y: y).p_value < 0.95


def test_groups_that_do_not_fit_the_build_are_refused(groups):
    (coreset, label, _), samples = groups, samples_of_mu()
    with pytest.raises(ValueError, match="pass the model's arguments"):
        unweighted(coreset, samples)
    with pytest.raises(ModelError, match="belong to 59 groups, but the coreset was built from 60"):
        unweighted(coreset, samples, label, 59)
    with pytest.raises(ModelError, match="labels from 0 to 70 for 62 groups"):
        unweighted(coreset, samples, np.array([0, 70]), 62)


def test_saved_coreset_of_groups_takes_their_likelihood(groups, tmp_path):
    (coreset, label, y), samples = groups, samples_of_mu()
    model = coreset.full_model
    loaded = jc.load(coreset.save(tmp_path / "groups"), model=model)
    with pytest.raises(ValueError, match=r"for the effects of groups.*group_likelihood"):
        unweighted(loaded, samples, label, 60)
    likelihood = group_likelihood(model, (label, 60, y), groups="label")
    found = unweighted(loaded, samples, label, 60, likelihood=likelihood)
    mean, sd = responses_of_groups(label, y)
    np.testing.assert_allclose((found.mean["y"] - mean[label]) / sd[label], 0, atol=0.15)
    here = unweighted(coreset, samples, label, 60)
    np.testing.assert_allclose(found.mean["y"], here.mean["y"], atol=1e-3)


def test_effects_come_from_the_data_of_the_build_only(groups):
    (coreset, label, y), samples = groups, samples_of_mu()
    model = coreset.full_model
    kept = label[np.isin(label, label[:5])]
    for args, message in (
        ((label[label < 50], 50, y[label < 50]), "the data have 50 rows, but .* built from 60"),
        ((label, 60, y + 1), "the data differ from those that the coreset was built from"),
    ):
        other = group_likelihood(model, args, groups="label")
        with pytest.raises(ValueError, match=message):
            unweighted(coreset, samples, kept, 60, likelihood=other)


def test_processes_draw_effects_at_the_shared_parameters_of_the_first(groups, monkeypatch):
    (coreset, label, _), samples = groups, samples_of_mu()
    expected = unweighted(coreset, samples, label, 60, num_draws=None)
    effects = coreset.group_effects(KEY, samples, num_draws=1000)
    of_first, own = {"mu": np.asarray(samples["mu"], np.float32)}, {"mu": 3 + samples["mu"]}
    be_second(monkeypatch, coreset, of_first)
    found = unweighted(coreset, own, label, 60, num_draws=None)
    np.testing.assert_allclose(found.mean["y"], expected.mean["y"], atol=1e-5)
    again = coreset.group_effects(KEY, own, num_draws=1000)
    for name, values in effects.items():
        np.testing.assert_array_equal(again[name], values)


def test_effects_of_data_changed_in_place_are_refused(groups, monkeypatch):
    coreset, samples = groups[0], samples_of_mu()
    leaves = coreset.likelihood.rows.data
    monkeypatch.setattr(coreset.likelihood.rows, "data", tuple(x + x.dtype.type(1) for x in leaves))
    with pytest.raises(ValueError, match="changed in place"):
        coreset.group_effects(KEY, samples)


def test_draws_of_a_correction_may_be_used_without_its_weights(poor):
    coreset, x = coreset_of(poor), poor.x
    corrected = jc.correct(coreset, poor.samples, progress_bar=False)
    settings = {"num_draws": None, "quantiles": ()}
    found = predict(coreset, corrected, x, None, reweight=False, **settings)
    expected = predict(coreset, poor.samples, x, None, reweight=False, **settings)
    np.testing.assert_array_equal(found.mean["y"], expected.mean["y"])
    weighted = predict(coreset, corrected, x, None, **settings)
    assert np.abs(weighted.mean["y"] - expected.mean["y"]).max() > 1e-4
    resampled = jc.correct(coreset, poor.samples, resample=True, key=KEY, progress_bar=False)
    with pytest.raises(ValueError, match="pass the mcmc itself"):
        predict(coreset, resampled, x, None, reweight=False, **settings)


def test_effect_of_a_row_of_its_own_is_drawn_anew():
    rng = np.random.default_rng(0)
    y = rng.normal(size=40) * np.sqrt(1.25)

    def model(n, y=None, x=None):
        a = numpyro.sample("a", dist.Normal(0.0, 2.0))
        with numpyro.plate("rows", n):
            e = numpyro.sample("e", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(a + e + x, 0.5), obs=y)

    x = np.zeros(40)
    coreset = jc.CoresetBuilder(model, size=40, progress_bar=False).run(KEY, 40, y, x)
    samples, new = {"a": 0.1 * rng.normal(size=2000)}, np.array([0.0, 3.0, 3.0])
    found = unweighted(coreset, samples, 3, None, new, draws=True, num_draws=None)
    np.testing.assert_allclose(found.mean["y"], new, atol=0.12)
    np.testing.assert_allclose(found.sd["y"], np.sqrt(1.26), rtol=0.08)
    assert abs(np.corrcoef(found.draws["y"].T)[1, 2]) < 0.1


def slope(distribution):
    def model(x, y=None, ok=None):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        numpyro.deterministic("line", b * x)
        with numpyro.plate("rows", x.shape[0]):
            of_rows = distribution(b * x)
            numpyro.sample("y", of_rows if ok is None else of_rows.mask(ok), obs=y)

    return model


KINDS = {
    "bernoulli": lambda z: dist.Bernoulli(logits=z),
    "poisson": lambda z: dist.Poisson(jnp.exp(z)),
    "categorical": lambda z: dist.Categorical(logits=jnp.stack([z, 0 * z], axis=-1)),
    "normal": lambda z: dist.Normal(z, 1.0),
    "several": lambda z: dist.Normal(z[:, None] + jnp.zeros(2), 1.0).to_event(1),
}
SLOPES = {"b": np.linspace(0.3, 0.7, 100)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_whose_prediction_is_not_a_number_is_refused(kind):
    """A Bernoulli response with NaN logits would be 0, and a response may be missing."""
    x = np.random.default_rng(0).normal(size=60)
    y = (x > 0).astype(float if kind in ("normal", "several") else int)
    y = np.stack([y, y], axis=1) if kind == "several" else y
    coreset = whole(slope(KINDS[kind]), x, y)
    new, missing = np.array([0.0, 1.0, np.nan]), np.full((3, *y.shape[1:]), np.nan)
    found = unweighted(coreset, SLOPES, new[:2], missing[:2])
    assert np.isfinite(found.mean["y"]).all()
    with pytest.raises(ModelError, match="'y' that were passed to predict are NaN in rows 0, 1;"):
        found.check(lambda y: y)
    with pytest.raises(ModelError, match=r"'y' is not a number in row 2; .* finite, x in row 2: f"):
        unweighted(coreset, SLOPES, new, missing)
    line = unweighted(coreset, SLOPES, new, sites=["line"]).mean["line"]
    np.testing.assert_array_equal(np.isnan(line), [False, False, True])


def test_a_row_that_the_model_has_no_distribution_for_is_refused():
    """JAX draws -1 from a Poisson distribution with a negative rate."""
    x, y = np.random.default_rng(0).normal(size=60), np.ones(60, int)
    coreset = whole(slope(lambda z: dist.Poisson(5 + z)), x, y)
    assert unweighted(coreset, SLOPES, np.array([-6.0])).mean["y"] > 0
    with pytest.raises(ModelError, match=r"in row 1; .* finite, so it is the model"):
        unweighted(coreset, SLOPES, np.array([0.0, -10.0]))


@pytest.mark.parametrize("kind", ["bernoulli", "normal"])
def test_masked_rows_are_left_out_of_a_check_and_may_be_missing(kind):
    rng = np.random.default_rng(0)
    x, ok = rng.normal(size=400), rng.random(400) < 0.5
    y = 0.5 * x + rng.normal(size=400) if kind == "normal" else rng.random(400) < 0.5
    y = np.where(ok, y, 1).astype(float if kind == "normal" else int)
    y[~ok] = 50 if kind == "normal" else 1
    x[np.flatnonzero(~ok)[:2]] = np.nan
    model = slope(KINDS[kind])
    found = unweighted(whole(model, x, y, ok), SLOPES)
    np.testing.assert_array_equal(np.isnan(found.mean["y"]), np.isnan(x))
    np.testing.assert_array_equal(np.isnan(found.sd["y"]), np.isnan(x))
    bins = np.arange(400) % 2
    check = found.check(lambda y: y, bins=bins)
    np.testing.assert_allclose(check.observed, [y[ok & (bins == b)].mean() for b in (0, 1)], 1e-5)
    alone = unweighted(whole(model, x[ok], y[ok], ok[ok]), SLOPES).check(lambda y: y)
    both = found.check(lambda y: y)
    assert both.p_value == pytest.approx(alone.p_value, abs=0.2)
    with pytest.raises(ModelError, match="is not a number in row"):
        unweighted(whole(model, x[ok], y[ok], ok[ok]), SLOPES, x, None, np.ones(400, bool))
    with pytest.raises(ValueError, match="masks entries of site 'y' in all 9 rows"):
        unweighted(whole(model, x, y, ok), SLOPES, np.zeros(9), np.zeros(9), ok[:9] & False).check(
            lambda y: y
        )


def test_statistics_keep_their_digits_where_the_mean_is_large():
    """The documented standard deviation, of responses around 10,000, and squares of counts."""
    y = (1e4 + np.random.default_rng(0).normal(size=400)).astype(np.float32)
    coreset = whole(slope(lambda z: dist.Normal(1e4 + z, 1.0)), np.zeros(400), y)
    found = unweighted(coreset, SLOPES, draws=True)
    check = found.check(
        lambda y: jnp.stack([y, y**2], axis=1), of=lambda mean: jnp.sqrt(mean[1] - mean[0] ** 2)
    )
    assert check.observed == pytest.approx(y.astype(float).std(), rel=1e-5)
    np.testing.assert_allclose(check.replicated, found.draws["y"].astype(float).std(1), rtol=1e-5)
    counts = np.full(30, 60_000)
    found = unweighted(whole(slope(lambda z: dist.Poisson(6e4 + z)), np.zeros(30), counts), SLOPES)
    assert found.check(lambda y: y**2).observed == pytest.approx(3.6e9)


def test_ties_count_half_and_bins_without_rows_are_missing():
    x = np.random.default_rng(0).normal(size=400)
    y = (x > 0).astype(int)
    found = unweighted(whole(slope(KINDS["bernoulli"]), x, y), SLOPES)
    assert found.check(lambda y: y, reduce="max").p_value == 0.5
    for reduce in ("mean", "max"):
        check = found.check(lambda y: y - 1.0, bins=2 * y, reduce=reduce)
        np.testing.assert_array_equal(np.isnan(check.p_value), [False, True, False])
        np.testing.assert_array_equal(np.isnan(check.observed), [False, True, False])
        assert "of 2 values" in repr(check)
