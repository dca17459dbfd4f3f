"""What a run does next, from where it is."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jaxcoreset.solvers.exchange.schedule import (
    MAX_START_SIZE,
    Progress,
    RunLimits,
    consider_move,
    decide_move,
    is_stale,
)

NO = jnp.zeros((), bool)
LIMITS = RunLimits(
    top=jnp.asarray(12),
    bottom=jnp.asarray(3),
    max_size=jnp.asarray(10),
    num_starts=jnp.asarray(2),
    max_moves=jnp.asarray(500),
    exchanges_down=5,
    min_gain=0.01,
    selects_candidates=False,
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
        found: `blocked`, `stopped`, `any_useful` and `gains`, flags.
    """
    flags = {"blocked": False, "stopped": False, "any_useful": True, "gains": False} | found
    flags = {name: jnp.asarray(flag) for name, flag in flags.items()}
    size, objective = jnp.asarray(size), jnp.asarray(objective, jnp.float32)
    feasible = ~flags["blocked"] & ~flags["stopped"]
    could = consider_move(
        before,
        limits,
        size=size,
        objective=objective,
        feasible=feasible,
        any_useful=flags["any_useful"],
    )
    after = decide_move(
        could,
        limits,
        size=size,
        objective=objective,
        feasible=feasible,
        stopped=flags["stopped"],
        gains=flags["gains"],
    )
    return after, {
        name for name in ("removes", "inserts", "restarts", "stopped") if _is(after, name)
    }


def _is(record, name):
    return bool(getattr(record, name))


def test_it_rises_to_the_top():
    after, done = move(progress(objective=0.5), size=11, objective=0.4)
    assert done == {"inserts"}
    assert after.num_changes == 1
    assert after.num_moves == 1
    assert not after.shrinking
    np.testing.assert_allclose(after.objective, 0.4)


def test_at_the_top_it_turns():
    after, done = move(progress(objective=0.5), size=12, objective=0.4)
    assert done == {"removes"}
    assert after.shrinking


def test_it_turns_where_no_atom_brings_anything():
    after, done = move(progress(objective=0.5), size=5, objective=0.4, any_useful=False)
    assert done == {"removes"}
    assert after.shrinking


def test_it_turns_where_the_objective_is_as_precise_as_the_arithmetic():
    _, done = move(progress(objective=0.5), size=5, objective=1e-12)
    assert done == {"removes"}


def test_it_turns_after_some_atoms_num_useless():
    now, rises = progress(objective=0.4, reference=0.4), 0
    while True:
        now, done = move(now, size=5, objective=0.4)
        if done == {"removes"}:
            break
        assert done == {"inserts"}
        rises += 1
    assert rises == 5


def test_an_atom_that_brings_something_ends_the_count():
    now = progress(objective=0.4, num_useless=4)
    assert move(now, size=5, objective=0.39)[0].num_useless == 0
    assert move(now, size=5, objective=0.4)[0].num_useless == 5


def test_it_turns_after_many_moves_that_brought_next_to_nothing():
    now = progress(objective=0.4, reference=0.4, num_stalled=105)
    assert move(now, size=5, objective=0.399)[1] == {"removes"}
    assert move(now, size=6, objective=0.399)[1] == {"inserts"}
    assert move(now, size=5, objective=0.39)[1] == {"inserts"}


def test_on_the_way_down_it_exchanges_what_is_worth_it():
    now = progress(objective=0.5, shrinking=True)
    after, done = move(now, size=8, objective=0.4, gains=True)
    assert done == {"removes", "inserts"}
    assert after.num_exchanges == 1
    assert after.num_changes == 0
    after, done = move(now, size=8, objective=0.4, gains=False)
    assert done == {"removes"}
    assert after.num_exchanges == 0
    assert after.num_changes == 1


def test_it_exchanges_only_so_often_at_a_size():
    now, exchanges = progress(objective=0.5, shrinking=True), 0
    for turn in range(10):
        now, done = move(now, size=8, objective=0.4 * 0.9**turn, gains=True)
        if done != {"removes", "inserts"}:
            break
        exchanges += 1
    assert exchanges == 5
    assert done == {"removes"}
    assert now.num_exchanges == 0


