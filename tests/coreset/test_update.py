"""Coresets without going back to old rows: held to closed-form posteriors of all of them."""

import copy
import math
import pickle
import warnings

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import jaxcoreset as jc
from jaxcoreset.command.html import html_report
from jaxcoreset.coreset.report import Report
from jaxcoreset.coreset.summary import DataSummary
from tests.models import by_number

NUM_ROWS, WIDTH = 4000, 3


def model(x, y, scale=1.0):
    slopes = numpyro.sample("slopes", dist.Normal(0, 10).expand([WIDTH]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ slopes, scale), obs=y)


def rows(seed, num=NUM_ROWS, slopes=1.0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num, WIDTH)).astype(np.float32)
    return x, (x @ np.full(WIDTH, slopes) + rng.normal(size=num)).astype(np.float32)


def posterior(x, y, weights=None):
    """Mean and precision of the slopes: a Gaussian, exactly."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    weights = np.ones(len(y)) if weights is None else np.asarray(weights, np.float64)
    precision = (x * weights[:, None]).T @ x + 0.01 * np.eye(WIDTH)
    return np.linalg.solve(precision, x.T @ (weights * y)), precision


def symmetrised_kl(one, two):
    shift = one[0] - two[0]
    traces = np.trace(np.linalg.solve(one[1], two[1]) + np.linalg.solve(two[1], one[1]))
    return 0.5 * (traces - 2 * WIDTH + shift @ (one[1] + two[1]) @ shift)


def posteriors(coreset, *parts):
    """That of all rows, and the coreset's."""
    everything = [np.concatenate(leaf) for leaf in zip(*parts, strict=True)]
    return posterior(*everything), posterior(*coreset.args[:2], coreset.weights)


def truth(coreset, *parts):
    return symmetrised_kl(*posteriors(coreset, *parts))


def variance(coreset, *parts):
    """Of L − L_w under the posterior of all rows: what a report's `kl` estimates.

    That is the symmetrised KL where both are small; with three rows for three slopes they are not.
    """
    (mean, precision), (own_mean, own_precision) = posteriors(coreset, *parts)
    covariance = np.linalg.inv(precision)
    gradient = own_precision @ (own_mean - mean)
    curved = (precision - own_precision) @ covariance
    return gradient @ covariance @ gradient + 0.5 * np.trace(curved @ curved)


def build(data, size=7, num_held_out=400, **settings):
    settings |= {"num_draws": 100, "num_held_out": num_held_out, "progress_bar": False}
    return jc.CoresetBuilder(model, size=size, **settings, proxy=None).run(jax.random.key(0), *data)


@pytest.fixture(scope="module")
def old():
    return build(rows(0))


def test_update_is_the_coreset_of_all_rows(old):
    new = rows(1, 400)
    coreset = old.update(jax.random.key(1), *new)
    assert coreset.report.num_data == NUM_ROWS + 400
    assert len(coreset) <= 7
    exact = truth(coreset, rows(0), new)
    assert exact < 0.1
    assert 0.4 < coreset.report.kl / exact < 2.5
    # The old coreset, taken for all rows, is far off.
    assert truth(old, rows(0), new) > 10 * exact


def test_updated_row_numbers_go_on_from_the_old_ones(old):
    new = rows(1, 400)
    coreset = old.update(jax.random.key(1), *new)
    everything = [np.concatenate(leaf) for leaf in zip(rows(0), new, strict=True)]
    for kept, leaf in zip(coreset.args, everything, strict=False):
        np.testing.assert_array_equal(kept, leaf[coreset.indices])
    assert (np.diff(coreset.indices) > 0).all()


def test_update_after_saving_is_the_same(old, tmp_path):
    new = rows(1, 400)
    loaded = jc.load(old.save(tmp_path / "old"), model)
    here, there = (one.update(jax.random.key(1), *new) for one in (old, loaded))
    np.testing.assert_array_equal(here.indices, there.indices)
    np.testing.assert_array_equal(here.weights, there.weights)


@pytest.mark.slow
def test_updates_follow_each_other(old):
    parts = [rows(seed, 200) for seed in (1, 2, 3)]
    coreset = old
    for part in parts:
        coreset = coreset.update(jax.random.key(1), *part)
    assert truth(coreset, rows(0), *parts) < 0.1
    worths = [step["relative_ess"] for step in coreset.report.history]
    assert len(worths) == 3
    assert worths[2] < worths[0]  # π̂ is of ever older rows


