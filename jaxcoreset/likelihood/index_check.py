"""Refuse rows with a number that has no entry in an array that the model indexes by it.

See `jaxcoreset.likelihood.indices`, which finds them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from jaxcoreset.data.dtypes import is_float
from jaxcoreset.data.messages import warn_user
from jaxcoreset.data.reading import is_streamed
from jaxcoreset.data.rows import Rows
from jaxcoreset.likelihood.arguments import ModelError, flatten
from jaxcoreset.likelihood.checks import list_rows
from jaxcoreset.likelihood.group_arguments import flat_call
from jaxcoreset.likelihood.group_model import GroupModel
from jaxcoreset.likelihood.indices import UnknownIndices, find_unknown_indices
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.verification import chunk_rows

# People write programs in many ways, and some may not be interpreted. A build then does without the
# check. The tests set this, so that they fail.
RAISES = False

# The most columns of a matrix of which it is asked which one has the number.
_MOST_COLUMNS = 1024
# At how many draws rows to predict are evaluated.
_NUM_DRAWS = 8
_BEYOND, _NEGATIVE = 0, 1
_REMEDY = (
    "If it stands for a missing value, drop these rows, or give them an entry of their own; if it "
    "is meant to count from the end, pass the number of the entry instead."
)


@dataclass(frozen=True, eq=False)
class _Checked:
    """Rows and what the model makes of them.

    Attributes:
        function: a function of parameters and m rows, whose values have a leading axis of rows.
        params: the parameters.
        rows: all rows.
        names: the names of their leaves.
        size: the number of rows that are evaluated at a time.
        which: what a message says of the rows.
        unit: what a row is.
        harm: what would be wrong.
    """

    function: Callable[[Any, tuple], Any]
    params: Any
    rows: Rows
    names: list[str]
    size: int
    which: str = ""
    unit: str = "row"
    harm: str = "the posterior would be wrong"

    def unknown(self, chunks: Any = None) -> tuple[UnknownIndices | None, UnknownIndices | None]:
        """What is beyond the end, and what is negative; of rows not in memory, the first ones."""
        chunks = self._chunks() if chunks is None else chunks
        try:
            return find_unknown_indices(self.function, self.params, chunks)
        except Exception:  # what a build may do without does not end it
            if RAISES:
                raise
            return None, None

    def _chunks(self) -> Iterator[tuple[tuple, int]]:
        rows = self.rows
        if rows.is_streamed:
            return iter([(rows.head(self.size), rows.offset)])
        return rows.chunks(self.size)


def check_indices(likelihood: ModelLikelihood) -> None:
    """Refuse rows of a build whose numbers are beyond the end of an array that they index.

    A negative number counts from the end, as for NumPy, so that it may be meant: there is a
    warning. Of rows that are not in memory the first ones are looked at.

    Raises:
        ModelError: if there are such rows. It names the argument, what it holds, and the rows.
    """
    checked = _of_likelihood(likelihood, "")
    beyond, negative = checked.unknown()
    _refuse(checked, beyond)
    if negative is not None:
        warn_user(_of_negative(checked, negative) + _REMEDY)


def check_new_indices(likelihood: ModelLikelihood, earlier: tuple) -> None:
    """As `check_indices` for the rows of an update, of which negative numbers are refused too.

    Args:
        likelihood: that of the new rows.
        earlier: some of the earlier rows. If they have negative numbers, new rows may have some.

    Raises:
        ModelError: if there are such rows.
    """
    checked = _of_likelihood(likelihood, "new ")
    beyond, negative = checked.unknown()
    _refuse(checked, beyond)
    if negative is not None and checked.unknown([(earlier, 0)])[_NEGATIVE] is None:
        raise ModelError(
            _of_negative(checked, negative) + "The earlier rows that are known have no negative "
            "numbers there. " + _REMEDY
        )


def check_indices_to_predict(
    draw: Callable[[Mapping[str, Array], Array, tuple], Any],
    draws: Mapping[str, Array],
    rows: Rows,
    names: list[str],
    known: Mapping[str, Any],
) -> None:
    """As `check_indices` for rows to predict, of which negative numbers are refused too.

    Args:
        draw: a function of draws, a random key and m rows. It returns arrays with a leading axis of
            rows, which depend on all that the model reads for a row.
        draws: constrained draws, with a leading axis. A few of them are used.
        rows: the rows to predict.
        names: the names of the arguments that hold them.
        known: data of the build by the names of their arguments. If these have negative numbers,
            rows to predict may have some.

    Raises:
        ModelError: if there are such rows.
    """

    def values(params: Any, rows: tuple) -> Any:
        return jax.tree.leaves(draw(params, jax.random.key(0), rows))

    total = len(next(iter(draws.values())))
    at = np.unique(np.linspace(0, total - 1, _NUM_DRAWS).round().astype(int))
    few, size = {name: x[at] for name, x in draws.items()}, rows.block(2 * _NUM_DRAWS)
    harm = "the prediction would be that of another category"
    checked = _Checked(values, few, rows, names, size, harm=harm)
    beyond, negative = checked.unknown()
    _refuse(checked, beyond)
    if negative is not None and not _were_negative(checked, negative, known):
        raise ModelError(
            _of_negative(checked, negative) + "The rows of the build that are known have no "
            "such numbers there. " + _REMEDY
        )


def _of_likelihood(likelihood: ModelLikelihood, which: str) -> _Checked:
    names, unit = list(likelihood.arguments.data_names), "row"
    if isinstance(marginal := likelihood.model, GroupModel):
        args, kwargs = flat_call(marginal.positions, likelihood.arguments)
        known = flatten(marginal.model, args, kwargs).names
        names, unit = [known[i] for i in likelihood.arguments.data_at], "group"

    def values(params: Any, rows: tuple) -> Array:
        return likelihood.log_likelihood(params, rows)

    size = chunk_rows(likelihood)
    return _Checked(values, likelihood.init_params, likelihood.rows, names, size, which, unit)


def _were_negative(checked: _Checked, found: UnknownIndices, known: Mapping[str, Any]) -> bool:
    """Return whether the build had negative numbers, or these very ones, where they are found."""
    is_known, has_negative = [], []
    for leaf in found.leaves:
        before = known.get(checked.names[leaf])
        after, columns = _numbers(checked, found, leaf, _NEGATIVE)
        if before is None or after is None or before.shape[1:] != after.shape[1:]:
            return False
        kept = slice(None) if columns is None else columns
        before, after = (np.asarray(x).reshape(len(x), -1)[:, kept] for x in (before, after))
        after = after[found.rows - checked.rows.offset]
        is_known.append(bool(np.isin(after, before).all()))
        has_negative.append(bool((after < 0).any() and (before < 0).any()))
    return all(is_known) or any(has_negative)


def _refuse(checked: _Checked, found: UnknownIndices | None) -> None:
    if found is None:
        return
    most = found.size - 1
    text, values = _described(checked, found, _BEYOND)
    hint = "Give the model an entry for each number, or drop these rows."
    if values.size and values.min() >= 1 and values.max() == found.size:
        hint = f"If they are counted from 1, subtract 1. Otherwise {hint[0].lower()}{hint[1:]}"
    raise ModelError(
        f"{text} and the model takes it as an index of {found.size:,} entries, numbered from 0, so "
        f"that there is no entry for it. JAX reads another entry instead, and {checked.harm}. "
        f"Expected numbers from 0 to {most:,}. {hint}"
    )


def _of_negative(checked: _Checked, found: UnknownIndices) -> str:
    text, _ = _described(checked, found, _NEGATIVE)
    return (
        f"{text} and the model takes it as an index of {found.size:,} entries. A negative index "
        "counts from the end, so -1 is the last entry, and these rows count as rows of it. "
    )


def _described(checked: _Checked, found: UnknownIndices, kind: int) -> tuple[str, np.ndarray]:
    """What is found and where, and all the values of the argument where these are in memory."""
    where = checked.which + list_rows(checked.rows.numbers(found.rows), checked.unit)
    argument = " and ".join(checked.names[leaf] for leaf in found.leaves)
    values, columns = None, None
    if len(found.leaves) == 1:
        values, columns = _numbers(checked, found, found.leaves[0], kind)
    if values is None or (values.ndim > 1 and columns is None):
        return f"argument {argument} has a number without an entry in {where},", np.zeros(0)
    what = f"argument {argument}"
    if columns is not None:
        values = values.reshape(len(values), -1)[:, columns[0]]
        what = f"column {columns[0]} of {argument}"
    first = values[int(found.rows[0]) - checked.rows.offset].item()
    return f"{what} is {first:,} in {where},", values


def _numbers(
    checked: _Checked, found: UnknownIndices, leaf: int, kind: int
) -> tuple[np.ndarray | None, list[int] | None]:
    """All the values of a leaf, None if not in memory, and in a matrix which columns are meant."""
    values = checked.rows.data[leaf]
    if is_streamed(values) or not isinstance(values, np.ndarray | jax.Array):
        return None, None
    values = np.asarray(values)
    return values, _columns(checked, found, leaf, kind) if values.ndim > 1 else None


def _columns(checked: _Checked, found: UnknownIndices, leaf: int, kind: int) -> list[int] | None:
    """The columns of a matrix that have no entry in the first row found; None if not known.

    Each of them is put into a row of the matrix that has an entry, or into zeros.
    """
    rows, first = checked.rows, int(found.rows[0])
    bad = tuple(np.asarray(x[first - rows.offset])[None] for x in rows.data)
    values = bad[leaf].reshape(-1)
    at = np.flatnonzero(~(values % 1 > 0)) if is_float(values.dtype) else np.arange(values.size)
    if len(found.leaves) > 1 or not 0 < at.size <= _MOST_COLUMNS:
        return None
    others = np.setdiff1d(np.arange(rows.num_local) + rows.offset, found.rows)
    good = np.zeros_like(values)
    if others.size:
        good = np.asarray(rows.data[leaf][int(others[0]) - rows.offset]).reshape(-1)
    matrix = np.tile(good, (at.size, 1))
    matrix[np.arange(at.size), at] = values[at]
    chunk = [np.repeat(x, at.size, axis=0) for x in bad]
    chunk[leaf] = matrix.reshape(chunk[leaf].shape)
    alone = checked.unknown([(tuple(chunk), 0)])[kind]
    return None if alone is None else at[alone.rows].tolist()
