"""Certificates against a linear model whose posteriors and evidences are closed forms."""

import dataclasses
import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.special
import scipy.stats
from numpyro.handlers import reparam
from numpyro.infer import MCMC, NUTS

import jaxcoreset as jc
from jaxcoreset.diagnostics.correction import CorrectionError, require_reweightable
from jaxcoreset.diagnostics.gaussian import gaussian_kl
from jaxcoreset.diagnostics.measurement import certificate_of
from jaxcoreset.likelihood.totals import log_likelihood_totals
from jaxcoreset.likelihood.weighted import weighted_model
from jaxcoreset.weighting.psis import khat_limit, pareto_smooth
from tests.gaussian_coreset import case, coreset_of, kl, regression, whole

certify = partial(jc.certify, progress_bar=False)


@pytest.fixture(scope="module")
def poor():
    return case(mismatch=0.1)


@pytest.fixture(scope="module")
def poor_certificate(poor):
    return certify(coreset_of(poor), poor.samples, num_draws=None)


def certificate(ratios, efficiency=1.0, **options):
    return certificate_of(ratios, efficiency, num_data=10, num_rows=2, **options)


def refused(message, *args, **kwargs):
    with pytest.raises(ValueError, match=message):
        certify(*args, **kwargs)


def within(found, error, true, floor=0.0):
    return abs(found - true) < 4 * error + floor


def test_both_divergences_and_the_evidence_are_those_in_closed_form(poor, poor_certificate):
    found = poor_certificate
    forward, reverse = kl(poor.full, poor.small), kl(poor.small, poor.full)
    assert forward == pytest.approx(0.3048, abs=1e-3)  # a case that is worth measuring
    assert within(found.kl_forward, found.kl_forward_standard_error, forward)
    assert within(found.kl_reverse, found.kl_reverse_standard_error, reverse)
    assert within(found.kl, found.kl_standard_error, forward + reverse)
    evidence = poor.full.log_evidence - poor.small.log_evidence
    assert within(found.log_evidence_ratio, found.log_evidence_ratio_standard_error, evidence)
    assert found.kl_forward_standard_error < 0.03
    assert found.log_evidence_ratio_standard_error < 0.03


def test_log_ratios_are_those_of_scipy(poor, poor_certificate):
    b = poor.samples["b"][1, :20].astype(np.float64)
    each = scipy.stats.norm.logpdf(poor.y[:, None], poor.x @ b.T, 2.0)
    expected = each.sum(0) - poor.weights.astype(np.float64) @ each[poor.rows]
    # In the float32 of the model 100 weights of 20 and sums of 4,000 nats leave a few 1e-3.
    np.testing.assert_allclose(poor_certificate.log_ratios[1, :20], expected, atol=5e-3)


def test_weights_are_those_of_arviz(poor_certificate):
    weights, khat = pareto_smooth(poor_certificate.log_ratios.ravel())
    # The limits of the paper: 1 − 1 / log10(draws), and 0.7.
    assert [khat_limit(10**n) for n in (2, 3, 4)] == pytest.approx([0.5, 2 / 3, 0.7])
    np.testing.assert_allclose(poor_certificate.log_weights.ravel(), weights, atol=0.05)
    assert poor_certificate.khat == pytest.approx(khat, abs=0.02)
    assert scipy.special.logsumexp(poor_certificate.log_weights) == pytest.approx(0, abs=1e-9)


def test_standard_errors_are_the_spread_over_repeated_runs():
    # Repetitions of a Gaussian pair in one dimension, whose log-ratio is a quadratic.
    rng = np.random.default_rng(0)
    z = rng.normal(size=(300, 4, 250))
    ratios = 0.3 * z - 0.05 * z**2 + 7.0
    found = [certificate(one) for one in ratios]
    for name in ("kl_forward", "kl_reverse", "kl", "log_evidence_ratio"):
        spread = np.std([getattr(one, name) for one in found])
        claimed = np.median([getattr(one, f"{name}_standard_error") for one in found])
        assert claimed == pytest.approx(spread, rel=0.2), name


