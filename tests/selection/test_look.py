"""Before a build of many parameters, what it takes and what to do instead is said."""

import logging
import time

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import jaxcoreset as jc
from jaxcoreset.selection import look
from jaxcoreset.selection.look import first_look, foretold
from tests.models import regression_model as wide

NUM_GROUPS = 120


def by_hand(planes, x, y=None):
    """A hierarchy whose effects are parameters."""
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    with numpyro.plate("groups", NUM_GROUPS):
        effects = numpyro.sample("effects", dist.Normal(mean, 0.5))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(effects[planes] + slope * x, 1.0), obs=y)


def hierarchy():
    rng = np.random.default_rng(0)
    planes = np.concatenate([np.arange(NUM_GROUPS), rng.integers(1, NUM_GROUPS, size=1400)])
    x, y = rng.normal(size=(2, planes.size)).astype(np.float32)
    return planes, x, y


def table(num_rows, num_columns):
    rng = np.random.default_rng(0)
    return rng.normal(size=(num_rows, num_columns)), rng.normal(size=num_rows)


def test_groups_by_hand_are_found_and_named():
    """Labels from 1 on; those of `test_the_plan_shows_the_look` are from 0 on."""
    planes, x, y = hierarchy()

    def model(planes, x, y=None):
        by_hand(planes - 1, x, y)

    found = first_look(jc.model_likelihood(model, (planes + 1, x, y)), 500)
    assert found.num_params == NUM_GROUPS + 2
    assert found.num_coefficients == 122 * 125 // 2
    assert found.groups == ("planes", NUM_GROUPS, np.bincount(planes).min())
    assert "groups='planes'" in found.advice
    assert found.seconds > 0


def test_advice_is_given_for_many_parameters_only():
    assert look.FirstLook(40, 3).advice is None
    assert "fewer rows than parameters" in look.FirstLook(60, 120).advice
    assert "fewer parameters" in look.FirstLook(200, 120).advice


def test_a_build_that_takes_three_times_what_was_foretold_says_so(monkeypatch, caplog):
    likelihood = jc.model_likelihood(wide, table(60, 120))
    late = look.FirstLook(60, 120, ("planes", 40, 1), 0.01)
    monkeypatch.setattr(look, "first_look", lambda *args, **kwargs: late)
    with (
        caplog.at_level(logging.WARNING),
        pytest.warns(UserWarning, match="120 parameters"),
        foretold(likelihood, 20, lambda: "solve"),
    ):
        time.sleep(0.2)
    assert "three times the estimate" in caplog.text
    assert "'solve'" in caplog.text


def test_a_build_of_few_parameters_that_takes_long_says_so_too(monkeypatch, caplog):
    likelihood = jc.model_likelihood(wide, table(60, 2))
    assert first_look(likelihood, 500).seconds is None
    monkeypatch.setattr(look, "_LONG", 0.01)
    with caplog.at_level(logging.WARNING), foretold(likelihood, 20, lambda: "weighting"):
        time.sleep(0.2)
    assert "three times what most builds take; it is in the stage 'weighting'" in caplog.text


def test_fewer_rows_than_parameters_are_all_kept_at_once():
    data = table(60, 1500)
    start = time.perf_counter()
    builder = jc.CoresetBuilder(wide, tol=0.01)
    assert "60 rows, without error" in str(builder.plan(*data))
    coreset = builder.run(0, *data)
    assert time.perf_counter() - start < 60  # seconds on a quiet machine; it was minutes
    assert len(coreset) == 60
    assert np.all(np.asarray(coreset.weights) == 1)


def test_only_builds_that_take_long_are_announced(recwarn):
    likelihood = jc.model_likelihood(wide, table(6000, 120))
    with foretold(likelihood, 50, lambda: ""):
        assert not recwarn.list
    with (
        pytest.warns(UserWarning, match="rows alone needs about"),
        foretold(likelihood, 4000, lambda: ""),
    ):
        pass


def test_the_plan_shows_the_look():
    planes, x, y = hierarchy()
    plan = jc.CoresetBuilder(by_hand, size=10, progress_bar=False).plan(planes, x, y)
    assert "122 parameters" in str(plan)
    assert "groups='planes'" in str(plan)


def test_the_plan_says_what_a_search_beside_a_proxy_takes():
    data = table(400, 120)
    plan = jc.CoresetBuilder(wide, tol=0.01, progress_bar=False).plan(*data)
    assert "s if rows are needed beside the proxy of all rows" in str(plan)
    alone = jc.CoresetBuilder(wide, tol=0.01, proxy=None, progress_bar=False).plan(*data)
    assert "if rows are needed" not in str(alone)
    assert plan.may_pass_again
    assert not alone.may_pass_again
