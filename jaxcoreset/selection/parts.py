"""Some of the draws of a pool, and the values at these draws."""

import functools
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcoreset.data.compiling import quick_jit
from jaxcoreset.data.dtypes import default_float
from jaxcoreset.likelihood.likelihood import Params
from jaxcoreset.likelihood.passes import centred

Use = Literal["solver", "selection", "confirmation"]
# What stands for all rows: weighted rows, an expansion, or both.
Approach = Literal["rows", "proxy", "proxy and rows"]


@dataclass
class Part:
    """Some of the draws of one block.

    Attributes:
        draws: unconstrained parameters, with a leading axis of s draws.
        total: shape (s,), the log-likelihood of all rows, up to a constant of the block, in float64
            where it was summed in a pass.
        values: shape (m, s), the log-likelihoods of the candidates, each row up to a constant.
        total_then: shape (s,), the total over the rows that there were when the draws were made;
            None if that is `total` itself.
        remainders: shape (m, s), the candidates' remainders of the pool's expansion, faded out;
            None until they are needed.
        total_remainder: shape (s,), the log-likelihood of all rows less the expansion, up to a
            constant; None likewise.
    """

    draws: Params
    total: Float[Array | np.ndarray, " s"]
    values: Float[Array, "m s"]
    total_then: Float[np.ndarray, " s"] | None = None
    remainders: Float[Array, "m s"] | None = None
    total_remainder: Float[np.ndarray, " s"] | None = None

    @property
    def size(self) -> int:
        """The number of draws, s."""
        return self.total.shape[0]


def split(
    draws: Params,
    total: Float[np.ndarray, " s"],
    values: Float[Array, "m s"],
    counts: Iterable[int],
) -> list[Part]:
    """Draws with the values at them, divided among uses; see `Part`."""
    ends = np.cumsum([0, *counts]).tolist()
    slices = [slice(*at) for at in itertools.pairwise(ends)]
    parts = _split(draws, values, tuple(ends))
    return [Part(own[0], total[at], own[1]) for own, at in zip(parts, slices, strict=True)]


@functools.partial(quick_jit, static_argnums=2)
def _split(draws: Params, values: Array, ends: tuple[int, ...]) -> list[tuple[Params, Array]]:
    return [
        (jax.tree.map(lambda x, at=slice(*at): x[at], draws), values[:, slice(*at)])
        for at in itertools.pairwise(ends)
    ]


@functools.partial(quick_jit, static_argnums=0)
def scaled(
    num_rows: int, scale: Array, values: tuple, totals: tuple
) -> tuple[Float[Array, "m s"], Float[Array, " s"]]:
    """Atoms, with rows of zeros up to `num_rows`, and a target.

    They are values at draws, less their means over each part, times a number.
    """
    joined = [
        jnp.concatenate([scale * centred(one) for one in parts], axis=-1)
        for parts in (values, totals)
    ]
    return jnp.pad(joined[0], ((0, num_rows - joined[0].shape[0]), (0, 0))), joined[1]


def less_mean(total: Array | np.ndarray) -> Array:
    """A total less its mean, which float32 then holds, in JAX's precision."""
    total = np.asarray(total, np.float64)
    return jnp.asarray(total - total.mean(), default_float())
