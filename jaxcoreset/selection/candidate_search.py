"""One pass over all rows for further candidates that would improve a coreset.

A solver chooses among candidate rows. Whether another row would help follows from its atom φ, the
residual r of the solution, and the atoms chosen. If ⟨φ, r⟩ > 0 and all weights are fitted again,
the row lowers the objective ‖r‖² by ⟨φ, r⟩²/‖φ⊥‖², where φ⊥ is φ without its projection on the
chosen atoms, or by less if one of their weights would become negative. Otherwise the row does not
lower the objective. A pass evaluates this decrease for every row and keeps the best rows; they join
the candidates, and the solver runs again.

This is column generation (Gilmore and Gomory 1961), whose search is called pricing, with the
selection rule of orthogonal least squares (Chen, Billings and Luo 1989).
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from jaxcoreset.data.rows import Rows, State
from jaxcoreset.likelihood.passes import LogLikelihood, centred
from jaxcoreset.solvers.numerics import HIGHEST

# Directions of the chosen atoms with smaller singular values, relative to the largest, are ignored.
_RANK = 1e-5
# The smallest ‖φ⊥‖²/‖φ‖² that float32 can resolve.
_MIN_ORTHOGONAL = 1e-5
# A product with the residual counts as zero below this number of roundings of the target.
_NOISE = 16


@dataclass(frozen=True)
class FoundRows:
    """The best rows of a pass, the best one first, and the lower row number first among equals.

    Attributes:
        indices: shape (m,), their row numbers.
        decreases: shape (m,), the relative decrease of the objective by each row, in (0, 1].
        data: their data.
    """

    indices: Int[np.ndarray, " m"]
    decreases: Float[np.ndarray, " m"]
    data: tuple

    def among(self, rows: Int[np.ndarray, " r"] | None) -> "FoundRows":
        """Those that are among some rows; all of them for None."""
        if rows is None:
            return self
        at = np.isin(self.indices, rows)
        return FoundRows(
            self.indices[at], self.decreases[at], tuple(leaf[at] for leaf in self.data)
        )


class _Criterion(eqx.Module):
    """What the rows' log-likelihoods are compared with."""

    log_likelihood: LogLikelihood = eqx.field(static=True)
    draws: PyTree
    residual: Float[Array, " s"]
    noise: Float[Array, ""]
    basis: Float[Array, "s k"]
    parts: tuple[int, ...] = eqx.field(static=True)
    num: int = eqx.field(static=True)
    removed: tuple[Array, Array] | None = None
    common: dict[str, Array] | None = None


def search_rows(
    rows: Rows,
    log_likelihood: LogLikelihood,
    draws: PyTree,
    residual: Float[Array, " s"],
    chosen: Float[Array, "k s"],
    parts: tuple[int, ...],
    num: int,
    known: Int[np.ndarray, " m"],
    scale: float,
    removed: tuple[Float[Array, "s p"], Float[Array, "p s"]] | None = None,
    common: dict[str, Array] | None = None,
) -> FoundRows:
    """The rows that would improve a solution most.

    Args:
        rows: all the rows.
        log_likelihood: ``log_likelihood(draw, data) -> (n,)``.
        draws: pytree of arrays with a leading axis of length S, those of the solver.
        residual: shape (S,), the target less the solution's combination of atoms.
        chosen: shape (k, S), the atoms that are combined; rows of zeros are ignored.
        parts: the numbers of draws that are centred together, in their order; their sum is S.
        num: the maximum number of rows returned.
        known: the row numbers of the candidates.
        scale: ‖y‖ of the target; the residual is accurate to float precision relative to it.
        removed: two factors; their product, applied to an atom, is subtracted from it.
        common: entries that all draws have in common, if these are dictionaries.
    """
    noise = _NOISE * scale * jnp.finfo(residual.dtype).eps
    basis = _basis(chosen)
    # A decrease that the chosen atoms can reach themselves is not due to another row.
    spanned = jnp.matmul(residual, basis, precision=HIGHEST)
    residual = residual - jnp.matmul(basis, spanned, precision=HIGHEST)
    # Rows of different lengths are read when they are needed.
    leaves = [] if rows.is_ragged else jax.tree.leaves(rows.data)
    start = {"score": np.full(num, -np.inf, np.float32), "row": np.full(num, -1)} | {
        str(i): np.zeros((num, *leaf.shape[1:]), jax.dtypes.canonicalize_dtype(leaf.dtype))
        for i, leaf in enumerate(leaves)
    }

    def add(state: State, values: tuple, first: int, count: int) -> State:
        score, position, found = values
        blocks, block = position.shape[0], rows.block(residual.size, first - rows.offset)
        row = first + (np.arange(blocks)[:, None] * block + position)
        found = jax.tree.leaves(found)[: len(leaves)]
        found = [part.reshape(-1, *part.shape[2:]) for part in found]
        score, row = score.ravel(), row.ravel()
        good = np.flatnonzero((score > state["score"].min()) & ~np.isin(row, known))
        new = {"score": score[good], "row": row[good]}
        new |= {str(i): part[good] for i, part in enumerate(found)}
        return _best([state, new], num)

    given = log_likelihood, draws, residual, jnp.asarray(noise), basis, parts, num
    criterion = _Criterion(*given, removed, common)
    states = rows.map_reduce(
        _block_scores,
        criterion,
        residual.size,
        start,
        add,
        what="candidate search",
    )
    best = _best(states, num)
    useful = best["score"] > 0
    objective = float(np.sum(np.asarray(residual, np.float64) ** 2))
    decreases = np.minimum(best["score"][useful].astype(np.float64) ** 2 / objective, 1)
    return FoundRows(
        best["row"][useful], decreases, tuple(best[str(i)][useful] for i in range(len(leaves)))
    )


