"""One run of a NumPyro model: its sites, their shapes and log-probabilities.

Most runs here are abstract, by `jax.eval_shape`, so nothing of the data's length is computed. Sites
that a coreset cannot handle, such as discrete latent ones, are refused.
"""

import functools
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpyro.distributions.transforms import Transform, biject_to
from numpyro.handlers import seed, substitute, trace
from numpyro.infer.util import unconstrain_fn

from jaxcoreset.data.compiling import quick_jit
from jaxcoreset.likelihood.arguments import (
    Arguments,
    ModelError,
    not_given,
    refuse_text,
    refuse_unequal_rows,
)
from jaxcoreset.likelihood.densities import plain_log_prob
from jaxcoreset.likelihood.masks import unmasked

_P = ParamSpec("_P")
_R = TypeVar("_R")

# Two row counts for abstract runs: primes, so that no other axis is likely to have them.
ABSTRACT_ROWS = (31, 37)
VALUE_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


# NumPyro's stack of handlers is one for the whole process.
_HANDLERS = threading.RLock()


def one_at_a_time(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A function that runs models, which calls in other threads wait for.

    Settings of JAX that help to debug a model are off within it: models are evaluated at points
    where some are not finite, and NumPyro's own functions promote ranks.
    """

    @functools.wraps(function)
    def locked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with _HANDLERS, jax.numpy_rank_promotion("allow"), jax.debug_nans(False):
            return function(*args, **kwargs)

    return locked


class _DiscreteLatentError(ModelError):
    """A latent site is discrete."""


class FixedSizeError(ModelError):
    """The model has a size that does not follow the rows of its arguments."""


@dataclass(frozen=True)
class Site:
    """What one run says of a latent or observed site.

    The shapes are those of its value, of its log-probability, and of a latent site's unconstrained
    value. `num_values` is the number of values of a discrete latent site; 0 for all other ones.
    `is_masked` tells whether entries of a latent site may have no density.
    """

    name: str
    observed: bool
    shape: tuple[int, ...]
    log_prob_shape: tuple[int, ...]
    unconstrained_shape: tuple[int, ...]
    plates: dict[str, int]
    num_values: int
    is_masked: bool


def full_precision() -> AbstractContextManager:
    """Compute the model's products at full float32 precision.

    On a GPU the default rounds inputs to 10 bits, and a sum over all the data inherits that.
    """
    return jax.default_matmul_precision("highest")


_NO_ROWS: ContextVar[bool] = ContextVar("no_rows", default=False)


@contextmanager
def no_rows() -> Iterator[None]:
    """A context in which a model may skip its rows, because only its prior or sites are used."""
    token = _NO_ROWS.set(True)
    try:
        yield
    finally:
        _NO_ROWS.reset(token)


def needs_rows() -> bool:
    """False within `no_rows`."""
    return not _NO_ROWS.get()


def run(model: Callable, arguments: tuple[tuple, dict], fill: Callable) -> Any:
    """The model's trace at full precision, with latent sites set by `fill`."""
    args, kwargs = arguments

    def fill_latent(site: Mapping) -> Any:
        return fill(site) if is_latent(site) else None

    # The key serves models that ask for one; every latent site is filled.
    filled = seed(substitute(model, substitute_fn=fill_latent), rng_seed=0)
    with full_precision():
        return trace(filled).get_trace(*args, **kwargs)


def unconstrain_draws(
    model: Callable, arguments: tuple[tuple, dict], draws: Mapping[str, Any]
) -> dict[str, Array]:
    """Unconstrained values of a model's latent sites from constrained ones.

    Args:
        model: any NumPyro model.
        arguments: its (args, kwargs).
        draws: constrained values, with a leading axis of draws.
    """
    (args, kwargs), seeded = arguments, seed(model, rng_seed=0)
    unconstrain = jax.vmap(lambda draw: unconstrain_fn(seeded, args, kwargs, draw))
    return quick_jit(unconstrain)({name: jnp.asarray(x) for name, x in draws.items()})


def is_latent(site: Mapping) -> bool:
    """True if a site is a parameter."""
    return site["type"] == "sample" and not site["is_observed"]


def log_prob(site: Mapping) -> Any:
    """The log-probability of a site's value, as NumPyro counts it."""
    value = plain_log_prob(site["fn"], site["value"])
    return value if site["scale"] is None else site["scale"] * value


def summed_but(values: Any, dim: int) -> Array:
    """Log-probabilities summed over all axes but one, which is counted from the right."""
    return jnp.sum(values, axis=tuple(a for a in range(values.ndim) if a != values.ndim + dim))


def latent_shapes(model: Callable, arguments: tuple[tuple, dict]) -> dict[str, tuple[int, ...]]:
    """The shape of one constrained value of each latent site, for a model that has been checked."""
    sites = read_abstractly(describe, model, lambda: arguments)
    return {site.name: site.shape for site in sites if not site.observed}


def plate_names(model: Callable, arguments: tuple[tuple, dict]) -> dict[str, list[str]]:
    """The names of each site's axes: its plates, then those given by infer={"event_dims": …}.

    ``arviz.from_numpyro`` infers the same names for a model without weights.
    """

    def read(sites: Mapping) -> dict[str, list[str]]:
        found = {}
        for name, site in sites.items():
            if site["type"] in ("sample", "deterministic"):
                frames = sorted(site.get("cond_indep_stack", ()), key=lambda frame: frame.dim)
                events = (site.get("infer") or {}).get("event_dims", ())
                found[name] = [*(frame.name for frame in frames), *events]
        return {name: names for name, names in found.items() if names}

    return read_abstractly(read, model, lambda: arguments)


def sites_with_all_rows(model: Callable, arguments: Arguments) -> list[Site]:
    """The sites of the model as its user calls it; errors of the model itself pass through.

    A ModelError is raised if a site cannot be used, none is observed or none latent, or the model
    fails because arguments have unequal numbers of rows.
    """
    try:
        try:
            sites = _abstract_sites(model, arguments)
        except VALUE_ERRORS:
            # The model may read numbers from an array that is not data, such as spline knots.
            sites = describe(run(model, arguments.fill(arguments.data), fill_origin))
    except _DiscreteLatentError as error:
        if missing := not_given(model, arguments):
            raise ModelError(
                f"argument {' and '.join(missing)} of the model is None or was not given. If it "
                f"has the observations, pass it; else: {error}"
            ) from error
        raise
    except ModelError:
        raise
    except Exception as error:
        longest = max(shape[0] for shape in arguments.arrays.values())
        refuse_text(arguments, longest)
        _explain_unequal_rows(error, arguments)
        error.add_note(f"raised by the model when jaxcoreset called it with {arguments}")
        if isinstance(error, AttributeError) or "string index" in str(error):
            error.add_note(
                "a data frame is passed on as an array of its columns; if the model takes columns "
                "by name, pass a dictionary: {name: table[name] for name in table.columns}"
            )
        raise
    if not any(site.observed for site in sites):
        missing = " and ".join(not_given(model, arguments))
        raise ModelError(
            "the model has no observed site; at least one numpyro.sample(..., obs=...) or "
            "numpyro.factor is expected: pass the observations"
            + (f"; argument {missing} of the model is None or was not given." if missing else ".")
        )
    if all(site.observed for site in sites):
        raise ModelError("the model has no latent site, so there is no posterior to approximate.")
    return sites


def sites_with_rows(model: Callable, arguments: Arguments, num_rows: int) -> list[Site]:
    """The sites for another number of rows, with which the model must run.

    A ModelError if the model reads values of the data; a FixedSizeError if it fails otherwise.
    """
    try:
        return _abstract_sites(model, arguments, num_rows)
    except ModelError:
        raise
    except VALUE_ERRORS as error:
        raise ModelError(
            f"the model reads values of a data argument ({arguments}) as Python numbers or array "
            "sizes; these would change with the rows: pass them, for instance the number of "
            "groups, as arguments of their own, and use jax.numpy on data."
        ) from error
    except Exception as error:
        raise FixedSizeError(
            f"the model runs with all the rows but not with {num_rows} of them: take sizes from "
            "the data arguments (X.shape[0]), and pass arrays with one row per datum as arguments."
            f"{_bound_count(model, arguments)} "
            f"It was called with {arguments} and said: {error}"
        ) from error


def _counts(value: Any, num_data: int) -> bool:
    return jnp.ndim(value) == 0 and not isinstance(value, str) and bool(value == num_data)


def _bound_count(model: Callable, arguments: Arguments) -> str:
    """A sentence that names a number of rows that is a float, or that a partial binds."""
    for name, value in arguments.constants.items():
        if isinstance(value, float | np.floating) and value == arguments.num_data:
            return f" Argument {name} is {value!r}; a number of rows is an int: pass int({name})."
    if not isinstance(model, functools.partial):
        return ""
    bound = [f"{k}={v!r}" for k, v in model.keywords.items() if _counts(v, arguments.num_data)]
    bound += [repr(v) for v in model.args if _counts(v, arguments.num_data)]
    if not bound:
        return ""
    return f" The partial binds {', '.join(bound)}: pass it as an argument of the model instead."


def _abstract_sites(
    model: Callable, arguments: Arguments, num_rows: int | None = None
) -> list[Site]:
    data = tuple(abstract(leaf, num_rows) for leaf in arguments.data)
    return read_abstractly(describe, model, lambda *rows: arguments.fill(rows), *data)


def read_abstractly(read: Callable, model: Callable, fill: Callable, *shapes: Any) -> Any:
    """What `read` takes from the trace of a model that is run with shapes in place of data."""
    found = []

    def trace_model(*data: Any) -> None:
        found.append(read(run(model, fill(*data), fill_origin)))

    jax.eval_shape(trace_model, *shapes)
    return found[0]


def abstract(leaf: Any, num_rows: int | None) -> jax.ShapeDtypeStruct:
    """The shape and type of a leaf in a model, with another number of rows if one is given."""
    rows = leaf.shape[0] if num_rows is None else num_rows
    # The dtype that JAX gives the leaf: float32 for float64 unless x64 is on.
    dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
    return jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), dtype)


