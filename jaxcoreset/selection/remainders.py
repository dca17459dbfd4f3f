"""The candidates' remainders of an expansion at some draws, for those rows that need them.

A solver needs the remainders of all candidates at its draws. The error at held-out draws needs
those of the chosen rows only. They are evaluated in float64, which takes several times as long as
float32.
"""

from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from jaxcoreset.data.arrays import leading
from jaxcoreset.data.blocks import few_places, few_rows_block
from jaxcoreset.data.compiling import largest_size
from jaxcoreset.data.ragged import num_bytes, of_one_length
from jaxcoreset.likelihood.expansion import Expansion, flat_draws, remainders
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.precision import Noise
from jaxcoreset.selection.parts import KnownRemainders, Part

# Few rows are evaluated by themselves if that spares this number of bytes of data, times draws. If
# it is less, their program takes longer to compile than all candidates take in the program of the
# solver's draws.
_MANY_BYTES = 1 << 28
# The variance of the rounded sum over all rows, in nats², up to which held-out errors are taken
# from it. If it may be larger, the remainders of all rows are added in float64.
_EXACT = 1e-7
# Remainders are differences of numbers in float64. They are rounding if none is larger than this,
# in nats, or than this fraction of the log-likelihoods.
_ROUNDING, _RELATIVE_ROUNDING = 1e-14, 1e-13


def is_rounding(
    remainders: Float[Array | np.ndarray, "m s"], values: Float[Array | np.ndarray, "m s"]
) -> bool:
    """Return whether remainders are zero but for rounding, beside the log-likelihoods of rows."""
    largest, whole = largest_size(remainders), largest_size(values)
    return largest <= max(_ROUNDING, _RELATIVE_ROUNDING * whole)


@dataclass(frozen=True, eq=False)
class RemainderEvaluator:
    """Evaluates what an expansion of all rows leaves of the log-likelihoods of the candidates.

    Attributes:
        likelihood: the model's likelihood and data.
        expansion: the expansion.
        candidates: the data of the m candidates.
        capacity: the number of candidates for which a program is compiled, if they are wide.
        are_all_rows: whether there are no rows but the candidates.
        noise: how much sums over all rows are rounded; None if that is not known.
        batch_size: the number of rows that are evaluated at a time; None to choose it.
    """

    likelihood: ModelLikelihood
    expansion: Expansion
    candidates: tuple
    capacity: int
    are_all_rows: bool = False
    noise: Noise | None = None
    batch_size: int | None = None

    def at(
        self, part: Part, positions: Int[np.ndarray, " j"] | None = None
    ) -> Float[Array | np.ndarray, "j s"]:
        """The remainders at a part's draws, faded out, of all candidates or those at positions.

        Those that the part does not have yet are evaluated and added to it, without the others if
        these would take long. If the candidates are all rows, the sum over all of them is then
        computed in float64 from values in the precision of the build.
        """
        every = np.arange(leading(self.candidates))
        wanted = every if positions is None else positions
        known = part.remainders or KnownRemainders.none(part.values)
        missing = known.missing(wanted)
        if missing.size:
            pays = self._pays(part, missing)
            known = self._with(known, part, missing) if pays else self._all(part)
        if known.positions.size == every.size and isinstance(known.values, np.ndarray):
            known = KnownRemainders(every, jax.device_put(known.values))
        part.remainders = known
        return known.values if positions is None else known.at(positions)

    def _pays(self, part: Part, missing: Int[np.ndarray, " i"]) -> bool:
        """Return whether to evaluate the missing ones by themselves.

        They count twice, because the places of their program are filled up.
        """
        is_exact = self.noise is not None and self.noise.of_total <= _EXACT
        if self.are_all_rows and not is_exact:
            return False
        every = np.arange(leading(self.candidates))
        spared = num_bytes(self.candidates, every) - 2 * num_bytes(self.candidates, missing)
        return spared * part.size > _MANY_BYTES

    def _all(self, part: Part) -> KnownRemainders:
        block = few_rows_block(self.candidates)
        found, total = self._evaluate(part, self.candidates, self.capacity, block)
        if self.are_all_rows:
            part.total_remainder = total
        found = jax.device_put(np.asarray(found, part.values.dtype))
        return KnownRemainders(np.arange(len(found)), found)

    def _with(
        self, known: KnownRemainders, part: Part, missing: Int[np.ndarray, " i"]
    ) -> KnownRemainders:
        if self.are_all_rows:
            total = np.asarray(part.values).sum(axis=0, dtype=np.float64)
            part.total_remainder = total - self.expansion.at(flat_draws(part.draws))
        for alike in of_one_length(self.candidates, missing):
            few = few_places([leaf[alike[:1]] for leaf in self.candidates])
            for first in range(0, alike.size, few):
                # Always as many rows, so that all calls share a program.
                chosen = alike[first : first + few]
                filled = np.resize(chosen, few)
                data = tuple(leaf[filled] for leaf in self.candidates)
                found, _ = self._evaluate(part, data, few, few)
                known = known.plus(chosen, found[: chosen.size].astype(part.values.dtype))
        return known

    def _evaluate(
        self, part: Part, data: tuple, typical: int, block: int | None = None
    ) -> tuple[Float[np.ndarray, "m s"], Float[np.ndarray, " s"]]:
        """Remainders of rows at draws, faded out, and their sum before that."""
        given = self.likelihood, part.draws, data, self.expansion.center
        found = remainders(*given, self.batch_size, typical, block)
        return found * self.expansion.fade(flat_draws(part.draws)), found.sum(axis=0)
