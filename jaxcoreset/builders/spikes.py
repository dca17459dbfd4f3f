"""Search for spikes: modes of a coreset's posterior that the full posterior does not have.

Where a component of a mixture can shrink onto one datum, the density of weighted rows is unbounded
or nearly so at each heavy row, while in the full posterior a single row weighs little. Chains that
start near the full posterior never see such a spike, and chains from NumPyro's default start may
end in it. So the weighted density is maximised from starting points that are spread as NumPyro's
are, and what is found is compared with the log-likelihood of all rows.

With a proxy the remainders of a few heavy rows may have a mode where no draw of π̂ was. The search
for it starts around the first mode.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcoreset.data.arrays import padded_rows
from jaxcoreset.data.compiling import quick_jit
from jaxcoreset.data.dtypes import default_float
from jaxcoreset.likelihood.expansion import Proxy, flat_point, terms_of_rows
from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params
from jaxcoreset.likelihood.verification import other_rows
from jaxcoreset.solvers.numerics import HIGHEST

# The number of starting points, and how far they are from zero, as NumPyro's `init_to_uniform`.
_NUM_STARTS, _RADIUS = 8, 2.0
# The weighted rows are padded to a power of two that is not smaller than this.
_FEWEST_ROWS = 32
# The number of starting points in models with many parameters, and how many are many. L-BFGS needs
# no Hessian, whose program takes longer to compile than all the searches take.
_FEWER_STARTS, _MANY_PARAMS = 4, 100
_MAX_STEPS = 300
# Points on a line, along which a log-likelihood that is concave everywhere has no spike; the second
# difference that counts as rounding, in units of float32's rounding of the values.
_NUM_POINTS, _ROUNDING = 9, 50.0
# A mode is a spike if its weighted density is higher by this many nats than the full density, both
# relative to a draw of π̂.
_MIN_EXCESS = 10.0
# With a proxy there may be a second mode in the bulk, looked for from these Mahalanobis radii
# on. A smaller excess counts, unless the density is lower than the first mode by more than this.
_RADII_WITH_PROXY = 3.0, 6.0
_MIN_EXCESS_WITH_PROXY, _NEGLIGIBLE_MODE = 2.0, 6.0
# Modes at most this many standard deviations apart are one.
_SAME_MODE = 0.1


def find_spike(
    likelihood: ModelLikelihood,
    data: tuple,
    weights: Float[np.ndarray, " k"],
    draw: Params,
    proxy: Proxy | None = None,
) -> float | None:
    """By how many nats the weighted density is too high at the worst spike; None if none is found.

    Args:
        likelihood: the model's likelihood and data.
        data: the rows of the coreset.
        weights: their weights.
        draw: unconstrained parameters where the full posterior has its mass.
        proxy: the approximation of all rows that these rows correct, if there is one.
    """
    reference, num_params = likelihood.reference, likelihood.num_params
    if reference is None or not len(weights):
        return None
    data, weights = padded_rows(data, weights, _FEWEST_ROWS)
    centre = flat_point(draw).astype(default_float())
    num = _FEWER_STARTS if num_params > _MANY_PARAMS else _NUM_STARTS
    starts = _starts(num, centre, proxy)
    unravel = likelihood.unravel

    def values(flat: np.ndarray, rows: tuple) -> np.ndarray:
        by_site = reference.evaluate(unravel(flat), rows)[0]
        return np.sum([np.asarray(x, np.float64) for x in by_site.values()], axis=0)

    lines = (np.linspace(centre, start, _NUM_POINTS) for start in starts[: len(starts) // 2])
    concave = (_is_concave(np.stack([values(at, data) for at in line])) for line in lines)
    # The remainder of a concave function need not be concave.
    if proxy is None and all(concave):
        return None
    points = np.vstack([starts, centre])
    modes, energies, converged = _modes(likelihood, data, weights, points, proxy)
    # A search that has not converged may be on its way to an unbounded density.
    is_mode = converged | (energies < energies[-1] - _MIN_EXCESS)
    if proxy is not None:
        is_mode &= energies < energies[-1] + _NEGLIGIBLE_MODE
    found = modes[is_mode & np.isfinite(energies) & np.isfinite(modes).all(axis=1)]
    if proxy is not None and _is_one_mode(np.vstack([found, modes[-1:]]), proxy):
        return None
    rows = other_rows(likelihood, reference)
    factor = likelihood.num_data / rows[0].shape[0]
    terms = None
    if proxy is not None:
        counts = np.full(rows[0].shape[0], factor)
        terms = terms_of_rows(likelihood, rows, counts, np.asarray(proxy.center))

    def excess(flat: np.ndarray) -> float:
        """The weighted log-likelihood less that of all rows, estimated by some."""
        weighted, whole = weights @ values(flat, data), factor * values(flat, rows).sum()
        if proxy is not None and terms is not None:
            weighted = proxy.log_likelihood(jnp.asarray(flat), jnp.asarray(weighted, flat.dtype))
            # The expansions of all rows are known, so that only remainders are estimated.
            delta = np.asarray(flat - proxy.center, np.float64)
            whole -= terms.at(delta)
            whole += proxy.expansion.at(np.asarray(flat, np.float64)[None])[0]
        return float(weighted - whole)

    if not len(found):
        return None
    worst = max(map(excess, found)) - excess(centre)
    least = _MIN_EXCESS if proxy is None else _MIN_EXCESS_WITH_PROXY
    return worst if worst > least else None


def _is_one_mode(modes: Float[np.ndarray, "m d"], proxy: Proxy) -> bool:
    """True if modes are all where the last one is, and that is near the proxy's center."""
    factor = np.linalg.cholesky(np.asarray(proxy.precision, np.float64))
    apart = np.linalg.norm((modes - modes[-1]) @ factor, axis=1)
    away = np.linalg.norm((modes[-1] - np.asarray(proxy.center)) @ factor)
    return bool(apart.max() < _SAME_MODE and away < np.sqrt(modes.shape[1]))


