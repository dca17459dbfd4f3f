"""Rows that arrive later: a coreset of all rows, made without going back to the old ones.

`DataSummary` is what a build keeps of the rows that it saw: the draws of π̂, the log-likelihood of
all rows at each, and the candidates. It is enough to go on with: `updated` adds the log-likelihoods
of new rows at the same draws, lets some of them join the candidates, and solves again. The sums
over all rows are then exact, old ones included. What cannot be had without the old rows is other
draws; so it is told how much the old ones are still worth.

"""

import dataclasses
import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, PRNGKeyArray

from jaxcoreset.coreset.coreset import Coreset
from jaxcoreset.coreset.report import TOO_FEW_WORTH, Report, is_worth_too_few
from jaxcoreset.coreset.summary import DataSummary, SummaryPart
from jaxcoreset.data.utils import Clock, host_generator, peak_memory
from jaxcoreset.likelihood.embedding import log_likelihood_sum
from jaxcoreset.likelihood.from_model import model_likelihood
from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params
from jaxcoreset.likelihood.precision import matrix_of_weighted, rounding_of
from jaxcoreset.likelihood.verification import check_alone, check_program
from jaxcoreset.selection.construction import CANDIDATES_PER_ROW, MIN_CANDIDATES, curve_sizes
from jaxcoreset.selection.draws import DrawPool, Part, Use
from jaxcoreset.selection.tolerance import Choice, Estimate, largest_size, smallest_within
from jaxcoreset.solvers.solve import default_solver, sweep
from jaxcoreset.weighting import DrawSource


def updated(coreset: Coreset, key: PRNGKeyArray, args: tuple, kwargs: dict[str, Any]) -> Coreset:
    """See `Coreset.update`."""
    summary = coreset.summary
    if summary is None and len(coreset) == coreset.report.num_data:
        raise ValueError(
            f"the coreset is all {len(coreset):,} rows themselves, which keeps no summary of the "
            "rows that new ones could be added to; wanted one of fewer rows than there were. Build "
            "a coreset anew, from these rows and the new ones together."
        )
    if summary is None:
        raise ValueError(
            "the coreset has no summary of the rows that it was built from, so new ones cannot be "
            "added; wanted one that CoresetBuilder or update made. Others can be merged: "
            "jc.merge([coreset, coreset_of_the_new_rows], size, key)."
        )
    clock = Clock()
    with clock.stage("model"):
        likelihood = model_likelihood(
            coreset.full_model, args, kwargs, data_axes=data_axes_of(coreset, args, kwargs)
        )
        _check_same_constants(coreset, args, kwargs)
    size, num_old = coreset.report.size, coreset.report.num_data
    with clock.stage("embedding"):
        pool, leaves, numbers = _joined_pool(summary, likelihood, size, num_old, key)
    has_tol = coreset.report.tol is not None
    sizes = np.arange(1, size + 1) if has_tol else curve_sizes(size)
    with clock.stage("solve"):
        solver = default_solver(pool.num_candidates, size)
        path = sweep(pool.problem("solver"), sizes, solver)
        jax.block_until_ready(path)
    with clock.stage("held-out error"):
        choice = (
            smallest_within(pool, path, sizes, coreset.report.tol, 2)
            if coreset.report.tol is not None
            else largest_size(pool, path, sizes)
        )
        worth, weighted = _reweighted(pool, summary, choice)
    held_out = pool.count("confirm") or pool.count("select")
    step = {
        "what": "update",
        "num_rows": likelihood.num_data,
        "efficiency": worth,
        "num_worth": worth * held_out / summary.inefficiency,
        "kl": choice.estimate.kl,
        "kl_weighted": weighted.kl,
    }
    estimate = choice.estimate
    if is_worth_too_few(step):
        # Most of the new posterior may be where no draw is, and the error there of any size.
        estimate = dataclasses.replace(estimate, kl=math.inf, standard_error=math.inf)
        warnings.warn(
            f"{likelihood.num_data:,} rows came, and with them the {held_out:,} old draws that "
            f"were held out are worth {step['num_worth']:.1f} draws of the posterior: "
            f"{TOO_FEW_WORTH}.",
            stacklevel=3,  # the call of `Coreset.update`
        )
    elif weighted.kl > estimate.kl:
        estimate = dataclasses.replace(
            weighted, standard_error=max(weighted.standard_error, estimate.standard_error)
        )
    report = report_after(
        coreset.report,
        pool,
        choice,
        estimate,
        clock,
        num_data=num_old + likelihood.num_data,
        history=[*coreset.report.history, step],
    )
    return coreset_after(coreset, likelihood, leaves, numbers, pool, choice, report, summary)


