"""Part `planes-truth`: NUTS on all flights with the effects of all aircraft.

The posterior is that of `late_by_plane`, 4,058 dimensions, written by hand: rows in float32, their
sums over an aircraft taken relative to the starting point, and the sum over aircraft in float64.
NUTS moves in coordinates in which the posterior is nearly a standard normal: the shared parameters
are whitened, effects are moved by what the shared parameters explain, and they are centred in part,
by how much their own rows say. None of this changes the posterior.

``python -m benchmarks.groups planes-truth`` keeps the draws of its chains in --draws; the result is
the summary of all chains that are there.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer.hmc import hmc

from benchmarks import common
from jaxcoreset.command.flights import load_planes

RESULT = Path(__file__).parents[1] / "results" / "planes_truth.json"
_CHUNK = 50
# The posterior is nearly a standard normal, so that a trajectory is short.
_MAX_DEPTH = 6


class Planes(NamedTuple):
    """The flights, sorted by aircraft."""

    features: Array
    plane: Array
    late: Array


class Scales(NamedTuple):
    """A point near the mode, and the scales of the posterior there."""

    beta: Array
    log_sd: Array
    effect: Array
    cholesky: Array
    log_sd_scale: Array
    effect_sd: Array
    centering: Array
    slopes: Array


def sorted_planes() -> tuple[Planes, list[str], list[str]]:
    """The flights in the order of their aircraft, the features' names and the tail numbers."""
    features, plane, late, names, codes = load_planes()
    order = np.argsort(plane, kind="stable")
    data = Planes(
        jnp.asarray(features[order], jnp.float32),
        jnp.asarray(plane[order]),
        jnp.asarray(late[order], jnp.float32),
    )
    return data, names, codes


def _sums(values: Array, data: Planes, num_planes: int) -> Array:
    return jax.ops.segment_sum(values, data.plane, num_segments=num_planes, indices_are_sorted=True)


def scales(data: Planes, num_planes: int, num_steps: int = 40) -> Scales:
    """Penalised quasi-likelihood: Newton steps, and an update of the sd in between."""
    beta, effect, sd = jnp.zeros(data.features.shape[1]), jnp.zeros(num_planes), jnp.array(0.3)

    @jax.jit
    def step(beta: Array, effect: Array, sd: Array) -> tuple:
        logits = data.features @ beta.astype(jnp.float32) + effect.astype(jnp.float32)[data.plane]
        rate = jax.nn.sigmoid(logits)
        bend = rate * (1 - rate)
        slope = data.features.T @ (data.late - rate) - beta
        own_slope = _sums(data.late - rate, data, num_planes) - effect / sd**2
        own_bend = _sums(bend, data, num_planes) + 1 / sd**2
        cross = _sums(bend[:, None] * data.features, data, num_planes)
        slopes = cross / own_bend[:, None]
        whole = data.features.T @ (bend[:, None] * data.features) + jnp.eye(beta.size)
        precision = whole - slopes.T @ cross
        move = jnp.linalg.solve(precision, slope - slopes.T @ own_slope)
        new = effect + own_slope / own_bend - slopes @ move
        centering = 1 - 1 / (own_bend * sd**2)
        new_sd = jnp.sqrt(jnp.mean(new**2 + 1 / own_bend))
        return beta + move, new, new_sd, precision, own_bend, centering, slopes

    for _ in range(num_steps - 1):
        beta, effect, sd, *_ = step(beta, effect, sd)
    beta, effect, sd, precision, own_bend, centering, slopes = step(beta, effect, sd)
    return Scales(
        beta,
        jnp.log(sd),
        effect,
        jnp.linalg.cholesky(jnp.linalg.inv(precision)),
        1 / jnp.sqrt(2 * jnp.sum(centering**2)),
        1 / jnp.sqrt(own_bend),
        centering,
        slopes,
    )


def place(at: Float[Array, " m"], scale: Scales) -> tuple[Array, Array, Array]:
    """The coefficients, the log of the sd and the effects, from the sampler's coordinates."""
    d = scale.beta.size
    beta = scale.beta + scale.cholesky @ at[:d]
    log_sd = scale.log_sd + scale.log_sd_scale * at[d]
    spread = jnp.exp((1 - scale.centering) * (log_sd - scale.log_sd))
    effect = spread * (scale.effect + scale.effect_sd * at[d + 1 :])
    return beta, log_sd, effect - scale.slopes @ (beta - scale.beta)


