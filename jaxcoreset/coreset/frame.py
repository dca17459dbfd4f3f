"""A coreset as a data frame."""

from typing import TYPE_CHECKING

import jax
import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from jaxcoreset.coreset.coreset import Coreset


def as_frame(
    coreset: "Coreset", table: "pd.DataFrame | None", weight: str, row: str
) -> "pd.DataFrame":
    """See `Coreset.to_frame`."""
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "pandas is missing; to_frame needs it: pip install 'jaxcoreset[tables]'",
            name="pandas",
        ) from error
    if table is None:
        frame = pd.DataFrame(_data_columns(coreset))
    elif not isinstance(table, pd.DataFrame):
        raise TypeError(f"table is a {type(table).__name__}; wanted a pandas DataFrame.")
    elif len(table) != coreset.report.num_data:
        raise ValueError(
            f"table has {len(table):,} rows; wanted the {coreset.report.num_data:,} that the "
            "coreset was built from, in the same order."
        )
    else:
        frame = table.iloc[coreset.indices].copy()
    for option, name in (("row", row), ("weight", weight)):
        if name in frame.columns or row == weight:
            raise ValueError(
                f"{option} is {name!r}, and there is another column of that name; wanted a new "
                f"one, for instance {option}='coreset_{name}'."
            )
    frame.insert(0, row, coreset.indices)
    frame.insert(1, weight, coreset.weights)
    return frame


def _data_columns(coreset: "Coreset") -> dict[str, np.ndarray]:
    """The model's data as columns by name."""
    leaves = jax.tree.leaves((coreset.args, coreset.kwargs))
    columns: dict[str, np.ndarray] = {}
    for name, at in coreset.data_names.items():
        values = np.asarray(leaves[at])
        for index in np.ndindex(values.shape[1:]):
            suffix = f"[{','.join(map(str, index))}]" if index else ""
            columns[name + suffix] = values[(slice(None), *index)]
    return columns
