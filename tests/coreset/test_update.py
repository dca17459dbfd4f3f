"""Coresets without going back to old rows: held to closed-form posteriors of all of them."""

import copy
import math
import pickle
import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import jaxcoreset as jc
from jaxcoreset.command.html import html_report
from jaxcoreset.coreset.report import Report
from jaxcoreset.coreset.report_table import is_unreliable
from jaxcoreset.coreset.summary import DataSummary
from jaxcoreset.likelihood.arguments import arguments_by_length
from tests import gaussian_coreset
from tests.gaussian_coreset import kl
from tests.models import by_number

NUM_ROWS, NUM_NEW, WIDTH = 1000, 100, 3


def model(x, y, scale=1.0):
    slopes = numpyro.sample("slopes", dist.Normal(0, 10).expand([WIDTH]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ slopes, scale), obs=y)


def rows(seed, num=NUM_ROWS, slopes=1.0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num, WIDTH)).astype(np.float32)
    return x, (x @ np.full(WIDTH, slopes) + rng.normal(size=num)).astype(np.float32)


def joined(*parts):
    return [np.concatenate(leaf) for leaf in zip(*parts, strict=True)]


def posterior(x, y, weights=None):
    weights = np.ones(len(y)) if weights is None else weights
    return gaussian_coreset.posterior(x, y, weights, noise=1.0, prior=10.0)


def posteriors(coreset, *parts):
    """That of all rows, and the coreset's."""
    return posterior(*joined(*parts)), posterior(*coreset.args[:2], coreset.weights)


def truth(coreset, *parts):
    full, own = posteriors(coreset, *parts)
    return kl(full, own) + kl(own, full)


def variance(coreset, *parts):
    """Of L − L_w under the posterior of all rows: what a report's `kl` estimates.

    That is the symmetrised KL where both are small; with three rows for three slopes they are not.
    """
    full, own = posteriors(coreset, *parts)
    gradient = own.precision @ (own.mean - full.mean)
    curved = (full.precision - own.precision) @ full.covariance
    return gradient @ full.covariance @ gradient + 0.5 * np.trace(curved @ curved)


def build(data, size=7, **settings):
    settings |= {"num_draws": 100, "num_held_out": 400, "progress_bar": False}
    return jc.CoresetBuilder(model, size=size, **settings, proxy=None).run(jax.random.key(0), *data)


def of_scale(scale, coreset):
    """The same rows, of a model that was given a scale."""
    arguments = arguments_by_length(model, (*coreset.args, scale), {}, len(coreset))
    parts = coreset.indices, coreset.weights, arguments, coreset.report
    return jc.Coreset(model, *parts, data_dims=coreset.data_dims, summary=coreset.summary)


@pytest.fixture(scope="module")
def blocks(old):
    return [old, *(build(rows(seed)) for seed in (1, 2))]


NEW = rows(7, NUM_NEW)


@pytest.fixture(scope="module")
def updated(old):
    return old.update(jax.random.key(1), *NEW)


@pytest.fixture(scope="module")
def of_all():
    """All of ten rows, which has no summary."""
    return build(rows(0, 10), size=10)


def test_update_is_the_coreset_of_all_rows(old, updated):
    assert updated.report.num_data == NUM_ROWS + NUM_NEW
    assert len(updated) <= 7
    exact = truth(updated, rows(0), NEW)
    assert exact < 0.1
    assert 0.4 < updated.report.kl / exact < 2.5
    # The old coreset, taken for all rows, is far off.
    assert truth(old, rows(0), NEW) > 10 * exact
    # The numbers of new rows go on from the old ones.
    for kept, leaf in zip(updated.args, joined(rows(0), NEW), strict=False):
        np.testing.assert_array_equal(kept, leaf[updated.indices])
    assert (np.diff(updated.indices) > 0).all()


def test_importance_weights_are_worth_what_the_closed_form_says(updated):
    """A Gaussian posterior whose precision grows by a tenth: Kish's size is known."""
    before, both = posterior(*rows(0)), posterior(*joined(rows(0), NEW))
    rng = np.random.default_rng(0)
    draws = rng.multivariate_normal(before.mean, before.covariance, 100_000)

    def log_density(at):
        return -0.5 * np.einsum("si,ij,sj->s", draws - at.mean, at.precision, draws - at.mean)

    ratios = np.exp(log_density(both) - log_density(before))
    worth = ratios.sum() ** 2 / (ratios**2).sum() / len(draws)
    assert updated.report.history[0]["relative_ess"] == pytest.approx(worth, rel=0.25)


