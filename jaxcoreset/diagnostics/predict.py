"""`predict`: the posterior predictive distribution of rows, and checks of it by test statistics."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro.infer import MCMC

from jaxcoreset.coreset.coreset import Coreset
from jaxcoreset.data.arviz import predictive
from jaxcoreset.data.dtypes import default_float
from jaxcoreset.data.messages import listed
from jaxcoreset.data.rows import PassContext, Rows
from jaxcoreset.data.utils import check_int, host_generator
from jaxcoreset.data.utils import progress_bar as bar_of
from jaxcoreset.diagnostics.arguments_to_predict import (
    effects_to_predict,
    known_rows,
    rows_to_predict,
)
from jaxcoreset.diagnostics.log_ratio import full_likelihood
from jaxcoreset.diagnostics.missing import refuse_missing, refuse_missing_responses
from jaxcoreset.diagnostics.predictive_check import PredictiveCheck, check_statistic
from jaxcoreset.diagnostics.reweighted import known_draws, plain_draws, reweighted_draws
from jaxcoreset.diagnostics.row_by_row import refuse_sites_of_several_rows
from jaxcoreset.diagnostics.simulation import Drawn, Simulation
from jaxcoreset.likelihood.arguments import Arguments
from jaxcoreset.likelihood.index_check import check_indices_to_predict
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.precision import precision_of
from jaxcoreset.likelihood.trace import one_at_a_time
from jaxcoreset.solvers.numerics import as_key
from jaxcoreset.weighting.chains import systematic_resample

_NO_DATA = (
    "the data that the coreset was built from are not available, because it was loaded, updated or "
    "merged, or you set its likelihood to None, and predict needs them {what}. "
)


@one_at_a_time
def predict(
    coreset: Coreset,
    mcmc: MCMC | Mapping[str, Any],
    *args: Any,
    key: PRNGKeyArray | int,
    sites: Sequence[str] | None = None,
    quantiles: Sequence[float] = (0.05, 0.5, 0.95),
    draws: bool = False,
    num_draws: int | None = 1000,
    reweight: bool = True,
    likelihood: ModelLikelihood | None = None,
    batch_size: int | None = None,
    progress_bar: bool = True,
    **kwargs: Any,
) -> "Prediction":
    """Predict the responses of rows by the draws of a coreset posterior.

    The rows are those of the arguments, or all rows of the build if there are none. NumPyro's
    `Predictive` draws one response per row and posterior draw, block by block; a block is reduced
    to its means, standard deviations and quantiles before the next one is drawn, so that no array
    of size draws × rows is stored. The devices of the build share the rows; each of several
    processes predicts the rows that it passes.

    The draws are resampled by the weights of `correct`, so that they follow the full posterior.
    This costs one pass over all rows, which is not needed if you pass a result of `correct`.

    Every row needs the predictors that its response depends on: a row whose prediction is not a
    number is refused. If the model masks an entry, it may be NaN; a deterministic site may be NaN
    anywhere. Means, standard deviations and quantiles are NaN there; draws of whole numbers are
    meaningless. Responses that are drawn anew may be NaN among the arguments.

    An argument that holds neither rows nor groups, such as a number of degrees of freedom, is that
    of the build if you leave it out. There is a warning if you pass another value.

    With a coreset of groups, pass the rows to predict, with the labels of the build, and the number
    of groups, new ones included. Groups of the build have their own effects, drawn as by
    `Coreset.group_effects`. Groups with other labels are new: their effects are drawn from the
    prior given the shared parameters. If each row is a group, the effect of each row is drawn in
    this way. Arrays with one entry per group have the groups of the build first, in the order of
    `Coreset.group_names` and with the same entries, and then new groups, in the order of their
    sorted labels.

    Args:
        coreset: the coreset.
        mcmc: see `certify`; or what `correct` returned.
        *args: the model's positional arguments with the rows to predict. The response may be None
            or missing, if the model allows that. If you pass it, it is replaced by new responses,
            and kept for checks. If the model has several responses and you pass some of them, these
            keep their values, and the missing ones are drawn given them.
        key: a JAX random key or an integer seed.
        sites: names of sites with one value per row, deterministic ones among them; by default the
            observed sites that are drawn.
        quantiles: the levels of the quantiles to compute, between 0 and 1. Quantiles are values
            that were drawn, so quantiles of counts are whole numbers. Pass () for no quantiles,
            which is faster.
        draws: whether to keep all draws, of shape (num_draws, n, …).
        num_draws: see `certify`.
        reweight: whether to weight the draws, also those that `correct` returned. If False, the
            predictions are those of the coreset posterior, and the data of the build are needed for
            the effects of groups only.
        likelihood: for a coreset that was loaded, the `model_likelihood` of the data that it was
            built from; for a coreset of groups, the ``group_likelihood`` of these data, from the
            module `jaxcoreset.likelihood.group_likelihood`.
        batch_size: the number of rows that are read and moved to the device at a time.
        progress_bar: whether to show the progress on a terminal.
        **kwargs: the model's keyword arguments.

    Raises:
        CorrectionError: if the draws cannot be reweighted; see `correct`.
        ModelError: if no argument holds rows, a site cannot be drawn, groups do not fit the build,
            a prediction is not a number, a deterministic site of a row is computed from other rows,
            too, such as a share or a rank, or the model takes a number as an index and has no entry
            for it: too large, NaN, or negative where no known row of the build is.
        ValueError: see `certify`; or if data are needed and not available, or `reweight` is False
            and the draws were resampled by `correct`.
    """
    levels = tuple(float(level) for level in quantiles)
    if not all(0 <= level <= 1 for level in levels):
        raise ValueError(f"quantiles is {levels}; expected numbers between 0 and 1.")
    if num_draws is not None:
        check_int("num_draws", num_draws, 1)
    full = coreset.likelihood if likelihood is None else likelihood
    grouping = coreset.grouping
    has_effects = grouping is not None and grouping.positions.labels is not None
    found = known_draws(coreset, mcmc, num_draws, reweight=reweight)
    has_weights = found is not None or not reweight
    needs_data = likelihood is not None or has_effects or not (has_weights and (args or kwargs))
    if full is not None and needs_data:
        full = full_likelihood(coreset, (), {}, likelihood)
    if found is None and not reweight:
        found = plain_draws(coreset, mcmc, num_draws)
    elif found is None and full is None:
        raise ValueError(
            _NO_DATA.format(what="for the weights")
            + "Pass what jaxcoreset.correct returned in place of mcmc, or likelihood="
            "model_likelihood(…) of these data, or reweight=False."
        )
    elif found is None:
        assert full is not None
        found = reweighted_draws(coreset, mcmc, full, num_draws, batch_size, progress_bar)
    resample_key, effect_key, draw_key = jax.random.split(as_key(key), 3)
    flat = found.samples.flat()
    if np.ptp(found.log_weights) > 0:
        chosen = systematic_resample(found.log_weights, host_generator(resample_key))
        flat = {name: x[chosen] for name, x in flat.items()}
    context = precision_of(coreset.report.precision)
    with context.precision():
        arguments, rows = _rows(coreset, full, args, kwargs)
        responses = tuple(coreset.data_dims)
        at = {name: jnp.asarray(x) for name, x in flat.items()}
        if grouping is not None:
            marginal = grouping.model(coreset.full_model, coreset.arguments)
            responses = tuple(marginal.structure.rows)
            if has_effects:
                if full is None:
                    raise ValueError(
                        _NO_DATA.format(what="for the effects of groups")
                        + "Pass likelihood=group_likelihood(model, args, groups=…) of these data, "
                        "from jaxcoreset.likelihood.group_likelihood."
                    )
                # Processes draw the effects of their groups at the same shared parameters.
                of_first = full.rows.context.processes.first(at)
                at = {name: jnp.asarray(x) for name, x in of_first.items()}
                at |= effects_to_predict(coreset, arguments, at, full.rows, effect_key)
        mesh = None if full is None else full.rows.context.mesh
        rows.context = dataclasses.replace(rows.context, batch_size=batch_size, mesh=mesh)
        simulation = Simulation.of(coreset.full_model, arguments, responses, sites)
        refuse_sites_of_several_rows(simulation, at, rows)
        if args or kwargs:
            names, known = list(arguments.data_names), known_rows(coreset, full)
            check_indices_to_predict(simulation.draw_with_densities, at, rows, names, known)
        stream = _Stream(simulation, rows, at, draw_key, context, progress_bar)
        return stream.summary(levels, draws)


def _rows(
    coreset: Coreset, full: ModelLikelihood | None, args: tuple, kwargs: Mapping[str, Any]
) -> tuple[Arguments, Rows]:
    """The rows to predict, and the model's arguments for them."""
    if args or kwargs:
        arguments = rows_to_predict(coreset, args, kwargs, full)
        if not arguments.num_data:
            raise ValueError(f"there are no rows to predict; found {arguments}.")
        return arguments, Rows(arguments.data)
    if coreset.grouping is not None:
        raise ValueError(
            "there are no rows to predict; with a coreset of groups, pass the model's arguments: "
            "predict(coreset, mcmc, X, plane, num_planes, key=key)."
        )
    if full is None:
        raise ValueError(
            "there are no rows to predict, and the data that the coreset was built from are not "
            "available; pass the model's arguments: predict(coreset, mcmc, X, key=key)."
        )
    if not full.rows.is_local:
        raise ValueError(
            "there are no rows to predict; if several processes have parts of the data, pass each "
            "its own rows: predict(coreset, mcmc, X, y, key=key)."
        )
    return full.arguments, Rows(full.rows.data)


