"""The log-posterior of all rows, or of weighted ones, with its gradient and Hessian.

Log-likelihoods are added in float64 on the host: in a sum over a million rows float32 cannot
resolve a nat.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from jaxcoreset.data.bad_rows import BadRows
from jaxcoreset.data.compiling import quick_jit
from jaxcoreset.data.dtypes import as_floats, default_float
from jaxcoreset.data.rows import Rows, State
from jaxcoreset.likelihood.expansion import derivatives
from jaxcoreset.likelihood.likelihood import ModelLikelihood

# The number of points whose values and derivatives are remembered.
_NUM_REMEMBERED = 2
# A part of many rows, on which a mode is first searched: the least number of rows, one row in this
# many, the largest number of rows.
_PART_ROWS, _PART, _MOST_PART_ROWS = 20_000, 50, 200_000
# The sums of a pass.
_SUMS = ("value", "gradient", "hessian")


def _block_terms(args: tuple, rows: tuple, counted: Array) -> tuple:
    """The log-likelihoods of a block's rows, and two derivatives of their weighted sum."""
    flat, terms = args
    data, weights = rows
    counts = jnp.where(counted, weights[0] if weights else 1.0, 0.0).astype(flat.dtype)

    def total(flat: Array) -> tuple[Float[Array, ""], Float[Array, " m"]]:
        values = terms.log_likelihood(flat, data)
        return jnp.vdot(counts, values), values

    def slope(flat: Array) -> tuple[Array, tuple[Array, Array]]:
        gradient, values = jax.grad(total, has_aux=True)(flat)
        return gradient, (gradient, values)

    hessian, (gradient, values) = jax.jacfwd(slope, has_aux=True)(flat)
    return values, gradient, hessian


def typical_rows(num_rows: int) -> int:
    """The size of the part of the rows on which a mode is first searched; all rows if they are few.

    A pass over all rows has the shapes of a pass over that part. Both then share a program, and to
    compile it takes longer than most passes.
    """
    if num_rows <= 2 * _PART_ROWS:
        return num_rows
    return int(np.clip(num_rows // _PART, _PART_ROWS, _MOST_PART_ROWS))


class FlatModel(eqx.Module):
    """A model's log-likelihood and log-prior as functions of the flat parameters."""

    likelihood: ModelLikelihood = eqx.field(static=True)
    unravel: Callable = eqx.field(static=True)

    def log_likelihood(self, flat: Array, data: PyTree) -> Float[Array, " m"]:
        """The log-likelihoods of rows."""
        return self.likelihood.log_likelihood(self.unravel(flat), data)

    @functools.partial(quick_jit, jit=eqx.filter_jit)
    def prior(self, flat: Array) -> tuple:
        """The log-prior, its gradient and its Hessian."""
        return derivatives(lambda flat: self.likelihood.log_prior(self.unravel(flat)), flat)


class LogPosterior:
    """The negative log-posterior with gradient and Hessian, a pass over the data per new point.

    Args:
        terms: the model.
        rows: the rows.
        weights: how often each row counts; once each by default.
        on_pass: called after every pass.
        numbers: the numbers that a user knows the rows by, if these are not their places.
        factor: how often all the rows count, for a random part of many rows.
        typical: see `Rows.map_reduce`; `typical_rows` of the rows by default.

    Attributes:
        num_passes: the number of passes so far.
        bad_rows: how many rows were not finite in the last pass, and the numbers of the first.
    """

    def __init__(
        self,
        terms: FlatModel,
        rows: Rows,
        weights: Float[np.ndarray, " n"] | None = None,
        on_pass: Callable[[], Any] = lambda: None,
        numbers: Int[np.ndarray, " n"] | None = None,
        factor: float = 1.0,
        typical: int | None = None,
    ):
        self.terms, self.on_pass, self.numbers = terms, on_pass, numbers
        self._factor = factor
        self._counts: Float[np.ndarray, " m"] | None = None
        if weights is None and (folded := rows.folded()) is not None:
            assert rows.folding is not None
            self.numbers, (rows, self._counts) = rows.folding.first, folded
        self.rows = rows
        self._typical = typical_rows(rows.num_rows) if typical is None else typical
        weights = self._counts if weights is None else np.asarray(weights, np.float64)
        self._weights = weights
        self._per_row = () if weights is None else (weights.astype(default_float()),)
        self.num_passes = 0
        self.bad_rows: tuple[int, list[int]] = 0, []
        self._memory: dict[bytes, tuple] = {}

    def __call__(self, position: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """The value, the gradient and the Hessian at flat parameters."""
        # SciPy requests the value and the Hessian at one point in two calls, and after a step that
        # is refused those of the point before.
        terms = self._memory.pop(key := position.tobytes(), None)
        if terms is None:
            terms = self._evaluate(position)
            self.num_passes += 1
            self.on_pass()
        self._memory[key] = terms
        while len(self._memory) > _NUM_REMEMBERED:  # the one that was asked for longest ago goes
            del self._memory[next(iter(self._memory))]
        return terms

    def _evaluate(self, position: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        flat = as_floats(position)
        size = position.size
        shapes = ((), (size,), (size, size))
        start = {name: np.zeros(shape) for name, shape in zip(_SUMS, shapes, strict=True)}
        args, start = (flat, self.terms), start | BadRows.start()
        states = self.rows.map_reduce(
            _block_terms,
            args,
            4 * size,
            start,
            self._add,
            what="Laplace",
            per_row=self._per_row,
            typical=self._typical,
        )
        count, shown = BadRows.merged(states)
        self.bad_rows = count, shown if self.numbers is None else self.numbers[shown].tolist()
        prior = [np.asarray(part, np.float64) for part in self.terms.prior(flat)]
        value, gradient, hessian = (
            -(self._factor * np.sum([state[name] for state in states], axis=0) + part)
            for name, part in zip(_SUMS, prior, strict=True)
        )
        # Rounding makes sums in float32 asymmetric, by more than flat directions are curved.
        return float(value), gradient, (hessian + hessian.T) / 2

    def _add(self, state: State, values: tuple, first: int, num: int) -> State:
        """Add the terms of some blocks, log-likelihoods in float64 since counts may be large."""
        by_row, gradients, hessians = values
        by_row = by_row.ravel()[:num].astype(np.float64)
        if self._weights is not None:
            by_row = by_row * self._weights[first - self.rows.offset :][:num]
        added = zip(_SUMS, (by_row, gradients, hessians), strict=True)
        sums = {
            name: np.asarray(state[name] + x.sum(axis=0, dtype=np.float64)) for name, x in added
        }
        return sums | BadRows.add(state, ~np.isfinite(by_row), first, num, self._counts)
