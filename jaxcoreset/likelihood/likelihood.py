"""`ModelLikelihood`: a NumPyro model as one log-likelihood per datum, log p(y_i | θ), and a prior.

A *site* is a `numpyro.sample` or `numpyro.factor` statement. *Latent* sites
are the parameters θ; *unconstrained* values of them are what NUTS moves in. The *data axis* is the
dimension of an observed site's log-probability that follows the rows of the data; observed sites
without one belong to everything that is not summed over data: they are counted once, with the
prior.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval
from jaxtyping import Array, ArrayLike, Float
from numpyro.distributions.transforms import IdentityTransform, biject_to
from numpyro.handlers import seed
from numpyro.infer.util import constrain_fn, potential_energy, unconstrain_fn
from numpyro.primitives import Messenger

from jaxcoreset.data.arrays import leading
from jaxcoreset.data.compiling import quick_jit
from jaxcoreset.data.dtypes import as_floats, default_float, is_number, widened
from jaxcoreset.data.rows import Rows
from jaxcoreset.likelihood.arguments import Arguments, ModelError
from jaxcoreset.likelihood.independence import Reference
from jaxcoreset.likelihood.structure import not_independent
from jaxcoreset.likelihood.trace import abstract, full_precision, log_prob, no_rows, run, summed_but

# Widths of the draws at which models are compared.
_TOLD_APART = (0.1, 0.5, 1.0)
# The number of draws whose named values are computed together, and a number of rows at which only
# sites with a value for each datum have another shape than at two.
_BATCH, _ROWS = 512, (2, 1013)
# Deterministic sites with more values, such as a curve on a fine grid, would take much memory.
_MOST_VALUES = 1000

# Unconstrained values of the latent sites, by name.
Params = dict[str, Array]


@dataclass(frozen=True, eq=False)
class ModelLikelihood:
    """A NumPyro model as per-datum log-likelihoods and a prior; made by `model_likelihood`.

    The methods that take `params` are pure, and may be differentiated, compiled and vmapped over
    draws. They trace the model with the rows that they are given, so under `jax.jit` they compile
    once per number of rows. Products within the model are computed at full float32 precision.

    Attributes:
        model: the model, as the user wrote it.
        rows: all the rows, of the arguments, or leaves of them, that hold one row per datum.
        data_dims: for each observed site in the data axis its dimension, counted from the right.
        init_params: unconstrained values of the latent sites at which the log-density of all the
            data is finite; their names and shapes are those of any `params`.
        arguments: the model's arguments, and which of them hold rows.
        two_rows: two rows of the data, laid out as `data`.
        reference: what later checks use again; None if there is one row only.
        shared: see `program`.
    """

    model: Callable
    rows: Rows
    data_dims: dict[str, int]
    init_params: dict[str, Array]
    arguments: Arguments = field(repr=False)
    two_rows: tuple = field(repr=False)
    reference: Reference | None = field(default=None, repr=False)
    shared: "ModelLikelihood | None" = field(default=None, repr=False)

    @property
    def data(self) -> tuple:
        """This process's leaves that hold one row per datum, as given; NumPy stays on the host."""
        return self.rows.data

    @property
    def program(self) -> "ModelLikelihood":
        """The same functions without the rows, for programs to be compiled from.

        A function that is static in a compiled program is a method of this object, which all
        likelihoods share that compute the same, see `jaxcoreset.likelihood.program`.
        """
        return self.shared or self

    @functools.cached_property
    def compiled(self) -> Callable:
        """`by_site`, compiled."""
        return quick_jit(self.by_site)

    @property
    def num_data(self) -> int:
        """The number of data, n; of all processes together."""
        return self.rows.num_rows

    @property
    def num_params(self) -> int:
        """The number of unconstrained parameters, D."""
        return sum(np.size(value) for value in self.init_params.values())

    @property
    def unravel(self) -> "Unravel":
        """The function from flat unconstrained parameters to a dictionary of them."""
        return Unravel(tuple((name, np.shape(x)) for name, x in sorted(self.init_params.items())))

    def assemble(self, data: Sequence) -> tuple[tuple, dict]:
        """The model's (args, kwargs) with `data` in place of the data leaves.

        Args:
            data: one array per entry of `self.data`, each with the same number of rows.

        Returns:
            The arguments. What is not data is as `model_likelihood` was given it, except that an
            integer that counts the rows follows `data`.
        """
        return self.arguments.fill(data)

    def take(self, indices: Any) -> tuple:
        """The data leaves at the given rows; NumPy leaves stay NumPy.

        Args:
            indices: row numbers, shape (m,), each in [0, n).

        Raises:
            IndexError: a row number is outside [0, n).
        """
        return self.rows.take(np.asarray(indices, np.int64))

    def log_likelihood(self, params: Mapping[str, Any], data: Sequence) -> Float[Array, " m"]:
        """The log-likelihood of each datum at unconstrained parameters.

        Args:
            params: unconstrained values of the latent sites.
            data: m rows, laid out as `self.data`.

        Returns:
            Per row, the sum of all the observed sites in the data axis, over all their other axes,
            masks and `numpyro.handlers.scale` included.

        Raises:
            ModelError: `params` lacks a latent site.
        """
        return functools.reduce(jnp.add, self.by_site(params, data)[0].values())

    def values_as_text(self) -> str:
        """Log-likelihoods of two rows and log priors at some points, which identify this model.

        Two models with the same code may differ in what they use: a default, a global, an object.
        """
        values = (value for pair in self.values_of(self.two_rows) for value in pair)
        return " ".join(f"{entry:.4g}" for value in values for entry in np.ravel(value))

    def values_of(
        self, rows: tuple, points: Sequence[Params] | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """The log-likelihoods of rows and the log prior at some points, by which models differ.

        Args:
            rows: some rows, laid out as `data`.
            points: unconstrained parameters; `points_apart` by default.
        """
        found = (self._values_at(point, rows) for point in points or self.points_apart())
        return [(np.asarray(values), np.asarray(prior)) for values, prior in found]

    @functools.cached_property
    def _values_at(self) -> Callable:
        return quick_jit(lambda at, rows: (self.log_likelihood(at, rows), self.log_prior(at)))

    def points_apart(self) -> list[Params]:
        """Some points at which two models that differ have different values."""
        generator = np.random.default_rng(0)
        shapes = {name: value.shape for name, value in self.init_params.items()}
        return [draw_uniform(shapes, radius, generator) for radius in _TOLD_APART]

    def log_likelihood_constrained(
        self, params: Mapping[str, Any], data: Sequence
    ) -> Float[Array, " m"]:
        """As `log_likelihood`, at constrained parameters, as in `MCMC.get_samples`."""
        return functools.reduce(jnp.add, self.by_site(params, data, constrained=True)[0].values())

    def log_prior(self, params: Mapping[str, Any]) -> Float[Array, ""]:
        """The log-density of all that is not summed over data, at unconstrained parameters.

        It is the log prior, plus log |det| of the Jacobian of the transform to constrained values,
        plus the observed sites outside the data axis. It is evaluated with two rows of the data.

        Raises:
            ModelError: `params` lacks a latent site.
        """
        hidden = seed(_HideData(self.model, self.data_dims), rng_seed=0)
        with full_precision(), no_rows():
            energy = potential_energy(hidden, *self.assemble(self.two_rows), self._latent(params))
        return -jnp.asarray(energy)

    def constrain(self, params: Mapping[str, Any]) -> dict[str, Array]:
        """Constrained values of the latent sites from unconstrained ones."""
        model = seed(self.model, rng_seed=0)
        return constrain_fn(model, *self.assemble(self.two_rows), self._latent(params))

    def constrain_draws(self, params: Mapping[str, Any]) -> dict[str, Array]:
        """`constrain` for values with a leading axis of draws, by a compiled program."""
        return self.program._constrain_draws(self._latent(params), self.two_rows)

    @functools.cached_property
    def _constrain_draws(self) -> Callable:
        def constrain(params: Params, rows: tuple) -> dict[str, Array]:
            return constrain_fn(seed(self.model, rng_seed=0), *self.assemble(rows), params)

        return quick_jit(jax.vmap(constrain, in_axes=(0, None)))

    def unconstrain(self, params: Mapping[str, Any]) -> dict[str, Array]:
        """Unconstrained values of the latent sites from constrained; other keys are ignored."""
        return self._unconstrain(self._latent(params), self.two_rows)

    def _unconstrain(self, latent: dict[str, Array], rows: tuple) -> dict[str, Array]:
        model = seed(self.model, rng_seed=0)
        return unconstrain_fn(model, *self.assemble(rows), latent)

    def unconstrain_draws(self, draws: Mapping[str, Any]) -> dict[str, Array]:
        """`unconstrain` for values with a leading axis of draws, by a compiled program.

        Args:
            draws: for each latent site an array of shape (draws, …); other keys are ignored.

        Raises:
            ModelError: `draws` lacks a latent site.
        """
        return self.program._unconstrain_draws(self._latent(draws), self.two_rows)

    @functools.cached_property
    def _unconstrain_draws(self) -> Callable:
        # Rows are an argument, because JAX takes NumPy's constants for those of another type if x64
        # has changed.
        return quick_jit(jax.vmap(self._unconstrain, in_axes=(0, None)))

    def named_values(self, params: Mapping[str, Any]) -> Float[np.ndarray, "s p"]:
        """What the model makes of draws: constrained values, and deterministic sites.

        A reparametrised site, for one, is deterministic. Sites with a value for each datum and
        `summaries_of_rows` are left out, and so are latent sites without a transform, and
        deterministic ones of over 1,000 values.

        Args:
            params: unconstrained values of the latent sites, with a leading axis of s draws.

        Returns:
            The values at each draw, without an order; p may be 0.
        """
        program = self.program
        latent = {name: np.asarray(value) for name, value in self._latent(params).items()}
        num, width = leading(latent), program._num_named
        found = np.zeros((num, width), default_float())
        for first in range(0, num if width else 0, _BATCH):
            # Batches of one length share a program.
            at = np.minimum(np.arange(first, first + _BATCH), num - 1)
            batch = {name: value[at] for name, value in latent.items()}
            values = np.asarray(program._named_batch(batch, self.two_rows))
            found[first : first + _BATCH] = values[: num - first]
        return found

    @functools.cached_property
    def _num_named(self) -> int:
        return jax.eval_shape(self._named, self.init_params, self.two_rows).size

    @functools.cached_property
    def _named_batch(self) -> Callable:
        return quick_jit(jax.vmap(self._named, in_axes=(0, None)))

    def _named(self, params: Params, rows: tuple) -> Float[Array, " p"]:
        sites = self.named_sites(params, rows)
        left_out = {*self._sites_of_rows, *self.summaries_of_rows}
        kept = (
            x
            for name, x in sites.items()
            if name not in left_out and (name in self.init_params or x.size <= _MOST_VALUES)
        )
        return jnp.concatenate([jnp.zeros(0), *(jnp.ravel(x) for x in kept)])

    @functools.cached_property
    def _sites_of_rows(self) -> set[str]:
        """The sites of `named_sites` with a value for each datum."""
        few, more = (
            jax.eval_shape(self.named_sites, self.init_params, rows) for rows in self._abstract_rows
        )
        return {name for name, x in few.items() if x.shape != more[name].shape}

    @functools.cached_property
    def summaries_of_rows(self) -> tuple[str, ...]:
        """The deterministic sites without a value for each datum that are computed from the rows.

        Some rows do not have the value that all rows have.
        """
        if (program := self.program) is not self:
            return program.summaries_of_rows
        of_rows, found = self._sites_of_rows, []

        def values(params: Params, rows: tuple) -> dict[str, Array]:
            sites = self.named_sites(params, rows)
            return {name: x for name, x in sites.items() if name not in of_rows}

        few, more = (
            jax.make_jaxpr(values)(self.init_params, rows).jaxpr for rows in self._abstract_rows
        )
        names = sorted(jax.eval_shape(values, self.init_params, self._abstract_rows[0]))
        num_params = len(jax.tree.leaves(self.init_params))
        for at, name in enumerate(names):
            kept = [number == at for number in range(len(names))]
            (program_of_few, used), (program_of_more, _) = (
                partial_eval.dce_jaxpr(one, kept) for one in (few, more)
            )
            # Without rows among its arguments, a program may still use how many there are.
            if any(used[num_params:]) or str(program_of_few) != str(program_of_more):
                found.append(name)
        return tuple(found)

    @property
    def _abstract_rows(self) -> tuple[tuple, tuple]:
        """Two rows and more rows, as shapes."""
        few, more = (tuple(abstract(leaf, num) for leaf in self.two_rows) for num in _ROWS)
        return few, more

    def named_sites(self, params: Params, rows: tuple) -> dict[str, Array]:
        """The values of the sites that `named_values` may have."""
        identity: set[str] = set()

        def fill(site: Mapping) -> Any:
            transform = biject_to(site["fn"].support)
            if isinstance(getattr(transform, "base_transform", transform), IdentityTransform):
                identity.add(site["name"])
            return transform(params[site["name"]])

        with full_precision(), no_rows():
            found = run(self.model, self.assemble(rows), fill)
        latent = set(self.init_params) - identity
        return {
            name: jnp.asarray(site["value"])
            for name, site in found.items()
            if name in latent or (site["type"] == "deterministic" and _is_array(site["value"]))
        }

    @property
    def constrained_sites(self) -> tuple[str, ...]:
        """The latent sites whose constrained values are not the unconstrained ones."""
        return self.program._constrained_sites

    @functools.cached_property
    def _constrained_sites(self) -> tuple[str, ...]:
        found = jax.eval_shape(self.named_sites, self.init_params, self.two_rows)
        return tuple(sorted(set(found) & set(self.init_params)))

    def _latent(self, params: Mapping[str, Any]) -> dict[str, Array]:
        missing = [name for name in self.init_params if name not in params]
        if missing:
            raise ModelError(
                f"params lacks the latent sites {missing}; values for {list(self.init_params)} "
                f"are expected, and {list(params)} were given: add the missing ones."
            )
        return {name: jnp.asarray(params[name]) for name in self.init_params}

    def by_site(
        self, params: Mapping[str, Any], data: Sequence, constrained: bool = False
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Log-likelihoods (m,) of the sites in the data axis; sums for all the other sites."""
        values = self._latent(params)

        def fill(site: Mapping) -> Any:
            value = values[site["name"]]
            return value if constrained else biject_to(site["fn"].support)(value)

        with full_precision():
            rows = [widened(leaf) for leaf in data]
            model_trace = run(self.model, self.assemble(rows), fill)
            sites = {name: site for name, site in model_trace.items() if site["type"] == "sample"}
            others = {
                name: jnp.sum(log_prob(site))
                for name, site in sites.items()
                if name not in self.data_dims
            }
            per_datum = {
                name: _per_datum(name, log_prob(sites[name]), dim, data[0].shape[0])
                for name, dim in self.data_dims.items()
            }
        return per_datum, others


@dataclass(frozen=True)
class Unravel:
    """From flat parameters to a dictionary, the inverse of JAX's `ravel_pytree` in any precision.

    Attributes:
        shapes: the names of the parameters in order, and their shapes.
    """

    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    def __call__(self, flat: Float[ArrayLike, " d"]) -> Params:
        """The parameters, of the type that `flat` has."""
        is_traced = isinstance(flat, jax.core.Tracer)
        numbers: Any = flat if is_traced else np.asarray(flat)
        params, first = {}, 0
        for name, shape in self.shapes:
            size = math.prod(shape)
            params[name] = numbers[first : first + size].reshape(shape)
            first += size
        # Concrete numbers are split on the host: on a device each slice needs its own program.
        return params if is_traced else jax.device_put(params)

    @functools.partial(quick_jit, static_argnums=0)
    def all(self, flat: Float[ArrayLike, "s d"]) -> Params:
        """The parameters of many, with that leading axis."""
        return jax.vmap(self)(flat)


def _is_array(value: Any) -> bool:
    """True for a number or an array of numbers; a deterministic site may have any value."""
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return is_number(value.dtype)
    return isinstance(value, float | int)


class _HideData(Messenger):
    """Leave out the log-probabilities of the sites in the data axis, without computing them."""

    def __init__(self, fn: Callable, names: Mapping[str, int]):
        super().__init__(fn)
        self.names = names

    def process_message(self, msg: Any) -> None:
        if msg["type"] == "sample" and msg["name"] in self.names:
            msg["fn"] = msg["fn"].mask(False)


def _per_datum(name: str, values: Array, dim: int, num_rows: int) -> Float[Array, " m"]:
    if values.ndim < -dim or values.shape[dim] != num_rows:
        raise not_independent(name, f"has the shape {values.shape}")
    return summed_but(values, dim)


def draw_uniform(
    shapes: Mapping[str, tuple[int, ...]], radius: float, generator: np.random.Generator
) -> dict[str, Array]:
    """Unconstrained values, uniform between -radius and radius."""
    draws = {name: generator.uniform(-radius, radius, shape) for name, shape in shapes.items()}
    return {name: as_floats(value) for name, value in draws.items()}
