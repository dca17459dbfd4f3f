"""Coresets without error: all rows, or all distinct rows weighted by how often they occur."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxcoreset.coreset.coreset import Coreset, coreset_of_rows
from jaxcoreset.coreset.report import Report
from jaxcoreset.data.distinct import DistinctRows
from jaxcoreset.data.dtypes import default_float
from jaxcoreset.data.utils import Clock
from jaxcoreset.likelihood.group_model import GroupModel
from jaxcoreset.likelihood.integral_error import describe
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.selection.construction import Construction


def whole_coreset(
    model: Callable,
    likelihood: ModelLikelihood,
    size: int,
    clock: Clock,
    distinct: DistinctRows | None = None,
) -> Coreset:
    """All rows with weight 1; this needs neither draws nor a solver, and has no error.

    Args:
        model: the model of all rows.
        likelihood: its likelihood and data.
        size: the maximum number of rows.
        clock: the time by stage.
        distinct: the distinct rows, where they are known, for the report.
    """
    n, rows = likelihood.num_data, likelihood.rows
    indices, weights = np.arange(n), np.ones(n, default_float())
    data = rows.data if rows.is_local and not rows.is_streamed else rows.take(indices)
    # A coreset keeps its rows when somebody changes the data in place.
    data = tuple(leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in data)
    facts: dict[str, Any] = {"num_distinct": None if distinct is None else distinct.num}
    if isinstance(likelihood.model, GroupModel):
        facts |= {"unit": "groups", "integration": describe(likelihood.model)}
    report = Report.without_error("all rows", n, n, size, clock, **facts)
    return coreset_of_rows(model, likelihood, rows.numbers(indices), weights, data, report)


def exact_coreset(model: Callable, construction: Construction) -> Coreset | None:
    """The coreset without error if its rows are few enough for the construction's size.

    It is made of all rows if `size` is at least n, or if a tolerance is to be met and there are
    no more rows than parameters, which are many: a search would take long, and no row could be left
    out. It is made of the distinct rows if these are at most `size`, or at most the first size
    that is tried with a tolerance. None if there are too many.
    """
    size, likelihood = construction.size, construction.likelihood
    if construction.takes_all:
        if size is None:
            return coreset_of_all(model, construction)
        return whole_coreset(model, likelihood, size, construction.clock, construction.distinct)
    if (distinct := construction.exact) is not None:
        return _of_distinct(model, construction, distinct, construction.exact_size)
    return None


def coreset_of_all(model: Callable, construction: Construction) -> Coreset:
    """The coreset without error, of the distinct rows where they are known, else of all rows."""
    likelihood, distinct = construction.likelihood, construction.distinct
    if distinct is None or construction.choices is None:
        n, clock = likelihood.num_data, construction.clock
        return whole_coreset(model, likelihood, n, clock, distinct)
    return _of_distinct(model, construction, distinct, distinct.num)


def _of_distinct(
    model: Callable, construction: Construction, distinct: DistinctRows, size: int
) -> Coreset:
    """The distinct rows with their counts as weights."""
    likelihood, tol = construction.likelihood, construction.tol
    report = Report.without_error(
        "distinct rows",
        distinct.num,
        likelihood.num_data,
        size,
        construction.clock,
        num_distinct=distinct.num,
        tol=tol,
        is_within_tol=None if tol is None else True,
        passes=dict(likelihood.rows.passes),
    )
    weights = distinct.counts.astype(default_float())
    data = likelihood.take(distinct.first)
    return coreset_of_rows(model, likelihood, distinct.first, weights, data, report)