@pytest.mark.slow
def test_rows_that_change_everything_are_told():
    few = rows(0, 200)
    with pytest.warns(UserWarning, match="too few to estimate the error"):
        coreset = build(few).update(jax.random.key(1), *rows(1, 4000, slopes=1.5))
    step = coreset.report.history[0]
    assert step["relative_ess"] < 0.1
    assert "too few to estimate the error" in str(coreset.report)


@pytest.fixture(scope="module")
def with_tol():
    return build(rows(0), size=None, tol=jc.Tolerance(0.05, max_size=8))


OTHER = rows(1, NUM_ROWS, slopes=5.0)


@pytest.fixture(scope="module")
def drifted(with_tol):
    message = r"too few to estimate .* build a new coreset from all rows"
    with pytest.warns(UserWarning, match=message):
        return with_tol.update(jax.random.key(1), *OTHER)


def test_an_error_that_cannot_be_known_is_infinite_and_within_no_tolerance(drifted):
    report, step = drifted.report, drifted.report.history[-1]
    # What the draws say by themselves: nothing is wrong. It is off by far.
    exact = truth(drifted, rows(0), OTHER)
    assert step["relative_ess"] < 0.1
    assert exact > 10 * max(step["kl"], step["kl_weighted"])
    assert math.isfinite(step["kl"])
    assert math.isfinite(step["kl_weighted"])
    assert report.kl == report.kl_standard_error == math.inf
    assert report.is_within_tol is False


def test_an_error_that_cannot_be_known_is_shown_so(drifted):
    text = str(drifted.report)
    assert "inf" not in text
    assert "estimated KL    not known\n" in text
    assert "not known to be met" in text
    assert repr(drifted).endswith("KL not known>")
    page = html_report(drifted)
    assert "The error is not known" in page
    assert "<td>not known</td>" in page
    assert "This coreset has no estimate" in page
    assert "inf ±" not in page
    assert "lower bound)" not in page


def test_an_error_that_cannot_be_known_survives(drifted, tmp_path):
    loaded = jc.load(drifted.save(tmp_path / "drifted"), model)
    assert loaded.report.kl == loaded.report.kl_standard_error == math.inf
    assert loaded.report.is_within_tol is False
    assert str(loaded.report) == str(drifted.report)
    with pytest.warns(UserWarning, match="too few to estimate the error"):
        again = loaded.update(jax.random.key(2), *rows(2, 100))
    assert again.report.num_data == 2 * NUM_ROWS + 100
    assert again.report.kl == math.inf
    assert again.report.is_within_tol is False


def test_an_error_that_cannot_be_known_is_not_known_of_a_merger(drifted, old):
    merged = jc.merge([old, drifted], 8, jax.random.key(0))
    assert merged.report.kl == merged.report.kl_standard_error == math.inf
    assert merged.report.is_within_tol is None
    assert math.isfinite(merged.report.history[-1]["kl"])
    assert "at least one of which has an unknown error" in str(merged.report)
    assert "inf" not in str(merged.report)
    assert "The error is not known" in html_report(merged)


def test_few_draws_do_not_tell_that_they_are_worth_little():
    """Eight are worth an eighth at least, by their own weights, however far they are."""
    coreset = build(rows(0), num_held_out=8, rounds=1)
    with pytest.warns(UserWarning, match=r"the 8 old draws .* are worth 1\.\d draws"):
        coreset = coreset.update(jax.random.key(1), *OTHER)
    assert coreset.report.history[-1]["relative_ess"] > 0.1
    assert coreset.report.kl == math.inf
    assert "too few to estimate the error" in str(coreset.report)


