"""NUTS on coresets of one model and one design, compiled once and not for each coreset."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer.hmc import hmc

import jaxcoreset as jc

# Rows of weight 0 fill a coreset up to the next of these numbers of rows, so that programs are few.
_SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)


class Sampler:
    """NUTS whose program has the coreset's rows, weights and proxy as arguments.

    The density is that of `Coreset.model`: the prior and the weighted log-likelihoods, with what
    the proxy says of the other rows. The call returns constrained draws.

    Args:
        program: `ModelLikelihood.program` of the coresets' likelihoods.
        num_warmup: steps of warmup, with a dense mass matrix.
        num_draws: how many draws are kept.
        thin: the number of steps for each of them.
    """

    def __init__(self, program: jc.ModelLikelihood, num_warmup: int, num_draws: int, thin: int):
        def potential_of(data: Any, weights: Any, proxy: Any) -> Any:
            def potential(params: Any) -> Any:
                total: Any = None
                if data is not None:
                    total = jnp.sum(weights * program.log_likelihood(params, data))
                if proxy is not None:
                    total = proxy.log_likelihood(proxy.flat(params), total)
                return -(program.log_prior(params) + total)

            return potential

        def draws(key: Any, start: Any, *given: Any) -> Any:
            init, kernel = hmc(potential_fn_gen=potential_of, algo="NUTS")
            state = init(start, num_warmup, rng_key=key, dense_mass=True, model_args=given)

            def step(state: Any, _: Any) -> tuple[Any, None]:
                return kernel(state, model_args=given), None

            def kept(state: Any, _: Any) -> tuple[Any, Any]:
                state, _ = jax.lax.scan(step, state, None, length=thin)
                return state, program.constrain(state.z)

            state, _ = jax.lax.scan(step, state, None, length=num_warmup)
            return jax.lax.scan(kept, state, None, length=num_draws)[1]

        self.draws = jax.jit(draws)

    def __call__(self, key: Any, coreset: jc.Coreset) -> dict[str, np.ndarray]:
        """Draws of the coreset's posterior; the coreset must have its likelihood."""
        assert coreset.likelihood is not None
        data, weights, used = None, None, len(coreset)
        if used:
            spare = next(size for size in _SIZES if size >= used) - used
            places = coreset.likelihood.rows.places(coreset.indices)
            rows = coreset.likelihood.take(np.concatenate([places, np.repeat(places[:1], spare)]))
            data = tuple(np.asarray(leaf) for leaf in rows)
            weights = np.concatenate([coreset.weights, np.zeros(spare)]).astype(np.float32)
        found = self.draws(key, coreset.init_params(), data, weights, coreset.proxy)
        return {name: np.asarray(values) for name, values in found.items()}
