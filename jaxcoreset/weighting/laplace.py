"""The Laplace approximation of a model's posterior, on all rows or on weighted rows, streamed.

The negative log-posterior is −Σ_i w_i log p(y_i | θ) − log p(θ) on the unconstrained parameters θ,
with the Jacobian of the transformation in the prior. Its mode and its Hessian there are found by
SciPy's trust-region Newton method (``trust-exact``; Conn, Gould and Toint 2000, chapter 7) from
sums over chunks of rows. Log-likelihoods are added in float64 on the host: in a sum over a million
rows float32 cannot resolve a nat.
"""

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxcoreset.data.arrays import power_of_two
from jaxcoreset.data.compiling import quick_jit
from jaxcoreset.data.dtypes import as_floats, default_float
from jaxcoreset.data.rows import Rows
from jaxcoreset.data.utils import host_generator
from jaxcoreset.likelihood.expansion import Expansion, Terms, flat_point
from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params
from jaxcoreset.likelihood.precision import runs_in_float64
from jaxcoreset.likelihood.program import with_program
from jaxcoreset.likelihood.trace import one_at_a_time
from jaxcoreset.weighting.errors import UnusableWeightingError
from jaxcoreset.weighting.log_posterior import FlatModel, LogPosterior, typical_rows

# Newton decrements in nats, twice what a full Newton step would still gain: below the first the
# search on part of the rows stops, below the second the search on all rows.
_WARM_START_DECREMENT = 1e-2
_DECREMENT = 1e-6
# Float32 noise in the sum over n rows, below which steps cannot be compared.
_DECREMENT_PER_ROW = 1e-9
# A point is accepted as the mode up to this decrement, since the last step costs no pass.
_ACCEPTED_DECREMENT = 1e-2
# The default maximum number of Newton steps is this number over n, within these limits.
_STEPS_TIMES_ROWS, _MAX_STEPS = 100_000_000, (50, 1000)
# Of a search in the model's own units. SciPy's default, 1,000, takes too many steps to a far mode.
_LONGEST_STEP = 1e9
# Where a derivative is not finite at the starting point, others are tried: how many, and how far
# from zero they are in each coordinate.
_NUM_STARTS, _START_RADIUS = 30, 2.0
# The least number of normal variates that are drawn at once.
_FEWEST_NORMALS = 1 << 14
# A scaled Hessian with a larger ratio of eigenvalues is flat to the precision that it has.
_LARGEST_CONDITION = {"float32": 1e7, "float64": 1e13}


class LaplaceApproximation:
    """A Gaussian on the unconstrained parameters, at the posterior's mode.

    Attributes:
        mode: float64 array of shape (D,), the flat parameters.
        covariance: float64 array of shape (D, D), the inverse Hessian at the mode.
        names: the D parameters' names, such as "beta[3]".
        num_passes: the number of passes over all the rows that the search took.
        expansion: the second-order expansion of the log-likelihood there; None for a Gaussian that
            was not found by `laplace_approximation`.
        constrained: the sites whose values in the model are not these parameters, such as a scale;
            None if they are not known.
    """

    # Pickles of earlier versions do not have it.
    constrained: tuple[str, ...] | None = None

    def __init__(
        self,
        mode: Float[np.ndarray, " d"],
        covariance: Float[np.ndarray, "d d"],
        names: list[str],
        unravel: Callable,
        num_passes: int = 0,
        expansion: Expansion | None = None,
        constrained: tuple[str, ...] | None = None,
    ):
        self.mode, self.covariance, self.names = mode, covariance, names
        self.num_passes, self._unravel = num_passes, unravel
        self.expansion, self.constrained = expansion, constrained

    @property
    def sd(self) -> Float[np.ndarray, " d"]:
        """The D marginal standard deviations."""
        return np.sqrt(np.diag(self.covariance))

    def params(self) -> Params:
        """The mode as a dictionary of unconstrained parameters."""
        return self._unravel(as_floats(self.mode))

    def draws(self, key: PRNGKeyArray, num: int) -> Params:
        """`num` draws, a dictionary of unconstrained parameters with that leading axis."""
        # One shape for many numbers of draws and parameters, since XLA compiles JAX's generator for
        # each shape. The first numbers are the same for all of them.
        size = num * self.mode.size
        padded = power_of_two(size, _FEWEST_NORMALS)
        normal = np.asarray(_normals(key, padded), np.float64)[:size]
        flat = self.mode + normal.reshape(num, -1) @ np.linalg.cholesky(self.covariance).T
        all_of = getattr(self._unravel, "all", jax.vmap(self._unravel))
        return all_of(as_floats(flat))


