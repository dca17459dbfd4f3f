"""Prototypes by maximum mean discrepancy: a coreset problem with a kernel in place of ΦᵀΦ.

Given points x_1..x_n and a kernel k with feature map φ(x) = k(x, ·) in its Hilbert space H, the
problem is to find few points and weights on the simplex whose weighted mean of features is near the
mean over all points,

    MMD² = ‖Σ_i a_i φ(x_i) − Σ_i w_i φ(x_i)‖²_H = (a − w)ᵀK(a − w),   a_i = 1/n,

which is sparsity of a distribution's own entries (Zhang, Khanna, Kyrillidis and Koyejo, "Learning
sparse distributions using iterative hard thresholding", NeurIPS 2019, section 2, appendix A and,
for prototypes of data, section 4.2).

**Why this needs no solver of its own.** Solvers access a problem through atoms in R^S: they
correlate them with a residual, add some of them, and gather a few. The features of n points span at
most n dimensions, so in an orthonormal basis of that span each is a vector of coordinates, with the
inner products that the kernel gives. These coordinates are the rows of L where K = LLᵀ, and
``CoresetProblem(L, Lᵀa)`` *is* the kernel's problem, so that every solver can solve it. L comes
from a pivoted Cholesky factorisation, which evaluates K one row at a time: O(n·rank) memory, no
n × n matrix, and a known error.

**The simplex.** `simplex_problem` turns the constraint Σw = 1 into one more coordinate, exactly, so
that solvers that only support w ≥ 0 solve the constrained problem too.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxcoreset.solvers.arguments import as_float, as_integer, check_finite, is_concrete
from jaxcoreset.solvers.base import Solver
from jaxcoreset.solvers.nnls import nnls
from jaxcoreset.solvers.numerics import product
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solution import Solution, make_solution
from jaxcoreset.solvers.solve import solve

Kernel = Callable[[Array, Array], Array]

_DEFAULT_RANK = 2048
# If the rank is not known in advance, the factor's arrays start with this number of columns and
# grow by this factor; each size is compiled once.
_FIRST_COLUMNS = 128
_GROWTH = 4


class GaussianKernel(eqx.Module):
    """k(x, y) = exp(−‖x − y‖² / (2 h²)) for points of any shape.

    Args:
        bandwidth: h, in the units of the points; see `median_bandwidth`.

    Raises:
        ValueError: if the bandwidth is not positive.
    """

    bandwidth: Float[Array, ""]

    def __init__(self, bandwidth: ArrayLike):
        self.bandwidth = jnp.asarray(bandwidth, float)
        if self.bandwidth.ndim != 0 or (is_concrete(self.bandwidth) and not self.bandwidth > 0):
            raise ValueError(f"bandwidth is {bandwidth}; expected one positive number.")

    def __call__(self, x: Float[Array, "*d"], y: Float[Array, "*d"]) -> Float[Array, ""]:
        """The kernel at a pair of points."""
        scaled = (x - y) / self.bandwidth.astype(x.dtype)
        return jnp.exp(-0.5 * jnp.sum(scaled**2))


def median_bandwidth(points: ArrayLike, max_points: int = 1000) -> Float[Array, ""]:
    """The median distance between points that differ: the usual bandwidth of a Gaussian kernel.

    Args:
        points: shape (n, …), one point per row.
        max_points: the maximum number of points used; of more points, evenly spaced rows are taken.

    Raises:
        ValueError: if there are fewer than two points, or all points used are equal.
    """
    points = _checked_points(points)
    if points.shape[0] < 2 or max_points < 2:
        raise ValueError("points has one row, or max_points is below 2; expected at least two.")
    stride = -(-points.shape[0] // max_points)
    median = _median_distance(points[::stride].reshape(-1, math.prod(points.shape[1:])))
    if is_concrete(median) and not median > 0:
        raise ValueError(
            "all points are equal, so all distances are zero; pass a kernel with a bandwidth."
        )
    return median


@jax.jit
def _median_distance(points: Float[Array, "n d"]) -> Float[Array, ""]:
    squared = jax.lax.map(lambda x: jnp.sum((points - x[None]) ** 2, axis=1), points)
    return jnp.sqrt(jnp.nanmedian(jnp.where(squared > 0, squared, jnp.nan)))


class KernelFactor(eqx.Module):
    """A factor L of a kernel matrix, K ≈ LLᵀ, and its error.

    Attributes:
        factor: L, shape (n, rank); unused columns are zero.
        left: shape (n,), the diagonal of K − LLᵀ, which is positive semidefinite.
        largest: the largest diagonal entry of K.
        pivots: shape (rank,), the points whose features span the columns, then −1.
        size: the number of columns that are not zero.
    """

    factor: Float[Array, "n r"]
    left: Float[Array, " n"]
    largest: Float[Array, ""]
    pivots: Int[Array, " r"]
    size: Int[Array, ""]

    @property
    def error(self) -> Float[Array, ""]:
        """The largest diagonal entry of K − LLᵀ, over that of K."""
        return jnp.max(self.left) / self.largest


def pivoted_cholesky(
    kernel: Kernel, points: Float[Array, "n ..."], rank: int, tol: ArrayLike = 0.0
) -> KernelFactor:
    """Factor a kernel matrix by Cholesky's method, the largest remaining diagonal entry first.

    Harbrecht, Peters and Schneider, "On the low-rank approximation by the pivoted Cholesky
    decomposition" (Appl. Numer. Math. 2012), Algorithm 1. It takes n·rank memory and n·rank²
    operations, and evaluates `rank` rows of the kernel matrix. Works under ``jax.jit`` and
    ``jax.vmap``.

    Args:
        kernel: a positive semidefinite function of two points.
        points: shape (n, …).
        rank: the maximum number of columns.
        tol: stop when no diagonal entry of K − LLᵀ is above tol times the largest of K.
    """
    diagonal = jax.vmap(kernel)(points, points)
    return _more_columns(kernel, points, _no_columns(diagonal), rank, jnp.asarray(tol))


def kernel_problem(
    kernel: Kernel,
    points: ArrayLike,
    target_weights: ArrayLike | None = None,
    *,
    rank: int | None = None,
    tol: float = 1e-5,
) -> CoresetProblem:
    """The problem of matching a mean of features by few points: min ‖Σ a_i φ(x_i) − Σ w_i φ(x_i)‖².

    Its atoms are the features' coordinates in an orthonormal basis, so every solver runs on it as
    on any other `CoresetProblem`; the module's docstring explains why. For weights that sum to one,
    the objective is at most MMD², and at least MMD² − 4·tol·max k(x, x).

    Args:
        kernel: a positive semidefinite function ``kernel(x, y)`` of two points, written in JAX; for
            instance `GaussianKernel`.
        points: shape (n, …), one point per row.
        target_weights: shape (n,), a; 1/n each by default.
        rank: the maximum number of coordinates; 2048 or n by default, whichever is less. Under
            ``jax.jit`` the atoms have exactly this length.
        tol: the part of a squared feature norm, relative to the largest, that may be left out.

    Raises:
        TypeError: if `rank` is not an integer.
        ValueError: if a shape does not fit, an entry is not finite, the kernel is not a scalar, not
            finite or not positive, or `rank` coordinates do not reach `tol` (not checked under
            ``jax.jit``, where `pivoted_cholesky` returns the error).
    """
    points = _checked_points(points)
    n = points.shape[0]
    limit = min(n, _DEFAULT_RANK) if rank is None else as_integer("rank", rank, 1, n)
    if is_concrete(tol) and not 0 <= tol < 1:
        raise ValueError(f"tol is {tol}; expected 0 ≤ tol < 1.")
    weights = _checked_weights(target_weights, n, points.dtype)
    _check_kernel(kernel, points)
    diagonal = jax.vmap(kernel)(points, points)
    if is_concrete(diagonal, weights):
        factor = _factor(kernel, points, diagonal, limit, tol)
    else:
        factor = pivoted_cholesky(kernel, points, limit, tol).factor
    return CoresetProblem(factor, product(weights, factor))


def simplex_problem(problem: CoresetProblem) -> CoresetProblem:
    """A problem whose solutions, divided by their sum, solve the given problem on the simplex.

    For atoms φ_i and target y its atoms are (φ_i − y, γ) and its target is (0, γ). Among the
    multiples of weights w with Σw = 1 and d = ‖y − Φw‖², the best one has the objective
    d γ²/(d + γ²), which increases with d. So the optimum over at most k atoms is, up to its sum,
    the optimum on the simplex. For weights that already sum to one, such as those of `SimplexTopK`,
    the objective is d itself.

    γ² is the mean of ‖φ_i − y‖². Any other value has the same optimum, but solvers may take another
    path to it.

    Args:
        problem: the problem to solve with Σw = 1.
    """
    apart = problem.atoms - problem.target[None]
    gamma = jnp.sqrt(jnp.mean(jnp.sum(apart**2, axis=1)))
    gamma = jnp.where(gamma > 0, gamma, 1)
    atoms = jnp.concatenate([apart, jnp.full_like(apart[:, :1], gamma)], axis=1)
    return CoresetProblem(atoms, jnp.zeros_like(atoms[0]).at[-1].set(gamma))


def select_prototypes(
    points: ArrayLike,
    k: int | Int[Array, ""],
    kernel: Kernel | None = None,
    solver: Solver | None = None,
    key: PRNGKeyArray | int | None = None,
    *,
    target_weights: ArrayLike | None = None,
    rank: int | None = None,
    tol: float = 1e-5,
    max_k: int | None = None,
) -> Solution:
    """Choose k points whose weighted mean of features is near the mean over all points, by MMD.

    Any solver chooses the points; their weights are then the exact optimum on the simplex. Zhang,
    Khanna, Kyrillidis and Koyejo (NeurIPS 2019), section 4.2 and appendix A.

    Args:
        points: shape (n, …), one point per row.
        k: the number of prototypes, 1 ≤ k ≤ n. May be traced.
        kernel: see `kernel_problem`; by default a Gaussian with the median distance as bandwidth.
        solver: any solver, see `jaxcoreset.solvers.solve`.
        key: a JAX random key, for solvers that draw random numbers.
        target_weights: shape (n,), the distribution to match; 1/n each by default.
        rank: see `kernel_problem`.
        tol: see `kernel_problem`.
        max_k: see `jaxcoreset.solvers.solve`.

    Returns:
        A `Solution` whose weights sum to one and whose objective is MMD². Its history, if the
        solver records one, is that of the `simplex_problem`.

    Raises:
        ValueError: as in `kernel_problem` and `jaxcoreset.solve`, and if `target_weights` is not a
            distribution.
    """
    points = _checked_points(points)
    weights = _checked_weights(target_weights, points.shape[0], points.dtype)
    if is_concrete(weights) and ((weights < 0).any() or abs(float(weights.sum()) - 1) > 1e-3):
        raise ValueError(
            f"target_weights sum to {float(weights.sum()):.6g} with {int((weights < 0).sum())} of "
            "them negative; expected a distribution: no negative entry, and a sum of 1."
        )
    kernel = GaussianKernel(median_bandwidth(points)) if kernel is None else kernel
    problem = kernel_problem(kernel, points, weights, rank=rank, tol=tol)
    chosen = solve(simplex_problem(problem), k, solver, key, max_k=max_k)
    return _on_simplex(problem, chosen)


@eqx.filter_jit
def _on_simplex(problem: CoresetProblem, chosen: Solution) -> Solution:
    """The best weights that sum to one on the rows of a solution to the `simplex_problem`."""
    used = chosen.weights > 0
    lifted = simplex_problem(problem)
    refit = nnls(lifted.gather(chosen.indices), lifted.target, warm_start=chosen.weights, mask=used)
    # If the solver's solution is empty, return the one point nearest to the mean.
    nearest = jnp.argmin(jnp.sum((problem.atoms - problem.target[None]) ** 2, axis=1))
    empty = ~used.any() | ~(jnp.sum(refit.weights) > 0)
    slot = jnp.arange(used.shape[0]) == 0
    indices = jnp.where(empty & slot, nearest, chosen.indices)
    weights = jnp.where(empty, slot.astype(refit.weights.dtype), refit.weights)
    weights = weights / jnp.sum(weights)
    residual = product(weights, problem.target[None] - problem.gather(indices))
    return make_solution(
        problem,
        indices,
        weights,
        jnp.vdot(residual, residual),
        chosen.num_iters,
        chosen.converged & ~empty,
        solver=chosen.solver,
        history=chosen.history,
    )


def _no_columns(diagonal: Float[Array, " n"]) -> KernelFactor:
    return KernelFactor(
        factor=jnp.zeros((diagonal.shape[0], 0), diagonal.dtype),
        left=diagonal,
        largest=jnp.max(diagonal),
        pivots=jnp.zeros(0, jnp.int32),
        size=jnp.zeros((), jnp.int32),
    )


def _more_columns(
    kernel: Kernel, points: Array, start: KernelFactor, rank: int, tol: Array
) -> KernelFactor:
    """Continue a factorisation up to `rank` columns."""
    more = rank - start.factor.shape[1]
    begin = dataclasses.replace(
        start,
        factor=jnp.pad(start.factor, ((0, 0), (0, more))),
        pivots=jnp.pad(start.pivots, (0, more), constant_values=-1),
    )
    # Entries below this are rounding errors, and their columns would be noise.
    floor = jnp.maximum(tol, 8 * jnp.finfo(start.left.dtype).eps).astype(start.left.dtype)
    floor = floor * start.largest

    def add(state: KernelFactor) -> KernelFactor:
        pivot = jnp.argmax(state.left)
        row = jax.vmap(kernel, in_axes=(None, 0))(points[pivot], points)
        explained = product(state.factor, state.factor[pivot])
        column = (row - explained) / jnp.sqrt(state.left[pivot])
        return dataclasses.replace(
            state,
            factor=state.factor.at[:, state.size].set(column),
            left=jnp.maximum(state.left - column**2, 0).at[pivot].set(0),
            pivots=state.pivots.at[state.size].set(pivot.astype(jnp.int32)),
            size=state.size + 1,
        )

    return jax.lax.while_loop(lambda s: (s.size < rank) & (jnp.max(s.left) > floor), add, begin)


_compiled_more_columns = eqx.filter_jit(_more_columns)


def _factor(
    kernel: Kernel, points: Array, diagonal: Array, limit: int, tol: float
) -> Float[Array, "n r"]:
    """Compute as many columns as `tol` needs, in arrays that grow."""
    if not (jnp.isfinite(diagonal).all() and (diagonal > 0).all()):
        raise ValueError(
            "kernel(x, x) is not positive and finite at every point; expected a positive definite "
            "kernel, such as GaussianKernel(median_bandwidth(points))."
        )
    factor = _no_columns(diagonal)
    size = columns = 0
    while columns < limit:
        columns = min(limit, max(_FIRST_COLUMNS, _GROWTH * columns))
        factor = _compiled_more_columns(kernel, points, factor, columns, jnp.asarray(tol))
        size = int(factor.size)
        if size < columns:
            break
    if not jnp.isfinite(factor.factor).all():
        raise ValueError("kernel(x, y) is not finite for some pair of points.")
    error = float(factor.error)
    if error > max(tol, 8 * float(jnp.finfo(diagonal.dtype).eps)):
        raise ValueError(
            f"rank is {limit}, and {limit} coordinates leave out {error:.2g} of a squared feature "
            f"norm; expected at most tol = {tol:.2g}. Pass a larger rank, tol={error:.2g}, or a "
            "kernel with a larger bandwidth."
        )
    # Round the rank up, so that kernels and data of similar rank share their compiled solvers.
    step = max(8, 1 << max(0, size.bit_length() - 3))
    return factor.factor[:, : min(limit, -(-max(1, size) // step) * step)]


def _checked_points(points: ArrayLike) -> Array:
    points = as_float(points)
    if points.ndim == 0 or 0 in points.shape:
        raise ValueError(f"points has shape {points.shape}; expected (n, …), one point per row.")
    check_finite("points", points)
    return points


def _checked_weights(weights: ArrayLike | None, n: int, dtype: Any) -> Array:
    if weights is None:
        return jnp.full(n, 1 / n, dtype)
    weights = jnp.asarray(weights, dtype)
    if weights.shape != (n,):
        raise ValueError(
            f"target_weights has shape {weights.shape}; expected ({n},), one weight per point."
        )
    check_finite("target_weights", weights)
    return weights


def _check_kernel(kernel: Kernel, points: Array) -> None:
    if not callable(kernel):
        raise TypeError(f"kernel is {kernel!r}; expected a function of two points.")
    one = jax.ShapeDtypeStruct(points.shape[1:], points.dtype)
    value = eqx.filter_eval_shape(kernel, one, one)
    if getattr(value, "shape", None) != ():
        raise ValueError(
            f"kernel(x, y) has shape {getattr(value, 'shape', None)}; expected a scalar for two "
            f"points of shape {points.shape[1:]}."
        )