def _best(states: list[State], num: int) -> State:
    """The best rows of several lists; a tie goes to the lower row number."""
    joined = {name: np.concatenate([state[name] for state in states]) for name in states[0]}
    order = np.lexsort((joined["row"], -joined["score"]))[:num]
    return {name: values[order] for name, values in joined.items()}


def _basis(chosen: Float[Array, "k s"]) -> Float[Array, "s k"]:
    """Orthonormal columns that span the atoms, padded with zeros, in float64 on the host."""
    atoms = np.asarray(chosen, np.float64)
    norms = np.linalg.norm(atoms, axis=1, keepdims=True)
    left, values, _ = np.linalg.svd((atoms / np.where(norms > 0, norms, 1)).T, full_matrices=False)
    return jnp.asarray(np.where(values > _RANK * values.max(initial=0), left, 0), chosen.dtype)


def _block_scores(criterion: _Criterion, rows: tuple, counted: Array) -> tuple:
    """The best rows of a block: their scores ⟨φ, r⟩/‖φ⊥‖, their positions, and their data."""
    data, _ = rows

    def evaluate(draw: PyTree) -> Array:
        given = draw if criterion.common is None else draw | criterion.common
        return criterion.log_likelihood(given, data)

    values = jax.vmap(evaluate, out_axes=-1)(criterion.draws)
    ends = np.cumsum(criterion.parts)[:-1]
    parts = [centred(part) for part in jnp.split(values, ends, -1)]
    atoms = jnp.concatenate(parts, -1) / np.sqrt(values.shape[-1])
    if criterion.removed is not None:
        first, second = criterion.removed
        part = jnp.matmul(atoms, first, precision=HIGHEST)
        atoms = atoms - jnp.matmul(part, second, precision=HIGHEST)
    products = jnp.matmul(atoms, criterion.residual, precision=HIGHEST)
    squares = jnp.sum(atoms**2, -1)
    spanned = jnp.sum(jnp.matmul(atoms, criterion.basis, precision=HIGHEST) ** 2, -1)
    # Float32 cannot resolve what is left of an atom that the chosen atoms nearly span.
    left = jnp.sqrt(jnp.maximum(squares - spanned, _MIN_ORTHOGONAL * squares))
    useful = counted & (products > criterion.noise * jnp.sqrt(squares))
    scores = jnp.where(useful, products / jnp.where(useful, left, 1), -jnp.inf)
    best, positions = jax.lax.top_k(scores, min(criterion.num, scores.size))
    return best.astype(jnp.float32), positions, jax.tree.map(lambda leaf: leaf[positions], data)
