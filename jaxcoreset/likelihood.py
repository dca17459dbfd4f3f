"""From a NumPyro model and its arguments to one log-likelihood per datum, and to a weighted model.

A coreset needs two things of a model. The first is log p(y_i | θ) for each datum i: here a
`ModelLikelihood`, made by `model_likelihood(model, args, kwargs)`. The second is the model again
with datum i counted w_i times: `weighted_model(likelihood, weights)`.

The words used below. A *site* is a `numpyro.sample` or `numpyro.factor` statement. The *data axis*
is the one dimension of an observed site's log-probability that grows with the rows of the data;
mostly it is the dimension of the model's data plate, but a model without plates has one too. It is
found by tracing the model abstractly with two numbers of rows and looking at which dimension
followed; so nothing is guessed from names, and nothing of the data's length is computed. *Latent*
sites are the parameters θ; *unconstrained* values of them are what NUTS moves in. Observed sites
without a data axis belong to everything that is not summed over data: they are counted once, with
the prior.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float
from numpyro.distributions.transforms import biject_to
from numpyro.handlers import seed, substitute, trace
from numpyro.infer.util import constrain_fn, potential_energy, unconstrain_fn
from numpyro.primitives import Messenger

# Two row counts for the abstract traces: primes, so that no other axis is likely to have them.
_ABSTRACT_ROWS = (31, 37)
# Rows for the check that data do not see one another. They are few, since the check is repeated
# for two parameter values, and odd in part, so that means of binary columns cannot coincide.
_PROBE_ROWS = 32
_PROBE_ROWS_DROPPED_TO = 13
# Entries of data in one chunk of the pass over all rows: 64 MB in float32.
_CHUNK_ENTRIES = 2**24
_CHUNK_ROWS = 2**16
# Widths of the uniform draws tried for a starting point. Small ones first: an optimiser starts
# well near zero, but not at it, where products of parameters have a saddle.
_START_RADII = (0.1, 0.1, 0.5, 1.0, 2.0, 2.0)

_VALUE_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


class ModelError(ValueError):
    """A model or its arguments cannot be used; the message says which part, and what to do."""


class _FixedSizeError(ModelError):
    """The model has a size that does not follow the rows of its arguments."""


# --------------------------------------------------------------------------------------------------
# The model's arguments


@dataclass(frozen=True, eq=False)
class _Arguments:
    """The model's (args, kwargs), flattened, with the positions of the data leaves."""

    tree: Any
    leaves: tuple
    names: tuple[str, ...]
    positional: tuple[str, ...]
    data_at: tuple[int, ...] = ()
    # Integers that hold the number of rows, as in model(X, y, n); they follow the data.
    counts_at: tuple[int, ...] = ()

    def fill(self, data: Sequence) -> tuple[tuple, dict]:
        leaves = list(self.leaves)
        for position, rows in zip(self.data_at, data, strict=True):
            leaves[position] = rows
        for position in self.counts_at:
            leaves[position] = data[0].shape[0]
        return jax.tree.unflatten(self.tree, leaves)

    def data(self) -> tuple:
        return tuple(self.leaves[position] for position in self.data_at)

    def shapes(self) -> str:
        """How the model was called, for messages."""
        arrays = [
            f"{name} {tuple(leaf.shape)}"
            for name, leaf in zip(self.names, self.leaves, strict=True)
            if _is_array(leaf)
        ]
        return ", ".join(arrays) or "no arrays"


def _is_array(leaf: Any) -> bool:
    """Whether a leaf could be data: an array of numbers with at least one axis."""
    if not isinstance(leaf, np.ndarray | jax.Array) or leaf.ndim == 0:
        return False
    return jnp.issubdtype(leaf.dtype, np.number) or leaf.dtype == np.bool_


def _flatten(model: Callable, args: tuple, kwargs: dict) -> _Arguments:
    paths, tree = jax.tree_util.tree_flatten_with_path((args, kwargs))
    positional = _positional_names(model, len(args))
    names = []
    for (group, argument, *rest), leaf in paths:
        name = positional[argument.idx] if group.idx == 0 else str(argument.key)
        names.append(name + jax.tree_util.keystr(tuple(rest)))
        if hasattr(leaf, "to_numpy"):
            raise ModelError(
                f"argument {names[-1]} is a {type(leaf).__name__}; arrays of numbers are wanted: "
                "pass its .to_numpy()."
            )
    return _Arguments(tree, tuple(leaf for _, leaf in paths), tuple(names), positional)


def _positional_names(model: Callable, count: int) -> tuple[str, ...]:
    try:
        parameters = list(inspect.signature(model).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in kinds][:count]
    return (*names, *(f"number {i}" for i in range(len(names), count)))


def _find_data(model: Callable, arguments: _Arguments, plate: str | None) -> _Arguments:
    """Marks as data the array leaves whose leading axis is as long as the data plate."""
    arrays = [i for i, leaf in enumerate(arguments.leaves) if _is_array(leaf)]
    if not arrays:
        raise ModelError(
            "no argument of the model is an array of numbers, so there are no data to choose rows "
            "from: pass the data as arguments of the model, not through a closure."
        )
    for i in arrays:
        if arguments.leaves[i].shape[0] == 0:
            raise ModelError(
                f"argument {arguments.names[i]} has 0 rows; at least one is wanted: pass the data."
            )
    sites = _call_with_all_rows(model, dataclasses.replace(arguments, data_at=tuple(arrays)))
    lengths = {arguments.leaves[i].shape[0] for i in arrays}
    num_data = _data_size(sites, lengths, plate, arguments)
    for name, leaf in zip(arguments.names, arguments.leaves, strict=True):
        if isinstance(leaf, np.ndarray) and not _is_array(leaf) and leaf.shape[:1] == (num_data,):
            raise ModelError(
                f"argument {name} has as many rows as the data and dtype {leaf.dtype}; numbers are "
                "wanted: encode it as numbers first."
            )
    data_at = tuple(i for i in arrays if arguments.leaves[i].shape[0] == num_data)
    return dataclasses.replace(arguments, data_at=data_at)


