"""Where the log-likelihood of all rows is expanded."""

from typing import get_args

import numpy as np
from jaxtyping import Float

from jaxcoreset.likelihood.expansion import Expansion, flat_draws
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.selection.draws import DrawPool
from jaxcoreset.selection.parts import Use
from jaxcoreset.weighting.laplace import LaplaceFitter


def expansion_of(
    likelihood: ModelLikelihood, pool: DrawPool, center: Float[np.ndarray, " d"] | None = None
) -> Expansion | None:
    """The expansion at a point, or at the mean of the pool's draws; None if it is not proper."""
    draws = [flat_draws(part.draws) for use in get_args(Use) for part in pool.parts(use)]
    position = np.concatenate(draws).mean(axis=0) if center is None else center
    return LaplaceFitter(likelihood).expand(position)
