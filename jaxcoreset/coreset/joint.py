"""The joint posterior of several coresets, some of which have a proxy."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcoreset.data.compiling import quick_jit
from jaxcoreset.likelihood.expansion import Expansion, Proxy, derivatives, flat_draws
from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params
from jaxcoreset.likelihood.precision import exactly
from jaxcoreset.weighting.laplace import LaplaceApproximation, parameter_names

# The largest Newton decrement, in nats, at which a point counts as the mode.
_DECREMENT = 1e-4
_MAX_STEPS = 1000


@dataclass(frozen=True, eq=False)
class JointLikelihood:
    """The sum of the log-likelihoods of coresets, less those of their proxies at their centers.

    Attributes:
        likelihood: the model's, with the rows of all the coresets.
        weights: for each coreset the weights of its rows, in the order of the rows.
        proxies: for each coreset its proxy, or None.
    """

    likelihood: ModelLikelihood
    weights: Sequence[Float[np.ndarray, " _"]]
    proxies: Sequence[Proxy | None]

    def at(self, flat: Float[Array, " d"], data: tuple) -> Float[Array, ""]:
        """The log-likelihood at flat unconstrained parameters; `data` are the rows."""
        values = self.likelihood.log_likelihood(self.likelihood.unravel(flat), data)
        total, first = jnp.zeros((), flat.dtype), 0
        for weights, proxy in zip(self.weights, self.proxies, strict=True):
            own = values[first : first + len(weights)]
            first += len(weights)
            weighted = jnp.vdot(jnp.asarray(weights, flat.dtype), own)
            if proxy is not None:
                weighted = proxy.log_likelihood(flat, weighted if len(weights) else None)
            total = total + weighted
        return total

    def totals(self, draws: Params) -> Float[np.ndarray, " s"]:
        """The log-likelihood at draws, in float64 if the model runs in it."""

        def evaluate(flat: Array, data: tuple) -> Array:
            return jax.lax.map(lambda one: self.at(one, data), flat, batch_size=64)

        return self._exactly(quick_jit(evaluate), flat_draws(draws))

    def values(self, points: Float[np.ndarray, "p d"]) -> Float[np.ndarray, " p"]:
        """The log-posterior at flat parameters; −inf where it is not finite."""
        found = self._exactly(self._compiled[0], points)
        return np.where(np.isfinite(found), found, -np.inf)

    def gradients(self, points: Float[np.ndarray, "p d"]) -> Float[np.ndarray, "p d"]:
        """The gradient of the log-posterior at flat parameters."""
        return self._exactly(self._compiled[1], points)

    @functools.cached_property
    def _compiled(self) -> tuple[Callable, Callable]:
        """The log-posterior and its gradient at many points, which compile once."""
        functions = self._log_posterior, jax.grad(self._log_posterior)
        value, gradient = (quick_jit(jax.vmap(one, (0, None))) for one in functions)
        return value, gradient

    def _log_posterior(self, flat: Float[Array, " d"], data: tuple) -> Float[Array, ""]:
        return self.at(flat, data) + self.likelihood.log_prior(self.likelihood.unravel(flat))

    def laplace(self, start: Float[np.ndarray, " d"]) -> LaplaceApproximation:
        """The Laplace approximation of the joint posterior, with the expansion at its mode.

        Raises:
            ValueError: if the mode is not reached.
        """
        from scipy.optimize import minimize

        likelihood = self.likelihood

        @quick_jit
        def evaluate(flat: Array, data: tuple) -> tuple:
            def total(flat: Array) -> Array:
                return self.at(flat, data)

            def prior(flat: Array) -> Array:
                return likelihood.log_prior(likelihood.unravel(flat))

            return derivatives(total, flat), derivatives(prior, flat)

        def energy(flat: np.ndarray) -> tuple:
            return jax.tree.map(lambda x, y: -(x + y), *self._exactly(evaluate, flat))

        found = minimize(
            lambda flat: energy(flat)[:2],
            start,
            jac=True,
            hess=lambda flat: energy(flat)[2],
            method="trust-exact",
            options={"maxiter": _MAX_STEPS, "gtol": 1e-6},
        )
        mode = np.asarray(found.x, np.float64)
        _, gradient, precision = energy(mode)
        covariance = np.linalg.inv(precision)
        is_mode = gradient @ covariance @ gradient <= _DECREMENT
        if not (is_mode and (np.linalg.eigvalsh(precision) > 0).all()):
            raise ValueError(
                "the search for the mode of the joint posterior of the coresets failed, so they "
                "cannot be merged; expected coresets of a model whose posterior has a mode."
            )
        (value, slope, bend), _ = self._exactly(evaluate, mode)
        constant = sum(float(proxy.value) for proxy in self.proxies if proxy is not None)
        expansion = Expansion(mode, float(value) + constant, slope, bend, precision)
        names = parameter_names(likelihood.init_params)
        return LaplaceApproximation(
            mode,
            covariance,
            names,
            likelihood.unravel,
            expansion=expansion,
            constrained=likelihood.constrained_sites,
        )

    def _exactly(self, evaluate: Callable, flat: np.ndarray) -> Any:
        return exactly(self.likelihood, evaluate, flat, self.likelihood.data)