def _data_size(
    sites: "list[_Site]", lengths: set[int], plate: str | None, arguments: _Arguments
) -> int:
    """The number of data: the largest size along an observed site that an argument has too."""
    observed = _observed(sites)
    if plate is not None:
        sizes = {site.plates[plate] for site in observed if plate in site.plates}
        if not sizes:
            known = sorted({name for site in observed for name in site.plates})
            raise ModelError(
                f"plate={plate!r} holds no observed site; plates that do: {known or 'none'}: "
                "name one of these."
            )
    else:
        sizes = {size for site in observed for size in _candidate_sizes(site)}
    if not sizes & lengths:
        if not sizes:
            raise _not_independent(observed[0].name, "is a single number")
        raise ModelError(
            f"no argument has a leading axis as long as the observed sites (sizes "
            f"{sorted(sizes)}; arguments: {arguments.shapes()}): pass the data with one row per "
            "datum, as arguments of the model."
        )
    return max(sizes & lengths)


def _candidate_sizes(site: "_Site") -> set[int]:
    if site.plates:
        return set(site.plates.values())
    return set(site.shape[:1]) & set(site.log_prob_shape) or set(site.log_prob_shape)


def _given_data(arguments: _Arguments, args: tuple, kwargs: dict, data_axes: Any) -> _Arguments:
    """Marks as data what `data_axes` says, and checks that the rows agree."""
    axes = _axes_by_leaf(arguments, args, kwargs, data_axes)
    chosen = tuple(i for i, axis in enumerate(axes) if axis is not None)
    if not chosen:
        raise ModelError("data_axes names no data argument: give axis 0 to those that hold data.")
    for i in chosen:
        if not _is_array(arguments.leaves[i]):
            found = type(arguments.leaves[i]).__name__
            raise ModelError(
                f"data_axes gives axis 0 to argument {arguments.names[i]}, which is a {found}; an "
                "array of numbers with one row per datum is wanted: give it None, or an array."
            )
    rows = {arguments.names[i]: arguments.leaves[i].shape[0] for i in chosen}
    if len(set(rows.values())) > 1:
        raise ModelError(_unequal(rows))
    if 0 in rows.values():
        raise ModelError(
            f"argument {arguments.names[chosen[0]]} has 0 rows; at least one is wanted: pass the "
            "data."
        )
    return dataclasses.replace(arguments, data_at=chosen)


def _unequal(rows: Mapping[str, int]) -> str:
    listed = " and ".join(f"{name} has {count} rows" for name, count in rows.items())
    return f"argument {listed}; data arguments need equally many: pass one row per datum in each."


def _axes_by_leaf(arguments: _Arguments, args: tuple, kwargs: dict, data_axes: Any) -> list:
    """One entry (0 or None) per leaf, from a prefix of the arguments."""
    if isinstance(data_axes, Mapping):
        names = arguments.positional
        unknown = set(data_axes) - set(names) - set(kwargs)
        if unknown:
            raise ModelError(
                f"data_axes names {sorted(map(str, unknown))}; the arguments given are "
                f"{[*names, *kwargs]}: use these names."
            )
        by_position = tuple(data_axes.get(name) for name in names)
        by_keyword = {name: data_axes.get(name) for name in kwargs}
    else:
        by_position, by_keyword = _split_axes(data_axes, args, kwargs)

    axes: list = []

    def spread(axis: Any, part: Any) -> None:
        if axis is not None and (isinstance(axis, bool) or axis != 0):
            raise ModelError(
                f"data_axes has the entry {axis!r}; 0 (one datum per row) or None (not data) is "
                "wanted: move the data's axis to the front."
            )
        axes.extend([axis] * len(jax.tree.leaves(part)))

    try:
        jax.tree.map(
            spread, (by_position, by_keyword), (args, kwargs), is_leaf=lambda axis: axis is None
        )
    except ModelError:
        raise
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"data_axes={data_axes!r} does not fit the arguments ({arguments.shapes()}); a prefix "
            f"of their structure is wanted, as for vmap's in_axes: {error}"
        ) from error
    return axes


