"""The arguments of a NumPyro model, and which of them hold data: one row per datum.

The (args, kwargs) of a model are flattened to leaves, some of which are *data leaves*;
`Arguments.fill` builds the call again with other rows in their place.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcoreset.data.conversion import as_arrays, codes_of_sources, column_names, with_column_order
from jaxcoreset.data.sources.base import Codes, SourceArray


class ModelError(ValueError):
    """A model or its arguments cannot be used. The message says which part, and what to do."""


@dataclass(frozen=True, eq=False)
class Arguments:
    """The model's (args, kwargs), flattened, with the positions of the data leaves.

    Attributes:
        tree: the structure that the leaves came from.
        leaves: the model's arguments, of any type.
        names: for each leaf its name in messages, as X or batch['x'].
        positional: the names of the positional arguments.
        data_at: the positions of the data leaves.
        counts_at: those of integers that hold the number of rows, as in model(X, y, n).
    """

    tree: Any
    leaves: tuple
    names: tuple[str, ...]
    positional: tuple[str, ...]
    data_at: tuple[int, ...] = ()
    counts_at: tuple[int, ...] = ()

    @property
    def data(self) -> tuple:
        """The data leaves, with all the rows."""
        return tuple(self.leaves[position] for position in self.data_at)

    @property
    def num_data(self) -> int:
        """The number of rows, n."""
        return self.data[0].shape[0]

    @property
    def arrays(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the arrays among the leaves, by name."""
        named = zip(self.names, self.leaves, strict=True)
        return {name: tuple(leaf.shape) for name, leaf in named if is_array(leaf)}

    @property
    def data_names(self) -> dict[str, int]:
        """The names of the data leaves, with their positions."""
        return {self.names[position]: position for position in self.data_at}

    def with_names(self, data_names: Mapping[str, int]) -> "Arguments":
        """The arguments whose data leaves have these names and positions, see `data_names`."""
        names = list(self.names)
        for name, position in data_names.items():
            names[position] = name
        return dataclasses.replace(self, names=tuple(names), data_at=tuple(data_names.values()))

    @property
    def constants(self) -> dict[str, Any]:
        """The leaves that neither hold rows nor count them, by name."""
        skipped = {*self.data_at, *self.counts_at}
        named = enumerate(zip(self.names, self.leaves, strict=True))
        return {name: leaf for i, (name, leaf) in named if i not in skipped}

    @property
    def axes(self) -> tuple:
        """The `data_axes` that name these data leaves to `model_likelihood`."""
        axes = [0 if i in self.data_at else None for i in range(len(self.leaves))]
        by_position, by_keyword = jax.tree.unflatten(self.tree, axes)
        return (*by_position, by_keyword)

    @property
    def call(self) -> tuple[tuple, dict]:
        """The (args, kwargs) themselves."""
        return jax.tree.unflatten(self.tree, self.leaves)

    def with_data(self, data: Sequence) -> "Arguments":
        """The arguments with `data` in place of the data leaves, and their length as the count."""
        leaves = list(self.leaves)
        for position, rows in zip(self.data_at, data, strict=True):
            leaves[position] = rows
        for position in self.counts_at:
            leaves[position] = data[0].shape[0]
        return dataclasses.replace(self, leaves=tuple(leaves))

    def fill(self, data: Sequence) -> tuple[tuple, dict]:
        """The (args, kwargs) with `data` in place of the data leaves."""
        return self.with_data(data).call

    def like(self, args: tuple, kwargs: Mapping[str, Any]) -> "Arguments":
        """Other arguments of the same structure (else a ModelError), with data where these have."""
        names = [*self.positional, *map(str, range(len(self.positional), len(args)))][: len(args)]
        leaves, tree = jax.tree.flatten(as_arrays(tuple(args), dict(kwargs), names))
        if tree != self.tree:
            raise ModelError(
                f"the arguments have the structure {tree}, but those of the coreset have "
                f"{self.tree}; pass the same arguments, in which only the rows differ."
            )
        for position in self.data_at:
            before, now = np.shape(self.leaves[position]), np.shape(leaves[position])
            if before[1:] != now[1:]:
                raise ModelError(
                    f"argument {self.names[position]} has shape {now}, but that of the coreset has "
                    f"{before}; pass the same arguments, in which only the rows differ."
                )
        return dataclasses.replace(self, leaves=tuple(leaves))

    def check_same_constants(self, other: "Arguments") -> None:
        """Raise a ModelError if an argument that holds no data has another value in `other`."""
        for name, before in self.constants.items():
            if not is_same(before, now := other.constants[name]):
                raise ModelError(
                    f"argument {name} holds no data, and is {now!r} in place of {before!r}; pass "
                    "the value that the coreset was built with, or build a new coreset."
                )

    def counting_rows(self, num_data: int | None = None) -> "Arguments":
        """These arguments, with integers equal to `num_data`, by default n, as row counts."""
        n = self.num_data if num_data is None else num_data
        counts_at = self._where(lambda leaf: is_integer(leaf) and bool(leaf == n))
        return dataclasses.replace(self, counts_at=counts_at)

    def _where(self, is_one: Callable[[Any], bool]) -> tuple[int, ...]:
        return tuple(i for i, leaf in enumerate(self.leaves) if is_one(leaf))

    def __str__(self) -> str:
        return ", ".join(f"{name} {shape}" for name, shape in self.arrays.items()) or "no arrays"


