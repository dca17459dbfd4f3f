"""What a user keeps: a few weighted rows, the model that counts them so, and a report.

A coreset is saved as one ``.npz`` file: its arrays, and a JSON text that says how they make up the
model's arguments. Nothing in it is executed when it is loaded.
"""

import copy
import functools
import importlib
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float, Int, PRNGKeyArray
from numpyro.infer import MCMC

from jaxcoreset.coreset.frame import as_frame
from jaxcoreset.coreset.report import Report
from jaxcoreset.coreset.warm_start import WarmStart, warm_start
from jaxcoreset.data.arrays import decode, encode
from jaxcoreset.data.utils import Clock, peak_memory, write_whole
from jaxcoreset.likelihood.arguments import flatten
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.weighted import weighted_model
from jaxcoreset.weighting.laplace import LaplaceApproximation

if TYPE_CHECKING:
    import pandas as pd

    from jaxcoreset.coreset.summary import DataSummary

_FORMAT = 1


class Coreset:
    """Weighted rows whose posterior stands for that of all the data.

    ``coreset.model(*coreset.args, **coreset.kwargs)`` is a plain NumPyro model: it works with NUTS,
    SVI, ``Predictive`` and the functions of ``numpyro.infer.util``.

    It can be pickled, as for other processes, where its model can: by pickle a function that can be
    imported, by cloudpickle, which joblib uses, any. The `likelihood` is left behind; copies within
    a process keep it.

    The builder, `merge` and `load` make coresets; by hand one needs the attributes below and

    Args:
        model: the NumPyro model of all rows; None for one that is to be imported by its name.
        data_dims: for each of the model's data plates, by its name, which axis it is.
        model_name: where the model can be imported from, as ``module:name``.
        data_names: which arguments hold the data, by name, with their places when (args, kwargs) is
            flattened.
        count_places: places of the integers that count the rows.

    Attributes:
        indices: int64 array of shape (m,), the rows in increasing order.
        weights: array of shape (m,), positive.
        args: the model's positional arguments with only these rows.
        kwargs: its keyword arguments with only these rows.
        report: how it was made and how good it is.
        approximation: the Laplace approximation of the posterior of all rows, where the builder
            found one on its way; None otherwise, and for a coreset that was loaded.
        likelihood: the model's likelihood with all the data, for `certify` and `correct`; it is
            neither saved nor pickled, and None for a coreset that was loaded. Set it to None to let
            go of the data.
        summary: what `update` needs of the rows that it was built from; None where there is none.
    """

    def __init__(
        self,
        model: Callable | None,
        indices: ArrayLike,
        weights: ArrayLike,
        args: tuple,
        kwargs: Mapping[str, Any],
        report: Report,
        *,
        data_dims: Mapping[str, int],
        model_name: str | None = None,
        approximation: LaplaceApproximation | None = None,
        likelihood: ModelLikelihood | None = None,
        data_names: Mapping[str, int] | None = None,
        summary: "DataSummary | None" = None,
        count_places: Sequence[int] | None = None,
    ):
        self.indices: Int[np.ndarray, " m"] = np.asarray(indices, np.int64)
        self.weights: Float[np.ndarray, " m"] = np.asarray(weights)
        self.args = tuple(args)
        self.kwargs = dict(kwargs)
        self.report = report
        self.approximation = approximation
        self.likelihood = likelihood
        self.summary = summary
        self._full_model = model
        self._data_dims = dict(data_dims)
        # Names of the data among the arguments, and their places when (args, kwargs) is flattened.
        self._data_names = None if data_names is None else dict(data_names)
        # Places of the integers that count the rows.
        self._count_places = None if count_places is None else tuple(count_places)
        self._model_name = model_name or _name_of(model)
        self._model: Callable | None = None

    @property
    def model(self) -> Callable:
        """The weighted model.

        Raises:
            ValueError: if the coreset was loaded without its model and that cannot be imported
                under the name that it was saved with.
        """
        if self._model is None:
            model = self._full_model or _import_model(self._model_name)
            self._model = weighted_model(model, self.weights, self._data_dims)
        return self._model

    @property
    def full_model(self) -> Callable:
        """The model as its user wrote it, without weights; errors as for `model`."""
        return self._full_model or _import_model(self._model_name)

    @property
    def data_names(self) -> dict[str, int]:
        """Names of the data among the arguments, with places when (args, kwargs) is flattened."""
        if self._data_names is not None:
            return dict(self._data_names)
        # Made by hand, or saved by a version that kept no names.
        model = self._full_model or (lambda *args, **kwargs: None)
        names = flatten(model, self.args, self.kwargs).names
        leaves = jax.tree.leaves((self.args, self.kwargs))
        return {
            name: at
            for at, (name, leaf) in enumerate(zip(names, leaves, strict=True))
            if np.ndim(leaf) > 0 and len(leaf) == len(self)
        }

    @property
    def data_places(self) -> tuple[int, ...]:
        """The places of the data when (args, kwargs) is flattened."""
        if self._data_names is None:
            raise ValueError(
                "the coreset was made without names for its data, so new rows cannot be matched "
                "with them; wanted one that CoresetBuilder made."
            )
        return tuple(self._data_names.values())

    @property
    def count_places(self) -> tuple[int, ...]:
        """The places, when (args, kwargs) is flattened, of integers that count the rows."""
        if self._count_places is not None:
            return self._count_places
        # Made by hand, or saved by a version that did not keep them.
        return tuple(
            at
            for at, leaf in enumerate(jax.tree.leaves((self.args, self.kwargs)))
            if isinstance(leaf, int) and not isinstance(leaf, bool) and leaf == len(self)
        )

    def update(self, key: PRNGKeyArray, *args: Any, **kwargs: Any) -> "Coreset":
        """The coreset of the rows before and of new ones, without going back to the rows before.

        The log-likelihoods of the new rows are added to the sums over all rows at the draws that
        the coreset was built with, some of them join the candidates, and the default solver runs,
        without the constraint that the build had, if any. The sums are exact; the draws are of the
        posterior before. Its report says what they are still worth, and the error under importance
        weights towards the new posterior. Where they are worth less than a tenth of what they were,
        or fewer than 20 draws, the error is not known and may be anything: the `kl` of the report
        is infinite, `is_within_tol` is False where there is a tolerance, and a build from all rows
        is due.

        Warns where the error is not known.

        Args:
            key: a JAX random key; the same key gives the same coreset.
            *args: the model's positional arguments with the new rows, and all else as before.
            **kwargs: its keyword arguments.

        Returns:
            A coreset of the same size, whose row numbers go on from those before.

        Raises:
            ValueError: if the coreset has no `summary`, or the arguments are not those before but
                for the rows.
            ModelError, RuntimeError: if a row's log-likelihood depends on other rows, or the
                compiled program is wrong, see `check_program`.
        """
        from jaxcoreset.coreset.update import updated

        return updated(self, key, args, kwargs)

    @property
    def data_dims(self) -> dict[str, int]:
        """For each observed site in the data axis its dimension, counted from the right."""
        return dict(self._data_dims)

    def warm_start(
        self,
        mcmc: MCMC | Mapping[str, Any] | None = None,
        *,
        num_chains: int | None = None,
        dense_mass: bool | list[tuple[str, ...]] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> WarmStart:
        """What NUTS on all the rows can start from; see `jaxcoreset.coreset.WarmStart`."""
        return warm_start(
            self.model,
            (self.args, self.kwargs),
            mcmc,
            self.approximation,
            num_chains=num_chains,
            dense_mass=dense_mass,
            key=key,
        )

    def __len__(self) -> int:
        return self.indices.size

    def __repr__(self) -> str:
        kl = "not known" if math.isinf(self.report.kl) else f"{self.report.kl:.2g}"
        return f"<Coreset: {len(self)} of {self.report.num_data:,} rows, KL {kl}>"

    def __getstate__(self) -> dict[str, Any]:
        # The likelihood has compiled functions, which cannot be pickled, and all the data; the
        # weighted model is made again when it is asked for.
        return {**vars(self), "likelihood": None, "_model": None}

    def __copy__(self) -> "Coreset":
        # Within a process nothing need be left behind, as it is by `__getstate__`.
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> "Coreset":
        other = object.__new__(type(self))
        memo[id(self)] = other
        vars(other).update(copy.deepcopy(vars(self), memo))
        return other

    def save(self, path: str | os.PathLike) -> Path:
        """Write the coreset to one file, whole or not at all.

        Args:
            path: where to; ``.npz`` is added if it is missing.

        Returns:
            The path written.

        Raises:
            TypeError: if an argument of the model is neither an array, a number, a string, None,
                nor a tuple, list or dictionary of those.
        """
        path = Path(path)
        if path.suffix != ".npz":
            path = path.with_name(path.name + ".npz")
        arrays: dict[str, np.ndarray] = {}
        header = {
            "format": _FORMAT,
            "args": encode(list(self.args), arrays, "args"),
            "kwargs": encode(self.kwargs, arrays, "kwargs"),
            "report": self.report.to_dict(),
            "data_dims": self._data_dims,
            "model": self._model_name,
            "data_names": self._data_names,
            "count_places": self._count_places,
            "summary": None
            if self.summary is None
            else encode(self.summary.to_dict(), arrays, "summary"),
        }
        arrays |= {"indices": self.indices, "weights": self.weights}
        arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
        return write_whole(
            path, lambda file: np.savez_compressed(file, allow_pickle=False, **arrays)
        )

    def to_frame(
        self, table: "pd.DataFrame | None" = None, *, weight: str = "weight", row: str = "row"
    ) -> "pd.DataFrame":
        """The coreset as a table: one line for each of its rows, with the weight.

        Args:
            table: the data frame, of n rows, that the model's arguments were made from. If left
                out, the columns are those arguments themselves.
            weight: the name of the weights' column.
            row: the name of the column of row numbers, which count from 0.

        Returns:
            A data frame of m rows: the row numbers, the weights, and either the table's columns at
            these rows, under the table's index, or the model's data by argument name: an array of
            one axis as ``y``, others as ``X[0]``, ``X[1]``, ....

        Raises:
            ValueError: if the table has not n rows, or a column is called like the weights or the
                row numbers.
            TypeError: if `table` is no data frame.
            ModuleNotFoundError: if pandas is not installed; the extra ``tables`` brings it.
        """
        return as_frame(self, table, weight, row)

    def to_csv(
        self,
        path: str | os.PathLike,
        table: "pd.DataFrame | None" = None,
        *,
        weight: str = "weight",
        row: str = "row",
    ) -> Path:
        """Write `to_frame` as CSV with a header and without the index, whole or not at all.

        Args:
            path: where to.
            table: see `to_frame`.
            weight: see `to_frame`.
            row: see `to_frame`.

        Returns:
            The path written.
        """
        frame = self.to_frame(table, weight=weight, row=row)
        return write_whole(path, lambda file: frame.to_csv(file, index=False, encoding="utf-8"))

    def to_parquet(
        self,
        path: str | os.PathLike,
        table: "pd.DataFrame | None" = None,
        *,
        weight: str = "weight",
        row: str = "row",
    ) -> Path:
        """Write `to_frame` as Parquet without the index, whole or not at all.

        Args:
            path: where to.
            table: see `to_frame`.
            weight: see `to_frame`.
            row: see `to_frame`.

        Returns:
            The path written.

        Raises:
            ModuleNotFoundError: if pandas or pyarrow is not installed; the extra ``tables`` brings
                them.
        """
        frame = self.to_frame(table, weight=weight, row=row)
        try:
            importlib.import_module("pyarrow")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "pyarrow is missing; Parquet needs it: pip install 'jaxcoreset[tables]'",
                name="pyarrow",
            ) from error
        return write_whole(path, lambda file: frame.to_parquet(file, engine="pyarrow", index=False))


