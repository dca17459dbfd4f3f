"""What the values of a model must satisfy: finite, and for each datum the same without the others.

Everything here is NumPy on values that were computed elsewhere.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import numpy as np
from jaxtyping import ArrayLike, Float, Int

from jaxcoreset.model_arguments import ModelError

# Rows that are kept where all others are dropped: few of them, so that evaluating them is cheap,
# and so many that rows which see the one before are noticed where few of those are unlike others.
_KEPT_ROWS = 61
# A program is taken to be right where it is off by no more than so many times what another is.
_ROUNDED_ALIKE = 10
# In float64 there are errors of other kinds.
_LEAST_EPS = 1e-12


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


def refuse_changed_prior(
    name: str, before: ArrayLike, after: ArrayLike, num_before: int, num_after: int
) -> None:
    """Raises an error if the log-probability of a site that is not data depends on the rows."""
    before, after = np.asarray(before), np.asarray(after)
    tolerance = 100 * np.finfo(before.dtype).eps
    if np.isfinite(before) and not abs(before - after) <= tolerance * (1 + abs(before)):
        raise ModelError(
            f"the log-probability of site {name!r}, which is outside the data axis, changes when "
            f"rows are dropped ({before:.6g} with {num_before} rows, {after:.6g} with {num_after} "
            "of them at the same parameters); one that does not depend on the data is wanted: "
            "compute what it uses (a mean, a scale, a number of rows) beforehand and pass it as "
            "an argument."
        )


def refuse_changed_datum(name: str, before: ArrayLike, after: ArrayLike) -> None:
    """Raises an error if the log-likelihood of a datum depends on the other rows."""
    before, after = np.asarray(before), np.asarray(after)
    finite = np.isfinite(before) & np.isfinite(after)
    before, after = before[finite], after[finite]
    if before.size == 0:
        return
    # Sums in another order differ by a few rounding errors of the largest terms; data that see one
    # another differ by far more than a thousand of them.
    tolerance = 1e3 * float(np.finfo(before.dtype).eps)
    excess = abs(before - after) - tolerance * (1 + abs(before) + 0.1 * abs(before).max())
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
        raise RuntimeError(
            "the compiled program for many draws gives other log-likelihoods than that for one: "
            f"{values[row, draw]:.6g} and {again[row, draw]:.6g} nats from the row's median. The "
            "compiler has made a wrong program: jaxlib 0.10.2 is known to, on CPUs, for sums over "
            "short axes. Install another jaxlib (0.10.1, or 0.11), or write the model without them."
        )
    return variance


def _less_medians(values: Float[np.ndarray, "m s"]) -> Float[np.ndarray, "m s"]:
    """Each row less its median, as a few wrong values move a mean."""
    return values - np.median(values, axis=1, keepdims=True)


def _excess(
    values: Float[np.ndarray, "m s"], again: Float[np.ndarray, "m s"], rounding: float
) -> Float[np.ndarray, "m s"]:
    return np.abs(values - again) - rounding - 1e-2 * np.abs(again)
