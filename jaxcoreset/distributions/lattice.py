"""The lattice of a distribution: supports as slots and points, and checks of tables."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxcoreset.solvers.arguments import as_float, check_finite


def slots_of(support: Bool[Array, " n"], max_k: int) -> Int[Array, " k"]:
    """The coordinates of a support, then n in unused slots."""
    n = support.shape[0]
    return jnp.nonzero(support, size=max_k, fill_value=n)[0].astype(jnp.int32)


def points_of(
    slots: Int[Array, " k"], lattice: tuple[int, ...]
) -> tuple[Int[Array, " p"], Bool[Array, " p"]]:
    """X_S as positions in the flattened table, and which of the positions exist."""
    n, m = len(lattice), lattice[0]
    digits = jnp.asarray(np.indices((m,) * slots.shape[0]).reshape(slots.shape[0], -1).T, jnp.int32)
    # The distance in the flattened table of two points that differ by 1 in a coordinate.
    strides = jnp.asarray([*(m**i for i in reversed(range(n))), 0], jnp.int32)
    allowed = ((digits == 0) | (slots < n)).all(axis=1)
    return jnp.sum(digits * strides[slots], axis=1), allowed


def as_table(
    points: Int[Array, " p"], values: Float[Array, " p"], lattice: tuple[int, ...]
) -> Float[Array, "*lattice"]:
    """Values at some points as a table, zero elsewhere."""
    flat = jnp.zeros(int(np.prod(lattice)), values.dtype)
    return flat.at[points].add(values).reshape(lattice)


def varying_coordinates(table: Float[Array, "*lattice"]) -> Bool[Array, " n"]:
    """The coordinates that are not zero somewhere on the table's support."""
    sums = [
        jnp.any(jax.lax.slice_in_dim(table, 1, table.shape[i], axis=i) > 0)
        for i in range(table.ndim)
    ]
    return jnp.stack(sums)


def draw_slots(key: PRNGKeyArray, n: int, k: Int[Array, ""], max_k: int) -> Int[Array, " k"]:
    """K random coordinates, then n in unused slots."""
    slots = jax.random.permutation(key, n)[:max_k]
    return jnp.where(jnp.arange(max_k) < k, slots, n).astype(jnp.int32)


def random_table(
    key: PRNGKeyArray, lattice: tuple[int, ...], k: Int[Array, ""], max_k: int
) -> tuple[Float[Array, "*lattice"], Bool[Array, " n"]]:
    """A random k-sparse distribution, and its support."""
    key_support, key_values = jax.random.split(key)
    slots = draw_slots(key_support, len(lattice), k, max_k)
    points, allowed = points_of(slots, lattice)
    masses = jnp.where(allowed, jax.random.exponential(key_values, points.shape), 0)
    support = jnp.isin(jnp.arange(len(lattice)), slots)
    return as_table(points, masses / jnp.sum(masses), lattice), support


def checked_lattice(name: str, lattice: tuple[int, ...]) -> tuple[int, ...]:
    """The given shape; raise a ValueError if it is not (m,)·n or is too large."""
    if not lattice or len(set(lattice)) != 1 or lattice[0] < 2:
        raise ValueError(
            f"{name} has shape {lattice}; expected (m, …, m), one axis for each of the n "
            "coordinates and m ≥ 2 values along each. Pad a table with unequal axes with zeros."
        )
    if lattice[0] ** len(lattice) >= 2**31:
        raise ValueError(f"{name} has shape {lattice}; expected fewer than 2³¹ entries.")
    return lattice


def checked_table(name: str, value: ArrayLike) -> Array:
    """A table as an array of floats; raise a ValueError if it is not a table."""
    table = as_float(value)
    checked_lattice(name, table.shape)
    check_finite(name, table)
    return table


def check_distribution(name: str, table: Array) -> None:
    """Raise a ValueError if a table is not a distribution."""
    total, least = float(table.sum()), float(table.min())
    if least < 0 or abs(total - 1) > 1e-3:
        raise ValueError(
            f"{name} sums to {total:.6g} and its smallest entry is {least:.6g}; expected a "
            "distribution: no negative entry, and a sum of 1."
        )