def coreset_of_rows(
    model: Callable,
    likelihood: ModelLikelihood,
    indices: Int[np.ndarray, " m"],
    weights: Float[np.ndarray, " m"],
    report: Report,
    approximation: LaplaceApproximation | None = None,
    summary: "DataSummary | None" = None,
) -> Coreset:
    """The coreset of some rows of a model's data, in increasing order, with positive weights."""
    args, kwargs = likelihood.assemble(likelihood.take(indices))
    return Coreset(
        model,
        indices,
        weights,
        args,
        kwargs,
        report,
        data_dims=likelihood.data_dims,
        approximation=approximation,
        likelihood=likelihood,
        data_names=likelihood.data_names,
        count_places=likelihood.count_places,
        summary=summary,
    )


def whole_coreset(model: Callable, likelihood: ModelLikelihood, size: int, clock: Clock) -> Coreset:
    """All rows with weight 1, which need neither draws nor a solver and have no error."""
    n = likelihood.num_data
    nothing = dict.fromkeys(
        ("relative_error", "held_out_error", "kl", "kl_standard_error"), np.zeros(1)
    )
    report = Report(
        num_data=n,
        size=size,
        num_used=n,
        num_candidates=n,
        num_draws=0,
        num_held_out=0,
        relative_error=0.0,
        held_out_error=0.0,
        kl=0.0,
        kl_standard_error=0.0,
        solver="all rows",
        converged=True,
        weighting="none needed",
        curve={"size": np.array([n]), "num_used": np.array([n]), **nothing},
        seconds=clock.seconds,
        peak_memory=peak_memory(),
    )
    rows = likelihood.rows
    in_memory = rows.is_local and not rows.is_streamed
    args, kwargs = likelihood.assemble(rows.data if in_memory else rows.take(np.arange(n)))
    weights = np.ones(n, jnp.zeros(()).dtype)
    return Coreset(
        model,
        np.arange(n),
        weights,
        args,
        kwargs,
        report,
        data_dims=likelihood.data_dims,
        data_names=likelihood.data_names,
        count_places=likelihood.count_places,
        likelihood=likelihood,
    )


