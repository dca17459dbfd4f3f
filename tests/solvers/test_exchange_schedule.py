"""What a run does next, from where it is."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jaxcoreset.solvers.exchange.scalars import Scalars
from jaxcoreset.solvers.exchange.schedule import (
    SHORT,
    Limits,
    Progress,
    considered,
    decided,
    is_stale,
)

NO = jnp.zeros((), bool)
LIMITS = Limits(
    top=jnp.asarray(12),
    bottom=jnp.asarray(3),
    most=jnp.asarray(10),
    num_starts=jnp.asarray(2),
    max_moves=jnp.asarray(500),
    exchanges_down=5,
    min_gain=0.01,
    chooses=False,
)


def progress(**values):
    """Before the first move, but for some values."""
    start = Progress.at_start(jnp.float32, NO)
    new = {name: jnp.asarray(x, getattr(start, name).dtype) for name, x in values.items()}
    return dataclasses.replace(start, **new)


def move(before, *, size, objective, limits=LIMITS, **found):
    """A move that finds these things; without others, one in which an atom would bring something.

    Args:
        before: where the run is.
        size: how many atoms are in use.
        objective: of their weights.
        limits: what bounds the run.
        found: `blocked`, `stopped`, `brings` and `worth`, flags.
    """
    flags = {"blocked": False, "stopped": False, "brings": True, "worth": False} | found
    flags = {name: jnp.asarray(flag) for name, flag in flags.items()}
    size, objective = jnp.asarray(size), jnp.asarray(objective, jnp.float32)
    feasible = ~flags["blocked"] & ~flags["stopped"]
    could = considered(
        before,
        limits,
        size=size,
        objective=objective,
        feasible=feasible,
        brings=flags["brings"],
    )
    after = decided(
        could,
        limits,
        size=size,
        objective=objective,
        feasible=feasible,
        stopped=flags["stopped"],
        worth=flags["worth"],
    )
    return after, {name for name in ("leaves", "enters", "resets", "stopped") if _is(after, name)}


def _is(record, name):
    return bool(getattr(record, name))


def test_it_rises_to_the_top():
    after, done = move(progress(objective=0.5), size=11, objective=0.4)
    assert done == {"enters"}
    assert after.changes == 1
    assert after.moves == 1
    assert not after.falling
    np.testing.assert_allclose(after.objective, 0.4)


def test_at_the_top_it_turns():
    after, done = move(progress(objective=0.5), size=12, objective=0.4)
    assert done == {"leaves"}
    assert after.falling


def test_it_turns_where_no_atom_brings_anything():
    after, done = move(progress(objective=0.5), size=5, objective=0.4, brings=False)
    assert done == {"leaves"}
    assert after.falling


def test_it_turns_where_the_objective_is_as_precise_as_the_arithmetic():
    _, done = move(progress(objective=0.5), size=5, objective=1e-12)
    assert done == {"leaves"}


def test_it_turns_after_some_atoms_in_vain():
    now, rises = progress(objective=0.4, lowest=0.4), 0
    while True:
        now, done = move(now, size=5, objective=0.4)
        if done == {"leaves"}:
            break
        assert done == {"enters"}
        rises += 1
    assert rises == 5


def test_an_atom_that_brings_something_ends_the_count():
    now = progress(objective=0.4, in_vain=4)
    assert move(now, size=5, objective=0.39)[0].in_vain == 0
    assert move(now, size=5, objective=0.4)[0].in_vain == 5


def test_it_turns_after_many_moves_that_brought_next_to_nothing():
    now = progress(objective=0.4, lowest=0.4, idle=105)
    assert move(now, size=5, objective=0.399)[1] == {"leaves"}
    assert move(now, size=6, objective=0.399)[1] == {"enters"}
    assert move(now, size=5, objective=0.39)[1] == {"enters"}


def test_on_the_way_down_it_exchanges_what_is_worth_it():
    now = progress(objective=0.5, falling=True)
    after, done = move(now, size=8, objective=0.4, worth=True)
    assert done == {"leaves", "enters"}
    assert after.exchanges == 1
    assert after.changes == 0
    after, done = move(now, size=8, objective=0.4, worth=False)
    assert done == {"leaves"}
    assert after.exchanges == 0
    assert after.changes == 1


def test_it_exchanges_only_so_often_at_a_size():
    now, exchanges = progress(objective=0.5, falling=True), 0
    for turn in range(10):
        now, done = move(now, size=8, objective=0.4 * 0.9**turn, worth=True)
        if done != {"leaves", "enters"}:
            break
        exchanges += 1
    assert exchanges == 5
    assert done == {"leaves"}
    assert now.exchanges == 0


def test_an_exchange_that_missed_what_it_promised_is_the_last_at_its_size():
    now = progress(objective=0.4, falling=True, exchanges=1)
    assert move(now, size=8, objective=0.399, worth=True)[1] == {"leaves"}
    assert move(now, size=8, objective=0.397, worth=True)[1] == {"leaves", "enters"}


def test_a_weight_that_is_blocked_lets_its_atom_go():
    now = progress(objective=0.4, falling=True, exchanges=2, lowest=0.4)
    after, done = move(now, size=8, objective=0.1, blocked=True, worth=True)
    assert done == {"leaves"}
    # Such weights are no solution, and their objective says nothing.
    assert after.objective == now.objective
    assert after.lowest == now.lowest
    assert after.exchanges == 2
    assert after.moves == 1


def test_at_the_bottom_the_next_start_begins():
    now = progress(objective=0.5, falling=True, lowest=0.4, idle=7, start=1)
    after, done = move(now, size=3, objective=0.4)
    assert done == {"resets"}
    assert after.start == 2
    assert not after.falling
    assert np.isinf(after.objective)
    assert np.isinf(after.lowest)
    assert after.idle == 0
    assert is_stale(Scalars.of(after), jnp.asarray(0), 0.1)


def test_after_the_last_start_it_stops():
    now = progress(objective=0.5, falling=True, start=2)
    assert move(now, size=3, objective=0.4)[1] == {"stopped"}


def test_out_of_moves_it_stops():
    assert "stopped" in move(progress(moves=500), size=5, objective=0.4)[1]
    assert "stopped" not in move(progress(moves=499), size=5, objective=0.4)[1]


@pytest.mark.parametrize("start", [1, 2, 3])
def test_further_starts_are_short(start):
    limits = dataclasses.replace(LIMITS, top=jnp.asarray(120), most=jnp.asarray(100))
    now = progress(objective=0.5, start=start)
    assert move(now, size=SHORT - 1, objective=0.4, limits=limits)[1] == {"enters"}
    assert move(now, size=SHORT, objective=0.4, limits=limits)[1] == {"leaves"}
    over = 10 + 2 * start
    assert move(now, size=over - 1, objective=0.4)[1] == {"enters"}
    assert move(now, size=over, objective=0.4)[1] == {"leaves"}


def test_what_has_stopped_stays_as_it_is():
    now = progress(objective=0.5, falling=True, start=1, moves=20, changes=2, exchanges=3)
    after, done = move(now, size=3, objective=0.1, stopped=True, worth=True)
    assert not done
    for name in ("falling", "objective", "start", "moves", "changes", "exchanges", "lowest"):
        assert getattr(after, name) == getattr(now, name), name


def test_candidates_that_have_no_more_to_give_are_chosen_anew():
    limits = dataclasses.replace(LIMITS, chooses=True)
    now = progress(objective=0.5, changes=1)
    after, done = move(now, size=5, objective=0.4, brings=False, limits=limits)
    assert not done
    assert is_stale(Scalars.of(after), jnp.asarray(5), 0.1)
    # Where new ones brought nothing either, it turns.
    now = progress(objective=0.4, changes=1, renewed=0.4)
    assert move(now, size=5, objective=0.4, brings=False, limits=limits)[1] == {"leaves"}
    # All atoms are candidates: there are no others.
    assert move(progress(objective=0.5, changes=1), size=5, objective=0.4, brings=False)[1] == {
        "leaves"
    }


def test_candidates_are_chosen_anew_after_a_change_of_the_size():
    def stale(changes, size, start=0):
        return bool(is_stale(Scalars.of(progress(changes=changes, start=start)), size, 0.1))

    assert stale(1, jnp.asarray(5))
    assert not stale(0, jnp.asarray(5))
    assert stale(4, jnp.asarray(40))
    assert not stale(3, jnp.asarray(40))
    assert stale(2, jnp.asarray(5), start=2)
    assert not stale(1, jnp.asarray(5), start=2)
