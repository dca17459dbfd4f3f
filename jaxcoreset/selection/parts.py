"""Some of the draws of a pool, and the values at these draws."""

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxcoreset.data.compiling import quick_jit, rows_at
from jaxcoreset.data.dtypes import as_floats, default_float
from jaxcoreset.likelihood.expansion import flat_draws
from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params
from jaxcoreset.likelihood.passes import centred

Use = Literal["solver", "selection", "confirmation"]
# What stands for all rows: weighted rows, an expansion, or both.
Approach = Literal["rows", "proxy", "proxy and rows"]
# Values vary by less than this many units of rounding if they are constant.
_ROUNDINGS = 10


@dataclass(frozen=True, eq=False)
class KnownRemainders:
    """The remainders of some candidates at a part's draws.

    Attributes:
        positions: shape (k,), the positions of these candidates, in increasing order.
        values: shape (k, s).
    """

    positions: Int[np.ndarray, " k"]
    values: Float[Array | np.ndarray, "k s"]

    @classmethod
    def none(cls, like: Float[Array | np.ndarray, "_ s"]) -> "KnownRemainders":
        """Those of no candidate, at the draws of others."""
        return cls(np.zeros(0, np.int64), np.zeros((0, like.shape[1]), like.dtype))

    def missing(self, wanted: Int[np.ndarray, " j"]) -> Int[np.ndarray, " i"]:
        """The wanted positions that are not among these, each once and in increasing order."""
        return np.setdiff1d(wanted, self.positions)

    def plus(
        self, positions: Int[np.ndarray, " i"], values: Float[np.ndarray, "i s"]
    ) -> "KnownRemainders":
        """These and further ones, none of which is known yet."""
        joined = np.concatenate([self.positions, positions])
        order = np.argsort(joined)
        values = np.concatenate([np.asarray(self.values), values])
        return KnownRemainders(joined[order], values[order])

    def at(self, positions: Int[np.ndarray, " j"]) -> Float[Array | np.ndarray, "j s"]:
        """The remainders at positions that are all known; they may repeat."""
        return rows_at(self.values, np.searchsorted(self.positions, positions))


@dataclass
class Part:
    """Some of the draws of one block.

    Attributes:
        draws: unconstrained parameters, with a leading axis of s draws.
        total: shape (s,), the log-likelihood of all rows, up to a constant of the block.
        values: shape (m, s), the log-likelihoods of the candidates, each row up to a constant.
        total_then: shape (s,), the total over the rows that there were when the draws were made;
            None if that is `total` itself.
        remainders: the remainders of the pool's expansion, faded out, of those candidates for which
            they were needed; None if there are none yet.
        total_remainder: shape (s,), the log-likelihood of all rows less the expansion, up to a
            constant; None likewise.
        named: shape (s, p), what the model makes of the parameters, see
            `ModelLikelihood.named_values`; None if it was not needed yet.
    """

    draws: Params
    total: Float[Array | np.ndarray, " s"]
    values: Float[Array, "m s"]
    total_then: Float[np.ndarray, " s"] | None = None
    remainders: KnownRemainders | None = None
    total_remainder: Float[np.ndarray, " s"] | None = None
    named: Float[np.ndarray, "s p"] | None = None

    @property
    def size(self) -> int:
        """The number of draws, s."""
        return self.total.shape[0]

    def parameters(self, likelihood: ModelLikelihood) -> Float[np.ndarray, "s p"]:
        """The flat unconstrained parameters at the draws, and the named values."""
        if self.named is None:
            self.named = likelihood.named_values(self.draws)
        return np.concatenate([flat_draws(self.draws), self.named], axis=1)


def importance_weights(parts: Sequence[Part]) -> list[Float[np.ndarray, " s"]]:
    """The weights of draws for the posterior of all rows, which add up to one over all parts.

    If rows were added since the draws were made, a draw's weight is proportional to the likelihood
    of these rows. The sums over these rows have the same constant in all parts.
    """
    changes = [
        np.zeros(part.size)
        if part.total_then is None
        else np.asarray(part.total, np.float64) - part.total_then
        for part in parts
    ]
    largest = max(change.max() for change in changes)
    weights = [np.exp(change - largest) for change in changes]
    total = sum(weight.sum() for weight in weights)
    return [weight / total for weight in weights]


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
    return as_floats(total - total.mean())


def standardised(parts: list[Float[np.ndarray, "_ d"]]) -> Float[np.ndarray, "s p"]:
    """Values at draws over √s, with means 0 over each part and variances 1.

    Columns of values that are not finite, or vary by rounding of JAX's precision only, are left
    out.
    """
    size = np.linalg.norm([np.linalg.norm(part, axis=0) for part in parts], axis=0)
    flat = np.concatenate([part - part.mean(axis=0) for part in parts])
    norms = np.linalg.norm(flat, axis=0)
    varies = np.isfinite(size) & (norms > _ROUNDINGS * jnp.finfo(default_float()).eps * size)
    return flat[:, varies] / norms[varies]
