"""The quadratic that is nearest to the log-likelihood under the draws, row by row.

The second-order expansion at the mode is not the quadratic with the smallest error under π̂. With
whitened parameters u = (θ − θ*) F, where F Fᵀ is the precision of the Laplace approximation, the
features Z are u_i, u_i u_j and u_i²/√2, centred. A ridge regression on them that shrinks towards
the expansion adds Z c to it, where c = (ZᵀZ + λI)⁻¹ Zᵀ r and r is what the expansion leaves. The
regression is linear in r, so each row has an addition of its own, and those of all rows add up to
that of the total. A row's remainder is then what its own quadratic leaves. The penalty λ minimises
the generalised cross-validation error (Golub, Heath and Wahba 1979) of the total.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcoreset.data.compiling import quick_jit
from jaxcoreset.data.dtypes import as_floats
from jaxcoreset.likelihood.expansion import Expansion, Terms
from jaxcoreset.solvers.numerics import HIGHEST

# The draws have to be more than this multiple of the features.
_DRAWS_PER_FEATURE = 2
# The penalties that are tried, relative to the squared norm of a feature under π̂.
_PENALTIES = 10.0 ** np.linspace(-4, 2, 13)
# The smallest eigenvalue of the new precision in units of the old one.
_LEAST_EIGENVALUE = 0.25


def num_features(num_params: int) -> int:
    """The number of features of a quadratic without its constant, D(D + 3)/2."""
    return num_params * (num_params + 3) // 2


def least_draws(num_params: int) -> int:
    """The smallest number of independent draws for the regression."""
    return _DRAWS_PER_FEATURE * num_features(num_params) + 1


@dataclass(frozen=True, eq=False)
class Regression:
    """What a regression adds to an expansion: for all rows, and for each row.

    Attributes:
        start: the expansion at the mode.
        expansion: the expansion with the quadratic that is added for all rows.
        factor: shape (D, D), F.
        operator: shape (S, p), from faded remainders at the solver's S draws, each block centred,
            to the coefficients.
        num_blocks: the number of blocks of these draws.
        constant: shape (S + p,), from remainders and coefficients to a row's constant.
        coefficients: shape (p,), those of all rows.
    """

    start: Expansion
    expansion: Expansion
    factor: Float[np.ndarray, "d d"]
    operator: Float[np.ndarray, "s p"]
    num_blocks: int
    constant: Float[np.ndarray, " sp"]
    coefficients: Float[np.ndarray, " p"]

    @classmethod
    def of(
        cls,
        start: Expansion,
        draws: list[Float[np.ndarray, "_ d"]],
        remainders: list[Float[np.ndarray, " _"]],
    ) -> "Regression | None":
        """Regress what an expansion leaves of all rows; None if the sum would not be proper.

        Args:
            start: the expansion.
            draws: the solver's draws, block by block, as flat parameters.
            remainders: the log-likelihood of all rows less the expansion at them, each block up to
                a constant.
        """
        factor = np.linalg.cholesky(start.precision)
        fades = [start.fade(block) for block in draws]
        faded = [
            fade[:, None] * _features((block - start.center) @ factor)
            for block, fade in zip(draws, fades, strict=True)
        ]
        scale = 1 / np.sqrt(sum(map(len, draws)))
        z = scale * np.concatenate([block - block.mean(axis=0) for block in faded])
        r = [f * (x - x.mean()) for x, f in zip(remainders, fades, strict=True)]
        r = scale * np.concatenate([block - block.mean() for block in r])
        left, values, right = np.linalg.svd(z, full_matrices=False)
        shrunk = _shrunk(values, left.T @ r, float(r @ r), len(z))
        kept = values > values.max() * np.finfo(np.float64).eps * len(z)
        inverse = np.where(kept, shrunk / np.where(kept, values, 1), 0)
        operator = scale * (left * inverse) @ right
        coefficients = right.T @ (inverse * (left.T @ r))
        added = _terms(factor, np.append(0.0, coefficients))
        whitened = np.linalg.solve(factor, np.linalg.solve(factor, added.hessian).T)
        if np.linalg.eigvalsh(np.eye(len(factor)) - whitened).min() < _LEAST_EIGENVALUE:
            return None
        expansion = dataclasses.replace(
            start,
            gradient=start.gradient + added.gradient,
            hessian=start.hessian + added.hessian,
        )
        mass = sum(float(fade.sum()) for fade in fades)
        constant = np.concatenate([np.full(len(z), 1 / mass), -sum(f.sum(0) for f in faded) / mass])
        return cls(start, expansion, factor, operator, len(draws), constant, coefficients)

    def at(self, flat: Float[np.ndarray, "s d"]) -> Float[np.ndarray, " s"]:
        """What is added for all rows at flat parameters."""
        return self._features(flat) @ self.coefficients

    def of_rows(
        self, remainders: Sequence[Float[Array | np.ndarray, "m _"]]
    ) -> Float[Array, "m q"]:
        """A constant and the coefficients of each row.

        Args:
            remainders: the rows' remainders of the expansion at the solver's draws, faded out,
                block by block as in `of`.
        """
        return _of_rows(list(remainders), as_floats(self.operator), as_floats(self.constant))

    def less_rows(
        self,
        values: Float[Array | np.ndarray, "m s"],
        coefficients: Float[Array | np.ndarray, "m q"],
        flat: Float[np.ndarray, "s d"],
    ) -> Float[Array, "m s"]:
        """Values of rows at flat parameters, less what is added for each row, faded out."""
        ones = np.ones((len(flat), 1))
        features = self.start.fade(flat)[:, None] * np.hstack([ones, self._features(flat)])
        return _less_rows(values, coefficients, as_floats(features))

    def terms(self, coefficients: Float[np.ndarray, " q"]) -> Terms:
        """What is added for rows with a sum of coefficients, as derivatives at the center."""
        return _terms(self.factor, np.asarray(coefficients, np.float64))

    def removed(
        self, draws: list[Float[np.ndarray, "_ d"]]
    ) -> tuple[Float[Array, "s p"], Float[Array, "p s"]]:
        """Two factors, whose product takes rows' faded remainders to what is added for them.

        Args:
            draws: the solver's draws, block by block: those of `of`, and perhaps further ones.
        """
        further = sum(map(len, draws)) - len(self.operator)
        operator = np.pad(self.operator, ((0, further), (0, 0)))
        faded = [self.start.fade(block)[:, None] * self._features(block) for block in draws]
        features = np.concatenate([block - block.mean(axis=0) for block in faded])
        return as_floats(operator), as_floats(features.T)

    def _features(self, flat: Float[np.ndarray, "s d"]) -> Float[np.ndarray, "s p"]:
        return _features((np.asarray(flat, np.float64) - self.start.center) @ self.factor)


@quick_jit
def _of_rows(remainders: list, operator: Array, constant: Array) -> Float[Array, "m q"]:
    num = operator.shape[0]
    joined = jnp.concatenate(remainders, axis=1)
    # The columns of the operator sum to zero over a block, so that blocks need not be centred.
    slopes = jnp.matmul(joined, operator.astype(joined.dtype), precision=HIGHEST)
    constant = constant.astype(joined.dtype)
    first = jnp.matmul(joined, constant[:num], precision=HIGHEST)
    first = first + jnp.matmul(slopes, constant[num:], precision=HIGHEST)
    return jnp.concatenate([first[:, None], slopes], axis=1)


@quick_jit
def _less_rows(values: Array, coefficients: Array, features: Array) -> Float[Array, "m s"]:
    features = features.astype(coefficients.dtype)
    return values - jnp.matmul(coefficients, features.T, precision=HIGHEST)


def _features(u: Float[np.ndarray, "s d"]) -> Float[np.ndarray, "s p"]:
    first, second = np.triu_indices(u.shape[1], 1)
    return np.hstack([u, u[:, first] * u[:, second], u**2 / np.sqrt(2)])


def _terms(factor: Float[np.ndarray, "d d"], coefficients: Float[np.ndarray, " q"]) -> Terms:
    """A constant and coefficients of the features, as derivatives in the parameters."""
    size = len(factor)
    first, second = np.triu_indices(size, 1)
    slopes, products, squares = np.split(coefficients[1:], [size, size + first.size])
    hessian = np.diag(np.sqrt(2) * squares)
    hessian[first, second] = hessian[second, first] = products
    return Terms(float(coefficients[0]), factor @ slopes, factor @ hessian @ factor.T)


def _shrunk(
    values: Float[np.ndarray, " p"],
    projected: Float[np.ndarray, " p"],
    norm_squared: float,
    num_draws: int,
) -> Float[np.ndarray, " p"]:
    """What the best penalty leaves of each direction, between 0 and 1."""

    def error(kept: np.ndarray) -> float:
        left = norm_squared - np.sum((1 - (1 - kept) ** 2) * projected**2)
        return left / (1 - kept.sum() / num_draws) ** 2

    return min((values**2 / (values**2 + penalty) for penalty in _PENALTIES), key=error)
