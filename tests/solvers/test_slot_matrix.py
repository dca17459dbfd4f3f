"""Matrices with a row for each slot, against plain arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcoreset.solvers.exchange import slot_matrix
from jaxcoreset.solvers.exchange.slot_matrix import SlotMatrix

_NUM_SLOTS, _NUM_COLUMNS = 11, 5


@pytest.fixture(autouse=True, params=[(1,), (0.25, 1), (0.1, 0.3, 0.6, 1)], ids=str)
def _parts(request, monkeypatch):
    monkeypatch.setattr(slot_matrix, "_MIN_ENTRIES", 0)
    monkeypatch.setattr(slot_matrix, "_ENDS", request.param)


def _matrix(num_in_use: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A matrix, zero but for its first rows, and which those are."""
    active = np.arange(_NUM_SLOTS) < num_in_use
    values = np.random.default_rng(seed).normal(size=(_NUM_SLOTS, _NUM_COLUMNS))
    return np.float32(values) * active[:, None], active


def test_a_matrix_is_what_it_was_made_of():
    matrix, _ = _matrix(7)
    np.testing.assert_array_equal(SlotMatrix.of(jnp.asarray(matrix), True).whole(), matrix)
    slots = SlotMatrix.of(jnp.zeros(matrix.shape), True).replace(jnp.asarray(matrix))
    np.testing.assert_array_equal(slots.whole(), matrix)
    assert len(SlotMatrix.of(jnp.asarray(matrix), False).parts) == 1


def test_rows_and_columns():
    matrix, _ = _matrix(_NUM_SLOTS)
    slots = SlotMatrix.of(jnp.asarray(matrix), True)
    for slot in range(_NUM_SLOTS):
        np.testing.assert_array_equal(slots.row(jnp.asarray(slot)), matrix[slot])
    np.testing.assert_array_equal(slots.columns(jnp.asarray([4, 0])), matrix[:, [4, 0]])
    np.testing.assert_array_equal(slots.columns(jnp.asarray(2)), matrix[:, 2])


@pytest.mark.parametrize("num_in_use", [0, 1, 3, 8, _NUM_SLOTS])
def test_products(num_in_use):
    matrix, active = _matrix(num_in_use)
    slots, rng = SlotMatrix.of(jnp.asarray(matrix), True), np.random.default_rng(1)
    in_use = jnp.asarray(active)
    for shape in [(), (4,)]:
        right = np.float32(rng.normal(size=(_NUM_COLUMNS, *shape)))
        left = np.float32(rng.normal(size=(*shape, _NUM_SLOTS)))
        np.testing.assert_allclose(slots.dot(jnp.asarray(right), in_use), matrix @ right, atol=1e-5)
        np.testing.assert_allclose(
            slots.combine(jnp.asarray(left), in_use), left @ matrix, atol=1e-5
        )
    np.testing.assert_allclose(slots.squares(in_use), (matrix**2).sum(axis=0), rtol=1e-5)


@pytest.mark.parametrize("changes", [True, False])
def test_a_row_is_replaced_only_on_request(changes):
    matrix, _ = _matrix(4)
    row = jnp.arange(_NUM_COLUMNS, dtype=jnp.float32)
    for slot in range(_NUM_SLOTS):
        slots = SlotMatrix.of(jnp.asarray(matrix), True)
        expected = matrix.copy()
        if changes:
            expected[slot] = row
        found = slots.put(jnp.asarray(slot), row, jnp.asarray(changes))
        np.testing.assert_array_equal(found.whole(), expected)


@pytest.mark.parametrize("changes", [True, False])
@pytest.mark.parametrize("num_in_use", [1, 5, _NUM_SLOTS])
def test_rows_of_slots_in_use_are_changed_only_on_request(num_in_use, changes):
    matrix, active = _matrix(num_in_use)
    factors = np.arange(_NUM_SLOTS, dtype=np.float32)
    given = (jnp.asarray(factors),), jnp.asarray(active), jnp.asarray(changes)
    found = SlotMatrix.of(jnp.asarray(matrix), True).map_parts(
        lambda part, factor: part * factor[:, None], *given
    )
    expected = matrix * factors[:, None] if changes else matrix
    np.testing.assert_array_equal(found.whole(), expected)


def test_a_batch_whose_elements_use_different_slots():
    matrices, active = map(np.stack, zip(*(_matrix(u, seed=u) for u in (2, 6, 11)), strict=True))
    left = np.float32(np.random.default_rng(1).normal(size=(3, _NUM_SLOTS)))

    @jax.vmap
    def products(matrix, active, left):
        slots = SlotMatrix.of(matrix, True)
        right = left[:_NUM_COLUMNS]
        doubled = slots.map_parts(lambda part: 2 * part, (), active, jnp.asarray(True))
        return slots.combine(left, active), slots.dot(right, active), doubled.whole()

    combined, multiplied, doubled = products(*map(jnp.asarray, (matrices, active, left)))
    np.testing.assert_allclose(combined, np.einsum("bp,bpc->bc", left, matrices), atol=1e-5)
    right = left[:, :_NUM_COLUMNS]
    np.testing.assert_allclose(multiplied, np.einsum("bpc,bc->bp", matrices, right), atol=1e-5)
    np.testing.assert_array_equal(doubled, 2 * matrices)
