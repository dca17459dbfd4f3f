"""The smallest size on a solver's path that keeps to a tolerance, and an honest estimate for it.

The smallest of many estimates on the same draws is too low: it is chosen for being low. So a size
is chosen by the "select" draws, and what is said about it comes from the "confirm" draws, which
had no part in the choice. Where they do not confirm it, they join the others, and new ones are
drawn for the next choice. Passing is a condition on the confirming draws as well, so that estimates
that come within two standard errors of the tolerance are low by about half of one; a standard error
is at most a tenth of the tolerance.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxcoreset.selection.draws import DrawPool, Use
from jaxcoreset.solvers.numerics import HIGHEST
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solution import Solution
from jaxcoreset.weighting.base import FEWEST

# The standard error of the estimate is at most this part of the tolerance, where draws allow.
PRECISION = 0.1
# At most so many times the draws that were held out at first, for each of their uses.
_MOST_HELD_OUT = 16
_MOST_CONFIRMATIONS = 6


@dataclass(frozen=True)
class Estimate:
    """An estimate of the symmetrised KL divergence in nats, with its standard error.

    Attributes:
        kl: the variance of L − L_w over the draws.
        standard_error: of `kl`.
        error: ‖y − Φw‖/‖y‖ on the same draws.
    """

    kl: float
    standard_error: float
    error: float

    @property
    def upper(self) -> float:
        """Two standard errors above."""
        return self.kl + 2 * self.standard_error

    @property
    def lower(self) -> float:
        """Two standard errors below."""
        return self.kl - 2 * self.standard_error


@dataclass(frozen=True)
class Choice:
    """One place on a solver's path, and how good it is.

    Attributes:
        path: the solutions of all sizes.
        sizes: the sizes.
        at: the place.
        estimate: the error there, on draws that had no part in the choice.
        curve: the errors along the path, on the draws that had.
        is_within: whether the tolerance is kept to; True where there is none.
    """

    path: Solution
    sizes: np.ndarray
    at: int
    estimate: Estimate
    curve: dict[str, np.ndarray]
    is_within: bool = True

    def facts(self, pool: DrawPool, estimate: Estimate) -> dict[str, Any]:
        """What a `jaxcoreset.Report` says of the choice.

        Args:
            pool: the draws that it was made by.
            estimate: the one that is reported; it need not be that of the choice.
        """
        return {
            "num_used": int(np.count_nonzero(self.path.weights[self.at])),
            "num_candidates": pool.num_candidates,
            "num_draws": pool.count("solver"),
            "num_held_out": pool.count("select") + pool.count("confirm"),
            "relative_error": float(self.path.relative_error[self.at]),
            "held_out_error": self.estimate.error,
            "kl": estimate.kl,
            "kl_standard_error": estimate.standard_error,
            "solver": self.path.solver,
            "converged": bool(self.path.converged[self.at]),
            "curve": self.curve,
        }


def largest_size(pool: DrawPool, path: Solution, sizes: np.ndarray) -> Choice:
    """The last place of a path, which was not chosen by looking at errors."""
    curve = _curve(pool, path, sizes)
    return Choice(path, sizes, len(sizes) - 1, _at(curve, -1), curve)


def smallest_within(
    pool: DrawPool, path: Solution, sizes: np.ndarray, tol: float, num_held_out: int
) -> Choice:
    """The smallest size whose error is at most `tol` with two standard errors on top.

    Draws are added while they are what is lacking: where an estimate is below `tol` but not its
    upper end, and where its standard error is more than a tenth of `tol`.

    Args:
        pool: draws and log-likelihoods; draws are added to it.
        path: the solutions of all sizes.
        sizes: the sizes, increasing.
        tol: the tolerance, in nats.
        num_held_out: draws to confirm a choice with at first.

    Returns:
        The choice; where no size keeps to `tol`, the best one, with `is_within` false.
    """
    most = _MOST_HELD_OUT * num_held_out
    first = 0
    curve = _curve(pool, path, sizes)
    for _ in range(_MOST_CONFIRMATIONS):
        at = _first_within(curve, tol, first)
        while at is None and curve["kl"][first:].min(initial=np.inf) <= tol:
            if not _double(pool, "select", most):
                break
            curve = _curve(pool, path, sizes)
            at = _first_within(curve, tol, first)
        if at is None:
            break
        pool.want(confirm=num_held_out)
        estimate = estimate_at(pool, path, at, "confirm")
        while (
            estimate.standard_error > PRECISION * tol
            and estimate.lower <= tol
            and _double(pool, "confirm", most)
        ):
            estimate = estimate_at(pool, path, at, "confirm")
        if estimate.upper <= tol:
            return Choice(path, sizes, at, estimate, curve)
        if pool.remaining is not None and pool.remaining < max(FEWEST, num_held_out // 4):
            # The draws of a fixed stock confirm again, and so only another size can pass.
            first = at + 1
        else:
            pool.move("confirm", "select")
            curve = _curve(pool, path, sizes)
    at = int(np.argmin(curve["kl"] + 2 * curve["kl_standard_error"]))
    pool.want(confirm=num_held_out)
    # Rare draws at which much is amiss may be among either; those that have them tell more.
    found = _at(curve, at), estimate_at(pool, path, at, "confirm")
    estimate = max(found, key=lambda one: one.upper)
    return Choice(path, sizes, at, estimate, curve, is_within=False)


def estimate_at(pool: DrawPool, path: Solution, at: int, use: Use) -> Estimate:
    """The error at one place of a path, on the draws of one use."""
    one = jax.tree.map(lambda x: x[at : at + 1], path)
    return _at(errors(one, pool.problem(use), pool.source.inefficiency), 0)


def errors(
    path: Solution, held_out: CoresetProblem, inefficiency: float = 1.0
) -> dict[str, np.ndarray]:
    """The errors along a path of solutions, on the solver's draws and on the held-out ones.

    Args:
        path: the solutions.
        held_out: the candidates' atoms, and the target, under draws that the solver did not see.
        inefficiency: how many of these draws are worth an independent one.
    """
    measured = _measure(held_out, path.indices, path.weights)
    error, kl, spread = (np.asarray(value, np.float64) for value in measured)
    return {
        "num_used": np.asarray(path.size),
        "relative_error": np.asarray(path.relative_error, np.float64),
        "held_out_error": error,
        "kl": kl,
        "kl_standard_error": spread * np.sqrt(inefficiency / held_out.num_draws),
    }


@jax.jit
def _measure(held_out: CoresetProblem, indices: Array, weights: Array) -> tuple:
    """Relative error, squared residuals' mean, and their standard deviation, by solution."""

    def one(pair: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        indices, weights = pair
        combined = jnp.matmul(weights, held_out.gather(indices), precision=HIGHEST)
        # Entries are over √S: times S, their squares are draws of the squared difference.
        squares = held_out.num_draws * (held_out.target - combined) ** 2
        kl = jnp.mean(squares)
        return jnp.sqrt(kl) / jnp.linalg.norm(held_out.target), kl, jnp.std(squares)

    return jax.lax.map(one, (indices, weights))


def _curve(pool: DrawPool, path: Solution, sizes: np.ndarray) -> dict[str, np.ndarray]:
    return {"size": sizes, **errors(path, pool.problem("select"), pool.source.inefficiency)}


def _at(curve: dict[str, np.ndarray], at: int) -> Estimate:
    return Estimate(
        float(curve["kl"][at]),
        float(curve["kl_standard_error"][at]),
        float(curve["held_out_error"][at]),
    )


def _first_within(curve: dict[str, np.ndarray], tol: float, first: int) -> int | None:
    upper = curve["kl"] + 2 * curve["kl_standard_error"]
    within = first + np.flatnonzero(upper[first:] <= tol)
    return int(within[0]) if within.size else None


def _double(pool: DrawPool, use: Use, most: int) -> bool:
    """Twice the draws of a use; false where there are no more, or enough."""
    before = pool.count(use)
    if before >= most:
        return False
    pool.want(**{use: 2 * before})
    return pool.count(use) > before