def log_likelihoods(beta: Array, effect: Array, data: Planes) -> Array:
    """The log-likelihood of each aircraft's flights, in float32."""
    logits = data.features @ beta.astype(jnp.float32) + effect.astype(jnp.float32)[data.plane]
    softplus = jnp.maximum(logits, 0) + jnp.log(1 + jnp.exp(-jnp.abs(logits)))
    return _sums(data.late * logits - softplus, data, effect.size)


def potential_of(data: Planes, scale: Scales, reference: Array) -> Any:
    """Minus the log-posterior in the sampler's coordinates, up to a constant.

    Args:
        data: the flights.
        scale: the coordinates.
        reference: the log-likelihood of each aircraft that is subtracted.
    """

    def potential(at: Array) -> Array:
        beta, log_sd, effect = place(at, scale)
        rows = log_likelihoods(beta, effect, data) - reference
        prior = -jnp.sum(beta**2) / 2 - jnp.exp(2 * log_sd) / 2 + log_sd
        prior -= jnp.sum(effect**2) * jnp.exp(-2 * log_sd) / 2 + effect.size * log_sd
        jacobian = jnp.sum(1 - scale.centering) * log_sd
        return -(jnp.sum(rows.astype(log_sd.dtype)) + prior + jacobian)

    return potential