def _explain_unequal_rows(error: Exception, arguments: Arguments) -> None:
    """Raise an error about unequal rows if shapes clash and the longest arguments nearly agree."""
    if re.search("shape|broadcast|dimension", str(error)):
        longest = max(shape[0] for shape in arguments.arrays.values())
        close = {name: s for name, s in arguments.arrays.items() if 2 * s[0] > longest}
        refuse_unequal_rows(close, f" The model said: {error}")


def describe(model_trace: Mapping) -> list[Site]:
    """The latent and observed sites of a trace; a ModelError if a site cannot be used."""
    for name, site in model_trace.items():
        _refuse_unusable_site(name, site)
    return [_describe_sample(s) for s in model_trace.values() if s["type"] == "sample"]


def _refuse_unusable_site(name: str, site: Mapping) -> None:
    """Raise a ModelError if a site is a parameter without a prior, or a plate that subsamples."""
    if site["type"] == "param":
        raise ModelError(
            f"site {name!r} is a numpyro.param, which has no posterior; a numpyro.sample is "
            "expected: give it a prior, or pass its value as an argument (LocScaleReparam makes "
            "such a site unless you fix its centering: LocScaleReparam(0.0))."
        )
    if site["type"] == "plate":
        size, subsample_size = site["args"]
        if subsample_size is not None and subsample_size != size:
            raise ModelError(
                f"plate {name!r} subsamples {subsample_size} of {size} rows; a plate over all "
                "rows is expected, since the coreset takes the subsample's place: drop "
                "subsample_size."
            )


