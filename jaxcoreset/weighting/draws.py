"""π̂ as draws that the user passes."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import PRNGKeyArray

from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params
from jaxcoreset.weighting.base import FEWEST, DrawSource, Weighting
from jaxcoreset.weighting.chains import effective_size, too_few_directions

# Draws of a chain of which more than this many are worth an independent one are not new to a solver
# that has seen their neighbours.
_SLOW = 4.0


class Draws(Weighting):
    """π̂ as draws that you pass, for instance from a NUTS run on part of the data.

    They are shuffled, and divided between the solver and the held-out error. If they are those of a
    chain that moves slowly, with an effective sample size below a quarter of their number, the
    builder also samples the coreset's own posterior to measure the error.

    Args:
        samples: dictionary from latent site to array with a leading axis of draws, *constrained*,
            as ``mcmc.get_samples()`` returns it. Other sites in it are ignored.
    """

    samples: Mapping[str, ArrayLike]

    def fit(
        self, likelihood: ModelLikelihood, key: PRNGKeyArray, *, show_progress: bool = False
    ) -> "_DrawStock":
        """See `Weighting.fit`.

        Raises:
            ValueError: if a latent site is missing, shapes do not fit, a draw is outside the
                support of the prior, or the draws do not vary in all directions.
        """
        missing = [name for name in likelihood.init_params if name not in self.samples]
        if missing:
            raise ValueError(
                f"samples has no {', '.join(missing)}; expected draws of every latent site of the "
                f"model: {', '.join(likelihood.init_params)}."
            )
        sites = {name: jnp.asarray(self.samples[name]) for name in likelihood.init_params}
        lengths = {name: value.shape[:1] for name, value in sites.items()}
        if len(set(lengths.values())) != 1 or () in lengths.values():
            raise ValueError(
                f"samples have leading axes {lengths}; expected equal numbers of draws."
            )
        expected = likelihood.constrain(likelihood.init_params)
        for name, value in sites.items():
            if value.shape[1:] != expected[name].shape:
                raise ValueError(
                    f"samples[{name!r}] has shape {value.shape}; expected (draws, "
                    f"*{expected[name].shape}), as mcmc.get_samples() returns it."
                )
        stock = likelihood.unconstrain_draws(sites)
        for name, value in stock.items():
            if not bool(jnp.isfinite(value).all()):
                raise ValueError(
                    f"samples[{name!r}] has draws outside the support of its prior or not finite; "
                    "expected constrained draws, as mcmc.get_samples() returns them."
                )
        flat = np.asarray(jax.vmap(lambda draw: ravel_pytree(draw)[0])(stock))
        if len(flat) >= FEWEST and (trouble := too_few_directions(flat)) is not None:
            raise ValueError(
                f"samples: {trouble}; expected draws of a posterior in all of its parameters, such "
                "as those of chains that have mixed."
            )
        effective = np.nanmin(effective_size(flat[None])) if len(flat) >= FEWEST else np.inf
        is_slow = bool(len(flat) > _SLOW * effective)
        return _DrawStock(stock, len(np.unique(flat, axis=0)), is_slow)


class _DrawStock(DrawSource):
    """A fixed stock of draws, shuffled.

    If they are those of a chain that moves slowly, held-out draws are near those that the solver
    sees, much as if they were copies.
    """

    def __init__(self, stock: Params, num_distinct: int, is_slow: bool):
        self.stock = stock
        self.limit = self._num_draws = next(iter(stock.values())).shape[0]
        self.has_repeats = is_slow or 2 * num_distinct < self._num_draws

    def take(self, key: PRNGKeyArray, start: int, num: int) -> Params:
        order = np.asarray(jax.random.permutation(key, self._num_draws))
        chosen = order[start : start + num]
        return {name: jnp.take(value, chosen, axis=0) for name, value in self.stock.items()}