def sample(folder: Path, numbers: Sequence[int], num_warmup: int, num_samples: int) -> None:
    """Chains, one after the other, whose draws are written as they come."""
    folder.mkdir(parents=True, exist_ok=True)
    data, _, codes = sorted_planes()
    scale = scales(data, len(codes))
    dims = scale.beta.size + 1 + len(codes)
    init, kernel = hmc(potential_fn_gen=potential_of, algo="NUTS")
    given: Any = (data, scale, jax.jit(log_likelihoods)(scale.beta, scale.effect, data))

    @jax.jit
    def chunk(state: Any, given: tuple) -> tuple:
        def one(state: Any, _: None) -> tuple:
            state = kernel(state, model_args=given)
            beta, log_sd, effect = place(state.z, scale)
            shared = jnp.append(beta, jnp.exp(log_sd))
            slope = state.z_grad[: shared.size]
            own = effect.astype(jnp.float32)
            return state, (shared, slope, own, state.diverging, state.num_steps)

        return jax.lax.scan(one, state, None, length=_CHUNK)

    for number in numbers:
        start_key, key = jax.random.split(jax.random.key(number))
        # Too far out in the shared parameters, and as far as a draw in the effects.
        start = jax.random.normal(start_key, (dims,)).at[: scale.beta.size + 1].multiply(2)
        state = init(
            start,
            num_warmup,
            step_size=0.3,
            inverse_mass_matrix=jnp.ones(dims),
            adapt_mass_matrix=False,
            max_tree_depth=_MAX_DEPTH,
            model_args=given,
            rng_key=key,
        )
        found: list[tuple] = []
        begin, cpu = time.perf_counter(), time.process_time()
        for i in range((num_warmup + num_samples) // _CHUNK):
            state, values = chunk(state, given)
            values = tuple(map(np.asarray, values))
            seconds = time.perf_counter() - begin
            num = (i + 1) * _CHUNK
            print(f"{num} draws, {values[-1].mean():.0f} steps each, {seconds:.0f} s", flush=True)
            if num <= num_warmup:
                continue
            found.append(values)
            names = ("shared", "slopes", "effects", "diverging", "steps")
            columns = map(np.concatenate, zip(*found, strict=True))
            joined = dict(zip(names, columns, strict=True))
            facts: Any = {"seconds": seconds, "warmup": num_warmup}
            facts["cpu_seconds"] = time.process_time() - cpu
            np.savez(folder / f"chain{number}.npz", **joined, **facts)


def corrected_moments(
    shared: Float[np.ndarray, "c s d"],
    slopes: Float[np.ndarray, "c s d"],
    derivatives: Float[np.ndarray, "c s d d"],
) -> dict[str, Float[np.ndarray, " d"]]:
    """Means and standard deviations of draws and their Monte Carlo errors, by control variates.

    The gradients of the log-posterior have mean zero, and explain a draw's distance from the mean
    all the more, the nearer to a normal the posterior is; products of both explain its square
    (Mira et al. 2013, Statistics and Computing 23(5)).

    Args:
        shared: the draws.
        slopes: minus the gradients, with respect to the sampler's coordinates.
        derivatives: those of the draws with respect to these coordinates.
    """
    num_chains, _, dims = shared.shape
    flat, slopes = shared.reshape(-1, dims), slopes.reshape(-1, dims)
    derivatives = derivatives.reshape(-1, dims, dims)
    found: dict[str, list] = {"mean": [], "mean error": [], "sd": [], "sd error": []}
    for k in range(dims):
        mean, error = _corrected(flat[:, k], slopes, num_chains)
        away, along = flat[:, k] - mean, derivatives[:, k].mean(axis=0)
        product = derivatives[:, k] @ along - away * (slopes @ along)
        square, of_square = _corrected(away**2, np.column_stack([slopes, product]), num_chains)
        sd = np.sqrt(square)
        for name, value in zip(found, (mean, error, sd, of_square / (2 * sd)), strict=True):
            found[name].append(value)
    return {name: np.array(values) for name, values in found.items()}


def _corrected(
    values: Float[np.ndarray, " n"], variates: Float[np.ndarray, "n m"], num_chains: int
) -> tuple[float, float]:
    """The mean of values less what variates of mean zero explain, and its Monte Carlo error."""
    design = np.column_stack([np.ones(len(values)), variates])
    found = np.linalg.lstsq(design, values, rcond=None)[0]
    rest = (values - variates @ found[1:]).reshape(num_chains, -1)
    return float(found[0]), float(rest.std() / np.sqrt(effective_sample_size(rest)))


def summary(folder: Path) -> dict[str, Any]:
    """Means and standard deviations of all chains' draws, cut to the shortest chain."""
    data, names, codes = sorted_planes()
    scale = scales(data, len(codes))
    chains = [np.load(path) for path in sorted(folder.glob("chain*.npz"))]
    num = min(len(chain["shared"]) for chain in chains)
    shared = np.stack([chain["shared"][:num] for chain in chains])
    effects = np.stack([chain["effects"][:num] for chain in chains]).astype(float)
    flat, own = shared.reshape(-1, shared.shape[-1]), effects.reshape(-1, effects.shape[-1])
    size = effective_sample_size(shared)
    slopes = np.stack([chain["slopes"][:num] for chain in chains])
    derivatives = np.zeros((*shared.shape, shared.shape[-1]))
    derivatives[..., :-1, :-1] = scale.cholesky
    derivatives[..., -1, -1] = shared[..., -1] * float(scale.log_sd_scale)
    moments = corrected_moments(shared, slopes, derivatives)
    return {
        "environment": common.environment(),
        "chains": len(chains),
        "draws": int(num),
        "warmup": int(chains[0]["warmup"]),
        "divergent": int(sum(chain["diverging"][:num].sum() for chain in chains)),
        "gradients per draw": float(np.mean([chain["steps"][:num].mean() for chain in chains])),
        "cpu seconds": float(sum(chain["cpu_seconds"] for chain in chains)),
        "seconds": float(sum(chain["seconds"] for chain in chains)),
        "largest R-hat": float(np.max(split_gelman_rubin(shared))),
        "largest R-hat of an effect": float(np.max(split_gelman_rubin(effects))),
        "names": [*names, "sd_planes"],
        "mean": moments["mean"].tolist(),
        "sd": moments["sd"].tolist(),
        "mean of the draws": flat.mean(axis=0).tolist(),
        "sd of the draws": flat.std(axis=0).tolist(),
        "effective": size.tolist(),
        "error of the mean, sd": (moments["mean error"] / moments["sd"]).tolist(),
        "relative error of the sd": (moments["sd error"] / moments["sd"]).tolist(),
        "planes": codes,
        "effect mean": np.round(own.mean(axis=0), 5).tolist(),
        "effect sd": np.round(own.std(axis=0), 5).tolist(),
    }
