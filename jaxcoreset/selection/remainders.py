"""The candidates' remainders of an expansion at some draws, for those rows that need them.

A solver needs the remainders of all candidates at its draws. The error at held-out draws needs
those of the chosen rows only. They are evaluated in float64, which takes several times as long as
float32.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxcoreset.data.arrays import leading
from jaxcoreset.data.blocks import row_bytes
from jaxcoreset.likelihood.expansion import Expansion, flat_draws, remainders
from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params
from jaxcoreset.likelihood.precision import Noise
from jaxcoreset.selection.parts import KnownRemainders, Part

# A program for few rows evaluates this number at a time: of narrow rows, and of rows with this
# number of bytes or more, such as groups.
_NUM_NARROW, _NUM_WIDE, _WIDE = 64, 8, 1 << 10
# The bytes of the candidates' data times the draws from which it takes less time to compile this
# program than to evaluate all candidates by the one that the solver's draws need.
_MANY_BYTES = 1 << 28
# The variance of the rounded sum over all rows, in nats², up to which held-out errors are taken
# from it. If it may be larger, the remainders of all rows are added in float64.
_EXACT = 1e-7


@dataclass(frozen=True)
class Remaining:
    """What an expansion of all rows leaves of the log-likelihoods of the candidates.

    Attributes:
        likelihood: the model's likelihood and data.
        expansion: the expansion.
        candidates: the data of the m candidates.
        capacity: the number of candidates for which a program is compiled.
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

        Those that the part does not have yet are evaluated and added to it: by themselves if the
        others would take long, and if the candidates are not all rows, whose sum is then evaluated
        in float64, or that sum is known well enough.
        """
        num, known = leading(self.candidates), part.remainders
        wanted = np.arange(num) if positions is None else positions
        missing = np.unique(wanted) if known is None else known.missing(wanted)
        if missing.size:
            is_exact = self.noise is not None and self.noise.of_total <= _EXACT
            may_be_few = is_exact or not self.are_all_rows
            saved = (num - 2 * missing.size) * row_bytes(self.candidates) * part.size
            few = may_be_few and saved > _MANY_BYTES
            known = self._with(part, missing) if few else self._all(part)
            part.remainders = known
        assert known is not None
        return known.values if positions is None else known.at(positions)

    def _all(self, part: Part) -> KnownRemainders:
        found, total = self._evaluate(part.draws, self.candidates, self.capacity)
        if self.are_all_rows:
            part.total_remainder = total
        return KnownRemainders(np.arange(len(found)), jnp.asarray(found, part.values.dtype))

    def _with(self, part: Part, missing: Int[np.ndarray, " i"]) -> KnownRemainders:
        data = tuple(leaf[missing] for leaf in self.candidates)
        few = _NUM_NARROW if row_bytes(data) < _WIDE else _NUM_WIDE
        found = self._evaluate(part.draws, data, few, few)[0].astype(part.values.dtype)
        return (part.remainders or KnownRemainders.none(found)).plus(missing, found)

    def _evaluate(
        self, draws: Params, data: tuple, typical: int, block: int | None = None
    ) -> tuple[Float[np.ndarray, "m s"], Float[np.ndarray, " s"]]:
        """Remainders of rows at draws, faded out, and their sum before that."""
        given = self.likelihood, draws, data, self.expansion.center
        found = remainders(*given, self.batch_size, typical, block)
        return found * self.expansion.fade(flat_draws(draws)), found.sum(axis=0)