def _split_axes(data_axes: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """A tuple of one entry per positional argument, and perhaps a dict for the keywords."""
    entries = tuple(data_axes) if isinstance(data_axes, tuple | list) else (data_axes,) * len(args)
    by_keyword: Mapping = {}
    if len(entries) == len(args) + 1 and isinstance(entries[-1], Mapping):
        *entries, by_keyword = entries
    if len(entries) != len(args) or set(by_keyword) - set(kwargs):
        raise ModelError(
            f"data_axes={data_axes!r} does not fit {len(args)} positional arguments and the "
            f"keywords {list(kwargs)}; one entry per positional argument is wanted, then a dict "
            "for keywords, or one dict by argument name."
        )
    return tuple(entries), {name: by_keyword.get(name) for name in kwargs}


# --------------------------------------------------------------------------------------------------
# Running the model, abstractly and on rows


@dataclass(frozen=True)
class _Site:
    """What one trace says of a latent or observed site."""

    name: str
    observed: bool
    shape: tuple[int, ...]
    log_prob_shape: tuple[int, ...]
    unconstrained_shape: tuple[int, ...]
    plates: dict[str, int]


def _observed(sites: list[_Site]) -> list[_Site]:
    return [site for site in sites if site.observed]


def _run(model: Callable, arguments: tuple[tuple, dict], fill: Callable) -> Any:
    """Traces the model, latent sites set by `fill`. Call it under `_full_precision`."""
    args, kwargs = arguments
    # The key serves models that ask for one; every latent site is filled.
    filled = seed(substitute(model, substitute_fn=fill), rng_seed=0)
    return trace(filled).get_trace(*args, **kwargs)


def _full_precision() -> Any:
    """Products in the model at full float32.

    On a GPU the default rounds inputs to 10 bits, and a sum over all the data inherits that.
    """
    return jax.default_matmul_precision("highest")


def _is_latent(site: Mapping) -> bool:
    return site["type"] == "sample" and not site["is_observed"]


def _log_prob(site: Mapping) -> Any:
    log_prob = site["fn"].log_prob(site["value"])
    return log_prob if site["scale"] is None else site["scale"] * log_prob


def _fill_origin(site: Mapping) -> Any:
    """Sets a latent site to the image of unconstrained zero: its shape needs no random draw."""
    if not _is_latent(site):
        return None
    name, distribution = site["name"], site["fn"]
    if distribution.support is None or distribution.support.is_discrete:
        raise ModelError(
            f"latent site {name!r} is discrete ({type(distribution).__name__}); continuous "
            "parameters are wanted: sum it out of the model by hand."
        )
    shape = site["kwargs"].get("sample_shape", ()) + distribution.shape()
    transform = _transform(site)
    return transform(jnp.zeros(transform.inverse_shape(shape)))


def _transform(site: Mapping) -> Any:
    try:
        return biject_to(site["fn"].support)
    except NotImplementedError as error:
        raise ModelError(
            f"latent site {site['name']!r} has the support {site['fn'].support}, which has no "
            "transform to unconstrained values: reparametrise it (numpyro.handlers.reparam)."
        ) from error


def _describe(model_trace: Mapping) -> list[_Site]:
    sites = []
    for name, site in model_trace.items():
        if site["type"] == "param":
            raise ModelError(
                f"site {name!r} is a numpyro.param, which has no posterior; a numpyro.sample is "
                "wanted: give it a prior, or pass its value as an argument."
            )
        if site["type"] == "plate":
            _refuse_subsampling(name, *site["args"])
        if site["type"] == "sample":
            sites.append(_describe_sample(name, site))
    return sites


def _refuse_subsampling(name: str, size: int, subsample_size: int | None) -> None:
    if subsample_size is not None and subsample_size != size:
        raise ModelError(
            f"plate {name!r} subsamples {subsample_size} of {size} rows; a plate over all rows is "
            "wanted, since the coreset takes the subsample's place: drop subsample_size."
        )


def _describe_sample(name: str, site: Mapping) -> _Site:
    observed = site["is_observed"]
    shape = tuple(jnp.shape(site["value"]))
    return _Site(
        name=name,
        observed=observed,
        shape=shape,
        log_prob_shape=tuple(jnp.shape(_log_prob(site))) if observed else (),
        unconstrained_shape=() if observed else tuple(_transform(site).inverse_shape(shape)),
        plates={frame.name: frame.size for frame in site["cond_indep_stack"]},
    )


def _sites(model: Callable, arguments: _Arguments, data: Sequence) -> list[_Site]:
    """The model's sites, from an abstract trace: no entry of `data` is read."""
    found: list[_Site] = []

    def describe(rows: tuple) -> None:
        with _full_precision():
            found.extend(_describe(_run(model, arguments.fill(rows), _fill_origin)))

    jax.eval_shape(describe, tuple(data))
    return found


def _abstract(leaf: Any, num_rows: int) -> jax.ShapeDtypeStruct:
    # The dtype that JAX gives the leaf, which is float32 for float64 where x64 is off.
    dtype = leaf.dtype if isinstance(leaf, jax.Array) else jnp.asarray(leaf[:1]).dtype
    return jax.ShapeDtypeStruct((num_rows, *leaf.shape[1:]), dtype)


def _call_with_all_rows(model: Callable, arguments: _Arguments) -> list[_Site]:
    """The sites of the model as its user calls it; what the model raises surfaces unchanged."""
    abstract = [_abstract(leaf, leaf.shape[0]) for leaf in arguments.data()]
    try:
        try:
            sites = _sites(model, arguments, abstract)
        except _VALUE_ERRORS:
            # Perhaps an array that is no data, such as spline knots, is read as numbers.
            with _full_precision():
                real = arguments.fill(arguments.data())
                sites = _describe(_run(model, real, _fill_origin))
    except ModelError:
        raise
    except Exception as error:
        _explain_unequal_rows(error, arguments)
        error.add_note(f"raised by the model when jaxcoreset called it with {arguments.shapes()}")
        raise
    if not _observed(sites):
        raise ModelError(
            "the model has no observed site; at least one numpyro.sample(..., obs=...) or "
            "numpyro.factor is wanted: pass the observations (is an argument None?)."
        )
    if all(site.observed for site in sites):
        raise ModelError("the model has no latent site, so there is no posterior to keep.")
    return sites


def _explain_unequal_rows(error: Exception, arguments: _Arguments) -> None:
    """Where shapes clash and the two longest arguments nearly agree, that is the likely cause."""
    if not re.search("shape|broadcast|dimension", str(error)):
        return
    rows = {
        name: leaf.shape[0]
        for name, leaf in zip(arguments.names, arguments.leaves, strict=True)
        if _is_array(leaf)
    }
    longest = max(rows.values(), default=0)
    close = {name: count for name, count in rows.items() if 2 * count > longest}
    if len(set(close.values())) > 1:
        raise ModelError(f"{_unequal(close)} The model said: {error}") from error


def _call_with_rows(model: Callable, arguments: _Arguments, num_rows: int) -> list[_Site]:
    """The sites for another number of rows, which a usable model accepts."""
    abstract = [_abstract(leaf, num_rows) for leaf in arguments.data()]
    try:
        return _sites(model, arguments, abstract)
    except ModelError:
        raise
    except _VALUE_ERRORS as error:
        raise ModelError(
            f"the model reads values of a data argument ({arguments.shapes()}) as Python numbers "
            "or array sizes; these would change with the rows: pass them, for instance the number "
            "of groups, as arguments of their own, and use jax.numpy on data."
        ) from error
    except Exception as error:
        raise _FixedSizeError(
            f"the model runs with all the rows but not with {num_rows} of them; sizes are to come "
            "from the data arguments (X.shape[0]), and arrays with one row per datum are to be "
            f"arguments: change the model so. It was called with {arguments.shapes()} and said: "
            f"{error}"
        ) from error


# --------------------------------------------------------------------------------------------------
# The data axis


@dataclass(frozen=True)
class _Structure:
    arguments: _Arguments
    data_dims: dict[str, int]
    plate: str | None
    latent_shapes: dict[str, tuple[int, ...]]


def _structure(model: Callable, arguments: _Arguments, plate: str | None) -> _Structure:
    """Finds the data axes; an integer argument equal to n counts rows if the model needs that."""
    try:
        return _structure_of(model, arguments, plate)
    except _FixedSizeError:
        num_data = arguments.data()[0].shape[0]
        counts = tuple(
            i
            for i, leaf in enumerate(arguments.leaves)
            if isinstance(leaf, int | np.integer)
            and leaf == num_data
            and not isinstance(leaf, bool)
        )
        if not counts:
            raise
    return _structure_of(model, dataclasses.replace(arguments, counts_at=counts), plate)


def _structure_of(model: Callable, arguments: _Arguments, plate: str | None) -> _Structure:
    few, more = (_call_with_rows(model, arguments, rows) for rows in _ABSTRACT_ROWS)
    changed = {site.name for site in few} ^ {site.name for site in more}
    if changed:
        raise ModelError(
            f"the sites {sorted(changed)[:3]} come and go with the number of rows; the same sites "
            "for any rows are wanted: sample all rows in one site, within a plate."
        )
    pairs = list(zip(few, more, strict=True))
    for site, other in pairs:
        if not site.observed and site.shape != other.shape:
            raise _per_datum_latent(site)
    dims = {site.name: _data_dim(site, other) for site, other in pairs if site.observed}
    data_dims = {name: dim for name, dim in dims.items() if dim is not None}
    if not data_dims:
        num_data = arguments.data()[0].shape[0]
        _refuse_fixed_plate(few, num_data)
        raise _not_independent(next(iter(dims)), "does not grow with the rows")
    return _Structure(
        arguments=arguments,
        data_dims=data_dims,
        plate=_plate_name(pairs, data_dims, plate),
        latent_shapes={site.name: site.unconstrained_shape for site in few if not site.observed},
    )


def _data_dim(few: _Site, more: _Site) -> int | None:
    """The dimension, counted from the right, in which the log-probability follows the rows."""
    shapes = few.log_prob_shape, more.log_prob_shape
    if shapes[0] == shapes[1]:
        if few.shape != more.shape:
            raise _not_independent(few.name, "does not grow with the rows, though its value does")
        return None
    if len(shapes[0]) != len(shapes[1]):
        raise _not_independent(few.name, "has another number of axes for other rows")
    dims = [d for d in range(-len(shapes[0]), 0) if shapes[0][d] != shapes[1][d]]
    if len(dims) > 1:
        raise _not_independent(
            few.name,
            "grows with the rows in two axes (is one of its arrays of shape (n, 1), another (n,)?)",
        )
    if (shapes[0][dims[0]], shapes[1][dims[0]]) != _ABSTRACT_ROWS:
        raise _not_independent(few.name, "has not one entry per row")
    return dims[0]


def _not_independent(name: str, found: str) -> ModelError:
    return ModelError(
        f"the log-probability of observed site {name!r} {found}; one entry per datum is wanted, "
        "with the data conditionally independent given the parameters: drop to_event over the "
        "data, do not sum over them in numpyro.factor, and do not use a joint distribution over "
        "them (a multivariate normal, a Gaussian process, a time series)."
    )


def _per_datum_latent(site: _Site) -> ModelError:
    cause = "obs_mask makes such a site: " if site.name.endswith("_unobserved") else ""
    return ModelError(
        f"latent site {site.name!r} grows with the rows; a coreset keeps few rows, so parameters "
        f"must be shared by all of them: {cause}integrate it out by hand, or index group effects "
        "of a fixed number by a column of the data."
    )


def _refuse_fixed_plate(sites: list[_Site], num_data: int) -> None:
    for site in _observed(sites):
        for name, size in site.plates.items():
            if size == num_data:
                raise _FixedSizeError(
                    f"plate {name!r} has the size {size} whatever rows are passed; a size that "
                    "follows the data is wanted: take it from an argument (X.shape[0])."
                )


def _plate_name(pairs: list, data_dims: Mapping[str, int], plate: str | None) -> str | None:
    growing = [
        name
        for site, other in pairs
        if site.name in data_dims
        for name, size in site.plates.items()
        if other.plates.get(name) != size
    ]
    if plate is not None and plate not in growing:
        raise _FixedSizeError(
            f"plate {plate!r} has a fixed size, whatever rows are passed; a size that follows the "
            "data is wanted: take it from an argument (X.shape[0])."
        )
    return plate if plate is not None or not growing else growing[0]


# --------------------------------------------------------------------------------------------------
# The likelihood


class _HideData(Messenger):
    """Leaves the log-probabilities of the sites in the data axis out, uncomputed."""

    def __init__(self, fn: Callable, names: Sequence[str]):
        super().__init__(fn)
        self.names = names

    def process_message(self, msg: Any) -> None:
        if msg["type"] == "sample" and msg["name"] in self.names:
            msg["fn"] = msg["fn"].mask(False)


@dataclass(frozen=True, eq=False)
class ModelLikelihood:
    """A NumPyro model as per-datum log-likelihoods and a prior; made by `model_likelihood`.

    The methods that take `params` are pure, and may be differentiated, compiled and vmapped over
    draws. They trace the model with the rows that they are given, so under `jax.jit` they compile
    once per number of rows. Products within the model are computed at full float32 precision.

    Attributes:
        model: the model, as the user wrote it.
        num_data: the number of data, n.
        data: the arguments, or leaves of them, that hold one row per datum, in a stable order;
            NumPy arrays stay on the host.
        plate: the name of the data plate; None in a model without one.
        data_dims: for each observed site in the data axis its dimension, counted from the right.
        init_params: unconstrained values of the latent sites at which the log-density of all the
            data is finite; their names and shapes are those of any `params`.
    """

    model: Callable
    num_data: int
    data: tuple
    plate: str | None
    data_dims: dict[str, int]
    init_params: dict[str, Array]
    _arguments: _Arguments = field(repr=False)
    _few_rows: tuple = field(repr=False)

    @property
    def observed_sites(self) -> tuple[str, ...]:
        """The observed sites in the data axis."""
        return tuple(self.data_dims)

    @property
    def latent_sites(self) -> tuple[str, ...]:
        """The latent sites, which are the keys of any `params`."""
        return tuple(self.init_params)

    def assemble(self, data: Sequence) -> tuple[tuple, dict]:
        """The model's (args, kwargs) with `data` in place of the data leaves.

        Args:
            data: one array per entry of `self.data`, each with the same number of rows.

        Returns:
            The arguments; all that is not data is what `model_likelihood` was given, but for an
            integer that counts the rows, which follows `data`.
        """
        return self._arguments.fill(data)

    def take(self, indices: Any) -> tuple:
        """The data leaves at the given rows; NumPy leaves stay NumPy.

        Args:
            indices: row numbers, shape (m,), each in [0, n).

        Raises:
            IndexError: a row number is outside [0, n).
        """
        indices = np.asarray(indices)
        if indices.size and (indices.min() < 0 or indices.max() >= self.num_data):
            raise IndexError(
                f"indices run from {indices.min()} to {indices.max()}; row numbers from 0 to "
                f"{self.num_data - 1} are wanted."
            )
        return tuple(leaf[indices] for leaf in self.data)

    def rows(self, start: int, size: int) -> tuple:
        """Rows start, …, start + size − 1 of the data leaves, for passes in chunks of fixed size.

        NumPy leaves give views. JAX leaves are sliced with `start` as data, so that all chunks of
        one size share a compiled slice.

        Raises:
            IndexError: the rows are not all in [0, n).
        """
        if not 0 <= start <= start + size <= self.num_data:
            raise IndexError(
                f"rows {start} to {start + size - 1} were asked for; there are {self.num_data}."
            )
        return tuple(
            jax.lax.dynamic_slice_in_dim(leaf, start, size)
            if isinstance(leaf, jax.Array)
            else leaf[start : start + size]
            for leaf in self.data
        )

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
        return self._total(self._fill_unconstrained(params), data)

    def log_likelihood_constrained(
        self, params: Mapping[str, Any], data: Sequence
    ) -> Float[Array, " m"]:
        """As `log_likelihood`, at parameters as the model and `MCMC.get_samples` have them."""
        return self._total(self._fill_constrained(params), data)

    def log_prior(self, params: Mapping[str, Any]) -> Float[Array, ""]:
        """The log-density of all that is not summed over data, at unconstrained parameters.

        It is the log prior, plus log |det| of the Jacobian of the transform to constrained values,
        plus the observed sites outside the data axis. Two rows of the data are all it looks at.

        Raises:
            ModelError: `params` lacks a latent site.
        """
        hidden = seed(_HideData(self.model, self.observed_sites), rng_seed=0)
        with _full_precision():
            energy = potential_energy(
                hidden, *self.assemble(self._few_rows), self._only_latent(params)
            )
        return -jnp.asarray(energy)

    def constrain(self, params: Mapping[str, Any]) -> dict[str, Array]:
        """Constrained values of the latent sites from unconstrained ones."""
        model = seed(self.model, rng_seed=0)
        return constrain_fn(model, *self.assemble(self._few_rows), self._only_latent(params))

    def unconstrain(self, params: Mapping[str, Any]) -> dict[str, Array]:
        """Unconstrained values of the latent sites from constrained; other keys are ignored."""
        model = seed(self.model, rng_seed=0)
        return unconstrain_fn(model, *self.assemble(self._few_rows), self._only_latent(params))

    def _only_latent(self, params: Mapping[str, Any]) -> dict[str, Array]:
        missing = [name for name in self.latent_sites if name not in params]
        if missing:
            raise ModelError(
                f"params lacks the latent sites {missing}; values for {list(self.latent_sites)} "
                f"are wanted and {list(params)} were given: add them."
            )
        return {name: jnp.asarray(params[name]) for name in self.latent_sites}

    def _fill_unconstrained(self, params: Mapping[str, Any]) -> Callable:
        values = self._only_latent(params)

        def fill(site: Mapping) -> Any:
            if _is_latent(site) and site["name"] in values:
                return biject_to(site["fn"].support)(values[site["name"]])
            return None

        return fill

    def _fill_constrained(self, params: Mapping[str, Any]) -> Callable:
        values = self._only_latent(params)
        return lambda site: values.get(site["name"]) if _is_latent(site) else None

    def _total(self, fill: Callable, data: Sequence) -> Float[Array, " m"]:
        per_site, _ = self._by_site(fill, data)
        first, *others = per_site.values()
        return sum(others, start=first)

    def _by_site(self, fill: Callable, data: Sequence) -> tuple[dict, dict]:
        """Log-likelihoods (m,) of the sites in the data axis; sums for all the other sites."""
        per_datum, others = {}, {}
        with _full_precision():
            model_trace = _run(self.model, self.assemble(data), fill)
            for name, site in model_trace.items():
                if name in self.data_dims:
                    per_datum[name] = self._per_datum(site, data[0].shape[0])
                elif site["type"] == "sample":
                    others[name] = jnp.sum(_log_prob(site))
        # In the order of data_dims: a dict that a compiled function returns comes back sorted.
        return {name: per_datum[name] for name in self.data_dims}, others

    def _per_datum(self, site: Mapping, num_rows: int) -> Array:
        log_prob = _log_prob(site)
        dim = self.data_dims[site["name"]]
        if log_prob.ndim < -dim or log_prob.shape[dim] != num_rows:
            raise _not_independent(site["name"], f"has the shape {log_prob.shape}")
        axis = log_prob.ndim + dim
        return jnp.sum(log_prob, axis=tuple(a for a in range(log_prob.ndim) if a != axis))


def model_likelihood(
    model: Callable,
    args: Sequence = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    data_axes: Any = None,
    plate: str | None = None,
    key: Array | None = None,
) -> ModelLikelihood:
    """Turns a NumPyro model and its arguments into per-datum log-likelihoods and a prior.

    Which arguments are data is found by itself: every array, in pytrees and keywords too, whose
    leading axis is as long as the data plate, the longest plate of an observed site that an
    argument matches; without plates, as long as an observed site's leading axis. Where that is not
    what is meant, say so by `data_axes` or `plate`. An integer argument equal to n follows the rows
    if the model does not run with fewer rows otherwise, as where it is the plate's size.

    The model is checked on the way. It is traced abstractly for two row counts, evaluated on two
    overlapping subsets of at most 32 rows, whose values must agree, and on all rows once, in
    chunks, at a starting point.

    Args:
        model: a NumPyro model. It may be wrapped in handlers.
        args: its positional arguments, with all the rows, as in `MCMC.run`.
        kwargs: its keyword arguments.
        data_axes: which arguments are data, like `in_axes` of `jax.vmap`: 0 for one row per datum,
            None for no data, each for an argument or a pytree prefix of one. Either a dict by
            argument name, positional or keyword ({"X": 0, "y": 0}; what is not named is no data),
            or a tuple with one entry per positional argument, and after them, where keyword
            arguments are data, a dict for these: (0, None, {"y": 0}). A bare 0 stands for all
            positional arguments.
        plate: the name of the data plate, where several would do.
        key: for the starting point and the rows of the checks; `jax.random.key(0)` by default.

    Returns:
        The likelihood.

    Raises:
        ModelError: the model has no observed or no latent site, subsamples, has discrete or
            per-datum latent sites or `numpyro.param` sites; data are not conditionally independent
            given the parameters, or the prior or a datum's likelihood changes when rows are
            dropped; no argument holds data, or data arguments differ in their number of rows, or
            have none; the likelihood is not finite (the rows are named). What the model itself
            raises surfaces unchanged, with a note on how it was called.
    """
    args, kwargs = tuple(args), dict(kwargs or {})
    arguments = _flatten(model, args, kwargs)
    if data_axes is None:
        arguments = _find_data(model, arguments, plate)
    else:
        arguments = _given_data(arguments, args, kwargs, data_axes)
        _call_with_all_rows(model, arguments)
    structure = _structure(model, arguments, plate)
    data = arguments.data()
    likelihood = ModelLikelihood(
        model=model,
        num_data=data[0].shape[0],
        data=data,
        plate=structure.plate,
        data_dims=structure.data_dims,
        init_params={name: jnp.zeros(shape) for name, shape in structure.latent_shapes.items()},
        _arguments=structure.arguments,
        _few_rows=tuple(leaf[:2] for leaf in data),
    )
    random = _generator(jax.random.key(0) if key is None else key)
    start = _starting_point(likelihood, random)
    # Near zero a standardisation hardly shows, so a point farther out is looked at as well.
    _check_rows_apart(likelihood, (_draw(likelihood, random, 1.0), start), random)
    return dataclasses.replace(likelihood, init_params=start)


# --------------------------------------------------------------------------------------------------
# Checks by value


def check_log_likelihood(
    values: Array | np.ndarray, rows: Any = None, *, axis: int = -1, where: str = "at a draw"
) -> None:
    """Raises an error that names the rows where a log-likelihood is NaN, +inf or -inf.

    Args:
        values: log-likelihoods, with one axis over data; on the host or a device, not traced.
        rows: the row number of each entry along that axis, shape (m,); 0, …, m − 1 by default.
        axis: the axis over data.
        where: at what parameters, for the message.

    Raises:
        ModelError: an entry is not finite.
    """
    values = np.moveaxis(np.asarray(values), axis, 0)
    values = values.reshape(values.shape[0], -1)
    rows = np.arange(len(values)) if rows is None else np.asarray(rows)
    kinds = {"NaN": np.isnan, "+inf": np.isposinf, "-inf": np.isneginf}
    found = [
        f"{kind} in {_list_rows(rows[bad])}"
        for kind, is_kind in kinds.items()
        if (bad := is_kind(values).any(axis=1)).any()
    ]
    if found:
        raise ModelError(
            f"the log-likelihood {where} is {', '.join(found)}; a finite one is wanted for every "
            "row: mend or drop these rows, or keep the model's parameters where it is finite."
        )


def _list_rows(rows: np.ndarray) -> str:
    listed = ", ".join(str(row) for row in rows[:5])
    more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
    return f"row{'s' if len(rows) > 1 else ''} {listed}{more}"


def _generator(key: Array) -> np.random.Generator:
    return np.random.default_rng(np.asarray(jax.random.bits(key, (4,), "uint32")))


def _draw(
    likelihood: ModelLikelihood, random: np.random.Generator, radius: float
) -> dict[str, Array]:
    return {
        name: jnp.asarray(random.uniform(-radius, radius, zero.shape), zero.dtype)
        for name, zero in likelihood.init_params.items()
    }


def _starting_point(likelihood: ModelLikelihood, random: np.random.Generator) -> dict[str, Array]:
    """Unconstrained values at which the log prior and all the log-likelihoods are finite."""

    @jax.jit
    def evaluate(params: dict[str, Array], data: tuple) -> tuple[Array, Array]:
        return likelihood.log_prior(params), likelihood.log_likelihood(params, data)

    error = None
    for radius in _START_RADII:
        params = _draw(likelihood, random, radius)
        try:
            for start, size in _chunks(likelihood):
                prior, values = evaluate(params, likelihood.rows(start, size))
                _check_log_prior(prior)
                rows = range(start, start + size)
                check_log_likelihood(values, rows, where="at a starting point")
        except ModelError as found:
            error = error or found
        else:
            return params
    assert error is not None
    raise error


def _check_log_prior(value: Array) -> None:
    if not np.isfinite(value):
        raise ModelError(
            f"the log prior is {value} at a starting point; a finite one is wanted: check the "
            "parameters of the priors."
        )


def _chunks(likelihood: ModelLikelihood) -> Iterator[tuple[int, int]]:
    """(start, size) of chunks over all rows, of one size: the last may overlap the one before."""
    entries = sum(leaf.size // leaf.shape[0] for leaf in likelihood.data)
    size = min(likelihood.num_data, _CHUNK_ROWS, max(1, _CHUNK_ENTRIES // max(entries, 1)))
    for start in range(0, likelihood.num_data, size):
        yield min(start, likelihood.num_data - size), size


def _check_rows_apart(
    likelihood: ModelLikelihood, points: Sequence[dict[str, Array]], random: np.random.Generator
) -> None:
    """Evaluates some rows, drops most of them, and wants the same values for those that stay."""
    if likelihood.num_data == 1:
        return
    rows, kept = _probe_rows(likelihood, random)
    all_rows, fewer_rows = likelihood.take(rows), likelihood.take(rows[kept])
    by_site = jax.jit(
        lambda params, data: likelihood._by_site(likelihood._fill_unconstrained(params), data)
    )
    for params in points:
        before, others = by_site(params, all_rows)
        after, others_after = by_site(params, fewer_rows)
        for name in others:
            _refuse_changed_prior(name, others[name], others_after[name], len(rows), len(kept))
        for name in before:
            _refuse_changed_datum(name, np.asarray(before[name])[kept], np.asarray(after[name]))


def _probe_rows(
    likelihood: ModelLikelihood, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers, and the positions among them of those that are kept.

    Rows with an extreme value in a leaf's first column are among those dropped, so that a prior
    that uses a mean, a range or a maximum cannot be the same with and without them.
    """
    num_data = likelihood.num_data
    extremes = set()
    for leaf in likelihood.data[: _PROBE_ROWS // 4]:
        if leaf.size:
            column = leaf.reshape(num_data, -1)[:, 0]
            extremes |= {int(column.argmin()), int(column.argmax())}
    drawn = random.choice(num_data, min(num_data, _PROBE_ROWS), replace=False)
    ordinary = [row for row in drawn.tolist() if row not in extremes]
    rows = np.array([*sorted(extremes), *ordinary][:_PROBE_ROWS])
    most = min(_PROBE_ROWS_DROPPED_TO, len(rows) - 1)
    kept = np.arange(len(extremes), len(rows))[:most]
    if len(kept) == 0:
        kept = np.arange(len(rows) - most, len(rows))
    return rows, kept


def _refuse_changed_prior(name: str, before: Any, after: Any, more: int, fewer: int) -> None:
    before, after = np.asarray(before), np.asarray(after)
    tolerance = 100 * jnp.finfo(before.dtype).eps
    if np.isfinite(before) and not abs(before - after) <= tolerance * (1 + abs(before)):
        raise ModelError(
            f"the log-probability of site {name!r}, which is outside the data axis, changes when "
            f"rows are dropped ({before:.6g} with {more} rows, {after:.6g} with {fewer} of them at "
            "the same parameters); one that does not depend on the data is wanted: compute what "
            "it uses (a mean, a scale, a number of rows) beforehand and pass it as an argument."
        )


def _refuse_changed_datum(name: str, before: np.ndarray, after: np.ndarray) -> None:
    finite = np.isfinite(before) & np.isfinite(after)
    before, after = before[finite], after[finite]
    if before.size == 0:
        return
    # Sums in another order differ by a few rounding errors of the largest terms; data that see one
    # another differ by far more than a thousand of them.
    tolerance = 1e3 * float(jnp.finfo(before.dtype).eps)
    allowed = tolerance * (1 + abs(before) + 0.1 * abs(before).max())
    if (abs(before - after) > allowed).any():
        worst = np.argmax(abs(before - after) - allowed)
        raise ModelError(
            f"the log-likelihood of a datum at site {name!r} changes when other rows are dropped "
            f"({before[worst]:.6g} before, {after[worst]:.6g} after, at the same parameters); data "
            "that are conditionally independent given the parameters are wanted: standardise or "
            "scale by numbers computed beforehand, and use no time series or running sums."
        )


# --------------------------------------------------------------------------------------------------
# The weighted model


def weighted_model(
    likelihood: "ModelLikelihood | Callable",
    weights: Any,
    data_dims: Mapping[str, int] | None = None,
) -> "WeightedModel":
    """The model with the log-probability of datum i multiplied by weight i.

    Args:
        likelihood: what `model_likelihood` returned, or a NumPyro model with `data_dims`.
        weights: shape (m,), finite and not negative; traced values are taken as they are.
        data_dims: `ModelLikelihood.data_dims`, where a bare model is given.

    Returns:
        A NumPyro model, to be called with m rows.

    Raises:
        ValueError: the weights are not a vector, negative or not finite, or a bare model comes
            without `data_dims`.
    """
    if isinstance(likelihood, ModelLikelihood):
        return WeightedModel(likelihood.model, weights, likelihood.data_dims)
    if data_dims is None:
        raise ValueError(
            "a model was given without data_dims; the dimension of the data axis of each observed "
            "site is wanted: pass ModelLikelihood.data_dims, or the likelihood itself."
        )
    return WeightedModel(likelihood, weights, data_dims)


class WeightedModel:
    """A NumPyro model whose observed sites in the data axis are weighted datum by datum.

    It is called as the model is, with as many rows as there are weights. With another number of
    rows the sites in the data axis must not be observed, as in `Predictive` on new rows, where
    weights do not matter. Two of these with the same model and weights are equal, so that compiled
    functions are found again; it can be pickled where the model can.
    """

    def __init__(self, model: Callable, weights: Any, data_dims: Mapping[str, int]):
        if not isinstance(weights, Tracer):
            weights = np.array(weights)
            _check_weights(weights)
            weights.flags.writeable = False
        self.model = model
        self.weights = weights
        self.data_dims = dict(data_dims)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model, as its user would call it, under the weights."""
        with _Weigh(self.weights, self.data_dims):
            return self.model(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WeightedModel) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        name = getattr(self.model, "__name__", type(self.model).__name__)
        return f"WeightedModel({name}, {self.weights.shape[0]} weights)"

    def _identity(self) -> tuple:
        traced = isinstance(self.weights, Tracer)
        weights = id(self.weights) if traced else (self.weights.dtype.str, self.weights.tobytes())
        return self.model, weights, tuple(self.data_dims.items())


def _check_weights(weights: np.ndarray) -> None:
    if weights.ndim != 1 or not np.issubdtype(weights.dtype, np.number):
        raise ValueError(
            f"weights has the shape {weights.shape} and dtype {weights.dtype}; numbers of shape "
            "(m,) are wanted, one per row."
        )
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if wrong.size:
        raise ValueError(
            f"weights[{wrong[0]}] is {weights[wrong[0]]}; finite weights of at least 0 are wanted."
        )


class _Weigh(Messenger):
    """Multiplies the scale of sites in the data axis by the weights, along that axis."""

    def __init__(self, weights: Any, data_dims: Mapping[str, int]):
        super().__init__()
        self.weights = weights
        self.data_dims = data_dims

    def process_message(self, msg: Any) -> None:
        if not self._concerns(msg):
            return
        dim = self.data_dims[msg["name"]]
        # Not only where the site is observed: a condition handler outside this one speaks later,
        # and the scale of a site that is merely sampled has no effect.
        if _site_rows(msg, dim) == self.weights.shape[0]:
            weights = jnp.reshape(self.weights, (-1,) + (1,) * (-dim - 1))
            msg["scale"] = weights if msg["scale"] is None else weights * msg["scale"]

    def postprocess_message(self, msg: Any) -> None:
        if not self._concerns(msg) or not msg["is_observed"]:
            return
        rows = _site_rows(msg, self.data_dims[msg["name"]])
        if rows != self.weights.shape[0]:
            raise ModelError(
                f"site {msg['name']!r} is observed with {rows} rows, but the model has weights for "
                f"{self.weights.shape[0]}; the coreset's own rows are wanted: pass its args and "
                "kwargs, None for the observations to predict new rows, or use the original model."
            )

    def _concerns(self, msg: Any) -> bool:
        return msg["type"] == "sample" and msg["name"] in self.data_dims


def _site_rows(site: Any, dim: int) -> int:
    """The length of a site's log-probability along a dimension counted from the right."""
    shape = tuple(site["fn"].batch_shape)
    if site["value"] is not None:
        value_shape = jnp.shape(site["value"])
        shape = jnp.broadcast_shapes(shape, value_shape[: len(value_shape) - site["fn"].event_dim])
    return shape[dim] if len(shape) >= -dim else 1
