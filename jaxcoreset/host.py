"""What is done on the host beside the device: random choices of rows, progress bars, memory."""

import sys

import jax
import numpy as np
from jaxtyping import PRNGKeyArray
from tqdm.auto import tqdm


def host_generator(key: PRNGKeyArray) -> np.random.Generator:
    """A NumPy generator that is a function of a JAX key, for choices among rows on the host."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())


def progress_bar(total: int, what: str, *, show: bool, unit: str = "rows") -> tqdm:
    """A bar that is silent where `show` is false or the output is not a terminal.

    Args:
        total: the amount of work.
        what: the words before the bar.
        show: whether a bar is wanted at all.
        unit: what is counted.
    """
    return tqdm(
        total=total, desc=what, unit=f" {unit}", unit_scale=True, disable=None if show else True
    )


def peak_memory() -> int | None:
    """The most resident memory that this process has held so far, in bytes; None if unknown."""
    try:
        import resource
    except ImportError:
        return None
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024
