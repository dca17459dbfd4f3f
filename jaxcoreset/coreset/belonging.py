"""Whether draws are of a coreset's posterior: those of an `MCMC`, and those that `correct` made."""

from typing import Any

import jax
import numpy as np

from jaxcoreset.data.arrays import encode
from jaxcoreset.data.arviz import attributes_of_corrected
from jaxcoreset.data.fingerprint import Hash
from jaxcoreset.likelihood.weighted import check_ran_on

_NUMBERS = (bool, int, float, np.number, np.bool_, np.ndarray, jax.Array)
# The attribute of what `correct` returns that identifies the coreset.
DIGEST = "coreset_digest"


def digest_of(coreset: Any) -> str:
    """A hash of what the coreset's posterior depends on, but for the model's own code."""
    parts: dict[str, np.ndarray] = {}
    proxy = coreset.proxy and encode(coreset.proxy.to_dict(), parts, "proxy")
    digest = Hash(coreset.report.num_data, sorted(coreset.data_dims.items()), proxy is None)
    digest.array(np.asarray(coreset.indices, np.int64))
    digest.array(np.asarray(coreset.weights, np.float64))
    for name in sorted(parts):
        digest.array(parts[name])
    for leaf in coreset.arguments.leaves:
        # A number of NumPy is another object in a file, and has another text.
        if isinstance(leaf, _NUMBERS):
            digest.array(np.asarray(leaf))
        else:
            digest.add(leaf)
    return digest.hex()


def check_belongs(coreset: Any, mcmc: Any) -> None:
    """Check that draws are from the posterior of a coreset, if they say where they are from.

    Args:
        coreset: the coreset.
        mcmc: an `MCMC`, what `correct` returned, or samples, which do not say it.

    Raises:
        ValueError: if an MCMC ran on the model without weights, or on that of another coreset, or
            `correct` was called with another coreset.
    """
    check_ran_on(coreset.model, mcmc)
    found = attributes_of_corrected(mcmc).get(DIGEST)
    if found is not None and found != digest_of(coreset):
        raise ValueError(
            "mcmc is what correct returned for another coreset, with other rows, weights, or "
            "another proxy; pass the coreset that correct was called with, or call correct with "
            "this one."
        )