def _starts(num: int, centre: np.ndarray, proxy: Proxy | None) -> np.ndarray:
    """Starting points as spread as NumPyro's; with a proxy, some standard deviations from a mode.

    Beyond the radius at which the rows fade out there is no mode but the proxy's.
    """
    generator = np.random.default_rng(0)
    if proxy is None:
        return generator.uniform(-_RADIUS, _RADIUS, (num, centre.size)).astype(centre.dtype)
    directions = generator.normal(size=(2 * num, centre.size))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    radii = np.linspace(*_RADII_WITH_PROXY, 2 * num)[:, None]
    factor = np.linalg.cholesky(np.asarray(proxy.precision, np.float64))
    steps = np.linalg.solve(factor.T, (radii * directions).T).T
    return (centre + steps).astype(centre.dtype)


def _is_concave(values: Float[np.ndarray, "points k"]) -> bool:
    """True if no row's log-likelihood is convex anywhere along a line."""
    rounding = _ROUNDING * np.finfo(np.float32).eps * np.abs(values).max(axis=0)
    return bool((np.diff(values, 2, axis=0) <= rounding).all())


def _modes(
    likelihood: ModelLikelihood,
    data: tuple,
    weights: np.ndarray,
    starts: Float[np.ndarray, "s d"],
    proxy: Proxy | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Modes of the weighted density from starting points, their energies, and if they converged."""
    from scipy.optimize import minimize

    dtype = starts.dtype
    arrays = jax.tree.map(lambda x: np.asarray(x, dtype), (weights, proxy))
    given = data, *jax.device_put(arrays)

    def energy(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = _energy_and_gradient(likelihood.program, np.asarray(flat, dtype), *given)
        value, slope = float(value), np.asarray(slope, np.float64)
        # A line search turns back from where the density is not finite.
        is_finite = np.isfinite(value) and np.isfinite(slope).all()
        return (value, slope) if is_finite else (np.inf, np.zeros_like(slope))

    options = {"maxiter": _MAX_STEPS}
    found = [
        minimize(energy, start.astype(np.float64), jac=True, method="L-BFGS-B", options=options)
        for start in starts
    ]
    return (
        np.stack([one.x for one in found]).astype(dtype),
        np.array([one.fun for one in found]),
        np.array([one.success for one in found]),
    )


def _energy(
    program: ModelLikelihood, flat: Array, data: tuple, weights: Array, proxy: Proxy | None
) -> Float[Array, ""]:
    """The negative log of the weighted density."""
    params: Mapping[str, Any] = program.unravel(flat)
    terms = program.log_likelihood(params, data)
    total = jnp.vdot(weights, terms, precision=HIGHEST)
    total = total if proxy is None else proxy.log_likelihood(flat, total)
    return -total - program.log_prior(params)


_energy_and_gradient = quick_jit(jax.value_and_grad(_energy, argnums=1), static_argnums=0)