def is_array(leaf: Any) -> bool:
    """True if a leaf could be data: an array of numbers with at least one axis."""
    if not isinstance(leaf, np.ndarray | jax.Array | SourceArray) or leaf.ndim == 0:
        return False
    return jnp.issubdtype(leaf.dtype, np.number) or leaf.dtype == np.bool_


def is_integer(leaf: Any) -> bool:
    """True if a leaf is a whole number, and not a truth value."""
    return isinstance(leaf, int | np.integer) and not isinstance(leaf, bool)


def is_same(one: Any, two: Any) -> bool:
    """Return whether two arguments are the same to a model, which computes in float32."""
    one, two = np.asarray(one), np.asarray(two)
    if one.shape != two.shape:
        return False
    if any(np.issubdtype(array.dtype, np.inexact) for array in (one, two)):
        return np.allclose(one, two, rtol=1e-6, atol=0, equal_nan=True)
    return bool(np.all(one == two))


def plain_call(
    model: Callable | None, args: tuple, kwargs: dict, groups: str | None = None
) -> tuple[tuple, dict]:
    """The (args, kwargs) of a model with arrays in place of tables and lists; see `as_arrays`."""
    return as_arrays(args, kwargs, _positional_names(model, len(args)), groups)


def columns_of_call(
    model: Callable | None, args: tuple, kwargs: dict, groups: str | None = None
) -> dict[str, tuple[str, ...]]:
    """The names of the columns of the tables in a call of a model; see `column_names`."""
    return column_names(args, kwargs, _positional_names(model, len(args)), groups)


def codes_of_call(
    model: Callable | None, args: tuple, kwargs: Mapping[str, Any], groups: str | None = None
) -> dict[str, Codes]:
    """What the codes in a call of a model stand for; see `codes_of_sources`."""
    return codes_of_sources(args, kwargs, _positional_names(model, len(args)), groups)


def in_order_of(
    columns: Mapping[str, tuple[str, ...]], model: Callable, args: tuple, kwargs: Mapping[str, Any]
) -> tuple[tuple, dict]:
    """A call of a model whose tables have these columns, in this order; see `with_column_order`."""
    return with_column_order(args, kwargs, _positional_names(model, len(args)), columns)