def test_updates_follow_each_other(updated):
    parts = [rows(seed, NUM_NEW) for seed in (8, 9)]
    coreset = updated
    for part in parts:
        coreset = coreset.update(jax.random.key(1), *part)
    assert truth(coreset, rows(0), NEW, *parts) < 0.1
    worths = [step["relative_ess"] for step in coreset.report.history]
    assert len(worths) == 3
    assert worths[2] < worths[0]  # π̂ is of ever older rows


def test_saved_and_pickled_coresets_are_the_same_and_can_be_updated(old, updated, tmp_path):
    assert old.likelihood is not None
    loaded = jc.load(old.save(tmp_path / "old"), model)
    pickled = pickle.loads(pickle.dumps(old))
    np.testing.assert_array_equal(pickled.approximation.mode, old.approximation.mode)
    for there in (loaded, pickled):
        assert there.likelihood is None
        np.testing.assert_array_equal(there.indices, old.indices)
        np.testing.assert_array_equal(there.weights, old.weights)
        for one, other in zip(there.args, old.args, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)
        assert there.kwargs == old.kwargs
        assert str(there.report) == str(old.report)
        assert there.full_model is model
        assert there.model == old.model
        again = there.update(jax.random.key(1), *NEW)
        np.testing.assert_array_equal(again.indices, updated.indices)
        np.testing.assert_array_equal(again.weights, updated.weights)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_in_a_process_keep_the_likelihood(old, copied):
    other = copied(old)
    assert other.likelihood.num_data == NUM_ROWS
    np.testing.assert_array_equal(other.weights, old.weights)
    assert (other.args[0] is old.args[0]) == (copied is copy.copy)
    assert other.model == old.model


def test_chains_start_near_the_mode_also_without_an_approximation_and_after_load(
    old, of_all, tmp_path
):
    """The weighting may make draws only; a coreset of all rows has not even these."""
    rng = np.random.default_rng(1)
    draws = jc.Draws({"slopes": 1 + 0.05 * rng.normal(size=(600, WIDTH))})
    of_draws = build(rows(0), weighting=draws, rounds=1)
    assert of_draws.approximation is None
    for i, (coreset, num) in enumerate(((old, NUM_ROWS), (of_draws, NUM_ROWS), (of_all, 10))):
        of_all_rows = posterior(*rows(0, num))
        again = jc.load(coreset.save(tmp_path / str(i)), model)
        for one in (coreset, again):
            assert one.init_params()["slopes"].shape == (WIDTH,)
            starts = one.init_params(3)
            assert set(starts) == {"slopes"}
            assert starts["slopes"].shape == (3, WIDTH)
            for shift in np.asarray(starts["slopes"]) - of_all_rows.mean:
                assert shift @ of_all_rows.precision @ shift < 30


@pytest.fixture(scope="module")
def with_tol():
    return build(rows(0), size=None, tol=jc.Tolerance(0.05, max_size=8))


OTHER = rows(1, NUM_ROWS, slopes=5.0)


@pytest.fixture(scope="module")
def drifted(with_tol):
    message = (
        r"the [\d,]+ old draws that were held out are worth \d+\.\d draws of the posterior: "
        "too few to estimate the error, so build a new coreset from all rows"
    )
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
        again = loaded.update(jax.random.key(2), *NEW)
    assert again.report.num_data == 2 * NUM_ROWS + NUM_NEW
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


def test_few_draws_do_not_tell_that_they_are_worth_little(drifted):
    """Eight are worth an eighth at least, by their own weights, however far they are."""
    (step,) = drifted.report.history
    assert is_unreliable(step | {"relative_ess": 0.14, "ess": 1.1})
    assert not is_unreliable(step | {"relative_ess": 0.14, "ess": 56.0})


