"""Remainders of an expansion are evaluated for the rows that need them, and are the same ones."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import jaxcoreset as jc
from jaxcoreset.likelihood.expansion import flat_draws, remainders
from jaxcoreset.likelihood.from_model import model_likelihood
from jaxcoreset.likelihood.group_likelihood import group_likelihood
from jaxcoreset.selection.draws import DrawPool

NUM_ROWS, CHOSEN = 400, np.array([250, 3, 7, 250, 399])


def counts(x, y=None):
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ slopes)), obs=y)


def visits(x, group, num_groups, y=None):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("groups", num_groups):
        effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=slope * x + effect[group]), obs=y)


def rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_ROWS, 2)).astype(np.float32)
    return model_likelihood(counts, (x, rng.poisson(np.exp(x @ [0.3, -0.5]))))


def groups():
    rng = np.random.default_rng(1)
    x = rng.normal(size=5 * NUM_ROWS).astype(np.float32)
    group = np.repeat(np.arange(NUM_ROWS, dtype=np.int32), 5)
    y = (rng.random(x.size) < 0.5).astype(np.int32)
    return group_likelihood(visits, (x, group, NUM_ROWS, y), groups="group")


@pytest.fixture(autouse=True)
def _all_rows_take_long(monkeypatch):
    monkeypatch.setattr("jaxcoreset.selection.remainders._MANY_BYTES", 0)


def pool_of(likelihood, seed=0):
    source = jc.Laplace().fit(likelihood, jax.random.key(0))
    pool = DrawPool(likelihood, source, jax.random.key(seed))
    pool.expansion = source.approximation.expansion
    pool.ensure_draws(solver=300, selection=200, confirmation=100)
    return pool


@pytest.fixture(scope="module")
def pool():
    return pool_of(rows())


def known(pool, use):
    return pool.parts(use)[0].remainders


@pytest.mark.parametrize("make", [rows, groups])
def test_the_chosen_rows_alone_are_evaluated_and_have_the_same_atoms(make):
    pool = pool_of(make())
    atoms, target = pool.atoms_at(CHOSEN, "selection", "proxy and rows")
    assert known(pool, "selection").positions.tolist() == [3, 7, 250, 399]
    other = pool_of(pool.likelihood)
    whole = other.problem("selection", "proxy and rows")
    assert known(other, "selection").positions.size == NUM_ROWS
    scale = float(np.abs(whole.atoms).max())
    np.testing.assert_allclose(atoms, whole.atoms[CHOSEN], atol=1e-5 * scale)
    # The target is a sum in float32 here, and one of remainders in float64 there.
    np.testing.assert_allclose(target, whole.target, atol=1e-5)


def test_further_rows_join_those_that_are_known(pool):
    pool.atoms_at(CHOSEN, "confirmation", "proxy and rows")
    more, _ = pool.atoms_at(np.array([100, 3, 101]), "confirmation", "proxy and rows")
    assert known(pool, "confirmation").positions.tolist() == [3, 7, 100, 101, 250, 399]
    part = pool.parts("confirmation")[0]
    center = pool.expansion.center
    data = pool.data_of(np.array([100, 3, 101]))
    expected = remainders(pool.likelihood, part.draws, data, center)
    expected = expected * pool.expansion.fade(flat_draws(part.draws))
    expected = (expected - expected.mean(axis=1, keepdims=True)) / np.sqrt(part.size)
    np.testing.assert_allclose(more, expected, atol=1e-5 * np.abs(expected).max())


def test_all_rows_are_evaluated_where_their_sum_in_float32_is_coarse(pool):
    coarse = pool_of(pool.likelihood, 1)
    coarse._noise = dataclasses.replace(coarse._noise, of_total=1e-4)
    coarse.atoms_at(CHOSEN, "selection", "proxy and rows")
    assert known(coarse, "selection").positions.size == NUM_ROWS
    assert coarse.parts("selection")[0].total_remainder.dtype == np.float64


def test_all_rows_are_evaluated_where_that_takes_less_time_than_another_program(monkeypatch):
    monkeypatch.undo()
    pool = pool_of(rows())
    pool.atoms_at(CHOSEN, "selection", "proxy and rows")
    assert known(pool, "selection").positions.size == NUM_ROWS


def test_rows_that_join_the_candidates_take_their_places():
    pool = pool_of(rows())
    pool.set_candidates(np.arange(0, NUM_ROWS, 2))
    before, _ = pool.atoms_at(np.array([5, 150]), "selection", "proxy and rows")
    pool.add_candidates(np.array([1, 11, 301]))
    places = np.searchsorted(pool.indices, [10, 300])
    assert known(pool, "selection").positions.tolist() == places.tolist()
    after, _ = pool.atoms_at(places, "selection", "proxy and rows")
    np.testing.assert_array_equal(before, after)
    new, _ = pool.atoms_at(np.searchsorted(pool.indices, [11]), "selection", "proxy and rows")
    whole = pool_of(pool.likelihood).problem("selection", "proxy and rows")
    np.testing.assert_allclose(new[0], whole.atoms[11], atol=1e-5 * np.abs(whole.atoms).max())


def test_what_a_regression_adds_is_added_for_the_chosen_rows(pool):
    regressed = pool_of(pool.likelihood, 2)
    regressed.regress()
    if regressed._regression is None:
        pytest.skip("the regression does not pay here")
    atoms, target = regressed.atoms_at(CHOSEN, "selection", "proxy and rows")
    whole = regressed.problem("selection", "proxy and rows")
    scale = float(np.abs(whole.atoms).max())
    np.testing.assert_allclose(atoms, whole.atoms[CHOSEN], atol=1e-5 * scale)
    np.testing.assert_allclose(target, whole.target, atol=1e-5)
