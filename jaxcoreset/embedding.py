"""From log-likelihoods at draws to atoms: Φ and its target, built on the device in fixed chunks.

Datum i's log-likelihood at the draws θ_1..θ_S of the weighting distribution π̂, less its mean over
the draws and divided by √S, is its atom: inner products of atoms are then covariances under π̂, and
‖y − Φw‖² estimates the variance of L − L_w (Campbell and Broderick 2019, section 4.2).

The weighted Fisher information distance measures a log-likelihood by its gradient in θ instead,
‖L_i‖² = E_π̂ ‖∇L_i(θ)‖² (Campbell and Broderick, "Bayesian coreset construction via greedy iterative
geodesic ascent", ICML 2018, equation 39). Its atoms are partial derivatives at the draws, all of
them or those of random (draw, coordinate) pairs, which `FisherFeatures` holds.

Chunks have one shape: the last one reaches back over rows that were done and counts only the new
ones, so that nothing is compiled twice and no row has to be made up.
"""

import abc
import operator
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from jaxcoreset.problem import CoresetProblem

LogLikelihood = Callable[[Any, Any], Array]

# Entries of one chunk's matrix of log-likelihoods. A CPU is twice as fast where it fits its cache;
# an accelerator wants large ones, 32 MB in float32.
_CPU_CHUNK_ENTRIES, _CHUNK_ENTRIES = 1 << 20, 1 << 23
_NUM_BAD_ROWS_SHOWN = 5


def embed(
    log_likelihood: LogLikelihood,
    draws: PyTree,
    data: PyTree,
    norm: str = "l2",
    batch_size: int | None = None,
    *,
    num_features: int | None = None,
    key: PRNGKeyArray | None = None,
) -> CoresetProblem:
    """Evaluate log-likelihoods at draws into a `CoresetProblem` with an atom for every datum.

    Args:
        log_likelihood: ``log_likelihood(draw, data) -> (n,)``, the log-likelihood of each datum at
            one draw, in nats. It is vmapped over draws and sees the data in chunks; for "fisher"
            it is differentiated forwards in the draw as well.
        draws: pytree of arrays with a leading axis of length S, draws from the weighting π̂.
        data: pytree of arrays with a leading axis of length n.
        norm: "l2", the L2(π̂) norm of Zhang et al. (2021), equation 2; or "fisher", the weighted
            Fisher information distance of Campbell and Broderick (2018), equation 39, whose
            objective is E_π̂ ‖∇(L − L_w)‖². The latter depends on the units of θ.
        batch_size: rows per chunk; chosen from the atoms' length if left out.
        num_features: for "fisher", the number J of random (draw, coordinate) pairs, see
            `fisher_features`. By default all S·D partial derivatives are taken, where D is the
            number of coordinates of θ: no error beyond that of the draws, and n·S·D numbers of
            memory.
        key: a JAX random key, for `num_features`; the same key gives the same atoms.

    Returns:
        A problem with atoms of shape (n, S), or (n, J) or (n, S·D) for "fisher", and their sum as
        target.

    Raises:
        ValueError: if the norm is unknown, lengths differ, there are no rows or too few draws (two
            for "l2", one for "fisher"), a log-likelihood or its gradient is not finite (the
            message names rows), or `num_features` is out of range, without a key, or given for
            "l2".
        TypeError: if `num_features` is not a whole number, or draws to be differentiated at are
            not floating-point.
    """
    if norm == "fisher":
        features = fisher_features(draws, num_features, key)
        atoms = fisher_matrix(log_likelihood, features, data, batch_size=batch_size)
    elif norm == "l2":
        if num_features is not None:
            raise ValueError(
                f"num_features is {num_features} and norm is 'l2', whose atoms have one entry per "
                "draw; leave it out, or pass norm='fisher'."
            )
        values = log_likelihood_matrix(log_likelihood, draws, data, batch_size=batch_size)
        atoms = centre(values)
    else:
        raise ValueError(f"norm is {norm!r}; wanted 'l2' or 'fisher'.")
    return CoresetProblem(atoms, jnp.sum(atoms, axis=0))


def centre(values: Float[Array, "... s"]) -> Float[Array, "... s"]:
    """Log-likelihoods at S draws, along the last axis, into atoms: centred and divided by √S."""
    centred = values - jnp.mean(values, axis=-1, keepdims=True)
    return centred / np.sqrt(values.shape[-1])


