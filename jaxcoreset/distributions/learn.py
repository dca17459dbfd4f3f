"""Learn sparse distributions: check the arguments, then run a solver in one compiled call."""

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxcoreset.distributions.lattice import (
    check_distribution,
    checked_lattice,
    checked_table,
    random_table,
    varying_coordinates,
)
from jaxcoreset.distributions.objectives import (
    DistributionObjective,
    ExpectationDistance,
    SquaredDistance,
)
from jaxcoreset.distributions.solvers import (
    DistributionExchange,
    DistributionGreedy,
    DistributionSolution,
    DistributionSolver,
)
from jaxcoreset.distributions.thresholding import DistributionIHT
from jaxcoreset.solvers.arguments import is_concrete
from jaxcoreset.solvers.problem import static_bound


def learn_distribution(
    objective: DistributionObjective,
    k: int | Int[Array, ""],
    solver: DistributionSolver | None = None,
    key: PRNGKeyArray | None = None,
    *,
    start: ArrayLike | None = None,
    max_k: int | None = None,
) -> DistributionSolution:
    """Minimise F[q] over the k-sparse distributions of a lattice.

    Works under ``jax.jit`` and ``jax.vmap``, over objectives, keys and k. The problem (equation 1
    of Zhang et al. 2019) is NP-hard even for the squared distance (their Theorem 1), so no solver
    guarantees the optimum.

    Args:
        objective: F, for instance ``SquaredDistance(p)``.
        k: the maximum number of coordinates that vary, 1 ≤ k ≤ n. May be traced.
        solver: `DistributionExchange`, the default, `DistributionIHT` or `DistributionGreedy`.
        key: a JAX random key, for random starts.
        start: a k-sparse distribution to start from, of shape (m,)·n; not for
            `DistributionGreedy`.
        max_k: static upper bound of k, k itself if that is a plain number and n if it is traced.
            The work is proportional to m to the power of `max_k`.

    Returns:
        A `DistributionSolution`. With a traced k out of range, it is that of the nearest k in range
        and `converged` is false.

    Raises:
        TypeError: if `objective` or `solver` is something else, or k is not an integer.
        ValueError: if k is out of range, `start` is not a k-sparse distribution or cannot be used,
            or the solver needs a key and there is none.
    """
    if not isinstance(objective, DistributionObjective):
        raise TypeError(
            f"objective is a {type(objective).__name__}; expected a DistributionObjective, "
            "for instance SquaredDistance(p)."
        )
    solver = DistributionExchange() if solver is None else solver
    if not isinstance(solver, DistributionSolver):
        raise TypeError(
            f"solver is {solver!r}; expected a DistributionSolver, for instance DistributionIHT()."
        )
    n = len(objective.lattice)
    max_k = static_bound(k, max_k, n)
    if start is not None:
        start = _checked_start(start, objective, k, solver)
    own_start = start is not None and isinstance(solver, DistributionIHT)
    if solver.needs_key and key is None and not own_start:
        raise ValueError(
            f"key is missing; {type(solver).__name__} has random starts, so pass "
            "key=jax.random.key(seed)."
        )
    return _learn(objective, jnp.asarray(k, jnp.int32), solver, max_k, key, start)


def compress_distribution(
    table: ArrayLike,
    k: int | Int[Array, ""],
    features: ArrayLike,
    solver: DistributionSolver | None = None,
    key: PRNGKeyArray | None = None,
) -> DistributionSolution:
    """A k-sparse distribution that keeps the expectations of given functions.

    Minimises ‖Aq − Ap‖² (Zhang et al. 2019, section 4.2). `DistributionSolution.compact` returns
    its mᵏ numbers, in place of mⁿ.

    Args:
        table: p, of shape (m,)·n.
        k: the maximum number of coordinates that vary.
        features: A, shape (r, m, …, m): the value of each of r functions at each point. Use many
            more functions than mᵏ, or q does not generalise to other functions.
        solver: as in `learn_distribution`.
        key: a JAX random key, for random starts.

    Raises:
        ValueError: if a shape does not fit or `table` is not a distribution.
    """
    table = checked_table("table", table)
    if is_concrete(table):
        check_distribution("table", table)
    return learn_distribution(ExpectationDistance(features, table), k, solver, key)


def sparse_projection(
    table: ArrayLike, k: int | Int[Array, ""], *, max_k: int | None = None
) -> Float[Array, "*lattice"]:
    """A k-sparse distribution near a table, by greedy sparse projection.

    Algorithm 2 (GSProj) of Zhang et al. (2019). The nearest one is NP-hard to find (Theorem 1).

    Args:
        table: shape (m,)·n; need not be a distribution.
        k: the maximum number of coordinates that vary, 1 ≤ k ≤ n. May be traced; then it is clipped
            to that range.
        max_k: static upper bound of k, see `learn_distribution`.

    Raises:
        ValueError: if a shape does not fit or k is out of range.
    """
    return learn_distribution(SquaredDistance(table), k, DistributionGreedy(), max_k=max_k).table


def random_sparse_distribution(
    key: PRNGKeyArray, lattice: tuple[int, ...], k: int | Int[Array, ""], max_k: int | None = None
) -> Float[Array, "*lattice"]:
    """A random k-sparse distribution: k random coordinates, and a uniformly random one on X_S.

    Args:
        key: a JAX random key.
        lattice: the shape of the table, (m,)·n.
        k: the number of coordinates that vary, 1 ≤ k ≤ n.
        max_k: static upper bound of k, see `learn_distribution`.

    Raises:
        ValueError: if `lattice` is not a lattice or k is out of range.
    """
    lattice = checked_lattice("lattice", tuple(lattice))
    max_k = static_bound(k, max_k, len(lattice))
    allowed = jnp.clip(jnp.asarray(k, jnp.int32), 1, max_k)
    return eqx.filter_jit(random_table)(key, lattice, allowed, max_k)[0]


@eqx.filter_jit
def _learn(
    objective: DistributionObjective,
    k: Array,
    solver: DistributionSolver,
    max_k: int,
    key: PRNGKeyArray | None,
    start: Array | None,
) -> DistributionSolution:
    allowed = jnp.clip(k, 1, max_k)
    solution = solver.run(objective, allowed, max_k, key, start)
    return dataclasses.replace(
        solution,
        converged=solution.converged & (k == allowed),
        solver=solution.solver or type(solver).__name__,
    )


def _checked_start(
    start: ArrayLike, objective: DistributionObjective, k: Any, solver: DistributionSolver
) -> Array:
    if isinstance(solver, DistributionGreedy):
        raise ValueError("start is given; expected None, as DistributionGreedy has no start.")
    table = checked_table("start", start).astype(objective.scale(1).dtype)
    if table.shape != objective.lattice:
        raise ValueError(f"start has shape {table.shape}; expected {objective.lattice}.")
    if is_concrete(table):
        check_distribution("start", table)
        varying = int(varying_coordinates(table).sum())
        if is_concrete(k) and varying > k:
            raise ValueError(
                f"start varies in {varying} coordinates; expected at most k = {k}. Use "
                "sparse_projection(start, k)."
            )
    return table
