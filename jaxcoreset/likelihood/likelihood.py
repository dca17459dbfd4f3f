"""From a NumPyro model and its arguments to one log-likelihood per datum, and to a weighted model.

A coreset needs two things of a model. The first is log p(y_i | θ) for each datum i: here a
`ModelLikelihood`, made by `model_likelihood(model, args, kwargs)`. The second is the model again
with datum i counted w_i times: `weighted_model(likelihood, weights)`.

The words used below. A *site* is a `numpyro.sample` or `numpyro.factor` statement. *Latent* sites
are the parameters θ; *unconstrained* values of them are what NUTS moves in. The *data axis* is the
dimension of an observed site's log-probability that follows the rows of the data; observed sites
without one belong to everything that is not summed over data: they are counted once, with the
prior.
"""

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray
from numpyro.distributions.transforms import biject_to
from numpyro.handlers import seed
from numpyro.infer.util import constrain_fn, potential_energy, unconstrain_fn
from numpyro.primitives import Messenger

from jaxcoreset.data.dtypes import in_float64
from jaxcoreset.data.host import host_generator
from jaxcoreset.data.rows import Placement, Rows
from jaxcoreset.likelihood.arguments import Arguments, ModelError
from jaxcoreset.likelihood.checks import (
    alike_subsets,
    check_log_likelihood,
    check_log_prior,
    disjoint_subsets,
    refuse_other_program,
)
from jaxcoreset.likelihood.independence import Few, RowsApart
from jaxcoreset.likelihood.structure import find_data, find_structure, not_independent
from jaxcoreset.likelihood.trace import full_precision, is_latent, log_prob, run
from jaxcoreset.likelihood.weighted import WeightedModel

# Entries of data in one chunk of the pass over all rows: 64 MB in float32.
_CHUNK_ENTRIES = 2**24
_CHUNK_ROWS = 2**16
# At so many draws a program for many of them is held to one for a single draw.
_CHECKED_DRAWS = 24
# At so many draws rows are held to their values among others; one would do, were it not for chance.
_APART_DRAWS = 3
# Above so many nats, what rounding adds to the estimated KL is told.
_NOISE = 1e-3
# Widths of the draws at which models are told apart.
_TOLD_APART = (0.1, 0.5, 1.0)
# Widths of the uniform draws tried for a starting point. Small ones first: an optimiser starts
# well near zero, but not at it, where products of parameters have a saddle.
_START_RADII = (0.1, 0.1, 0.5, 1.0, 2.0, 2.0)


# Unconstrained values of the latent sites, by name.
Params = dict[str, Array]


