"""The rows to predict and what is drawn for them: new responses from the user's model, by blocks.

If all responses are given, all are sampled anew, so that you can compare them with new ones. If
some are given and others are missing, the missing ones are sampled given those, as where one
response is a predictor of another one. Other observed sites, such as a parameter that
`numpyro.handlers.condition` fixes, keep their values.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jaxtyping import Array, PRNGKeyArray
from numpyro.handlers import seed, trace, uncondition
from numpyro.infer import Predictive

from jaxcoreset.data.dtypes import widened
from jaxcoreset.data.messages import listed
from jaxcoreset.likelihood.arguments import Arguments, ModelError
from jaxcoreset.likelihood.densities import plain_log_prob
from jaxcoreset.likelihood.masks import mask_of, not_numbers, unmasked
from jaxcoreset.likelihood.trace import ABSTRACT_ROWS, fill_origin, full_precision, is_latent, run

# What the names of the sites that mark other sites' bad values begin with.
_REFUSED, _MASKED = "not a number: ", "masked, and not a number: "
# What the names of the sites with log-probabilities begin with.
_DENSITY = "log-probability: "


@dataclass(frozen=True, eq=False)
class Simulation:
    """New responses of rows; programs are made from it, so it holds none.

    Attributes:
        model: the user's model.
        arguments: its arguments, without the rows.
        axes: the sites to draw, with the axis of rows in each.
        responses: the observed sites with one value per row that are drawn: those without
            observations, or all of them if all have observations.
        observed: those of them whose observations are among the arguments.
        checked: the sites that must be numbers, with the axis of rows in each.
        width: the number of values that a row has at one draw.
        computed: the deterministic ones of the sites to draw.
        axes_of_rows: all sites of the model with one value per row, with the axis of rows in each.
    """

    model: Callable
    arguments: Arguments
    axes: dict[str, int]
    responses: frozenset[str]
    observed: tuple[str, ...]
    checked: dict[str, int]
    width: int
    computed: tuple[str, ...]
    axes_of_rows: dict[str, int]

    @classmethod
    def of(
        cls,
        model: Callable,
        arguments: Arguments,
        responses: Sequence[str],
        names: Sequence[str] | None,
    ) -> "Simulation":
        """The simulation of the sites with these names, by default of all responses that are drawn.

        Raises:
            ModelError: if a site is unknown, has no value per row, or cannot be drawn, or is a
                response that was passed while another one is missing.
        """
        few, more = (_sites(model, arguments, responses, num) for num in ABSTRACT_ROWS)
        axes = {}
        for name, site in few.items():
            pairs = enumerate(zip(site.shape, more[name].shape, strict=True))
            changed = [axis for axis, (one, other) in pairs if one != other]
            if len(changed) == 1 and site.size:
                axes[name] = changed[0]
        of_rows = [name for name in axes if name in responses]
        missing = [name for name in of_rows if not few[name].is_given]
        kept = [name for name in of_rows if few[name].is_given] if missing else []
        responses = [name for name in responses if name not in kept]
        if names is None:
            names = [name for name in of_rows if name not in kept]
            if not names:
                raise ModelError(
                    "the model has no observed site with one value per row that can be drawn; "
                    "expected numpyro.sample(..., obs=...), since nothing can be drawn from a "
                    "numpyro.factor."
                )
        for name in names:
            if name not in axes:
                raise ModelError(
                    f"sites names {name!r}; expected sites with one value per row, of which the "
                    f"model has {listed(list(axes))}."
                )
            if name in kept:
                raise ModelError(
                    f"sites names {name!r}, whose observations were passed, and are kept because "
                    f"those of {listed(missing)} are missing; pass all observations to draw all of "
                    "them anew, or none, or leave this site out."
                )
        without = list(arguments.leaves)
        for i in arguments.data_at:
            without[i] = None
        arguments = dataclasses.replace(arguments, leaves=tuple(without))
        width = sum(few[name].size for name in names) // ABSTRACT_ROWS[0]
        observed = tuple(name for name in names if few[name].is_given)
        asked_for = {name: axes[name] for name in names}
        # What is drawn for a row may depend on what was drawn for it before.
        drawn = [name for name in axes if few[name].is_drawn and name not in kept]
        asked = [at for at, name in enumerate(drawn) if name in asked_for]
        last = max(asked, default=-1)
        checked = {
            name: axes[name] for at, name in enumerate(drawn) if at <= last or name not in responses
        }
        return cls(
            model,
            arguments,
            asked_for,
            frozenset(responses),
            observed,
            checked,
            width,
            computed=tuple(name for name in names if not few[name].is_drawn),
            axes_of_rows=axes,
        )

    def computed_at(
        self, given: Mapping[str, Array], key: PRNGKeyArray, data: tuple
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """The deterministic sites to draw for m rows, of shape (m, …), and what is drawn for them.

        Args:
            given: constrained values of sites, without an axis of draws; other sites are drawn.
            key: a JAX random key.
            data: m rows.
        """
        model = seed(_Redraw(self.model, self.responses), key)
        args = self.arguments.fill([widened(leaf) for leaf in data])
        sites = run(model, args, lambda site: given.get(site["name"]))
        drawn = {
            name: site["value"]
            for name, site in sites.items()
            if is_latent(site) and name not in given
        }
        values = {name: jnp.asarray(sites[name]["value"]) for name in self.computed}
        return {x: jnp.moveaxis(value, self.axes[x], 0) for x, value in values.items()}, drawn

    def draw_checked(self, draws: Mapping[str, Array], key: PRNGKeyArray, data: tuple) -> "Drawn":
        """Values of m rows at s draws, and where what is drawn is not a number."""

        def note(name: str, distribution: Any, value: Array) -> dict[str, Array]:
            bad, mask = not_numbers(distribution, value)
            found = {}
            if mask is not True:
                found[_MASKED + name] = jnp.broadcast_to(bad & ~jnp.asarray(mask), value.shape)
                bad = bad & mask
            return {**found, _REFUSED + name: jnp.broadcast_to(bad, value.shape)}

        values, noted = self._draw_and_note(draws, key, data, note)

        def anywhere(mark: str) -> dict[str, Array]:
            """Where an entry is marked at some draw, of shape (m, …)."""
            found = {x: noted[mark + x] for x in self.checked if mark + x in noted}
            return {x: marked.any(axis=1) for x, marked in found.items()}

        refused = {
            name: bad.any(axis=tuple(range(1, bad.ndim)))
            for name, bad in anywhere(_REFUSED).items()
        }
        given, left_out = self._given(draws, data) if self.observed else ({}, {})
        return Drawn(values, refused, anywhere(_MASKED), given, left_out)

    def draw_with_densities(
        self, draws: Mapping[str, Array], key: PRNGKeyArray, data: tuple
    ) -> list[Array]:
        """Values of m rows at s draws, and the log-probabilities of all that is drawn for the rows.

        A response of few values, such as yes or no, is often the same with another probability.
        """

        def note(name: str, distribution: Any, value: Array) -> dict[str, Array]:
            density = plain_log_prob(unmasked(distribution)[0], value)
            events = (1,) * (value.ndim - density.ndim)
            density = density.reshape(*density.shape, *events)
            return {_DENSITY + name: jnp.broadcast_to(density, value.shape)}

        values, noted = self._draw_and_note(draws, key, data, note)
        return [*values.values(), *noted.values()]

    def _draw_and_note(
        self,
        draws: Mapping[str, Array],
        key: PRNGKeyArray,
        data: tuple,
        note: Callable[[str, Any, Array], dict[str, Array]],
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Values of m rows at s draws, and what is noted about them, all of shape (m, s, …).

        Args:
            draws: constrained draws, with a leading axis of s.
            key: a JAX random key.
            data: m rows.
            note: a function of a checked site's name, distribution and value, which returns arrays
                of the value's shape by name.
        """
        axes = {}

        def model(*args: Any, **kwargs: Any) -> None:
            redraw = _Redraw(self.model, self.responses)
            sites = trace(redraw).get_trace(*args, **kwargs)
            for name, axis in self.checked.items():
                if name in draws:
                    continue
                for mark, noted in note(
                    name, redraw.distributions[name], sites[name]["value"]
                ).items():
                    axes[mark] = axis
                    numpyro.deterministic(mark, noted)

        args, kwargs = self.arguments.fill([widened(leaf) for leaf in data])
        marks = [mark + name for name in self.checked for mark in (_REFUSED, _MASKED, _DENSITY)]
        predictive = Predictive(
            model,
            posterior_samples=dict(draws),
            return_sites=[*self.axes, *marks],
            parallel=True,
        )
        with full_precision():
            found = predictive(key, *args, **kwargs)
        values = {name: jnp.moveaxis(found[name], 1 + axis, 0) for name, axis in self.axes.items()}
        return values, {x: jnp.moveaxis(found[x], 1 + axis, 0) for x, axis in axes.items()}

    def _given(
        self, draws: Mapping[str, Array], data: tuple
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """The observations of m rows, and which rows have a masked entry."""
        first = {name: x[0] for name, x in draws.items()}

        def fill(site: Mapping) -> Any:
            return first.get(site["name"]) if is_latent(site) else None

        with full_precision():
            sites = run(self.model, self.arguments.fill([widened(leaf) for leaf in data]), fill)
        values, left_out = {}, {}
        for name in self.observed:
            site, axis = sites[name], self.axes[name]
            values[name] = jnp.moveaxis(jnp.asarray(site["value"]), axis, 0)
            if (mask := mask_of(site)) is not True:
                mask = jnp.moveaxis(mask, axis, 0)
                left_out[name] = ~mask.all(axis=tuple(range(1, mask.ndim)))
        return values, left_out


@dataclass(frozen=True, eq=False)
class Drawn:
    """What is drawn for m rows, by site.

    Attributes:
        values: the values at s draws, of shape (m, s, …).
        refused: which rows have a value that is not a number at some draw, of shape (m,).
        masked: the same of masked entries, of shape (m, …), of sites with a mask.
        observed: the observations that were passed, of shape (m, …).
        left_out: which rows of them have a masked entry, of shape (m,), of sites with a mask.
    """

    values: dict[str, Array]
    refused: dict[str, Array]
    masked: dict[str, Array]
    observed: dict[str, Array]
    left_out: dict[str, Array]


class _Redraw(uncondition):
    """Sample the sites with these names even if they are observed, and note all distributions."""

    def __init__(self, model: Callable, names: Collection[str]):
        super().__init__(model)
        self.names = names
        self.distributions: dict[str, Any] = {}

    def process_message(self, msg: Any) -> None:
        if msg["type"] != "sample":
            return
        # As the model has it: Predictive masks all sites.
        self.distributions[msg["name"]] = msg["fn"]
        if msg["name"] in self.names:
            super().process_message(msg)


@dataclass(frozen=True)
class _Site:
    shape: tuple[int, ...]
    is_given: bool
    is_drawn: bool

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


def _sites(
    model: Callable, arguments: Arguments, responses: Sequence[str], num_rows: int
) -> dict[str, _Site]:
    """The sites of the model with rows to predict, from an abstract trace."""
    found = {}

    def fill(site: Mapping) -> Any:
        return None if site["name"] in responses or _is_given(site) else fill_origin(site)

    def trace_model(*data: Any) -> None:
        with full_precision():
            sites = run(_Redraw(model, responses), arguments.fill(data), fill)
        for name, site in sites.items():
            if site["type"] in ("sample", "deterministic"):
                shape, is_drawn = tuple(jnp.shape(site["value"])), site["type"] == "sample"
                found[name] = _Site(shape, _is_given(site), is_drawn)

    shapes = [
        jax.ShapeDtypeStruct((num_rows, *x.shape[1:]), jax.dtypes.canonicalize_dtype(x.dtype))
        for x in arguments.data
    ]
    jax.eval_shape(trace_model, *shapes)
    return found


def _is_given(site: Mapping) -> bool:
    return "was_observed" in (site.get("infer") or {})
