"""π̂ by Pathfinder, with BlackJAX."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxcoreset.data.blocks import block_rows
from jaxcoreset.data.messages import require
from jaxcoreset.data.utils import check_int
from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params
from jaxcoreset.solvers.numerics import HIGHEST
from jaxcoreset.weighting.base import DrawSource, Weighting
from jaxcoreset.weighting.errors import UnusableWeightingError

# The jitter of the starting points, in unconstrained units.
_JITTER = 1.0
# A path ends if a step lowers the objective by less, where float32 resolves no decrease. With
# BlackJAX's 1e-5 it may end half a standard deviation from the mode.
_LEAST_FALL = 1e-9


class Pathfinder(Weighting):
    """π̂ as the best normal approximation along quasi-Newton paths to the mode, by BlackJAX.

    Zhang, Carpenter, Gelman and Vehtari, "Pathfinder: Parallel quasi-Newton variational inference"
    (JMLR 2022, Algorithm 1), once for each of `num_paths` starting points; the path with the
    highest evidence lower bound is used, without resampling, so that draws stay distinct. All the
    rows are on the device and are evaluated in chunks; no second derivatives are needed. The
    covariance is that of L-BFGS with `history` corrections: rough with many more parameters.

    Needs the extra ``pathfinder``.

    Args:
        num_paths: the number of starting points: the model's own, and others around it.
        max_iters: the maximum number of L-BFGS steps.
        history: the number of corrections that L-BFGS keeps.
        num_elbo_draws: the number of draws per step that compare the approximations. With few
            draws, a poor approximation is sometimes taken to be the best one.
    """

    num_paths: int = 4
    max_iters: int = 100
    history: int = 10
    num_elbo_draws: int = 100

    def __check_init__(self):
        for name in ("num_paths", "max_iters", "history", "num_elbo_draws"):
            check_int(name, getattr(self, name), 1)

    def fit(
        self, likelihood: ModelLikelihood, key: PRNGKeyArray, *, show_progress: bool = False
    ) -> "_PathfinderDraws":
        """See `Weighting.fit`.

        Raises:
            ModuleNotFoundError: if BlackJAX is not installed.
            ValueError: if no path has a finite evidence lower bound.
        """
        pathfinder = _blackjax()
        start_key, key = jax.random.split(key)
        starts = {}
        for i, (name, first) in enumerate(sorted(likelihood.init_params.items())):
            value = jnp.broadcast_to(first, (self.num_paths, *first.shape))
            key_i, shape = jax.random.fold_in(start_key, i), value[1:].shape
            jitter = jax.random.uniform(key_i, shape, value.dtype, -_JITTER, _JITTER)
            starts[name] = value.at[1:].add(jitter)
        data = tuple(jnp.asarray(leaf) for leaf in likelihood.data)
        num_points = self.max_iters * self.num_elbo_draws
        program, num_rows = likelihood.program, block_rows(num_points)
        # One path after the other: in a batch all paths wait for the slowest line search.
        states = [
            _path(
                self, program, num_rows, path_key, jax.tree.map(lambda x, at=i: x[at], starts), data
            )
            for i, path_key in enumerate(jax.random.split(key, self.num_paths))
        ]
        bounds = np.array([float(state.elbo) for state in states])
        bounds[~np.isfinite(bounds)] = -np.inf
        if not np.isfinite(bounds).any():
            raise UnusableWeightingError(
                f"none of the {self.num_paths} paths has a finite evidence lower bound; rescale "
                "the data, give a tighter prior, or use another weighting, for instance "
                "SubsampleNUTS().",
                "none of its paths has a finite evidence lower bound",
            )
        return _PathfinderDraws(pathfinder, states[int(np.argmax(bounds))])


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _path(
    settings: Pathfinder,
    program: ModelLikelihood,
    num_rows: int,
    key: PRNGKeyArray,
    start: Params,
    data: tuple,
) -> Any:
    """The best approximation along one path."""

    def density(params: Params) -> Float[Array, ""]:
        return log_posterior(program, params, data, num_rows)

    return _blackjax().approximate(
        key,
        density,
        start,
        settings.num_elbo_draws,
        maxiter=settings.max_iters,
        maxcor=settings.history,
        ftol=_LEAST_FALL,
    )[0]


class _PathfinderDraws(DrawSource):
    """Draws of the best approximation."""

    def __init__(self, pathfinder: Any, state: Any):
        self._pathfinder, self._state = pathfinder, state

    def take(self, key: PRNGKeyArray, start: int, num: int) -> Params:
        return self._pathfinder.sample(jax.random.fold_in(key, start), self._state, num)[0]


def log_posterior(
    likelihood: ModelLikelihood, params: Params, data: tuple, batch_size: int
) -> Float[Array, ""]:
    """The log-posterior of all rows, up to a constant; it can be compiled and differentiated.

    Rows are summed chunk by chunk, and a chunk's values are computed again for the gradient, so
    that memory holds one chunk.
    """
    n = data[0].shape[0]
    size = min(batch_size, n)
    num_chunks = -(-n // size)
    # The last chunk reaches back over rows that were counted.
    firsts = jnp.minimum(jnp.arange(num_chunks) * size, n - size)
    fresh = jnp.arange(num_chunks) * size - firsts

    @jax.checkpoint
    def chunk_sum(params: Params, first: Array, fresh: Array) -> Array:
        rows = tuple(jax.lax.dynamic_slice_in_dim(leaf, first, size) for leaf in data)
        values = likelihood.log_likelihood(params, rows)
        return jnp.vdot(jnp.arange(size) >= fresh, values, precision=HIGHEST)

    _, sums = jax.lax.scan(lambda carry, at: (carry, chunk_sum(params, *at)), None, (firsts, fresh))
    return jnp.sum(sums) + likelihood.log_prior(params)


def _blackjax() -> Any:
    return require("blackjax.vi.pathfinder", "Pathfinder needs it", "pathfinder")