@dataclass(frozen=True, eq=False)
class _Stream:
    """New responses of all rows, block by block; the same each time."""

    simulation: Simulation
    rows: Rows
    draws: dict[str, Array]
    key: PRNGKeyArray
    context: PassContext
    progress_bar: bool

    @property
    def num_draws(self) -> int:
        return next(iter(self.draws.values())).shape[0]

    def blocks(self, reduce: Callable, per_row: tuple = ()) -> Iterator[tuple[int, int, Any]]:
        """``reduce(drawn, per_row, counted)`` of every block, on the host."""
        n, args = self.rows.num_rows, (_Reduced(self.simulation, reduce), self.draws, self.key)
        width = 2 * self.num_draws * max(self.simulation.width, 1)
        numbers = np.arange(n, dtype=np.uint32)
        what = f"{self.num_draws:,} draws of {n:,} rows"
        with self.context.precision(), bar_of(n, what, show=self.progress_bar) as bar:
            for first, num, values in self.rows.evaluate(_block, args, width, (numbers, *per_row)):
                yield first, num, jax.tree.map(np.asarray, values)
                bar.update(num)

    def summary(self, levels: tuple[float, ...], keep: bool) -> "Prediction":
        parts = []
        for first, num, values in self.blocks(_Summary(levels, keep)):
            flat = jax.tree.map(lambda x, num=num: x.reshape(-1, *x.shape[2:])[:num], values)
            refuse_missing(self.simulation, self.rows, self.draws, flat.pop("refused"), first)
            parts.append(flat)
        whole = jax.tree.map(lambda *x: np.concatenate(x), *parts)
        by_site = {name: whole["sites"][name] for name in self.simulation.axes}

        def collect(what: str) -> dict[str, np.ndarray]:
            return {name: found[what] for name, found in by_site.items() if what in found}

        return Prediction(
            mean=collect("mean"),
            sd=collect("sd"),
            quantiles={x: np.moveaxis(q, 1, 0) for x, q in collect("quantiles").items()},
            levels=levels,
            draws={x: np.moveaxis(d, 1, 0) for x, d in collect("draws").items()},
            observed=collect("observed"),
            num_draws=self.num_draws,
            _stream=self,
            _left_out=whole["left_out"],
        )


