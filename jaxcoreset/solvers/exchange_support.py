"""The atoms in use, the candidates, and a move from one support to the next.

With unit atoms a_i, and P those in use, T holds the coefficients of an orthonormal
basis Q = T A_P, so that TᵀT is the inverse of the Gram matrix, and V = Q Aᵀ the coordinates of all
candidates in it. From V come, for any atom i, its squared distance from the span, ρ_i = 1 − ‖V_i‖²,
and its least-squares coefficients TᵀV_i. What the objective falls by when i takes the place of j is
then a closed form: with B = TᵀT, Z = TᵀV and c_i = ⟨a_i, r⟩,

    (c_i + w_j Z_ji / B_jj)² / (ρ_i + Z_ji² / B_jj) − w_j² / B_jj

which is evaluated for all i and for the few j with the least to lose. An atom leaves by a
reflection of Q, T and V, and enters by Gram–Schmidt, done twice, so that nothing is divided by a
small pivot. T predicts the weights; what is recorded has had its residual formed anew and a step of
iterative refinement.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxcoreset.nnls import product
from jaxcoreset.problem import CoresetProblem

# An atom may enter if its distance from the span of those in use is more than this many roundings.
_INDEPENDENT = 100
# So many atoms, those with the least to lose, are tried for an exchange; more bring nothing.
_NUM_LEAVING = 8


class Support(eqx.Module):
    """The atoms in use, by slot; rows and columns of slots that are free are zero.

    Attributes:
        places: index among the candidates; their number where the atom is not one of them.
        rows: index among all atoms.
        active: which slots are in use.
        weights: a feasible point, where Lawson and Hanson's line starts.
        aim: weights near the least-squares solution, of any sign.
        atoms, basis, coefficients: A_P, Q and T, with T A_P = Q.
    """

    places: Int[Array, " p"]
    rows: Int[Array, " p"]
    active: Bool[Array, " p"]
    weights: Float[Array, " p"]
    aim: Float[Array, " p"]
    atoms: Float[Array, "p s"]
    basis: Float[Array, "p s"]
    coefficients: Float[Array, "p p"]


class Candidates(eqx.Module):
    """The atoms that may enter, and what is known of them with respect to the support.

    Attributes:
        rows: index among all atoms.
        atoms: scaled to norm one, zero if they can't be.
        usable: false for atoms of norm zero.
        used: whether it is in the support.
        refused: whether it came in and had to go at once; cleared with the next progress.
        coordinates: V, in the basis of the support.
        rest: ρ, the squared distance from its span.
    """

    rows: Int[Array, " m"]
    atoms: Float[Array, "m s"]
    usable: Bool[Array, " m"]
    used: Bool[Array, " m"]
    refused: Bool[Array, " m"]
    coordinates: Float[Array, "p m"]
    rest: Float[Array, " m"]


class Choice(eqx.Module):
    """An atom to enter in the place of one that leaves, and the weight it will have."""

    place: Int[Array, ""]
    slot: Int[Array, ""]
    weight: Float[Array, ""]
    worth: Bool[Array, ""]


def settle(support: Support, target: Float[Array, " s"]) -> tuple[Array, Array, Array]:
    """The least-squares weights, refined from `aim`.

    Returns:
        The weights, a residual orthogonal to the support, and the objective of these weights.
    """
    residual = target - product(support.aim, support.atoms)
    ahead = product(support.basis, residual)
    residual = residual - product(ahead, support.basis)
    solved = support.aim + product(ahead, support.coefficients)
    left = target - product(solved, support.atoms)
    return solved, residual, jnp.vdot(left, left)


def least_losses(support: Support, solved: Float[Array, " p"]) -> tuple[Array, Array, Array]:
    """The few atoms whose leaving would raise the objective least.

    Returns:
        B_jj for all slots, 1 where free; and, of the few, what is lost, w_j²/B_jj, and the slot.
    """
    squares = jnp.sum(support.coefficients**2, axis=0)
    squares = jnp.where(support.active, squares, 1)
    losses = jnp.where(support.active, solved**2 / squares, jnp.inf)
    least, slots = jax.lax.top_k(-losses, min(_NUM_LEAVING, losses.shape[0]))
    return squares, -least, slots


def best_exchange(
    support: Support,
    candidates: Candidates,
    solved: Float[Array, " p"],
    eligible: Bool[Array, " m"],
    correlations: Float[Array, " m"],
    rest: Float[Array, " m"],
    floor: Float[Array, ""],
    least: Float[Array, ""],
) -> Choice:
    """The exchange that gains most among those that leave every weight positive.

    For each of a few atoms that may leave, the best that may enter in its place; of these pairs the
    best. `least` is what an exchange has to gain.
    """
    squares, losses, slots = least_losses(support, solved)
    leaving = support.coefficients.T[slots]
    scale = 1 / squares[slots]
    along = product(leaving, candidates.coordinates)
    moved = correlations + (solved[slots] * scale)[:, None] * along
    left = rest + scale[:, None] * along**2
    gains = jnp.where(eligible & (moved > floor), moved**2 / left, 0) - losses[:, None]
    places = jnp.argmax(gains, axis=1)
    gains = jnp.take_along_axis(gains, places[:, None], 1)[:, 0]
    weight = jnp.take_along_axis(moved / left, places[:, None], 1)[:, 0]
    share = jnp.take_along_axis(along, places[:, None], 1)[:, 0] * scale
    shift = (solved[slots] * scale - weight * share)[:, None] * leaving
    shift = shift + weight[:, None] * candidates.coordinates.T[places]
    after = solved - product(shift, support.coefficients)
    stays = support.active & (jnp.arange(solved.shape[0]) != slots[:, None])
    gains = jnp.where(jnp.all((after > 0) | ~stays, axis=1), gains, -jnp.inf)
    best = jnp.argmax(gains)
    return Choice(places[best].astype(jnp.int32), slots[best], weight[best], gains[best] > least)


def change(
    support: Support,
    candidates: Candidates,
    *,
    weights: Float[Array, " p"],
    solved: Float[Array, " p"],
    slot_out: Int[Array, ""],
    leaves: Bool[Array, ""],
    place: Int[Array, ""],
    enters: Bool[Array, ""],
    weight: Float[Array, ""],
    resets: Bool[Array, ""],
) -> tuple[Support, Candidates, Array]:
    """Let one atom leave, one enter, or both, or start from nothing, as the flags say.

    A reflection turns the basis so that only its row `slot_out` needs the atom that leaves; that
    row is then free for the atom that enters.

    Returns:
        The new support and candidates, and the slot of the atom that entered, −1 if none did.
    """
    slots = jnp.arange(support.active.shape[0])
    slot_in = jnp.where(leaves, slot_out, jnp.argmin(support.active))
    out, into = (slots == slot_out) & leaves, slots == slot_in

    column = jnp.where(leaves, support.coefficients[:, slot_out], 0)
    length = jnp.linalg.norm(column)
    lost = column / jnp.where(length > 0, length, 1)
    sign = jnp.where(lost[slot_out] < 0, -1, 1)
    normal = lost + sign * out
    factor = jnp.where(leaves, 2, 0) / jnp.maximum(jnp.vdot(normal, normal), 1)

    atom = candidates.atoms[place]
    first = jnp.where(enters, candidates.coordinates[:, place], 0)
    first = first - jnp.vdot(lost, first) * lost
    rest = atom - product(first, support.basis)
    second = product(support.basis, rest)
    second = second - jnp.vdot(lost, second) * lost
    rest = rest - product(second, support.basis)
    norm = jnp.linalg.norm(rest)
    enters_really = enters & (norm > _INDEPENDENT * jnp.finfo(norm.dtype).eps)
    scale = 1 / jnp.where(enters_really, norm, 1)
    coefficients = first + second

    keep = ~out & ~resets
    new = into & enters_really

    def update(old: Array, row: Array, stays: Array) -> tuple[Array, Array]:
        """Reflect, and put a row in; also what the direction that is lost had."""
        gone = product(lost, old)
        across = gone + jnp.where(leaves, sign, 0) * old[slot_out]
        turned = old - (factor * normal)[:, None] * across
        return jnp.where(new[:, None], row, jnp.where(stays, turned, 0)), gone

    direction = rest * scale
    row = scale * (into - product(coefficients, support.coefficients))
    basis, _ = update(support.basis, direction, keep[:, None])
    inverse, _ = update(support.coefficients, row, keep[:, None] & keep)
    along = product(candidates.atoms, direction)
    coordinates, gone = update(candidates.coordinates, along, keep[:, None])

    shift = jnp.where(leaves, solved[slot_out] / jnp.where(length > 0, length, 1), 0) * lost
    shift = shift + jnp.where(enters_really, weight, 0) * first
    aim = solved - product(shift, support.coefficients)
    active = (support.active & keep) | new
    aim = jnp.where(new, weight, jnp.where(active, aim, 0))
    # An exchange was chosen for leaving all weights positive; whatever else enters has weight zero.
    both = leaves & enters_really
    feasible = jnp.where(both, jnp.maximum(aim, 0), jnp.where(new | ~keep, 0, weights))

    indices = jnp.arange(candidates.rows.shape[0])
    left = (indices == support.places[slot_out]) & leaves
    entered = (indices == place) & enters_really
    distance = candidates.rest + gone**2 - jnp.where(enters_really, along**2, 0)
    return (
        Support(
            places=jnp.where(new, place, support.places),
            rows=jnp.where(new, candidates.rows[place], support.rows),
            active=active,
            weights=feasible,
            aim=aim,
            atoms=jnp.where(new[:, None], atom, support.atoms),
            basis=basis,
            coefficients=inverse,
        ),
        Candidates(
            rows=candidates.rows,
            atoms=candidates.atoms,
            usable=candidates.usable,
            used=((candidates.used & ~left) | entered) & ~resets,
            refused=(candidates.refused | ((indices == place) & enters & ~enters_really)) & ~resets,
            coordinates=coordinates,
            rest=jnp.where(resets, 1, distance),
        ),
        jnp.where(enters_really, slot_in, -1).astype(jnp.int32),
    )


def no_support(num_slots: int, num_candidates: int, num_draws: int, dtype: Any) -> Support:
    """No atom in use."""
    return Support(
        places=jnp.full(num_slots, num_candidates, jnp.int32),
        rows=jnp.zeros(num_slots, jnp.int32),
        active=jnp.zeros(num_slots, bool),
        weights=jnp.zeros(num_slots, dtype),
        aim=jnp.zeros(num_slots, dtype),
        atoms=jnp.zeros((num_slots, num_draws), dtype),
        basis=jnp.zeros((num_slots, num_draws), dtype),
        coefficients=jnp.zeros((num_slots, num_slots), dtype),
    )


def no_candidates(num_slots: int, num_candidates: int, num_draws: int, dtype: Any) -> Candidates:
    """Room for candidates that are yet to be chosen."""
    return Candidates(
        rows=jnp.zeros(num_candidates, jnp.int32),
        atoms=jnp.zeros((num_candidates, num_draws), dtype),
        usable=jnp.zeros(num_candidates, bool),
        used=jnp.zeros(num_candidates, bool),
        refused=jnp.zeros(num_candidates, bool),
        coordinates=jnp.zeros((num_slots, num_candidates), dtype),
        rest=jnp.ones(num_candidates, dtype),
    )


def choose_candidates(
    problem: CoresetProblem,
    target: Float[Array, " s"],
    scale: Float[Array, " n"],
    support: Support,
    num_candidates: int,
) -> Candidates:
    """All atoms, or those that promise most, in the order of their rows.

    An atom promises the square of its correlation with the residual; or, less what that would cost,
    with the residual as it would be without one of the few atoms in use that matter least.
    """
    n = problem.num_data
    if num_candidates == n:
        rows = jnp.arange(n, dtype=jnp.int32)
    else:
        solved, residual, _ = settle(support, target)
        squares, losses, slots = least_losses(support, solved)
        without = (solved[slots] / squares[slots])[:, None] * product(
            support.coefficients.T[slots], support.basis
        )
        residuals = jnp.concatenate([residual[None], residual + without])
        correlations = jax.vmap(problem.correlate)(residuals) * scale
        costs = jnp.concatenate([jnp.zeros(1, losses.dtype), losses])[:, None]
        scores = jnp.max(jnp.maximum(correlations, 0) ** 2 - costs, axis=0)
        rows = jnp.sort(jax.lax.top_k(scores, num_candidates)[1]).astype(jnp.int32)
    scales = scale[rows]
    atoms = problem.gather(rows) * scales[:, None]
    coordinates = product(support.basis, atoms.T)
    used = (rows[:, None] == jnp.where(support.active, support.rows, n)).any(axis=1)
    return Candidates(
        rows=rows,
        atoms=atoms,
        usable=scales > 0,
        used=used,
        refused=jnp.zeros(num_candidates, bool),
        coordinates=coordinates,
        rest=1 - jnp.sum(coordinates**2, axis=0),
    )
