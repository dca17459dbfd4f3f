"""The labels of groups: whose effect is whose, and which groups of an update are new."""

import copy
import dataclasses
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

import jaxcoreset as jc
from jaxcoreset.coreset.warn import warn_if_bad
from jaxcoreset.data.processes import ProcessGroup
from jaxcoreset.likelihood import ModelError
from jaxcoreset.likelihood.group_names import GroupNames, labels_of_all
from jaxcoreset.weighting.chains import samples_of_full
from tests.builders.conftest import GROUP, NUM_GROUPS, Y, effects_given
from tests.likelihood.group_models import means, normals

NUM_NEW = 20
# The labels of the new groups sort before those of the build.
TEXT = np.array([f"N{number:03d}" for number in range(NUM_GROUPS)])
NEW_TEXT = np.array([f"A{number:02d}" for number in range(NUM_NEW)])
NEW_GROUP, NEW_Y = means(NUM_NEW, seed=1)
SHAPES: dict[str, tuple[int, ...]] = {"mu": (), "tau": (), "sigma": ()}


@pytest.fixture(scope="module")
def named(of_groups):
    """The same coreset, with text labels."""
    coreset = copy.copy(of_groups)
    coreset.grouping = dataclasses.replace(coreset.grouping, names=GroupNames(TEXT))
    return coreset


@pytest.fixture(scope="module")
def updated(named):
    return named.update(jax.random.key(3), NEW_TEXT[NEW_GROUP], NUM_NEW, NEW_Y)


@pytest.fixture(scope="module")
def corrected(named, samples):
    return jc.correct(named, samples, progress_bar=False)


@pytest.fixture(scope="module")
def whole():
    """A coreset of all groups, which needs no draws, with text labels."""
    builder = jc.CoresetBuilder(normals, size=NUM_GROUPS, groups="group", progress_bar=False)
    return builder.run(jax.random.key(0), TEXT[GROUP], NUM_GROUPS, Y)


def test_labels_of_the_table_name_the_groups_and_all_of_them_take_no_update(whole, of_groups):
    np.testing.assert_array_equal(whole.group_names, TEXT)
    np.testing.assert_array_equal(of_groups.group_names, np.arange(NUM_GROUPS))
    assert of_groups.grouping.names.labels is None
    assert whole.report.unit == "groups"
    with pytest.raises(ValueError, match=r"all 150 groups themselves.* Build a new coreset"):
        whole.update(jax.random.key(0), NEW_TEXT[NEW_GROUP], NUM_NEW, NEW_Y)


def test_a_file_has_the_labels_unless_it_is_an_earlier_one(whole, tmp_path):
    path = whole.save(tmp_path / "whole")
    np.testing.assert_array_equal(jc.load(path, normals).group_names, TEXT)
    content = dict(np.load(path))
    header = content["header"].tobytes().decode()
    before = header.replace('"group_names"', '"not_yet_written"').encode()
    content["header"] = np.frombuffer(before, np.uint8)
    np.savez(tmp_path / "earlier.npz", allow_pickle=False, **content)
    earlier = jc.load(tmp_path / "earlier.npz", normals)
    assert earlier.group_names is None
    np.testing.assert_array_equal(earlier.indices, whole.indices)


def test_an_update_refuses_rows_of_earlier_groups(named):
    labels = np.concatenate([NEW_TEXT, ["N007", "N041"]])
    group = np.concatenate([NEW_GROUP, [NUM_NEW, NUM_NEW + 1]])
    y = np.concatenate([NEW_Y, [0.0, 1.0]]).astype(np.float32)
    with pytest.raises(
        ModelError, match=r"2 of the 22 labels in argument group .* 'N007', 'N041'.* new coreset"
    ):
        named.update(jax.random.key(3), labels[group], NUM_NEW + 2, y)


def test_an_updated_coreset_counts_groups_and_names_all_of_them(updated):
    assert updated.report.num_data == NUM_GROUPS + NUM_NEW
    assert updated.args[1] == len(updated)
    assert updated.report.unit == "groups"
    assert updated.report.integration == "integrated out in closed form"
    assert updated.report.integral_kl == 0
    assert "of 170 groups" in repr(updated)
    np.testing.assert_array_equal(updated.group_names, np.concatenate([TEXT, NEW_TEXT]))


def test_effects_after_an_update_are_in_the_order_of_the_names(updated, samples):
    text = np.concatenate([TEXT[GROUP], NEW_TEXT[NEW_GROUP]])
    y, num = np.concatenate([Y, NEW_Y]), NUM_GROUPS + NUM_NEW
    found = updated.group_effects(jax.random.key(0), samples, text, num, y, num_draws=64)
    group = np.concatenate([GROUP, NUM_GROUPS + NEW_GROUP])
    means, _ = effects_given(samples, group, y, num)
    np.testing.assert_allclose(found["mean"].mean(axis=0), means.mean(axis=0), atol=0.3)
    other = np.where(text == "A03", "B03", text)
    with pytest.raises(ModelError, match="labels 'B03' are unknown"):
        updated.group_effects(jax.random.key(0), samples, other, num, y)


