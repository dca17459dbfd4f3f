"""`Coreset`: a few weighted rows, the model with these weights, and a report.

A coreset is saved as one ``.npz`` file: its arrays, and a JSON text that says how they make up the
model's arguments. Nothing in the file is executed when it is loaded; see `load` on its model.
"""

import contextlib
import copy
import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped
from numpyro.infer import MCMC

from jaxcoreset.coreset.codes import values_by_column
from jaxcoreset.coreset.frame import AsTable
from jaxcoreset.coreset.group_effects import effects_of_groups
from jaxcoreset.coreset.model_name import import_model, name_of
from jaxcoreset.coreset.report import Report
from jaxcoreset.coreset.saving import save_coreset
from jaxcoreset.coreset.summary import DataSummary
from jaxcoreset.coreset.update import likelihood_of_others, updated
from jaxcoreset.coreset.warm_start import WarmStart, starting_points, warm_start
from jaxcoreset.coreset.warn import warn_if_bad
from jaxcoreset.data.rows import PassContext
from jaxcoreset.data.sources.base import Codes
from jaxcoreset.data.utils import Clock
from jaxcoreset.likelihood.arguments import Arguments
from jaxcoreset.likelihood.closures import float64_for
from jaxcoreset.likelihood.expansion import Proxy
from jaxcoreset.likelihood.group_arguments import flat_call
from jaxcoreset.likelihood.group_model import GroupModel, MarginalModel
from jaxcoreset.likelihood.grouping import Grouping
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.precision import in_enough_precision
from jaxcoreset.likelihood.weighted import weighted_model
from jaxcoreset.selection.draws import DrawPool
from jaxcoreset.selection.tolerance import Selection
from jaxcoreset.solvers.numerics import as_key
from jaxcoreset.weighting.laplace import LaplaceApproximation