@pytest.mark.parametrize("shift", [1e-3, 0.03, 0.6])
def test_estimates_have_no_bias_however_small_the_divergence(shift):
    # N(shift, 1) over N(0, 1) is exp(shift z − shift²/2): both divergences are shift²/2.
    rng = np.random.default_rng(5)
    found = [certificate(shift * rng.normal(size=(2, 500)) - 9.0) for _ in range(200)]
    for name, true in (
        ("kl_forward", shift**2 / 2),
        ("kl_reverse", shift**2 / 2),
        ("kl", shift**2),
        ("log_evidence_ratio", shift**2 / 2 - 9.0),
    ):
        values = np.array([getattr(one, name) for one in found])
        assert abs(values.mean() - true) < 4 * values.std() / np.sqrt(200) + 0.01 * shift**2, name


def test_constant_of_millions_of_nats_leaves_the_divergence_as_it_is():
    """Coreset and data have evidences that far apart where there are millions of rows."""
    ratios = 1e-3 * np.random.default_rng(0).normal(size=(4, 250))
    small, large = (certificate(ratios + constant) for constant in (0.0, -3e6))
    assert large.kl == pytest.approx(small.kl, rel=1e-3)
    assert large.kl_forward == pytest.approx(small.kl_forward, rel=1e-3)
    assert large.log_evidence_ratio == pytest.approx(-3e6, abs=1e-2)
    np.testing.assert_array_equal(large.log_ratios, ratios - 3e6)


def test_errors_grow_with_the_chains_autocorrelation():
    # AR(1) with coefficient 0.9 leaves 1/19 of the draws effective.
    rng = np.random.default_rng(1)
    noise = rng.normal(size=(4, 3000))
    chain = np.zeros_like(noise)
    for t in range(1, noise.shape[1]):
        chain[:, t] = 0.9 * chain[:, t - 1] + np.sqrt(1 - 0.81) * noise[:, t]
    sticky = certificate(0.2 * chain)
    free = certificate(0.2 * noise)
    ratio = sticky.log_evidence_ratio_standard_error / free.log_evidence_ratio_standard_error
    assert ratio == pytest.approx(np.sqrt(19), rel=0.25)
    assert sticky.ess < 0.1 * sticky.weight_ess


def test_verdicts_follow_their_thresholds():
    close = case(mismatch=0.0, m=400)
    found = certify(coreset_of(close), close.samples)
    assert kl(close.full, close.small) + kl(close.small, close.full) < 0.02
    assert found.verdict == "good"
    assert found.num_draws == 1000
    assert dataclasses.replace(found, kl=0.03).verdict == "usable with correction"
    assert dataclasses.replace(found, kl_standard_error=0.01).verdict == "usable with correction"
    spread = dataclasses.replace(found, log_ratios=np.linspace(0, 1, 1000).reshape(4, -1))
    assert dataclasses.replace(spread, khat=0.66).verdict == "good"
    assert dataclasses.replace(spread, khat=0.68).verdict == "don't use"  # limit 0.667
    assert dataclasses.replace(found, rhat=1.2).verdict == "don't use"
    far = case(mismatch=0.8)
    assert certify(coreset_of(far), far.samples).verdict == "don't use"


