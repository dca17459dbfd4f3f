"""Chains of NUTS in one compiled program."""

from collections.abc import Callable
from typing import Any

import jax
import jax.core
import numpy as np
from jaxtyping import PyTree

from jaxcoreset.data.compiling import fast_jit, quick_jit
from jaxcoreset.solvers.batching import by_platform

# The number of entries of a model's arguments beyond which kernels that run fast are worth the time
# that they take to compile: of 2,000 rows and 100 columns they are not yet, of 20,000 rows and 24
# columns they are.
_MOST_ENTRIES = 300_000


def jit_chains(chain: Callable[[PyTree], PyTree]) -> Callable[[PyTree], PyTree]:
    """A `chain_method` of NumPyro's `MCMC` that compiles all chains as one program.

    With a coreset of few rows, NUTS spends most of its time in compilation. NumPyro's "sequential"
    and "vectorized" initialise the chains operation by operation, and compile each operation as a
    program of its own. `jit_chains` compiles one program. On a CPU, this program runs one chain
    after another, because a batch of chains takes twice as long to compile. It is compiled quickly,
    unless the model has many rows. On other devices the chains are run as a batch.

    Args:
        chain: the function that runs one chain. `MCMC` passes it.

    Returns:
        A function that runs a batch of chains. All arrays of its argument and of its result have a
        leading axis of chains.

    Raises:
        RuntimeError: the returned function raises it if a chain has no initial parameters with a
            finite log-density.

    Example:
        NumPyro shows no progress bar with this method, and does not use it if ``num_chains`` is
        one::

            mcmc = MCMC(
                NUTS(coreset.model),
                num_warmup=1000,
                num_samples=1000,
                num_chains=4,
                chain_method=jc.jit_chains,
                progress_bar=False,
            )
            start = coreset.init_params(4)
            mcmc.run(key, *coreset.args, **coreset.kwargs, init_params=start)
    """
    # NumPyro passes a `functools.partial` that has the model's arguments.
    given = [getattr(chain, "args", ()), getattr(chain, "keywords", {})]
    is_large = sum(np.size(leaf) for leaf in jax.tree.leaves(given)) > _MOST_ENTRIES
    run = (fast_jit if is_large else quick_jit)(map_chains(chain))

    def checked(states: PyTree) -> PyTree:
        found = run(states)
        _refuse_invalid(found)
        return found

    return checked


def _refuse_invalid(found: PyTree) -> None:
    """Raise an error for chains without valid initial parameters, as NumPyro does outside `jit`."""
    energies = [
        np.asarray(part.potential_energy)
        for part in jax.tree.leaves(found, is_leaf=_has_energy)
        if _has_energy(part) and not isinstance(part.potential_energy, jax.core.Tracer)
    ]
    bad = [int(i) for energy in energies for i in np.flatnonzero(~np.isfinite(energy))]
    if bad:
        raise RuntimeError(
            f"the log-density is not finite where chains {bad} of {energies[0].size} start "
            "(numbered from 0), so NumPyro found no valid initial parameters. Look for NaN in the "
            "data and in the model, or pass init_params=coreset.init_params(num_chains)."
        )


def _has_energy(part: Any) -> bool:
    return hasattr(part, "potential_energy")


def map_chains(chain: Callable[[PyTree], PyTree]) -> Callable[[PyTree], PyTree]:
    """The function for a batch of chains: one after another on a CPU, elsewhere together.

    A batch of NUTS takes twice as long to compile as one chain, and takes as many steps as the
    chain that takes most.

    Args:
        chain: the function for one chain.
    """

    def one_by_one(states: PyTree) -> PyTree:
        return jax.lax.map(chain, states)

    return by_platform(one_by_one, jax.vmap(chain))