class Coreset(AsTable):
    """Weighted rows whose posterior approximates that of all the data.

    ``coreset.model(*coreset.args, **coreset.kwargs)`` is a plain NumPyro model: it works with NUTS,
    SVI, ``Predictive`` and the functions of ``numpyro.infer.util``.

    `CoresetBuilder`, `merge` and `load` make coresets. You can pickle one if you can pickle its
    model: with pickle this is a function that can be imported, and with cloudpickle, which joblib
    uses, any function. The pickle does not include the `likelihood`; copies within a process do.

    Args:
        model: the NumPyro model of all rows; None to import it by its name when it is needed.
        indices: see below, as all arguments that are not listed here.
        data_dims: for each observed site in the data axis its dimension, counted from the right.
        model_name: where the model can be imported from, as ``module:name``.
        trust: whether the model may be imported by its name; see `load`.

    Attributes:
        indices: int64 array of shape (m,), the row numbers in increasing order.
        weights: array of shape (m,), positive.
        arguments: the model's arguments with only these rows, and which of them hold rows.
        data_dims: see above.
        report: how the coreset was made, and how good it is.
        approximation: the Laplace approximation of the posterior of all rows, or of those merged,
            if one was found on the way; None otherwise, and for a coreset that was loaded.
        likelihood: the model's likelihood with all the data, for `certify` and `correct`; it is
            neither saved nor pickled, and None for a coreset that was loaded. Set it to None to
            free the data.
        summary: what `update` needs of the rows that the coreset was built from, or None.
        proxy: the approximation of all rows that the weighted rows correct, or None. With it there
            may be no rows; `args` and `kwargs` then hold one row of weight zero.
        grouping: for a coreset of groups, the arguments and the integral over effects; None for a
            coreset of rows. With groups, `indices` are group numbers, and `args` and `kwargs` hold
            all the rows of these groups, whose labels are 0, 1, ….
        columns: the names of the columns of tables, by argument; other tables are put in order.
        codes: for arguments from `sources.parquet`, the names of the columns, each with the values
            of categories that its numbers stand for; other sources must have the same values.
    """

    def __init__(
        self,
        model: Callable | None,
        indices: ArrayLike,
        weights: ArrayLike,
        arguments: Arguments,
        report: Report,
        *,
        data_dims: Mapping[str, int],
        model_name: str | None = None,
        trust: bool = False,
        approximation: LaplaceApproximation | None = None,
        likelihood: ModelLikelihood | None = None,
        summary: DataSummary | None = None,
        proxy: Proxy | None = None,
        grouping: Grouping | None = None,
        columns: Mapping[str, tuple[str, ...]] | None = None,
        codes: Mapping[str, Codes] | None = None,
    ):
        self.indices: Int[np.ndarray, " m"] = np.asarray(indices, np.int64)
        self.weights: Float[np.ndarray, " m"] = np.asarray(weights)
        self.arguments = arguments
        self.report = report
        self.approximation = approximation
        self.likelihood = likelihood
        self.summary = summary
        self.proxy = proxy
        self.grouping = grouping
        self.columns = dict(columns or {})
        self.codes = dict(codes or {})
        self._full_model = model
        self.data_dims = dict(data_dims)
        self._model_name = model_name or name_of(model)
        self._trust = trust
        self._model: Callable | None = None

    @property
    def args(self) -> tuple:
        """The model's positional arguments with only these rows."""
        return self._call[0]

    @property
    def kwargs(self) -> dict[str, Any]:
        """The model's keyword arguments with only these rows."""
        return self._call[1]

    @property
    def _call(self) -> tuple[tuple, dict]:
        if self.grouping is None:
            return self.arguments.call
        return flat_call(self.grouping.positions, self.arguments)

    @property
    def model(self) -> Callable:
        """The weighted model; for groups, the weighted model of the shared parameters.

        Raises:
            ValueError: if the coreset was loaded without its model, and without trust in the name
                that it was saved with, or the model cannot be imported under that name.
        """
        if self._model is None:
            weights = self.weights if len(self) else np.zeros(1, self.weights.dtype)
            model = self.full_model
            if self.grouping is not None:
                model = MarginalModel(self.grouping.model(model, self.arguments), self.arguments)
            self._model = weighted_model(model, weights, self.data_dims, proxy=self.proxy)
        return self._model

    @property
    def full_model(self) -> Callable:
        """The model as its user wrote it, without weights; errors as for `model`."""
        return self._full_model or import_model(self._model_name, self._trust)

    @property
    def group_names(self) -> Shaped[np.ndarray, " g"] | None:
        """The labels of all groups that the coreset stands for, in the order of their numbers.

        ``coreset.group_names[coreset.indices]`` are those of the selected groups, and the arrays of
        `group_effects` have the same order. They are 0, 1, … if the labels were such numbers, and
        after an `update` the numbers go on. None for a coreset of rows, and for one from a file of
        an earlier version, which has no labels.
        """
        return None if self.grouping is None else self.grouping.names.of(self.report.num_data)

    @property
    def categories(self) -> dict[str, np.ndarray]:
        """The values of categories that `sources.parquet` numbered, by column.

        Other rows have the same numbers with ``sources.parquet(..., categories=this)``. `update`,
        `merge`, `predict`, `certify`, `correct` and `loo` refuse a source with other values.
        """
        return values_by_column(self.codes)

    @property
    def data_names(self) -> dict[str, int]:
        """Names of the data arguments, with their positions when (args, kwargs) is flattened."""
        return self.arguments.data_names

    def update(self, key: PRNGKeyArray | int, *args: Any, **kwargs: Any) -> "Coreset":
        """Add new rows, or new groups, to the coreset, without reading the earlier rows again.

        The log-likelihoods of the new rows are added to the sums over all rows at the draws that
        the coreset was built with, some of the new rows join the candidates, and the default solver
        runs, without a constraint. The sums are exact, but the draws are of the earlier posterior.
        The report gives their effective sample size for the new posterior, and the error under
        importance weights. If that size is below a tenth of their number, or below 20, the error is
        not known: the `kl` of the report is infinite, `is_within_tol` is False if there is a
        tolerance, a warning says so, and you should build a new coreset from all rows.

        With groups, pass new groups only, each with all its rows. New rows of an earlier group need
        a new build. If the labels of the build are text, or are not the numbers 0, 1, …, they
        identify groups, and the label of an earlier group raises an error. Otherwise labels cannot
        identify groups: all groups of an update are new ones, also if they are numbered from 0 on.

        Args:
            key: a JAX random key or an integer seed; the same key gives the same coreset.
            *args: the model's positional arguments, in which only the rows, or groups, are new.
            **kwargs: its keyword arguments.

        Returns:
            A coreset of the same size; new rows or groups are numbered after the earlier ones.

        Raises:
            ValueError: if the coreset has no `summary`, the arguments differ from the earlier ones
                in more than the rows, the model is another one, or the proxy has no mode with the
                new rows.
            ModelError: if a row's log-likelihood depends on other rows, a new row has a number that
                is an index without an entry, or a label is that of an earlier group.
        """
        model = self.full_model
        likelihood_in, layout = likelihood_of_others(self, args, kwargs)
        grouping = self.grouping
        if grouping is not None and layout is not None:
            grouping = grouping.joined(self.report.num_data, layout)

        def run(context: PassContext) -> Coreset:
            solved = updated(
                likelihood_in, self.report, self.summary, as_key(key), context, self.proxy
            )
            found = coreset_of_selection(model, **solved)
            warn_if_bad(found.report)
            found.columns, found.codes = self.columns, self.codes
            if found.grouping is not None and grouping is not None:
                found.grouping = dataclasses.replace(found.grouping, names=grouping.names)
            return found

        return in_enough_precision(run, self.report.precision, model)

    def warm_start(
        self,
        mcmc: MCMC | Mapping[str, Any] | None = None,
        *,
        num_chains: int | None = None,
        dense_mass: bool | list[tuple[str, ...]] | None = None,
        key: PRNGKeyArray | int | None = None,
    ) -> WarmStart:
        """Initial points, a step size and a metric for NUTS on all the rows, effects included.

        Args:
            mcmc: NUTS that has run on the coreset, constrained samples with leading axes (draws,)
                or (chains, draws), or what `correct` returned. Initial points are draws of it, and
                the metric is their covariance. The step size is that of NUTS if its metric is of
                the same kind, else that for a Gaussian. By default the approximation is used.
            num_chains: the number of chains on all the rows; by default that of `mcmc`.
            dense_mass: as for `NUTS`; dense by default with ten draws or more for each coordinate.
                With groups, the metric of their effects is diagonal.
            key: a JAX random key, needed without `mcmc`; by default its draws are evenly spaced.

        Raises:
            ValueError: if there is nothing to start from, or a setting is wrong or missing.
        """
        return warm_start(self, mcmc, num_chains, dense_mass, key)

    def group_effects(
        self,
        key: PRNGKeyArray | int,
        mcmc: MCMC | Mapping[str, Any],
        *args: Any,
        num_draws: int = 64,
        moments: bool = False,
        arviz: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Draws of the effects of *all* groups, also those that are not in the coreset.

        They take one pass over all rows. Given the shared parameters the effects of groups are
        independent, so each is drawn from its own rows; see `jaxcoreset.likelihood.group_effects`.

        Args:
            key: a JAX random key.
            mcmc: NUTS that has run on ``coreset.model``, or a dictionary of constrained samples. Or
                what `correct` returned, whose draws are resampled by their weights.
            *args: the model's positional arguments with all rows; needed if the coreset was loaded.
            num_draws: the number of draws of the shared parameters, evenly spaced, each with one
                draw of all effects.
            moments: whether to return only the mean and the standard deviation of each effect, for
                so many groups that the draws of their effects would not fit in memory.
            arviz: whether to return the draws for ArviZ.
            **kwargs: the model's keyword arguments with all rows.

        Returns:
            A dictionary by site, for the latent sites of groups and deterministic sites with one
            entry per group: an array of shape (num_draws, G, …) whose groups are in the order of
            `group_names`; with `moments` one of shape (2, G, …). With `arviz` an `InferenceData`
            (ArviZ 0.23) or a `DataTree` (ArviZ 1) with the group "posterior", in which effects have
            the dimension "group" and its coordinates are `group_names`.

        Raises:
            ValueError: if the coreset is not one of groups, its data are missing, those passed have
                other groups or other rows of the groups chosen, or `moments` and `arviz` are True.
            ModuleNotFoundError: if `arviz` is True and ArviZ is not installed.
        """
        settings = num_draws, moments, arviz
        return effects_of_groups(self, as_key(key), mcmc, args, kwargs, *settings)

    def init_params(self, num_chains: int = 1) -> dict[str, Array]:
        """Starting points for chains on the coreset, for ``MCMC.run(..., init_params=...)``.

        They are the most likely of the draws that the coreset was built with, or draws around the
        mode of its rows if it was built without draws. Chains that start there need less warmup,
        and do not end in a mode that only the weighted density has.

        Args:
            num_chains: the number of chains of the `MCMC`.

        Returns:
            Unconstrained values of the latent sites, with a leading axis of chains if there is more
            than one.

        Raises:
            ValueError: if the coreset keeps no draws, as a coreset of all rows, and has no mode.
        """
        return starting_points(self, num_chains)

    def in_float64(self) -> contextlib.AbstractContextManager:
        """A context in which NUTS samples the coreset in float64, if float32 is too coarse.

        See `Report.rounding`. JAX's x64 is on within it, and arguments are in float64 and int64::

            with coreset.in_float64():
                mcmc = MCMC(NUTS(coreset.model), num_warmup=500, num_samples=500)
                mcmc.run(key, *coreset.args, init_params=coreset.init_params())
        """
        return float64_for(self.full_model)

    def __repr__(self) -> str:
        kl = "not known" if math.isinf(self.report.kl) else f"{self.report.kl:.2g}"
        return f"<Coreset: {len(self)} of {self.report.num_data:,} {self.report.unit}, KL {kl}>"

    def __getstate__(self) -> dict[str, Any]:
        # The likelihood has compiled functions, which cannot be pickled, and all the data. The
        # weighted model is made again on access.
        return {**vars(self), "likelihood": None, "_model": None}

    def __copy__(self) -> "Coreset":
        # Within a process the copy keeps what `__getstate__` leaves behind.
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> "Coreset":
        other = memo[id(self)] = self.__copy__()
        vars(other).update(copy.deepcopy(vars(self), memo))
        return other

    def save(self, path: str | os.PathLike) -> Path:
        """Write the coreset to one file, atomically.

        Args:
            path: the file; ``.npz`` is added if it is missing.

        Returns:
            The path written.

        Raises:
            TypeError: if an argument of the model is neither an array, a number, a string, None,
                nor a tuple, list or dictionary of those.
        """
        return save_coreset(self, path, self._model_name)


def coreset_of_rows(
    model: Callable,
    likelihood: ModelLikelihood,
    indices: Int[np.ndarray, " m"],
    weights: Float[np.ndarray, " m"],
    data: tuple,
    report: Report,
    *,
    approximation: LaplaceApproximation | None = None,
    summary: DataSummary | None = None,
    proxy: Proxy | None = None,
    keep_likelihood: bool = True,
) -> Coreset:
    """The coreset of some rows of a model's data, in increasing order, with positive weights."""
    order = np.argsort(indices, kind="stable")
    if (np.diff(order) != 1).any():
        indices, weights = indices[order], weights[order]
        data = tuple(leaf[order] for leaf in data)
    marginal, arguments = likelihood.model, likelihood.arguments.with_data(data)
    grouping = Grouping.of(marginal) if isinstance(marginal, GroupModel) else None
    return Coreset(
        model,
        indices,
        weights,
        arguments if grouping is None else grouping.trimmed(arguments),
        report,
        data_dims=likelihood.data_dims,
        approximation=approximation,
        likelihood=likelihood if keep_likelihood else None,
        summary=summary,
        proxy=proxy,
        grouping=grouping,
    )


def coreset_of_selection(
    model: Callable,
    pool: DrawPool,
    selection: Selection,
    clock: Clock,
    *,
    approximation: LaplaceApproximation | None = None,
    keep_likelihood: bool = False,
    keep_summary: bool = False,
    **facts: Any,
) -> Coreset:
    """The coreset, with its report, of rows that were selected from the candidates of a pool.

    Args:
        model: the model of all rows.
        pool: the draws and candidates.
        selection: what was selected.
        clock: the time by stage.
        approximation: see `Coreset`.
        keep_likelihood: whether the coreset keeps the pool's likelihood.
        keep_summary: whether the coreset keeps what `update` needs.
        **facts: what `Report.of_selection` takes.

    Raises:
        ValueError: if no row was selected.
    """
    positions = selection.positions
    if not positions.size and selection.approach == "rows":
        raise ValueError(
            "the solver chose no rows, because no candidate's log-likelihood is correlated with "
            "the sum over all rows. Give more candidates (candidates=) or other draws "
            "(weighting=)."
        )
    # A model runs with one row at least.
    data = pool.data_of(positions if positions.size else np.zeros(1, np.int64))
    return coreset_of_rows(
        model,
        pool.likelihood,
        pool.numbers_of(positions),
        selection.weights,
        data,
        Report.of_selection(pool, selection, clock, **facts),
        approximation=approximation,
        summary=DataSummary.of(pool, positions) if keep_summary else None,
        proxy=pool.proxy_of(positions, selection.weights, selection.approach),
        keep_likelihood=keep_likelihood,
    )
