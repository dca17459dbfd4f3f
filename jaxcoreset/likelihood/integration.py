"""The integral over a group's effect: log ∫ exp h(z) dz, for the log-density h of one group.

h is the log-likelihood of the group's rows plus the log-density of its effect z, on z's
unconstrained scale, given the shared parameters. Its mode is found by Newton's method, which is
damped where h is not concave. From there adaptive Gauss–Hermite quadrature (Liu and Pierce 1994,
Biometrika 81(3)) takes nodes at the mode, on the scale of the curvature; with one node it is
Laplace's approximation (Tierney and Kadane 1986, JASA 81(393)).

The functions are of one group and one draw of the shared parameters; `jax.vmap` makes them those of
many. Derivatives with respect to the shared parameters are exact up to the integral's own error:
the quadrature holds its nodes fixed, on which its true value does not depend. Laplace's
approximation follows the mode, by chord steps whose derivatives are right to the second order.
"""

import abc
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from jaxcoreset.data.utils import check_int

LogDensity = Callable[[Array], Array]

# Newton's method stops below this decrement, a hundredth of a standard deviation from the mode; the
# step that follows costs nothing, and squares the error.
_DECREMENT = 1e-4
_MAX_STEPS = 50
# Damping after a step that was refused, relative to the curvature, and its factor from there.
_FIRST_DAMPING, _DAMPING = 1.0, 4.0
# A pivot of the negative Hessian is at least this, relative to the largest entry of the diagonal.
_LEAST_PIVOT = 1e-6
# A rise that rounding may hide, relative to the log-density.
_ROUNDING = 4.0
# Degrees of freedom of the Student distribution that proposes effects.
STUDENT_DEGREES = 5.0
# Chord steps that a Laplace integral is differentiated through.
_CHORD_STEPS = 2
# Points at which a log-density is compared with a quadratic, near the mode, and how far others are,
# where it may have further modes, in standard deviations.
_NUM_STEPS_AWAY, _FAR = 3, (10, -10, 30, -30, 100, -100)
# The number of points of importance sampling; that of a wide sum, and the largest distance of these
# from the mode, in standard deviations.
_NUM_POINTS, _NUM_WIDE, _REACH = 1 << 12, 121, 300.0


class Integration(eqx.Module):
    """How a group's effect is integrated out, by values of its log-density around the mode.

    Attributes:
        takes_one_step: whether one step of Newton's method is enough, as for a quadratic.
    """

    takes_one_step: ClassVar[bool] = False

    def check(self, num_dims: int) -> None:
        """Raise a ValueError if an effect of this many dimensions cannot be integrated so."""

    def finer(self) -> "Integration | None":
        """The next more accurate way; None if there is none."""
        return None

    def log_integral(
        self, fixed: LogDensity, log_density: LogDensity, num_dims: int
    ) -> Float[Array, ""]:
        """The log of the integral.

        Args:
            fixed: the log-density with no derivatives with respect to the shared parameters.
            log_density: the same with them.
            num_dims: the number of dimensions of the effect, d.
        """
        search = newton_step if self.takes_one_step else find_mode
        return self.around(log_density, *jax.lax.stop_gradient(search(fixed, num_dims)))

    @abc.abstractmethod
    def around(
        self, log_density: LogDensity, mode: Float[Array, " d"], factor: Float[Array, "d d"]
    ) -> Float[Array, ""]:
        """The log of the integral, from the mode and the factor that `find_mode` returns."""


class AdaptiveQuadrature(Integration):
    """Adaptive Gauss–Hermite quadrature, for an effect of one or two dimensions per group.

    Args:
        num_nodes: the minimum number of nodes for each dimension: if the measured error matters,
            the builder uses more. Without `integration`, it starts with 5 for two dimensions.

    Raises:
        ValueError: if `num_nodes` is less than 1.
    """

    num_nodes: int = 9

    def __check_init__(self) -> None:
        check_int("num_nodes", self.num_nodes, 1)

    def check(self, num_dims: int) -> None:
        """See `Integration.check`."""
        if num_dims > 2:
            raise ValueError(
                f"integration is AdaptiveQuadrature, and a group's effects have {num_dims} "
                "dimensions; expected at most 2: use LaplaceIntegral()."
            )

    def around(self, log_density: LogDensity, mode: Array, factor: Array) -> Array:
        """See `Integration.around`."""
        nodes, log_weights = gauss_hermite(self.num_nodes, mode.size)
        points = mode + scaled(factor, nodes)
        if mode.size == 1:
            return _log_sum(jax.vmap(log_density)(points), log_weights, factor)
        # In one fused loop over all nodes XLA would compute again for each node what depends on
        # the rows only, which takes five times as long on a CPU.
        at_once = len(nodes) // self.num_nodes
        return _log_sum(jax.lax.map(log_density, points, batch_size=at_once), log_weights, factor)

    def finer(self) -> "AdaptiveQuadrature | None":
        """See `Integration.finer`."""
        return AdaptiveQuadrature(2 * self.num_nodes - 1) if self.num_nodes < 33 else None


