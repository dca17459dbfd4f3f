"""Refuse rows with a number that has no entry in an array that the model indexes by it.

See `jaxcoreset.likelihood.indices`, which finds them.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from jaxcoreset.data.messages import warn_user
from jaxcoreset.data.reading import is_streamed
from jaxcoreset.likelihood.arguments import ModelError, flatten
from jaxcoreset.likelihood.group_arguments import flat_call
from jaxcoreset.likelihood.group_model import GroupModel
from jaxcoreset.likelihood.indices import UnknownIndices, find_unknown_indices
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.verification import chunk_rows

_SHOWN = 5


def check_indices(likelihood: ModelLikelihood) -> None:
    """Refuse rows of a build whose numbers are beyond the end of an array that they index.

    A negative number counts from the end, as for NumPy, so that it may be meant: there is a
    warning. Of rows that are not in memory the first ones are looked at.

    Raises:
        ModelError: if there are such rows. It names the argument, what it holds, and the rows.
    """
    beyond, negative = _unknown(likelihood, _chunks(likelihood))
    _refuse(likelihood, beyond, "")
    if negative is not None:
        warn_user(_of_negative(likelihood, negative, "") + _REMEDY)


def check_new_indices(likelihood: ModelLikelihood, earlier: tuple) -> None:
    """As `check_indices` for the rows of an update, of which negative numbers are refused too.

    Args:
        likelihood: that of the new rows.
        earlier: some of the earlier rows. If they have negative numbers, new rows may have some.

    Raises:
        ModelError: if there are such rows.
    """
    beyond, negative = _unknown(likelihood, _chunks(likelihood))
    _refuse(likelihood, beyond, "new ")
    if negative is not None and _unknown(likelihood, [(earlier, 0)])[1] is None:
        raise ModelError(
            _of_negative(likelihood, negative, "new ") + "The earlier rows that are known have no "
            "negative numbers there. " + _REMEDY
        )


_REMEDY = (
    "If it stands for a missing value, drop these rows, or give them an entry of their own; if it "
    "is meant to count from the end, pass the number of the entry instead."
)


def _chunks(likelihood: ModelLikelihood) -> Iterator[tuple[tuple, int]]:
    rows, size = likelihood.rows, chunk_rows(likelihood)
    if rows.is_streamed:
        return iter([(rows.head(size), rows.offset)])
    return rows.chunks(size)


def _unknown(
    likelihood: ModelLikelihood, chunks: Any
) -> tuple[UnknownIndices | None, UnknownIndices | None]:
    # A check of programs that people write in many ways: a build does not fail because of it.
    with contextlib.suppress(Exception):
        return find_unknown_indices(_values_of(likelihood), likelihood.init_params, chunks)
    return None, None


def _values_of(likelihood: ModelLikelihood) -> Callable[[Any, tuple], jax.Array]:
    def values(params: Any, rows: tuple) -> jax.Array:
        return likelihood.log_likelihood(params, rows)

    return values


def _refuse(likelihood: ModelLikelihood, found: UnknownIndices | None, which: str) -> None:
    if found is None:
        return
    most = found.size - 1
    text, values = _described(likelihood, found, which)
    hint = "Give the model an entry for each number, or drop these rows."
    if values.size and values.min() >= 1 and values.max() == found.size:
        hint = f"If they are counted from 1, subtract 1. Otherwise {hint[0].lower()}{hint[1:]}"
    raise ModelError(
        f"{text} and the model takes it as an index of {found.size:,} entries, numbered from 0, so "
        f"that there is no entry for it. JAX reads another entry instead, and the posterior would "
        f"be wrong. Expected numbers from 0 to {most:,}. {hint}"
    )


def _of_negative(likelihood: ModelLikelihood, found: UnknownIndices, which: str) -> str:
    text, _ = _described(likelihood, found, which)
    return (
        f"{text} and the model takes it as an index of {found.size:,} entries. A negative index "
        "counts from the end, so -1 is the last entry, and these rows count as rows of it. "
    )


def _described(
    likelihood: ModelLikelihood, found: UnknownIndices, which: str
) -> tuple[str, np.ndarray]:
    """What is found and where, and all the values of the argument where these are in memory."""
    rows, names, unit = likelihood.rows, list(likelihood.arguments.data_names), "row"
    if isinstance(marginal := likelihood.model, GroupModel):
        args, kwargs = flat_call(marginal.positions, likelihood.arguments)
        known = flatten(marginal.model, args, kwargs).names
        names, unit = [known[i] for i in likelihood.arguments.data_at], "group"
    numbers = rows.numbers(found.rows).tolist()
    more = f" and {len(numbers) - _SHOWN:,} more" if len(numbers) > _SHOWN else ""
    many = "s" if len(numbers) > 1 else ""
    where = f"{which}{unit}{many} {', '.join(f'{n:,}' for n in numbers[:_SHOWN])}{more}"
    argument = " and ".join(names[leaf] for leaf in found.leaves)
    leaf = rows.data[found.leaves[0]]
    is_known = len(found.leaves) == 1 and isinstance(leaf, np.ndarray | jax.Array)
    if not is_known or is_streamed(leaf) or leaf.ndim != 1:
        return f"argument {argument} has a number without an entry in {where},", np.zeros(0)
    values = np.asarray(leaf)
    first = values[int(found.rows[0]) - rows.offset]
    return f"argument {argument} is {first:,} in {where},", values
