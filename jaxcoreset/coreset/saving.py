"""Write a coreset to one file: arrays, and a JSON text that says how they make it up."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from jaxcoreset.coreset.codes import codes_to_json
from jaxcoreset.data.arrays import encode, save_archive

FORMAT = 1


def save_coreset(coreset: Any, path: str | os.PathLike, model_name: str | None) -> Path:
    """See `Coreset.save`."""
    path = Path(path)
    if path.suffix != ".npz":
        path = path.with_name(path.name + ".npz")
    arrays: dict[str, np.ndarray] = {}

    def encoded(part: Any, name: str) -> Any:
        return None if part is None else encode(part.to_dict(), arrays, name)

    arguments, grouping = coreset.arguments, coreset.grouping
    header = {
        "format": FORMAT,
        "args": encode(list(arguments.call[0]), arrays, "args"),
        "kwargs": encode(arguments.call[1], arrays, "kwargs"),
        "report": coreset.report.to_dict(),
        "data_dims": coreset.data_dims,
        "model": model_name,
        "data_names": coreset.data_names,
        "columns": {name: list(one) for name, one in coreset.columns.items()},
        "codes": codes_to_json(coreset.codes),
        "count_places": arguments.counts_at,
        "grouping": None if grouping is None else grouping.to_dict(),
        "group_names": encoded(grouping and grouping.names, "group_names"),
        "summary": encoded(coreset.summary, "summary"),
        "proxy": encoded(coreset.proxy, "proxy"),
    }
    arrays |= {"indices": coreset.indices, "weights": coreset.weights}
    return save_archive(path, header, arrays)