def log_likelihood_matrix(
    log_likelihood: LogLikelihood,
    draws: PyTree,
    data: PyTree,
    *,
    batch_size: int | None = None,
) -> Float[Array, "n s"]:
    """Log-likelihoods of all rows at all draws, each row less its mean, streamed in chunks.

    Arguments and errors as in `embed`. The rows' means go because float32 cannot hold a large
    log-likelihood and its small variation over the draws in a sum.
    """
    return _matrix(log_likelihood, _Values(_checked_draws(draws, 2)), data, batch_size)


def log_likelihood_sum(
    log_likelihood: LogLikelihood,
    draws: PyTree,
    data: PyTree,
    *,
    batch_size: int | None = None,
    on_rows: Callable[[int], Any] = lambda rows: None,
) -> Float[Array, " s"]:
    """The sum over all rows of the log-likelihood at each draw, up to a constant, in one pass.

    Nothing of size n × S is kept. Each row's mean over the draws is taken off before it is added,
    and the chunks' sums are added with compensation, so that float32 is enough.

    Arguments and errors as in `embed`.

    Args:
        log_likelihood: as in `embed`.
        draws: as in `embed`.
        data: as in `embed`.
        batch_size: as in `embed`.
        on_rows: called with the number of rows done since the last call, for a progress bar.
    """
    return _sum(log_likelihood, _Values(_checked_draws(draws, 2)), data, batch_size, on_rows)


class _Features(eqx.Module):
    """What the log-likelihood of a datum is reduced to: numbers that can be added over data.

    Attributes:
        quantity: what these numbers need to be finite, in words.
    """

    quantity: ClassVar[str]

    @property
    @abc.abstractmethod
    def width(self) -> int:
        """How many numbers a datum has."""

    @abc.abstractmethod
    def block(self, log_likelihood: LogLikelihood, chunk: PyTree) -> tuple[Array, Array]:
        """The numbers of a chunk's m rows, (m, width), and which rows are not finite, (m,)."""

    def sum(
        self, log_likelihood: LogLikelihood, chunk: PyTree, counted: Bool[Array, " m"]
    ) -> tuple[Array, Array]:
        """The sum of `block` over the rows counted, (width,), and rows not finite, (m,)."""
        block, bad = self.block(log_likelihood, chunk)
        return jnp.sum(jnp.where(counted[:, None], block, 0), axis=0), bad


class _Values(_Features):
    """Log-likelihoods at draws, each row less its mean."""

    quantity = "the log-likelihood"

    draws: PyTree

    @property
    def width(self) -> int:
        return _leading(self.draws)

    def block(self, log_likelihood: LogLikelihood, chunk: PyTree) -> tuple[Array, Array]:
        values = jax.vmap(log_likelihood, in_axes=(0, None), out_axes=-1)(self.draws, chunk)
        _check_shape(values.shape[:-1], _leading(chunk))
        bad = ~jnp.isfinite(values).all(axis=-1)
        return values - jnp.mean(values, axis=-1, keepdims=True), bad


