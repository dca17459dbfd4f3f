"""Numbers of the rows to predict that a model uses as an index, and has no entry for.

JAX reads another entry in place of one that does not exist: the last one for a number that is too
large or -1, and the first one for NaN. So the predictions of a category that the build did not have
would be those of another one. Categories may be whole numbers of any type.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify
from jaxtyping import Array

from jaxcoreset.data.dtypes import is_float
from jaxcoreset.data.reading import is_streamed
from jaxcoreset.likelihood.arguments import ModelError
from jaxcoreset.likelihood.trace import abstract

# Takes the place of a negative number and of NaN. It is larger than any table that a model has, it
# is a number of float32, and the product of it and the length of a row of a table fits an int32.
_BEYOND = 10_000_019
# A column of real numbers shows in so many rows that it does not hold categories.
_SHOWN = 1000
# The most columns that an error names.
_MOST_NAMED = 5


def refuse_unknown_indices(
    draw: Callable[[Mapping[str, Array], Array, tuple], Any],
    names: Sequence[str],
    draws: Mapping[str, Array],
    data: tuple,
    known: Mapping[str, Any],
) -> None:
    """Raise a ModelError if a row has an index that the model has no entry for.

    Only rows with the extremes of a column are evaluated, if these are beyond those of the build.

    Args:
        draw: a function of draws, a key and rows, which runs the model.
        names: the names of the arguments that hold rows.
        draws: constrained draws, with a leading axis.
        data: all rows.
        known: data of the build by the names of their arguments.
    """
    one, key = {name: x[:1] for name, x in draws.items()}, jax.random.key(0)
    evaluate = checkify.checkify(draw, errors=checkify.index_checks)
    first = tuple(abstract(leaf, 1) for leaf in data)
    if not jax.tree.leaves(jax.eval_shape(evaluate, one, key, first)[0]):
        return  # the model has no index
    columns = [
        column
        for at, (name, leaf) in enumerate(zip(names, data, strict=True))
        for column in _columns(at, name, leaf, known.get(name))
    ]
    if not columns:
        return
    rows = _rows_of(columns, data)
    found = jax.jit(evaluate)(one, key, rows)[0].get()
    if not found:
        return
    alone, bad = jax.jit(evaluate), []
    most = max(len(column.rows) for column in columns)
    for column in columns:
        at = np.resize(column.rows, most)
        padded = dataclasses.replace(column, rows=at, values=np.resize(column.values, most))
        others = [other for other in columns if other is not column]
        if alone(one, key, _rows_of([padded], data, others))[0].get():
            bad.append(column)
    size = found.rpartition("with size ")[2].split(".")[0].strip()
    named = ", ".join(map(str, (bad or columns)[:_MOST_NAMED]))
    raise ModelError(
        f"the rows to predict have {named}, and the model takes a number that is too "
        f"large, negative or missing as an index of {size} entries. Expected the numbers that the "
        "build had, or a model with entries for further categories; -1 often means a missing value."
    )


@dataclass(frozen=True, eq=False)
class _Column:
    """The extremes of a column.

    Attributes:
        at: the position of the column's leaf.
        index: the position of the column in the leaf, as a matrix.
        name: what a message calls it.
        range: what a message says that it has.
        rows: the rows to evaluate.
        values: their values, where -1 and NaN are large numbers.
        usual: a number that the build had; None if that is not known.
    """

    at: int
    index: int
    name: str
    range: str
    rows: np.ndarray
    values: np.ndarray
    usual: Any

    def __str__(self) -> str:
        return f"{self.name} {self.range}"


def _columns(at: int, name: str, leaf: Any, known: Any) -> list[_Column]:
    """The columns of a leaf with values beyond those of the build."""
    if is_streamed(leaf):
        return []
    is_real = is_float(leaf.dtype)
    if not is_real and not jnp.issubdtype(leaf.dtype, jnp.integer):
        return []
    matrix = leaf.reshape(leaf.shape[0], -1)
    low, high, is_missing = _extremes(matrix)
    if known is not None and known.shape[1:] == leaf.shape[1:] and known.shape[0]:
        build = known.reshape(known.shape[0], -1)
        smallest, largest, was_missing = _extremes(build)
        is_new = (low < smallest) | (high > largest) | (is_missing & ~was_missing)
    else:
        build, is_new = None, np.ones(low.shape, bool)
    found = []
    for index in np.flatnonzero(is_new).tolist():
        column = np.asarray(matrix[:, index])
        if is_real:
            # Real numbers are an index if they are categories, and then all of them are whole.
            before = column[:0] if build is None else np.asarray(build[:, index])
            are_whole = _are_whole(column) and _are_whole(before)
            column = column.astype(np.float64)
            rows = [np.argmax(np.isnan(column))] if is_missing[index] else []
            if not np.isnan(low[index]):
                rows = [np.nanargmin(column), np.nanargmax(column), *rows]
        else:
            are_whole, rows = True, [column.argmin(), column.argmax()]
        values = column[rows].astype(np.float64)
        if are_whole:
            values[values < 0] = _BEYOND
        values = np.where(np.isnan(values), _BEYOND, values)
        label = name if matrix.shape[1] == 1 else f"column {index} of {name}"
        span = f"from {_text(low[index])} to {_text(high[index])}"
        if is_real and is_missing[index]:
            span += f" and NaN in row {rows[-1]}"
        usual = None if build is None else np.asarray(build[0, index])
        found.append(_Column(at, index, label, span, np.array(rows), values, usual))
    return found


def _extremes(matrix: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The smallest and the largest number of each column, and whether NaN is among them."""
    low, high = np.asarray(matrix.min(axis=0)), np.asarray(matrix.max(axis=0))
    if not is_float(low.dtype):
        return low, high, np.zeros(low.shape, bool)
    low, high = low.astype(np.float64), high.astype(np.float64)
    is_missing = np.isnan(low)
    for index in np.flatnonzero(is_missing):
        column = np.asarray(matrix[:, index]).astype(np.float64)
        low[index], high[index] = np.fmin.reduce(column), np.fmax.reduce(column)
    return low, high, is_missing


def _are_whole(column: np.ndarray) -> bool:
    """True if all numbers that are there are whole."""
    for part in (column[:_SHOWN], column[_SHOWN:]):
        part = part[np.isfinite(part)]
        if not np.array_equal(part, np.floor(part)):
            return False
    return True


def _rows_of(columns: Sequence[_Column], data: tuple, usual: Sequence[_Column] = ()) -> tuple:
    """Some rows of all the data, with the values of each column in its own rows.

    Args:
        columns: the columns, whose rows follow one another.
        data: all rows.
        usual: columns that have a number of the build in all these rows.
    """
    rows = np.concatenate([column.rows for column in columns])
    found, most = [np.array(leaf[rows], order="C") for leaf in data], np.iinfo(np.int32).max
    for at in {column.at for column in columns if not is_float(found[column.at].dtype)}:
        # Small integers do not hold the number that takes the place of -1.
        found[at] = np.minimum(found[at].astype(np.int64), most)
    matrices = [leaf.reshape(len(rows), -1) for leaf in found]
    for column in usual:
        if column.usual is not None:
            matrices[column.at][:, column.index] = column.usual
    first = 0
    for column in columns:
        last = first + len(column.rows)
        matrices[column.at][first:last, column.index] = np.minimum(column.values, most)
        first = last
    return tuple(found)


def _text(value: Any) -> str:
    return f"{value:g}" if is_float(np.asarray(value).dtype) else f"{value:,}"
