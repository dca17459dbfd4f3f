"""One coreset of several, which were built from different rows of one model.

Nothing is needed but their weighted rows; the error of each is then in the result, beside that of
the reduction. In a tree over many blocks errors add up along its depth (merge and reduce: Bentley
and Saxe 1980; Feldman, Schmidt and Sohler 2020).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxcoreset.coreset.coreset import Coreset
from jaxcoreset.coreset.update import (
    NoMoreDraws,
    constants_of,
    coreset_after,
    data_axes_of,
    report_after,
)
from jaxcoreset.data.utils import Clock, check_int
from jaxcoreset.likelihood.from_model import model_likelihood
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.precision import matrix_of_weighted
from jaxcoreset.likelihood.verification import check_program
from jaxcoreset.selection.construction import DRAWS_PER_ROW, MIN_DRAWS, curve_sizes
from jaxcoreset.selection.draws import DrawPool, Part, Use
from jaxcoreset.selection.tolerance import Estimate, largest_size
from jaxcoreset.solvers.base import Solver
from jaxcoreset.solvers.solve import default_solver, sweep
from jaxcoreset.weighting.laplace import LaplaceFitter


def merge(
    coresets: Sequence[Coreset],
    size: int,
    key: PRNGKeyArray,
    *,
    solver: Solver | None = None,
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
        solver: the solver, such as one with a constraint on these rows; the default one if left
            out, whatever the coresets were built with.
        num_draws: draws for the solver; four times the size and at least 500 if left out.
        num_held_out: further draws, to measure the error on.

    Returns:
        The coreset. The `kl` of its report is the sum of those of the coresets and of the error of
        the reduction: errors of separate blocks are taken to be uncorrelated. It is infinite where
        that of one of them is, as after an `update` whose error is not known.

    Raises:
        ValueError: if there are none, they differ in their model's arguments beyond the rows, or
            the posterior has no mode.
        ModelError, RuntimeError: if a row's log-likelihood depends on other rows, or the compiled
            program is wrong, see `check_program`.
    """
    size = check_int("size", size, 1)
    num_held_out = check_int("num_held_out", num_held_out, 8)
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
    wanted = None if num_draws is None else check_int("num_draws", num_draws, 2)
    wanted = wanted or max(MIN_DRAWS, DRAWS_PER_ROW * size)
    pool = DrawPool(likelihood, NoMoreDraws(), key)
    with clock.stage("embedding"):
        draws = approximation.draws(key, wanted + num_held_out)
        values = matrix_of_weighted(likelihood, draws, leaves, weights.sum())
        check_program(likelihood, draws, leaves, values)
        total = jnp.asarray(weights @ np.asarray(values, np.float64), values.dtype)
        shares: dict[Use, slice] = {"solver": slice(wanted), "select": slice(wanted, None)}
        for use, at in shares.items():
            part = Part(jax.tree.map(lambda x, at=at: x[at], draws), total[at], values[:, at])
            pool.parts(use).append(part)
    solver = default_solver(weights.size, size) if solver is None else solver
    sizes = curve_sizes(size) if solver.has_path else np.array([size])
    with clock.stage("solve"):
        path = sweep(pool.problem("solver"), sizes, solver, key if solver.needs_key else None)
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
    report = report_after(
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
    return coreset_after(first, likelihood, leaves, numbers, pool, choice, report, None)


def _check_alike(first: Coreset, other: Coreset) -> None:
    places = [(one.data_places, one.count_places) for one in (first, other)]
    if first.data_dims != other.data_dims or places[0] != places[1]:
        raise ValueError("coresets are of different models; wanted one model for all of them.")
    data_axes_of(first, other.args, other.kwargs)
    for one, two in zip(constants_of(first), constants_of(other), strict=True):
        if not np.array_equal(np.asarray(one), np.asarray(two)):
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
    for place in coreset.count_places:
        everything[place] = len(leaves[0])
    for place, leaf in zip(coreset.data_places, leaves, strict=True):
        everything[place] = leaf
    args, kwargs = jax.tree.unflatten(tree, everything)
    axes = data_axes_of(coreset, args, kwargs)
    return model_likelihood(coreset.full_model, args, kwargs, data_axes=axes)
