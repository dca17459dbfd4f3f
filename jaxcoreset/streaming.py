"""Rows that arrive later, and coresets of blocks: coresets made without going back to old data.

`DataSummary` is what a build keeps of the rows that it saw: the draws of π̂, the log-likelihood of
all rows at each, and the candidates. It is enough to go on with: `updated` adds the log-likelihoods
of new rows at the same draws, lets some of them join the candidates, and solves again. The sums
over all rows are then exact, old ones included. What cannot be had without the old rows is other
draws; so it is told how much the old ones are still worth.

`merge` makes one coreset of several, which were built from different rows, with nothing but their
weighted rows; the error of each is then in the result, beside that of the reduction. In a tree over
many blocks errors add up along its depth (merge and reduce: Bentley and Saxe 1980; Feldman, Schmidt
and Sohler 2020).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, PRNGKeyArray

from jaxcoreset.coreset import Coreset
from jaxcoreset.draw_pool import DrawPool, Part, Use
from jaxcoreset.embedding import log_likelihood_matrix, log_likelihood_sum
from jaxcoreset.host import Clock, at_least, host_generator, peak_memory
from jaxcoreset.laplace import LaplaceFitter, Params
from jaxcoreset.likelihood import ModelLikelihood, model_likelihood
from jaxcoreset.report import Report
from jaxcoreset.solve import default_solver, sweep
from jaxcoreset.summary import DataSummary, SummaryPart
from jaxcoreset.tolerance import Choice, Estimate, largest_size, smallest_within
from jaxcoreset.weighting import DrawSource

# New rows that join the candidates, at least and for each row of the coreset.
_MIN_CANDIDATES, _CANDIDATES_PER_ROW = 2_000, 8
# Of 100 draws so many must be worth one of the new posterior, or what they say is not told apart.
_FEW = 0.1
_CURVE_POINTS = 24
_DRAWS_PER_ROW, _MIN_DRAWS = 4, 500


def updated(coreset: Coreset, key: PRNGKeyArray, args: tuple, kwargs: dict[str, Any]) -> Coreset:
    """See `Coreset.update`."""
    summary = coreset.summary
    if summary is None:
        raise ValueError(
            "the coreset has no summary of the rows that it was built from, so new ones cannot be "
            "added; wanted one that CoresetBuilder or update made. Others can be merged: "
            "jc.merge([coreset, coreset_of_the_new_rows], size, key)."
        )
    clock = Clock()
    with clock.stage("model"):
        likelihood = model_likelihood(
            coreset.full_model, args, kwargs, data_axes=_data_axes(coreset, args, kwargs)
        )
        _check_same_constants(coreset, args, kwargs)
    size, num_old = coreset.report.size, coreset.report.num_data
    with clock.stage("embedding"):
        pool, leaves, numbers = _joined_pool(summary, likelihood, size, num_old, key)
    has_tol = coreset.report.tol is not None
    sizes = np.arange(1, size + 1) if has_tol else _sizes(size)
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
    estimate = choice.estimate
    if weighted.kl > estimate.kl or worth < _FEW:
        estimate = dataclasses.replace(
            weighted,
            kl=max(weighted.kl, estimate.kl),
            standard_error=max(weighted.standard_error, estimate.standard_error),
        )
    step = {
        "what": "update",
        "num_rows": likelihood.num_data,
        "efficiency": worth,
        "kl": choice.estimate.kl,
        "kl_weighted": weighted.kl,
    }
    report = _report(
        coreset.report,
        pool,
        choice,
        estimate,
        clock,
        num_data=num_old + likelihood.num_data,
        history=[*coreset.report.history, step],
    )
    return _coreset(coreset, likelihood, leaves, numbers, pool, choice, report, summary)


def merge(
    coresets: Sequence[Coreset],
    size: int,
    key: PRNGKeyArray,
    *,
    num_draws: int | None = None,
    num_held_out: int = 1000,
) -> Coreset:
    """One coreset of several that were built from different rows of one model.

    Only their weighted rows are used. Draws are those of the Laplace approximation of the posterior
    that all of them have together.

    Args:
        coresets: at least one; row numbers of the result count through their data in this order.
        size: at most so many rows.
        key: a JAX random key; the same key gives the same coreset.
        num_draws: draws for the solver; four times the size and at least 500 if left out.
        num_held_out: further draws, to measure the error on.

    Returns:
        The coreset. The `kl` of its report is the sum of those of the coresets and of the error of
        the reduction: errors of separate blocks are taken to be uncorrelated.

    Raises:
        ValueError: if there are none, they differ in their model's arguments beyond the rows, or
            the posterior has no mode.
    """
    size = at_least("size", size, 1)
    num_held_out = at_least("num_held_out", num_held_out, 8)
    if not coresets:
        raise ValueError("coresets is empty; wanted at least one.")
    first, clock = coresets[0], Clock()
    for other in coresets[1:]:
        _check_alike(first, other)
    parts = [_rows_of(one) for one in coresets]
    leaves = tuple(
        np.concatenate([np.asarray(x) for x in leaf]) for leaf in zip(*parts, strict=True)
    )
    starts = np.cumsum([0, *(one.report.num_data for one in coresets)])
    numbers = np.concatenate(
        [one.indices + start for one, start in zip(coresets, starts, strict=False)]
    )
    weights = np.concatenate([np.asarray(one.weights, np.float64) for one in coresets])
    with clock.stage("model"):
        likelihood = _likelihood_of(first, leaves)
    with clock.stage("weighting"):
        approximation = LaplaceFitter(likelihood)(weights=weights)
    size = min(size, weights.size)
    wanted = num_draws or max(_MIN_DRAWS, _DRAWS_PER_ROW * size)
    pool = DrawPool(likelihood, _Fixed(), key)
    with clock.stage("embedding"):
        draws = approximation.draws(key, wanted + num_held_out)
        values = log_likelihood_matrix(likelihood.log_likelihood, draws, leaves)
        total = jnp.asarray(weights @ np.asarray(values, np.float64), values.dtype)
        shares: dict[Use, slice] = {"solver": slice(wanted), "select": slice(wanted, None)}
        for use, at in shares.items():
            part = Part(jax.tree.map(lambda x, at=at: x[at], draws), total[at], values[:, at])
            pool.parts(use).append(part)
    sizes = _sizes(size)
    with clock.stage("solve"):
        path = sweep(pool.problem("solver"), sizes, default_solver(weights.size, size))
        jax.block_until_ready(path)
    with clock.stage("held-out error"):
        choice = largest_size(pool, path, sizes)
    before = [one.report for one in coresets]
    own = choice.estimate
    estimate = Estimate(
        own.kl + sum(report.kl for report in before),
        float(np.hypot.reduce([own.standard_error, *(one.kl_standard_error for one in before)])),
        own.error,
    )
    step = {
        "what": "merge",
        "num_coresets": len(coresets),
        "kl_of_parts": sum(report.kl for report in before),
        "kl": own.kl,
    }
    report = _report(
        before[0],
        pool,
        choice,
        estimate,
        clock,
        num_data=int(starts[-1]),
        history=[step],
    )
    report = dataclasses.replace(
        report, weighting="Laplace", tol=None, is_within_tol=None, size=size
    )
    return _coreset(first, likelihood, leaves, numbers, pool, choice, report, None)


class _Fixed(DrawSource):
    """Draws that are all there already."""

    def __init__(self, inefficiency: float = 1.0):
        self._inefficiency = inefficiency

    @property
    def limit(self) -> int:
        return 0

    @property
    def inefficiency(self) -> float:
        return self._inefficiency

    def take(self, key: PRNGKeyArray, start: int, num: int) -> Params:
        raise ValueError("there are no further draws: the old rows are not at hand.")


def _sizes(size: int) -> Int[np.ndarray, " m"]:
    return np.unique(np.geomspace(1, size, _CURVE_POINTS).round().astype(int))


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
    num = min(likelihood.num_data, max(_MIN_CANDIDATES, _CANDIDATES_PER_ROW * size))
    chosen = np.sort(host_generator(key).choice(likelihood.num_data, num, replace=False))
    leaves = tuple(
        np.concatenate([old, np.asarray(leaf)])
        for old, leaf in zip(summary.candidates, likelihood.take(chosen), strict=True)
    )
    values = log_likelihood_matrix(likelihood.log_likelihood, draws, leaves)
    pool = DrawPool(likelihood, _Fixed(summary.inefficiency), key)
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
    uses = ("confirm", "select") if pool.count("confirm") else ("select",)
    indices = np.asarray(choice.path.indices[choice.at], np.int64)
    weights = np.asarray(choice.path.weights[choice.at], np.float64)
    changes, differences = [], []
    for use in uses[:1]:
        before = [part for part in summary.parts if part.use == use]
        for old, part in zip(before, pool.parts(use), strict=True):
            total = np.asarray(part.total, np.float64)
            combined = weights @ np.asarray(part.values, np.float64)[indices]
            change, difference = total - old.total_then, total - combined
            changes.append(change - change.mean())
            differences.append(difference - difference.mean())
    change, difference = np.concatenate(changes), np.concatenate(differences)
    mass = np.exp(change - change.max())
    mass /= mass.sum()
    worth = float(1 / np.sum(mass**2) / mass.size)
    squares = (difference - mass @ difference) ** 2
    kl = float(mass @ squares)
    spread = float(np.sqrt(np.sum(mass**2 * (squares - kl) ** 2)))
    return worth, Estimate(kl, spread, choice.estimate.error)


def _report(
    before: Report,
    pool: DrawPool,
    choice: Choice,
    estimate: Estimate,
    clock: Clock,
    *,
    num_data: int,
    history: list[dict[str, Any]],
) -> Report:
    path, at = choice.path, choice.at
    return dataclasses.replace(
        before,
        num_data=num_data,
        num_used=int(np.count_nonzero(path.weights[at])),
        num_candidates=pool.num_candidates,
        num_draws=pool.count("solver"),
        num_held_out=pool.count("select") + pool.count("confirm"),
        relative_error=float(path.relative_error[at]),
        held_out_error=choice.estimate.error,
        kl=estimate.kl,
        kl_standard_error=estimate.standard_error,
        solver=path.solver,
        converged=bool(path.converged[at]),
        curve=choice.curve,
        seconds=clock.seconds,
        peak_memory=peak_memory(),
        is_within_tol=None if before.tol is None else bool(estimate.upper <= before.tol),
        rounds=[],
        passes={},
        pricing=[],
        history=history,
    )


def _coreset(
    like: Coreset,
    likelihood: ModelLikelihood,
    leaves: tuple,
    numbers: Int[np.ndarray, " m"],
    pool: DrawPool,
    choice: Choice,
    report: Report,
    summary: DataSummary | None,
) -> Coreset:
    weights = np.asarray(choice.path.weights[choice.at])
    used = weights > 0
    places, weights = np.asarray(choice.path.indices[choice.at], np.int64)[used], weights[used]
    order = np.argsort(numbers[places])
    places, weights = places[order], weights[order]
    args, kwargs = likelihood.assemble(tuple(leaf[places] for leaf in leaves))
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


def _data_axes(coreset: Coreset, args: tuple, kwargs: dict[str, Any]) -> Any:
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


def _constants(coreset: Coreset) -> list[Any]:
    at = set(coreset.data_places)
    leaves = jax.tree.leaves((coreset.args, coreset.kwargs))
    return [leaf for i, leaf in enumerate(leaves) if i not in at]


def _check_same_constants(coreset: Coreset, args: tuple, kwargs: dict[str, Any]) -> None:
    """Raise a ValueError where arguments that are no data differ; those that count rows may."""
    at = set(coreset.data_places)
    given = [leaf for i, leaf in enumerate(jax.tree.leaves((args, kwargs))) if i not in at]
    for before, now in zip(_constants(coreset), given, strict=True):
        counts_rows = isinstance(before, int | np.integer) and before == len(coreset)
        if not counts_rows and not np.array_equal(np.asarray(before), np.asarray(now)):
            raise ValueError(
                "an argument of the model that is no data is not what it was when the coreset was "
                f"built: {now!r} in place of {before!r}. Wanted the same, or a coreset built anew."
            )


def _check_alike(first: Coreset, other: Coreset) -> None:
    if first.data_dims != other.data_dims or first.data_places != other.data_places:
        raise ValueError("coresets are of different models; wanted one model for all of them.")
    _data_axes(first, other.args, other.kwargs)
    for one, two in zip(_constants(first), _constants(other), strict=True):
        counts = isinstance(one, int | np.integer) and (one, two) == (len(first), len(other))
        if not counts and not np.array_equal(np.asarray(one), np.asarray(two)):
            raise ValueError(
                f"coresets differ in an argument that is no data: {one!r} and {two!r}; wanted the "
                "same in all of them."
            )


def _rows_of(coreset: Coreset) -> list[Any]:
    leaves = jax.tree.leaves((coreset.args, coreset.kwargs))
    return [leaves[place] for place in coreset.data_places]


def _likelihood_of(coreset: Coreset, leaves: tuple) -> ModelLikelihood:
    """The model's likelihood of some rows, with the coreset's other arguments."""
    everything, tree = jax.tree.flatten((coreset.args, coreset.kwargs))
    num = len(leaves[0])
    counts = [
        num
        if isinstance(leaf, int) and not isinstance(leaf, bool) and leaf == len(coreset)
        else leaf
        for leaf in everything
    ]
    for place, leaf in zip(coreset.data_places, leaves, strict=True):
        counts[place] = leaf
    args, kwargs = jax.tree.unflatten(tree, counts)
    axes = _data_axes(coreset, args, kwargs)
    return model_likelihood(coreset.full_model, args, kwargs, data_axes=axes)