def rare_level(seed, separated=10, away=0.02, num_draws=1000):
    """Log-ratios of a level whose few responses are all zero, and the KL, by quadrature.

    The prior is N(0, 10²), and the coreset's one row for them has a weight that is a little wrong.
    """
    grid = np.linspace(-60, 30, 200_001)
    parts = [
        -0.5 * (grid / 10) ** 2 - weight * np.logaddexp(0, grid)
        for weight in (separated, separated * (1 - away))
    ]
    full, small = (part - scipy.special.logsumexp(part) for part in parts)
    truth = float(np.sum((np.exp(full) - np.exp(small)) * (full - small)))
    uniform = np.random.default_rng(seed).uniform(size=(4, num_draws // 4))
    return np.interp(np.interp(uniform, np.cumsum(np.exp(small)), grid), grid, full - small), truth


def heavy(seed, scale):
    """Weights 1 + scale (t^−0.85 − 1), t uniform: k-hat is 0.85, however small the scale is."""
    t = np.random.default_rng(seed).uniform(size=(4, 250))
    return np.log1p(scale * (t**-0.85 - 1))


def test_khat_does_not_decide_where_all_weights_are_nearly_equal():
    """k-hat has no scale: of ratios within a per cent it finds a tail as heavy as of any."""
    found = [certificate(heavy(seed, 1e-5)) for seed in range(40)]
    above = [one for one in found if one.khat_limit < one.khat < 1]
    assert len(above) > 15
    for one in above:
        assert one.weight_ess > 990
        # With a k-hat near one, what lies beyond the largest weight is not known well enough.
        if one.log_ratios.max() - one.log_ratios.min() > 0.1:
            continue
        assert one.verdict == "good" if one.khat < 0.8 else one.verdict != "don't use"
        assert "a few draws" not in one.reason
        assert "of one another" in one.reason
        assert "at least" not in str(one)
    assert sum(one.verdict == "good" for one in above) > 5
    one = above[0]
    wide = [certificate(heavy(seed, 0.01)) for seed in range(40)]
    assert all(w.verdict == "don't use" for w in wide if w.khat > w.khat_limit)
    # Nor does a tail without a mean, unless the weights differ.
    assert dataclasses.replace(one, khat=1.2).verdict == one.verdict
    assert dataclasses.replace(one, weight_ess=0.99 * one.num_draws).verdict == "don't use"
    assert dataclasses.replace(one, khat=np.inf).verdict == "don't use"
    short = dataclasses.replace(one, ess=80.0)
    assert short.verdict == "don't use"
    assert short.summary.startswith(f"coreset not judged (k-hat {one.khat:.2f}); chains short")
    assert "80 effective draws are too few" in short.reason
    assert "run NUTS for longer" in short.reason
    with pytest.raises(CorrectionError, match=r"reweighted.*run NUTS for longer"):
        require_reweightable(short)
    longer = dataclasses.replace(short, khat=0.3)
    assert longer.coreset_verdict == "good"
    impossible = one.log_ratios.copy()
    impossible[0, 0] = -np.inf
    assert dataclasses.replace(one, log_ratios=impossible).verdict == "don't use"


@pytest.mark.parametrize("away", [1e-3, 0.02, 0.1])
def test_good_is_right_of_a_rare_level(away):
    for seed in range(20):
        ratios, truth = rare_level(seed, away=away)
        found = certificate(ratios)
        assert truth < 0.02 or found.verdict != "good"
        assert found.kl - 4 * found.kl_standard_error < truth


def test_errors_count_what_the_tail_has_beyond_the_largest_weight():
    """A posterior whose sd is 0.7 of the full one's: the true shape is 0.51, mean k-hat 0.56."""
    rng = np.random.default_rng(3)
    wide, narrow = np.eye(3), 0.49 * np.eye(3)
    forward = gaussian_kl(np.zeros(3), wide, np.full(3, 0.17), narrow)
    inside = []
    for _ in range(200):
        b = 0.17 + 0.7 * rng.normal(size=(4, 250, 3))
        ratios = scipy.stats.norm.logpdf(b) - scipy.stats.norm.logpdf(b, 0.17, 0.7)
        found = certificate(ratios.sum(-1))
        inside.append(abs(found.kl_forward - forward) < 2 * found.kl_forward_standard_error)
    assert np.mean(inside) > 0.8  # 0.6 without it


def test_all_rows_are_certified_without_error(poor):
    coreset = whole(regression, poor.x, poor.y)
    found = certify(coreset, poor.samples)
    assert found.verdict == "good"
    assert found.kl < 1e-6
    assert abs(found.log_evidence_ratio) < 1e-3
    constant = certificate(np.full((2, 100), 3.0))
    assert constant.khat == 0.0
    assert constant.kl == pytest.approx(0, abs=1e-12)
    assert constant.ess == pytest.approx(200)
    assert constant.log_evidence_ratio == pytest.approx(3.0)


def test_flat_draws_are_one_chain_and_thinning_is_even(poor, poor_certificate):
    coreset = coreset_of(poor)
    flat = {"b": poor.samples["b"].reshape(-1, 3)}
    found = certify(coreset, flat)
    assert (found.num_chains, found.num_draws) == (1, 1000)
    by_chain = certify(coreset, poor.samples)
    assert (by_chain.num_chains, by_chain.num_draws) == (4, 1000)
    places = np.linspace(0, 999, 250).round().astype(int)
    expected = poor_certificate.log_ratios[:, places]
    np.testing.assert_allclose(by_chain.log_ratios, expected, atol=1e-2)


def test_cost_is_draws_times_rows(poor):
    coreset = coreset_of(poor)
    # As many in each chain: thirteen of four, for at least 50.
    assert jc.certificate_cost(coreset, poor.samples, num_draws=50) == 52 * 2000
    assert jc.certificate_cost(coreset, poor.samples) == 1000 * 2000
    assert jc.certificate_cost(coreset, poor.samples, num_draws=None) == 4000 * 2000


def test_progress_bar_states_the_cost(poor, monkeypatch):
    import jaxcoreset.diagnostics.measurement as module

    seen, real = [], module.progress_bar

    def note(total, what, **options):
        seen.append((total, what, options["show"]))
        return real(total, what, **options | {"show": False})

    monkeypatch.setattr(module, "progress_bar", note)
    jc.certify(coreset_of(poor), poor.samples)
    assert seen == [(2000, "1,000 draws × 2,000 rows", True)]


def test_certificate_survives_json_and_prints_its_numbers(poor_certificate):
    again = jc.Certificate.from_dict(json.loads(json.dumps(poor_certificate.to_dict())))
    assert str(again) == str(poor_certificate)
    np.testing.assert_array_equal(again.log_weights, poor_certificate.log_weights)
    text = str(again)
    for part in ("k-hat", "100 of 2,000", "4,000 in 4 chains", "usable with correction"):
        assert part in text
    bad = dataclasses.replace(poor_certificate, khat=1.3)
    assert "at least" in str(bad)
    assert "larger coreset" in str(bad)


def test_loaded_coreset_is_certified_and_corrected_with_the_data_given_again(poor, tmp_path):
    x, y, coreset = poor.x, poor.y, coreset_of(poor)
    loaded = jc.load(coreset.save(tmp_path / "rows"), trust=True)
    assert loaded.likelihood is None
    assert loaded.model.weighs_as(coreset.model)
    message = (
        r"loaded, updated or merged; pass the model's arguments with all rows, .* the new ones"
    )
    refused(message, loaded, poor.samples)
    here = certify(coreset, poor.samples)
    there = certify(loaded, poor.samples, x.astype(np.float32), jnp.asarray(y))
    np.testing.assert_allclose(here.log_ratios, there.log_ratios, atol=0.05)
    corrected = jc.correct(loaded, poor.samples, x, y, num_draws=1000, progress_bar=False)
    found = corrected["sample_stats"]["log_ratio"]
    np.testing.assert_allclose(here.log_ratios, found, atol=1e-3)


def test_other_data_are_refused(poor):
    coreset = coreset_of(poor, likelihood=None)
    x, y, draws = poor.x, poor.y, poor.samples
    refused("has 1999 rows, but the coreset was built from 2000", coreset, draws, x[1:], y[1:])
    refused("same data in the same order", coreset, draws, x[::-1].copy(), y[::-1].copy())
    refused("have the structure", coreset, draws, x, y=y)
    refused("not the coreset's own rows", coreset, draws, *coreset.args)
    refused("expected only one of them", coreset, draws, x, y, likelihood=poor.likelihood)
    assert certify(coreset, draws, likelihood=poor.likelihood).num_draws == 1000


@pytest.mark.parametrize("keeps_all", [False, True])
def test_data_that_were_changed_in_place_are_refused(keeps_all):
    found = case()
    x, y = found.x, found.y = found.x.astype(np.float32), found.y.astype(np.float32)
    found.likelihood = jc.model_likelihood(regression, (x, y))
    coreset = whole(regression, x, y) if keeps_all else coreset_of(found)
    draws = {"b": found.full.mean + 0.01 * np.random.default_rng(0).normal(size=(1000, 3))}
    before = certify(coreset, draws).log_ratios
    kept = x.copy()
    x[:] = x[::-1].copy()
    refused("changed in place after the build", coreset, draws)
    np.testing.assert_allclose(certify(coreset, draws, kept, y).log_ratios, before, atol=1e-3)


def test_arguments_that_are_no_data_must_be_the_same():
    def model(x, scales, n, y=None):
        b = numpyro.sample("b", dist.Normal(0.0, scales).to_event(1))
        with numpyro.plate("rows", n):
            numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)

    rng = np.random.default_rng(0)
    x, y, scales = rng.normal(size=(300, 2)), rng.normal(size=300), np.array([1.0, 2.0])
    draws = {"b": rng.normal(size=(1000, 2)) * 0.1}
    coreset = whole(model, x, scales, 300, y=y)
    coreset.likelihood = None
    found = certify(coreset, draws, x, scales, 300, y=y)
    assert found.num_data == 300
    refused("other arguments", coreset, draws, x, 2 * scales, 300, y=y)


def test_samples_that_do_not_fit_are_refused(poor):
    coreset = coreset_of(poor)
    b = poor.samples["b"]
    refused("no samples of b", coreset, {"a": b})
    refused("shape", coreset, {"b": b[..., :2]})
    refused("finite", coreset, {"b": np.where(b > 1, np.nan, b)})
    refused("40 draws to use", coreset, {"b": b[0, :40]})
    refused("num_draws is 3", coreset, poor.samples, num_draws=3)
    settings = {"num_warmup": 5, "num_samples": 60}
    refused("no samples yet", coreset, MCMC(NUTS(coreset.model), **settings))
    refused("without weights", coreset, MCMC(NUTS(regression), **settings))
    other = weighted_model(coreset.model.model, 2 * coreset.weights, coreset.data_dims)
    refused("of another coreset", coreset, MCMC(NUTS(reparam(other, config={})), **settings))


def test_chain_that_never_moved_is_refused(poor):
    """By all other measures it is perfect: its log-ratios have no spread at all."""
    coreset = coreset_of(poor)
    stuck = {name: np.array(values) for name, values in poor.samples.items()}
    for values in stuck.values():
        values[1] = values[1, :1]
    refused(r"every draw of chain 1 of \d+ is the same", coreset, stuck)
    line = {"b": poor.samples["b"][..., :1] * np.ones(3, np.float32)}
    refused("vary in 1 of 3 directions only", coreset, line)


def test_draw_that_the_data_rule_out_has_weight_zero_and_nan_is_named():
    draws = np.array([[0.5], [1.5], [2.5]])
    data = np.array([[0.1], [1.0], [0.3]])

    def uniform(draw, rows):
        return jnp.where(rows[:, 0] < draw[0], -jnp.log(draw[0]), -jnp.inf)

    found = log_likelihood_totals(uniform, draws, data)
    np.testing.assert_allclose(found, [-np.inf, -3 * np.log(1.5), -3 * np.log(2.5)], rtol=1e-6)
    with pytest.raises(ValueError, match=r"NaN or \+inf .* 1 of 3 rows.*\[1\]"):
        log_likelihood_totals(lambda draw, rows: rows[:, 0] / (rows[:, 0] != 1), draws, data)
    ratios = np.random.default_rng(0).normal(size=(2, 500)) * 0.1
    ratios[0, :5] = -np.inf
    found = certificate(ratios)
    assert found.kl_reverse == np.inf
    assert np.isfinite(found.kl_forward)
    np.testing.assert_array_equal(np.exp(found.log_weights[0, :5]), 0)
    assert found.log_evidence_ratio == pytest.approx(
        scipy.special.logsumexp(ratios) - np.log(1000), abs=1e-3
    )


def test_certificate_knows_the_rounding_of_the_coreset_unless_the_draws_are_in_float64(poor):
    coreset = coreset_of(poor)
    coreset.report = dataclasses.replace(coreset.report, rounding=0.4)
    assert "in_float64" in coreset.report.verdict
    b = poor.samples["b"]
    assert certify(coreset, {"b": b}).rounding == 0.4
    exact = {"b": b.astype(np.float64)}
    assert certify(coreset, exact).rounding is None
    refused(r"never moved.*in_float64", coreset, {"b": np.full_like(b, 0.5)})
    refused(r"have mixed.*in_float64", coreset, {"b": np.tile(b[:, :2], (1, 500, 1))})


def test_divergent_transitions_are_counted_without_being_asked_for(poor, monkeypatch):
    coreset = coreset_of(poor)
    mcmc = MCMC(NUTS(coreset.model), num_warmup=200, num_samples=500, progress_bar=False)
    mcmc.run(jax.random.key(0), *coreset.args, **coreset.kwargs)
    assert certify(coreset, mcmc).divergent == 0
    assert certify(coreset, poor.samples).divergent is None
    fields = {"diverging": np.arange(500) < 150}
    monkeypatch.setattr(mcmc, "get_extra_fields", lambda: fields)
    found = certify(coreset, mcmc)
    assert (found.chains_verdict, found.verdict) == ("divergent", "don't use")
    assert "30% divergent transitions" in found.reason
