"""The functions of a likelihood as compiled programs use them: without rows, and shared by builds.

JAX's caches keep what a compiled function is made from, and everything that it refers to. So
programs are made from a likelihood that holds no rows of a build and no model, see
`ModelLikelihood.program`. Likelihoods that compute the same values share one, so that a second
build of a model compiles nothing.

The models of two likelihoods do not show whether they compute the same values, since they may use
arrays and settings that change from build to build. What JAX makes of them shows it: the code in
StableHLO, with all its constants, for one number of rows. Rows do not depend on one another, so
there is no need to compare other numbers of rows.
"""

import dataclasses
import functools
import hashlib
import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval

from jaxcoreset.data.dtypes import default_float
from jaxcoreset.data.rows import Rows
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.trace import abstract

# The number of rows for which the code is compared: a prime that is neither the length of another
# axis nor a constant of a model.
_NUM_ROWS = 1013
# Programs that later builds may use, and the most entries that a model's own arrays may have for
# its code to be compared.
_MOST_PROGRAMS, _MOST_ENTRIES = 32, 2**24
_PROGRAMS: "OrderedDict[Hashable, ModelLikelihood]" = OrderedDict()


# Within one build, the programs that were found for its models.
_FOUND: ContextVar[list[tuple[Callable, ModelLikelihood]] | None] = ContextVar(
    "found", default=None
)


@contextmanager
def of_one_build() -> Iterator[None]:
    """A context in which models do not change, so that each one's program is found only once."""
    token = _FOUND.set([])
    try:
        yield
    finally:
        _FOUND.reset(token)


def with_program(likelihood: ModelLikelihood) -> ModelLikelihood:
    """A likelihood with the program of earlier ones that compute the same, or a new program.

    Call it where a model may have changed since the likelihood was made.
    """
    known = _FOUND.get()
    if known is not None:
        if any(one is likelihood.model and two is likelihood.shared for one, two in known):
            return likelihood
        found = _with_program(likelihood)
        assert found.shared is not None
        known.append((found.model, found.shared))
        return found
    return _with_program(likelihood)


def _with_program(likelihood: ModelLikelihood) -> ModelLikelihood:
    with likelihood.rows.context.precision():
        key = _key_of(likelihood)
        program = None if key is None else _PROGRAMS.pop(key, None)
        if program is None:
            program = _new_program(likelihood)
    if key is not None:
        _PROGRAMS[key] = program
        while len(_PROGRAMS) > _MOST_PROGRAMS:
            _PROGRAMS.popitem(last=False)
    current: Any = program.model
    current.follow(likelihood.model)
    reference = likelihood.reference
    if reference is not None:
        reference = dataclasses.replace(reference, evaluate=program.compiled)
    return dataclasses.replace(likelihood, shared=program, reference=reference)


class _CurrentModel:
    """A model of the likelihoods that share a program: of those in use, the one that came last."""

    def __init__(self) -> None:
        self._models: list[Callable[[], Callable | None]] = []

    def follow(self, model: Callable) -> None:
        """Call this model from now on, which computes what the ones before did."""
        try:
            found: Callable[[], Callable | None] = weakref.ref(model)
        except TypeError:  # it has no room for a weak reference
            found = lambda: model  # noqa: E731
        others = (one for one in self._models if one() is not None and one() is not model)
        self._models = [*others, found]

    @property
    def model(self) -> Any:
        """The model."""
        models = [one() for one in reversed(self._models)]
        model = next((one for one in models if one is not None), None)
        if model is None:
            raise RuntimeError("the likelihood of this program is no longer in use.")
        return model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


def current_model(program: ModelLikelihood) -> Any:
    """The model of a program; of likelihoods that share it, a model that is in use."""
    model: Any = program.model
    return model.model if isinstance(model, _CurrentModel) else model


@functools.lru_cache(maxsize=_MOST_PROGRAMS)
def with_integration(program: ModelLikelihood, integration: Any) -> ModelLikelihood:
    """The program of the same groups with another integral; one object for all calls."""

    def model(*args: Any, **kwargs: Any) -> Any:
        return current_model(program).with_integration(integration)(*args, **kwargs)

    return dataclasses.replace(program, model=model)