class FisherFeatures(_Features):
    """Partial derivatives of log-likelihoods at draws, made by `fisher_features`.

    Feature j of datum i is √(D/J) ∂L_i/∂θ_d at θ = draw s for the j-th pair (s, d). Candidates and
    the target over all rows, or atoms and those held out, are comparable where the features are
    the same.

    Attributes:
        points: shape (S, D), the draws, each as one row.
        draw_indices: shape (J,), s of every pair; None for all S·D pairs, draw by draw.
        coordinates: shape (J,), d of every pair; None likewise.
    """

    quantity = "the log-likelihood or its gradient"

    points: Float[Array, "s d"]
    draw_indices: Int[Array, " j"] | None
    coordinates: Int[Array, " j"] | None
    unravel: Callable[[Array], Any] = eqx.field(static=True)

    @property
    def width(self) -> int:
        """The number of features, J."""
        return self.points.size if self.coordinates is None else self.coordinates.shape[0]

    def block(self, log_likelihood: LogLikelihood, chunk: PyTree) -> tuple[Array, Array]:
        """The features of a chunk's m rows, (m, J), and which rows are not finite, (m,)."""

        def values(point: Float[Array, " d"]) -> Array:
            return log_likelihood(self.unravel(point), chunk)

        num_coordinates = self.points.shape[1]
        basis = jnp.eye(num_coordinates, dtype=self.points.dtype)
        if self.draw_indices is None:
            # One evaluation per draw, whose linear part is then applied to every direction.
            def slopes_at(point: Float[Array, " d"]) -> tuple[Array, Array]:
                value, slope = jax.linearize(values, point)
                return value, jax.vmap(slope, out_axes=-1)(basis)

            value, slopes = jax.vmap(slopes_at, out_axes=(-1, -2))(self.points)
            _check_shape(value.shape[:-1], _leading(chunk))
            slopes = slopes.reshape(-1, self.width)
        else:

            def slope_along(point: Float[Array, " d"], direction: Float[Array, " d"]) -> tuple:
                return jax.jvp(values, (point,), (direction,))

            value, slopes = jax.vmap(slope_along, out_axes=-1)(
                self.points[self.draw_indices], basis[self.coordinates]
            )
            _check_shape(value.shape[:-1], _leading(chunk))
        bad = ~(jnp.isfinite(value).all(axis=-1) & jnp.isfinite(slopes).all(axis=-1))
        return slopes * np.sqrt(num_coordinates / self.width), bad

    def sum(
        self, log_likelihood: LogLikelihood, chunk: PyTree, counted: Bool[Array, " m"]
    ) -> tuple[Array, Array]:
        """The sum of `block` over the rows counted, by one gradient per draw.

        Rows whose value is finite and whose gradient is not are not among those flagged; the sum
        is not finite then.
        """

        def gradient_at(point: Float[Array, " d"]) -> tuple[Array, Array]:
            value, pull_back = jax.vjp(lambda p: log_likelihood(self.unravel(p), chunk), point)
            _check_shape(value.shape, counted.shape[0])
            return value, pull_back(counted.astype(value.dtype))[0]

        num_draws, num_coordinates = self.points.shape
        points, rows = self.points, self.draw_indices
        if rows is not None and self.width < num_draws:
            points, rows = self.points[rows], jnp.arange(self.width)
        values, gradients = jax.vmap(gradient_at, out_axes=(-1, 0))(points)
        slopes = gradients.ravel() if rows is None else gradients[rows, self.coordinates]
        bad = ~jnp.isfinite(values).all(axis=-1)
        return slopes * np.sqrt(num_coordinates / self.width), bad


def fisher_features(
    draws: PyTree, num_features: int | None = None, key: PRNGKeyArray | None = None
) -> FisherFeatures:
    """Choose the partial derivatives that stand for E_π̂ ⟨∇L_i, ∇L_j⟩, all or random ones.

    Campbell and Broderick, "Automated scalable Bayesian inference via Hilbert coresets" (JMLR
    2019), on random projection, as their "Greedy iterative geodesic ascent" (2018, section 4) uses
    it: feature j of datum i is √(D/J) ∂L_i/∂θ_d at draw s, with s and d uniform. Here the pairs
    (s, d) differ from each other and use draws equally often, up to one, and coordinates nearly so.
    Every pair alone is uniform, so inner products of atoms are unbiased as in the papers; they vary
    less. All S·D pairs give the mean over the draws exactly; J = S uses every draw once.

    Args:
        draws: pytree of floating-point arrays with a leading axis of length S.
        num_features: J, between 1 and S·D; all pairs by default.
        key: a JAX random key, wanted with `num_features`.

    Raises:
        ValueError: if there are no draws or their lengths differ, or `num_features` is out of range
            or without a key.
        TypeError: if `num_features` is not a whole number, or a draw is not floating-point.
    """
    draws = jax.tree.map(jnp.asarray, _checked_draws(draws, 1))
    for leaf in jax.tree.leaves(draws):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(
                f"draws holds an array of type {leaf.dtype}; wanted floating-point numbers, at "
                "which the log-likelihood has a gradient."
            )
    num_draws = _leading(draws)
    points = jax.vmap(lambda draw: ravel_pytree(draw)[0])(draws)
    unravel = ravel_pytree(jax.tree.map(lambda x: x[0], draws))[1]
    if num_features is None:
        return FisherFeatures(points, None, None, unravel)
    num_coordinates = points.shape[1]
    try:
        width = operator.index(num_features)
    except TypeError:
        raise TypeError(f"num_features is {num_features!r}; wanted a whole number.") from None
    if not 1 <= width <= num_draws * num_coordinates:
        raise ValueError(
            f"num_features is {width}; wanted 1 ≤ num_features ≤ {num_draws * num_coordinates}, "
            f"the number of pairs of {num_draws} draws and {num_coordinates} coordinates. Leave it "
            "out to use them all."
        )
    if key is None:
        raise ValueError(
            "key is missing; num_features draws random pairs, so pass key=jax.random.key(seed)."
        )
    draw_key, coordinate_key = jax.random.split(key)
    # Round t of the draws pairs the p-th with coordinate p + t, both in random order.
    rounds, positions = np.divmod(np.arange(width), num_draws)
    draw_order = jax.random.permutation(draw_key, num_draws)
    coordinate_order = jax.random.permutation(coordinate_key, num_coordinates)
    return FisherFeatures(
        points,
        draw_order[positions],
        coordinate_order[(positions + rounds) % num_coordinates],
        unravel,
    )


