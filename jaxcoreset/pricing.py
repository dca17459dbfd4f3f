"""Column generation: one pass over all rows for those that the coreset still lacks.

A solver chooses among candidates. Whether a row that is no candidate would help is told by its atom
φ and the residual r of what was found: alone, it lowers the objective ‖r‖² by ⟨φ, r⟩²/‖φ‖² where
⟨φ, r⟩ > 0, and else by nothing. A pass evaluates that for every row, and keeps the best; they join
the candidates, and the solver is run again (Gilmore and Gomory 1961; as in the pricing step of
column generation, but for a quadratic objective).
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from jaxcoreset.features import LogLikelihood
from jaxcoreset.problem import HIGHEST
from jaxcoreset.rows import Rows, State


@dataclass(frozen=True)
class Priced:
    """The best rows of a pass, the best one first; of equally good ones, the lower number.

    Attributes:
        indices: shape (m,), their numbers.
        gains: shape (m,), by how much of itself each alone would lower the objective, in (0, 1].
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
    parts: tuple[int, ...] = eqx.field(static=True)
    num: int = eqx.field(static=True)


def price(
    rows: Rows,
    log_likelihood: LogLikelihood,
    draws: PyTree,
    residual: Float[Array, " s"],
    parts: tuple[int, ...],
    num: int,
    known: Int[np.ndarray, " m"],
) -> Priced:
    """The rows that would improve most on a solution.

    Args:
        rows: all the rows.
        log_likelihood: ``log_likelihood(draw, data) -> (n,)``.
        draws: pytree of arrays with a leading axis of length S, those of the solver.
        residual: shape (S,), the target less the solution's combination of atoms.
        parts: how many of the draws are centred together, in their order; their sum is S.
        num: at most so many rows are returned.
        known: rows that are candidates already.
    """
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

    states = rows.fold(
        _block_scores,
        _Pricing(log_likelihood, draws, residual, parts, num),
        residual.size,
        start,
        add,
        what="pricing",
    )
    best = _best(states, num)
    useful = best["score"] > 0
    objective = float(np.sum(np.asarray(residual, np.float64) ** 2))
    gains = best["score"][useful].astype(np.float64) ** 2 / objective
    return Priced(
        best["row"][useful], gains, tuple(best[str(i)][useful] for i in range(len(leaves)))
    )


def _best(states: list[State], num: int) -> State:
    """The best rows of several lists; a tie goes to the lower number."""
    joined = {name: np.concatenate([state[name] for state in states]) for name in states[0]}
    order = np.lexsort((joined["row"], -joined["score"]))[:num]
    return {name: values[order] for name, values in joined.items()}


def _block_scores(pricing: _Pricing, rows: tuple, counted: Array) -> tuple:
    """The best rows of a block: their scores ⟨φ, r⟩/‖φ‖, their places, and themselves."""
    data, _ = rows
    values = jax.vmap(pricing.log_likelihood, in_axes=(0, None), out_axes=-1)(pricing.draws, data)
    ends = np.cumsum(pricing.parts)[:-1]
    centred = [part - jnp.mean(part, -1, keepdims=True) for part in jnp.split(values, ends, -1)]
    atoms = jnp.concatenate(centred, -1) / np.sqrt(values.shape[-1])
    products = jnp.matmul(atoms, pricing.residual, precision=HIGHEST)
    norms = jnp.sqrt(jnp.sum(atoms**2, -1))
    scores = jnp.where(counted & (norms > 0), products / jnp.where(norms > 0, norms, 1), -jnp.inf)
    best, places = jax.lax.top_k(scores, min(pricing.num, scores.size))
    return best.astype(jnp.float32), places, jax.tree.map(lambda leaf: leaf[places], data)