def flatten(
    model: Callable | None, args: tuple, kwargs: dict, groups: str | None = None
) -> Arguments:
    """The arguments of `model(*args, **kwargs)`, before any are marked as data.

    Tables and lists become arrays, by `plain_call`. Masked entries raise a ModelError.
    """
    paths, tree = jax.tree_util.tree_flatten_with_path(plain_call(model, args, kwargs, groups))
    positional = _positional_names(model, len(args))
    names = []
    for (group, argument, *rest), leaf in paths:
        name = positional[argument.idx] if group.idx == 0 else str(argument.key)
        names.append(name + jax.tree_util.keystr(tuple(rest)))
        if np.ma.isMaskedArray(leaf) and np.ma.getmaskarray(leaf).any():
            first = np.unravel_index(np.argmax(np.ma.getmaskarray(leaf)), leaf.shape)[0]
            raise ModelError(
                f"argument {names[-1]} has masked entries, the first of them in row {first}; "
                "numbers are expected in all rows: fill in or drop such rows."
            )
    leaves = tuple(leaf.data if np.ma.isMaskedArray(leaf) else leaf for _, leaf in paths)
    return Arguments(tree, leaves, tuple(names), positional)


def arguments_by_length(
    model: Callable | None, args: tuple, kwargs: dict, num_data: int
) -> Arguments:
    """The arguments of a call whose arrays with `num_data` rows are taken as data."""
    arguments = flatten(model, args, kwargs).counting_rows(num_data)
    long = arguments._where(lambda leaf: is_array(leaf) and len(leaf) == num_data)
    return dataclasses.replace(arguments, data_at=long)


def _positional_names(model: Callable | None, count: int) -> tuple[str, ...]:
    try:
        parameters = list(inspect.signature(model).parameters.values())  # pyright: ignore
    except (TypeError, ValueError):
        parameters = []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in kinds][:count]
    return (*names, *(f"number {i}" for i in range(len(names), count)))


def not_given(model: Callable, arguments: Arguments) -> list[str]:
    """The names of the model's arguments that are None, or were not given and are by default."""
    try:
        parameters = inspect.signature(model).parameters.values()
    except (TypeError, ValueError):
        return []
    args, kwargs = arguments.call
    given = dict(zip(arguments.positional, args, strict=True)) | kwargs
    values = ((one.name, given.get(one.name, one.default)) for one in parameters)
    return [name for name, value in values if value is None]


def mark_arrays(arguments: Arguments) -> Arguments:
    """Mark every array as a data leaf; a ModelError if there is none, or one has no rows."""
    if not arguments.arrays:
        raise ModelError(
            "no argument of the model is an array of numbers, so there are no data to choose rows "
            "from: pass the data as arguments of the model, not through a closure."
        )
    _refuse_no_rows(arguments.arrays)
    return dataclasses.replace(arguments, data_at=arguments._where(is_array))


def mark_length(arguments: Arguments, num_data: int) -> Arguments:
    """Mark as data leaves the arrays with `num_data` rows; a ModelError if one holds no numbers."""
    refuse_text(arguments, num_data)
    types = np.ndarray | jax.Array | SourceArray
    long = arguments._where(lambda x: isinstance(x, types) and x.shape[:1] == (num_data,))
    return dataclasses.replace(arguments, data_at=long)


def refuse_text(arguments: Arguments, num_data: int) -> None:
    """Raise an error if an array with `num_data` rows holds text, dates or objects."""
    for name, leaf in zip(arguments.names, arguments.leaves, strict=True):
        is_text = isinstance(leaf, np.ndarray | jax.Array) and not is_array(leaf)
        if is_text and leaf.shape[:1] == (num_data,):
            raise ModelError(
                f"argument {name} has as many rows as the data and dtype {leaf.dtype}; numbers are "
                f"expected: convert it by np.asarray({name}, float), or number its categories by "
                f"np.unique({name}, return_inverse=True)[1]."
            )


