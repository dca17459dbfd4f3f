"""`model_likelihood`: find the data, the structure and a starting point of a NumPyro model."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from numpyro.distributions import CategoricalLogits, CategoricalProbs, constraints
from numpyro.distributions.transforms import biject_to

from jaxcoreset.data.compiling import quick_jit
from jaxcoreset.data.rows import PassContext, Rows
from jaxcoreset.data.utils import host_generator
from jaxcoreset.likelihood.arguments import Arguments, ModelError
from jaxcoreset.likelihood.checks import check_log_likelihood, check_log_prior
from jaxcoreset.likelihood.likelihood import ModelLikelihood, draw_uniform
from jaxcoreset.likelihood.program import with_program
from jaxcoreset.likelihood.structure import find_data, find_structure
from jaxcoreset.likelihood.trace import one_at_a_time, run
from jaxcoreset.likelihood.verification import check_subsets, chunk_rows
from jaxcoreset.solvers.numerics import as_key

# Widths of the uniform draws tried for a starting point. An optimiser starts well near zero, but
# not at it, where products of parameters have a saddle.
_START_RADII = (0.1, 0.1, 0.5, 1.0, 2.0, 2.0)


@one_at_a_time
def model_likelihood(
    model: Callable,
    args: Sequence = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    data_axes: Any = None,
    plate: str | None = None,
    key: PRNGKeyArray | int | None = None,
    context: PassContext = PassContext(),  # noqa: B008 - frozen
    rows: Rows | None = None,
) -> ModelLikelihood:
    """Turns a NumPyro model and its arguments into per-datum log-likelihoods and a prior.

    The data are found for you: every array, in pytrees and keywords too, whose leading axis is as
    long as the data plate, the longest plate of an observed site that an argument matches; without
    plates, as long as an observed site's leading axis. If that is not what you mean, use
    `data_axes` or `plate`. An integer argument equal to n follows the number of rows if the model
    does not run with fewer rows otherwise, for instance because it is the plate's size.

    The model is checked on the way. It is traced abstractly for two numbers of rows, evaluated once
    on all rows, in chunks, at a starting point, and on two small subsets, which must have the same
    values.

    Args:
        model: a NumPyro model; it may be wrapped in handlers.
        args: its positional arguments, with all the rows, as in `MCMC.run`.
        kwargs: its keyword arguments.
        data_axes: which arguments are data, like `in_axes` of `jax.vmap`: 0 for one row per datum,
            None for an argument that is not data; each entry is for an argument or a pytree prefix
            of one. Either a dict by argument name, positional or keyword ({"X": 0, "y": 0}; the
            rest is not data), or a tuple with one entry per positional argument and, if keyword
            arguments are data, a dict for these at the end: (0, None, {"y": 0}). A bare 0 stands
            for all positional arguments.
        plate: the name of the data plate, if several plates are possible.
        key: for the starting point and the rows of the checks; a fixed key by default.
        context: where rows are read and evaluated.
        rows: all the rows, where the arguments have only some of them; by default those of the
            arguments.

    Returns:
        The likelihood.

    Raises:
        ModelError: the model has no observed or no latent site, subsamples, has discrete or
            per-datum latent sites or `numpyro.param` sites; data are not conditionally independent
            given the parameters, or the prior or a datum's likelihood changes when rows are
            dropped; no argument holds data, or data arguments differ in their number of rows or
            have no rows; the likelihood is not finite (the message names the rows). Errors of the
            model itself pass through, with a note on how it was called.
    """
    generator = np.random.default_rng(0) if key is None else host_generator(as_key(key))
    readings = find_data(model, tuple(args), dict(kwargs or {}), data_axes, plate)
    with _naming_data(readings[0], data_axes):
        structure = find_structure(model, readings)
    arguments = structure.arguments
    likelihood = with_program(
        ModelLikelihood(
            model=model,
            rows=Rows(arguments.data, context) if rows is None else rows,
            data_dims=structure.data_dims,
            init_params=draw_uniform(structure.latent_shapes, _START_RADII[0], generator),
            arguments=arguments,
            two_rows=tuple(leaf[:2] for leaf in arguments.data),
        )
    )
    evaluate = likelihood.program.compiled
    start = _find_start(likelihood, evaluate, generator)
    # Near zero a standardisation hardly shows, so a point farther out is checked as well.
    farther = draw_uniform(structure.latent_shapes, 1.0, generator)
    with context.processes.all_or_none("model"), _naming_data(arguments, data_axes):
        reference = check_subsets(likelihood, evaluate, (farther, start), generator)
    return dataclasses.replace(likelihood, init_params=start, reference=reference)


@contextlib.contextmanager
def _naming_data(arguments: Arguments, data_axes: Any) -> Iterator[None]:
    """Add to an error which arguments were found to be data, or the number of rows."""
    try:
        yield
    except ModelError as error:
        if data_axes is None:
            names = [arguments.names[i] for i in arguments.data_at]
            error.add_note(
                f"taken as data, since they have {arguments.num_data} rows: {', '.join(names)}; if "
                "one of them is not data, name the arguments that are data with data_axes"
            )
        if counts := [arguments.names[i] for i in arguments.counts_at]:
            error.add_note(
                f"taken as the number of rows, since they are {arguments.num_data}: "
                f"{', '.join(counts)}; if one of them is another number, use the length of an "
                "array in the model, such as y.shape[0], in place of the others"
            )
        raise


def _find_start(
    likelihood: ModelLikelihood, evaluate: Callable, generator: np.random.Generator
) -> dict[str, Array]:
    """Unconstrained values at which the log prior and the log-likelihoods are finite.

    Of rows that are not in memory only some are evaluated; the first pass checks the rest.
    """
    shapes = {name: value.shape for name, value in likelihood.init_params.items()}
    processes = likelihood.rows.context.processes
    first_error, failed = None, []
    for radius in _START_RADII:
        params = draw_uniform(shapes, radius, generator)
        error = None
        try:
            for rows, first in _checked_rows(likelihood):
                per_datum, others = evaluate(params, rows)
                check_log_prior(sum(float(value) for value in others.values()))
                total = np.sum([np.asarray(values) for values in per_datum.values()], axis=0)
                data = dict(zip(likelihood.arguments.data_names, rows, strict=True))
                check_log_likelihood(total, first + np.arange(len(total)), data)
        except ModelError as found:
            # Only the error of the first start is raised.
            error = first_error or _outside_support(likelihood, params) or found
        # All processes take the same start.
        states = processes.gather({"failed": np.asarray(error is not None)})
        failed = [str(index) for index, state in enumerate(states) if state["failed"]]
        if not failed:
            return params
        first_error = first_error or error
    raise first_error or ModelError(
        "another process found no starting point at which its rows' log-likelihood is finite; see "
        f"the error of process {' and '.join(failed)}."
    )


def _outside_support(likelihood: ModelLikelihood, params: Mapping[str, Array]) -> ModelError | None:
    """The error for observations that their distribution cannot have, if there are any."""
    kinds: dict[str, type] = {}

    @quick_jit
    def observed(params: Mapping[str, Array], rows: tuple) -> dict[str, tuple]:
        def fill(site: Mapping) -> Any:
            return biject_to(site["fn"].support)(params[site["name"]])

        sites, found = run(likelihood.model, likelihood.assemble(rows), fill), {}
        for name in likelihood.data_dims:
            distribution, value = sites[name]["fn"], sites[name]["value"]
            with contextlib.suppress(NotImplementedError, TypeError):
                # Values that are not finite have an error of their own.
                is_outside = ~distribution.support(value) & jnp.isfinite(value)
                found[name] = is_outside, value, _whole_limits(distribution)
                kinds[name] = type(getattr(distribution, "base_dist", distribution))
        return found

    rows, first = next(_checked_rows(likelihood))
    for name, outside in observed(params, rows).items():
        is_outside, values = map(np.asarray, outside[:2])
        if is_outside.ndim and is_outside.any():
            at = np.unravel_index(np.argmax(is_outside), is_outside.shape)
            row, count = first + int(at[likelihood.data_dims[name]]), is_outside.sum()
            limits = None if outside[2] is None else (int(outside[2][0]), int(outside[2][1]))
            shown = values.shape[likelihood.data_dims[name]]
            others = ({site: x + by for site, x in params.items()} for by in (-5.0, -1.0, 1.0, 5.0))
            found = [np.asarray(observed(one, rows)[name][0]) for one in others]
            kind = kinds[name].__name__
            beginning = f"the observed site {name!r} is {values[at]} in row {row}, which is outside"
            if any((one != is_outside).any() for one in found):
                return ModelError(
                    f"{beginning} the support of {kind} at the starting point, as are {count:,} of "
                    f"the first {shown:,} rows. The support depends on the parameters, so that the "
                    "log-likelihood of a row is -inf for some of them, and no few rows stand for "
                    "all: use a distribution whose support is fixed."
                )
            return ModelError(
                f"{beginning} the support of {kind}, as are {count:,} of the first {shown:,} rows: "
                f"{_remedy(kinds[name], limits, values)}"
            )
    return None


def _whole_limits(distribution: Any) -> tuple | None:
    """The smallest and the largest whole number of the support; None if these do not bound it."""
    support = distribution.support
    if support is constraints.boolean:
        return 0, 1
    if not isinstance(support, type(constraints.integer_interval(0, 1))):
        return None
    return jnp.min(support.lower_bound), jnp.max(support.upper_bound)


def _remedy(kind: type, limits: tuple[int, int] | None, values: np.ndarray) -> str:
    """What to do with observations outside the support of their distribution."""
    found = np.unique(values)
    if limits != (0, 1):
        is_class = issubclass(kind, CategoricalProbs | CategoricalLogits)
        if is_class and limits and found[0] == 1 and found[-1] == limits[1] + 1:
            return (
                f"its values are 1 to {found[-1]:g}, and 0 to {limits[1]} are expected: with these "
                "values as y, pass y - 1 (labels are counted from 0)."
            )
        return "fix or drop such rows, or use a distribution that can have these values."
    if found.size != 2 or found[1] - found[0] not in (1, 2):
        return "0 and 1 are expected."
    low, high = (value.item() for value in found)
    shifted = f"y - {low:g}" if low > 0 else f"y + {-low:g}"
    return (
        f"its values are {low:g} and {high:g}, and 0 and 1 are expected: with these values as y, "
        f"pass {shifted if high - low == 1 else f'({shifted}) // 2'}."
    )


def _checked_rows(likelihood: ModelLikelihood) -> Iterator[tuple[tuple, int]]:
    """Rows of this process in chunks of one shape, with the index of each chunk's first row."""
    rows, size = likelihood.rows, chunk_rows(likelihood)
    if rows.is_streamed:
        yield rows.head(size), rows.offset
        return
    yield from rows.chunks(size)