class NoMoreDraws(DrawSource):
    """Draws that are all there already."""

    def __init__(self, inefficiency: float = 1.0):
        self._inefficiency = inefficiency

    @property
    def limit(self) -> int:
        """See `DrawSource.limit`."""
        return 0

    @property
    def inefficiency(self) -> float:
        """See `DrawSource.inefficiency`."""
        return self._inefficiency

    def take(self, key: PRNGKeyArray, start: int, num: int) -> Params:
        """See `DrawSource.take`; there are none."""
        raise ValueError("there are no further draws: the old rows are not at hand.")


def _joined_pool(
    summary: DataSummary,
    likelihood: ModelLikelihood,
    size: int,
    num_old: int,
    key: PRNGKeyArray,
) -> tuple[DrawPool, tuple, Int[np.ndarray, " m"]]:
    """The old draws with new sums, the candidates' data and their row numbers."""
    draws = jax.tree.map(lambda *x: jnp.concatenate(x), *(part.draws for part in summary.parts))
    new = np.asarray(
        log_likelihood_sum(likelihood.log_likelihood, draws, likelihood.rows), np.float64
    )
    num = min(likelihood.num_data, max(MIN_CANDIDATES, CANDIDATES_PER_ROW * size))
    chosen = np.sort(host_generator(key).choice(likelihood.num_data, num, replace=False))
    leaves = tuple(
        np.concatenate([old, np.asarray(leaf)])
        for old, leaf in zip(summary.candidates, likelihood.take(chosen), strict=True)
    )
    values = matrix_of_weighted(likelihood, draws, leaves, num_old + likelihood.num_data)
    check_program(likelihood, draws, leaves, values)
    pool = DrawPool(likelihood, NoMoreDraws(summary.inefficiency), key)
    pool.rows = np.arange(len(leaves[0]))  # places among the candidates
    first = 0
    for part in summary.parts:
        at = slice(first, first + part.total.size)
        total = jnp.asarray(part.total + new[at], values.dtype)
        pool.parts(part.use).append(Part(part.draws, total, values[:, at]))
        first = at.stop
    return pool, leaves, np.concatenate([summary.rows, num_old + chosen])


def _reweighted(pool: DrawPool, summary: DataSummary, choice: Choice) -> tuple[float, Estimate]:
    """What the draws are worth for the posterior with the new rows, and the error under it.

    Since the draws were made, the log-posterior has changed by the log-likelihood of the rows that
    came, which is known at each: importance weights.
    """
    use: Use = "confirm" if pool.count("confirm") else "select"
    indices = np.asarray(choice.path.indices[choice.at], np.int64)
    weights = np.asarray(choice.path.weights[choice.at], np.float64)
    changes, differences = [], []
    before = [part for part in summary.parts if part.use == use]
    for old, part in zip(before, pool.parts(use), strict=True):
        total = np.asarray(part.total, np.float64)
        combined = weights @ np.asarray(part.values, np.float64)[indices]
        difference = total - combined
        # New rows go through once for all parts, so their sums have one constant, to be kept.
        changes.append(total - old.total_then)
        differences.append(difference - difference.mean())
    change, difference = np.concatenate(changes), np.concatenate(differences)
    mass = np.exp(change - change.max())
    mass /= mass.sum()
    worth = float(1 / np.sum(mass**2) / mass.size)
    squares = (difference - mass @ difference) ** 2
    kl = float(mass @ squares)
    spread = float(np.sqrt(summary.inefficiency * np.sum(mass**2 * (squares - kl) ** 2)))
    return worth, Estimate(kl, spread, choice.estimate.error)


