"""Remainders of an expansion are evaluated for the rows that need them, and are the same ones."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import jaxcoreset as jc
from jaxcoreset.data.ragged import lists_of
from jaxcoreset.likelihood.expansion import flat_draws, remainders
from jaxcoreset.likelihood.from_model import model_likelihood
from jaxcoreset.likelihood.group_likelihood import group_likelihood
from jaxcoreset.selection.draws import DrawPool
from jaxcoreset.selection.estimate import KLEstimate, errors_on
from jaxcoreset.selection.remainders import _EXACT, RemainderEvaluator
from jaxcoreset.selection.rounds import _slots
from jaxcoreset.selection.tolerance import Selection
from jaxcoreset.solvers.solution import Solution

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
    """Groups of two lengths."""
    rng = np.random.default_rng(1)
    sizes = np.where(np.isin(np.arange(NUM_ROWS), [3, 30]), 60, 3)
    group = np.repeat(np.arange(NUM_ROWS, dtype=np.int32), sizes)
    x = rng.normal(size=group.size).astype(np.float32)
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


def atoms_at(pool, positions, use="selection"):
    """The atoms of rows at some positions, and the target, as `DrawPool.problem` has them."""
    (part,) = pool.parts(use)
    values, target = pool.values(part, "proxy and rows", positions)
    values = np.asarray(values, np.float64)
    centred = values - values.mean(axis=1, keepdims=True)
    return centred / np.sqrt(part.size), np.asarray(target, np.float64) / np.sqrt(part.size)


def known(pool, use):
    return pool.parts(use)[0].remainders


def is_near(target, exact):
    """Whether two targets differ by no more than a rounded sum may."""
    return np.var(target - exact) * exact.size <= _EXACT


def test_the_chosen_rows_alone_are_evaluated_and_have_the_same_atoms(pool):
    pool = pool_of(pool.likelihood)
    part = pool.parts("selection")[0]
    part.total = np.zeros_like(part.total)  # the sum of the values in float64 takes its place
    atoms, target = atoms_at(pool, CHOSEN)
    assert known(pool, "selection").positions.tolist() == [3, 7, 250, 399]
    other = pool_of(pool.likelihood)
    whole = other.problem("selection", "proxy and rows")
    assert known(other, "selection").positions.size == NUM_ROWS
    scale = float(np.abs(whole.atoms).max())
    np.testing.assert_allclose(atoms, whole.atoms[CHOSEN], atol=1e-5 * scale)
    # The target is a sum in float32 here, and one of remainders in float64 there.
    assert is_near(target, whole.target)


def test_groups_of_one_length_are_evaluated_together(monkeypatch):
    monkeypatch.setattr("jaxcoreset.data.ragged._PLACES_OF_LENGTH", 100)
    pool = pool_of(groups())
    assert len(lists_of(pool.candidate_data)[0].lengths) == 2
    shapes = []
    evaluate = RemainderEvaluator._evaluate
    monkeypatch.setattr(
        RemainderEvaluator,
        "_evaluate",
        lambda self, part, data, *given: (
            shapes.append(data[0].shape[:2]) or evaluate(self, part, data, *given)
        ),
    )
    at = pool.likelihood.rows.places(CHOSEN[1:])
    atoms, target = atoms_at(pool, at)
    assert sorted(shapes) == [(64, 3), (64, 60)]
    whole = pool_of(pool.likelihood).problem("selection", "proxy and rows")
    scale = float(np.abs(whole.atoms).max())
    np.testing.assert_allclose(atoms, whole.atoms[at], atol=1e-5 * scale)
    assert is_near(target, whole.target)


def test_no_rows_have_no_remainders(pool):
    atoms, target = atoms_at(pool_of(pool.likelihood, 3), CHOSEN[:0])
    assert atoms.shape == (0, 200)
    assert target.shape == (200,)


def path(indices, weights):
    zeros = jnp.zeros(len(weights))
    return Solution(
        jnp.asarray(indices), jnp.asarray(weights), zeros, zeros, zeros.astype(int), zeros == 0
    )


@pytest.mark.parametrize("approach", ["rows", "proxy and rows"])
def test_errors_along_a_path_are_those_of_the_whole_problem(pool, approach):
    rng = np.random.default_rng(0)
    indices = np.stack([rng.choice(NUM_ROWS, 6, replace=False) for _ in range(3)]).astype(np.int32)
    weights = rng.exponential(50, size=(3, 6)).astype(np.float32)
    weights[0, 3:] = 0
    weights[2] = 0
    found = errors_on(pool_of(pool.likelihood, 4), path(indices, weights), "selection", approach)
    whole = pool_of(pool.likelihood, 4).problem("selection", approach)
    for i in range(3):
        combined = np.asarray(weights[i], float) @ np.asarray(whole.atoms, float)[indices[i]]
        squares = (np.asarray(whole.target, float) - combined) ** 2
        np.testing.assert_allclose(found["kl"][i], squares.sum(), rtol=1e-3)
    assert found["num_used"].tolist() == [3, 6, 0]


@pytest.mark.parametrize(("wide", "expected"), [(False, [70, 70, 70]), (True, [8, 8, 64])])
def test_a_coreset_of_expensive_rows_is_sampled_with_few_spare_ones(
    pool, monkeypatch, wide, expected
):
    """The used ones are among them, in the path's order."""
    monkeypatch.setattr("jaxcoreset.data.blocks._WIDE_ROW", 0 if wide else 1 << 20)
    for num, slots in zip([0, 5, 40], expected, strict=True):
        weights = np.zeros((1, 70), np.float32)
        chosen = np.random.default_rng(num).choice(70, num, replace=False)
        weights[0, chosen] = 1 + np.arange(num)
        solution = path(np.arange(70, dtype=np.int32)[None], weights)
        selection = Selection(solution, np.array([70]), 0, KLEstimate(0.0, 0.0, 0.0), {})
        positions, found = _slots(pool, selection)
        assert len(positions) == len(found) == slots
        assert np.count_nonzero(found) == num
        np.testing.assert_array_equal(positions[found > 0], np.sort(chosen))
        np.testing.assert_array_equal(found, weights[0, positions])


