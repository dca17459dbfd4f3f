"""What a certificate says of the coreset and of the chains."""

import dataclasses

import numpy as np

import jaxcoreset as jc
from jaxcoreset.diagnostics.measurement import certificate_of


def test_few_effective_draws_are_told_of_a_good_coreset_too():
    ratios = 1e-3 * np.random.default_rng(0).normal(size=(4, 250))
    facts = {"num_data": 10, "num_rows": 2}
    few = certificate_of(ratios, 0.05, rhat=1.03, **facts)
    assert few.verdict == "good"
    assert few.chains_verdict == "short"
    assert "There are only 50 effective draws (R-hat 1.03): run NUTS for longer" in few.reason
    assert "R-hat" not in certificate_of(ratios, 0.05, rhat=1.005, **facts).reason
    assert "effective" not in certificate_of(ratios, 0.5, rhat=1.03, **facts).reason


def test_coreset_and_chains_are_judged_apart():
    ratios = 1e-3 * np.random.default_rng(0).normal(size=(4, 250))
    good = certificate_of(ratios, num_data=10, num_rows=2)
    facts = f"{good.kl:.2g} ± {good.kl_standard_error:.1g} nats, k-hat {good.khat:.2f}"
    assert good.summary == f"coreset good ({facts}); chains converged (R-hat 1.00)"
    apart = dataclasses.replace(good, rhat=1.52)
    assert apart.coreset_verdict == "good"
    assert apart.chains_verdict == "not converged"
    assert apart.verdict == "don't use"
    assert f"coreset good ({facts}) where" in apart.summary
    assert "chains not converged (R-hat 1.52): run them longer" in str(apart)
    far = dataclasses.replace(good, khat=1.2, ess=3.0, weight_ess=5.0)
    assert (far.coreset_verdict, far.chains_verdict) == ("don't use", "converged")
    assert "coreset too far from the full posterior (k-hat 1.20, limit 0.67)" in far.summary
    tail = dataclasses.replace(good, khat=0.8, weight_ess=900.0)
    assert tail.verdict == "don't use"
    assert "nats from the full posterior, but with a long tail (k-hat 0.80" in tail.summary
    assert "Run longer chains" in tail.reason
    few = dataclasses.replace(good, khat=1.2, ess=3.0)  # and the weights are nearly equal
    assert (few.coreset_verdict, few.chains_verdict) == ("not known", "short")
    assert few.verdict == "don't use"
    lost = dataclasses.replace(good, excess=100.0)
    assert (lost.coreset_verdict, lost.chains_verdict) == ("not known", "elsewhere")
    assert "init_params" in lost.summary
    assert dataclasses.replace(good, rhat=np.nan).verdict == "don't use"


def test_chains_that_float32_rounds_are_told_to_use_float64():
    ratios = 1e-3 * np.random.default_rng(0).normal(size=(4, 250))
    good = certificate_of(ratios, num_data=10, num_rows=2)
    assert "in_float64" not in str(good)
    rounded = dataclasses.replace(good, rounding=0.4)
    for one in (
        rounded,
        dataclasses.replace(rounded, rhat=2.4),
        dataclasses.replace(rounded, ess=20.0),
        dataclasses.replace(rounded, khat=1.2, ess=3.0),
    ):
        for text in (one.summary, one.reason):
            assert "0.4 nats" in text
            assert "sample within coreset.in_float64()" in text
            assert "longer" not in text
    assert jc.Certificate.from_dict(rounded.to_dict()).rounding == 0.4


def test_chains_with_many_divergent_transitions_are_told_to_take_smaller_steps():
    ratios = 1e-3 * np.random.default_rng(0).normal(size=(4, 250))
    good = certificate_of(ratios, num_data=10, num_rows=2)
    few = dataclasses.replace(good, divergent=0.004)
    assert few.verdict == "good"
    assert "0.4% divergent transitions" in str(few)
    assert "divergent" not in str(dataclasses.replace(good, divergent=0.0))
    many = dataclasses.replace(good, divergent=0.336)
    assert (many.coreset_verdict, many.chains_verdict) == ("good", "divergent")
    assert many.verdict == "don't use"
    for text in (many.summary, many.reason):
        assert "34% divergent transitions" in text
        assert "target_accept_prob=0.99" in text
    rounded = dataclasses.replace(many, rounding=0.4)
    assert "in_float64" in rounded.summary
    assert "target_accept_prob" not in str(rounded)
    assert jc.Certificate.from_dict(many.to_dict()).divergent == 0.336
