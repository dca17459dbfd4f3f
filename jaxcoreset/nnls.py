"""Non-negative least squares for many small systems at once, on the device.

    min ‖y − Σ_i w_i a_i‖²   subject to   w ≥ 0

by the active-set method of Lawson and Hanson, "Solving Least Squares Problems" (1974), chapter 23:
let one atom enter the passive set, go towards the least-squares solution on that set, and where a
weight would become negative stop there, take its atom out, and go on. Two things differ from the
book. The atom that enters is the one with the largest correlation after all have been scaled to norm
one. And a step that does not lower the objective in the arithmetic at hand is undone and its atom
not tried again until another has entered, so the objective falls with every step, nothing cycles,
and a singular system ends like any other.

The passive set is carried as a matrix T, `ActiveSet.basis`, whose products with the atoms, T A, are
orthonormal rows that span them. With correlations g = A r of the passive atoms with the *true*
residual, the way to the least-squares solution is Tᵀ T g, so every step also mends what rounding
did in the last one. The error of T grows with the condition of A and not, as that of a Gram
matrix's inverse or Cholesky factor updated in place, with its square, which is what makes float32
enough. An atom enters by Gram–Schmidt, done twice, and leaves by a reflection.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from jaxcoreset.problem import HIGHEST


class NNLSResult(eqx.Module):
    """What `nnls` found; under ``vmap``, arrays with the leading axes of the batch.

    Attributes:
        weights: shape (m,), not negative, 0 for atoms masked out.
        objective: ‖target − Σ w_i atoms_i‖².
        num_pivots: how many times an atom was let in or tried.
        converged: whether no atom is left that would lower the objective beyond rounding.
    """

    weights: Float[Array, "*b m"]
    objective: Float[Array, "*b"]
    num_pivots: Int[Array, "*b"]
    converged: Bool[Array, "*b"]


class ActiveSet(eqx.Module):
    """Weights on some of m atoms of norm one, at a feasible point.

    Attributes:
        weights: 0 outside the passive set.
        passive: which atoms are in the least-squares problem.
        basis: T, zero in the rows and columns of atoms that are not passive.
    """

    weights: Float[Array, " m"]
    passive: Bool[Array, " m"]
    basis: Float[Array, "m m"]

    @staticmethod
    def empty(num_atoms: int, dtype: jnp.dtype) -> "ActiveSet":
        """No atom passive."""
        return ActiveSet(
            jnp.zeros(num_atoms, dtype),
            jnp.zeros(num_atoms, bool),
            jnp.zeros((num_atoms, num_atoms), dtype),
        )


@jax.custom_batching.custom_vmap
def any_lane(flag: Bool[Array, ""]) -> Bool[Array, ""]:
    """The flag itself; under ``vmap``, whether it is set in any lane.

    As the condition of a ``while_loop`` it keeps ``vmap`` from copying the whole state of every lane
    in every iteration. The loop's body must then leave a lane that has stopped as it is.
    """
    return flag


@any_lane.def_vmap
def _any_lane_batched(axis_size: int, in_batched: list[bool], flag: Array) -> tuple[Array, bool]:
    del axis_size
    return any_lane(jnp.any(flag) if in_batched[0] else flag), False


def product(left: Array, right: Array) -> Array:
    """Matrix or dot product at full precision on every device."""
    return jnp.matmul(left, right, precision=HIGHEST)


def first_largest(scores: Float[Array, " n"], slack: Float[Array, ""]) -> Int[Array, ""]:
    """The lowest index whose score is within `slack`, the rounding of equals, of the largest."""
    return jnp.argmax(scores >= jnp.max(scores) - slack).astype(jnp.int32)


def _orthogonalise(
    atoms: Float[Array, "m s"], basis: Float[Array, "m m"], atom: Float[Array, " s"]
) -> tuple[Array, Array, Array]:
    """An atom's projection onto the passive set as coefficients, what is left of it, and its length.

    Gram-Schmidt, twice and again for as long as the atom keeps shrinking.
    """
    smallest = _INDEPENDENT * jnp.finfo(atom.dtype).eps

    def again(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        coefficients, rest, length, shrinking = carry
        change = product(product(basis, product(atoms, rest)), basis)
        change = jnp.where(shrinking, change, 0)
        new_rest = rest - product(change, atoms)
        new_length = jnp.linalg.norm(new_rest)
        shrinking = (new_length < 0.5 * length) & (new_length > smallest)
        return coefficients + change, new_rest, new_length, shrinking

    one = jnp.ones((), atom.dtype)
    start = (jnp.zeros(basis.shape[0], atom.dtype), atom, one, one > 0)
    coefficients, rest, length, _ = again(start)
    coefficients, rest, length, _ = jax.lax.while_loop(
        lambda carry: any_lane(carry[3]), again, (coefficients, rest, length, length > smallest)
    )
    return coefficients, rest, length


def _let_in(
    active: ActiveSet, slot: Int[Array, ""], coefficients: Array, distance: Array
) -> ActiveSet:
    scale = jnp.where(distance > 0, 1 / jnp.where(distance > 0, distance, 1), 0)
    row = (-scale * coefficients).at[slot].set(scale)
    return ActiveSet(
        active.weights, active.passive.at[slot].set(True), active.basis.at[slot].set(row)
    )


def _let_out(
    active: ActiveSet, slot: Int[Array, ""], ahead: Float[Array, " m"], leaves: Bool[Array, ""]
) -> tuple[ActiveSet, Array]:
    """Take an atom out of the passive set, if `leaves`.

    The reflection v turns the basis so that only its row `slot` needs the atom; that row goes.
    `ahead` is T g, and turns with it.
    """
    here = jnp.arange(active.passive.shape[0]) == slot
    column = active.basis[:, slot]
    length = jnp.linalg.norm(column)
    v = column + jnp.where(here, jnp.where(column[slot] < 0, -length, length), 0)
    squared = jnp.vdot(v, v)
    factor = jnp.where(leaves & (squared > 0), 2 / jnp.where(squared > 0, squared, 1), 0)
    turned = active.basis - (factor * v)[:, None] * product(v, active.basis)[None, :]
    keep = ~(here & leaves)
    kept = ActiveSet(
        jnp.where(keep, active.weights, 0),
        active.passive & keep,
        jnp.where(keep[:, None] & keep[None, :], turned, 0),
    )
    return kept, jnp.where(keep, ahead - factor * v * jnp.vdot(v, ahead), 0)


def _descend(active: ActiveSet, ahead: Float[Array, " m"]) -> ActiveSet:
    """Go to the least-squares solution on the passive set, losing the atoms that block the way.

    Args:
        active: a feasible point.
        ahead: T g, the residual's coordinates in the basis.
    """

    def way(active: ActiveSet, ahead: Array) -> tuple[Array, Array]:
        direction = product(ahead, active.basis)
        return direction, active.passive & (active.weights + direction <= 0)

    def block(carry: tuple[ActiveSet, Array]) -> tuple[ActiveSet, Array]:
        active, ahead = carry
        direction, blocked = way(active, ahead)
        reach = jnp.where(blocked & (direction < 0), direction, -1)
        fraction = jnp.where(blocked, jnp.where(direction < 0, -active.weights / reach, 0), 2)
        slot = jnp.argmin(fraction)
        leaves = blocked[slot]
        fraction = jnp.where(leaves, jnp.minimum(fraction[slot], 1), 0)
        weights = jnp.maximum(active.weights + fraction * direction, 0)
        moved = eqx.tree_at(lambda a: a.weights, active, weights)
        return _let_out(moved, slot, (1 - fraction) * ahead, leaves)

    active, ahead = jax.lax.while_loop(
        lambda carry: any_lane(way(*carry)[1].any()), block, (active, ahead)
    )
    weights = jnp.maximum(active.weights + way(active, ahead)[0], 0)
    return eqx.tree_at(lambda a: a.weights, active, weights)


def enter(
    atoms: Float[Array, "m s"],
    active: ActiveSet,
    slot: Int[Array, ""],
    residual: Float[Array, " s"],
) -> tuple[ActiveSet, Bool[Array, ""]]:
    coefficients, rest, length = _orthogonalise(atoms, active.basis, atoms[slot])
    independent = length > _INDEPENDENT * jnp.finfo(atoms.dtype).eps
    active = _let_in(active, slot, coefficients, length)
    ahead = jnp.zeros_like(active.weights).at[slot].set(
        jnp.vdot(rest, residual) / jnp.where(independent, length, 1)
    )
    return _descend(active, ahead), independent

_INDEPENDENT=250

def project(atoms, active, target):
    residual = target - product(active.weights, atoms)
    change = product(product(active.basis, product(atoms, residual)), active.basis)
    weights = jnp.maximum(active.weights + change, 0)
    return (eqx.tree_at(lambda a: a.weights, active, weights),
       residual - product(change, atoms), jnp.vdot(residual, residual))


def nnls(
    atoms: ArrayLike,
    target: ArrayLike,
    *,
    warm_start: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    count: ArrayLike | None = None,
    max_pivots: int | None = None,
    tol: float | None = None,
) -> NNLSResult:
    return None
