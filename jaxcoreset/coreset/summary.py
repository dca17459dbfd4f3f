"""What is kept of rows that are gone: draws, the sums over all rows at each, and candidates."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from jaxcoreset.likelihood.likelihood import Params
from jaxcoreset.selection.draws import DrawPool, Use

# Candidates that are kept beside the coreset's own rows.
_MOST_CANDIDATES = 4_000


@dataclass(frozen=True)
class SummaryPart:
    """Some draws of π̂.

    Attributes:
        use: what they are for, as in `DrawPool`.
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
        rows: shape (m,), their numbers.
        inefficiency: how many of the draws are worth an independent one.
    """

    parts: list[SummaryPart]
    candidates: tuple[np.ndarray, ...]
    rows: Int[np.ndarray, " m"]
    inefficiency: float

    @classmethod
    def of(
        cls,
        parts: list[SummaryPart],
        leaves: Sequence[Any],
        rows: Int[np.ndarray, " m"],
        chosen: Int[np.ndarray, " k"],
        inefficiency: float,
    ) -> "DataSummary":
        """A summary with the chosen candidates, and others as far as there is room for them."""
        kept = np.arange(rows.size)
        if rows.size > _MOST_CANDIDATES:
            even = np.linspace(0, rows.size - 1, _MOST_CANDIDATES).astype(np.int64)
            kept = np.union1d(even, chosen)
        return cls(
            parts, tuple(np.asarray(leaf)[kept] for leaf in leaves), rows[kept], inefficiency
        )

    @classmethod
    def of_pool(cls, pool: DrawPool, chosen: Int[np.ndarray, " k"]) -> "DataSummary":
        """What a build has found out, with the places of its rows among the candidates."""
        uses: tuple[Use, ...] = ("solver", "select", "confirm")
        parts = []
        for use in uses:
            for part in pool.parts(use):
                total = np.asarray(part.total, np.float64)
                parts.append(SummaryPart(use, part.draws, total, total))
        rows = np.arange(pool.num_candidates) if pool.rows is None else pool.rows
        return cls.of(parts, pool.candidate_data, rows, chosen, pool.source.inefficiency)

    def to_dict(self) -> dict[str, Any]:
        """As lists and dictionaries of arrays and numbers."""
        return {
            "parts": [
                {
                    "use": part.use,
                    "draws": {name: np.asarray(value) for name, value in part.draws.items()},
                    "total": part.total,
                    "total_then": part.total_then,
                }
                for part in self.parts
            ],
            "candidates": list(self.candidates),
            "rows": self.rows,
            "inefficiency": self.inefficiency,
        }

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "DataSummary":
        """The inverse of `to_dict`."""
        parts = [
            SummaryPart(
                part["use"],
                jax.tree.map(jnp.asarray, part["draws"]),
                part["total"],
                part["total_then"],
            )
            for part in plain["parts"]
        ]
        return cls(parts, tuple(plain["candidates"]), plain["rows"], plain["inefficiency"])
