"""What the codes in a model's arguments stand for, so that other sources have the same ones.

`sources.parquet` reads a category as a code, its position among the values of the column. A coreset
keeps these values. An argument with other values would give each row the effect of another
category, without any error.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxcoreset.data.arrays import require_type
from jaxcoreset.data.fingerprint import Hash
from jaxcoreset.data.messages import DataError, listed
from jaxcoreset.data.sources.base import Codes
from jaxcoreset.likelihood.arguments import codes_of_call, in_order_of


def as_built(coreset: Any, args: tuple, kwargs: Mapping[str, Any]) -> tuple[tuple, dict]:
    """A call of the model whose tables have the columns of the build, in its order.

    Raises:
        DataError: if a table has other columns, or the codes in a source stand for other values.
    """
    model = coreset.full_model
    check_codes(coreset, codes_of_call(model, args, kwargs))
    return in_order_of(coreset.columns, model, args, kwargs)


def check_codes(coreset: Any, found: Mapping[str, Codes]) -> None:
    """Raise a DataError if codes stand for other values than those of the coreset.

    Args:
        coreset: the coreset.
        found: the values of the codes in other data, by argument.
    """
    for name, codes in found.items():
        if (trouble := _difference(coreset.codes.get(name, ()), codes)) is not None:
            raise DataError(
                f"argument {name} has {trouble}. The same number would be another category. Pass "
                "categories=coreset.categories to sources.parquet, or the values of one column, "
                "categories={...: coreset.categories[...]}."
            )


def codes_of_all(coresets: Any) -> dict[str, Codes]:
    """The values of the codes of several coresets, by argument.

    Raises:
        DataError: if they differ.
    """
    known: dict[str, Codes] = {}
    for one in coresets:
        for name, codes in one.codes.items():
            if (trouble := _difference(known.setdefault(name, codes), codes)) is not None:
                raise DataError(
                    f"the coresets differ in what the numbers in argument {name} stand for: one of "
                    f"them has {trouble}. Build each of them with the same values, as "
                    "sources.parquet(..., categories=first.categories)."
                )
    return known


def _difference(before: Codes, now: Codes) -> str | None:
    """How the values of one argument differ from those of the build; None if they do not."""
    for (column, known), (other, values) in zip(before, now, strict=False):
        if known is None and values is None:
            continue
        if known is None or values is None:
            # Codes that were numbered elsewhere may be in a column of another name.
            coded = np.asarray(values if known is None else known)
            if column == other and not np.array_equal(coded, np.arange(coded.size)):
                return (
                    f"plain numbers in column {other!r}; expected codes of its categories, "
                    f"{listed(coded.tolist())}"
                    if values is None
                    else f"codes of categories in column {other!r}; expected plain numbers, as in "
                    "the build"
                )
            continue
        is_text = [array.dtype.kind == "U" for array in (known, values)]
        if is_text[0] == is_text[1] and np.array_equal(known, values):
            continue
        return (
            f"codes of the categories {listed(values.tolist())} in column {other!r}; expected "
            f"those of the build, {listed(known.tolist())}, in this order"
        )
    return None


def values_by_column(codes: Mapping[str, Codes]) -> dict[str, np.ndarray]:
    """The values of categories by the names of their columns."""
    found: dict[str, np.ndarray] = {}
    for columns in codes.values():
        for column, values in columns:
            if values is not None:
                found.setdefault(column, values)
    return found


def codes_to_json(codes: Mapping[str, Codes]) -> dict[str, Any]:
    """Values as lists, for the file of a coreset."""
    return {
        name: [[column, None if values is None else values.tolist()] for column, values in columns]
        for name, columns in codes.items()
    }


def codes_from_json(plain: Any) -> dict[str, Codes]:
    """The inverse of `codes_to_json`; a ValueError if it is damaged."""
    require_type(plain, dict[str, list[list[Any]]], "codes")
    found: dict[str, Codes] = {}
    for name, columns in plain.items():
        for one in columns:
            if len(one) != 2:
                raise ValueError(f"codes of argument {name} are not pairs of a name and values")
            require_type(one[0], str, "codes")
            require_type(one[1], list[str] | list[int | float | bool] | None, "codes")
        found[name] = tuple(
            (one[0], None if one[1] is None else np.array(one[1])) for one in columns
        )
    return found


def codes_as_text(codes: Mapping[str, Codes]) -> dict[str, str]:
    """The values of categories by column, as short text that processes compare."""
    found = {}
    for name, columns in codes.items():
        for column, values in columns:
            what = f"what the numbers of column {column!r} in {name} stand for"
            what += " (pass categories={...} with all values in each process)"
            found[what] = "themselves"
            if values is not None:
                digest = Hash(values.tolist()).hex()[:8]
                found[what] = f"{values.size} values with hash {digest}: {values[:3].tolist()}"
    return found