@dataclass(frozen=True, eq=False)
class ModelLikelihood:
    """A NumPyro model as per-datum log-likelihoods and a prior; made by `model_likelihood`.

    The methods that take `params` are pure, and may be differentiated, compiled and vmapped over
    draws. They trace the model with the rows that they are given, so under `jax.jit` they compile
    once per number of rows. Products within the model are computed at full float32 precision.

    Attributes:
        model: the model, as the user wrote it.
        rows: all the rows, of the arguments, or leaves of them, that hold one row per datum.
        data_dims: for each observed site in the data axis its dimension, counted from the right.
        init_params: unconstrained values of the latent sites at which the log-density of all the
            data is finite; their names and shapes are those of any `params`.
        two_rows: two rows of the data, laid out as `data`.
    """

    model: Callable
    rows: Rows
    data_dims: dict[str, int]
    init_params: dict[str, Array]
    _arguments: Arguments = field(repr=False)
    two_rows: tuple = field(repr=False)
    _few: Few | None = field(default=None, repr=False)

    @property
    def data(self) -> tuple:
        """The leaves that hold one row per datum, in a stable order, as they were given.

        NumPy arrays stay on the host. Among several processes, those of this one.
        """
        return self.rows.data

    @property
    def num_data(self) -> int:
        """The number of data, n; of all processes together."""
        return self.rows.num_rows

    @property
    def data_names(self) -> dict[str, int]:
        """The data's names, as X or batch['x'], and their places among the arguments' leaves."""
        arguments = self._arguments
        return {arguments.names[position]: position for position in arguments.data_at}

    @property
    def count_places(self) -> tuple[int, ...]:
        """The places, among the arguments' leaves, of integers that count the rows."""
        return self._arguments.counts_at

    def assemble(self, data: Sequence) -> tuple[tuple, dict]:
        """The model's (args, kwargs) with `data` in place of the data leaves.

        Args:
            data: one array per entry of `self.data`, each with the same number of rows.

        Returns:
            The arguments; all that is not data is what `model_likelihood` was given, but for an
            integer that counts the rows, which follows `data`.
        """
        return self._arguments.fill(data)

    def take(self, indices: Any) -> tuple:
        """The data leaves at the given rows; NumPy leaves stay NumPy.

        Args:
            indices: row numbers, shape (m,), each in [0, n).

        Raises:
            IndexError: a row number is outside [0, n).
        """
        return self.rows.take(np.asarray(indices, np.int64))

    def log_likelihood(self, params: Mapping[str, Any], data: Sequence) -> Float[Array, " m"]:
        """The log-likelihood of each datum at unconstrained parameters.

        Args:
            params: unconstrained values of the latent sites.
            data: m rows, laid out as `self.data`.

        Returns:
            Per row, the sum of all the observed sites in the data axis, over all their other axes,
            masks and `numpyro.handlers.scale` included.

        Raises:
            ModelError: `params` lacks a latent site.
        """
        first, *others = self._by_site(params, data)[0].values()
        return sum(others, start=first)

    def values_as_text(self) -> str:
        """Log-likelihoods of two rows and log priors at some points, to tell this model by.

        Two models whose code is alike may differ in what they use: a default, a global, an object.
        """
        generator = np.random.default_rng(0)
        shapes = {name: value.shape for name, value in self.init_params.items()}
        found = []
        evaluate = jax.jit(lambda at, rows: (self.log_likelihood(at, rows), self.log_prior(at)))
        for radius in _TOLD_APART:
            for value in evaluate(_draw(shapes, radius, generator), self.two_rows):
                found += [f"{entry:.4g}" for entry in np.ravel(value)]
        return " ".join(found)

    def check_program(
        self, draws: Mapping[str, Array], data: Sequence, values: Float[Array, "m s"]
    ) -> None:
        """Hold some of the values that a program for many draws has made to one for a single draw.

        The latter was compiled for the checks of the model, so nothing is compiled for this.

        Args:
            draws: s draws of unconstrained parameters, with a leading axis.
            data: m rows, laid out as `data`.
            values: the log-likelihoods of the rows at the draws, each row up to a constant.

        That rows do not see one another is looked at once more, at draws which fit them: where the
        checks of the model were, far from the data, float32 may have been too coarse for it.

        Warns where float32 is too coarse for the model, as it may be with counts in the thousands.

        Raises:
            ModelError: if a row's value depends on the other rows.
            RuntimeError: if they differ by more than rounding: the compiler has made a wrong one.
        """
        if self._few is None:
            return
        evaluate, count = self._few.evaluate, self._few.count
        rows = np.linspace(0, values.shape[0] - 1, count).round().astype(int)
        some = tuple(np.asarray(leaf)[rows] for leaf in data)
        self.check_alone(draws, some, values[rows])
        columns = np.unique(np.linspace(0, values.shape[1] - 1, _CHECKED_DRAWS).round().astype(int))
        each = [{name: np.asarray(x)[column] for name, x in draws.items()} for column in columns]

        def by(evaluate: Callable) -> np.ndarray:
            found = [evaluate(params, some)[0].values() for params in each]
            sums = [np.sum([np.asarray(one) for one in values], axis=0) for values in found]
            return np.stack(sums, axis=1)

        def exact() -> np.ndarray:
            program = jax.jit(self._by_site)
            return by(lambda *given: in_float64(program, *given))

        seen = np.asarray(values)[np.ix_(rows, columns)]
        try:
            variance = refuse_other_program(seen, by(evaluate), exact)
        except RuntimeError:
            self._refuse_what_float32_hides(each, some)
            raise
        noise = self.num_data * variance
        if noise > _NOISE:
            warnings.warn(
                f"a row's log-likelihood is rounded to {np.sqrt(noise / self.num_data):.1g} nats, "
                "as it is a small difference of large numbers (counts in the thousands?): that "
                f"adds {noise:.1g} nats to the estimated KL, and more where few rows stand for "
                "many. Build in float64: under jax.enable_x64(True), or with JAX_ENABLE_X64=1 in "
                "the environment.",
                stacklevel=2,
            )

    def check_alone(
        self,
        draws: Mapping[str, Array],
        data: Sequence,
        values: Float[Array, "m s"],
        numbers: Int[np.ndarray, " m"] | None = None,
    ) -> None:
        """Hold rows' log-likelihoods by themselves, as in a coreset, to those among many others.

        What a model takes from its rows, such as the range of a rating or which groups there are,
        may be the same in any subset that one would try, and not in the few rows of a coreset.

        Args:
            draws: s draws of unconstrained parameters, with a leading axis.
            data: m rows, laid out as `data`: all those that are kept.
            values: the log-likelihoods of the rows at the draws, each row up to a constant; the
                draws that fit the rows best are taken, where rounding is least.
            numbers: the row numbers, different ones, where they are known.

        Raises:
            ModelError: if a row's value, or the prior, changes.
        """
        if self._few is None or not 0 < len(values) < self.num_data:
            return
        best = np.argsort(-np.asarray(values).sum(axis=0))[:_APART_DRAWS]
        points = [{name: np.asarray(x)[at] for name, x in draws.items()} for at in best]
        with self.rows.placement.processes.together("model"):
            for chunk, places, kept in self._among_others(data, numbers):
                for params in points:
                    whole = RowsApart(self._few, params, chunk)
                    whole.refuse_change(places, tuple(data), kept)

    def _refuse_what_float32_hides(self, points: Sequence[Mapping], data: Sequence) -> None:
        """Looks in float64 whether rows see one another by less than float32 can tell."""
        assert self._few is not None
        for chunk, places, kept in self._among_others(data, None):
            for params in points:
                apart = RowsApart(self._few, params, chunk)
                apart.refuse_change(places, tuple(data), kept, is_fine=True)

    def _among_others(
        self, data: Sequence, numbers: Int[np.ndarray, " m"] | None
    ) -> Iterator[tuple[tuple, np.ndarray, slice]]:
        """Chunks of rows in which those of `data` are: the chunk, their places, and which they are.

        Chunks are as long as those for which there is a program. They have others in them for at
        least one half, where they do not have all the rows.
        """
        assert self._few is not None
        size, rows = _chunk_rows(self), self.rows
        others = self._few.others
        if others is None:
            others = rows.take(np.linspace(0, rows.num_rows - 1, size).round().astype(np.int64))
            if numbers is not None and size == rows.num_rows:
                yield others, numbers, slice(None)
                return
        others = tuple(np.asarray(leaf) for leaf in others)
        num_kept, most = data[0].shape[0], max(1, size // 2)
        for start in range(0, num_kept, most):
            kept = slice(start, min(start + most, num_kept))
            places = np.linspace(0, size - 1, kept.stop - start).round().astype(int)
            chunk = tuple(leaf.copy() for leaf in others)
            for leaf, row in zip(chunk, data, strict=True):
                leaf[places] = np.asarray(row[kept])
            yield chunk, places, kept

    def log_likelihood_constrained(
        self, params: Mapping[str, Any], data: Sequence
    ) -> Float[Array, " m"]:
        """As `log_likelihood`, at parameters as the model and `MCMC.get_samples` have them."""
        first, *others = self._by_site(params, data, constrained=True)[0].values()
        return sum(others, start=first)

    def log_prior(self, params: Mapping[str, Any]) -> Float[Array, ""]:
        """The log-density of all that is not summed over data, at unconstrained parameters.

        It is the log prior, plus log |det| of the Jacobian of the transform to constrained values,
        plus the observed sites outside the data axis. Two rows of the data are all it looks at.

        Raises:
            ModelError: `params` lacks a latent site.
        """
        hidden = seed(_HideData(self.model, self.data_dims), rng_seed=0)
        with full_precision():
            energy = potential_energy(hidden, *self.assemble(self.two_rows), self._latent(params))
        return -jnp.asarray(energy)

    def constrain(self, params: Mapping[str, Any]) -> dict[str, Array]:
        """Constrained values of the latent sites from unconstrained ones."""
        model = seed(self.model, rng_seed=0)
        return constrain_fn(model, *self.assemble(self.two_rows), self._latent(params))

    def unconstrain(self, params: Mapping[str, Any]) -> dict[str, Array]:
        """Unconstrained values of the latent sites from constrained; other keys are ignored."""
        model = seed(self.model, rng_seed=0)
        return unconstrain_fn(model, *self.assemble(self.two_rows), self._latent(params))

    def _latent(self, params: Mapping[str, Any]) -> dict[str, Array]:
        missing = [name for name in self.init_params if name not in params]
        if missing:
            raise ModelError(
                f"params lacks the latent sites {missing}; values for {list(self.init_params)} "
                f"are wanted and {list(params)} were given: add them."
            )
        return {name: jnp.asarray(params[name]) for name in self.init_params}

    def _by_site(
        self, params: Mapping[str, Any], data: Sequence, constrained: bool = False
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Log-likelihoods (m,) of the sites in the data axis; sums for all the other sites."""
        values = self._latent(params)

        def fill(site: Mapping) -> Any:
            if not is_latent(site):
                return None
            value = values[site["name"]]
            return value if constrained else biject_to(site["fn"].support)(value)

        with full_precision():
            model_trace = run(self.model, self.assemble(data), fill)
            sites = {name: site for name, site in model_trace.items() if site["type"] == "sample"}
            others = {
                name: jnp.sum(log_prob(site))
                for name, site in sites.items()
                if name not in self.data_dims
            }
            per_datum = {
                name: _per_datum(name, log_prob(sites[name]), dim, data[0].shape[0])
                for name, dim in self.data_dims.items()
            }
        return per_datum, others


class _HideData(Messenger):
    """Leaves the log-probabilities of the sites in the data axis out, uncomputed."""

    def __init__(self, fn: Callable, names: Mapping[str, int]):
        super().__init__(fn)
        self.names = names

    def process_message(self, msg: Any) -> None:
        if msg["type"] == "sample" and msg["name"] in self.names:
            msg["fn"] = msg["fn"].mask(False)


def _per_datum(name: str, values: Array, dim: int, num_rows: int) -> Float[Array, " m"]:
    if values.ndim < -dim or values.shape[dim] != num_rows:
        raise not_independent(name, f"has the shape {values.shape}")
    axis = values.ndim + dim
    return jnp.sum(values, axis=tuple(a for a in range(values.ndim) if a != axis))


def weighted_model(
    model: ModelLikelihood | Callable, weights: Any, data_dims: Mapping[str, int] | None = None
) -> WeightedModel:
    """The model with the log-probability of datum i multiplied by weight i.

    Args:
        model: what `model_likelihood` returned, or a NumPyro model with `data_dims`.
        weights: shape (m,), finite and not negative; traced values are taken as they are.
        data_dims: `ModelLikelihood.data_dims`, where a bare model is given.

    Returns:
        A NumPyro model, to be called with m rows.

    Raises:
        ValueError: the weights are not a vector, negative or not finite, or a bare model comes
            without `data_dims`.
    """
    if isinstance(model, ModelLikelihood):
        return WeightedModel(model.model, weights, model.data_dims)
    if data_dims is None:
        raise ValueError(
            "a model was given without data_dims; the dimension of the data axis of each observed "
            "site is wanted: pass ModelLikelihood.data_dims, or the likelihood itself."
        )
    return WeightedModel(model, weights, data_dims)


def model_likelihood(
    model: Callable,
    args: Sequence = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    data_axes: Any = None,
    plate: str | None = None,
    key: PRNGKeyArray | None = None,
    placement: Placement = Placement(),  # noqa: B008 - frozen
) -> ModelLikelihood:
    """Turns a NumPyro model and its arguments into per-datum log-likelihoods and a prior.

    Which arguments are data is found by itself: every array, in pytrees and keywords too, whose
    leading axis is as long as the data plate, the longest plate of an observed site that an
    argument matches; without plates, as long as an observed site's leading axis. Where that is not
    what is meant, say so by `data_axes` or `plate`. An integer argument equal to n follows the rows
    if the model does not run with fewer rows otherwise, as where it is the plate's size.

    The model is checked on the way. It is traced abstractly for two row counts, evaluated on all
    rows once, in chunks, at a starting point, and on two small subsets, where the values must be
    the same.

    Args:
        model: a NumPyro model. It may be wrapped in handlers.
        args: its positional arguments, with all the rows, as in `MCMC.run`.
        kwargs: its keyword arguments.
        data_axes: which arguments are data, like `in_axes` of `jax.vmap`: 0 for one row per datum,
            None for no data, each for an argument or a pytree prefix of one. Either a dict by
            argument name, positional or keyword ({"X": 0, "y": 0}; what is not named is no data),
            or a tuple with one entry per positional argument, and after them, where keyword
            arguments are data, a dict for these: (0, None, {"y": 0}). A bare 0 stands for all
            positional arguments.
        plate: the name of the data plate, where several would do.
        key: for the starting point and the rows of the checks; a fixed one by default.
        placement: where rows are read and evaluated.

    Returns:
        The likelihood.

    Raises:
        ModelError: the model has no observed or no latent site, subsamples, has discrete or
            per-datum latent sites or `numpyro.param` sites; data are not conditionally independent
            given the parameters, or the prior or a datum's likelihood changes when rows are
            dropped; no argument holds data, or data arguments differ in their number of rows, or
            have none; the likelihood is not finite (the rows are named). What the model itself
            raises surfaces unchanged, with a note on how it was called.
    """
    generator = np.random.default_rng(0) if key is None else host_generator(key)
    readings = find_data(model, tuple(args), dict(kwargs or {}), data_axes, plate)
    with _naming_data(readings[0], data_axes):
        structure = find_structure(model, readings)
    arguments = structure.arguments
    likelihood = ModelLikelihood(
        model=model,
        rows=Rows(arguments.data, placement),
        data_dims=structure.data_dims,
        init_params=_draw(structure.latent_shapes, _START_RADII[0], generator),
        _arguments=arguments,
        two_rows=tuple(leaf[:2] for leaf in arguments.data),
    )
    evaluate = jax.jit(likelihood._by_site)
    start = _find_start(likelihood, evaluate, generator)
    # Near zero a standardisation hardly shows, so a point farther out is looked at as well.
    farther = _draw(structure.latent_shapes, 1.0, generator)
    with placement.processes.together("model"), _naming_data(arguments, data_axes):
        few = _check_rows_apart(likelihood, evaluate, (farther, start), generator)
    return dataclasses.replace(likelihood, init_params=start, _few=few)


@contextlib.contextmanager
def _naming_data(arguments: Arguments, data_axes: Any) -> Iterator[None]:
    """Says with an error what was taken as data, where that was found and may be the cause."""
    try:
        yield
    except ModelError as error:
        if data_axes is None:
            names = [arguments.names[i] for i in arguments.data_at]
            error.add_note(
                f"taken as data, since they have {arguments.num_data} rows: {', '.join(names)}; if "
                "one of them is no data, name those that are by data_axes"
            )
        raise


def _draw(
    shapes: Mapping[str, tuple[int, ...]], radius: float, generator: np.random.Generator
) -> dict[str, Array]:
    dtype = jax.dtypes.canonicalize_dtype(float)
    return {
        name: jnp.asarray(generator.uniform(-radius, radius, shape), dtype)
        for name, shape in shapes.items()
    }


def _find_start(
    likelihood: ModelLikelihood, evaluate: Callable, generator: np.random.Generator
) -> dict[str, Array]:
    """Unconstrained values at which the log prior and the log-likelihoods are finite.

    Those of all rows, where they are in memory; else of some, and the first pass sees the others.
    """
    shapes = {name: value.shape for name, value in likelihood.init_params.items()}
    processes = likelihood.rows.placement.processes
    first_error = None
    for radius in _START_RADII:
        params = _draw(shapes, radius, generator)
        error = None
        try:
            for rows, first in _checked_rows(likelihood):
                per_datum, others = evaluate(params, rows)
                check_log_prior(sum(float(value) for value in others.values()))
                total = np.sum([np.asarray(values) for values in per_datum.values()], axis=0)
                data = dict(zip(likelihood.data_names, rows, strict=True))
                check_log_likelihood(total, first + np.arange(len(total)), data)
        except ModelError as found:
            error = found
        # All processes take the same start.
        failed = processes.gather({"failed": np.asarray(error is not None)})
        if not any(state["failed"] for state in failed):
            return params
        first_error = first_error or error
    raise first_error or ModelError(
        "another process found no starting point at which its rows' log-likelihood is finite; see "
        "what it says."
    )


def _checked_rows(likelihood: ModelLikelihood) -> Iterator[tuple[tuple, int]]:
    """Rows of this process in chunks of one shape, with the first row's number."""
    rows, size = likelihood.rows, _chunk_rows(likelihood)
    if rows.is_streamed:
        yield rows.head(size), rows.offset
        return
    for start in range(0, rows.num_local, size):
        first = min(start, rows.num_local - size)
        yield tuple(leaf[first : first + size] for leaf in rows.data), rows.offset + first


def _chunk_rows(likelihood: ModelLikelihood) -> int:
    entries = sum(math.prod(leaf.shape[1:]) for leaf in likelihood.data)
    num_rows = likelihood.rows.num_local
    return min(num_rows, _CHUNK_ROWS, max(32, _CHUNK_ENTRIES // max(entries, 1)))


def _check_rows_apart(
    likelihood: ModelLikelihood,
    evaluate: Callable,
    points: Sequence[dict[str, Array]],
    generator: np.random.Generator,
) -> Few | None:
    """Evaluates a chunk of rows, drops most of them, and wants the same values for the others.

    Then as if only one of those were left, or two.

    Returns:
        What later checks need; None where there is one row, which sees no others.
    """
    rows, size = likelihood.rows, _chunk_rows(likelihood)
    if size == 1:
        return None
    is_far = rows.is_streamed or not rows.is_local
    if is_far:
        all_rows = rows.head(size)
    else:
        all_rows = rows.take(generator.choice(rows.num_rows, size, replace=False))
    subsets = list(disjoint_subsets(size))
    few = Few(evaluate, len(subsets[0]), all_rows if is_far else None)
    for params, kept in zip(points, subsets, strict=True):
        apart = RowsApart(few, params, all_rows)
        some = tuple(leaf[kept] for leaf in all_rows)
        apart.refuse_change(kept, some)
        some = tuple(np.asarray(leaf) for leaf in some)
        for alike in alike_subsets(len(kept)):
            rest = tuple(leaf[alike] for leaf in some)
            apart.refuse_change(kept[alike], rest, among=kept)
    return few