@functools.partial(quick_jit, static_argnums=1)
def _normals(key: PRNGKeyArray, num: int) -> Float[Array, " num"]:
    return jax.random.normal(key, (num,))


class LaplaceFitter:
    """Laplace approximations of a model's posterior, compiled once for any weights of its rows."""

    def __init__(self, likelihood: ModelLikelihood):
        self._unravel = likelihood.unravel
        self.model = FlatModel(likelihood.program, self._unravel)
        self.likelihood = likelihood
        self.names = parameter_names(likelihood.init_params)

    def at(self, rows: Rows, params: Params) -> float:
        """The negative log-posterior of some rows, by one pass, which computes derivatives too."""
        return LogPosterior(self.model, rows)(flat_point(params))[0]

    def expand(
        self, position: Float[np.ndarray, " d"], on_pass: Callable[[], Any] = lambda: None
    ) -> Expansion | None:
        """The expansion of all rows at a point; None if its posterior would not be proper."""
        objective = LogPosterior(self.model, self.likelihood.rows, on_pass=on_pass)
        found = self._expansion(objective, position)
        is_proper = np.isfinite(found.precision).all() and np.isfinite(found.gradient).all()
        return found if is_proper and _is_definite(found.precision) else None

    def terms_at(self, position: Float[np.ndarray, " d"]) -> Terms:
        """The log-likelihood of all rows at a point, and its derivatives, by one pass."""
        found = self._expansion(LogPosterior(self.model, self.likelihood.rows), position)
        return Terms(found.value, found.gradient, found.hessian)

    def _expansion(self, objective: "LogPosterior", position: np.ndarray) -> Expansion:
        prior = self.model.prior(jnp.asarray(position, default_float()))
        energy, gradient, precision = objective(position)
        value, slope, bend = (np.asarray(part, np.float64) for part in prior)
        return Expansion(
            position, -energy - float(value), -gradient - slope, -precision - bend, precision
        )

    def __call__(
        self,
        *,
        weights: ArrayLike | None = None,
        start: Params | None = None,
        key: PRNGKeyArray | None = None,
        max_iters: int | None = None,
        on_pass: Callable[[], Any] = lambda: None,
    ) -> LaplaceApproximation:
        """Fit; arguments and errors as in `laplace_approximation`."""
        likelihood, names = self.likelihood, self.names
        position = flat_point(likelihood.init_params if start is None else start)
        n, folding = likelihood.num_data, likelihood.rows.folding
        evaluated = n if folding is None or weights is not None else folding.first.size
        most = max_steps(evaluated, position.size) if max_iters is None else max_iters
        chosen = warm_start_indices(n, key) if start is None and weights is None else None
        if chosen is not None and chosen.size < evaluated:
            part = LogPosterior(
                self.model,
                Rows(likelihood.rows.select(chosen)),
                numbers=chosen,
                factor=n / chosen.size,
                typical=chosen.size,
            )
            position = _find_mode(part, position, _WARM_START_DECREMENT, most)
        noise = _DECREMENT_PER_ROW * likelihood.rows.num_entries
        decrement = float(np.clip(noise, _DECREMENT, _WARM_START_DECREMENT))
        counts = None if weights is None else np.asarray(weights)
        full = LogPosterior(self.model, likelihood.rows, counts, on_pass)
        position = _find_mode(full, position, decrement, most)
        _, gradient, hessian = full(position)
        covariance = _inverse_hessian(hessian, names)
        decrement = gradient @ covariance @ gradient
        if not decrement <= _ACCEPTED_DECREMENT:
            worst = np.argsort(-np.abs(covariance @ gradient) / np.sqrt(np.diag(covariance)))[:3]
            at_limit = full.num_passes >= most
            ended = f"at its limit of {most}" if at_limit else f"after {full.num_passes}"
            advice = (
                f"Raise Laplace(max_iters={2 * most}), rescale these parameters, give a tighter "
                "prior"
                if at_limit
                else "The log-likelihood may have corners (a Laplace distribution, an absolute "
                "value): rescale these parameters"
            )
            raise UnusableWeightingError(
                f"the posterior's mode was not reached; the search ended {ended} passes, and a "
                f"Newton step would still gain {decrement / 2:.3g} nats, mostly along "
                f"{', '.join(names[i] for i in worst)}. {advice}, use a weighting that needs no "
                "mode, SubsampleNUTS(), or pass draws of your own: weighting=Draws(samples).",
                f"the posterior's mode was not reached in {full.num_passes} passes",
            )
        # The last Newton step costs no pass, and squares the mode's error.
        mode = position - covariance @ gradient
        passes, expansion = full.num_passes, self._expansion(full, position)
        known = passes, expansion, likelihood.constrained_sites
        return LaplaceApproximation(mode, covariance, names, self._unravel, *known)