def test_an_exchange_that_missed_what_it_promised_is_the_last_at_its_size():
    now = progress(objective=0.4, shrinking=True, num_exchanges=1)
    assert move(now, size=8, objective=0.399, gains=True)[1] == {"removes"}
    assert move(now, size=8, objective=0.397, gains=True)[1] == {"removes", "inserts"}


def test_a_weight_that_is_blocked_lets_its_atom_go():
    now = progress(objective=0.4, shrinking=True, num_exchanges=2, reference=0.4)
    after, done = move(now, size=8, objective=0.1, blocked=True, gains=True)
    assert done == {"removes"}
    # Such weights are no solution, and their objective says nothing.
    assert after.objective == now.objective
    assert after.reference == now.reference
    assert after.num_exchanges == 2
    assert after.num_moves == 1


def test_at_the_bottom_the_next_start_begins():
    now = progress(objective=0.5, shrinking=True, reference=0.4, num_stalled=7, start=1)
    after, done = move(now, size=3, objective=0.4)
    assert done == {"restarts"}
    assert after.start == 2
    assert not after.shrinking
    assert np.isinf(after.objective)
    assert np.isinf(after.reference)
    assert after.num_stalled == 0
    assert is_stale(after, jnp.asarray(0), 0.1)


def test_after_the_last_start_it_stops():
    now = progress(objective=0.5, shrinking=True, start=2)
    assert move(now, size=3, objective=0.4)[1] == {"stopped"}


def test_out_of_moves_it_stops():
    assert "stopped" in move(progress(num_moves=500), size=5, objective=0.4)[1]
    assert "stopped" not in move(progress(num_moves=499), size=5, objective=0.4)[1]


@pytest.mark.parametrize("start", [1, 2, 3])
def test_further_starts_are_short(start):
    limits = dataclasses.replace(LIMITS, top=jnp.asarray(120), max_size=jnp.asarray(100))
    now = progress(objective=0.5, start=start)
    assert move(now, size=MAX_START_SIZE - 1, objective=0.4, limits=limits)[1] == {"inserts"}
    assert move(now, size=MAX_START_SIZE, objective=0.4, limits=limits)[1] == {"removes"}
    over = 10 + 2 * start
    assert move(now, size=over - 1, objective=0.4)[1] == {"inserts"}
    assert move(now, size=over, objective=0.4)[1] == {"removes"}


def test_what_has_stopped_stays_as_it_is():
    now = progress(
        objective=0.5, shrinking=True, start=1, num_moves=20, num_changes=2, num_exchanges=3
    )
    after, done = move(now, size=3, objective=0.1, stopped=True, gains=True)
    assert not done
    for name in (
        "shrinking",
        "objective",
        "start",
        "num_moves",
        "num_changes",
        "num_exchanges",
        "reference",
    ):
        assert getattr(after, name) == getattr(now, name), name


def test_candidates_that_have_no_more_to_give_are_chosen_anew():
    limits = dataclasses.replace(LIMITS, selects_candidates=True)
    now = progress(objective=0.5, num_changes=1)
    after, done = move(now, size=5, objective=0.4, any_useful=False, limits=limits)
    assert not done
    assert is_stale(after, jnp.asarray(5), 0.1)
    # Where new ones brought nothing either, it turns.
    now = progress(objective=0.4, num_changes=1, refresh_objective=0.4)
    assert move(now, size=5, objective=0.4, any_useful=False, limits=limits)[1] == {"removes"}
    # All atoms are candidates: there are no others.
    assert move(progress(objective=0.5, num_changes=1), size=5, objective=0.4, any_useful=False)[
        1
    ] == {"removes"}


def test_candidates_are_chosen_anew_after_a_change_of_the_size():
    def stale(changes, size, start=0):
        return bool(is_stale(progress(num_changes=changes, start=start), size, 0.1))

    assert stale(1, jnp.asarray(5))
    assert not stale(0, jnp.asarray(5))
    assert stale(4, jnp.asarray(40))
    assert not stale(3, jnp.asarray(40))
    assert stale(2, jnp.asarray(5), start=2)
    assert not stale(1, jnp.asarray(5), start=2)