@dataclass(frozen=True, eq=False)
class _Reduced:
    simulation: Simulation
    reduce: Callable


def _block(args: Any, rows: tuple, counted: Array) -> Any:
    reduced, draws, key = args
    data, (numbers, *per_row) = rows
    simulation = reduced.simulation
    key = jax.random.fold_in(key, numbers[0])
    return reduced.reduce(simulation.draw_checked(draws, key, data), tuple(per_row), counted)


@dataclass(frozen=True)
class _Summary:
    """Rows' means, standard deviations and quantiles, and their draws on request."""

    levels: tuple[float, ...]
    keep: bool

    def __call__(self, drawn: Drawn, per_row: tuple, counted: Array) -> dict:
        found: dict[str, dict] = {}
        for name, x in drawn.values.items():
            real = x.astype(default_float())
            # One NaN makes the mean NaN, and should make the quantiles.
            if name in drawn.masked:
                real = jnp.where(drawn.masked[name][:, None], jnp.nan, real)
            mean = real.mean(axis=1)
            found[name] = {"mean": mean, "sd": real.std(axis=1)}
            if self.levels:
                quantiles = _quantiles(real, self.levels)
                missing = jnp.isnan(mean)[:, None]
                found[name]["quantiles"] = jnp.where(missing, jnp.nan, quantiles)
            if self.keep:
                found[name]["draws"] = x
            if name in drawn.observed:
                found[name]["observed"] = drawn.observed[name]
        return {"sites": found, "refused": drawn.refused, "left_out": drawn.left_out}


def _quantiles(
    values: Float[Array, "m s *shape"], levels: tuple[float, ...]
) -> Float[Array, "m q *shape"]:
    """The smallest of the values with at least this share of them at or below it, for each level.

    XLA sorts slowly on a CPU, so the bits of each value are found by bisection.
    """
    count, bits = values.shape[1], jnp.finfo(values.dtype).bits
    whole = jnp.iinfo(f"int{bits}")

    def reordered(bits: Array) -> Array:
        # Negative floats are in reverse order as integers.
        return bits ^ ((bits >> (whole.bits - 1)) & whole.max)

    keys = reordered(jax.lax.bitcast_convert_type(values + 0.0, whole.dtype))
    ranks = [min(max(math.ceil(level * count), 1), count) for level in levels]

    def halve(_: Any, bounds: list) -> list:
        found = []
        for (low, high), rank in zip(bounds, ranks, strict=True):
            middle = (low & high) + ((low ^ high) >> 1)
            enough = jnp.sum(keys <= middle[:, None], axis=1) >= rank
            found.append((jnp.where(enough, low, middle + 1), jnp.where(enough, middle, high)))
        return found

    low = jnp.full((values.shape[0], *values.shape[2:]), whole.min, whole.dtype)
    bounds = [(low, jnp.full_like(low, whole.max))] * len(ranks)
    bounds = jax.lax.fori_loop(0, whole.bits, halve, bounds)
    found = [jax.lax.bitcast_convert_type(reordered(high), values.dtype) for _, high in bounds]
    return jnp.stack(found, axis=1)


