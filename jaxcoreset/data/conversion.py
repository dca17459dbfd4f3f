"""The arguments of a model as people have them, as arrays: data frames, columns, tables and lists.

NumPyro's models compute with arrays. This module turns anything that holds numbers with one plain
meaning into an array, whichever package it is from. It recognises objects by their methods and
imports no package. It refuses everything else with an error that names the argument.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.tree_util import keystr, tree_map_with_path

from jaxcoreset.data.columns import column_values, is_table, table_columns, table_names
from jaxcoreset.data.dtypes import is_number
from jaxcoreset.data.messages import DataError, listed
from jaxcoreset.data.sources.base import Codes, SourceArray

_ARRAYS = (np.ndarray, jax.Array, SourceArray)
_NUMBERS = (bool, int, float, np.number, np.bool_)


def as_arrays(
    args: tuple, kwargs: dict, positional: Sequence[str], groups: str | None = None
) -> tuple[tuple, dict]:
    """The arguments of a call with arrays in place of tables, columns and lists of numbers.

    A data frame or a table becomes an array of shape (n, number of columns), and a column one of
    shape (n,). A list or tuple of numbers or text is an array if it is as long as the data; a list
    of another length stays a list. A whole number in an array without axes becomes an int, as the
    size of a plate has to be. Arrays stay as they are, so that nothing changes the second time.

    Labels of groups may be text. A table of which `groups` names a column, as data['plane'],
    becomes a dictionary of its columns.

    Args:
        args: the positional arguments, which may be pytrees.
        kwargs: the keyword arguments.
        positional: the names of the positional arguments, for messages.
        groups: the name of the labels of groups, if there are any.

    Raises:
        DataError: if an argument is a sparse matrix or an array in a file, a table holds text,
            dates or missing values, or `groups` is a column of a table without its argument.
    """
    given = (*args, *kwargs.values())
    leaves = [leaf for one in given for leaf in jax.tree.leaves(one, is_leaf=_is_list)]
    lengths = [len(leaf) for leaf in leaves if _has_rows(leaf) and not _is_list(leaf)]
    lengths = lengths or [len(leaf) for leaf in leaves if _is_list(leaf)]
    num_rows = max(lengths, default=0)
    names = {*positional, *kwargs}

    def is_leaf(part: Any) -> bool:
        return (_is_list(part) or _is_column(part)) and len(part) == num_rows

    def convert_leaf(leaf: Any, name: str) -> Any:
        if groups is None:
            return _as_array(leaf, name, num_rows)
        if name == groups:
            return _labels(leaf, name, num_rows)
        if is_table(leaf):
            columns = table_columns(leaf, f"argument {name}")
            if groups in columns and groups not in names:
                raise DataError(
                    f"groups is {groups!r}, which is a column of argument {name}; expected "
                    f'groups="{name}[{groups!r}]". The model then gets a dictionary of the columns.'
                )
            paths = {f"{name}[{key!r}]": key for key in columns}
            if groups in paths:
                return {
                    key: _labels(columns[key], path, num_rows)
                    if path == groups
                    else _numbers(columns[key], path)
                    for path, key in paths.items()
                }
        return _as_array(leaf, name, num_rows)

    def convert(name: str, argument: Any) -> Any:
        return tree_map_with_path(
            lambda path, leaf: convert_leaf(leaf, name + keystr(path)), argument, is_leaf=is_leaf
        )

    return (
        tuple(convert(name, value) for name, value in zip(positional, args, strict=True)),
        {name: convert(name, value) for name, value in kwargs.items()},
    )


def column_names(
    args: tuple, kwargs: Mapping[str, Any], positional: Sequence[str], groups: str | None = None
) -> dict[str, tuple[str, ...]]:
    """The names of the columns of tables among the arguments of a call, by argument.

    A table of which `groups` names a column is left out, since its columns are known by name. The
    arguments are as in `as_arrays`.
    """
    found: dict[str, tuple[str, ...]] = {}

    def look(leaf: Any, name: str) -> None:
        if is_table(leaf) and not (groups or "").startswith(f"{name}["):
            found[name] = tuple(table_names(leaf))

    _for_each_leaf(look, args, kwargs, positional)
    return found


def codes_of_sources(
    args: tuple, kwargs: Mapping[str, Any], positional: Sequence[str], groups: str | None = None
) -> dict[str, Codes]:
    """The columns of sources whose names are known, and what their numbers stand for, by argument.

    The labels of groups, `groups`, are left out, since groups are known by their labels. The
    arguments are as in `as_arrays`.
    """
    found: dict[str, Codes] = {}

    def look(leaf: Any, name: str) -> None:
        codes = leaf.source.codes_of(leaf.leaf) if isinstance(leaf, SourceArray) else None
        if codes is not None and name != groups:
            found[name] = codes

    _for_each_leaf(look, args, kwargs, positional)
    return found


def with_column_order(
    args: tuple,
    kwargs: Mapping[str, Any],
    positional: Sequence[str],
    known: Mapping[str, tuple[str, ...]],
) -> tuple[tuple, dict]:
    """The arguments of a call with arrays in place of the tables whose columns are known.

    Args:
        args: the positional arguments, which may be pytrees.
        kwargs: the keyword arguments.
        positional: the names of the positional arguments.
        known: the columns of tables, as `column_names` returns them.

    Raises:
        DataError: if a table does not have the same columns, in whichever order.
    """

    def order(leaf: Any, name: str) -> Any:
        if name not in known or not is_table(leaf):
            return leaf
        columns = table_columns(leaf, f"argument {name}")
        missing = [key for key in known[name] if key not in columns]
        unknown = [key for key in columns if key not in known[name]]
        if missing or unknown:
            parts = [f"no column {listed(missing)}"] if missing else []
            parts += [f"a column {listed(unknown)} in addition"] if unknown else []
            raise DataError(
                f"argument {name} has {' and '.join(parts)}; expected the columns of the build, "
                f"{listed(known[name])}: pass {name}[{list(known[name])!r}]."
            )
        return _side_by_side({key: columns[key] for key in known[name]}, name)

    return _for_each_leaf(order, args, kwargs, positional)


def _for_each_leaf(
    function: Callable[[Any, str], Any],
    args: tuple,
    kwargs: Mapping[str, Any],
    positional: Sequence[str],
) -> tuple[tuple, dict]:
    """The arguments with what a function of a leaf and of its name makes of the leaves."""

    def convert(name: str, argument: Any) -> Any:
        return tree_map_with_path(lambda path, leaf: function(leaf, name + keystr(path)), argument)

    return (
        tuple(convert(name, value) for name, value in zip(positional, args, strict=True)),
        {name: convert(name, value) for name, value in kwargs.items()},
    )


def _has_rows(leaf: Any) -> bool:
    if isinstance(leaf, _ARRAYS):
        return leaf.ndim > 0
    return is_table(leaf) or (hasattr(leaf, "to_numpy") and hasattr(leaf, "__len__"))


def _is_list(part: Any) -> bool:
    """True for a list or tuple of at least two numbers, or of lists of numbers of one length."""
    if not _is_sequence(part):
        return False
    rows = part if isinstance(part[0], list | tuple) else [part]
    alike = all(isinstance(row, list | tuple) and len(row) == len(rows[0]) for row in rows)
    return alike and all(isinstance(x, _NUMBERS) for row in rows for x in row)


def _is_column(part: Any) -> bool:
    """True for a list or tuple of at least two texts, numbers and missing values."""
    kinds = (str, *_NUMBERS)
    return _is_sequence(part) and all(isinstance(x, kinds) or _is_missing(x) for x in part)


def _is_sequence(part: Any) -> bool:
    return type(part) in (list, tuple) and len(part) >= 2


def _labels(leaf: Any, name: str, num_rows: int) -> Any:
    """The labels of groups as an array of numbers or text."""
    if is_table(leaf):
        columns = list(table_columns(leaf, f"argument {name}").values())
        leaf = columns[0] if len(columns) == 1 else leaf
    found = _as_array(leaf, name, num_rows)
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "OT":
        return found
    entries = found.ravel().tolist()
    missing = next((i for i, x in enumerate(entries) if _is_missing(x) or x != x), None)
    if missing is not None:
        raise DataError(
            f"argument {name} has missing labels, the first of them in row {missing}; expected the "
            "label of a group in each row: fill in or drop such rows."
        )
    is_text = all(isinstance(x, str) for x in entries)
    return np.array(entries).reshape(found.shape) if is_text else found


def _as_array(leaf: Any, name: str, num_rows: int) -> Any:
    if isinstance(leaf, Tracer | SourceArray):
        return leaf
    if isinstance(leaf, np.ndarray | jax.Array):
        if leaf.ndim == 0 and np.issubdtype(leaf.dtype, np.integer):
            return int(leaf)
        is_column = isinstance(leaf, np.ndarray) and leaf.shape[:1] == (num_rows,)
        return _numbers(leaf, name) if is_column else leaf
    if _is_list(leaf):
        return np.asarray(leaf)
    if _is_column(leaf):
        all_text = all(isinstance(x, str) for x in leaf)
        return _numbers(np.array(leaf, None if all_text else object), name)
    if hasattr(leaf, "toarray") and hasattr(leaf, "nnz"):
        raise DataError(
            f"argument {name} is a sparse matrix ({type(leaf).__name__}, shape {leaf.shape}); an "
            f"array is expected: pass {name}.toarray(), which holds the zeros too, or fewer "
            "columns if that is too large."
        )
    if is_table(leaf):
        return _of_table(leaf, name)
    if hasattr(leaf, "columns") and (hasattr(leaf, "collect") or hasattr(leaf, "fetchnumpy")):
        read = "collect" if hasattr(leaf, "collect") else "df"
        raise DataError(
            f"argument {name} is a {type(leaf).__name__}, a query whose rows are not in memory; "
            f"pass {name}.{read}() if they fit, or stream them with jaxcoreset.sources."
        )
    if hasattr(leaf, "to_numpy"):
        return _numbers(column_values(leaf), name)
    if hasattr(leaf, "__array__") and hasattr(leaf, "chunks"):
        raise DataError(
            f"argument {name} is a {type(leaf).__name__}, an array whose values are not in memory; "
            f"pass a source, jaxcoreset.sources.array({name}).arrays, which is read in batches, "
            f"or numpy.asarray({name}), which reads all of it."
        )
    # Tensors of other packages; numbers of NumPy are no arrays.
    is_tensor = hasattr(leaf, "__array__") and not isinstance(leaf, np.generic)
    return np.asarray(leaf) if is_tensor and getattr(leaf, "ndim", 0) else leaf


def _of_table(table: Any, name: str) -> np.ndarray:
    """The columns of a table side by side."""
    return _side_by_side(table_columns(table, f"argument {name}"), name)


def _side_by_side(columns: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Columns of numbers as a matrix."""
    found, text = [], []
    for key, values in columns.items():
        if is_number(values.dtype) or not _is_text(values):
            found.append(_numbers(values, f"{name}[{key!r}]"))
        else:
            text.append(key)
    if text:
        raise DataError(
            f"argument {name} is a table whose {'columns' if len(text) > 1 else 'column'} "
            f"{listed(text)} hold{'' if len(text) > 1 else 's'} no numbers; drop the columns that "
            "the model does not use, and number the categories of the other columns: "
            f"numpy.unique({name}[{text[0]!r}], return_inverse=True)[1]."
        )
    return np.column_stack(found)


def _is_text(values: np.ndarray) -> bool:
    if values.dtype != object:
        return not is_number(values.dtype)
    known = [x for x in values.ravel()[:1000].tolist() if not _is_missing(x)]
    return not all(isinstance(x, _NUMBERS) for x in known)


def _numbers(values: Any, name: str) -> Any:
    """An array of Python's numbers as one of NumPy's; other arrays as they are."""
    if values.dtype != object:
        return values
    entries = values.ravel().tolist()
    row = values.size // max(len(values), 1)
    missing = next((i for i, x in enumerate(entries) if _is_missing(x)), None)
    if missing is not None:
        raise DataError(
            f"argument {name} has missing values, the first of them in row {missing // row}; "
            "numbers are expected in all rows: fill in or drop such rows."
        )
    numbers = all(isinstance(x, _NUMBERS) for x in entries)
    return np.asarray(entries).reshape(values.shape) if numbers else values


def _is_missing(value: Any) -> bool:
    """True for None and the missing values of pandas; NaN is a number."""
    return value is None or type(value).__name__ in ("NAType", "NaTType")
