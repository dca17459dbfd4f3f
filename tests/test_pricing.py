"""Rows are priced by what they would bring: held to least squares in float64, row by row."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxcoreset.pricing import price
from jaxcoreset.rows import Placement, Rows

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


def gains(atoms, target, residual):
    """By what part of itself each row lowers the objective, all weights fitted anew."""
    found = np.zeros(NUM_ROWS)
    for row, atom in enumerate(atoms):
        if row not in CHOSEN and atom @ residual > 0:
            columns = np.column_stack([*atoms[CHOSEN], atom])
            _, left, _, _ = np.linalg.lstsq(columns, target, rcond=None)
            found[row] = 1 - left[0] / (residual @ residual)
    return found


def priced(num, batch_size=None, known=CHOSEN):
    rows, draws, atoms, target, residual = setting()
    return price(
        Rows(rows, Placement(batch_size=batch_size)),
        log_likelihood,
        jnp.asarray(draws),
        jnp.asarray(residual, jnp.float32),
        jnp.asarray(atoms[CHOSEN], jnp.float32),
        (NUM_DRAWS,),
        num,
        np.array(known),
        float(np.linalg.norm(target)),
    )


def test_the_best_rows_and_their_gains_are_those_of_least_squares():
    rows, _, atoms, target, residual = setting()
    exact = gains(atoms, target, residual)
    found = priced(20)
    np.testing.assert_array_equal(found.indices, np.argsort(-exact, kind="stable")[:20])
    np.testing.assert_allclose(found.gains, exact[found.indices], rtol=1e-3)
    np.testing.assert_array_equal(found.leaves[0], rows[found.indices])


def test_only_rows_that_bring_something_are_returned_and_no_candidates():
    _, _, atoms, target, residual = setting()
    found = priced(NUM_ROWS)
    assert set(found.indices) == set(np.flatnonzero(gains(atoms, target, residual) > 0))


def test_rows_that_are_candidates_already_are_left_out():
    first = priced(5)
    second = priced(5, known=[*CHOSEN, *first.indices[:2]])
    np.testing.assert_array_equal(second.indices[:3], first.indices[2:])


def test_batches_change_nothing():
    whole, parts = priced(50), priced(50, batch_size=1)
    jax.tree.map(
        np.testing.assert_array_equal,
        (whole.indices, whole.gains),
        (parts.indices, parts.gains),
    )