def mark_axes(arguments: Arguments, data_axes: Any) -> Arguments:
    """Mark as data leaves what `data_axes` says; see `model_likelihood`.

    A ModelError is raised if it does not fit or names nothing, or if what it names is no array, has
    no rows, or has another number of rows than the rest.
    """
    axes = _axes_by_leaf(arguments, data_axes)
    chosen = tuple(i for i, axis in enumerate(axes) if axis is not None)
    if not chosen:
        raise ModelError("data_axes names no data argument: give axis 0 to those that hold data.")
    for i in chosen:
        if not is_array(arguments.leaves[i]):
            found = type(arguments.leaves[i]).__name__
            raise ModelError(
                f"data_axes gives axis 0 to argument {arguments.names[i]}, which is a {found}; an "
                "array of numbers with one row per datum is expected: give it None, or an array."
            )
    shapes = {arguments.names[i]: arguments.leaves[i].shape for i in chosen}
    refuse_unequal_rows(shapes)
    _refuse_no_rows(shapes)
    return dataclasses.replace(arguments, data_at=chosen)


def _axes_by_leaf(arguments: Arguments, data_axes: Any) -> list:
    """One entry (0 or None) per leaf, from a prefix of the arguments."""
    axes: list = []
    args, kwargs = arguments.call

    def spread(axis: Any, part: Any) -> None:
        axes.extend([axis] * len(jax.tree.leaves(part)))

    prefix = _axes_by_argument(arguments.positional, kwargs, data_axes)
    try:
        jax.tree.map(spread, prefix, (args, kwargs), is_leaf=lambda axis: axis is None)
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"data_axes={data_axes!r} does not fit the arguments ({arguments}); a prefix of their "
            f"structure is expected, as for vmap's in_axes: {error}"
        ) from error
    for axis in axes:
        if axis is not None and (isinstance(axis, bool) or axis != 0):
            raise ModelError(
                f"data_axes has the entry {axis!r}; 0 (one datum per row) or None (not data) is "
                "expected: move the data's axis to the front."
            )
    return axes


def _axes_by_argument(positional: tuple[str, ...], kwargs: dict, data_axes: Any) -> tuple:
    """`data_axes` laid out as (args, kwargs)."""
    if isinstance(data_axes, Mapping):
        unknown = set(data_axes) - set(positional) - set(kwargs)
        if unknown:
            raise ModelError(
                f"data_axes names {sorted(map(str, unknown))}; the arguments given are "
                f"{[*positional, *kwargs]}: use these names."
            )
        by_position = tuple(data_axes.get(name) for name in positional)
        return by_position, {name: data_axes.get(name) for name in kwargs}
    count = len(positional)
    entries = list(data_axes) if isinstance(data_axes, tuple | list) else [data_axes] * count
    by_keyword = entries.pop() if len(entries) == count + 1 else {}
    is_fitting = isinstance(by_keyword, Mapping) and set(by_keyword) <= set(kwargs)
    if len(entries) != count or not is_fitting:
        raise ModelError(
            f"data_axes={data_axes!r} does not fit {count} positional arguments and the keywords "
            f"{list(kwargs)}; one entry per positional argument is expected, then a dict for "
            "keywords, or one dict by argument name."
        )
    return tuple(entries), {name: by_keyword.get(name) for name in kwargs}


def refuse_unequal_rows(shapes: Mapping[str, tuple[int, ...]], reason: str = "") -> None:
    """Raise an error that lists the numbers of rows, if they differ."""
    if len({shape[0] for shape in shapes.values()}) > 1:
        listed = " and ".join(f"{name} has {shape[0]} rows" for name, shape in shapes.items())
        raise ModelError(
            f"argument {listed}; data arguments are expected to have the same number of rows: pass "
            "one row per datum in each." + reason
        )


def _refuse_no_rows(shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name, shape in shapes.items():
        if shape[0] == 0:
            raise ModelError(f"argument {name} has 0 rows; expected at least one: pass the data.")
