"""What a coreset keeps of all rows: draws, the sums over all rows at each, and candidates."""

from dataclasses import dataclass
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxcoreset.data.arrays import leading, require_type
from jaxcoreset.data.compiling import rows_at
from jaxcoreset.data.ragged import has_lengths
from jaxcoreset.likelihood.likelihood import Params
from jaxcoreset.selection.draws import DrawPool
from jaxcoreset.selection.parts import Use

# The maximum number of candidates that are kept besides the rows of the coreset.
_MOST_CANDIDATES = 4_000
# The numbers of candidates and draws whose log-likelihoods are kept, to tell models apart.
_KNOWN = 32, 16
# The largest relative difference of these that rounding may make, and that of a value in nats, for
# rows of which all draws have the same log-likelihood.
_LARGEST_DIFFERENCE, _ROUNDING = 0.3, 1e-5
# The names of uses in files of earlier versions.
_EARLIER_USES: dict[str, Any] = {"select": "selection", "confirm": "confirmation"}


@dataclass(frozen=True)
class SummaryPart:
    """Some draws of π̂.

    Attributes:
        use: their use, as in `DrawPool`.
        draws: unconstrained parameters, with a leading axis of s draws.
        total: shape (s,), the log-likelihood of all rows, up to a constant of the part.
        total_then: shape (s,), the same for the rows that there were when the draws were made.
    """

    use: Use
    draws: Params
    total: Float[np.ndarray, " s"]
    total_then: Float[np.ndarray, " s"]


@dataclass(frozen=True)
class DataSummary:
    """What `Coreset.update` needs of the rows before.

    Attributes:
        parts: the draws.
        candidates: the data of m rows.
        indices: shape (m,), their row numbers.
        inefficiency: how many of the draws are worth an independent one.
        known: shape (c, t), the log-likelihoods of the first candidates at the first draws, each
            row less its mean; None in files of earlier versions.
    """

    parts: list[SummaryPart]
    candidates: tuple[np.ndarray, ...]
    indices: Int[np.ndarray, " m"]
    inefficiency: float
    known: Float[np.ndarray, "c t"] | None = None

    @classmethod
    def of(cls, pool: DrawPool, positions: Int[np.ndarray, " k"]) -> "DataSummary":
        """What is known of all rows after a solve on a pool.

        Args:
            pool: the draws and candidates. If there are too many candidates, a part of them is
                kept.
            positions: the positions of the coreset's rows among the candidates, which are kept.
        """
        parts = []
        for use in get_args(Use):
            for part in pool.parts(use):
                total = np.asarray(part.total, np.float64)
                then = total if part.total_then is None else part.total_then
                parts.append(SummaryPart(use, part.draws, total, then))
        kept = np.arange(pool.num_candidates)
        if kept.size > _MOST_CANDIDATES:
            even = np.linspace(0, kept.size - 1, _MOST_CANDIDATES).astype(np.int64)
            kept = np.union1d(even, positions)
        if has_lengths(pool.candidate_data):  # a few long ones would make all of them long
            kept = np.sort(positions) if positions.size else kept[:1]
        data = tuple(np.asarray(leaf[kept]) for leaf in pool.candidate_data)
        known = _known(_first_values(pool), kept[: _KNOWN[0]])
        return cls(parts, data, pool.numbers_of(kept), pool.source.inefficiency, known)

    def check_same_model(self, pool: DrawPool) -> None:
        """Check that candidates, the first of a pool, have the log-likelihoods that they had.

        Raises:
            ValueError: if they have not, so that the model is another one.
        """
        if self.known is None:
            return
        found = _known(_first_values(pool), np.arange(len(self.known)))
        difference = np.linalg.norm(found - self.known)
        most = _LARGEST_DIFFERENCE * np.linalg.norm(self.known) + _ROUNDING * self.known.size**0.5
        if not difference <= most:  # a comparison with NaN is False
            raise ValueError(
                "the model is not the one that the coreset was built with: the rows that the "
                "coreset keeps have other log-likelihoods. Pass that model to load, or build a new "
                "coreset."
            )

    def likeliest_draws(self, num: int) -> Params:
        """The draws of the first block at which the log-likelihood of all rows is largest."""
        first = next(part for part in self.parts if part.use == "solver")
        best = np.argsort(-np.asarray(first.total))[:num]
        best = np.resize(best, num)
        found = {name: np.asarray(value)[best] for name, value in first.draws.items()}
        return {name: jax.device_put(value) for name, value in found.items()}

    def to_dict(self) -> dict[str, Any]:
        """The summary as lists and dictionaries of arrays and numbers."""
        parts = [vars(one) | {"draws": jax.tree.map(np.asarray, one.draws)} for one in self.parts]
        return {
            "parts": parts,
            "candidates": list(self.candidates),
            "rows": self.indices,
            "inefficiency": self.inefficiency,
            "known": self.known,
        }

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "DataSummary":
        """The inverse of `to_dict`.

        Raises:
            ValueError: if a part is missing, or of another type or shape.
        """
        parts = []
        for i, part in enumerate(plain["parts"]):
            use = _EARLIER_USES.get(part["use"], part["use"])
            draws = jax.tree.map(jnp.asarray, part["draws"])
            totals = part["total"], part["total_then"]
            require_type(draws, dict[str, Any], f"draws {i}")
            if use not in get_args(Use) or leading([draws, totals]) != totals[0].size:
                raise ValueError(f"part {i} is of use {use!r}, or its totals are not of shape (s,)")
            parts.append(SummaryPart(use, draws, *totals))
        candidates, indices = tuple(plain["candidates"]), plain["rows"]
        leading([candidates, indices], "the candidates")
        if indices.ndim != 1 or indices.dtype.kind != "i":
            raise ValueError("the row numbers of candidates are not integers of shape (m,)")
        require_type(plain["inefficiency"], float, "inefficiency")
        known = plain.get("known")
        if known is not None and (known.ndim != 2 or len(known) > indices.size):
            raise ValueError(f"known has the shape {known.shape}; expected rows of candidates")
        return cls(parts, candidates, indices, plain["inefficiency"], known)


def _first_values(pool: DrawPool) -> Float[Array, "m s"]:
    return next(parts[0].values for use in get_args(Use) if (parts := pool.parts(use)))


def _known(values: Float[Array, "m s"], rows: Int[np.ndarray, " c"]) -> Float[np.ndarray, "c t"]:
    found = np.asarray(rows_at(values, rows), np.float64)[:, : _KNOWN[1]]
    return found - found.mean(axis=1, keepdims=True)