def _new_program(likelihood: ModelLikelihood) -> ModelLikelihood:
    """The same functions; the only data are copies of two rows, and `num_data` is that of all."""
    two_rows = tuple(
        np.array(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in likelihood.two_rows
    )
    rows = Rows(two_rows)
    rows.num_rows = likelihood.num_data
    return dataclasses.replace(
        likelihood,
        model=_CurrentModel(),
        rows=rows,
        arguments=likelihood.arguments.with_data(two_rows),
        two_rows=two_rows,
        reference=None,
        shared=None,
    )


def _key_of(likelihood: ModelLikelihood) -> Hashable | None:
    """What likelihoods have in common that compute the same; None if that cannot be known."""
    digest = hashlib.sha256()
    try:
        code = _code(likelihood)
        if code is None:
            return None
        digest.update(code.encode())
        if _prior_sees_rows(likelihood):
            for leaf in likelihood.two_rows:
                digest.update(np.asarray(leaf).tobytes())
        arguments = likelihood.arguments
        key = (
            digest.digest(),
            arguments.tree,
            arguments.names,
            arguments.data_at,
            arguments.counts_at,
            likelihood.num_data,
            tuple(sorted(likelihood.data_dims.items())),
            tuple((str(leaf.dtype), leaf.shape[1:]) for leaf in likelihood.two_rows),
            tuple(type(leaf) for leaf in likelihood.two_rows),
            tuple(sorted((name, np.shape(x)) for name, x in likelihood.init_params.items())),
            str(default_float()),
            _names_in_groups(likelihood.model),
        )
        hash(key)
    except Exception:
        return None
    return key


def _names_in_groups(model: Any) -> Hashable:
    """The names of a group's sites in their order, which draws have and the code does not tell."""
    structure = getattr(model, "structure", None)
    if structure is None:
        return None
    return tuple(structure.local), tuple(structure.discrete), tuple(structure.effects)


def _code(likelihood: ModelLikelihood) -> str | None:
    """The likelihood's functions and their derivatives for `_NUM_ROWS` rows, in StableHLO.

    Derivatives may follow rules of their own. None if the code calls Python, of which it does not
    tell what that does, or has very large constants.
    """

    def everything(params: Any, rows: tuple) -> Any:
        def values(params: Any) -> Any:
            with_rows = dataclasses.replace(likelihood, two_rows=rows)
            return likelihood.by_site(params, rows), with_rows.log_prior(params)

        try:
            found = jax.jvp(values, (params,), (jax.tree.map(jnp.ones_like, params),))
        except TypeError:  # a rule for the reverse mode only
            found, pullback = jax.vjp(values, params)
            found = found, pullback(jax.tree.map(jnp.ones_like, found))
        named = likelihood.named_sites(params, rows)
        return found, likelihood.by_site(params, rows, constrained=True), named

    rows = _of_length(likelihood, _NUM_ROWS)
    traced = jax.jit(everything).trace(likelihood.init_params, rows)
    if sum(np.size(constant) for constant in traced.jaxpr.consts) > _MOST_ENTRIES:
        return None
    code = traced.lower().as_text()
    return None if "callback" in code else code


def _prior_sees_rows(likelihood: ModelLikelihood) -> bool:
    """True if the prior uses values of the rows, which are then the same in all of them."""

    def prior(params: Any, rows: tuple) -> Any:
        return dataclasses.replace(likelihood, two_rows=rows).log_prior(params)

    params = likelihood.init_params
    traced = jax.make_jaxpr(prior)(params, _of_length(likelihood, 2)).jaxpr
    _, used = partial_eval.dce_jaxpr(traced, [True] * len(traced.outvars))
    return any(itertools.islice(used, len(jax.tree.leaves(params)), None))


def _of_length(likelihood: ModelLikelihood, num_rows: int) -> tuple:
    """That many rows of the data, as shapes."""
    return tuple(abstract(leaf, num_rows) for leaf in likelihood.two_rows)
