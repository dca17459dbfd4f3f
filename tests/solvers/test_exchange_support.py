"""What is carried from one support to the next, held to NumPy's least squares on each."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcoreset.solvers.exchange import slot_matrix
from jaxcoreset.solvers.exchange.schedule import Move
from jaxcoreset.solvers.exchange.support import (
    Candidates,
    Support,
    apply_move,
    compact,
    empty_support,
    refine,
)
from jaxcoreset.solvers.exchange.swap import choose_leaving
from jaxcoreset.solvers.exchange.working_set import all_candidates
from jaxcoreset.solvers.problem import CoresetProblem

NUM_DATA, NUM_DRAWS, NUM_SLOTS = 30, 40, 12
NO, YES = jnp.zeros((), bool), jnp.ones((), bool)


def _atoms(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    low_rank = rng.normal(size=(NUM_DATA, 5)) @ rng.normal(size=(5, NUM_DRAWS))
    atoms = low_rank + 0.3 * rng.normal(size=(NUM_DATA, NUM_DRAWS))
    return atoms / np.linalg.norm(atoms, axis=1)[:, None]


def _begin(atoms: np.ndarray) -> tuple[Support, Candidates, jax.Array]:
    """No atom in use, all of them candidates, and the target, their sum."""
    problem = CoresetProblem(jnp.asarray(atoms))
    target = problem.target / jnp.linalg.norm(problem.target)
    candidates = all_candidates(problem, problem.scales(), NUM_SLOTS, True)
    candidates = eqx.tree_at(lambda c: c.correlations, candidates, jnp.asarray(atoms) @ target)
    return empty_support(NUM_SLOTS, target, True), candidates, target


@eqx.filter_jit
def _changed(support, candidates, position, slot, removes, inserts):
    """After a move: the atom of a slot leaves, one at a position enters, or both."""
    known = {"eligible": candidates.usable, "objective": jnp.ones(()), "min_gain": 0.01}
    allowed = {"is_set": YES, "can_remove": YES, "can_exchange": NO}
    out, _ = choose_leaving(support, candidates, first=slot, **allowed, **known)
    given = {"weights": support.weights, "position": position, "stays": NO}
    return apply_move(support, candidates, out, move=Move(removes, inserts, NO), **given)[:2]


def _check(support, candidates, atoms, target, tol):
    active = np.asarray(support.active)
    used = atoms[np.asarray(support.indices)[active]]
    weights = np.linalg.lstsq(used.T, target, rcond=None)[0]
    residual = target - weights @ used
    basis = np.linalg.qr(used.T)[0].T
    inside = atoms @ basis.T
    np.testing.assert_allclose(np.asarray(support.lstsq_weights)[active], weights, atol=100 * tol)
    np.testing.assert_allclose(support.residual, residual, atol=tol)
    np.testing.assert_allclose(candidates.correlations, atoms @ residual, atol=tol)
    np.testing.assert_allclose(candidates.distances, 1 - np.sum(inside**2, axis=1), atol=tol)
    coordinates = np.asarray(candidates.coordinates.whole())
    np.testing.assert_allclose(coordinates.T @ coordinates, inside @ inside.T, atol=tol)
    indices = np.sort(np.asarray(support.indices)[active])
    np.testing.assert_array_equal(np.flatnonzero(candidates.used), indices)
    assert support.size == active.sum()


@pytest.mark.parametrize(
    ("parts", "double", "tol"), [((0.25, 1), True, 1e-11), ((1,), False, 1e-4)], ids=str
)
def test_what_is_carried_is_what_least_squares_has_on_each_support(monkeypatch, parts, double, tol):
    monkeypatch.setattr(slot_matrix, "_MIN_ENTRIES", 0)
    monkeypatch.setattr(slot_matrix, "_ENDS", parts)
    atoms, rng = _atoms(0), np.random.default_rng(1)
    with jax.enable_x64(double):
        support, candidates, target = _begin(atoms.astype(np.float64 if double else np.float32))
        kinds = ["enter"] * 4 + list(rng.choice(["enter", "leave", "exchange"], 40))
        seen = set()
        for kind in kinds:
            active, used = np.asarray(support.active), np.asarray(candidates.used)
            if kind == "enter" and active.all():
                kind = "exchange"
            if kind == "leave" and active.sum() == 1:
                kind = "enter"
            seen.add(kind)
            position = rng.choice(np.flatnonzero(~used))
            slot = rng.choice(np.flatnonzero(active)) if active.any() else 0
            at = jnp.asarray(position, jnp.int32), jnp.asarray(slot, jnp.int32)
            kinds_of_move = jnp.asarray(kind != "enter"), jnp.asarray(kind != "leave")
            support, candidates = _changed(support, candidates, *at, *kinds_of_move)
            _check(support, candidates, atoms, np.asarray(target), tol)
        assert seen == {"enter", "leave", "exchange"}
        _check(compact(support), candidates, atoms, np.asarray(target), tol)
        assert np.asarray(compact(support).active)[: support.size].all()


def _off(amount: float) -> tuple[Support, jax.Array, float]:
    """Five atoms in use, with weights that are off; the target; and the least objective."""
    support, candidates, target = _begin(_atoms(2).astype(np.float32))
    for place in range(5):
        at = jnp.asarray(place, jnp.int32)
        support, candidates = _changed(support, candidates, at, at, NO, YES)
    least = float(jnp.sum(support.residual**2))
    wrong = support.lstsq_weights + amount * support.active
    return eqx.tree_at(lambda s: s.lstsq_weights, support, wrong), target, least


def test_weights_are_refined_if_they_leave_more_than_predicted_or_if_it_is_due():
    support, target, least = _off(0.1)
    # What is predicted is below what is known, it is due, and neither of these.
    known, due = jnp.array([1.0, 0.0, 0.9 * least]), jnp.array([False, True, False])
    found, objectives = jax.vmap(refine, (None, None, 0, 0))(support, target, known, due)
    np.testing.assert_allclose(objectives, least, rtol=1e-4)
    exact = _off(0.0)[0].lstsq_weights
    for lane in range(2):
        np.testing.assert_allclose(found.lstsq_weights[lane], exact, atol=1e-4)
    np.testing.assert_array_equal(found.lstsq_weights[2], support.lstsq_weights)


def test_a_promise_that_is_not_kept_counts_as_what_the_weights_leave():
    support, target, _ = _off(0.0)
    rest = target - support.lstsq_weights @ support.atoms.whole()
    # Longer than it is by less than what is refined: the objective is still that of the weights.
    longer = eqx.tree_at(lambda s: s.residual, support, support.residual * (1 + 1e-3))
    _, objective = refine(longer, target, jnp.asarray(1.0), NO)
    np.testing.assert_allclose(objective, rest @ rest, rtol=1e-4)
