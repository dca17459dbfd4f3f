"""A start for NUTS on all the rows: initial points, step size and metric from a coreset.

The coreset posterior already knows most of what a warm-up finds: the location and the scale of the
posterior. Chains on all rows then need only a short adaptation of the step size.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from numpyro.infer import MCMC, NUTS

from jaxcoreset.coreset.belonging import check_belongs
from jaxcoreset.coreset.group_effects import effects_at
from jaxcoreset.coreset.update import likelihood_of_others
from jaxcoreset.data.dtypes import default_float
from jaxcoreset.data.utils import check_int, host_generator
from jaxcoreset.likelihood.expansion import flat_draws
from jaxcoreset.likelihood.precision import in_enough_precision
from jaxcoreset.likelihood.trace import latent_shapes, one_at_a_time, unconstrain_draws
from jaxcoreset.solvers.numerics import as_key
from jaxcoreset.weighting.chains import samples_of_full
from jaxcoreset.weighting.laplace import laplace_approximation

# A covariance from fewer draws per coordinate misleads more than it helps.
_DRAWS_PER_COORDINATE = 10
# The number of draws over which the variances of effects of groups are taken.
_EFFECT_DRAWS = 64
# The leapfrog integrator on D standard normal coordinates, with steps h and mixed phases, has an
# energy error of variance h⁴D/16 and mean half of that; 2Φ(−h²√D/8) are then accepted, which is
# the usual 0.8 at this value of h D^¼ (after Beskos et al. 2013, Bernoulli 19, section 3).
_STEP_SIZE = 1.42


@dataclass(frozen=True)
class WarmStart:
    """Settings for NUTS on all the rows.

    ``MCMC(ws.kernel(model), num_warmup=50, num_samples=1000, num_chains=ws.num_chains).run(key,
    *args, init_params=ws.init_params, **kwargs)``, with the model itself and all the data, runs the
    chains. The attributes are arguments of `NUTS` and `MCMC.run` of the same names.

    Attributes:
        init_params: unconstrained values of the latent sites, with a leading axis of chains if
            there is more than one, as `MCMC.run` expects.
        step_size: the leapfrog step size.
        dense_mass: whether the metric is dense: True, False, or a list of tuples of sites whose
            block is dense.
        num_chains: the number of chains of `init_params`.
    """

    init_params: dict[str, Array]
    step_size: float
    dense_mass: bool | list[tuple[str, ...]]
    num_chains: int
    _inverse_mass_matrix: Any = field(repr=False)

    @property
    def inverse_mass_matrix(self) -> Any:
        """Shape (D, D) if dense, (D,) if not, or a dictionary from tuple of sites to either."""
        # NUTS changes the dictionary that it gets, so each caller has a copy.
        matrix = self._inverse_mass_matrix
        return dict(matrix) if isinstance(matrix, dict) else matrix

    def kernel(self, model: Callable, **options: Any) -> NUTS:
        """NUTS with this step size and metric; only the step size adapts.

        Args:
            model: the model, without weights.
            **options: further arguments of `NUTS`, which override these.
        """
        settings = {
            "step_size": self.step_size,
            "inverse_mass_matrix": self.inverse_mass_matrix,
            "dense_mass": self.dense_mass,
            "adapt_mass_matrix": False,
        }
        return NUTS(model, **{**settings, **options})


def starting_points(coreset: Any, num_chains: int) -> dict[str, Array]:
    """See `Coreset.init_params`."""
    num_chains = check_int("num_chains", num_chains, 1)
    if coreset.summary is not None:
        found = coreset.summary.likeliest_draws(num_chains)
    else:
        if coreset.approximation is None:  # that of the weighted rows themselves
            call = coreset.args, coreset.kwargs
            coreset.approximation = in_enough_precision(
                lambda context: laplace_approximation(
                    likelihood_of_others(coreset, *call)[0](context), weights=coreset.weights
                ),
                coreset.report.precision,
                coreset.full_model,
            )
        found = coreset.approximation.draws(jax.random.key(0), num_chains)
    points = {name: np.asarray(value, default_float()) for name, value in found.items()}
    return {name: jax.device_put(x if num_chains > 1 else x[0]) for name, x in points.items()}


@one_at_a_time
def warm_start(
    coreset: Any,
    mcmc: MCMC | Mapping[str, Any] | None,
    num_chains: int | None,
    dense_mass: bool | list[tuple[str, ...]] | None,
    key: PRNGKeyArray | int | None,
) -> WarmStart:
    """See `Coreset.warm_start`."""
    key = None if key is None else as_key(key)
    model, arguments = coreset.model, (coreset.args, coreset.kwargs)
    approximation = coreset.approximation
    if num_chains is not None:
        num_chains = check_int("num_chains", num_chains, 1)
    if mcmc is None:
        if approximation is None:
            raise ValueError(
                "mcmc is missing, and this coreset has no approximation of the posterior; pass "
                "NUTS that has run on coreset.model: coreset.warm_start(mcmc)."
            )
        if key is None:
            raise ValueError(
                "key is missing; initial points are drawn at random, so pass "
                "key=jax.random.key(seed), or an mcmc that has run on the coreset."
            )
        chains = num_chains or 1
        points, draws = approximation.draws(key, chains), None
        covariance = approximation.covariance
        step_size, is_dense = None, True
    else:
        seeds = jax.random.key(0) if key is None else jax.random.fold_in(key, 1)
        check_belongs(coreset, mcmc)
        samples = samples_of_full(mcmc, latent_shapes(model, arguments), host_generator(seeds))
        chains = num_chains or samples.shape[0]
        draws = unconstrain_draws(model, arguments, samples.flat())
        points = _choose(draws, chains, key)
        flat = flat_draws(draws)
        is_dense = len(flat) >= _DRAWS_PER_COORDINATE * flat.shape[1]
        covariance = _covariance(flat) if is_dense or dense_mass else _variances(flat)
        step_size, was_dense = _adapted_step(mcmc)
        if was_dense != bool(is_dense if dense_mass is None else dense_mass):
            step_size = None
    kind = is_dense if dense_mass is None else dense_mass
    variances = covariance if covariance.ndim == 1 else np.diag(covariance)
    effects: dict[str, Array] = {}
    if coreset.grouping is not None:
        if dense_mass is True:
            raise ValueError(
                "dense_mass is True, but the metric of the effects of all groups is diagonal; "
                "expected None, False, or a list of tuples of shared sites."
            )
        kind, step_size = [tuple(sorted(points))] if kind is True else kind, None
        seeds = jax.random.key(0) if key is None else jax.random.fold_in(key, 2)
        if draws is None:
            draws = approximation.draws(jax.random.fold_in(seeds, 1), _EFFECT_DRAWS)
        effects, of_effects = _effects(coreset, points, draws, seeds)
        variances = np.concatenate([variances, of_effects])
    positions = _positions(points) | _positions(effects, len(covariance))
    points, size = points | effects, len(variances)
    return WarmStart(
        init_params=points if chains > 1 else {name: x[0] for name, x in points.items()},
        step_size=step_size or _STEP_SIZE * size**-0.25,
        dense_mass=kind,
        num_chains=chains,
        _inverse_mass_matrix=_metric(covariance, variances, positions, kind),
    )


def _effects(
    coreset: Any, points: dict[str, Array], draws: dict[str, Array], key: PRNGKeyArray
) -> tuple[dict[str, Array], np.ndarray]:
    """Draws of the unconstrained effects of all groups, and their variances, shape (d,).

    Args:
        coreset: a coreset of groups.
        points: unconstrained shared parameters, one for each draw of the effects.
        draws: unconstrained draws of the shared parameters, over which effects vary.
        key: a JAX random key.
    """
    likelihood = coreset.likelihood
    if likelihood is None:
        raise ValueError(
            "the effects of all groups need an initial value each, and the data that the coreset "
            "was built from are not available, because it was loaded, updated or merged; use the "
            "coreset that CoresetBuilder.run has returned."
        )
    num = next(iter(draws.values())).shape[0]
    thinned = {name: x[:: max(1, num // _EFFECT_DRAWS)] for name, x in draws.items()}
    keys = jax.random.split(key)
    at_points, at_draws = map(likelihood.constrain_draws, (points, thinned))
    given, settings = (coreset, likelihood.rows), {"unconstrained": True}
    found = effects_at(*given, at_points, keys[0], **settings)
    moments = effects_at(*given, at_draws, keys[1], moments=True, **settings)
    axes = {name: site.dim for name, site in likelihood.model.structure.local.items()}
    # The axis of groups, which comes after that of draws, is where the model has it.
    values = {name: jnp.moveaxis(jnp.asarray(x), 1, axes[name]) for name, x in found.items()}
    sd = {name: np.moveaxis(x, 1, axes[name])[1] for name, x in moments.items()}
    return values, np.concatenate([np.ravel(sd[name]) ** 2 for name in sorted(sd)])


def _choose(draws: dict[str, Array], chains: int, key: PRNGKeyArray | None) -> dict[str, Array]:
    total = next(iter(draws.values())).shape[0]
    if key is None:  # Take the middle of each of equally long parts.
        rows = ((np.arange(chains) + 0.5) * total / chains).astype(int)
    else:
        rows = host_generator(key).choice(total, chains, replace=chains > total)
    return {name: value[rows] for name, value in draws.items()}


def _covariance(flat: np.ndarray) -> np.ndarray:
    """The covariance of the draws, shrunk towards a small multiple of the identity as in Stan."""
    count = len(flat)
    found = np.atleast_2d(np.cov(flat, rowvar=False))
    return (count * found + 5e-3 * np.eye(len(found))) / (count + 5)


def _variances(flat: np.ndarray) -> np.ndarray:
    return (len(flat) * flat.var(axis=0, ddof=1) + 5e-3) / (len(flat) + 5)


def _adapted_step(mcmc: Any) -> tuple[float | None, bool]:
    """The geometric mean over chains of the step size of NUTS, and whether its metric is dense."""
    state = getattr(getattr(mcmc, "last_state", None), "adapt_state", None)
    if state is None:
        return None, False
    steps = np.asarray(state.step_size, np.float64)
    metric = state.inverse_mass_matrix
    blocks = list(metric.values()) if isinstance(metric, Mapping) else [metric]
    axes = steps.ndim + 2
    return float(np.exp(np.log(steps).mean())), any(np.ndim(block) == axes for block in blocks)


def _positions(points: dict[str, Array], first: int = 0) -> dict[str, np.ndarray]:
    """The coordinates of each site among those of all sites in alphabetical order."""
    positions = {}
    for name in sorted(points):
        size = int(np.prod(points[name].shape[1:]))
        positions[name] = np.arange(first, first + size)
        first += size
    return positions


def _metric(
    covariance: np.ndarray,
    variances: np.ndarray,
    positions: dict[str, np.ndarray],
    kind: bool | list[tuple[str, ...]],
) -> Any:
    """The inverse mass matrix; `covariance` is of the first positions, the others are diagonal."""
    dtype = default_float()
    if kind is True:
        return jnp.asarray(covariance, dtype)
    if kind is False:
        return jnp.asarray(variances, dtype)
    named = [name for block in kind for name in block]
    dense = [name for name, at in positions.items() if at.size == 0 or at[-1] < len(covariance)]
    if not set(named) <= set(dense) or len(set(named)) < len(named):
        raise ValueError(
            f"dense_mass is {kind!r}; expected tuples of latent sites, each site at most once: "
            f"{', '.join(dense)}."
        )
    metric = {}
    for block in kind:
        at = np.concatenate([positions[name] for name in block])
        metric[tuple(block)] = jnp.asarray(covariance[np.ix_(at, at)], dtype)
    others = tuple(name for name in positions if name not in named)
    if others:
        at = np.concatenate([positions[name] for name in others])
        metric[others] = jnp.asarray(variances[at], dtype)
    return metric
