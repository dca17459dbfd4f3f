"""The posterior of all rows of a case in float64, by NumPyro alone, and the stored draws of it."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.distributions.transforms import Transform

from benchmarks.posteriors.case import Case

FOLDER = Path(__file__).parents[1] / "results" / "posteriors"
# Rows times draws that are evaluated at once.
_AT_ONCE = 4_000_000


def in_float64(arguments: Any) -> Any:
    """Arguments with every floating-point array in float64."""
    return jax.tree.map(
        lambda x: jnp.asarray(x, jnp.float64) if np.asarray(x).dtype.kind == "f" else x, arguments
    )


class Posterior:
    """The unnormalised posterior of the compared sites of a case, given all rows.

    Args:
        case: the case. Use it with 64-bit types enabled.

    Attributes:
        model: the case's model, or a faster spelling of it.
        args: its arguments, in float64.
        kwargs: its keyword arguments.
        transforms: what maps the unconstrained values of a site to its own.
        shapes: the shapes of the unconstrained values.
    """

    def __init__(self, case: Case):
        self.case = case
        self.model, make = case.truth or (case.model, case.make)
        args, kwargs = make()
        self.args, self.kwargs = in_float64(args), in_float64(kwargs)
        sites = self._trace({}, (self.args, self.kwargs))
        self.transforms: dict[str, Transform] = {
            name: biject_to(sites[name]["fn"].support) for name in case.parameters
        }
        self.shapes: dict[str, tuple[int, ...]] = {
            name: transform.inverse_shape(np.shape(sites[name]["value"]))
            for name, transform in self.transforms.items()
        }

    @property
    def dims(self) -> int:
        """The number of parameters, D."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    @property
    def arrays(self) -> list[Any]:
        """The arrays of the arguments, which compiled functions take rather than fold."""
        return [x for x in jax.tree.leaves((self.args, self.kwargs)) if np.ndim(x)]

    def _call(self, arrays: list[Any]) -> tuple[tuple, dict[str, Any]]:
        rest = iter(arrays)
        leaves, treedef = jax.tree.flatten((self.args, self.kwargs))
        return jax.tree.unflatten(treedef, [next(rest) if np.ndim(x) else x for x in leaves])

    def _trace(self, sites: Mapping[str, Any], call: tuple[tuple, dict]) -> dict[str, Any]:
        seeded = handlers.seed(self.model, jax.random.key(0))
        model = handlers.substitute(seeded, data=dict(sites))
        return handlers.trace(model).get_trace(*call[0], **call[1])

    def split(self, flat: Any) -> dict[str, Any]:
        """Unconstrained sites of a flat vector, or of vectors along leading axes."""
        found, at = {}, 0
        for name, shape in self.shapes.items():
            size = int(np.prod(shape))
            found[name] = flat[..., at : at + size].reshape((*flat.shape[:-1], *shape))
            at += size
        return found

    def flat(self, unconstrained: Mapping[str, Any]) -> np.ndarray:
        """Draws of unconstrained sites side by side, shape (s, D)."""
        parts = [np.asarray(unconstrained[name], float) for name in self.shapes]
        return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)

    def constrain(self, unconstrained: Mapping[str, Any]) -> dict[str, Any]:
        """The sites' own values."""
        return {name: self.transforms[name](unconstrained[name]) for name in self.shapes}

    def unconstrain(self, draws: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The unconstrained values of the sites' own."""
        return {
            name: np.asarray(transform.inv(jnp.asarray(draws[name], jnp.float64)))
            for name, transform in self.transforms.items()
        }

    def log_density(self, unconstrained: Mapping[str, Any], arrays: list[Any]) -> jax.Array:
        """The logarithm of the unnormalised density at one draw of the unconstrained sites."""
        sites, call = self.constrain(unconstrained), self._call(arrays)
        trace = self._trace(sites, call)
        total = jnp.zeros(())
        for name, transform in self.transforms.items():
            total += trace[name]["fn"].log_prob(sites[name]).sum()
            jacobian = transform.log_abs_det_jacobian(unconstrained[name], sites[name])
            total += jnp.sum(jacobian)
        if self.case.marginal is not None:
            return total + self.case.marginal(sites, *call)
        observed = [site for site in trace.values() if site.get("is_observed")]
        return total + sum(jnp.sum(site["fn"].log_prob(site["value"])) for site in observed)

    def log_densities(
        self, flat: np.ndarray, function: Callable[[Mapping[str, Any]], Any] | None = None
    ) -> np.ndarray:
        """`log_density`, or another function of unconstrained sites, at each of flat draws."""
        at_once = (
            None if function else max(1, min(len(flat), _AT_ONCE // max(map(len, self.arrays))))
        )

        @jax.jit
        def evaluate(flat: Any, arrays: Any) -> Any:
            def of_one(one: Any) -> Any:
                sites = self.split(one)
                return function(sites) if function else self.log_density(sites, arrays)

            return jax.lax.map(of_one, flat, batch_size=at_once)

        return np.asarray(evaluate(jnp.asarray(flat), [] if function else self.arrays), float)


class Truth(NamedTuple):
    """What is stored of the truth of a case.

    Attributes:
        unconstrained: 2,000 thinned draws, shape (2000, D).
        log_density: the unnormalised log-density at them.
        mean: of the sites' own values, from all draws, shape (D',).
        sd: the same way.
        quantiles: at 0.05, 0.5 and 0.95, shape (3, D').
        facts: R-hat, effective draws, divergences, seconds, the Gaussian's distance.
    """

    unconstrained: np.ndarray
    log_density: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    quantiles: np.ndarray
    facts: dict[str, Any]


def load(case: Case) -> Truth:
    """The truth of a case as it is stored.

    Raises:
        FileNotFoundError: if it is not.
    """
    with np.load(FOLDER / f"truth_{case.name}.npz", allow_pickle=False) as stored:
        arrays = {name: stored[name].astype(float) for name in Truth._fields[:-1]}
        return Truth(**arrays, facts=json.loads(str(stored["facts"])))