def report_after(
    before: Report,
    pool: DrawPool,
    choice: Choice,
    estimate: Estimate,
    clock: Clock,
    *,
    num_data: int,
    history: list[dict[str, Any]],
) -> Report:
    """A report like the one before, of a coreset that was chosen from a pool."""
    return dataclasses.replace(
        before,
        **choice.facts(pool, estimate),
        num_data=num_data,
        seconds=clock.seconds,
        peak_memory=peak_memory(),
        is_within_tol=None if before.tol is None else bool(estimate.upper <= before.tol),
        rounds=[],
        passes={},
        pricing=[],
        history=history,
    )


def coreset_after(
    like: Coreset,
    likelihood: ModelLikelihood,
    leaves: tuple,
    numbers: Int[np.ndarray, " m"],
    pool: DrawPool,
    choice: Choice,
    report: Report,
    summary: DataSummary | None,
) -> Coreset:
    """A coreset like another, of the candidates that were chosen from a pool."""
    weights = np.asarray(choice.path.weights[choice.at])
    used = weights > 0
    places, weights = np.asarray(choice.path.indices[choice.at], np.int64)[used], weights[used]
    order = np.argsort(numbers[places])
    places, weights = places[order], weights[order]
    kept = tuple(leaf[places] for leaf in leaves)
    part = pool.parts("solver")[0]
    check_alone(likelihood, part.draws, kept, part.values[places])
    args, kwargs = likelihood.assemble(kept)
    some_draw = jax.tree.map(lambda x: x[0], part.draws)
    rounding = rounding_of(likelihood, some_draw, kept, weights)
    report = dataclasses.replace(report, rounding=rounding)
    if summary is not None:
        parts = [
            SummaryPart(use, part.draws, np.asarray(part.total, np.float64), then)
            for use, part, then in _with_then(pool, summary)
        ]
        summary = DataSummary.of(parts, leaves, numbers, places, summary.inefficiency)
    return Coreset(
        like.full_model,
        numbers[places],
        weights,
        args,
        kwargs,
        report,
        data_dims=likelihood.data_dims,
        data_names=likelihood.data_names,
        count_places=likelihood.count_places,
        summary=summary,
    )


def _with_then(pool: DrawPool, summary: DataSummary) -> list[tuple[Any, Part, np.ndarray]]:
    """The pool's parts, by use, each with the sums at the time when its draws were made."""
    found = []
    for use in ("solver", "select", "confirm"):
        before = [part for part in summary.parts if part.use == use]
        found += [
            (use, part, old.total_then) for old, part in zip(before, pool.parts(use), strict=True)
        ]
    return found


def data_axes_of(coreset: Coreset, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Which arguments hold rows: those that did when the coreset was built."""
    kept = jax.tree.structure((coreset.args, coreset.kwargs))
    tree = jax.tree.structure((args, kwargs))
    if tree != kept:
        raise ValueError(
            f"the arguments are laid out as {tree}, and those of the coreset as {kept}; wanted the "
            "same, with the new rows in place of the old ones."
        )
    at = set(coreset.data_places)
    axes = [0 if i in at else None for i in range(tree.num_leaves)]
    by_position, by_keyword = jax.tree.unflatten(tree, axes)
    return (*by_position, by_keyword)


def constants_of(coreset: Coreset) -> list[Any]:
    """The model's arguments that neither hold rows nor count them."""
    return _neither(coreset, coreset.args, coreset.kwargs)


def _neither(coreset: Coreset, args: tuple, kwargs: dict[str, Any]) -> list[Any]:
    at = {*coreset.data_places, *coreset.count_places}
    return [leaf for i, leaf in enumerate(jax.tree.leaves((args, kwargs))) if i not in at]


def _check_same_constants(coreset: Coreset, args: tuple, kwargs: dict[str, Any]) -> None:
    """Raise a ValueError where arguments that are no data differ; those that count rows may."""
    given = _neither(coreset, args, kwargs)
    for before, now in zip(constants_of(coreset), given, strict=True):
        if not np.array_equal(np.asarray(before), np.asarray(now)):
            raise ValueError(
                "an argument of the model that is no data is not what it was when the coreset was "
                f"built: {now!r} in place of {before!r}. Wanted the same, or a coreset built anew."
            )
