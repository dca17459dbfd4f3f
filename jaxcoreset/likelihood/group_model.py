"""A hierarchical model with the effects of its groups integrated out, as a NumPyro model.

`GroupModel` has the shared parameters only, and one factor with an entry log p_g(φ) = log ∫ Π p(y |
z, φ) p(z | φ) dz for each group g. It is called with groups laid out as rows, see
`jaxcoreset.likelihood.group_arguments`, so that the rest of this package sees a model whose data
are groups. `MarginalModel` is called as the user's model is.

Weights multiply log p_g: a group that counts w times is w equal groups, each with an effect of its
own. If weights multiplied the joint density with a sampled effect, one effect would count w times.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jaxtyping import Array, Bool, Float, Int
from numpyro.handlers import block, substitute, trace

from jaxcoreset.data.dtypes import default_float, widened
from jaxcoreset.data.ragged import Ragged, fewest_lengths
from jaxcoreset.likelihood.arguments import Arguments, ModelError
from jaxcoreset.likelihood.group_arguments import GroupPositions, one_group
from jaxcoreset.likelihood.group_structure import GroupStructure
from jaxcoreset.likelihood.integration import Integration
from jaxcoreset.likelihood.partial_evaluation import prepare
from jaxcoreset.likelihood.trace import (
    fill_origin,
    full_precision,
    log_prob,
    needs_rows,
    run,
    summed_but,
    transform_of,
    value_at,
)

# The name of the factor with one entry per group.
GROUP_SITE = "log_likelihood_of_groups"
# Rows of groups that are evaluated at once, at each of many draws; on a CPU they fit a cache.
_CPU_ROWS, _ROWS = 256, 1 << 15


@dataclass(frozen=True, eq=False)
class GroupModel:
    """The marginal model, called with groups laid out as rows.

    Attributes:
        model: the user's model.
        tree: the structure of its flattened (args, kwargs).
        positions: the roles of the arguments.
        structure: the model's sites.
        integration: how effects are integrated out.
        names: shape (G,), the labels of the groups in the order of their numbers, where the build
            numbered them; None otherwise.
    """

    model: Callable
    tree: Any
    positions: GroupPositions
    structure: GroupStructure
    integration: Integration
    names: np.ndarray | None = dataclasses.field(default=None, repr=False)
    _memory: dict = dataclasses.field(default_factory=dict, repr=False)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Run the model; the arguments are those of the user's model, with groups laid out."""
        leaves = jax.tree.leaves((args, kwargs))
        data = [leaves[i] for i in self.positions.data_at]
        shared = self.sample_shared(leaves, [leaf[0] for leaf in data])
        values = jnp.zeros(jnp.shape(data[0])[0])
        if needs_rows():
            with block(), full_precision():
                values = self.log_marginals(shared, leaves, data, _batch_rows())
        numpyro.factor(GROUP_SITE, values)

    def with_integration(self, integration: Integration) -> "GroupModel":
        """The same model with another integral."""
        return dataclasses.replace(self, integration=integration, _memory={})

    def log_marginals(
        self,
        shared: Mapping[str, Array],
        leaves: Sequence,
        data: Sequence,
        batch_rows: int | None = None,
    ) -> Float[Array, " m"]:
        """The logs of p_g of m groups at constrained shared parameters.

        Args:
            shared: the shared parameters.
            leaves: the leaves of the layout, for what is no data.
            data: the leaves that are, with m groups.
            batch_rows: the number of rows that are evaluated at once; all by default.
        """
        # Under JAX's x64 also parameters from before it was on, as the arguments are.
        evaluate, given = self._of_one_group(leaves), jax.tree.map(_widened, dict(shared))

        def one(own: tuple) -> Array:
            return evaluate(given, own)

        data = tuple(_widened(leaf) for leaf in data)
        num_groups = data[0].shape[0]
        rows = data[self.positions.data_at.index(self.positions.rows[0])].shape[1]
        size = num_groups if batch_rows is None else max(1, batch_rows // rows)
        if size >= num_groups:
            return jax.vmap(one)(data)
        return jax.lax.map(one, data, batch_size=size)

    def _of_one_group(self, leaves: Sequence) -> Callable[[Mapping[str, Array], tuple], Array]:
        """The log of p_g of one group, from the shared parameters and the group's data.

        JAX traces it once: it is the same function as long as all that is no data is the same.
        """
        positions = self.positions
        skipped = {*positions.data_at, *positions.row_counts, *positions.group_counts}
        constants = [None if i in skipped else leaf for i, leaf in enumerate(leaves)]
        mark = default_float(), *map(id, constants)
        if self._memory.get("mark") != mark:

            def evaluate(shared: Mapping[str, Array], own: tuple) -> Array:
                return self._log_marginal(shared, constants, own)

            self._memory.update(mark=mark, constants=constants, evaluate=jax.jit(evaluate))
        return self._memory["evaluate"]

    def _log_marginal(self, shared: Mapping[str, Array], leaves: Sequence, own: tuple) -> Array:
        num_dims = self.structure.num_dims
        origin = jnp.zeros(num_dims, _float_of(shared))
        moving = OneGroup(self, shared, leaves, own)
        if not num_dims:  # a sum over discrete sites, and no integral
            return moving.log_density(origin)
        fixed = OneGroup(self, jax.lax.stop_gradient(dict(shared)), leaves, own)
        still, moving = (prepare(one.log_density, origin) for one in (fixed, moving))
        return self.integration.log_integral(still, moving, num_dims)

    def split(self, effect: Float[Array, " d"]) -> dict[str, Array]:
        """The unconstrained value of each local site from a flat effect."""
        parts, first = {}, 0
        for name, site in self.structure.local.items():
            parts[name] = effect[first : first + site.size].reshape(site.shape)
            first += site.size
        return parts

    def sample_shared(self, leaves: Sequence, own: Sequence) -> dict[str, Array]:
        """Sample the sites that are shared, as the model does, and return the latent ones."""
        structure = self.structure

        def fill(site: Mapping) -> Any:
            return fill_origin(site) if site["name"] in structure.integrated else None

        inner = block(
            substitute(self.model, substitute_fn=fill),
            hide_fn=lambda site: site["name"] in structure.hidden,
        )
        given, _ = one_group(self.positions, leaves, own)
        args, kwargs = jax.tree.unflatten(self.tree, given)
        sites = trace(inner).get_trace(*args, **kwargs)
        return {name: sites[name]["value"] for name in structure.shared}


@dataclass(frozen=True, eq=False)
class OneGroup:
    """One group at some shared parameters, as a function of its unconstrained effect.

    Attributes:
        marginal: the marginal model.
        shared: the constrained shared parameters.
        leaves: the leaves of the layout, for what is no data.
        own: the entries of the group in the leaves that are.
    """

    marginal: GroupModel
    shared: Mapping[str, Array]
    leaves: Sequence
    own: tuple

    def log_density(self, effect: Float[Array, " d"]) -> Float[Array, ""]:
        """The log of Π p(y | z, φ) p(z | φ)."""
        values = self.by_choice(effect)
        return values[0] if values.size == 1 else jax.nn.logsumexp(values)

    def by_choice(self, effect: Float[Array, " d"]) -> Float[Array, " c"]:
        """The log-densities with each value of the discrete sites, see `GroupStructure.choices`."""
        choices = self.marginal.structure.choices.tolist()
        return jnp.stack([self._joint(effect, choice) for choice in choices])

    def _joint(self, effect: Array, choice: Any) -> Float[Array, ""]:
        sites, total, mask = self.run(effect, choice)
        for name in self.marginal.structure.log_prob_dims:
            total = total + jnp.sum(log_prob(sites[name]))
        for name, dim in self.marginal.structure.rows.items():
            by_row = summed_but(log_prob(sites[name]), dim)
            # Places that are no rows may be impossible, where a group without rows repeats others.
            total = total + jnp.sum(by_row if mask is None else jnp.where(mask, by_row, 0))
        return total

    def run(
        self, effect: Float[Array, " d"], choice: Any = (), labels: Any = None
    ) -> tuple[Any, Array, Any]:
        """The trace, the log-Jacobian of the effect's transform, and the mask of the rows.

        `choice` has the positions of the discrete sites' values; `labels` are those of the rows, by
        default zeros.
        """
        marginal, log_jacobians = self.marginal, []
        chosen = dict(zip(marginal.structure.discrete, choice, strict=True))
        given, mask = one_group(marginal.positions, self.leaves, self.own, labels)
        parts = marginal.split(effect)

        def fill(site: Mapping) -> Any:
            if site["name"] in chosen:
                return value_at(site, chosen[site["name"]])
            if site["name"] not in parts:
                return self.shared[site["name"]]
            transform, part = transform_of(site), parts[site["name"]]
            value = transform(part)
            log_jacobians.append(jnp.sum(transform.log_abs_det_jacobian(part, value)))
            return value

        with block():
            sites = run(marginal.model, jax.tree.unflatten(marginal.tree, given), fill)
        return sites, sum(log_jacobians, start=jnp.zeros((), effect.dtype)), mask


class MarginalModel:
    """The marginal model of some groups, called as the user's model is.

    It takes the rows of these groups, in the order and with the labels that it was made for. Called
    otherwise, as with observations that are None for predictions, it is the user's model, whose
    effects are then sampled.

    Args:
        groups: the model.
        arguments: the groups, laid out.
    """

    def __init__(self, groups: GroupModel, arguments: Arguments):
        self.groups, self.tree = groups, arguments.tree
        self.num_groups = arguments.num_data
        labels = groups.positions.labels
        sizes = np.ones(self.num_groups, np.int64)
        if labels is not None:
            sizes = np.asarray(arguments.leaves[labels]).sum(axis=1)
        self.num_rows = int(sizes.sum())
        self._parts = _parts_of(sizes)
        # Where the parts, one after the other, have each group.
        self._places = np.argsort(np.concatenate([part.groups for part in self._parts]))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the marginal model of the groups, or the user's model of other rows."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        positions = self.groups.positions
        if tree != self.tree:
            return self.groups.model(*args, **kwargs)
        found = jnp.shape(leaves[positions.rows[0]])[:1]
        if found != (self.num_rows,):
            raise ModelError(
                f"the model got {found} rows, but it is that of {self.num_groups} groups with "
                f"{self.num_rows} rows; the coreset's own args and kwargs are expected: pass "
                "these, None for the observations to predict new rows, or use the original model."
            )
        parts = [self._data(leaves, part) for part in self._parts]
        shared = self.groups.sample_shared(leaves, [leaf[0] for leaf in parts[0]])
        with block(), full_precision():
            values = [self.groups.log_marginals(shared, leaves, data) for data in parts]
            joined = jnp.concatenate(values)[self._places.copy()]
        numpyro.factor(GROUP_SITE, joined)

    def _data(self, leaves: Sequence, part: "_Part") -> list:
        """The data of the groups of a part, laid out."""
        positions, data = self.groups.positions, []
        # JAX keeps a type for each NumPy array, whether its x64 is on or not: these are new ones.
        groups, rows, mask = part.groups.copy(), part.rows.copy(), part.mask.copy()
        for i in positions.data_at:
            if i == positions.labels:
                data.append(mask)
            else:
                data.append(jnp.asarray(leaves[i])[groups if i in positions.groups else rows])
        return data


@dataclass(frozen=True, eq=False)
class _Part:
    """Groups of about one length, which are evaluated together.

    Attributes:
        groups: their numbers.
        rows: the numbers of their rows, filled up with copies to one length.
        mask: which of these are not copies.
    """

    groups: Int[np.ndarray, " k"]
    rows: Int[np.ndarray, "k l"]
    mask: Bool[np.ndarray, "k l"]


def _parts_of(sizes: Int[np.ndarray, " m"]) -> list[_Part]:
    """Groups with these numbers of rows, which follow one another, in as few parts as will do.

    A gradient costs as much as its places: one long group must not lengthen all the other groups.
    """
    lengths, starts = fewest_lengths(sizes), np.cumsum(sizes) - sizes
    rows = Ragged(np.arange(int(sizes.sum())), starts, sizes, lengths)
    mask, length = Ragged(None, starts, sizes, lengths), np.searchsorted(lengths, sizes)
    return [
        _Part(own, rows[own], mask[own])
        for own in (np.flatnonzero(length == number) for number in np.unique(length))
    ]


def _float_of(shared: Mapping[str, Array]) -> Any:
    return jnp.result_type(float, *(jnp.result_type(value) for value in shared.values()))


def _batch_rows() -> int:
    return _CPU_ROWS if jax.default_backend() == "cpu" else _ROWS


def _widened(value: Any) -> Array:
    return widened(jnp.asarray(value))