@dataclass(frozen=True, eq=False)
class Prediction:
    """The posterior predictive distribution of n rows, by site.

    Attributes:
        mean: arrays of shape (n, …).
        sd: standard deviations, of shape (n, …).
        quantiles: arrays of shape (number of levels, n, …).
        levels: the levels of the quantiles.
        draws: arrays of shape (num_draws, n, …), equally weighted; empty unless they were kept.
        observed: the responses among the arguments, of shape (n, …); empty without them.
        num_draws: the number of responses drawn for a row.
    """

    mean: dict[str, np.ndarray]
    sd: dict[str, np.ndarray]
    quantiles: dict[str, np.ndarray]
    levels: tuple[float, ...]
    draws: dict[str, np.ndarray]
    observed: dict[str, np.ndarray]
    num_draws: int
    _stream: _Stream = dataclasses.field(repr=False)
    _left_out: dict[str, np.ndarray] = dataclasses.field(repr=False)

    def __repr__(self) -> str:
        n = self._stream.rows.num_rows
        return f"<Prediction of {listed(list(self.mean))}: {n:,} rows, {self.num_draws:,} draws>"

    def to_arviz(self) -> Any:
        """The draws and the observations for ArviZ, as for `arviz.plot_ppc`.

        Returns:
            An `InferenceData` (ArviZ 0.23) or a `DataTree` (ArviZ 1) with the groups
            "posterior_predictive" and "observed_data", in which rows have the dimension "row".

        Raises:
            ValueError: if the draws were not kept.
        """
        if not self.draws:
            raise ValueError(
                "the draws were not kept; predict again with draws=True, or use check, which does "
                "not need them."
            )
        draws = {name: x[None] for name, x in self.draws.items()}
        return predictive(draws, self.observed, ["row"])

    def check(
        self,
        statistic: Callable[[Array], Array],
        *,
        site: str | None = None,
        reduce: str = "mean",
        of: Callable[[Array], Array] | None = None,
        bins: ArrayLike | None = None,
    ) -> PredictiveCheck:
        """Compare a test statistic of all rows with that of every replicated data set.

        It makes one more pass over the rows, with the same replicated responses, and stores one
        number per draw and bin. The test statistic is a mean over rows (or a maximum or minimum),
        so that rows can be streamed: for instance the share of zeros is ``check(lambda y: y ==
        0)``, and the standard deviation, since numbers are in float64, ::

            prediction.check(
                lambda y: jnp.stack([y, y**2], axis=1),
                of=lambda mean: jnp.sqrt(mean[1] - mean[0] ** 2),
            )

        Rows of which the model masks an entry are left out, of the data and of the replicated ones.
        See Gelman, Meng and Stern, Statistica Sinica 6, 1996.

        Args:
            statistic: a function of the responses of m rows, (m, …), in JAX, that returns numbers
                of each row, of shape (m,) or (m, j).
            site: the observed site; may be left out if there is one.
            reduce: "mean", "max" or "min", of these numbers over the rows.
            of: a function of the reduced numbers, () or (j,), in JAX.
            bins: shape (n,), whole numbers from 0 on: the test statistic is computed for each bin
                of rows, and is NaN for a bin without rows. Bins show where a model fails if there
                are too many rows for a plot.

        Raises:
            ModelError: if a response that was passed is NaN, and the model does not mask it.
            ValueError: if the responses were not passed, an argument is not one of these, or the
                model masks an entry of every row.
        """
        names = [name for name in self.observed if site in (None, name)]
        if len(names) != 1:
            raise ValueError(
                f"site is {site!r}, and the sites with observations are {list(self.observed)}; "
                "expected one of these. Pass the responses to predict to check them."
            )
        (name,) = names
        kept = ~self._left_out.get(name, np.zeros(self._stream.rows.num_rows, bool))
        refuse_missing_responses(name, self.observed[name], kept)
        at = None if bins is None else np.asarray(bins)
        return check_statistic(self._stream.blocks, kept, name, statistic, reduce, of, at)
