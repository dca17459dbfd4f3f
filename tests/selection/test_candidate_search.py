"""The search for further candidates, compared with least squares in float64, row by row."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import jaxcoreset as jc
import jaxcoreset.builders.builder
import jaxcoreset.selection.rounds
from jaxcoreset.data.rows import PassContext, Rows
from jaxcoreset.likelihood.expansion import Expansion, FadedRemainder, around
from jaxcoreset.selection.candidate_search import _block_scores, _Criterion, search_rows
from jaxcoreset.weighting.laplace import laplace_approximation

NUM_ROWS, NUM_DRAWS, CHOSEN = 700, 40, [3, 250, 611]


def log_likelihood(draw, data):
    return jnp.sin(data @ draw)


def setting():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(NUM_ROWS, 3)).astype(np.float32)
    draws = rng.normal(size=(NUM_DRAWS, 3)).astype(np.float32)
    values = np.sin(rows.astype(np.float64) @ draws.T.astype(np.float64))
    atoms = (values - values.mean(1, keepdims=True)) / np.sqrt(NUM_DRAWS)
    target = atoms.sum(0)
    weights = np.linalg.lstsq(atoms[CHOSEN].T, target, rcond=None)[0]
    return rows, draws, atoms, target, target - weights @ atoms[CHOSEN]


def decreases(atoms, target, residual):
    """By what part of itself each row lowers the objective, all weights fitted anew."""
    found = np.zeros(NUM_ROWS)
    for row, atom in enumerate(atoms):
        if row not in CHOSEN and atom @ residual > 0:
            columns = np.column_stack([*atoms[CHOSEN], atom])
            _, left, _, _ = np.linalg.lstsq(columns, target, rcond=None)
            found[row] = 1 - left[0] / (residual @ residual)
    return found


def search(num, batch_size=None, known=CHOSEN, off=0.0):
    rows, draws, atoms, target, residual = setting()
    residual = residual + off * atoms[CHOSEN].sum(0)
    return search_rows(
        Rows(rows, PassContext(batch_size=batch_size)),
        log_likelihood,
        jnp.asarray(draws),
        jnp.asarray(residual, jnp.float32),
        jnp.asarray(atoms[CHOSEN], jnp.float32),
        (NUM_DRAWS,),
        num,
        np.array(known),
        float(np.linalg.norm(target)),
    )


def test_the_best_rows_and_their_decreases_are_those_of_least_squares():
    rows, _, atoms, target, residual = setting()
    exact = decreases(atoms, target, residual)
    found = search(20)
    np.testing.assert_array_equal(found.indices, np.argsort(-exact, kind="stable")[:20])
    np.testing.assert_allclose(found.decreases, exact[found.indices], rtol=1e-3)
    np.testing.assert_array_equal(found.data[0], rows[found.indices])


def test_what_the_chosen_rows_could_gain_themselves_is_not_for_others_to_gain():
    right, off = search(20), search(20, off=0.3)
    np.testing.assert_array_equal(off.indices, right.indices)
    np.testing.assert_allclose(off.decreases, right.decreases, rtol=1e-4)


def test_only_rows_that_bring_something_are_returned_and_no_candidates():
    _, _, atoms, target, residual = setting()
    found = search(NUM_ROWS)
    assert set(found.indices) == set(np.flatnonzero(decreases(atoms, target, residual) > 0))


def test_rows_that_are_candidates_already_are_left_out():
    first = search(5)
    second = search(5, known=[*CHOSEN, *first.indices[:2]])
    np.testing.assert_array_equal(second.indices[:3], first.indices[2:])


def test_batches_change_nothing():
    whole, parts = search(50), search(50, batch_size=1)
    np.testing.assert_array_equal(whole.indices, parts.indices)
    np.testing.assert_array_equal(whole.decreases, parts.decreases)


# --- of a build left to itself --------------------------------------------------------------------


def effects(x, group, y=None):
    """A regression with an effect of each of three groups."""
    slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([2]).to_event(1))
    effect = numpyro.sample("effect", dist.Normal(0, 10).expand([3]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ slopes + effect[group], 1.0), obs=y)


def rows_with_a_group_of(rare, num_rows=20_000):
    rng = np.random.default_rng(0)
    x, group = rng.normal(size=(num_rows, 2)), np.arange(num_rows) % 2
    group[rng.choice(num_rows, rare, replace=False)] = 2
    y = x @ [1.0, -0.5] + np.array([0.0, 1.0, 2.0])[group] + rng.normal(size=num_rows)
    return x.astype(np.float32), group.astype(np.int32), y.astype(np.float32)


SETTINGS = {"num_held_out": 200, "progress_bar": False, "proxy": None}


def built(rare, **settings):
    builder = jc.CoresetBuilder(effects, num_draws=400, rounds=1, **SETTINGS, **settings)
    return builder.run(jax.random.key(0), *rows_with_a_group_of(rare))


def test_a_group_of_few_rows_none_of_which_is_a_candidate_is_found():
    """Without its rows its effect is as under the prior: half a nat, the variance of half χ²."""
    without, found = built(4, size=40, candidates=jc.Candidates(extra_passes=0)), built(4, size=40)
    assert without.report.kl > 0.3
    assert found.report.kl < 1e-3
    assert 2 in np.asarray(found.args[1])
    assert 1 <= len(found.report.candidate_searches) == found.report.passes["candidate search"] <= 4


def test_a_tolerance_is_met_with_such_a_group_and_no_more_rows_than_it_takes():
    found = built(4, tol=0.01)
    assert found.report.is_within_tol
    assert len(found) < 32
    assert found.report.candidate_searches


@pytest.mark.parametrize("setting", [{"size": 40}, {"tol": 0.01}])
def test_no_pass_is_made_where_the_candidates_will_do(setting):
    assert not built(5000, **setting).report.candidate_searches


@pytest.mark.slow
@pytest.mark.unoptimised
def test_rows_that_joined_stay_candidates_in_the_next_round(monkeypatch):
    """Draws that are off by three standard deviations have the builder go on to a second one."""
    monkeypatch.setattr(jaxcoreset.selection.rounds, "_NEGLIGIBLE", 0.0)
    monkeypatch.setattr(jaxcoreset.builders.builder, "MOST_ROUNDS", 2)
    data = rows_with_a_group_of(4)
    exact = laplace_approximation(jc.model_likelihood(effects, data))
    draws = exact.draws(jax.random.key(1), 2000)
    draws["slopes"] = draws["slopes"] + 3 * draws["slopes"].std(0)
    builder = jc.CoresetBuilder(effects, size=40, weighting=jc.Draws(draws), **SETTINGS)
    first, last = builder.run_rounds(jax.random.key(0), *data)
    assert first.report.candidate_searches
    assert len(last.report.candidate_searches) == len(first.report.candidate_searches)
    assert last.report.num_candidates == first.report.num_candidates
    assert last.report.kl < 1e-3


def equations(jaxpr):
    """All equations of a program, those of its parts included."""
    for equation in jaxpr.eqns:
        yield equation
        for part in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(part, "eqns"):
                yield from equations(getattr(part, "jaxpr", part))


def test_derivatives_at_the_center_are_evaluated_once_a_row_and_not_at_each_draw():
    def counts(draw, data):
        return jax.scipy.special.gammaln(data[0] + jnp.exp(draw["a"]))

    flat = np.random.default_rng(0).normal(size=(NUM_DRAWS, 1))
    zero, one = np.zeros(1), np.eye(1)
    draws, common = around(Expansion(zero, 0.0, zero, -one, one), {"a": jnp.asarray(flat[:, 0])})
    evaluate = FadedRemainder(counts, lambda flat: {"a": flat[0]})
    criterion = _Criterion(
        evaluate,
        draws,
        residual=jnp.ones(NUM_DRAWS),
        noise=jnp.zeros(()),
        basis=jnp.zeros((NUM_DRAWS, 1)),
        parts=(NUM_DRAWS,),
        num=3,
        common=common,
    )
    rows = ((jnp.arange(1.0, NUM_ROWS + 1),), ())
    traced = jax.make_jaxpr(lambda rows: _block_scores(criterion, rows, jnp.ones(NUM_ROWS, bool)))
    sizes = [
        (equation.primitive.name, equation.outvars[0].aval.size)
        for equation in equations(traced(rows).jaxpr)
        if equation.primitive.name in ("lgamma", "digamma", "polygamma")
    ]
    assert ("lgamma", NUM_ROWS * NUM_DRAWS) in sizes
    assert {size for name, size in sizes if name != "lgamma"} == {NUM_ROWS}