class LaplaceIntegral(Integration):
    """Laplace's approximation of the integral, for effects of any number of dimensions."""

    def around(self, log_density: LogDensity, mode: Array, factor: Array) -> Array:
        """See `Integration.around`."""
        slope = jax.grad(log_density)
        for _ in range(_CHORD_STEPS):
            mode = mode + solve_upper(factor, solve_lower(factor, slope(mode)))
        _, _, curvature = _derivatives(log_density, mode)
        return _of_gaussian(log_density(mode), cholesky(curvature))


class GaussianIntegral(Integration):
    """The integral in closed form, of a log-density that is quadratic in the effect.

    The builder takes it where it finds that to be so, as with normal effects and observations.
    """

    takes_one_step: ClassVar[bool] = True

    def around(self, log_density: LogDensity, mode: Array, factor: Array) -> Array:
        """See `Integration.around`."""
        value, slope, curvature = _derivatives(log_density, mode)
        factor = cholesky(curvature)
        rest = jnp.sum(solve_lower(factor, slope) ** 2) / 2  # zero, but for its derivatives
        return _of_gaussian(value + rest, factor)


class DepartureFromGaussian(Integration):
    """In place of an integral, how far the log-density is from a quadratic, relative to itself."""

    takes_one_step: ClassVar[bool] = True

    def around(self, log_density: LogDensity, mode: Array, factor: Array) -> Array:
        """See `Integration.around`."""
        value, slope, _ = _derivatives(log_density, mode)
        near = np.random.default_rng(0).normal(size=(_NUM_STEPS_AWAY, mode.size))
        far = np.multiply.outer(_FAR, near[0] / np.linalg.norm(near[0]))
        steps = jnp.asarray(np.concatenate([near, far]), mode.dtype)
        away = scaled(factor, steps)
        expected = value + jnp.sum(slope * away, axis=1) - jnp.sum(steps**2, axis=1) / 2
        size = 1 + jnp.abs(value) + jnp.abs(expected)
        return jnp.max(jnp.abs(jax.vmap(log_density)(mode + away) - expected) / size)


class QuasiMonteCarlo(Integration):
    """Importance sampling from a Student distribution at the mode, to measure other integrals by.

    The points are those of a Halton sequence.
    """

    def around(self, log_density: LogDensity, mode: Array, factor: Array) -> Array:
        """See `Integration.around`."""
        steps, log_weights = _student_points(mode.size)
        return _log_sum(jax.vmap(log_density)(mode + scaled(factor, steps)), log_weights, factor)


class WideSum(Integration):
    """A sum over points far beyond the mode, of effects of one dimension, which misses few modes.

    The points are z + c sinh(t) for equidistant t, with the mode z and the standard deviation c of
    the curvature there; the trapezoidal rule in t converges fast for smooth log-densities.
    """

    def around(self, log_density: LogDensity, mode: Array, factor: Array) -> Array:
        """See `Integration.around`."""
        end = math.asinh(_REACH)
        t = np.linspace(-end, end, _NUM_WIDE)
        log_weights = np.log(np.cosh(t) * (t[1] - t[0]))
        values = jax.vmap(log_density)(mode + scaled(factor, np.sinh(t)[:, None]))
        return _log_sum(jnp.where(jnp.isnan(values), -jnp.inf, values), log_weights, factor)


def scaled(factor: Float[Array, "d d"], steps: ArrayLike) -> Float[Array, "k d"]:
    """L⁻ᵀ times each of some steps, which takes standard deviations to the effect's own scale."""
    return jax.vmap(lambda step: solve_upper(factor, step))(jnp.asarray(steps, factor.dtype))


def _log_sum(
    values: Float[Array, " k"], log_weights: Float[np.ndarray, " k"], factor: Float[Array, "d d"]
) -> Float[Array, ""]:
    """The log of a weighted sum over points at the mode, on the scale of the curvature LLᵀ."""
    values = values + jnp.asarray(log_weights, values.dtype)
    return jax.nn.logsumexp(values) - jnp.sum(jnp.log(jnp.diagonal(factor)))