def fisher_matrix(
    log_likelihood: LogLikelihood,
    features: FisherFeatures,
    data: PyTree,
    *,
    batch_size: int | None = None,
) -> Float[Array, "n j"]:
    """The Fisher features of all rows, which are their atoms, streamed in chunks.

    Args:
        log_likelihood: as in `embed`.
        features: made by `fisher_features`.
        data: as in `embed`.
        batch_size: as in `embed`.

    Raises:
        ValueError: if lengths differ, there are no rows, or a log-likelihood or its gradient is not
            finite (the message names rows).
    """
    return _matrix(log_likelihood, features, data, batch_size)


def fisher_sum(
    log_likelihood: LogLikelihood,
    features: FisherFeatures,
    data: PyTree,
    *,
    batch_size: int | None = None,
    on_rows: Callable[[int], Any] = lambda rows: None,
) -> Float[Array, " j"]:
    """The sum over all rows of their Fisher features, a target, in one pass.

    Nothing of size n × J is kept, and the chunks' sums are added with compensation. The
    log-likelihood is differentiated backwards here, once per draw, so that all S·D features cost a
    few evaluations per draw.

    Arguments and errors as in `fisher_matrix`.

    Args:
        log_likelihood: as in `embed`.
        features: made by `fisher_features`.
        data: as in `embed`.
        batch_size: as in `embed`.
        on_rows: called with the number of rows done since the last call, for a progress bar.
    """
    total = _sum(log_likelihood, features, data, batch_size, on_rows)
    if not jnp.isfinite(total).all():
        _name_rows_not_finite(log_likelihood, features, data, batch_size)
    return total


def _name_rows_not_finite(
    log_likelihood: LogLikelihood, features: _Features, data: PyTree, batch_size: int | None
) -> None:
    health = _Health(_num_rows(data), features.quantity)
    for chunk, first, fresh in chunks(data, batch_size or chunk_rows(features.width)):
        health.note(_evaluate(log_likelihood, features, chunk)[1], first, fresh)
    health.check()


def _matrix(
    log_likelihood: LogLikelihood, features: _Features, data: PyTree, batch_size: int | None
) -> Array:
    blocks, health = [], _Health(_num_rows(data), features.quantity)
    for chunk, first, fresh in chunks(data, batch_size or chunk_rows(features.width)):
        block, bad = _evaluate(log_likelihood, features, chunk)
        health.note(bad, first, fresh)
        blocks.append(block[fresh:])
    health.check()
    return blocks[0] if len(blocks) == 1 else jnp.concatenate(blocks)


def _sum(
    log_likelihood: LogLikelihood,
    features: _Features,
    data: PyTree,
    batch_size: int | None,
    on_rows: Callable[[int], Any],
) -> Array:
    total = carry = None
    health = _Health(_num_rows(data), features.quantity)
    for chunk, first, fresh in chunks(data, batch_size or chunk_rows(features.width)):
        partial, bad = _evaluate_sum(log_likelihood, features, chunk, jnp.asarray(fresh))
        health.note(bad, first, fresh)
        if total is None or carry is None:
            total, carry = partial, jnp.zeros_like(partial)
        else:
            total, carry = _add_compensated(total, carry, partial)
        on_rows(_leading(chunk) - fresh)
    health.check()
    assert total is not None
    return total