def load(path: str | os.PathLike, model: Callable | None = None) -> Coreset:
    """Read a coreset that `Coreset.save` wrote.

    Args:
        path: the file; ``.npz`` is added, as `save` does, if there is none of this name.
        model: the NumPyro model it was built for. If left out, it is imported, when first asked
            for, under the name that it had.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is no coreset, or one of a newer version.
    """
    path = Path(path)
    if not path.exists() and path.with_name(path.name + ".npz").exists():
        path = path.with_name(path.name + ".npz")
    with open(path, "rb") as file:
        try:
            contents = np.load(file, allow_pickle=False)
            arrays = {name: contents[name] for name in contents.files}
            header = json.loads(arrays["header"].tobytes())
        except Exception as error:
            raise ValueError(
                f"{os.fspath(path)!r} is no coreset, or is cut short; wanted a file that "
                "Coreset.save wrote."
            ) from error
    if header["format"] > _FORMAT:
        raise ValueError(
            f"{os.fspath(path)!r} was written by a newer version of jaxcoreset; upgrade to read it."
        )
    return Coreset(
        model,
        arrays["indices"],
        arrays["weights"],
        tuple(decode(header["args"], arrays)),
        decode(header["kwargs"], arrays),
        Report.from_dict(header["report"]),
        data_dims=header["data_dims"],
        model_name=header["model"],
        data_names=header.get("data_names"),
        count_places=header.get("count_places"),
        summary=_summary(header.get("summary"), arrays),
    )


def _summary(value: Any, arrays: Mapping[str, np.ndarray]) -> "DataSummary | None":
    from jaxcoreset.coreset.summary import DataSummary

    return None if value is None else DataSummary.from_dict(decode(value, arrays))


def _name_of(model: Callable | None) -> str | None:
    """A name under which this very model is found again.

    A handler around a model, such as `numpyro.handlers.scale`, goes by the model's name.
    """
    module, path = getattr(model, "__module__", None), getattr(model, "__qualname__", None)
    try:
        found = _attribute(sys.modules[str(module)], str(path))
    except (KeyError, AttributeError):
        return None
    return f"{module}:{path}" if found is model else None


def _attribute(module: Any, path: str) -> Any:
    """What a dotted path leads to."""
    return functools.reduce(getattr, path.split("."), module)


def _import_model(name: str | None) -> Callable:
    trouble = "the coreset was saved without the name of a module's model"
    if name is not None:
        module, _, path = name.partition(":")
        try:
            return _attribute(importlib.import_module(module), path)
        except (ImportError, AttributeError) as error:
            trouble = f"{name} cannot be imported ({error})"
    raise ValueError(
        f"the coreset's model is missing: {trouble}. Give it: load(path, model=model)."
    )