def _of_gaussian(value: Float[Array, ""], factor: Float[Array, "d d"]) -> Float[Array, ""]:
    """The log of the integral of a Gaussian, from its log-density and curvature at the mode."""
    half_log_det = jnp.sum(jnp.log(jnp.diagonal(factor)))
    return value + len(factor) / 2 * math.log(2 * math.pi) - half_log_det


def default_integration(num_dims: int) -> Integration:
    """Quadrature for one or two dimensions, Laplace's approximation beyond."""
    if num_dims > 2:
        return LaplaceIntegral()
    # With two dimensions, the number of nodes is squared.
    return AdaptiveQuadrature() if num_dims == 1 else AdaptiveQuadrature(num_nodes=5)


@functools.cache
def gauss_hermite(
    num_nodes: int, num_dims: int
) -> tuple[Float[np.ndarray, "k d"], Float[np.ndarray, " k"]]:
    """Nodes t and log-weights a with log ∫ exp h(t) dt ≈ log Σ exp(a_k + h(t_k)), a tensor product.

    It is exact for the density of a standard normal times a polynomial.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    log_weights = np.log(weights) + nodes**2 / 2
    points = np.array(list(itertools.product(nodes, repeat=num_dims)))
    sums = [sum(some) for some in itertools.product(log_weights, repeat=num_dims)]
    return points.reshape(-1, num_dims), np.array(sums)


@functools.cache
def _student_points(num_dims: int) -> tuple[Float[np.ndarray, "k d"], Float[np.ndarray, " k"]]:
    """Points of a Student distribution, and the logs of one over their number and density."""
    from scipy.stats import chi2, multivariate_t, norm, qmc

    uniform = qmc.Halton(num_dims + 1, scramble=False).random(_NUM_POINTS + 1)[1:]
    uniform = np.clip(uniform, 1e-12, 1 - 1e-12)
    scale = np.sqrt(STUDENT_DEGREES / chi2.ppf(uniform[:, :1], STUDENT_DEGREES))
    points = norm.ppf(uniform[:, 1:]) * scale
    student: Any = multivariate_t
    log_density = student.logpdf(points, shape=np.eye(num_dims), df=STUDENT_DEGREES)
    return points, -np.log(_NUM_POINTS) - log_density


def newton_step(
    log_density: LogDensity, num_dims: int
) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """The point that one step of Newton's method from zero reaches, and the factor as `find_mode`.

    It is the mode of a quadratic.
    """
    _, slope, curvature = _derivatives(log_density, jnp.zeros(num_dims))
    factor = cholesky(curvature)
    return solve_upper(factor, solve_lower(factor, slope)), factor


def find_mode(
    log_density: LogDensity, num_dims: int
) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """The mode of a log-density, and the Cholesky factor L of its negative Hessian LLᵀ there.

    Newton's method from zero. A step that does not raise the log-density is taken again with
    damping. Where the Hessian is not negative definite its pivots are replaced by positive ones.
    """
    start = jnp.zeros(num_dims)
    eps = jnp.finfo(start.dtype).eps

    def step_of(slope: Array, curvature: Array, damping: Array) -> tuple[Array, Array]:
        scale = jnp.maximum(jnp.abs(jnp.diagonal(curvature)), jnp.finfo(start.dtype).tiny)
        factor = cholesky(curvature + damping * jnp.diag(scale))
        half = solve_lower(factor, slope)
        return solve_upper(factor, half), jnp.sum(half**2)

    def move(state: _Newton) -> _Newton:
        moved = state.point + state.step
        after = moved, *_derivatives(log_density, moved)
        before = state.point, state.value, state.slope, state.curvature
        rounding = _ROUNDING * eps * jnp.abs(state.value)
        is_better = jnp.isfinite(after[1]) & ~(after[1] < state.value - rounding)
        is_better = is_better | ~jnp.isfinite(state.value)
        point, value, slope, curvature = (
            jnp.where(is_better, new, old) for new, old in zip(after, before, strict=True)
        )
        more = jnp.maximum(_FIRST_DAMPING, _DAMPING * state.damping)
        less = jnp.where(state.damping > _FIRST_DAMPING, state.damping / _DAMPING**2, 0)
        damping, num_steps = jnp.where(is_better, less, more), state.num_steps + 1
        step, decrement = step_of(slope, curvature, damping)
        # `vmap` evaluates a loop's condition twice: for the whole batch, and in the body for the
        # elements that have ended. XLA may round the two differently, and then the loop never ends.
        # So the condition is computed here, and both read it.
        is_left = (num_steps < _MAX_STEPS) & ((decrement > _DECREMENT) | (damping > 0))
        at = point, value, slope, curvature
        return _Newton(*at, step, decrement, damping, num_steps, is_left)

    # The first step is zero, so that the derivatives are in the program once: they are most of it.
    zero = jnp.zeros((), start.dtype)
    first = _Newton(
        point=start,
        value=zero - jnp.inf,
        slope=start,
        curvature=jnp.zeros((num_dims, num_dims), start.dtype),
        step=start,
        decrement=zero,
        damping=zero,
        num_steps=jnp.full((), -1, jnp.int32),
        is_left=jnp.full((), True),
    )
    last = jax.lax.while_loop(lambda state: state.is_left, move, first)
    # The last step costs no evaluation; far from the mode it would be a leap.
    is_near = (last.decrement <= 10 * _DECREMENT) & (last.damping == 0)
    return last.point + jnp.where(is_near, last.step, 0), cholesky(last.curvature)


class _Newton(NamedTuple):
    """A point, the derivatives of the log-density there, and the next step from it.

    `num_steps` is the number of steps so far, and `is_left` says whether the next one is to be
    taken.
    """

    point: Float[Array, " d"]
    value: Float[Array, ""]
    slope: Float[Array, " d"]
    curvature: Float[Array, "d d"]
    step: Float[Array, " d"]
    decrement: Float[Array, ""]
    damping: Float[Array, ""]
    num_steps: Int[Array, ""]
    is_left: Bool[Array, ""]


def _derivatives(log_density: LogDensity, point: Float[Array, " d"]) -> tuple[Array, Array, Array]:
    """The value, the gradient and the negative Hessian, in forward mode."""
    basis = [jnp.asarray(one) for one in np.eye(point.shape[0], dtype=point.dtype)]

    def slope_along(tangent: Array) -> Callable[[Array], tuple[Array, Array]]:
        def slope(at: Array) -> tuple[Array, Array]:
            value, slope = jax.jvp(log_density, (at,), (tangent,))
            return slope, value

        return slope

    # The Hessian is symmetric, so half of it is in the program.
    found = [
        [jax.jvp(slope_along(one), (point,), (other,), has_aux=True) for other in basis[: i + 1]]
        for i, one in enumerate(basis)
    ]
    num, slopes = range(len(basis)), jnp.stack([row[0][0] for row in found])
    bends = [[found[max(i, j)][min(i, j)][1] for j in num] for i in num]
    return found[0][0][2], slopes, -jnp.stack([jnp.stack(row) for row in bends])


def cholesky(matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """The lower Cholesky factor, with pivots that are too small or negative replaced.

    It is written out, since a library's factorisation of many small matrices takes far longer.
    """
    num = matrix.shape[0]
    largest = jnp.max(jnp.abs(jnp.diagonal(matrix)))
    least = jnp.maximum(_LEAST_PIVOT * largest, jnp.finfo(matrix.dtype).tiny ** 0.5)
    factor: list[list[Array]] = [[jnp.zeros((), matrix.dtype)] * num for _ in range(num)]
    for j in range(num):
        pivot = matrix[j, j] - sum(factor[j][k] ** 2 for k in range(j))
        pivot = jnp.sqrt(jnp.maximum(jnp.abs(pivot), least))
        factor[j][j] = pivot
        for i in range(j + 1, num):
            rest = matrix[i, j] - sum(factor[i][k] * factor[j][k] for k in range(j))
            factor[i][j] = rest / pivot
    return jnp.stack([jnp.stack(row) for row in factor])


def solve_lower(factor: Float[Array, "d d"], vector: Float[Array, " d"]) -> Float[Array, " d"]:
    """L⁻¹v for a lower triangular L."""
    solved: list[Array] = []
    for i in range(factor.shape[0]):
        rest = vector[i] - sum(factor[i, k] * solved[k] for k in range(i))
        solved.append(rest / factor[i, i])
    return jnp.stack(solved)


def solve_upper(factor: Float[Array, "d d"], vector: Float[Array, " d"]) -> Float[Array, " d"]:
    """L⁻ᵀv for a lower triangular L."""
    num, solved = factor.shape[0], {}
    for i in reversed(range(num)):
        rest = vector[i] - sum(factor[k, i] * solved[k] for k in range(i + 1, num))
        solved[i] = rest / factor[i, i]
    return jnp.stack([solved[i] for i in range(num)])
