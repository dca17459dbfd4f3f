"""π̂ as the Laplace approximation of the full posterior."""

import jax
import numpy as np
from jaxtyping import Int, PRNGKeyArray

from jaxcoreset.data.utils import progress_bar
from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params
from jaxcoreset.weighting.base import DrawSource, Weighting
from jaxcoreset.weighting.laplace import (
    LaplaceApproximation,
    laplace_approximation,
    max_steps,
    warm_start_indices,
)


class Laplace(Weighting):
    """π̂ as the Laplace approximation of the full posterior; see `laplace_approximation`.

    Args:
        max_iters: the maximum number of Newton steps on all the data; see
            `laplace_approximation` for the default.
    """

    max_iters: int | None = None

    def indices(
        self, likelihood: ModelLikelihood, key: PRNGKeyArray
    ) -> Int[np.ndarray, " m"] | None:
        """See `Weighting.indices`."""
        return warm_start_indices(likelihood.num_data, key)

    def fit(
        self, likelihood: ModelLikelihood, key: PRNGKeyArray, *, show_progress: bool = False
    ) -> "_LaplaceDraws":
        """See `Weighting.fit`.

        Raises:
            ValueError: if the mode is not reached or the Hessian there is not positive definite;
                the message names the directions.
        """
        most = self.max_iters
        if most is None:
            most = max_steps(likelihood.num_data, likelihood.num_params)
        with progress_bar(None, "Laplace", show=show_progress, unit="passes") as bar:
            approximation = laplace_approximation(
                likelihood, key=key, max_iters=most, on_pass=lambda: bar.update(1)
            )
        return _LaplaceDraws(approximation)


class _LaplaceDraws(DrawSource):
    """Draws of a Laplace approximation, made on request."""

    def __init__(self, approximation: LaplaceApproximation):
        self.approximation = self._laplace = approximation

    def take(self, key: PRNGKeyArray, start: int, num: int) -> Params:
        return self._laplace.draws(jax.random.fold_in(key, start), num)
