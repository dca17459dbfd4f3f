"""What the values of a model must satisfy: finite, and for each datum the same without the others.

Everything here is NumPy on values that were computed elsewhere.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import numpy as np
from jaxtyping import ArrayLike, Float, Int

from jaxcoreset.likelihood.arguments import ModelError

# Rows that are kept where all others are dropped: few of them, so that evaluating them is cheap,
# and so many that rows which see the one before are noticed where few of those are unlike others.
_KEPT_ROWS = 61
# A program is taken to be right where it is off by no more than so many times what another is.
_ROUNDED_ALIKE = 10
# In float64 there are errors of other kinds.
_LEAST_EPS = 1e-12
# Where rows are dropped these are larger, as a density's own approximations are rounded otherwise
# in programs for other numbers of rows.
_LEAST_EPS_APART = 1e-11
# So many rows of a subset, and so many pairs of them, are looked at as if there were no others.
_ALIKE_SUBSETS = 6


def check_log_likelihood(
    values: Float[ArrayLike, " m"],
    rows: Int[ArrayLike, " m"],
    data: Mapping[str, ArrayLike] = MappingProxyType({}),
) -> None:
    """Raises an error that names the rows where the log-likelihood is NaN or infinite.

    Args:
        values: the log-likelihood of each datum; not traced.
        rows: their row numbers, for the message.
        data: the arguments with these rows, by name; those that are not finite there are named.

    Raises:
        ModelError: an entry is not finite.
    """
    values, rows = np.asarray(values), np.asarray(rows)
    bad_rows = ~np.isfinite(values)
    if not bad_rows.any():
        return
    kinds = {"NaN": np.isnan, "+inf": np.isposinf, "-inf": np.isneginf}
    found = [
        f"{kind} in {_list_rows(rows[bad])}"
        for kind, is_kind in kinds.items()
        if (bad := is_kind(values)).any()
    ]
    advice = "mend or drop these rows, or keep the model's parameters where it is finite."
    causes = []
    for name, leaf in data.items():
        entries = np.asarray(leaf)[bad_rows].reshape(int(bad_rows.sum()), -1)
        missing = ~np.isfinite(entries).all(axis=1)
        if missing.any():
            causes.append(f"{name} in {_list_rows(rows[bad_rows][missing])}")
    if causes:
        advice = (
            f"the data themselves are not finite, {' and '.join(causes)}: fill in or drop these "
            "rows."
        )
    raise ModelError(
        f"the log-likelihood at a starting point is {', '.join(found)}; a finite one is wanted for "
        f"every row: {advice}"
    )


def _list_rows(rows: np.ndarray) -> str:
    listed = ", ".join(str(row) for row in rows[:5])
    more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
    return f"row{'s' if len(rows) > 1 else ''} {listed}{more}"


def check_log_prior(value: float) -> None:
    """Raises an error if the log prior at a starting point is not finite."""
    if not np.isfinite(value):
        raise ModelError(
            f"the log prior is {value} at a starting point; a finite one is wanted: check the "
            "parameters of the priors."
        )


def disjoint_subsets(num_rows: int) -> Iterator[np.ndarray]:
    """Two disjoint sets of positions among `num_rows` ≥ 2 rows, both of one size.

    A row that alone makes a maximum or a range is missing from at least one of them. Their size has
    no factor in common with `num_rows`, so the mean of a column of zeros and ones, unless it is 0
    or 1, is another one in the subset. Every second row is dropped, or more, so that each that is
    kept has another one before it and after it.
    """
    largest = min(_KEPT_ROWS, num_rows // 2)
    size = next(k for k in range(largest, 0, -1) if math.gcd(k, num_rows) == 1)
    yield 2 * np.arange(size)
    yield 2 * np.arange(size) + 1


def alike_subsets(num_rows: int) -> Iterator[np.ndarray]:
    """Positions among `num_rows` rows, as many, that are all of one row or of a pair.

    The rows of many are much the same as those of all in what a model may take from them: the least
    rating is a 1 and the largest a 5. Of one or two they are not. That they are repeated does
    nothing to rows which do not see one another, and the program for so many is there already; a
    model that does not run with a single row does so with these.
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
    eps: float | None = None,
) -> None:
    """Raises an error if the log-probability of a site that is not data depends on the rows.

    Args:
        name: the site.
        before: its log-probability with more rows.
        after: with fewer of them.
        num_before: how many they were.
        num_after: how many are left.
        eps: the unit of rounding; that of the values if left out, and in float64 a larger one.

    Raises:
        ModelError: they differ by more than rounding.
    """
    before, after = np.asarray(before), np.asarray(after)
    eps = max(float(np.finfo(before.dtype).eps), _LEAST_EPS) if eps is None else eps
    tolerance = 100 * eps
    if np.isfinite(before) and not abs(before - after) <= tolerance * (1 + abs(before)):
        raise ModelError(
            f"the log-probability of site {name!r}, which is outside the data axis, changes when "
            f"rows are dropped ({before:.6g} with {num_before} rows, {after:.6g} with {num_after} "
            "of them at the same parameters); one that does not depend on the data is wanted: "
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
    """Raises an error if the log-likelihood of a datum depends on the other rows.

    What was not finite before is not looked at. What was and is no more has changed: a scale of 0/0
    where a row is alone is taken from the others where it is not.

    Args:
        name: the site.
        before: the log-likelihoods of some data among others.
        after: the same without the others.
        largest: the largest log-likelihood that counts for the rounding, without its sign; that of
            these data if left out.
        eps: the unit of rounding; that of the values if left out, and in float64 a larger one.

    Raises:
        ModelError: they differ by more than rounding.
    """
    before, after = np.asarray(before), np.asarray(after)
    if eps is None:
        eps = max(float(np.finfo(before.dtype).eps), _LEAST_EPS_APART)
    was_finite = np.isfinite(before)
    before, after = before[was_finite], after[was_finite]
    if before.size == 0:
        return
    largest = float(abs(before).max()) if largest is None else largest
    # Sums in another order differ by a few rounding errors of the largest terms; data that see one
    # another differ by far more than a thousand of them.
    excess = abs(before - after) - 1e3 * eps * (1 + abs(before) + 0.1 * largest)
    excess[~np.isfinite(after)] = np.inf
    worst = np.argmax(excess)
    if excess[worst] > 0:
        raise ModelError(
            f"the log-likelihood of a datum at site {name!r} changes when other rows are dropped "
            f"({before[worst]:.6g} before, {after[worst]:.6g} after, at the same parameters); data "
            "that are conditionally independent given the parameters are wanted: standardise or "
            "scale by numbers computed beforehand, and use no time series or running sums."
        )


def refuse_other_program(
    values: Float[ArrayLike, "m s"],
    again: Float[ArrayLike, "m s"],
    exact: Callable[[], Float[ArrayLike, "m s"]] | None = None,
) -> float:
    """Raises an error if log-likelihoods by two compiled programs differ by more than rounding.

    Args:
        values: those of m rows at s draws, each row up to a constant.
        again: the same by another program, with the constants.
        exact: the same in float64. It is asked for where the two differ: a log-likelihood of counts
            in the thousands is a small difference of large numbers, and rounded as they are.

    Returns:
        The variance of a value's rounding, where that was looked at; else 0.

    Raises:
        RuntimeError: they differ.
    """
    again = np.asarray(again)
    is_float64 = again.dtype == np.float64
    eps = max(float(np.finfo(again.dtype).eps), _LEAST_EPS)
    values, again = np.asarray(values, np.float64), again.astype(np.float64)
    # A row's constant may be far larger than these values are, where it is the mean over draws some
    # of which are far out; the values were rounded before it was taken off.
    constants = np.median(again - values, axis=1)
    rounding = 1e3 * eps * (1 + np.abs(again).max() + np.abs(constants).max())
    values, again, variance = _less_medians(values), _less_medians(again), 0.0
    if not _excess(values, again, rounding).max() <= 0 and exact is not None:
        wanted = _less_medians(np.asarray(exact(), np.float64))
        rounding = max(rounding, _ROUNDED_ALIKE * float(np.abs(again - wanted).max()))
        again, variance = wanted, float(np.mean((again - wanted) ** 2))
    excess = _excess(values, again, rounding)
    if not excess.max() <= 0:
        row, draw = np.unravel_index(np.argmax(excess), excess.shape)
        way_out = "Install"
        if not is_float64:
            way_out = (
                "Build in float64, where these come out right: under jax.enable_x64(True), or with "
                "JAX_ENABLE_X64=1 in the environment. Or install"
            )
        raise RuntimeError(
            "the compiled program for many draws gives other log-likelihoods than that for one: "
            f"{values[row, draw]:.6g} and {again[row, draw]:.6g} nats from the row's median. The "
            "compiler has made a wrong program: jaxlib 0.10.2 is known to, on CPUs, for sums over "
            "short axes, as there are in dist.Beta and dist.BetaProportion, which have two "
            f"coordinates inside. {way_out} another jaxlib (0.10.1, or 0.11), or "
            "write the model without them."
        )
    return variance


def _less_medians(values: Float[np.ndarray, "m s"]) -> Float[np.ndarray, "m s"]:
    """Each row less its median, as a few wrong values move a mean."""
    return values - np.median(values, axis=1, keepdims=True)


def _excess(
    values: Float[np.ndarray, "m s"], again: Float[np.ndarray, "m s"], rounding: float
) -> Float[np.ndarray, "m s"]:
    return np.abs(values - again) - rounding - 1e-2 * np.abs(again)
