"""Some of the draws of a pool, and what is known at them."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Array, Float

from jaxcoreset.likelihood.likelihood import Params

Use = Literal["solver", "selection", "confirmation"]
# What stands for all rows: weighted rows, an expansion, or both.
Approach = Literal["rows", "proxy", "proxy and rows"]


@dataclass
class Part:
    """Some of the draws of one block.

    Attributes:
        draws: unconstrained parameters, with a leading axis of s draws.
        total: shape (s,), the log-likelihood of all rows, up to a constant of the block, in float64
            where it was summed in a pass.
        values: shape (m, s), the log-likelihoods of the candidates, each row up to a constant.
        total_then: shape (s,), the total over the rows that there were when the draws were made;
            None if that is `total` itself.
        remainders: shape (m, s), the candidates' remainders of the pool's expansion, faded out;
            None until they are needed.
        total_remainder: shape (s,), the log-likelihood of all rows less the expansion, up to a
            constant; None likewise.
    """

    draws: Params
    total: Float[Array | np.ndarray, " s"]
    values: Float[Array, "m s"]
    total_then: Float[np.ndarray, " s"] | None = None
    remainders: Float[Array, "m s"] | None = None
    total_remainder: Float[np.ndarray, " s"] | None = None

    @property
    def size(self) -> int:
        """The number of draws, s."""
        return self.total.shape[0]