def test_a_coreset_without_a_summary_names_no_merge(of_groups):
    coreset = copy.copy(of_groups)
    coreset.summary = None
    with pytest.raises(ValueError, match=r"no summary of the groups .* from all groups instead"):
        coreset.update(jax.random.key(3), NEW_GROUP, NUM_NEW, NEW_Y)


def test_numbers_that_go_on_are_still_numbers_and_labels_of_another_kind_are_refused():
    plain = GroupNames()
    assert plain.joined(3, GroupNames(np.array([3, 4])), 2, "group").labels is None
    joined = plain.joined(3, GroupNames(np.array([7, 9])), 2, "group")
    np.testing.assert_array_equal(joined.labels, [0, 1, 2, 7, 9])
    with pytest.raises(ModelError, match=r"1 of the 2 labels in argument group .*: 2."):
        plain.joined(3, GroupNames(np.array([2, 9])), 2, "group")
    with pytest.raises(ModelError, match=r"such as 0, are of another kind .* 'N000'"):
        GroupNames(TEXT).joined(NUM_GROUPS, plain, NUM_NEW, "group")


class _Together(ProcessGroup):
    """Two threads in place of two processes."""

    count = 2

    def __init__(self, index, barrier, box):
        self.index, self._barrier, self._box = index, barrier, box

    def gather(self, state):
        self._box[self.index] = state
        self._barrier.wait()
        found = list(self._box)
        self._barrier.wait()
        return found


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((None, None), None),
        ((np.array([5, 9]), None), [5, 9, 0, 1]),
        ((np.array([0.5]), np.array([5, 9])), [0.5, 5, 9]),
        ((np.array(["b", "c", "e"]), np.array(["aaa", "d"])), ["b", "c", "e", "aaa", "d"]),
        ((np.array(["b", "c"]), None), ["b", "c", "0", "1"]),
    ],
)
def test_labels_of_processes_are_joined_in_their_order(parts, expected):
    barrier, box = threading.Barrier(2, timeout=60), [None, None]

    def one(index):
        part = parts[index]
        num = 2 if part is None else part.size
        return labels_of_all(part, num, _Together(index, barrier, box))

    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(one, range(2)):
            assert (None if found is None else found.tolist()) == expected


def test_effects_are_drawn_from_what_correct_returned(named, samples, corrected):
    found = named.group_effects(jax.random.key(0), corrected, num_draws=64)
    weights = np.exp(np.asarray(corrected["sample_stats"]["log_weight"])).ravel()
    means, _ = effects_given(samples, GROUP, Y, NUM_GROUPS)
    np.testing.assert_allclose(found["mean"].mean(axis=0), weights @ means, atol=0.3)


def test_draws_without_weight_are_left_out_and_resampled_ones_are_taken_as_they_are(
    named, corrected, samples
):
    def taken(data):
        return samples_of_full(data, SHAPES, np.random.default_rng(0)).sites["mu"]

    mu = np.asarray(samples["mu"])
    weighted = corrected.copy()
    log_weight = np.where(mu > np.median(mu), -np.log(200), -np.inf)[None]
    weighted["sample_stats"]["log_weight"] = (("chain", "draw"), log_weight)
    assert taken(weighted).shape == (1, 400)
    np.testing.assert_array_equal(np.unique(taken(weighted)), np.sort(mu[mu > np.median(mu)]))
    data = jc.correct(named, samples, resample=True, key=jax.random.key(1), progress_bar=False)
    np.testing.assert_array_equal(taken(data), np.asarray(data["posterior"]["mu"]))


def test_draws_that_are_corrected_are_not_certified_again(named, corrected):
    with pytest.raises(ValueError, match="what correct returned, whose draws are corrected"):
        jc.certify(named, corrected, progress_bar=False)


def test_chains_on_all_groups_start_from_corrected_draws(named, samples, corrected):
    start = named.warm_start(corrected, num_chains=2)
    assert set(start.init_params) == {"mu", "tau", "sigma", "mean"}
    assert np.isin(np.asarray(start.init_params["mu"]), np.asarray(samples["mu"])).all()


def test_arviz_has_effects_by_label(named, samples):
    plain = named.group_effects(jax.random.key(0), samples)
    posterior = named.group_effects(jax.random.key(0), samples, arviz=True)["posterior"]
    effect = posterior["mean"]
    assert effect.dims == ("chain", "draw", "group")
    np.testing.assert_array_equal(effect.coords["group"], TEXT)
    one = effect.sel(group="N041").values
    np.testing.assert_array_equal(one, plain["mean"][None, :, 41])
    with pytest.raises(ValueError, match="moments and arviz are both True"):
        named.group_effects(jax.random.key(0), samples, moments=True, arviz=True)


@pytest.mark.parametrize("tol", [None, 0.05])
def test_a_large_error_of_the_integrals_causes_a_warning(of_groups, tol):
    report = dataclasses.replace(
        of_groups.report, integration="integrated out by Laplace's approximation", tol=tol
    )
    with pytest.warns(UserWarning, match=r"Laplace's approximation, and the error .* adds 0.06"):
        warn_if_bad(dataclasses.replace(report, integral_kl=0.06))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_bad(dataclasses.replace(report, integral_kl=0.01))
