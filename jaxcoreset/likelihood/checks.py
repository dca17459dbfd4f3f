"""Checks of a model's values: they must be finite, and must not change when other rows are dropped.

Everything here is NumPy on values that were computed elsewhere.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import numpy as np
from jaxtyping import ArrayLike, Float, Int

from jaxcoreset.likelihood.arguments import ModelError

# The rows of a subset: few and cheap, and enough to notice that one depends on the row before it.
_KEPT_ROWS = 61
# Accept a program if its error is at most this many times that of the reference program.
_ROUNDED_ALIKE = 10
# The least unit of rounding: in float64 errors of other kinds are larger.
_LEAST_EPS = 1e-12
# For rows alone: a density's approximations are rounded differently for other numbers of rows.
_LEAST_EPS_APART = 1e-11
# The number of single rows of a subset, and of pairs of rows, that are evaluated without others.
_ALIKE_SUBSETS = 6


def check_log_likelihood(
    values: Float[ArrayLike, " m"],
    rows: Int[ArrayLike, " m"],
    data: Mapping[str, ArrayLike] = MappingProxyType({}),
) -> None:
    """Raise a ModelError that names the rows where the log-likelihood is NaN or infinite.

    `rows` are their row numbers, and `data` the arguments with these rows, by name.
    """
    values, rows = np.asarray(values), np.asarray(rows)
    bad_rows = ~np.isfinite(values)
    if not bad_rows.any():
        return
    kinds = {"NaN": np.isnan, "+inf": np.isposinf, "-inf": np.isneginf}
    found = [
        f"{kind} in {list_rows(rows[bad])}"
        for kind, is_kind in kinds.items()
        if (bad := is_kind(values)).any()
    ]
    advice = "fix or drop these rows, or restrict the model's parameters to where it is finite."
    causes = []
    for name, leaf in data.items():
        entries = np.asarray(leaf)[bad_rows].reshape(int(bad_rows.sum()), -1)
        missing = ~np.isfinite(entries).all(axis=1)
        if missing.any():
            causes.append(f"{name} in {list_rows(rows[bad_rows][missing])}")
    if causes:
        found_in = " and ".join(causes)
        advice = f"the data themselves are not finite, {found_in}: fill in or drop these rows."
    raise ModelError(
        f"the log-likelihood at a starting point is {', '.join(found)}; a finite one is expected "
        f"for every row: {advice}"
    )


def list_rows(rows: np.ndarray, unit: str = "row") -> str:
    """Numbers of rows, or of another unit, in words: the first five of them."""
    listed = ", ".join(str(row) for row in rows[:5])
    more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
    return f"{unit}{'s' if len(rows) > 1 else ''} {listed}{more}"


def check_log_prior(value: float) -> None:
    """Raise an error if the log prior at a starting point is not finite."""
    if not np.isfinite(value):
        raise ModelError(
            f"the log prior is {value} at a starting point; a finite one is expected: check the "
            "parameters of the priors."
        )


def disjoint_subsets(num_rows: int) -> Iterator[np.ndarray]:
    """Two disjoint sets of positions among `num_rows` ≥ 2 rows, of the same size.

    A row that alone makes a maximum or a range is missing from at least one of the sets. Their size
    has no factor in common with `num_rows`, so the mean of a column of zeros and ones differs in
    the subset, unless it is 0 or 1. Each row that is kept has another before it and after it.
    """
    largest = min(_KEPT_ROWS, num_rows // 2)
    size = next(k for k in range(largest, 0, -1) if math.gcd(k, num_rows) == 1)
    yield 2 * np.arange(size)
    yield 2 * np.arange(size) + 1


def alike_subsets(num_rows: int) -> Iterator[np.ndarray]:
    """`num_rows` positions among as many rows that repeat one row or a pair of rows.

    What a model takes from many rows is mostly what it takes from all (ratings from 1 to 5), but
    not from one or two. Repeating a row changes nothing if rows do not depend on one another, needs
    no new program, and suits a model that does not run with a single row.
    """
    first = np.unique(np.linspace(0, num_rows - 1, _ALIKE_SUBSETS).round().astype(int))
    half = num_rows // 2
    for row in first:
        yield np.full(num_rows, row)
        if half:
            yield np.where(np.arange(num_rows) < half, row, (row + half) % num_rows)


def refuse_changed_prior(
    name: str,
    before: ArrayLike,
    after: ArrayLike,
    num_before: int,
    num_after: int,
    eps: float | None,
) -> None:
    """Raise a ModelError if the log-probability of a site that is not data depends on the rows.

    `eps` is the unit of rounding; by default that of the values, and in float64 a larger one.
    """
    before, after = np.asarray(before), np.asarray(after)
    eps = max(float(np.finfo(before.dtype).eps), _LEAST_EPS) if eps is None else eps
    if np.isfinite(before) and not abs(before - after) <= 100 * eps * (1 + abs(before)):
        raise ModelError(
            f"the log-probability of site {name!r}, which is outside the data axis, changes when "
            f"rows are dropped ({before:.6g} with {num_before} rows, {after:.6g} with {num_after} "
            "of them at the same parameters); one that does not depend on the data is expected: "
            "compute what it uses (a mean, a scale, a number of rows) beforehand and pass it as "
            "an argument."
        )


def refuse_changed_datum(
    name: str,
    before: ArrayLike,
    after: ArrayLike,
    largest: float | None = None,
    eps: float | None = None,
) -> None:
    """Raise a ModelError if the log-likelihood of a datum depends on the other rows.

    Values that were not finite before are ignored. A finite value that is not finite alone has
    changed: a scale that is 0/0 for a row alone was taken from the other rows.

    Args:
        name: the site.
        before: the log-likelihoods of some rows among other rows.
        after: the log-likelihoods of the same rows without the other rows.
        largest: the largest absolute log-likelihood, which sets the size of rounding; by default
            that of these rows.
        eps: as in `refuse_changed_prior`.
    """
    before, after = np.asarray(before), np.asarray(after)
    if eps is None:
        eps = max(float(np.finfo(before.dtype).eps), _LEAST_EPS_APART)
    was_finite = np.isfinite(before)
    before, after = before[was_finite], after[was_finite]
    if before.size == 0:
        return
    largest = float(abs(before).max()) if largest is None else largest
    # Sums in another order differ by a few rounding errors of the largest terms; rows that depend
    # on one another differ by far more than a thousand.
    excess = abs(before - after) - 1e3 * eps * (1 + abs(before) + 0.1 * largest)
    excess[~np.isfinite(after)] = np.inf
    worst = np.argmax(excess)
    if excess[worst] > 0:
        raise ModelError(
            f"the log-likelihood of a datum at site {name!r} changes when other rows are dropped "
            f"({before[worst]:.6g} before, {after[worst]:.6g} after, at the same parameters); data "
            "that are conditionally independent given the parameters are expected: standardise or "
            "scale by numbers computed beforehand, and use no time series or running sums."
        )


def refuse_other_program(
    values: Float[ArrayLike, "m s"],
    again: Float[ArrayLike, "m s"],
    exact: Callable[[], Float[ArrayLike, "m s"]] | None = None,
) -> None:
    """Raise an error if log-likelihoods by two compiled programs differ by more than rounding.

    Args:
        values: the log-likelihoods of m rows at s draws, each row up to a constant.
        again: the same by the reference program, with the constants.
        exact: computes the same in float64; called only if the two differ, as float32 rounds a
            log-likelihood of counts in the thousands, a small difference of large numbers.

    Raises:
        RuntimeError: the two differ.
    """
    again = np.asarray(again)
    is_float64 = again.dtype == np.float64
    eps = max(float(np.finfo(again.dtype).eps), _LEAST_EPS)
    values, again = np.asarray(values, np.float64), again.astype(np.float64)
    # A row's constant is a mean over draws. If some of these are far out it may be far larger than
    # the values here, which were rounded before it was subtracted.
    constants = np.median(again - values, axis=1)
    rounding = 1e3 * eps * (1 + np.abs(again).max() + np.abs(constants).max())
    values, again = _less_medians(values), _less_medians(again)
    if not _excess(values, again, rounding).max() <= 0 and exact is not None:
        expected = _less_medians(np.asarray(exact(), np.float64))
        rounding = max(rounding, _ROUNDED_ALIKE * float(np.abs(again - expected).max()))
        again = expected
    excess = _excess(values, again, rounding)
    if not excess.max() <= 0:
        row, draw = np.unravel_index(np.argmax(excess), excess.shape)
        way_out = "Install"
        if not is_float64:
            way_out = (
                "Build in float64, which computes these correctly: under jax.enable_x64(True), or "
                "with JAX_ENABLE_X64=1 in the environment. Or install"
            )
        raise RuntimeError(
            "the compiled program for many draws gives other log-likelihoods than that for one: "
            f"{values[row, draw]:.6g} and {again[row, draw]:.6g} nats from the row's median. The "
            "compiler has made a wrong program, as jaxlib 0.10.2 does on CPUs for sums over axes "
            f"of two or three entries. {way_out} another jaxlib (0.10.1, or 0.11), or write the "
            "model without them."
        )


def _less_medians(values: Float[np.ndarray, "m s"]) -> Float[np.ndarray, "m s"]:
    """Each row less its median, since a few wrong values move a mean."""
    return values - np.median(values, axis=1, keepdims=True)


def _excess(
    values: Float[np.ndarray, "m s"], again: Float[np.ndarray, "m s"], rounding: float
) -> Float[np.ndarray, "m s"]:
    return np.abs(values - again) - rounding - 1e-2 * np.abs(again)