def chunk_rows(width: int) -> int:
    """Rows of a chunk whose evaluation is `width` numbers per row."""
    entries = _CPU_CHUNK_ENTRIES if jax.default_backend() == "cpu" else _CHUNK_ENTRIES
    return max(256, entries // max(width, 1))


def chunks(data: PyTree, batch_size: int) -> Iterator[tuple[PyTree, int, int]]:
    """The rows in chunks of one shape, as (chunk, its first row, its first row not seen before).

    The last is relative to the chunk: 0 but in the last chunk.
    """
    num_rows = _leading(data)
    size = min(batch_size, num_rows)
    for start in range(0, num_rows, size):
        first = min(start, num_rows - size)
        yield jax.tree.map(lambda x, at=first: _rows(x, at, size), data), first, start - first


def _rows(array: Any, first: int, size: int) -> Any:
    if isinstance(array, jax.Array):  # with the first row as data, so that all chunks share a slice
        return jax.lax.dynamic_slice_in_dim(array, first, size)
    return array[first : first + size]


def _check_shape(shape: tuple[int, ...], num_rows: int) -> None:
    if shape != (num_rows,):
        raise ValueError(
            f"log_likelihood returned shape {shape} for {num_rows} rows; wanted ({num_rows},), the "
            "log-likelihood of each row at one draw."
        )


@eqx.filter_jit
def _evaluate(log_likelihood: LogLikelihood, features: _Features, chunk: PyTree) -> tuple:
    with jax.default_matmul_precision("highest"):
        return features.block(log_likelihood, chunk)


@eqx.filter_jit
def _evaluate_sum(
    log_likelihood: LogLikelihood, features: _Features, chunk: PyTree, fresh: Int[Array, ""]
) -> tuple:
    with jax.default_matmul_precision("highest"):
        return features.sum(log_likelihood, chunk, jnp.arange(_leading(chunk)) >= fresh)


@jax.jit
def _add_compensated(total: Array, carry: Array, value: Array) -> tuple[Array, Array]:
    """Kahan's sum: `carry` is what rounding has lost so far."""
    value = value - carry
    new = total + value
    return new, (new - total) - value


class _Health:
    """Which rows had a log-likelihood that is not finite, read once, after the last chunk."""

    def __init__(self, num_rows: int, quantity: str):
        self.num_rows = num_rows
        self.quantity = quantity
        self.flags: list[tuple[Bool[Array, " m"], int, int]] = []

    def note(self, bad: Bool[Array, " m"], first: int, fresh: int) -> None:
        self.flags.append((bad, first, fresh))

    def check(self) -> None:
        rows = [
            np.flatnonzero(np.asarray(bad)[fresh:]) + first + fresh
            for bad, first, fresh in self.flags
        ]
        bad_rows = np.concatenate(rows)
        if bad_rows.size:
            shown = bad_rows[:_NUM_BAD_ROWS_SHOWN].tolist()
            raise ValueError(
                f"{self.quantity} is not finite at one of the draws in {bad_rows.size} of "
                f"{self.num_rows} rows, the first of them {shown}. Look at these rows for missing "
                "values or responses that the model gives no probability; leave them out, or use "
                "a likelihood with wider support."
            )


def _num_rows(data: PyTree) -> int:
    num_rows = _leading(data, "data")
    if num_rows == 0:
        raise ValueError("data has no rows; wanted at least one.")
    return num_rows


def _checked_draws(draws: PyTree, lowest: int) -> PyTree:
    num_draws = _leading(draws, "draws")
    if num_draws < lowest:
        wanted = "at least two, to centre them" if lowest == 2 else "at least one"
        raise ValueError(f"draws has {num_draws} draws; wanted {wanted}.")
    return draws


def _leading(tree: PyTree, name: str = "data") -> int:
    lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(tree)}
    if len(lengths) != 1 or () in lengths:
        found = sorted(length[0] if length else 0 for length in lengths)
        raise ValueError(
            f"the arrays of {name} have leading axes {found or 'none'}; wanted one common length."
        )
    return lengths.pop()[0]