def test_remainders_of_another_expansion_or_of_other_candidates_are_dropped(pool):
    pool = pool_of(pool.likelihood, 5)
    atoms_at(pool, CHOSEN)
    pool.expansion = pool.expansion
    assert known(pool, "selection") is None
    atoms_at(pool, CHOSEN)
    pool.set_candidates(np.arange(0, NUM_ROWS, 2))
    assert known(pool, "selection") is None


def test_further_rows_join_those_that_are_known(pool):
    atoms_at(pool, CHOSEN, "confirmation")
    more, _ = atoms_at(pool, np.array([100, 3, 101]), "confirmation")
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
    part = coarse.parts("selection")[0]
    expected = remainders(
        coarse.likelihood, part.draws, coarse.candidate_data, coarse.expansion.center
    ).sum(axis=0)
    part.total = np.zeros_like(part.total)  # it is not used
    _, target = atoms_at(coarse, CHOSEN)
    assert known(coarse, "selection").positions.size == NUM_ROWS
    expected = (expected - expected.mean()) / np.sqrt(part.size)
    np.testing.assert_allclose(target, expected, atol=1e-5 * np.abs(expected).max())


def test_all_rows_are_evaluated_where_that_takes_less_time_than_another_program(monkeypatch):
    monkeypatch.undo()
    pool = pool_of(rows())
    atoms_at(pool, CHOSEN)
    assert known(pool, "selection").positions.size == NUM_ROWS


def test_rows_that_join_the_candidates_take_their_places():
    pool = pool_of(rows())
    pool.set_candidates(np.arange(0, NUM_ROWS, 2))
    before, _ = atoms_at(pool, np.array([5, 150]))
    pool.add_candidates(np.array([1, 11, 301]))
    places = np.searchsorted(pool.indices, [10, 300])
    assert known(pool, "selection").positions.tolist() == places.tolist()
    after, _ = atoms_at(pool, places)
    np.testing.assert_array_equal(before, after)
    new, _ = atoms_at(pool, np.searchsorted(pool.indices, [11]))
    whole = pool_of(pool.likelihood).problem("selection", "proxy and rows")
    np.testing.assert_allclose(new[0], whole.atoms[11], atol=1e-5 * np.abs(whole.atoms).max())


def test_what_a_regression_adds_is_added_for_the_chosen_rows(pool):
    regressed = pool_of(pool.likelihood, 2)
    regressed.regress()
    assert regressed._regression is not None
    atoms, target = atoms_at(regressed, CHOSEN)
    whole = regressed.problem("selection", "proxy and rows")
    scale = float(np.abs(whole.atoms).max())
    np.testing.assert_allclose(atoms, whole.atoms[CHOSEN], atol=1e-5 * scale)
    assert is_near(target, whole.target)
