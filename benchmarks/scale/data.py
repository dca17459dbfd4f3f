"""Rows of a regression made as they are read, any number of them, the same ones in every pass.

One block of random numbers is drawn once. Batch b has the block's left columns as they are and its
right columns, and the noise of the responses, turned by two odd multiples of b; so rows of a batch
cost a copy, and no two batches have a row in common. The linear predictor is turned along with its
columns: a response is a comparison, with no exponential.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist

from jaxcoreset import sources
from jaxcoreset.data.sources.base import RowSource

# Rows of a batch, and what shards of several processes begin at multiples of.
BATCH = 1 << 15
_BLOCK = 1 << 16


def logistic(x: Any, y: Any = None) -> None:
    """Logistic regression with a standard normal prior on every coefficient."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


class Table:
    """The rows from `first` on of an endless table: an intercept, `width` − 1 features, a response.

    Args:
        num_rows: how many rows.
        width: columns of the design matrix, D, the intercept among them.
        first: the number of the first row, a multiple of 2¹⁵.

    Raises:
        ValueError: if `first` is within a batch.
    """

    def __init__(self, num_rows: int, width: int, first: int = 0):
        if first % BATCH:
            raise ValueError(f"first is {first}; wanted a multiple of {BATCH}.")
        self.num_rows, self.width, self.first = num_rows, width, first
        random = np.random.Generator(np.random.Philox(2026))
        features = random.standard_normal((_BLOCK, width), np.float32)
        features[:, 0] = 1.0
        slopes = random.standard_normal(width).astype(np.float32) / np.float32(width**0.5)
        noise = random.logistic(size=_BLOCK).astype(np.float32)
        half = max(width // 2, 1)
        # Twice over, so that a turned block is a slice.
        self._left, self._right, self._noise = (
            np.concatenate([part, part]) for part in (features[:, :half], features[:, half:], noise)
        )
        self._left_logits = self._left @ slopes[:half]
        self._right_logits = self._right @ slopes[half:]

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        half = self._left.shape[1]
        for at in range(0, self.num_rows, BATCH):
            batch = (self.first + at) // BATCH
            count = min(BATCH, self.num_rows - at)
            start = BATCH * (batch % 2)
            left = slice(start, start + count)
            # Batches 2b and 2b + 1 are the block's two halves, and are turned alike.
            turn = (start + 26_981 * (batch // 2)) % _BLOCK
            right = slice(turn, turn + count)
            turn = (start + 40_503 * (batch // 2)) % _BLOCK
            noise = self._noise[turn : turn + count]
            x = np.empty((count, self.width), np.float32)
            x[:, :half], x[:, half:] = self._left[left], self._right[right]
            y = self._left_logits[left] + self._right_logits[right] + noise > 0
            yield x, y.astype(np.float32)

    def source(self) -> RowSource:
        """The rows as a source that a build can read."""
        return sources.batches(self, self.num_rows)
