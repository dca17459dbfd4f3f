"""Read a coreset from its file, which may be damaged or malicious, so each part is checked."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxcoreset.coreset.codes import codes_from_json
from jaxcoreset.coreset.coreset import Coreset
from jaxcoreset.coreset.report import Report
from jaxcoreset.coreset.saving import FORMAT
from jaxcoreset.coreset.summary import DataSummary
from jaxcoreset.data.arrays import decode, leading, load_archive, require_type, usable
from jaxcoreset.likelihood.arguments import arguments_by_length
from jaxcoreset.likelihood.expansion import Proxy
from jaxcoreset.likelihood.group_names import GroupNames
from jaxcoreset.likelihood.grouping import Grouping


def load(path: str | os.PathLike, model: Callable | None = None, *, trust: bool = False) -> Coreset:
    """Read a coreset that `Coreset.save` wrote.

    Nothing in the file is run, unless you trust it.

    Args:
        path: the file; ``.npz`` is added if there is no file of this name.
        model: the NumPyro model that the coreset was built for. `Coreset.update` raises an error if
            it is another one. If left out, one of the named regressions of ``jaxcoreset build`` is
            found by its name.
        trust: whether any model is imported by its name in the file, on first access. A file can
            name any function of any module there, and `Coreset.model` runs it with the arguments in
            the file: pass True only for a file whose writer you trust, as with pickle.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is not a coreset, is damaged, or was written by a newer version; the
            message says which part of the file is wrong.
    """
    path = Path(path)
    if not path.exists() and path.with_name(path.name + ".npz").exists():
        path = path.with_name(path.name + ".npz")
    trouble = "is not a coreset, or is truncated; expected a file that Coreset.save wrote."
    header, arrays = load_archive(path, "format", trouble)
    at = "format"
    with usable(path, trouble, lambda: at):
        is_newer = header["format"] > FORMAT
    if is_newer:
        raise ValueError(
            f"{os.fspath(path)!r} was written by a newer version of jaxcoreset; upgrade to read it."
        )

    def part(name: str, read: Callable[[Any], Any]) -> Any:
        """A part of the file that not every coreset has."""
        nonlocal at
        at, plain = name, header.get(name)
        return None if plain is None else read(plain)

    with usable(path, trouble, lambda: at):
        at = "report"
        report = Report.from_dict(header["report"])
        proxy = part("proxy", lambda plain: Proxy.from_dict(decode(plain, arrays)))
        at = "indices or weights"
        indices, weights = arrays["indices"], arrays["weights"]
        _check_rows(indices, weights, report.num_data, may_be_empty=proxy is not None)
        at = "args or kwargs"
        args = decode(_with_order(header["args"]), arrays)
        given = header["kwargs"]["dict"].items()
        kwargs = {name: decode(_with_order(value), arrays) for name, value in given}
        require_type(args, list[Any], "args")
        require_type(kwargs, dict[str, Any], "kwargs")
        arguments = arguments_by_length(model, tuple(args), kwargs, max(indices.size, 1))
        # Files of the first versions do not say which arguments hold rows, or count them.
        at = "data_names"
        if header.get("data_names") is not None:
            require_type(header["data_names"], dict[str, int], at)
            arguments = arguments.with_names(header["data_names"])
        if arguments.data:
            leading(list(arguments.data), "the data")
        at = "count_places"
        if header.get("count_places") is not None:
            require_type(header["count_places"], list[int], at)
            arguments = dataclasses.replace(arguments, counts_at=tuple(header["count_places"]))
        for position in arguments.counts_at:
            require_type(arguments.leaves[position], int, f"argument {position}")
        at = "columns"
        columns = header.get("columns") or {}
        require_type(columns, dict[str, list[str]], at)
        at = "codes"
        codes = codes_from_json(header.get("codes") or {})
        at = "data_dims or model"
        require_type(header["data_dims"], dict[str, int], "data_dims")
        require_type(header["model"], str | None, "model")
        names = part(
            "group_names",
            lambda plain: GroupNames.from_dict(decode(plain, arrays), report.num_data),
        )
        names = GroupNames(are_known=False) if names is None else names
        return Coreset(
            model,
            indices,
            weights,
            arguments,
            report,
            data_dims=header["data_dims"],
            model_name=header["model"],
            trust=trust,
            proxy=proxy,
            grouping=part("grouping", lambda plain: Grouping.from_dict(plain, names)),
            columns={name: tuple(one) for name, one in columns.items()},
            codes=codes,
            summary=part("summary", lambda plain: DataSummary.from_dict(decode(plain, arrays))),
        )


def _with_order(plain: Any) -> Any:
    """Encoded arguments, in which the dictionaries whose keys are not sorted are marked as ordered.

    Files of earlier versions have an OrderedDict as a dictionary in its order. JAX sorts the keys
    of any other one.
    """
    if isinstance(plain, list):
        return [_with_order(item) for item in plain]
    if not isinstance(plain, dict) or not plain.keys() & {"dict", "ordered", "list", "tuple"}:
        return plain
    ((kind, items),) = plain.items()
    if kind in ("list", "tuple"):
        return {kind: _with_order(items)}
    found = {key: _with_order(item) for key, item in items.items()}
    return {kind if list(found) == sorted(found) else "ordered": found}


def _check_rows(
    indices: np.ndarray, weights: np.ndarray, num_data: int, may_be_empty: bool
) -> None:
    is_empty = not indices.size and not may_be_empty
    if indices.ndim != 1 or is_empty or weights.shape != indices.shape:
        shapes = f"{indices.shape} and {weights.shape}"
        raise ValueError(f"indices and weights have the shapes {shapes}; expected (m,) for both")
    if indices.dtype.kind != "i" or (np.diff(indices, prepend=-1) < 1).any():
        raise ValueError("indices are not increasing integers from 0 on")
    if indices.size and indices[-1] >= num_data:
        raise ValueError(
            f"row {indices[-1]} is in indices, but the report says that the data have "
            f"{num_data} rows"
        )
    if weights.dtype.kind != "f" or not (np.isfinite(weights) & (weights > 0)).all():
        raise ValueError("weights are not positive numbers")