@pytest.mark.parametrize("slopes", [1.0, 1.1, 2.0])
def test_an_estimate_that_is_given_can_be_relied_on(with_tol, slopes):
    """Whatever the shift: it is not far below the closed form, or infinite."""
    new = rows(1, 400, slopes=slopes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        coreset = with_tol.update(jax.random.key(1), *new)
    assert variance(coreset, rows(0), new) < 2 * coreset.report.kl
    if "at least" not in str(coreset.report):
        assert truth(coreset, rows(0), new) < 2 * coreset.report.kl
    if slopes == 1.0:
        assert math.isfinite(coreset.report.kl)


def test_reports_of_earlier_versions_are_still_read(drifted):
    """They have other names, and do not say how many draws the old ones are worth."""
    plain = drifted.report.to_dict()
    (step,) = plain["history"]
    step["efficiency"] = step.pop("relative_ess")
    del step["ess"], plain["candidate_searches"]
    search = {"best_gain": 0.5, "num_added": 0, "objective": 1.0, "objective_after": 1.0}
    text = str(Report.from_dict(plain | {"pricing": [search]}))
    assert "too few to estimate the error" in text
    assert "lowers the objective by 50.0%" in text


def test_summaries_of_earlier_versions_are_still_read(with_tol):
    plain = with_tol.summary.to_dict()
    earlier = {"selection": "select", "confirmation": "confirm"}
    for part in plain["parts"]:
        part["use"] = earlier.get(part["use"], part["use"])
    again = DataSummary.from_dict(plain)
    assert [part.use for part in again.parts] == [part.use for part in with_tol.summary.parts]


def test_pickled_coreset_is_the_same_and_can_be_updated(old):
    assert old.likelihood is not None
    there = pickle.loads(pickle.dumps(old))
    assert there.likelihood is None
    np.testing.assert_array_equal(there.indices, old.indices)
    np.testing.assert_array_equal(there.weights, old.weights)
    assert there.args[0].dtype == old.args[0].dtype
    for one, other in zip(there.args, old.args, strict=True):
        np.testing.assert_array_equal(one, other)
    assert there.kwargs == old.kwargs
    assert str(there.report) == str(old.report)
    assert there.full_model is model
    assert there.model == old.model
    np.testing.assert_array_equal(there.approximation.mode, old.approximation.mode)
    new = rows(1, 400)
    updated, expected = (one.update(jax.random.key(1), *new) for one in (there, old))
    np.testing.assert_array_equal(updated.indices, expected.indices)
    np.testing.assert_array_equal(updated.weights, expected.weights)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_in_a_process_keep_the_likelihood(old, copied):
    other = copied(old)
    assert other.likelihood.num_data == NUM_ROWS
    np.testing.assert_array_equal(other.weights, old.weights)
    assert (other.args[0] is old.args[0]) == (copied is copy.copy)
    assert other.model == old.model


def test_importance_weights_are_worth_what_the_closed_form_says(old):
    """A Gaussian posterior whose precision grows by a tenth: Kish's size is known."""
    new = rows(1, 400)
    step = old.update(jax.random.key(1), *new).report.history[0]
    before = posterior(*rows(0))
    both = posterior(*[np.concatenate(leaf) for leaf in zip(rows(0), new, strict=True)])
    rng = np.random.default_rng(0)
    draws = rng.multivariate_normal(before[0], np.linalg.inv(before[1]), 100_000)

    def log_density(mean, precision):
        return -0.5 * np.einsum("si,ij,sj->s", draws - mean, precision, draws - mean)

    ratios = np.exp(log_density(*both) - log_density(*before))
    worth = ratios.sum() ** 2 / (ratios**2).sum() / len(draws)
    assert step["relative_ess"] == pytest.approx(worth, rel=0.25)


def test_update_refuses_what_does_not_fit(old):
    x, y = rows(1, 50)
    with pytest.raises(ValueError, match="have the structure"):
        old.update(jax.random.key(0), x, y, 1.0)
    whole = build(rows(0, 10), size=10)
    with pytest.raises(ValueError, match="keeps no summary"):
        whole.update(jax.random.key(0), x, y)


@pytest.mark.slow
def test_update_refuses_another_constant():
    coreset = build((*rows(0, 300), 2.0))
    with pytest.raises(ValueError, match=r"3.0 in place of 2.0"):
        coreset.update(jax.random.key(0), *rows(1, 50), 3.0)


@pytest.fixture(scope="module")
def blocks():
    return [build(rows(seed, 1000)) for seed in range(4)]


def test_merged_coresets_are_one_of_all_rows(blocks):
    coreset = jc.merge(blocks, 8, jax.random.key(0))
    parts = [rows(seed, 1000) for seed in range(4)]
    assert coreset.report.num_data == 4000
    assert len(coreset) <= 8
    exact = truth(coreset, *parts)
    assert exact < 0.2
    assert exact < 3 * coreset.report.kl
    everything = np.concatenate([x for x, _ in parts])
    np.testing.assert_array_equal(coreset.args[0], everything[coreset.indices])


def test_merger_with_a_constraint(blocks):
    """Rows of every block, as the solver that is given wants it."""
    labels = np.repeat(np.arange(4), [len(one) for one in blocks])
    constraint = jc.StratifiedTopK(labels, reserved=2)
    merged = jc.merge(blocks, 8, jax.random.key(0), solver=jc.AIHT2(constraint=constraint))
    assert merged.report.solver == "AIHT2"
    np.testing.assert_array_equal(np.bincount(merged.indices // 1000, minlength=4), 2)


def test_error_of_a_merger_holds_that_of_its_parts(blocks):
    report = jc.merge(blocks, 8, jax.random.key(0)).report
    parts = sum(one.report.kl for one in blocks)
    assert report.kl == pytest.approx(parts + report.history[-1]["kl"])
    assert "of 4 coresets" in str(report)


def test_a_coreset_merged_alone_with_room_for_all_is_itself(blocks):
    one = blocks[0]
    merged = jc.merge([one], len(one), jax.random.key(0))
    np.testing.assert_array_equal(merged.indices, one.indices)
    np.testing.assert_allclose(merged.weights, one.weights, rtol=0.02)


@pytest.mark.parametrize(
    ("size", "again"),
    [
        (3, lambda one, new: one.update(jax.random.key(1), new)),
        (40, lambda one, new: jc.merge([one, one], 3, jax.random.key(1))),
    ],
    ids=["update", "merge"],
)
@pytest.mark.usefixtures("unverified")
def test_rows_that_are_worth_something_else_alone_are_refused(monkeypatch, size, again):
    """As the builder refuses them."""
    monkeypatch.setattr("jaxcoreset.selection.draws.check_program", lambda *given: None)
    old, new = (np.random.default_rng(seed).normal(size=2000) for seed in (0, 1))
    builder = jc.CoresetBuilder(
        by_number(5), size=size, num_draws=100, num_held_out=100, proxy=None
    )
    with monkeypatch.context() as patch:
        patch.setattr("jaxcoreset.selection.draws.check_alone", lambda *given: None)
        coreset = builder.run(jax.random.key(0), old)
    with pytest.raises(ValueError, match="of a datum at site 'y' changes when other rows"):
        again(coreset, new)


def test_merge_refuses_what_does_not_fit(blocks):
    other, third = (build((*rows(0, 300), scale)) for scale in (2.0, 3.0))
    for coresets, message in (
        ([], "coresets is empty"),
        ([blocks[0], other], "have the structure"),
        ([other, third], r"3.0 in place of 2.0"),
    ):
        with pytest.raises(ValueError, match=message):
            jc.merge(coresets, 5, jax.random.key(0))


def trials(x, m, n, y=None):
    """An integer that is no number of rows, and one that is."""
    slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Binomial(m, logits=slopes[0] + slopes[1] * x), obs=y)


def test_constants_that_happen_to_be_the_size_stay_what_they_are(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=2000).astype(np.float32)
    y = rng.binomial(3, 1 / (1 + np.exp(-0.3 - 0.5 * x)))
    blocks = []
    for half in (slice(0, 1000), slice(1000, 2000)):
        built = jc.CoresetBuilder(trials, size=3, progress_bar=False, rounds=1, proxy=None).run(
            jax.random.key(0), x[half], 3, 1000, y[half]
        )
        assert built.args[1:3] == (3, len(built)) == (3, 3)
        blocks.append(jc.load(built.save(tmp_path / "block"), trials))
    merged = jc.merge(blocks, 3, jax.random.key(1))
    assert merged.args[1:3] == (3, len(merged))
    assert merged.report.kl < 0.01
    more = blocks[0].update(jax.random.key(1), x[1000:], 3, 1000, y[1000:])
    assert more.args[1:3] == (3, len(more))
    with pytest.raises(ValueError, match="9 in place of 3"):
        blocks[0].update(jax.random.key(1), x[1000:], 9, 1000, y[1000:])
