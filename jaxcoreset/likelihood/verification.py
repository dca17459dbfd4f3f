"""Checks of a likelihood: that rows do not depend on one another, and that a program is right.

`check_subsets` runs when a likelihood is made. Later, at draws that fit the data, `check_alone`
looks at the rows of a coreset, and `check_program` at the first values for many draws at once.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Array, Float, Int

from jaxcoreset.data.compiling import rows_at
from jaxcoreset.data.dtypes import in_float64
from jaxcoreset.data.ragged import padded_alike
from jaxcoreset.likelihood.checks import alike_subsets, disjoint_subsets, refuse_other_program
from jaxcoreset.likelihood.independence import IndependenceCheck, Reference
from jaxcoreset.likelihood.likelihood import ModelLikelihood

# Maximum number of entries of data in one chunk of rows: 64 MB in float32.
_CHUNK_ENTRIES = 2**24
_CHUNK_ROWS = 2**16
# The number of draws at which a program for many draws is compared with one for a single draw.
_PROGRAM_DRAWS = 24
# The number of draws at which rows are evaluated alone. One would do, were it not for chance.
_ALONE_DRAWS = 3


def chunk_rows(likelihood: ModelLikelihood) -> int:
    """The number of rows that the checks evaluate at a time."""
    entries = sum(math.prod(leaf.shape[1:]) for leaf in likelihood.data)
    num_rows = likelihood.rows.num_local
    return min(num_rows, _CHUNK_ROWS, max(32, _CHUNK_ENTRIES // max(entries, 1)))


def check_subsets(
    likelihood: ModelLikelihood,
    evaluate: Callable,
    points: Sequence[dict[str, Array]],
    generator: np.random.Generator,
) -> Reference | None:
    """Evaluate a chunk of rows, then small subsets of it, which must have the same values.

    A subset is evaluated as it is, then as if it had one row only, or two; each at one of `points`,
    by the likelihood's `by_site`, compiled.

    Returns:
        What later checks need; None if there is one row only, which sees no other row.

    Raises:
        ModelError: a row's value, or the prior, changes.
    """
    rows, size = likelihood.rows, chunk_rows(likelihood)
    if size == 1:
        return None
    is_far = rows.is_streamed or not rows.is_local
    if is_far:
        chunk = rows.head(size)
    else:
        chunk = rows.take(generator.choice(rows.num_rows, size, replace=False))
    subsets = list(disjoint_subsets(size))
    for params, positions in zip(points, subsets, strict=True):
        check = IndependenceCheck(evaluate, params, chunk)
        subset = tuple(leaf[positions] for leaf in chunk)
        check.refuse_change(positions, subset)
        subset = tuple(np.asarray(leaf) for leaf in subset)
        for alike in alike_subsets(len(positions)):
            repeated = tuple(leaf[alike] for leaf in subset)
            check.refuse_change(positions[alike], repeated, among=positions)
    return Reference(evaluate, len(subsets[0]), chunk if is_far else None)


def check_alone(
    likelihood: ModelLikelihood,
    draws: Mapping[str, Array],
    data: Sequence,
    values: Float[Array, "m s"],
    indices: Int[np.ndarray, " m"] | None = None,
) -> None:
    """Compare the log-likelihoods of rows alone, as in a coreset, with those among many other rows.

    What a model takes from its rows, such as the range of a rating or which groups there are, may
    be the same in any subset that one would try, and not in the few rows of a coreset.

    Args:
        likelihood: the likelihood.
        draws: s draws of unconstrained parameters.
        data: m rows, laid out as the likelihood's data: all the rows that are kept.
        values: the log-likelihoods of the rows at the draws, each row up to a constant. The draws
            that fit the rows best are used, since rounding is least there.
        indices: the row numbers, all different, if they are known.

    Raises:
        ModelError: a row's value, or the prior, changes.
    """
    reference = likelihood.reference
    if reference is None or not 0 < len(values) < likelihood.num_data:
        return
    best = np.argsort(-np.asarray(values).sum(axis=0))[:_ALONE_DRAWS]
    points = [{name: np.asarray(x)[at] for name, x in draws.items()} for at in best]
    with likelihood.rows.context.processes.all_or_none("model"):
        for chunk, positions, kept in _among_other_rows(likelihood, reference, data, indices):
            for params in points:
                check = IndependenceCheck(reference.evaluate, params, chunk)
                check.refuse_change(positions, tuple(data), kept)


def check_program(
    likelihood: ModelLikelihood,
    draws: Mapping[str, Array],
    data: Sequence,
    values: Float[Array, "m s"],
) -> None:
    """Compare values that a program for many draws computed with those of one for a single draw.

    The latter was compiled for the checks of the model. That rows do not depend on one another is
    checked once more at these draws, which fit the rows: where the first checks were, far from the
    data, float32 may have been too coarse for it.

    Arguments as in `check_alone`, for some rows and draws.

    Raises:
        ModelError: a row's value depends on the other rows.
        RuntimeError: the values differ by more than rounding: the compiler made a wrong program.
    """
    reference = likelihood.reference
    if reference is None:
        return
    rows = np.linspace(0, values.shape[0] - 1, reference.num_subset).round().astype(int)
    columns = np.unique(np.linspace(0, values.shape[1] - 1, _PROGRAM_DRAWS).round().astype(int))
    data = tuple(np.asarray(leaf[rows]) for leaf in data)
    check_alone(likelihood, draws, data, rows_at(values, rows))
    points = [{name: np.asarray(x)[column] for name, x in draws.items()} for column in columns]

    def values_by(evaluate: Callable) -> np.ndarray:
        found = [evaluate(params, data)[0].values() for params in points]
        sums = [np.sum([np.asarray(one) for one in by_site], axis=0) for by_site in found]
        return np.stack(sums, axis=1)

    def exact() -> np.ndarray:
        return values_by(lambda *given: in_float64(likelihood.program.compiled, *given))

    checked = np.asarray(values)[np.ix_(rows, columns)]
    try:
        refuse_other_program(checked, values_by(reference.evaluate), exact)
    except RuntimeError:
        # The rows may depend on one another by less than float32 can tell.
        for chunk, positions, kept in _among_other_rows(likelihood, reference, data, None):
            for params in points:
                check = IndependenceCheck(reference.evaluate, params, chunk)
                check.refuse_small_change(positions, data, kept)
        raise


def other_rows(likelihood: ModelLikelihood, reference: Reference) -> tuple:
    """A chunk of rows from all parts of the data, for which there is a compiled program."""
    if reference.other_rows is not None:
        return reference.other_rows
    rows, size = likelihood.rows, chunk_rows(likelihood)
    return rows.take(np.linspace(0, rows.num_rows - 1, size).round().astype(np.int64))


def _among_other_rows(
    likelihood: ModelLikelihood,
    reference: Reference,
    data: Sequence,
    indices: Int[np.ndarray, " m"] | None,
) -> Iterator[tuple[tuple, np.ndarray, slice]]:
    """Chunks with rows of `data` in them, these rows' positions, and which rows of `data` they are.

    Chunks have the length for which there is a compiled program. At least half of a chunk are other
    rows, unless it has all the rows.
    """
    size = chunk_rows(likelihood)
    others = other_rows(likelihood, reference)
    if reference.other_rows is None and indices is not None and size == likelihood.num_data:
        yield others, indices, slice(None)
        return
    others, data = padded_alike(tuple(others), tuple(data))
    num_kept, step = data[0].shape[0], max(1, size // 2)
    for start in range(0, num_kept, step):
        kept = slice(start, min(start + step, num_kept))
        positions = np.linspace(0, size - 1, kept.stop - start).round().astype(int)
        chunk = tuple(leaf.copy() for leaf in others)
        for leaf, row in zip(chunk, data, strict=True):
            leaf[positions] = np.asarray(row[kept])
        yield chunk, positions, kept
