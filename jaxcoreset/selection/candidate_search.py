"""Column generation: one pass over all rows for those that the coreset still lacks.

A solver chooses among candidates. Whether a row that is no candidate would help is told by its atom
φ, the residual r of what was found, and the atoms chosen. With ⟨φ, r⟩ > 0 and all weights fitted
anew, it lowers the objective ‖r‖² by ⟨φ, r⟩²/‖φ⊥‖², where φ⊥ is φ without its projection on the
chosen atoms, or by less where one of their weights would become negative; else by nothing. A pass
evaluates that for every row and keeps the best; they join the candidates, and the solver is run
again. It is the pricing step of column generation (Gilmore and Gomory 1961) with the selection rule
of orthogonal least squares (Chen, Billings and Luo 1989).
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from jaxcoreset.data.rows import Rows, State
from jaxcoreset.likelihood.passes import LogLikelihood
from jaxcoreset.solvers.numerics import HIGHEST

# Directions of the chosen atoms that are told apart, and what is told of an atom beyond them.
_RANK = 1e-5
_LEAST_LEFT = 1e-5
# Products with the residual below so many roundings of the target are none.
_NOISE = 16


@dataclass(frozen=True)
class Priced:
    """The best rows of a pass, the best one first; of equally good ones, the lower number.

    Attributes:
        indices: shape (m,), their numbers.
        gains: shape (m,), by what part of itself each would lower the objective, in (0, 1].
        leaves: their data.
    """

    indices: Int[np.ndarray, " m"]
    gains: Float[np.ndarray, " m"]
    leaves: tuple


class _Pricing(eqx.Module):
    """What the rows' log-likelihoods are held against."""

    log_likelihood: LogLikelihood = eqx.field(static=True)
    draws: PyTree
    residual: Float[Array, " s"]
    noise: Float[Array, ""]
    basis: Float[Array, "s k"]
    parts: tuple[int, ...] = eqx.field(static=True)
    num: int = eqx.field(static=True)


def price(
    rows: Rows,
    log_likelihood: LogLikelihood,
    draws: PyTree,
    residual: Float[Array, " s"],
    chosen: Float[Array, "k s"],
    parts: tuple[int, ...],
    num: int,
    known: Int[np.ndarray, " m"],
    scale: float,
) -> Priced:
    """The rows that would improve most on a solution.

    Args:
        rows: all the rows.
        log_likelihood: ``log_likelihood(draw, data) -> (n,)``.
        draws: pytree of arrays with a leading axis of length S, those of the solver.
        residual: shape (S,), the target less the solution's combination of atoms.
        chosen: shape (k, S), the atoms that are combined; zero rows count for nothing.
        parts: how many of the draws are centred together, in their order; their sum is S.
        num: at most so many rows are returned.
        known: rows that are candidates already.
        scale: ‖y‖ of the target, of which the residual is right to float precision only.
    """
    noise = _NOISE * scale * jnp.finfo(residual.dtype).eps
    basis = _basis(chosen)
    # What the chosen atoms could do about the residual is not for others to gain.
    spanned = jnp.matmul(residual, basis, precision=HIGHEST)
    residual = residual - jnp.matmul(basis, spanned, precision=HIGHEST)
    leaves = jax.tree.leaves(rows.data)
    start = {"score": np.full(num, -np.inf, np.float32), "row": np.full(num, -1)} | {
        str(i): np.zeros((num, *leaf.shape[1:]), jax.dtypes.canonicalize_dtype(leaf.dtype))
        for i, leaf in enumerate(leaves)
    }

    def add(state: State, values: tuple, first: int, count: int) -> State:
        score, position, found = values
        blocks, block = position.shape[0], rows.block(residual.size)
        row = first + (np.arange(blocks)[:, None] * block + position)
        found = [part.reshape(-1, *part.shape[2:]) for part in jax.tree.leaves(found)]
        score, row = score.ravel(), row.ravel()
        good = np.flatnonzero((score > state["score"].min()) & ~np.isin(row, known))
        new = {"score": score[good], "row": row[good]}
        new |= {str(i): part[good] for i, part in enumerate(found)}
        return _best([state, new], num)

    states = rows.map_reduce(
        _block_scores,
        _Pricing(log_likelihood, draws, residual, jnp.asarray(noise), basis, parts, num),
        residual.size,
        start,
        add,
        what="pricing",
    )
    best = _best(states, num)
    useful = best["score"] > 0
    objective = float(np.sum(np.asarray(residual, np.float64) ** 2))
    gains = np.minimum(best["score"][useful].astype(np.float64) ** 2 / objective, 1)
    return Priced(
        best["row"][useful], gains, tuple(best[str(i)][useful] for i in range(len(leaves)))
    )


def _best(states: list[State], num: int) -> State:
    """The best rows of several lists; a tie goes to the lower number."""
    joined = {name: np.concatenate([state[name] for state in states]) for name in states[0]}
    order = np.lexsort((joined["row"], -joined["score"]))[:num]
    return {name: values[order] for name, values in joined.items()}


def _basis(chosen: Float[Array, "k s"]) -> Float[Array, "s k"]:
    """Orthonormal columns that span the atoms, in float64 on the host; zeros fill them up."""
    atoms = np.asarray(chosen, np.float64)
    norms = np.linalg.norm(atoms, axis=1, keepdims=True)
    left, values, _ = np.linalg.svd((atoms / np.where(norms > 0, norms, 1)).T, full_matrices=False)
    return jnp.asarray(np.where(values > _RANK * values.max(initial=0), left, 0), chosen.dtype)


def _block_scores(pricing: _Pricing, rows: tuple, counted: Array) -> tuple:
    """The best rows of a block: their scores ⟨φ, r⟩/‖φ⊥‖, their places, and themselves."""
    data, _ = rows
    values = jax.vmap(pricing.log_likelihood, in_axes=(0, None), out_axes=-1)(pricing.draws, data)
    ends = np.cumsum(pricing.parts)[:-1]
    centred = [part - jnp.mean(part, -1, keepdims=True) for part in jnp.split(values, ends, -1)]
    atoms = jnp.concatenate(centred, -1) / np.sqrt(values.shape[-1])
    products = jnp.matmul(atoms, pricing.residual, precision=HIGHEST)
    squares = jnp.sum(atoms**2, -1)
    spanned = jnp.sum(jnp.matmul(atoms, pricing.basis, precision=HIGHEST) ** 2, -1)
    # Of an atom that the chosen ones span nearly, float32 leaves nothing to go by.
    left = jnp.sqrt(jnp.maximum(squares - spanned, _LEAST_LEFT * squares))
    useful = counted & (products > pricing.noise * jnp.sqrt(squares))
    scores = jnp.where(useful, products / jnp.where(useful, left, 1), -jnp.inf)
    best, places = jax.lax.top_k(scores, min(pricing.num, scores.size))
    return best.astype(jnp.float32), places, jax.tree.map(lambda leaf: leaf[places], data)
