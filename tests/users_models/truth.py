"""The true posterior of all rows, and how far a coreset's posterior is from it.

Both posteriors are known up to a constant in float64, at draws of a Student-t distribution that has
the location and covariance of the true posterior. Importance weights make draws of either posterior
of them. Where such weights have too long a tail, draws of NUTS take their place. All differences
between the two posteriors are averages over the same draws, so that most of the Monte Carlo error
cancels.
"""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro.infer.util import constrain_fn, potential_energy

from jaxcoreset.data.dtypes import widened
from jaxcoreset.weighting.psis import pareto_smooth
from tests.users_models.case import Case

FILE = Path(__file__).with_name("truths.json")
# Degrees of freedom of the proposal: its tails are longer than those of the posteriors.
_FREEDOM = 4
# Draws that are evaluated together: as many as fit into a CPU's cache with a few thousand rows.
_BATCH = 50
# Sites with more numbers than that are not parameters, but a value for each row.
_MOST_NUMBERS = 200
# A value that varies by less than this part of itself is constant, but for rounding.
_CONSTANT = 1e-9


@dataclasses.dataclass(frozen=True)
class Truth:
    """The posterior of all rows, over the unconstrained parameters in the order of `ravel_pytree`.

    Attributes:
        shapes: the shape of each latent site's unconstrained value.
        mean: shape (D,).
        covariance: shape (D, D).
        khat: the shape of the tail of the importance weights that the two come from.
        ess: how many independent draws these weights are worth.
        nuts: the largest difference, in standard deviations, between `mean` and the mean of NUTS on
            all rows; None where NUTS did not run.
        draws: draws of NUTS on all rows, shape (S, D), where no importance weights can be trusted;
            None elsewhere.
    """

    shapes: dict[str, tuple[int, ...]]
    mean: np.ndarray
    covariance: np.ndarray
    khat: float | None = np.nan
    ess: float = np.nan
    nuts: float | None = None
    draws: np.ndarray | None = None

    def unravel(self, flat: Any) -> dict[str, Any]:
        """The unconstrained value of each site."""
        return ravel_pytree({name: jnp.zeros(shape) for name, shape in self.shapes.items()})[1](
            flat
        )

    def proposals(self, num: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Draws of the proposal, and their log-densities up to a constant."""
        assert self.draws is None
        rng = np.random.default_rng(seed)
        size = self.mean.size
        normal = rng.normal(size=(num, size))
        steps = normal * np.sqrt(_FREEDOM / rng.chisquare(_FREEDOM, size=(num, 1)))
        log_density = -(_FREEDOM + size) / 2 * np.log1p((steps**2).sum(1) / _FREEDOM)
        return self.mean + steps @ np.linalg.cholesky(self.covariance).T, log_density


@dataclasses.dataclass(frozen=True)
class Distance:
    """How far a coreset's posterior is from the full one.

    Attributes:
        kl: the symmetrised KL divergence in nats.
        kl_standard_error: its Monte Carlo standard error.
        mean_error: the largest error of a posterior mean in standard deviations, of the parameters
            as the model names them and of their unconstrained values.
        khat: the shape of the tail of the weights that make the proposals draws of the posterior.
        ess: how many independent draws these weights are worth.
        displacement: the largest difference between the mean of these draws and the truth's, in
            standard deviations.
    """

    kl: float
    kl_standard_error: float
    mean_error: float
    khat: float
    ess: float
    displacement: float


@functools.cache
def truths() -> dict[str, Truth]:
    """The truths of all models that have one, by name."""
    found = {}
    for name, one in json.loads(FILE.read_text()).items():
        shapes = {site: tuple(shape) for site, shape in one.pop("shapes").items()}
        mean, covariance = (np.asarray(one.pop(key)) for key in ("mean", "covariance"))
        covariance = covariance + covariance.T - np.diag(np.diag(covariance))
        draws = np.asarray(one.pop("draws")) if "draws" in one else None
        found[name] = Truth(shapes, mean, covariance, draws=draws, **one)
    return found


def in_64_bits(tree: Any) -> Any:
    """Arrays of real numbers as float64, and of integers as int64, of JAX; use with x64."""

    def wide(leaf: Any) -> Any:
        return widened(jnp.asarray(leaf)) if isinstance(leaf, np.ndarray | jax.Array) else leaf

    return jax.tree.map(wide, tree)


def log_posterior(model: Any, args: tuple, kwargs: dict, truth: Truth) -> Any:
    """The log joint density as a function of the unconstrained parameters; use with x64."""
    args, kwargs = in_64_bits((args, kwargs))

    def evaluate(flat: Any) -> Any:
        return -potential_energy(model, args, kwargs, truth.unravel(flat))

    return evaluate


def over_draws(evaluate: Any) -> Any:
    """A function over one draw, as a compiled function over many; use with x64."""
    return jax.jit(lambda draws: jax.lax.map(evaluate, draws, batch_size=_BATCH))


def distance(case: Case, coreset: Any, truth: Truth, num_draws: int = 1500) -> Distance:
    """Compare the posterior of a coreset with that of all rows."""
    draws, log_proposal = truth.draws, None
    if draws is None:
        draws, log_proposal = truth.proposals(num_draws)
    with jax.enable_x64(True):
        full = log_posterior(case.shared, case.args, case.kwargs, truth)
        small = log_posterior(coreset.model, coreset.args, coreset.kwargs, truth)
        args, kwargs = in_64_bits((coreset.args, coreset.kwargs))

        def evaluate(flat: Any) -> Any:
            params = truth.unravel(flat)
            model = case.marginal or coreset.full_model
            sites = constrain_fn(model, args, kwargs, params, return_deterministic=True)
            named = [x for x in jax.tree.leaves(sites) if x.size <= _MOST_NUMBERS]
            values = jnp.concatenate([flat, *(jnp.ravel(x) for x in named)])
            return full(flat), small(flat), values

        of_all, of_rows, values = (np.asarray(x) for x in over_draws(evaluate)(draws))
    weights, khat = np.full(len(draws), 1 / len(draws)), 0.0
    if log_proposal is not None:
        log_weights, khat = pareto_smooth(of_all - log_proposal)
        weights = np.exp(log_weights)
    delta = of_all - of_rows
    delta -= weights @ delta
    of_coreset = weights * np.exp(-delta)
    of_coreset /= of_coreset.sum()
    # With small differences, the influence of draw i on the divergence is its squared difference.
    kl = weights @ delta - of_coreset @ delta
    influence = weights * (delta**2 - weights @ delta**2)
    mean = weights @ values
    sd = np.sqrt(weights @ (values - mean) ** 2)
    sd = np.where(sd > _CONSTANT * np.abs(mean), sd, np.inf)
    shift = of_coreset @ values - mean
    size = truth.mean.size
    scale = np.sqrt(np.diag(truth.covariance))
    return Distance(
        kl=float(kl),
        kl_standard_error=float(np.sqrt((influence**2).sum())),
        mean_error=float(np.max(np.abs(shift) / sd)),
        khat=float(khat),
        ess=float(1 / (weights**2).sum()),
        displacement=float(np.max(np.abs(mean[:size] - truth.mean) / scale)),
    )
