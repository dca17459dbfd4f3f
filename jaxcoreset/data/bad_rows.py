"""Rows whose values are not finite: a pass over all rows counts and names them."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from jaxcoreset.data.rows import State

# The maximum number of bad rows that an error names.
NUM_BAD_ROWS_SHOWN = 5


class BadRows:
    """Counts rows whose values are not finite, in a fold's state, and names the first of them."""

    @staticmethod
    def start() -> State:
        """No bad rows."""
        return {"num_bad": np.zeros((), np.int64), "bad": np.full(NUM_BAD_ROWS_SHOWN, -1)}

    @staticmethod
    def add(
        state: State,
        bad: np.ndarray,
        first: int,
        num: int,
        counts: Float[np.ndarray, " m"] | None = None,
    ) -> State:
        """Note the bad ones of `num` rows from row `first` on, which occur `counts` times each."""
        rows = first + np.flatnonzero(bad.reshape(-1)[:num])
        count, shown = BadRows.merged([state])
        shown = [*shown, *rows[:NUM_BAD_ROWS_SHOWN], *BadRows.start()["bad"]][:NUM_BAD_ROWS_SHOWN]
        count += rows.size if counts is None else int(counts[rows].sum())
        return {"num_bad": np.asarray(count, np.int64), "bad": np.array(shown)}

    @staticmethod
    def merged(states: Sequence[State]) -> tuple[int, list[int]]:
        """How many there are, and the numbers of the first."""
        rows = np.concatenate([state["bad"] for state in states])
        count = sum(int(state["num_bad"]) for state in states)
        return count, rows[rows >= 0][:NUM_BAD_ROWS_SHOWN].tolist()
