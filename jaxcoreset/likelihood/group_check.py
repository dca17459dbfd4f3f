"""Check that a group's rows and effects depend on no other group's effects, nor on its size.

What groups share must not depend on effects, or on how many groups there are.

The shapes of a model's sites do not show this: a row may use the effects of two groups, a running
sum of effects makes a random walk of them, and a prior may use how many rows a group has. So some
groups are evaluated together, as the model's user does, and each alone, with rows of another group
behind its own. Whether the density of an effect is computed from rows also shows in the model's
program.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval
from jaxtyping import Array, Int, PyTree

from jaxcoreset.data.chosen_groups import read_groups
from jaxcoreset.data.compiling import shared_program
from jaxcoreset.data.dtypes import default_float
from jaxcoreset.data.ragged import Ragged
from jaxcoreset.likelihood.arguments import ModelError
from jaxcoreset.likelihood.group_layout import Layout
from jaxcoreset.likelihood.group_model import GroupModel, OneGroup
from jaxcoreset.likelihood.group_structure import with_length
from jaxcoreset.likelihood.trace import (
    log_prob,
    run,
    summed_but,
    transform_of,
    value_at,
    value_shape,
)

# How many groups are compared, with how many rows each at most, and other rows beside them.
_NUM_GROUPS, _MOST_ROWS, _OTHERS = 5, 6, 2
# The widths of the unconstrained values at which they are: a dependence may vanish near zero.
_RADII = (0.5, 1.0, 2.0)
_ROUNDING = 3e-3
# At most this many numbers of groups are tried.
_MOST_NUMBERS = 100_000


def check_groups(marginal: GroupModel, layout: Layout, sizes: Int[np.ndarray, " g"]) -> set[str]:
    """Raise a ModelError if groups depend on one another, or effects on rows.

    Args:
        marginal: the marginal model.
        layout: its groups.
        sizes: the number of rows of each, by its number.

    Returns:
        The names of deterministic sites whose value for a group, or for all, depends on other
        groups or on the rows of others.
    """
    groups = _Groups.of(marginal, layout, sizes)
    points: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    for number, radius in enumerate(_RADII):
        points, shared = groups.check_at(np.random.default_rng(number), radius)
    groups.check_numbers(np.random.default_rng(len(_RADII)), sizes.size, points)
    groups.check_priors(shared)
    return groups.of_several


@dataclass(frozen=True, eq=False)
class _Groups:
    """Some groups, as the model's user has them, and each with some rows of another one.

    Attributes:
        marginal: the marginal model.
        leaves: the arguments of the model with these groups; the labels are left as they were.
        labels: shape (n,), the number of each row's group.
        alone: for what is data, the entries of each group, with rows of another one behind them.
        of_several: the deterministic sites that were found to depend on several groups.
        programs: what was compiled for these groups.
    """

    marginal: GroupModel
    leaves: list
    labels: Int[np.ndarray, " n"]
    alone: tuple
    of_several: set[str] = field(default_factory=set)
    programs: dict[str, Callable] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, marginal: GroupModel, layout: Layout, sizes: Int[np.ndarray, " g"]) -> "_Groups":
        """Some of the groups of a layout; see `check_groups`."""
        positions, leaves = marginal.positions, list(layout.arguments.leaves)
        places = _some_groups(sizes if layout.order is None else sizes[layout.order])
        data = tuple(
            leaf.shortened(_MOST_ROWS) if isinstance(leaf, Ragged) else leaf for leaf in layout.data
        )
        if positions.labels is None:
            data = tuple(np.asarray(leaf[places]) for leaf in data)
            mask = np.ones((places.size, 1), bool)
        else:
            data = tuple(leaf[:] for leaf in read_groups(data, places))
            mask = data[positions.data_at.index(positions.labels)]
        labels = np.repeat(np.arange(places.size), mask.sum(axis=1))
        alone = []
        for i, leaf in zip(positions.data_at, data, strict=True):
            added = leaf
            if i in positions.groups:
                leaves[i] = leaf
            elif i == positions.labels:
                added = np.pad(mask, ((0, 0), (0, _OTHERS)))
            else:
                leaves[i] = leaf[mask]
                if positions.labels is not None:
                    of_next = np.repeat(np.roll(leaf[:, :1], -1, axis=0), _OTHERS, axis=1)
                    added = np.concatenate([leaf, of_next], axis=1)
            alone.append(added)
        return cls(marginal, leaves, labels, tuple(alone))

    @property
    def num_groups(self) -> int:
        """The number of these groups."""
        return int(self.labels[-1]) + 1

    def check_at(
        self, generator: np.random.Generator, radius: float
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Compare the groups together with each of them alone, at a random point.

        Returns:
            The unconstrained values of the shared sites there, and the constrained ones.
        """
        structure, num_groups = self.marginal.structure, self.num_groups

        def point(shape: tuple[int, ...]) -> np.ndarray:
            return generator.uniform(-radius, radius, shape).astype(default_float())

        effects, ways = point((num_groups, structure.num_dims)), structure.choices
        choices = ways[generator.integers(len(ways), size=num_groups)]
        points = {name: point(shape) for name, shape in self._shapes_of_shared.items()}
        together, shared = self._together(effects, choices, points)
        of_rows, of_priors, of_shared, named = together
        owns = [tuple(np.asarray(leaf[g]) for leaf in self.alone) for g in range(num_groups)]
        for group, own in enumerate(owns):
            is_own = self.labels == group
            alone = self._one_alone(effects[group], choices[group], own, shared)
            rows_alone, priors_alone, shared_alone, named_alone = alone
            for name, values in of_rows.items():
                values, num = values[is_own], int(is_own.sum())
                if not _are_same(values, rows_alone[name][:num]):
                    moved = np.where((np.arange(num_groups) == group)[:, None], effects, -effects)
                    seen = self._together(moved, choices, points)[0][0][name]
                    is_same = _are_same(values, seen[is_own])
                    raise _sees_rows(name) if is_same else _crossed(name)
            for name, values in of_priors.items():
                if not _are_same(values[group], priors_alone[name].sum()):
                    raise _prior_of_group(name, name not in structure.integrated)
            for name, value in of_shared.items():
                if not _are_same(value, shared_alone[name]):
                    raise _shared_density(name)
            for name, value in named.items():
                there, axis = named_alone[name], structure.effects.get(name)
                if axis is not None:
                    value, there = (np.take(x, at, axis) for x, at in ((value, group), (there, 0)))
                if not _are_same(value, there):
                    self.of_several.add(name)
        return points, shared

    @functools.cached_property
    def _shapes_of_shared(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the unconstrained values of the sites that groups share."""
        shapes: dict[str, tuple[int, ...]] = {}

        def fill(site: Mapping) -> Any:
            transform = transform_of(site)
            shapes[site["name"]] = transform.inverse_shape(value_shape(site))
            return transform(jnp.zeros(shapes[site["name"]], default_float()))

        structure, num = self.marginal.structure, self.num_groups
        effects = jnp.zeros((num, structure.num_dims), default_float())
        choices = structure.choices[np.zeros(num, int)]
        jax.eval_shape(lambda effects: self._values(effects, choices, self.leaves, fill), effects)
        return shapes

    def _together(
        self, effects: np.ndarray, choices: np.ndarray, points: dict[str, Any]
    ) -> tuple[tuple[dict[str, np.ndarray], ...], dict[str, Any]]:
        """The densities and values of all groups, see `_values_of`, and those of the shared sites.

        Args:
            effects: shape (g, d), the effects of the groups.
            choices: shape (g, k), the positions of the values of discrete sites.
            points: the unconstrained values of the sites that groups share.
        """

        def evaluate(
            effects: Array, choices: Array, points: dict[str, Array], data: dict[int, Array]
        ) -> tuple:
            shared: dict[str, Any] = {}
            leaves = [data.get(i, leaf) for i, leaf in enumerate(self.leaves)]

            def fill(site: Mapping) -> Any:
                shared[site["name"]] = transform_of(site)(points[site["name"]])
                return shared[site["name"]]

            return self._values(effects, choices, leaves, fill), shared

        positions = self.marginal.positions
        data = {i: np.asarray(self.leaves[i]) for i in (*positions.rows, *positions.groups)}
        found, shared = self._run("together", evaluate, effects, choices, points, data)
        return _on_host(found), shared

    def _one_alone(
        self, effect: np.ndarray, choice: np.ndarray, own: tuple, shared: dict[str, Any]
    ) -> tuple[dict[str, np.ndarray], ...]:
        """The densities and values of one group by itself, see `_values_of`.

        Args:
            effect: shape (d,), the effect of the group.
            choice: shape (k,), the positions of the values of discrete sites.
            own: the data of the group.
            shared: the constrained values of the shared sites.
        """

        def evaluate(effect: Array, choice: Array, own: tuple, shared: dict) -> tuple:
            group = OneGroup(self.marginal, shared, self.leaves, own)
            return self._values_of(group.run(effect, choice)[0])

        return _on_host(self._run("alone", evaluate, effect, choice, own, shared))

    def _run(self, what: str, evaluate: Callable, *given: Any) -> Any:
        """Call a function by its program, which is made for the first of its calls."""
        if what not in self.programs:
            self.programs[what] = shared_program(evaluate, *given)
        return self.programs[what](*given)

    def _values(
        self,
        effects: Array,
        choices: Any,
        given: Sequence,
        fill_shared: Callable[[Mapping], Any],
    ) -> tuple[dict[str, Array], ...]:
        """The densities and values as the user's model has them, see `_values_of`.

        Args:
            effects: shape (g, d), the effects of the groups.
            choices: shape (g, k), the positions of the values of discrete sites.
            given: the arguments of the model with these groups.
            fill_shared: the values of the sites that groups share.
        """
        marginal, structure = self.marginal, self.marginal.structure
        parts = jax.vmap(marginal.split)(effects)

        def fill(site: Mapping) -> Any:
            name = site["name"]
            if name in structure.discrete:
                own = choices[:, list(structure.discrete).index(name)]
                dim = structure.discrete[name][1]
                return value_at(site, own.reshape(-1, *(1,) * (-dim - 1)))
            transform = transform_of(site)
            if name in structure.local:
                local = structure.local[name]
                part = jnp.moveaxis(parts[name], 0, local.dim)
                return transform(part.reshape(with_length(local.shape, local.dim, len(effects))))
            return fill_shared(site)

        labels = self.labels.astype(np.int32)
        leaves = marginal.positions.call_with(given, labels.size, len(effects), labels)
        return self._values_of(run(marginal.model, jax.tree.unflatten(marginal.tree, leaves), fill))

    def _values_of(self, sites: Mapping) -> tuple[dict, ...]:
        """Log-probabilities of rows, groups' sites and other sites of a trace of the model.

        The last dictionary has the values of the deterministic sites that are used.
        """
        structure = self.marginal.structure
        of_rows = {
            name: summed_but(log_prob(sites[name]), dim) for name, dim in structure.rows.items()
        }
        of_priors = {
            name: summed_but(log_prob(sites[name]), dim)
            for name, dim in structure.log_prob_dims.items()
        }
        of_shared = {
            name: jnp.sum(log_prob(site))
            for name, site in sites.items()
            if site["type"] == "sample" and name not in {*of_rows, *of_priors}
        }
        unused = structure.hidden - structure.effects.keys()
        named = {
            name: jnp.asarray(site["value"])
            for name, site in sites.items()
            if site["type"] == "deterministic" and name not in unused
        }
        return of_rows, of_priors, of_shared, named

    def check_numbers(
        self, generator: np.random.Generator, total: int, points: dict[str, Any]
    ) -> None:
        """Raise a ModelError if a group's rows or effect depend on the number that it has.

        The groups of a coreset are numbered anew, and each is evaluated as number 0.

        Args:
            generator: for the point.
            total: the number of all groups.
            points: the unconstrained values of the shared sites.
        """
        marginal, few = self.marginal, self.num_groups
        structure, positions = marginal.structure, marginal.positions
        if positions.labels is None:
            return
        # All numbers, each with the effect and the first row of one of these groups.
        group_of = generator.permutation(np.resize(np.arange(few), total))
        numbers = np.sort(generator.permutation(total)[:_MOST_NUMBERS])
        rows = np.searchsorted(self.labels, group_of[numbers])
        leaves = list(self.leaves)
        for i in positions.groups:
            leaves[i] = leaves[i][group_of]
        for i in positions.rows:
            leaves[i] = leaves[i][rows]
        renumbered = _Groups(marginal, leaves, numbers, self.alone)
        effects = generator.uniform(-1, 1, (few, structure.num_dims)).astype(default_float())
        choices = structure.choices[generator.integers(len(structure.choices), size=few)]
        of_rows, of_priors, *_ = self._together(effects, choices, points)[0]
        by_row, by_group, *_ = renumbered._together(effects[group_of], choices[group_of], points)[0]
        for name, values in of_rows.items():
            if not _are_same(values[rows], by_row[name]):
                raise _uses_numbers(f"a row of observed site {name!r}", total)
        for name, values in of_priors.items():
            if not _are_same(values[group_of], by_group[name]):
                raise _uses_numbers(f"the density of site {name!r} of a group", total)

    def check_priors(self, shared: Mapping[str, Any]) -> None:
        """Raise a ModelError if a density that has no rows is computed from some."""
        marginal, positions = self.marginal, self.marginal.positions
        structure = marginal.structure
        if positions.labels is None:
            return
        # A NumPy array cannot be indexed by labels that are traced.
        own = [jnp.asarray(leaf[0]) for leaf in self.alone]
        leaves = [jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in self.leaves]
        of_rows = {
            i: leaf for i, leaf in zip(positions.data_at, own, strict=True) if i in positions.rows
        }
        effect = jnp.zeros(structure.num_dims, default_float())
        names = [*structure.log_prob_dims, *structure.shared]

        def densities(labels: Any, rows: dict[int, Any]) -> list:
            data = tuple(rows.get(i, x) for i, x in zip(positions.data_at, own, strict=True))
            group = OneGroup(marginal, shared, leaves, data)
            sites = group.run(effect, structure.choices[0], labels)[0]
            return [log_prob(sites[name]) for name in names]

        labels = np.zeros(len(next(iter(of_rows.values()))), np.int32)
        program = jax.make_jaxpr(densities)(labels, of_rows).jaxpr
        for at, name in enumerate(names):
            outputs = [number == at for number in range(len(names))]
            if any(partial_eval.dce_jaxpr(program, outputs)[1]):
                if name in structure.shared:
                    raise _shared_density(name)
                raise _prior_of_group(name, name not in structure.integrated)


def _on_host(tree: PyTree) -> PyTree:
    return jax.tree.map(np.asarray, tree)


def _crossed(name: str) -> ModelError:
    return ModelError(
        f"a row of observed site {name!r} depends on the effect of a group that it is not in; "
        "expected rows that depend on the effects of their own group only. With crossed effects, "
        "name one argument as groups; the effects of the other arguments stay parameters. Effects "
        "that depend on one another, by a running sum or a sum to zero, cannot be integrated out "
        "group by group."
    )


def _sees_rows(name: str) -> ModelError:
    return ModelError(
        f"a row of observed site {name!r} depends on other rows, or on how many there are; "
        "expected rows that are independent given the parameters and the effects. Compute means, "
        "sizes and earlier values before the build, and pass them as arguments, with one entry for "
        "each row or for each group."
    )


def _uses_numbers(what: str, total: int) -> ModelError:
    return ModelError(
        f"{what} changes if its group gets another number, with the same effect; expected labels "
        "that only index arrays with one entry per group, since the groups of a coreset are "
        "numbered anew. A table of the module, or one that is longer than the groups, and "
        "comparisons such as group < 30 depend on the numbers: compute them before the build, and "
        f"pass the result as an argument with {total:,} entries, one for each group."
    )


def _prior_of_group(name: str, is_observed: bool) -> ModelError:
    if is_observed:
        return ModelError(
            f"observed site {name!r} has one entry per group, which is computed from rows; "
            "expected one entry for each row: do not sum rows by group in the model."
        )
    return ModelError(
        f"the density of site {name!r} of a group depends on other groups or on the rows; expected "
        "effects that are independent given the shared parameters, with a prior that does not use "
        "rows, nor how many there are: pass what it needs as an argument with one row per group."
    )


def _shared_density(name: str) -> ModelError:
    return ModelError(
        f"the density of site {name!r}, which all groups share, depends on the effects of groups, "
        "on their number or on their rows; expected one that depends on shared parameters only. A "
        "soft sum to zero cannot be integrated out group by group: leave it out, or use "
        "groups=None with the effects as parameters. Compute what a prior takes from the data "
        "before the build, and pass it as an argument."
    )


def _some_groups(sizes: Int[np.ndarray, " g"]) -> Int[np.ndarray, " m"]:
    """Groups of different sizes that have rows."""
    there = np.flatnonzero(sizes)
    order = there[np.argsort(sizes[there], kind="stable")]
    return np.unique(order[np.linspace(0, order.size - 1, _NUM_GROUPS).round().astype(int)])


def _are_same(one: Any, other: Any) -> bool:
    one, other = np.asarray(one, float), np.asarray(other, float)
    close = np.abs(one - other) <= _ROUNDING * (1 + np.abs(one))
    return bool(np.all(close | ~np.isfinite(one)))