def max_steps(num_data: int, num_params: int) -> int:
    """The default maximum number of Newton steps: more where a step takes less time."""
    return int(np.clip(_STEPS_TIMES_ROWS // (num_data + num_params**2), *_MAX_STEPS))


def warm_start_indices(num_data: int, key: PRNGKeyArray | None) -> Int[np.ndarray, " m"] | None:
    """The rows on which the mode is first searched; None if n is small, or without a key."""
    num = typical_rows(num_data)
    if key is None or num == num_data:
        return None
    return np.sort(host_generator(key).choice(num_data, num, replace=False))


@one_at_a_time
def laplace_approximation(
    likelihood: ModelLikelihood,
    *,
    weights: ArrayLike | None = None,
    start: Params | None = None,
    key: PRNGKeyArray | None = None,
    max_iters: int | None = None,
    on_pass: Callable[[], Any] = lambda: None,
) -> LaplaceApproximation:
    """The Laplace approximation of the posterior of `likelihood`'s data.

    Args:
        likelihood: the model's likelihood and data.
        weights: shape (n,), how often each row counts; once each by default.
        start: unconstrained parameters to start from.
        key: a JAX random key. With a key, without `start` and `weights`, and if n is large, the
            mode is first searched on a random part of the rows.
        max_iters: the maximum number of Newton steps on all the rows. The default is 50 for two
            million rows or more, or 1,400 parameters, and up to 1,000 for fewer, since a step then
            takes less time.
        on_pass: called after every pass over all the rows.

    Raises:
        ValueError: if the mode is not reached or the Hessian there is not positive definite; the
            message names the directions. In float32 rounding may be the reason; the message then
            suggests float64, which `CoresetBuilder` switches to by itself.
    """
    # What the model uses may have changed since the likelihood was made.
    fitter = LaplaceFitter(with_program(likelihood))
    try:
        return fitter(weights=weights, start=start, key=key, max_iters=max_iters, on_pass=on_pass)
    except UnusableWeightingError as error:
        if default_float() == np.float64 or not runs_in_float64(likelihood):
            raise
        advice = (
            "This may be due to rounding in float32: make the likelihood and call this function "
            "within jax.enable_x64(True)."
        )
        raise UnusableWeightingError(f"{error} {advice}", error.reason) from error


def parameter_names(params: Mapping[str, Any]) -> list[str]:
    """The names of the D numbers in a dictionary of parameters, in the order of `ravel_pytree`."""
    return [
        f"{site}[{','.join(map(str, index))}]" if index else site
        for site in sorted(params)
        for index in np.ndindex(np.shape(params[site]))
    ]


def _find_mode(
    objective: LogPosterior, start: np.ndarray, decrement: float, max_iters: int
) -> np.ndarray:
    """Minimise until the Newton decrement is at most `decrement` nats, or as far as possible."""
    start = _first_finite(objective, start)
    reached = _searched(objective, start, decrement, max_iters)
    most = max_iters - objective.num_passes
    if _left(objective, reached) > max(decrement, _ACCEPTED_DECREMENT) and most > 0:
        # Parameters of very different scales: a standard deviation becomes the unit of each.
        curvature = np.abs(np.diag(objective(reached)[2]))
        if np.isfinite(curvature).all() and (curvature > 0).all():
            return _searched(objective, reached, decrement, most, 1 / np.sqrt(curvature))
    return reached


def _searched(
    objective: LogPosterior,
    start: np.ndarray,
    decrement: float,
    max_iters: int,
    units: np.ndarray | None = None,
) -> np.ndarray:
    """The point that a trust-region search ends at, with these units of the parameters.

    Without units, the first step is no longer than 1. With them, it may be as long as Newton's.
    """
    from scipy.optimize import minimize

    unit = np.ones(start.size) if units is None else units
    reached, tried = start, start

    def terms(x: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        nonlocal tried
        tried = unit * x
        value, gradient, hessian = _or_infinite(*objective(tried))
        return value, unit * gradient, np.outer(unit, unit) * hessian

    def done(intermediate_result: Any) -> None:
        nonlocal reached
        reached = unit * np.asarray(intermediate_result.x)
        # The search refuses a step whose gain rounding hides, even one that ends at the mode.
        rounding = np.finfo(default_float()).eps * abs(intermediate_result.fun)
        if objective(tried)[0] <= intermediate_result.fun + rounding:
            reached = min(reached, tried, key=lambda at: _left(objective, at))
        if _left(objective, reached) <= decrement:
            raise StopIteration

    options: dict[str, Any] = {"maxiter": max_iters, "gtol": 0.0, "max_trust_radius": _LONGEST_STEP}
    if units is not None:
        _, gradient, hessian = terms(start / unit)
        radius = max(1.0, float(np.linalg.norm(np.linalg.lstsq(hessian, gradient)[0])))
        options |= {"initial_trust_radius": radius, "max_trust_radius": 1e3 * radius}
    if _left(objective, start) > decrement:
        minimize(
            lambda x: terms(x)[:2],
            start / unit,
            jac=True,
            hess=lambda x: terms(x)[2],
            method="trust-exact",
            callback=done,
            options=options,
        )
    return reached


def _left(objective: LogPosterior, position: np.ndarray) -> float:
    """The Newton decrement at a point."""
    return _decrement(*objective(position)[1:])


def _or_infinite(
    value: float, gradient: np.ndarray, hessian: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """The same, or values that make the trust region shrink if one of them is not finite."""
    if all(np.isfinite(term).all() for term in (value, gradient, hessian)):
        return value, gradient, hessian
    return np.inf, np.zeros_like(gradient), np.eye(gradient.size)


def _first_finite(objective: LogPosterior, start: np.ndarray) -> np.ndarray:
    """The start, or one nearer to the origin, or a random one, where derivatives are finite."""
    generator, radius = np.random.default_rng(0), _START_RADIUS
    shrunk = (shrink * start for shrink in (1.0, 0.5, 0.1, 0.0))
    random = (generator.uniform(-radius, radius, start.size) for _ in range(_NUM_STARTS))
    for position in itertools.chain(shrunk, random):
        if all(np.isfinite(term).all() for term in objective(position)):
            return position
    count, shown = objective.bad_rows
    where = f" The log-likelihood is not finite in {count} of {objective.rows.num_rows} rows, the "
    raise UnusableWeightingError(
        "the log-posterior or its derivatives are not finite at the model's starting point, nor at "
        f"{_NUM_STARTS} others; check the data for extreme values, rescale them, or pass draws: "
        "weighting=Draws(samples)." + (f"{where}first of them {shown}." if count else ""),
        "the log-posterior or its derivatives are not finite at any of the starting points",
    )


def _is_definite(matrix: np.ndarray) -> bool:
    """True if a scaled matrix is positive definite, and not flat to float32's precision."""
    diagonal = np.diag(matrix)
    if not (diagonal > 0).all():
        return False
    values = np.linalg.eigvalsh(matrix / np.sqrt(np.outer(diagonal, diagonal)))
    return bool(values[0] * _LARGEST_CONDITION[str(np.dtype(default_float()))] > values[-1])


def _decrement(gradient: np.ndarray, hessian: np.ndarray) -> float:
    """gᵀH⁻¹g, twice the predicted gain of a Newton step in nats; ∞ if H is not definite."""
    try:
        factor = np.linalg.cholesky(hessian)
    except np.linalg.LinAlgError:
        return np.inf
    return float(np.sum(np.linalg.solve(factor, gradient) ** 2))


def _inverse_hessian(hessian: np.ndarray, names: list[str]) -> np.ndarray:
    """The inverse of a positive definite Hessian, or an error that names the flat directions."""
    scale = 1 / np.sqrt(np.maximum(np.abs(np.diag(hessian)), np.finfo(np.float64).tiny))
    values, vectors = np.linalg.eigh(hessian * np.outer(scale, scale))
    if not values[0] * _LARGEST_CONDITION[str(np.dtype(default_float()))] > values[-1]:
        worst = ", ".join(names[i] for i in np.argsort(-np.abs(vectors[:, 0] * scale))[:3])
        raise UnusableWeightingError(
            "the Hessian of the negative log-posterior is not positive definite at the mode: it "
            f"is flat or falling along {worst} (smallest eigenvalue "
            f"{values[0]:.3g} of the scaled matrix). If the posterior is proper but has no mode, "
            "like a hierarchy whose scale may be near zero, use weighting=SubsampleNUTS(), or pass "
            "draws: weighting=Draws(samples). If these parameters are not identified, give them a "
            "proper prior or drop one of them.",
            f"the posterior has no mode, it is flat or falling along {worst}",
        )
    return (vectors / values) @ vectors.T * np.outer(scale, scale)