@pytest.mark.parametrize("slopes", [1.0, 1.1, 2.0])
def test_an_estimate_that_is_given_can_be_relied_on(with_tol, slopes):
    """Whatever the shift: it is not far below the closed form, or infinite."""
    new = rows(1, NUM_NEW, slopes=slopes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        coreset = with_tol.update(jax.random.key(1), *new)
    assert variance(coreset, rows(0), new) < 2 * coreset.report.kl
    if "at least" not in str(coreset.report):
        assert truth(coreset, rows(0), new) < 2 * coreset.report.kl
    if slopes == 1.0:
        assert math.isfinite(coreset.report.kl)


def test_reports_and_summaries_of_earlier_versions_are_still_read(drifted, with_tol):
    """They have other names, and do not say how many draws the old ones are worth."""
    plain = drifted.report.to_dict()
    (step,) = plain["history"]
    step["efficiency"] = step.pop("relative_ess")
    del step["ess"], plain["candidate_searches"]
    search = {"best_gain": 0.5, "num_added": 0, "objective": 1.0, "objective_after": 1.0}
    text = str(Report.from_dict(plain | {"pricing": [search]}))
    assert "too few to estimate the error" in text
    assert "lowers the objective by 50.0%" in text
    plain = with_tol.summary.to_dict()
    del plain["known"]
    earlier = {"selection": "select", "confirmation": "confirm"}
    for part in plain["parts"]:
        part["use"] = earlier.get(part["use"], part["use"])
    again = DataSummary.from_dict(plain)
    assert [part.use for part in again.parts] == [part.use for part in with_tol.summary.parts]
    assert again.known is None


def test_update_refuses_another_model(old, tmp_path):
    def other(x, y):
        slopes = numpyro.sample("slopes", dist.Normal(0, 10).expand([WIDTH]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x[:, ::-1] @ (slopes * jnp.arange(WIDTH)), 1.0), obs=y)

    loaded = jc.load(old.save(tmp_path / "old.npz"), other)
    with pytest.raises(
        ValueError, match=r"not the one that the coreset was built with: .* other log-l"
    ):
        loaded.update(jax.random.key(1), *NEW)


@pytest.mark.usefixtures("untyped")
def test_rows_that_tell_nothing_do_not_tell_models_apart():
    noise = 1e-7 * np.random.default_rng(0).normal(size=(2, 3, 16)).astype(np.float32)
    summary = DataSummary([], (), np.arange(3), 1.0, noise[0] - noise[0].mean(axis=1)[:, None])
    again = SimpleNamespace(parts=lambda use: [SimpleNamespace(values=jnp.asarray(noise[1]))])
    summary.check_same_model(again)


def test_update_refuses_what_does_not_fit(old, of_all):
    x, y = NEW
    with pytest.raises(ValueError, match="have the structure"):
        old.update(jax.random.key(0), x, y, 1.0)
    with pytest.raises(ValueError, match=r"3.0 in place of 2.0"):
        of_scale(2.0, old).update(jax.random.key(0), x, y, 3.0)
    message = r"all 10 rows themselves, .* keeps no summary .* from these rows and the new"
    with pytest.raises(ValueError, match=message):
        of_all.update(jax.random.key(0), x, y)


@pytest.fixture(scope="module")
def merged(blocks):
    return jc.merge(blocks, 8, jax.random.key(0))


def test_merged_coresets_are_one_of_all_rows(blocks, merged):
    parts = [rows(seed) for seed in range(3)]
    assert merged.report.num_data == 3 * NUM_ROWS
    assert len(merged) <= 8
    exact = truth(merged, *parts)
    assert exact < 0.2
    assert exact < 3 * merged.report.kl
    np.testing.assert_array_equal(merged.args[0], joined(*parts)[0][merged.indices])
    # Its error holds those of its parts.
    of_parts = sum(one.report.kl for one in blocks)
    assert merged.report.kl == pytest.approx(of_parts + merged.report.history[-1]["kl"])
    assert "of 3 coresets" in str(merged.report)


def test_merger_with_a_constraint(blocks):
    """Rows of every block, as the solver that is given wants it."""
    labels = np.repeat(np.arange(3), [len(one) for one in blocks])
    constraint = jc.StratifiedTopK(labels, reserved=2)
    merged = jc.merge(blocks, 6, jax.random.key(0), solver=jc.AIHT2(constraint=constraint))
    assert merged.report.solver == "AIHT2"
    np.testing.assert_array_equal(np.bincount(merged.indices // NUM_ROWS, minlength=3), 2)


def test_a_coreset_merged_alone_with_room_for_all_is_itself(old):
    merged = jc.merge([old], len(old), jax.random.key(0))
    np.testing.assert_array_equal(merged.indices, old.indices)
    np.testing.assert_allclose(merged.weights, old.weights, rtol=0.02)


def test_merge_refuses_what_does_not_fit(old):
    other, third = (of_scale(scale, old) for scale in (2.0, 3.0))
    for coresets, message in (
        ([], "coresets is empty"),
        ([old, other], "have the structure"),
        ([other, third], r"3.0 in place of 2.0"),
    ):
        with pytest.raises(ValueError, match=message):
            jc.merge(coresets, 5, jax.random.key(0))


def test_update_says_that_a_column_is_missing(old):
    shapes = rf"\({NUM_NEW}, {WIDTH + 1}\).* \({len(old)}, {WIDTH}\)"
    x = np.ones((NUM_NEW, WIDTH + 1), np.float32)
    with pytest.raises(ValueError, match=f"argument x has shape {shapes}"):
        old.update(jax.random.key(1), x, NEW[1])


def test_a_proxy_is_not_updated_where_the_posterior_of_all_rows_is_not_concave():
    """Rows of a Student-t model that are far from those before."""

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 100.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.StudentT(3.0, mu, 1.0), obs=y)

    y = np.random.default_rng(0).standard_t(3, size=600)
    builder = jc.CoresetBuilder(model, tol=0.01, progress_bar=False)
    coreset = builder.run(jax.random.key(0), y[:300])
    assert coreset.proxy is not None
    assert coreset.update(jax.random.key(1), y[300:]).report.num_data == 600
    with pytest.raises(ValueError, match="differ too much from the earlier ones: build a new"):
        coreset.update(jax.random.key(1), np.tile(5 + y, 20))


@pytest.mark.usefixtures("unverified")
def test_rows_that_are_worth_something_else_alone_are_refused(monkeypatch):
    """As the builder refuses them."""
    monkeypatch.setattr("jaxcoreset.selection.draws.check_program", lambda *given: None)
    y = np.random.default_rng(0).normal(size=NUM_ROWS + NUM_NEW)
    builder = jc.CoresetBuilder(by_number(5), size=3, num_draws=100, num_held_out=100, proxy=None)
    with monkeypatch.context() as patch:
        patch.setattr("jaxcoreset.selection.solving.check_alone", lambda *given: None)
        coreset = builder.run(jax.random.key(0), y[:NUM_ROWS])
    message = "of a datum at site 'y' changes when other rows"
    with pytest.raises(ValueError, match=message):
        coreset.update(jax.random.key(1), y[NUM_ROWS:])
    with pytest.raises(ValueError, match=message):
        jc.merge([coreset, coreset], 3, jax.random.key(1))


def trials(x, m, n, y=None):
    """An integer that is no number of rows, and one that is."""
    slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Binomial(m, logits=slopes[0] + slopes[1] * x), obs=y)


def test_constants_that_happen_to_be_the_size_stay_what_they_are(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=NUM_ROWS).astype(np.float32)
    y = rng.binomial(3, 1 / (1 + np.exp(-0.3 - 0.5 * x)))
    settings = {"num_draws": 100, "num_held_out": 100, "rounds": 1, "progress_bar": False}
    built = jc.CoresetBuilder(trials, size=3, **settings, proxy=None).run(
        jax.random.key(0), x, 3, NUM_ROWS, y
    )
    assert built.args[1:3] == (3, len(built)) == (3, 3)
    one = jc.load(built.save(tmp_path / "block"), trials)
    merged = jc.merge([one, one], 3, jax.random.key(1), num_draws=100, num_held_out=100)
    assert merged.args[1:3] == (3, len(merged))
    assert merged.report.kl < 0.01
    more = one.update(jax.random.key(1), x[:NUM_NEW], 3, NUM_NEW, y[:NUM_NEW])
    assert more.args[1:3] == (3, len(more))
    with pytest.raises(ValueError, match="9 in place of 3"):
        one.update(jax.random.key(1), x[:NUM_NEW], 9, NUM_NEW, y[:NUM_NEW])