def _describe_sample(site: Mapping) -> Site:
    observed, shape = site["is_observed"], jnp.shape(site["value"])
    num = 0 if observed else num_values(site)
    is_continuous = not observed and not num
    return Site(
        name=site["name"],
        observed=observed,
        shape=shape,
        log_prob_shape=jnp.shape(log_prob(site)),
        unconstrained_shape=transform_of(site).inverse_shape(shape) if is_continuous else (),
        plates={frame.name: frame.size for frame in site["cond_indep_stack"]},
        num_values=num,
        is_masked=not observed and unmasked(site["fn"])[1] is not True,
    )


def fill_origin(site: Mapping) -> Any:
    """Set a latent site to the image of unconstrained zero; its shape needs no random draw."""
    if num_values(site):
        return value_at(site, 0)
    support = site["fn"].support
    if support is None or support.is_discrete:
        raise discrete(site["name"], site)
    transform = transform_of(site)
    return transform(jnp.zeros(transform.inverse_shape(value_shape(site))))


def value_shape(site: Mapping) -> tuple[int, ...]:
    """The shape of the value that a latent site samples."""
    return site["kwargs"].get("sample_shape", ()) + site["fn"].shape()


def num_values(site: Mapping) -> int:
    """The number of values that a discrete latent site can have; 0 if there is no end of them."""
    distribution = site["fn"]
    if distribution.support is None or not distribution.support.is_discrete:
        return 0
    if not distribution.has_enumerate_support or distribution.event_shape:
        return 0
    return distribution.enumerate_support(expand=False).shape[0]


def value_at(site: Mapping, position: Any) -> Any:
    """A value of a discrete latent site, everywhere, by its position among its values."""
    values = site["fn"].enumerate_support(expand=False)
    return jnp.broadcast_to(values.reshape(-1)[position], value_shape(site))


def discrete(name: str, site: Mapping | None = None) -> ModelError:
    """The error for a discrete latent site that cannot be summed out."""
    distribution = None if site is None else getattr(site["fn"], "base_dist", site["fn"])
    kind = "" if distribution is None else f" ({type(distribution).__name__})"
    return _DiscreteLatentError(
        f"latent site {name!r} is discrete{kind}; continuous parameters are expected, or a site "
        "with finitely many values and one entry for each row or each group that groups= names, "
        "which is summed out: sum it out of the model by hand."
    )


def transform_of(site: Mapping) -> Transform:
    """The transform from unconstrained values of a latent site; a ModelError if there is none."""
    try:
        return biject_to(site["fn"].support)
    except NotImplementedError as error:
        raise ModelError(
            f"latent site {site['name']!r} has the support {site['fn'].support}, which has no "
            "transform to unconstrained values: reparametrise it (numpyro.handlers.reparam)."
        ) from error
